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
	dir := filepath.Join(os.Getenv("ProgramData"), "queuectl")
	return Places{State: dir, Socket: `\\.\pipe\queuectl`, File: filepath.Join(dir, FileName)}
}

// User is the places of the user's own service.
func User() (Places, error) {
	local := os.Getenv("LOCALAPPDATA")
	if !filepath.IsAbs(local) {
		return Places{}, errors.New("LOCALAPPDATA is not set; set it, or name a folder with --dir")
	}
	return In(filepath.Join(local, "queuectl")), nil
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
