//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
)

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
