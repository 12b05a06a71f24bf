//go:build unix && !linux

package runner

import "golang.org/x/sys/unix"

// bootClock is the clock that TimeSinceBoot reads.
const bootClock = unix.CLOCK_MONOTONIC
