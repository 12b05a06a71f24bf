//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/queue"
)

// maxAccountID is the highest uid or gid.
const maxAccountID = 1<<32 - 2

// socketName is the name of the socket in the directory of a service.
const socketName = "queuectl.sock"

// xdgDirName is the name of the user's directories for queuectl below the XDG base directories: one directory for the
// queue, and one for the settings.
const xdgDirName = "queuectl"

// PathsInDir returns the paths of a service whose files are all in one directory.
func PathsInDir(dir string) Paths {
	return Paths{StateDir: dir, SocketPath: filepath.Join(dir, socketName),
		SettingsFile: filepath.Join(dir, SettingsFileName)}
}

// PathsOfSocket returns the paths of the service that listens on a socket. It returns false if the socket's
// file name is not socketName, because then the other files may be in another directory.
func PathsOfSocket(socketPath string) (Paths, bool) {
	return PathsInDir(filepath.Dir(socketPath)), filepath.Base(socketPath) == socketName
}

// defaultShell is the default shell for the commands of jobs.
const defaultShell = "/bin/sh -c"

// SystemPaths returns the paths of the system service.
func SystemPaths() Paths {
	return Paths{StateDir: "/var/lib/queuectl", SocketPath: "/run/queuectl/queuectl.sock",
		SettingsFile: "/etc/queuectl/queuectl.toml"}
}

// UserPaths returns the paths of the user's own service. It ignores relative paths in the environment,
// as the XDG base directory specification demands.
func UserPaths() (Paths, error) {
	state, config := os.Getenv("XDG_STATE_HOME"), os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(state) || !filepath.IsAbs(config) {
		home := os.Getenv("HOME")
		if !filepath.IsAbs(home) {
			return Paths{}, errors.New("the variable HOME is not set to an absolute path; set it, or use --dir DIR")
		}
		if !filepath.IsAbs(state) {
			state = filepath.Join(home, ".local", "state")
		}
		if !filepath.IsAbs(config) {
			config = filepath.Join(home, ".config")
		}
	}
	dir := filepath.Join(state, xdgDirName)
	return Paths{StateDir: dir, SocketPath: filepath.Join(dir, socketName),
		SettingsFile: filepath.Join(config, xdgDirName, SettingsFileName)}, nil
}

// CheckHomeOwner returns an error if root would create the state directory in the home directory of another account, as
// happens with `sudo -E`. That account could not use the files. CheckHomeOwner accepts every caller that is not root: a
// caller without write permission fails later, when it creates the directory.
func (p Paths) CheckHomeOwner() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for dir := p.StateDir; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil // ignore the error; the caller reports it when it creates the state directory
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return queue.Errorf(queue.CodeDenied, "%s belongs to uid %d, but queuectl runs as root; use sudo -H or --dir DIR",
				dir, st.Uid)
		}
		return nil
	}
}
