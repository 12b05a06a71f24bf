package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// End sends SIGKILL to a process, if it started at this time: the kernel may have given the pid to
// another process. If of is not nil, the process must also belong to that account.
func End(pid int, ticks int64, of *uint32) error { return tellOne(pid, ticks, of, unix.SIGKILL) }

// AskToEnd sends SIGTERM to a process under the same conditions as End.
func AskToEnd(pid int, ticks int64, of *uint32) error {
	return tellOne(pid, ticks, of, unix.SIGTERM)
}

func tellOne(pid int, ticks int64, of *uint32, number unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		if p, ok := stat(pid); !ok || p.ticks != ticks || of != nil && !Owns(*of, pid) {
			return nil
		}
		err = unix.PidfdSendSignal(fd, number, nil, 0)
	}
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	return nil
}

// Owns reports whether a process belongs to an account: whether its real user id is uid.
func Owns(uid uint32, pid int) bool {
	real, _, ok := uidsOf(pid)
	return ok && real == uid
}
