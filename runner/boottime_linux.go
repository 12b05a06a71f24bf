package runner

import "golang.org/x/sys/unix"

// bootClock is the clock that TimeSinceBoot reads.
const bootClock = unix.CLOCK_BOOTTIME
