package rundir

import (
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/lockfile"
)

// Lock takes an exclusive lock that is released when this process ends. ok is false if another
// process holds the lock. Child processes do not inherit it.
func Lock(path string, _ os.FileMode) (f *os.File, ok bool, err error) {
	return lockfile.Acquire(path, true)
}

// IsLockHeld reports whether a process holds a lock. It returns false if the file does not exist.
// Concurrent callers do not find each other's locks.
func IsLockHeld(path string) (bool, error) { return lockfile.IsHeld(path) }

// OpenRegular opens a file in a runner's directory for reading. Other processes can still remove the
// file.
func OpenRegular(path string) (*os.File, error) {
	return os.OpenInRoot(filepath.Dir(path), filepath.Base(path))
}

// removeLocked releases the lock, then removes its directory: Windows cannot remove an open file.
func removeLocked(dir string, lock *os.File) error {
	lock.Close()
	return os.RemoveAll(dir)
}
