package runner

import (
	"time"

	"golang.org/x/sys/windows"
)

// SinceBoot is the time since the machine was booted, also while it slept: a clock that
// nobody sets, and that is the same for all processes.
func SinceBoot() time.Duration { return windows.DurationSinceBoot() }
