package service

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns the time of the clock that systemd uses in notifications.
func monotonic() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // ignore errors: ClockGettime never fails for this clock
	return time.Duration(now.Nano())
}
