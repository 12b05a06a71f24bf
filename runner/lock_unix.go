//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes an exclusive lock that ends with this process; ok is false when
// another process holds it. Children do not inherit it.
func lockFile(path string, mode os.FileMode) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, false, fmt.Errorf("open the runner's lock: %w", err)
	}
	return takeLock(f)
}

// lockHeld reports whether a process holds a lock. A file that is not there is held by
// nobody.
func lockHeld(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open the runner's lock: %w", err)
	}
	f, ok, err := takeLock(f)
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// takeLock locks a file, or closes it.
func takeLock(f *os.File) (locked *os.File, ok bool, err error) {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		return f, true, nil
	case unix.EWOULDBLOCK:
		f.Close()
		return nil, false, nil
	default:
		f.Close()
		return nil, false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}
