package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is the time since the machine was booted, also while it slept: a clock that
// nobody sets, and that is the same for all processes.
func SinceBoot() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // a clock that is always there
	return time.Duration(now.Nano())
}
