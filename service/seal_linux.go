package service

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// seal keeps this process, and all that it starts, from ever gaining a right: by a
// setuid program or a file's capabilities. It holds for every thread.
func seal() error {
	_, _, failed := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if failed != 0 && failed != unix.ENOTSUP { // of a program with cgo, as for the race detector
		return failed
	}
	return nil
}
