//go:build !linux

package service

import "time"

func monotonic() time.Duration { return 0 }
