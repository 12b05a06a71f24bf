package runner

import "golang.org/x/sys/unix"

// bootClockID is the clock that TimeSinceBoot reads.
const bootClockID = unix.CLOCK_BOOTTIME
