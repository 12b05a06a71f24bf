package testrig

import (
	"os"

	"golang.org/x/sys/windows"
)

// DiskServer contains the helper processes that a test needs for a Disk. It is empty, because no test on
// Windows uses a Disk.
var DiskServer map[string]func() int

// awaitLock waits until it can lock a file.
func awaitLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}
