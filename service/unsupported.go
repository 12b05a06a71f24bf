//go:build !linux

package service

import "time"

// monotonic returns 0, because the time is only needed for systemd, which runs on Linux.
func monotonic() time.Duration { return 0 }
