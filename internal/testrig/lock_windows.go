package testrig

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// DiskServer is the role of a test binary that serves a disk. There is none on Windows.
var DiskServer map[string]func() int

// lock waits until no other process holds the lock with this name, and takes it.
func lock(name string) (unlock func(), err error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() },
		windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}
