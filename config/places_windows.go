package config

import (
	"errors"
	"os"
	"path/filepath"
)

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
