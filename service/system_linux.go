package service

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the clock that the system's service manager goes by.
func monotonic() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // a clock that is always there
	return time.Duration(now.Nano())
}
