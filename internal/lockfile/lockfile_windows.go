package lockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Acquire opens a file for writing, which locks it: until the file is closed, no other process can open it
// for writing, but all can read it. If create is true, Acquire creates a missing file. ok is false if another
// process holds the lock.
func Acquire(path string, createIfMissing bool) (f *os.File, acquired bool, err error) {
	how := uint32(windows.OPEN_EXISTING)
	if createIfMissing {
		how = windows.OPEN_ALWAYS
	}
	return open(path, windows.FILE_SHARE_READ, how)
}

// IsHeld reports whether a process holds the lock of a file. It returns false for a missing file. Concurrent
// calls of IsHeld do not disturb each other. But a call of IsHeld can make a concurrent call of Acquire fail,
// so the caller of Acquire must try again.
func IsHeld(path string) (bool, error) {
	f, ok, err := open(path, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE,
		windows.OPEN_EXISTING)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// open opens a file for reading and writing. share says what other processes may do while the file is open.
// ok is false if this access and that of a process that already has the file open exclude each other.
func open(path string, shareMode, creationDisposition uint32) (f *os.File, ok bool, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, shareMode, nil, creationDisposition,
		windows.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case errors.Is(err, windows.ERROR_SHARING_VIOLATION):
		return nil, false, nil
	case err != nil:
		return nil, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), true, nil
}
