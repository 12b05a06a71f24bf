package config

import "path/filepath"

// Places are where a service keeps its things.
type Places struct {
	State  string // folder of the database
	Socket string
	File   string // of settings
}

// Names of files below a service's folders.
const (
	SocketName = "queuectl.sock"
	FileName   = "queuectl.toml"
	LogName    = "queuectl.log"
)

// Places of root's runners: their folder, and the file that says whose jobs they run.
const (
	RunnerDir    = "/var/lib/queuectl-runner"
	RunnerPolicy = "/etc/queuectl/runner.conf"
)

// In is the places of a service that has everything below one folder.
func In(dir string) Places {
	return Places{State: dir, Socket: filepath.Join(dir, SocketName), File: filepath.Join(dir, FileName)}
}
