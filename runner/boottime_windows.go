package runner

import (
	"time"

	"golang.org/x/sys/windows"
)

// TimeSinceBoot returns the time since the machine was booted, including the time that it was asleep. The result is the
// same for all processes, and does not change if the clock is set.
func TimeSinceBoot() time.Duration { return windows.DurationSinceBoot() }
