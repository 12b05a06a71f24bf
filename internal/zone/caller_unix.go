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

// UnreadableTZ returns the value of the environment variable TZ if package time cannot read it. isUnreadable is then
// true, and package time silently uses UTC. Package time reads only names and paths of zone files. If TZ is not set and
// the machine's zone file is missing, UnreadableTZ returns the path of the zone file.
func UnreadableTZ() (value string, isUnreadable bool) {
	value, set := os.LookupEnv("TZ")
	if !set {
		value = ":" + localtimeFile
	}
	name := strings.TrimPrefix(value, ":")
	if name == "" || name == utcZoneName || time.Local.String() != utcZoneName {
		return "", false
	}
	return value, name != localtimeFile || machineZoneName("/") != utcZoneName
}

const utcZoneName = "UTC"

// machineZone returns the zone of the machine, regardless of TZ.
func machineZone() (*time.Location, error) {
	l, err := readZoneFile(LocalZoneName, localtimeFile)
	if name := machineZoneName("/"); errors.Is(err, fs.ErrNotExist) && name != LocalZoneName {
		// The link /etc/localtime contains the name of the zone, but its target is missing.
		return Load(name)
	}
	return l, err
}

// CallerZoneName returns the name of this process's time zone. A service on the same machine can pass the name to
// Load.
func CallerZoneName() (string, error) {
	value, set := os.LookupEnv("TZ")
	name := strings.TrimPrefix(value, ":")
	switch {
	case !set || name == localtimeFile:
		return machineZoneName("/"), nil
	case name == "":
		return utcZoneName, nil
	case !strings.HasPrefix(name, "/"):
		return name, nil
	}
	if zone, found := zoneNameOfPath(name); found {
		return zone, nil
	}
	return "", fmt.Errorf("TZ: %s is not a time zone that the service knows; use --tz with a name such as Europe/Berlin",
		name)
}

// zoneNameOfPath returns the name of the zone whose file has the given path.
func zoneNameOfPath(path string) (name string, found bool) {
	_, name, found = strings.Cut(path, "zoneinfo/")
	if name = strings.TrimPrefix(name, "posix/"); name == "Etc/UTC" {
		name = utcZoneName
	}
	return name, found
}

// machineZoneName returns the name of the zone of the machine whose root directory is rootDir. If /etc/localtime is a
// link, the path of its target contains the name. If /etc/localtime is missing, the zone is UTC. If /etc/localtime is a
// regular file, /etc/timezone contains the name. machineZoneName uses that name only if the zone file of the name has
// the same content as /etc/localtime, and otherwise returns LocalZoneName. The reason is that a container often has the
// /etc/localtime of its host, but the /etc/timezone of its image.
func machineZoneName(rootDir string) string {
	path := filepath.Join(rootDir, localtimeFile)
	link, err := os.Readlink(path)
	if name, found := zoneNameOfPath(link); err == nil && found {
		return name
	}
	localtimeData, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return utcZoneName
	}
	text, _ := os.ReadFile(filepath.Join(rootDir, "etc/timezone")) // the file may be missing
	name := strings.TrimSpace(string(text))
	namedZoneData, _ := os.ReadFile(filepath.Join(rootDir, "usr/share/zoneinfo", name))
	if len(localtimeData) > 0 && bytes.Equal(localtimeData, namedZoneData) {
		return name
	}
	return LocalZoneName
}
