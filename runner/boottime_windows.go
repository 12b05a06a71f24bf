package runner

import (
	"time"

	"golang.org/x/sys/windows"
)

// SinceBoot returns the time since the machine was booted, including time asleep. No user can set this
// clock, and all processes see the same value.
func SinceBoot() time.Duration { return windows.DurationSinceBoot() }
