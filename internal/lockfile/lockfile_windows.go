package lockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Acquire opens a file for writing, which locks it: until the file is closed, no other process can open it for writing,
// but all can read it. If createIfMissing is true, Acquire creates a missing file. If another process holds the lock,
// acquired is false and err is nil.
func Acquire(path string, createIfMissing bool) (f *os.File, acquired bool, err error) {
	how := uint32(windows.OPEN_EXISTING)
	if createIfMissing {
		how = windows.OPEN_ALWAYS
	}
	return openLockFile(path, windows.FILE_SHARE_READ, how)
}

// IsHeld reports whether a process holds the lock of a file. It returns false for a missing file. Concurrent
// calls of IsHeld do not disturb each other. But a call of IsHeld can make a concurrent call of Acquire fail,
// so the caller of Acquire must try again.
func IsHeld(path string) (bool, error) {
	f, ok, err := openLockFile(path, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE,
		windows.OPEN_EXISTING)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// openLockFile opens a file for reading and writing. shareMode says what other processes may do with the file while it
// is open. ok is false if the file is already open in another process, and the two share modes do not allow both.
func openLockFile(path string, shareMode, creationDisposition uint32) (f *os.File, ok bool, err error) {
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
