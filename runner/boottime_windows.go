package runner

import (
	"time"

	"golang.org/x/sys/windows"
)

// TimeSinceBoot returns the time since the machine was booted, including time asleep. No user can set this
// clock, and all processes see the same value.
func TimeSinceBoot() time.Duration { return windows.DurationSinceBoot() }
