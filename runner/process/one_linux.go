package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// End ends the process with this number, by SIGKILL, if it started at these ticks: a
// number is given to another process once its own has ended.
func End(pid int, ticks int64) error { return tellOne(pid, ticks, unix.SIGKILL) }

// AskToEnd asks the process to end, by SIGTERM, under the same condition.
func AskToEnd(pid int, ticks int64) error { return tellOne(pid, ticks, unix.SIGTERM) }

func tellOne(pid int, ticks int64, number unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		if p, ok := stat(pid); !ok || p.ticks != ticks {
			return nil
		}
		err = unix.PidfdSendSignal(fd, number, nil, 0)
	}
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return nil
}

// Owns reports whether the real user of a process is uid.
func Owns(uid uint32, pid int) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			return f[1] == strconv.FormatUint(uint64(uid), 10)
		}
	}
	return false
}
