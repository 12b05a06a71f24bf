// Package privdir creates, reuses and removes the private directories of commands, and reads files that
// commands leave in them. It does this safely although the commands own the directories: they may have
// replaced or locked anything in a directory, or mounted a file system there.
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

// maxDirNameTries is how many names are tried for a new directory. A name cannot be used if an old directory with this
// name could be neither removed nor renamed.
const maxDirNameTries = 100

// RenamedDirNameInfix is part of the name of every directory that RenameForRemoval has renamed.
const RenamedDirNameInfix = ".gone."

// pathWithSuffix returns the path of the directory with ending appended. With ending "", the result is the path of the
// directory itself. Otherwise, the result is the path of a file or directory next to it.
func (d *Dir) pathWithSuffix(suffix string) string {
	if d.nameSuffix == 0 {
		return d.pathPrefix + suffix
	}
	return d.pathPrefix + "." + strconv.Itoa(d.nameSuffix) + suffix
}

// IsOpen reports whether the directory exists and is open.
func (d *Dir) IsOpen() bool { return d.isOpen }

// RenameForRemoval renames the directory, so that the next Open creates a new one. It returns the new path, which the
// caller passes to RemoveDirStep. If renaming fails, RenameForRemoval returns the old path, and the next Open uses
// another name. commandProcessAlive means that a process of the command is still alive and may write progress notes.
// Rename then also removes the FIFO or file for these notes, so that the next command gets a new one.
func (d *Dir) RenameForRemoval(commandProcessAlive bool) (renamedPath string) {
	renamedPath = d.Path
	for try := range maxDirNameTries {
		newPath := d.pathWithSuffix(RenamedDirNameInfix) + strconv.Itoa(try)
		err := renameToNewPath(d.Path, newPath)
		if err == nil {
			renamedPath = newPath
		}
		if !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if renamedPath == d.Path || commandProcessAlive {
		d.nameSuffix++
	}
	if commandProcessAlive {
		d.removeProgressFile()
	}
	d.RemoveIfEmpty()
	return renamedPath
}

// RemoveIfEmpty removes the directory if it is empty. Call it while no command uses the directory.
func (d *Dir) RemoveIfEmpty() {
	if !d.isOpen {
		return
	}
	d.isOpen = false
	if err := syscall.Rmdir(d.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.nameSuffix++
	}
	d.closeDir()
}

// Close releases all resources. It removes the FIFO or file for progress notes and, if the directory is
// empty, the directory.
func (d *Dir) Close() {
	d.RemoveIfEmpty()
	d.removeProgressFile()
}

// RemoveSiblingFile removes a file that CreateSiblingFile created.
func (d *Dir) RemoveSiblingFile(name string) { os.Remove(d.pathPrefix + "." + name) }

// errNotRegularFile means that a name that should be a regular file is something else, for example a FIFO.
var errNotRegularFile = errors.New("not a regular file")

// ReadBeyondLimit reads up to limitBytes+1 bytes of a file. If the caller gets more than limitBytes bytes, the file is
// larger than limitBytes.
func ReadBeyondLimit(f *os.File, limitBytes int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(f, limitBytes+1))
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, err
	}
	return raw, nil
}
