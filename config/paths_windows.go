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

// maxID is the highest number of a user or group. Every integer up to maxID is exact in JSON.
const maxID = 1<<53 - 1

// pipeNamePrefix is the prefix for the pipe names of services.
const pipeNamePrefix = `\\.\pipe\queuectl`

// PathsIn returns the paths of a service that keeps everything in one directory. Pipes are not in a directory,
// so the name of the pipe contains a hash of the directory's path. PathsIn first makes the path absolute and
// lower-case, with long names. The hash is the first 16 hexadecimal digits of the path's SHA-256.
func PathsIn(dir string) Paths {
	path := filepath.Clean(dir)
	if whole, err := filepath.Abs(dir); err == nil {
		path = expandShortNames(whole)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(path)))
	return Paths{StateDir: dir, Socket: pipeNamePrefix + "-" + hex.EncodeToString(sum[:8]),
		SettingsFile: filepath.Join(dir,
			SettingsFileName)}
}

// expandShortNames replaces short names like PROGRA~1 in the existing part of a path. So a directory has the same pipe,
// however its path is spelled.
func expandShortNames(path string) string {
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
	return filepath.Join(expandShortNames(parent), filepath.Base(path))
}

// PathsOfSocket always returns false, because the name of a pipe does not contain the directory of its
// service.
func PathsOfSocket(string) (Paths, bool) { return Paths{}, false }

// defaultShell is the default shell for the commands of jobs.
const defaultShell = "cmd.exe /C"

// SystemPaths returns the paths of the system service. It does not read the environment, because users
// can change the environment of their programs.
func SystemPaths() Paths {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		data = `C:\ProgramData`
	}
	dir := filepath.Join(data, "queuectl")
	return Paths{StateDir: dir, Socket: pipeNamePrefix, SettingsFile: filepath.Join(dir, SettingsFileName)}
}

// UserPaths returns the paths of the user's own service.
func UserPaths() (Paths, error) {
	local := os.Getenv("LOCALAPPDATA")
	if !filepath.IsAbs(local) {
		return Paths{}, errors.New("the variable LOCALAPPDATA is not set to an absolute path; set it, or use --dir DIR")
	}
	return PathsIn(filepath.Join(local, "queuectl")), nil
}

// CheckOwner always returns nil, because files inherit the access rights of the home directory.
func (p Paths) CheckOwner() error { return nil }
