//go:build unix

package zone

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// UnreadTZ returns the value of TZ if the time package could not read it. That package reads only the
// names and paths of zone files, and silently uses UTC for anything else. If TZ is not set, the
// value is the path of the machine's zone file, because that file may be missing.
func UnreadTZ() (value string, unread bool) {
	value, set := os.LookupEnv("TZ")
	if !set {
		value = ":" + machineFile
	}
	name := strings.TrimPrefix(value, ":")
	if name == "" || name == utc || time.Local.String() != utc {
		return "", false
	}
	return value, name != machineFile || machineName("/") != utc
}

const utc = "UTC"

// machine returns the zone of the machine, regardless of TZ.
func machine() (*time.Location, error) {
	l, err := fromFile(Machine, machineFile)
	if name := machineName("/"); errors.Is(err, fs.ErrNotExist) && name != Machine {
		// The name is known from the link /etc/localtime, but the target of the link is missing.
		return Load(name)
	}
	return l, err
}

// CallerZone returns the name of this process's zone, which a service of the same machine can load.
func CallerZone() (string, error) {
	value, set := os.LookupEnv("TZ")
	name := strings.TrimPrefix(value, ":")
	switch {
	case !set || name == machineFile:
		return machineName("/"), nil
	case name == "":
		return utc, nil
	case !strings.HasPrefix(name, "/"):
		return name, nil
	}
	if zone, found := nameIn(name); found {
		return zone, nil
	}
	return "", fmt.Errorf("TZ: %s is not a time zone that the service knows; use --tz with a name such as Europe/Berlin",
		name)
}

// nameIn returns the name of a zone, from the path of its file.
func nameIn(path string) (name string, found bool) {
	_, name, found = strings.Cut(path, "zoneinfo/")
	if name = strings.TrimPrefix(name, "posix/"); name == "Etc/UTC" {
		name = utc
	}
	return name, found
}

// machineName returns the name of the machine's zone. root is the root directory. If /etc/localtime
// is a link, the name is that of its target. If it is a copy, the name is the content of
// /etc/timezone, provided that the zone file of this name has the same content as the copy. A
// container often has the file of its host, but the name of its image. If the contents differ,
// machineName returns Machine. Without the file, the zone is UTC.
func machineName(root string) string {
	path := filepath.Join(root, machineFile)
	link, err := os.Readlink(path)
	if name, found := nameIn(link); err == nil && found {
		return name
	}
	here, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return utc
	}
	text, _ := os.ReadFile(filepath.Join(root, "etc/timezone")) // the file may be missing
	name := strings.TrimSpace(string(text))
	same, _ := os.ReadFile(filepath.Join(root, "usr/share/zoneinfo", name))
	if len(here) > 0 && bytes.Equal(here, same) {
		return name
	}
	return Machine
}
