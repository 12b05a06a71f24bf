//go:build !linux

package service

import "time"

func monotonic() time.Duration { return 0 }

// seal does nothing, since this system offers no way to keep a process from gaining privileges.
func seal() error { return nil }
