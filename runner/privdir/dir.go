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
)

// maxNameTries is how many names are tried for a new directory. A name stays in use if its directory could
// not be moved aside.
const maxNameTries = 100

// MovedAsideInfix is part of the name of a directory that was moved aside.
const MovedAsideInfix = ".gone."

// pathWithEnding returns the current name of the directory. With an ending, it returns the
// name of a file next to the directory.
func (f *Dir) pathWithEnding(ending string) string {
	if f.nameSuffix == 0 {
		return f.base + ending
	}
	return f.base + "." + strconv.Itoa(f.nameSuffix) + ending
}

// IsOpen reports whether the directory exists and is open.
func (f *Dir) IsOpen() bool { return f.isOpen }

// MoveAside renames the directory, so that the next Open creates a new one. It returns the new path,
// for Remove. If the directory cannot be renamed, it keeps its name. If survived is true, a process of
// the command may still write notes, so MoveAside gives up the FIFO or file for notes as well.
func (f *Dir) MoveAside(survived bool) (path string) {
	path = f.Path
	for try := range maxNameTries {
		newPath := f.pathWithEnding(MovedAsideInfix) + strconv.Itoa(try)
		err := renameNew(f.Path, newPath)
		if err == nil {
			path = newPath
		}
		if !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if path == f.Path || survived {
		f.nameSuffix++
	}
	if survived {
		f.abandonNotes()
	}
	f.RemoveUnused()
	return path
}

// RemoveUnused removes the directory if it is empty. It is called while no command needs the directory.
func (f *Dir) RemoveUnused() {
	if !f.isOpen {
		return
	}
	f.isOpen = false
	if err := removeEmptyDir(f.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.nameSuffix++
	}
	f.closeDir()
}

// Close releases all resources. It removes the FIFO or file for notes and, if it is empty, the directory.
func (f *Dir) Close() {
	f.RemoveUnused()
	f.dropNotes()
}

// RemoveFile removes a file that AddFile created.
func (f *Dir) RemoveFile(name string) { os.Remove(f.base + "." + name) }

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
