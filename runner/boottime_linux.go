package runner

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SinceBoot is the time since the machine was booted, also while it slept: a clock that
// nobody sets, and that is the same for all processes.
func SinceBoot() time.Duration {
	var now unix.Timespec
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&now)), 0) // a clock that is always there, and no wait
	return time.Duration(now.Nano())
}
