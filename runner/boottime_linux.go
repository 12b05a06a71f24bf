package runner

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TimeSinceBoot returns the time since the machine was booted, including time asleep. No user can set this
// clock, and all processes see the same value.
func TimeSinceBoot() time.Duration {
	var now unix.Timespec
	// This clock always exists, and the call never blocks.
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano())
}
