package testrig

import (
	"os"

	"golang.org/x/sys/windows"
)

// DiskServer would contain the role for Main with which a test binary serves a Disk. It is empty, because on
// Windows no test uses a Disk.
var DiskServer map[string]func() int

// awaitLock waits until it can lock a file.
func awaitLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}
