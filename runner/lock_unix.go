//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes an exclusive lock that is released when this process ends. ok is false if another
// process holds the lock. Child processes do not inherit it.
func lockFile(path string, mode os.FileMode) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, false, fmt.Errorf("cannot open the runner's lock: %w", err)
	}
	return takeLock(f, unix.LOCK_EX)
}

// lockHeld reports whether a process holds a lock. It returns false if the file does not exist. It uses
// a shared lock, so that concurrent callers do not find each other's locks.
func lockHeld(path string) (bool, error) {
	f, err := openPlain(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot open the runner's lock: %w", err)
	}
	f, ok, err := takeLock(f, unix.LOCK_SH)
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// Lock reserves root's runners for this service until the returned file is closed. Without the lock,
// another service could connect to the runners and take their results. If the directory does not exist,
// Lock returns nil, because there are no runners.
func (h Home) Lock() (*os.File, error) {
	if !h.Foreign() {
		return nil, nil
	}
	f, err := waitForLock(func() (*os.File, bool, error) {
		f, err := os.OpenFile(h.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, false, err
		}
		return takeLock(f, unix.LOCK_EX)
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot lock the runner directory: %w", err)
	case f == nil:
		return nil, fmt.Errorf("another service uses the runners in %s; stop that service, or use another directory with --runner-dir", h.Dir)
	}
	return f, nil
}

// openPlain opens a regular file in a runner's directory for reading. Jobs may have put anything in the
// directory of an account's runner. openPlain therefore follows no symbolic link, does not block on a
// FIFO, and reports anything but a regular file as missing.
func openPlain(path string) (*os.File, error) {
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

// takeLock locks a file with the given mode of flock(2). If it does not get the lock, it closes the
// file.
func takeLock(f *os.File, flockMode int) (locked *os.File, ok bool, err error) {
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

// removeLocked removes a directory that contains a locked file, then releases the lock.
func removeLocked(dir string, lock *os.File) error {
	defer lock.Close()
	return os.RemoveAll(dir)
}
