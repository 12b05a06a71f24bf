package main

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/control"
)

// detached makes a process outlive this one and its terminal.
func detached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS}
}

// ownUmask is the umask of this process; Windows has none.
func ownUmask() (int, bool) { return 0, false }

// stopSignals end a service decently, reloadSignals have it read its settings
// again.
var (
	stopSignals   = []os.Signal{os.Interrupt}
	reloadSignals = []os.Signal{}
)

// readerGone waits until nobody can read a pipe any more, which cannot be known here.
func readerGone(*os.File) error { return nil }

// alias is an output under which a reader that has gone is the error of a write.
func alias(f *os.File) *os.File { return f }

// closedPipe reports whether a write met a reader that has gone.
func closedPipe(err error) bool { return errors.Is(err, windows.ERROR_BROKEN_PIPE) }

// syncFolder makes the names in a folder durable; Windows does so by itself.
func syncFolder(string) error { return nil }

// isSocket refuses what is no name of a pipe. It may not be there yet.
func isSocket(what, path string) error {
	if err := control.CheckSocketPath(path); err != nil {
		return usage("%s: %v", what, err)
	}
	return nil
}

// newSocket is the name of a pipe that is to be made.
func newSocket(what, path string) (string, error) { return path, isSocket(what, path) }

// socketExists reports whether there may be a pipe: who looks for one connects to it, so
// only the service's folder tells.
func socketExists(string) bool { return false }
