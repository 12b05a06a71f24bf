package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// End ends the process with this number, by SIGKILL, if it started at these ticks: a
// number is given to another process once its own has ended. If of is not nil the process
// must be that account's.
func End(pid int, ticks int64, of *uint32) error { return tellOne(pid, ticks, of, unix.SIGKILL) }

// AskToEnd asks the process to end, by SIGTERM, under the same condition.
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
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return nil
}

// Owns reports whether a process is an account's: its real user id is.
func Owns(uid uint32, pid int) bool {
	real, _, ok := uidsOf(pid)
	return ok && real == uid
}
