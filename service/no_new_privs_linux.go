package service

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setNoNewPrivs keeps this process, all its threads and its children from gaining privileges through setuid programs
// or file capabilities.
func setNoNewPrivs() error {
	_, _, failed := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	// ENOTSUP means that the program was built with cgo, for example with the race detector. Ignore it then.
	if failed != 0 && failed != unix.ENOTSUP {
		return failed
	}
	return nil
}
