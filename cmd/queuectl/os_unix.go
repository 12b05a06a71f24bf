//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// detached makes a process outlive this one and its terminal.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// ownUmask is the umask of this process.
func ownUmask() (int, bool) {
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return mask, true
}

// stopSignals end a service decently, reloadSignals have it read its settings
// again.
var (
	stopSignals   = []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	reloadSignals = []os.Signal{syscall.SIGHUP}
)

// closedPipe reports whether a write met a reader that has gone.
func closedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
