package testrig

import (
	"os"

	"golang.org/x/sys/windows"
)

// DiskServer is empty, because no test on Windows uses a Disk. On Linux it is an entry for the map that Main
// expects.
var DiskServer map[string]func() int

// awaitLock waits until it can lock a file.
func awaitLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}
