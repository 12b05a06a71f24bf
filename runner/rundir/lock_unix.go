//go:build unix

package rundir

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TryLockFile takes an exclusive lock on a file, which it creates if necessary. The lock is released when this
// process ends. Child processes do not inherit the lock. ok is false if another process holds the lock.
func TryLockFile(path string, mode os.FileMode) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, false, fmt.Errorf("cannot open the runner's lock: %w", err)
	}
	return tryFlock(f, unix.LOCK_EX)
}

// IsLockHeld reports whether a process holds the lock on a file. It returns false if the file does not exist. It tries
// to take a shared lock, so that concurrent calls of IsLockHeld do not conflict.
func IsLockHeld(path string) (bool, error) {
	f, err := OpenRegularFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot open the runner's lock: %w", err)
	}
	f, ok, err := tryFlock(f, unix.LOCK_SH)
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// TryLockDir takes an exclusive lock on a directory. ok is false if another process holds the lock.
func TryLockDir(path string) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, false, err
	}
	return tryFlock(f, unix.LOCK_EX)
}

// OpenRegularFile opens a regular file in a runner's directory for reading. If the runner has switched to the account
// of its jobs, the jobs may have put anything into this directory. So OpenRegularFile follows no symbolic link, and
// does not block on a FIFO. If the file is not regular, the error is the same as for a missing file.
func OpenRegularFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil {
		if info, failed := f.Stat(); failed == nil && info.Mode().IsRegular() {
			return f, nil
		}
		f.Close()
	}
	if err == nil || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		err = &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return nil, err
}

// tryFlock locks a file without waiting. flockMode is the kind of lock, as for flock(2). If another process
// holds the lock, tryFlock closes the file.
func tryFlock(f *os.File, flockMode int) (locked *os.File, ok bool, err error) {
	switch err := unix.Flock(int(f.Fd()), flockMode|unix.LOCK_NB); err {
	case nil:
		return f, true, nil
	case unix.EWOULDBLOCK:
		f.Close()
		return nil, false, nil
	default:
		f.Close()
		return nil, false, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
	}
}

// removeLockedDir removes a directory that contains a locked file, then releases the lock.
func removeLockedDir(dir string, lock *os.File) error {
	defer lock.Close()
	return os.RemoveAll(dir)
}
