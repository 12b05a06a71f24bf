package service

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonicTime returns the time of the monotonic clock, which notifications to systemd must contain.
func monotonicTime() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // ignore errors: ClockGettime never fails for this clock
	return time.Duration(now.Nano())
}
