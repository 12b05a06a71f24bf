package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// lockTimeout is how long WaitForLock waits for a lock. The process that holds the lock may be about to
// end.
const lockTimeout = 2 * time.Second

// WaitForLock calls the given function repeatedly until the function gets the lock, and returns the locked
// file. If this takes longer than lockTimeout, it returns nil.
func WaitForLock(tryLock func() (f *os.File, ok bool, err error)) (*os.File, error) {
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := tryLock()
		if ok || err != nil || time.Now().After(deadline) {
			return f, err
		}
	}
}

// RemoveOwnDir removes a runner's own directory. It removes the lock file last: without the lock, a
// service would consider the runner dead and read its files while they are being removed.
func RemoveOwnDir(dir string, lock *os.File) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if e.Name() != LockFileName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, removeLockedDir(dir, lock))
}
