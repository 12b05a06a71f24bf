//go:build linux || windows

// Package privdir creates, reuses and removes the private directories of commands, and reads what the
// commands leave in them. It protects the service from the commands: they own the directories, and may
// have replaced, mounted or locked anything in them.
//
// Start with Dir.
package privdir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// maxNameTries is how many names are tried for a new directory. A name stays in use if its directory could
// not be moved aside.
const maxNameTries = 100

// MovedAsideInfix is part of the name of a directory that was moved aside.
const MovedAsideInfix = ".gone."

// pathWithEnding returns the current name of the directory. With an ending, it returns the
// name of a file next to the directory.
func (d *Dir) pathWithEnding(ending string) string {
	if d.nameSuffix == 0 {
		return d.base + ending
	}
	return d.base + "." + strconv.Itoa(d.nameSuffix) + ending
}

// IsOpen reports whether the directory exists and is open.
func (d *Dir) IsOpen() bool { return d.isOpen }

// MoveAside renames the directory, so that the next Open creates a new one. It returns the new path,
// for RemoveSome. If the directory cannot be renamed, it keeps its name. If survived is true, a process of
// the command may still write notes, so MoveAside gives up the FIFO or file for notes as well.
func (d *Dir) MoveAside(survived bool) (path string) {
	path = d.Path
	for try := range maxNameTries {
		newPath := d.pathWithEnding(MovedAsideInfix) + strconv.Itoa(try)
		err := renameNew(d.Path, newPath)
		if err == nil {
			path = newPath
		}
		if !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if path == d.Path || survived {
		d.nameSuffix++
	}
	if survived {
		d.dropNotes()
	}
	d.RemoveUnused()
	return path
}

// RemoveUnused removes the directory if it is empty. It is called while no command needs the directory.
func (d *Dir) RemoveUnused() {
	if !d.isOpen {
		return
	}
	d.isOpen = false
	if err := syscall.Rmdir(d.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.nameSuffix++
	}
	d.closeDir()
}

// Close releases all resources. It removes the FIFO or file for notes and, if it is empty, the directory.
func (d *Dir) Close() {
	d.RemoveUnused()
	d.dropNotes()
}

// RemoveFile removes a file that AddFile created.
func (d *Dir) RemoveFile(name string) { os.Remove(d.base + "." + name) }

// errNotRegular means that a command left something that is not a regular file.
var errNotRegular = errors.New("not a regular file")

// ReadUpTo reads up to maxBytes+1 bytes of a file, so that the caller can recognise a larger file.
func ReadUpTo(f *os.File, maxBytes int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, err
	}
	return raw, nil
}
