package rundir

import (
	"os"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/internal/lockfile"
)

// TryLockFile takes an exclusive lock on a file, which it creates if necessary. The lock is released when this
// process ends. Child processes do not inherit the lock. ok is false if another process holds the lock.
func TryLockFile(path string, _ os.FileMode) (f *os.File, ok bool, err error) {
	return lockfile.Acquire(path, true)
}

// IsLockHeld reports whether a process holds the lock on a file. It returns false if the file does not exist.
// To check, it locks the file for a moment; other calls of IsLockHeld ignore this lock.
func IsLockHeld(path string) (bool, error) { return lockfile.IsHeld(path) }

// OpenRegularFile opens a file in a runner's directory for reading. While the file is open, other processes can
// still remove it.
func OpenRegularFile(path string) (*os.File, error) {
	return os.OpenInRoot(filepath.Dir(path), filepath.Base(path))
}

// removeTimeout is how long removeLockedDir tries to remove a directory.
const removeTimeout = time.Second

// removeLockedDir releases the lock and then removes the directory dir. Windows cannot remove an open file.
// Another process may have the lock file open for a moment to check the lock, so removeLockedDir tries
// repeatedly.
func removeLockedDir(dir string, lock *os.File) error {
	lock.Close()
	for deadline := time.Now().Add(removeTimeout); ; time.Sleep(time.Millisecond) {
		if err := os.RemoveAll(dir); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
