//go:build unix

package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The directory that has the private directories of jobs may be made by the operator. One that is not a directory of
// this account alone is refused, with the command that helps.
func TestPlaceOfJobsIsChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(path string) error
		want string // of the refusal; "" if it is accepted
	}{
		{"none", func(string) error { return nil }, ""},
		{"private", func(path string) error { return os.Mkdir(path, 0o700) }, ""},
		{"readable", func(path string) error { return os.Mkdir(path, 0o755) }, ""},
		{"writable by others", func(path string) error { return os.Chmod(path, 0o777) }, "(mode 777); run: chmod go-w "},
		{"writable by its group", func(path string) error { return os.Chmod(path, 0o770) }, "(mode 770); run: chmod go-w "},
		{"a file", func(path string) error { return os.WriteFile(path, nil, 0o600) }, "must be a directory"},
		{"a link", func(path string) error { return os.Symlink(filepath.Dir(path), path) }, "must be a directory"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, placesName)
		if strings.HasPrefix(c.name, "writable") {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		_, err := makePlace(root, "runner", false)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v, want no error", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s and %q", c.name, err, path, c.want)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	root := t.TempDir()
	path := filepath.Join(root, placesName)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 61300, 61300); err != nil {
		t.Fatal(err)
	}
	if _, err := makePlace(root, "runner", true); err == nil || !strings.Contains(err.Error(), "belongs to uid 61300, and the runner has uid 0; run: chown 0 "+path) {
		t.Errorf("of another account: %v", err)
	}
}
