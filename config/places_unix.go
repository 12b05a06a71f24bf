//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
)

// Places are where a service keeps its things.
type Places struct {
	State  string // folder of the database
	Socket string
	File   string // of settings
}

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
			return Places{}, errors.New("HOME is not set; set it, or name a folder with --dir")
		}
		if !filepath.IsAbs(state) {
			state = filepath.Join(home, ".local", "state")
		}
		if !filepath.IsAbs(config) {
			config = filepath.Join(home, ".config")
		}
	}
	dir := filepath.Join(state, "queuectl")
	return Places{State: dir, Socket: filepath.Join(dir, SocketName), File: filepath.Join(config, "queuectl", FileName)}, nil
}

// In is the places of a service that has everything below one folder.
func In(dir string) Places {
	return Places{State: dir, Socket: filepath.Join(dir, SocketName), File: filepath.Join(dir, FileName)}
}

// Names of files below a service's folders.
const (
	SocketName = "queuectl.sock"
	FileName   = "queuectl.toml"
	LogName    = "queuectl.log"
)
