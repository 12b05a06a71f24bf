//go:build unix && !linux

package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// TimeSinceBoot returns the time since the machine was booted. No user can set this clock, and all
// processes see the same value.
func TimeSinceBoot() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // this clock always exists
	return time.Duration(now.Nano())
}
