package config

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

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
