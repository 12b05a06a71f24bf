//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/queue"
)

// maxID is the largest number of a user or group.
const maxID = 1<<32 - 2

// socketName is the socket in a service's folder.
const socketName = "queuectl.sock"

// directoryName is that of a user's queue, and of its settings, in the directories for such.
const directoryName = "queuectl"

// In is the places of a service that has everything below one folder.
func In(dir string) Places {
	return Places{State: dir, Socket: filepath.Join(dir, socketName), File: filepath.Join(dir, FileName)}
}

// Around is the places of a service whose socket is in its folder, if that can be told of
// a socket.
func Around(socket string) (Places, bool) {
	return In(filepath.Dir(socket)), filepath.Base(socket) == socketName
}

// shell runs a job's command.
const shell = "/bin/sh -c"

// System is the places of the system's service.
func System() Places {
	return Places{State: "/var/lib/queuectl", Socket: "/run/queuectl/queuectl.sock", File: "/etc/queuectl/queuectl.toml"}
}

// User is the places of the user's own service. Relative folders in the
// environment are ignored, as the XDG base directory specification says.
func User() (Places, error) {
	state, config := os.Getenv("XDG_STATE_HOME"), os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(state) || !filepath.IsAbs(config) {
		home := os.Getenv("HOME")
		if !filepath.IsAbs(home) {
			return Places{}, errors.New("the variable HOME does not contain an absolute path; set it, or use --dir DIR")
		}
		if !filepath.IsAbs(state) {
			state = filepath.Join(home, ".local", "state")
		}
		if !filepath.IsAbs(config) {
			config = filepath.Join(home, ".config")
		}
	}
	dir := filepath.Join(state, directoryName)
	return Places{State: dir, Socket: filepath.Join(dir, socketName), File: filepath.Join(config, directoryName, FileName)}, nil
}

// CheckOwner refuses to let root make the state directory in a home of another account, which `sudo -E` names:
// that account could not use what root makes there. For other accounts the modes of the home decide, because it may
// share a group with them; making the directory reports what is wrong.
func (p Places) CheckOwner() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for dir := p.State; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil // making it reports what is wrong
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return queue.Errorf(queue.CodeDenied, "home: %s belongs to uid %d, not to root; use sudo -H or --dir DIR", dir, st.Uid)
		}
		return nil
	}
}
