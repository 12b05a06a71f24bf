//go:build !linux

package privdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/runner/runas"
)

// Dir creates a private directory and a file next to it, for one command after another. The directory and the file
// belong to the account of this process. The command writes progress notes to the file. One goroutine at a time may use
// a Dir.
type Dir struct {
	Path         string // path of the directory while it is open
	ProgressPath string // path of the file for progress notes

	pathPrefix            string // prefix of the paths of all directories and files
	nameSuffix            int    // number in the current names, or 0; grows if an old file still has the name
	isOpen                bool
	lastProgressFileState progressFileState
}

// progressFileState is the size and time of the file for progress notes. If neither has changed since the last call,
// DrainProgress does not read the file.
type progressFileState struct {
	size    int64
	modTime time.Time
}

// New returns a Dir that has no directory yet. The paths of all its directories and files begin with
// pathPrefix.
func New(pathPrefix string) *Dir { return &Dir{pathPrefix: pathPrefix} }

// Open ensures that an empty directory exists, and that no file for progress notes exists.
func (d *Dir) Open(*runas.Identity) error {
	d.lastProgressFileState, d.ProgressPath = progressFileState{}, d.pathWithSuffix(".progress")
	if err := os.Remove(d.ProgressPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.nameSuffix++ // another process has the file open, so use the next name
		d.RemoveIfEmpty()
		d.ProgressPath = d.pathWithSuffix(".progress")
	}
	for tries := 1; !d.isOpen; tries++ {
		d.Path = d.pathWithSuffix("")
		switch err := os.Mkdir(d.Path, 0o700); {
		case err == nil:
			d.isOpen = true
		case tries < maxDirNameTries && errors.Is(err, os.ErrExist):
			d.nameSuffix++
		default:
			return fmt.Errorf("cannot create the job's private folder: %w", err)
		}
	}
	return nil
}

// WasUsed reports whether the directory contains anything.
func (d *Dir) WasUsed() bool {
	list, err := os.ReadDir(d.Path)
	return err != nil || len(list) > 0
}

// renameToNewPath renames a directory. It returns an error if newPath exists.
func renameToNewPath(path, newPath string) error {
	if _, err := os.Lstat(newPath); err == nil {
		return os.ErrExist
	}
	return os.Rename(path, newPath)
}

// closeDir does nothing: the directory is kept open only on Linux.
func (d *Dir) closeDir() {}

// removeProgressFile removes the file for progress notes. If another process has the file open, it stays.
func (d *Dir) removeProgressFile() { os.Remove(d.ProgressPath) }

// CreateSiblingFile creates a file for the command next to the directory. It returns the path of the file.
func (d *Dir) CreateSiblingFile(name string, content []byte) (path string, err error) {
	path = d.pathPrefix + "." + name
	return path, os.WriteFile(path, content, 0o600)
}

// ReadFile reads a file that the command left in the directory. It returns up to maxBytes+1 bytes. A result of more
// than maxBytes bytes means that the file is too large. ReadFile returns os.ErrNotExist if the file does not exist.
func (d *Dir) ReadFile(name string, maxBytes int64) ([]byte, error) {
	path := filepath.Join(d.Path, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegularFile
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadBeyondLimit(file, maxBytes)
}

// maxProgressTailBytes is how many bytes at the end of the progress notes are read.
const maxProgressTailBytes = 4 << 10

// MayHaveProgress reports whether the file for progress notes exists. The notes of a short command may not
// have been read yet.
func (d *Dir) MayHaveProgress() bool {
	_, err := os.Lstat(d.ProgressPath)
	return err == nil
}

// DrainProgress returns the end of the progress notes, or nil if they have not changed since the last call.
func (d *Dir) DrainProgress() []byte {
	if d == nil {
		return nil
	}
	file, err := os.Open(d.ProgressPath)
	if err != nil {
		return nil // the file does not exist, or a process is writing it
	}
	defer file.Close()
	info, err := file.Stat()
	now := progressFileState{}
	if err == nil {
		now = progressFileState{info.Size(), info.ModTime()}
	}
	if err != nil || now == d.lastProgressFileState || !info.Mode().IsRegular() {
		return nil
	}
	d.lastProgressFileState = now
	if _, err := file.Seek(max(0, now.size-maxProgressTailBytes), 0); err != nil {
		return nil
	}
	data, _ := ReadBeyondLimit(file, maxProgressTailBytes) // ignore an error, because a part of the notes is enough
	return data
}

// RemoveDirStep removes a directory completely, so it always returns hasMore=false.
func RemoveDirStep(path string, _ *runas.Identity) (hasMore bool, err error) {
	return false, os.RemoveAll(path)
}

// OwnerIdentity returns nil, because all commands run as the account of this process.
func OwnerIdentity(string) (*runas.Identity, error) { return nil, nil }
