//go:build !linux

package service

import "time"

// monotonicTime returns 0, because the time is only needed for systemd, which runs on Linux.
func monotonicTime() time.Duration { return 0 }
