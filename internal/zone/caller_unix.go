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

// Unread returns the value of TZ if the time package could not read it. That package reads only the
// names and paths of zone files, and silently takes UTC for anything else. Where TZ is not set, the
// value stands for the machine's zone, whose file may be missing.
func Unread() (value string, unread bool) {
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

// machine returns the zone of the machine, whatever TZ says.
func machine() (*time.Location, error) {
	l, err := fromFile(Machine, machineFile)
	if name := machineName("/"); errors.Is(err, fs.ErrNotExist) && name != Machine {
		return Load(name) // the file that it links to is missing
	}
	return l, err
}

// Caller returns the name of this process's zone, which a service of the same machine can load.
func Caller() (string, error) {
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
	return "", fmt.Errorf("TZ: %s is not a time zone that the service knows; use --tz with a name such as Europe/Berlin", name)
}

// nameIn returns the name of a zone by the path of its file.
func nameIn(path string) (name string, found bool) {
	_, name, found = strings.Cut(path, "zoneinfo/")
	if name = strings.TrimPrefix(name, "posix/"); name == "Etc/UTC" {
		name = utc
	}
	return name, found
}

// machineName returns the name of the machine's zone below a root directory. It is that of the file
// that /etc/localtime links to. If that is a copy, it is the name in /etc/timezone, provided that
// this zone has the same content: a container often has the file of its host, and the name of its
// image. Otherwise it is Machine. A machine without the file has UTC.
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
	text, _ := os.ReadFile(filepath.Join(root, "etc/timezone")) // it may be missing
	name := strings.TrimSpace(string(text))
	same, _ := os.ReadFile(filepath.Join(root, "usr/share/zoneinfo", name))
	if len(here) > 0 && bytes.Equal(here, same) {
		return name
	}
	return Machine
}
