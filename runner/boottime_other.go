//go:build unix && !linux

package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is the time since the machine was booted: a clock that nobody sets, and that
// is the same for all processes.
func SinceBoot() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // a clock that is always there
	return time.Duration(now.Nano())
}
