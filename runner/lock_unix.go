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
		return nil, false, fmt.Errorf("cannot open the runner's lock: %w", err)
	}
	return takeLock(f, unix.LOCK_EX)
}

// lockHeld reports whether a process holds a lock. A file that is not there is held by
// nobody. Those who ask at once do not take one another for the holder.
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

// Lock takes root's runners for this service until the file is closed: another one that
// met them would take their results for its own. Where there is no folder yet there is
// none to take, and the file is nil.
func (h Home) Lock() (*os.File, error) {
	if !h.Foreign() {
		return nil, nil
	}
	f, err := lockSoon(func() (*os.File, bool, error) {
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
		return nil, fmt.Errorf("lock the runner directory: %w", err)
	case f == nil:
		return nil, fmt.Errorf("another service uses the runners in %s; stop that service, or use another directory with --runner-dir", h.Dir)
	}
	return f, nil
}

// openPlain opens a file of a runner's folder to read it. In the folder of an account what
// that runs may have put anything in its place: no link is followed, a pipe is not waited
// for, and what is no file is not there.
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

// takeLock locks a file, in one of the ways of flock(2), or closes it.
func takeLock(f *os.File, how int) (locked *os.File, ok bool, err error) {
	switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err {
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

// removeLocked removes a folder with a lock in it, which is held meanwhile.
func removeLocked(dir string, lock *os.File) error {
	defer lock.Close()
	return os.RemoveAll(dir)
}
