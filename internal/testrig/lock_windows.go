package testrig

import (
	"os"

	"golang.org/x/sys/windows"
)

// DiskServerRole is an argument for RunPackageTests. It is empty, because no test on Windows uses a Disk.
var DiskServerRole map[string]func() int

// waitForFileLock waits until it can lock a file.
func waitForFileLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}
