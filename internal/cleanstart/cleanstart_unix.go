//go:build unix && !linux

package cleanstart

import "golang.org/x/sys/unix"

// Reset only marks the descriptors, since this system runs no jobs.
func Reset() {
	CloseOnExec()
}

// CloseOnExec marks every descriptor except 0, 1 and 2, so that no program that this process starts
// inherits one that was not passed to it by number.
func CloseOnExec() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for fd := 3; fd < int(min(limit.Cur, 10240)); fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// Inherited reports nothing.
func Inherited() []string { return nil }
