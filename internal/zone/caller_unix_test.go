//go:build unix

package zone

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The zone of the machine is the one in /etc/localtime. The name in /etc/timezone is used only if the zone file of that
// name has the same content, because /etc/timezone may come from another machine.
func TestMachineZoneNameMatchesLocaltime(t *testing.T) {
	for _, c := range []struct{ what, link, localtime, timezone, want string }{
		{"nothing", "", "", "", "UTC"},
		{"a link", "/usr/share/zoneinfo/Europe/Berlin", "", "", "Europe/Berlin"},
		{"a link, and another name", "../usr/share/zoneinfo/Europe/Berlin", "", "Etc/UTC", "Europe/Berlin"},
		{"a link of macOS", "/var/db/timezone/zoneinfo/Asia/Tokyo", "", "", "Asia/Tokyo"},
		{"a link to UTC", "/usr/share/zoneinfo/Etc/UTC", "", "", "UTC"},
		{"a copy", "", "berlin", "", "Local"},
		{"a copy with its name", "", "berlin", "Europe/Berlin\n", "Europe/Berlin"},
		{"a host's file in a container", "", "berlin", "Etc/UTC\n", "Local"},
		{"a name without a file", "", "", "Europe/Berlin\n", "UTC"},
	} {
		root := t.TempDir()
		put := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put("usr/share/zoneinfo/Europe/Berlin", "berlin")
		put("usr/share/zoneinfo/Etc/UTC", "utc")
		put("etc/timezone", c.timezone)
		if c.localtime != "" {
			put("etc/localtime", c.localtime)
		}
		if c.link != "" {
			if err := os.Symlink(c.link, filepath.Join(root, "etc/localtime")); err != nil {
				t.Fatal(err)
			}
		}
		if got := machineZoneName(root); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

// CallerZoneName returns the zone in TZ as a name that the service can load, even if TZ contains the path of a zone
// file.
func TestCallerZoneNameIsLoadable(t *testing.T) {
	for value, want := range map[string]string{
		"": "UTC", ":": "UTC", "Asia/Tokyo": "Asia/Tokyo", ":Asia/Tokyo": "Asia/Tokyo", "JST-9": "JST-9",
		"/usr/share/zoneinfo/Asia/Tokyo": "Asia/Tokyo", ":/usr/share/zoneinfo/posix/Asia/Tokyo": "Asia/Tokyo",
		":/etc/localtime": machineZoneName("/"),
	} {
		t.Setenv("TZ", value)
		if got, err := CallerZoneName(); err != nil || got != want {
			t.Errorf("TZ=%s: got %q, %v, want %q", value, got, err, want)
		}
	}
	t.Setenv("TZ", "/srv/zone")
	if got, err := CallerZoneName(); err == nil {
		t.Errorf("TZ=/srv/zone: got %q, want refused", got)
	}
}

// UnreadableTZ returns a value of TZ that package time cannot read. For such a value, package time uses UTC.
func TestUnreadableTZIsReported(t *testing.T) {
	was := time.Local
	t.Cleanup(func() { time.Local = was })
	time.Local = time.UTC
	for value, want := range map[string]bool{"": false, ":": false, "UTC": false, ":UTC": false, "JST-9": true,
		"Foo/Bar": true, ":Europe/Berlin": true} {
		t.Setenv("TZ", value)
		if got, unread := UnreadableTZ(); unread != want || unread && got != value {
			t.Errorf("TZ=%s: got %q, %v, want %v", value, got, unread, want)
		}
	}
}

// TZ may contain the path of a file, with or without a colon.
func TestFromTZReadsFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zone")
	if err := os.WriteFile(file, []byte(buildTZif("CET-1CEST,M3.5.0,M10.5.0/3")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{file, ":" + file} {
		l, err := FromTZ(value)
		if err != nil {
			t.Errorf("%q: %v", value, err)
		} else if got, _ := time.Unix(1785000000, 0).In(l).Zone(); got != "CEST" {
			t.Errorf("%q: got %s, want CEST", value, got)
		}
	}
	if l, err := FromTZ(file + ".missing"); err == nil {
		t.Errorf("a missing file: got %v, want an error", l)
	}
}
