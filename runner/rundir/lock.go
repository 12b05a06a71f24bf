package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// lockWaitTimeout is how long WaitForLock waits for a lock. Waiting is useful because the process that holds the lock
// may be about to end.
const lockWaitTimeout = 2 * time.Second

// WaitForLock calls tryLock until it gets the lock, and returns the locked file. It returns nil if this takes
// longer than lockWaitTimeout.
func WaitForLock(tryLock func() (f *os.File, ok bool, err error)) (*os.File, error) {
	for deadline := time.Now().Add(lockWaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := tryLock()
		if ok || err != nil || time.Now().After(deadline) {
			return f, err
		}
	}
}

// RemoveRunnerDir removes the directory of this runner. It removes the lock file last: without the lock file, a service
// would consider the runner dead, and read files that are being removed.
func RemoveRunnerDir(runnerDir string, lock *os.File) error {
	list, err := os.ReadDir(runnerDir)
	for _, e := range list {
		if e.Name() != LockFileName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(runnerDir, e.Name())))
		}
	}
	return errors.Join(err, removeLockedDir(runnerDir, lock))
}
