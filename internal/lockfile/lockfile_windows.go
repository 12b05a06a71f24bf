package lockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Take opens a file to write it and keeps every other process from doing so, until it is
// closed; all may read it. The file is made where it is not there, unless it has to be. ok
// is false when another process has it.
func Take(path string, create bool) (f *os.File, ok bool, err error) {
	how := uint32(windows.OPEN_EXISTING)
	if create {
		how = windows.OPEN_ALWAYS
	}
	return open(path, windows.FILE_SHARE_READ, how)
}

// Held reports whether a process has taken a file. One that is not there is taken by nobody.
// Those who ask at once do not take one another for the holder; who takes the file at that
// moment has to try again.
func Held(path string) (bool, error) {
	f, ok, err := open(path, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, windows.OPEN_EXISTING)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

func open(path string, share, how uint32) (f *os.File, ok bool, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, share, nil, how, windows.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case errors.Is(err, windows.ERROR_SHARING_VIOLATION):
		return nil, false, nil
	case err != nil:
		return nil, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), true, nil
}
