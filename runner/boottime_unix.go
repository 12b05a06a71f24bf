//go:build unix

package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// TimeSinceBoot returns the time since the machine was booted. On Linux, this includes the time that the machine was
// asleep. The result is the same for all processes, and does not change if the clock is set.
func TimeSinceBoot() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(bootClockID, &now) // this clock always exists
	return time.Duration(now.Nano())
}
