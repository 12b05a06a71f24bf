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

// maxID is the largest number of a user or group: JSON holds it exactly.
const maxID = 1<<53 - 1

// pipeName begins the names of services' pipes.
const pipeName = `\\.\pipe\queuectl`

// In is the places of a service that has everything below one folder. Pipes are in none,
// so its pipe has the folder in its name, as the first 16 digits of the SHA-256 of its
// whole path, of long names, in small letters.
func In(dir string) Places {
	path := filepath.Clean(dir)
	if whole, err := filepath.Abs(dir); err == nil {
		path = longName(whole)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(path)))
	return Places{State: dir, Socket: pipeName + "-" + hex.EncodeToString(sum[:8]), File: filepath.Join(dir, FileName)}
}

// longName is a path without short names, like PROGRA~1, as far as it exists: a folder has one pipe,
// however somebody spells it.
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

// Around is the places of a service whose socket is in its folder, which cannot be told
// of a pipe.
func Around(string) (Places, bool) { return Places{}, false }

// shell runs a job's command.
const shell = "cmd.exe /C"

// System is the places of the system's service. The environment, which anybody can set
// for their programs, has no say in them.
func System() Places {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		data = `C:\ProgramData`
	}
	dir := filepath.Join(data, "queuectl")
	return Places{State: dir, Socket: pipeName, File: filepath.Join(dir, FileName)}
}

// User is the places of the user's own service.
func User() (Places, error) {
	local := os.Getenv("LOCALAPPDATA")
	if !filepath.IsAbs(local) {
		return Places{}, errors.New("the variable LOCALAPPDATA does not contain an absolute path; set it, or use --dir DIR")
	}
	return In(filepath.Join(local, "queuectl")), nil
}

// CheckOwner refuses nothing: the rights of a home hold for what is made in it.
func (p Places) CheckOwner() error { return nil }
