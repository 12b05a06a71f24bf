//go:build unix

package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// TimeSinceBoot returns the time since the machine was booted. On Linux, it includes the time asleep. No user
// can set this clock, and all processes see the same value.
func TimeSinceBoot() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(bootClock, &now) // this clock always exists
	return time.Duration(now.Nano())
}
