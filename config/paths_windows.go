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

// maxAccountID is the highest number of a user or group. It is the highest integer up to which JSON numbers are exact.
const maxAccountID = 1<<53 - 1

// pipeNamePrefix is the prefix for the pipe names of services.
const pipeNamePrefix = `\\.\pipe\queuectl`

// PathsInDir returns the paths of a service whose files are all in one directory. The name of its pipe is global, so it
// contains a hash of the directory's path: the first 16 hexadecimal digits of the SHA-256. The hashed path is absolute
// and lower-case, with long names, so every spelling of the path leads to the same pipe.
func PathsInDir(dir string) Paths {
	path := filepath.Clean(dir)
	if whole, err := filepath.Abs(dir); err == nil {
		path = expandShortNames(whole)
	}
	sum := sha256.Sum256([]byte(strings.ToLower(path)))
	return Paths{StateDir: dir, SocketPath: pipeNamePrefix + "-" + hex.EncodeToString(sum[:8]),
		SettingsFile: filepath.Join(dir,
			SettingsFileName)}
}

// expandShortNames replaces short names like PROGRA~1 by the long names, in the part of a path that exists. Otherwise
// the name of the pipe would depend on how the path is spelled.
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

// PathsOfSocket always returns false, because the directory of a service cannot be derived from the name of its
// pipe.
func PathsOfSocket(string) (Paths, bool) { return Paths{}, false }

// defaultShell is the default shell for the commands of jobs.
const defaultShell = "cmd.exe /C"

// SystemPaths returns the paths of the system service. It does not read them from the environment, because
// users can change the environment of their programs.
func SystemPaths() Paths {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		data = `C:\ProgramData`
	}
	dir := filepath.Join(data, "queuectl")
	return Paths{StateDir: dir, SocketPath: pipeNamePrefix, SettingsFile: filepath.Join(dir, SettingsFileName)}
}

// UserPaths returns the paths of the user's own service.
func UserPaths() (Paths, error) {
	local := os.Getenv("LOCALAPPDATA")
	if !filepath.IsAbs(local) {
		return Paths{}, errors.New("the variable LOCALAPPDATA is not set to an absolute path; set it, or use --dir DIR")
	}
	return PathsInDir(filepath.Join(local, "queuectl")), nil
}

// CheckHomeOwner always returns nil: on Windows, files that an administrator creates in a home directory inherit
// its access rights.
func (p Paths) CheckHomeOwner() error { return nil }
