package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"
)

// maxID is the highest number of a user or group. It is the highest integer that JSON represents
// exactly.
const maxID = 1<<53 - 1

// pipeName is the prefix for the pipe names of services.
const pipeName = `\\.\pipe\queuectl`

// PlacesIn returns the paths of a service that keeps everything in one directory. Pipes are not in a
// directory, so the name of the pipe contains a hash of the directory's path. The path is first made
// absolute and lower-case, with long names. The hash is the first 16 hexadecimal digits of the SHA-256
// of the path.
func PlacesIn(dir string) Places {
	path := filepath.Clean(dir)
	if whole, err := filepath.Abs(dir); err == nil {
		path = longName(whole)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(path)))
	return Places{State: dir, Socket: pipeName + "-" + hex.EncodeToString(sum[:8]), File: filepath.Join(dir, FileName)}
}

// longName replaces short names like PROGRA~1 in the part of a path that exists. So a directory has the
// same pipe, however its path is spelled.
func longName(path string) string {
	short, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return path
	}
	buf := make([]uint16, windows.MAX_LONG_PATH)
	if n, err := windows.GetLongPathName(short, &buf[0], uint32(len(buf))); err == nil && int(n) < len(buf) {
		return windows.UTF16ToString(buf[:n])
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(longName(parent), filepath.Base(path))
}

// PlacesOfSocket always returns false, because the name of a pipe does not contain the directory of its
// service.
func PlacesOfSocket(string) (Places, bool) { return Places{}, false }

// shell is the default shell for the commands of jobs.
const shell = "cmd.exe /C"

// SystemPlaces returns the paths of the system service. It does not read the environment, because users
// can change the environment of their programs.
func SystemPlaces() Places {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		data = `C:\ProgramData`
	}
	dir := filepath.Join(data, "queuectl")
	return Places{State: dir, Socket: pipeName, File: filepath.Join(dir, FileName)}
}

// UserPlaces returns the paths of the user's own service.
func UserPlaces() (Places, error) {
	local := os.Getenv("LOCALAPPDATA")
	if !filepath.IsAbs(local) {
		return Places{}, errors.New("the variable LOCALAPPDATA is not set to an absolute path; set it, or use --dir DIR")
	}
	return PlacesIn(filepath.Join(local, "queuectl")), nil
}

// CheckOwner always returns nil, because files inherit the access rights of the home directory.
func (p Places) CheckOwner() error { return nil }
