package runner

import (
	"time"

	"golang.org/x/sys/windows"
)

// TimeSinceBoot returns the time since the machine was booted, including the time that it was asleep. Setting
// the clock does not change the result, and it is the same for all processes.
func TimeSinceBoot() time.Duration { return windows.DurationSinceBoot() }
