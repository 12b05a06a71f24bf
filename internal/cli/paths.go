package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/queue"
)

// OpenFile opens a file for reading. Its error begins with the parameter what, which is the flag or
// command that named the file.
func OpenFile(what, path string) (*os.File, error) {
	if err := IsFile(what, path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	return f, unreadable(what, path, err)
}

// IsFile returns an error if a path is not a readable file.
func IsFile(what, path string) error {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return Usage("%s: %s is a directory; give a file", what, path)
	}
	return unreadable(what, path, err)
}

// unreadable returns a message for an error of reading a file.
func unreadable(what, path string, err error) error {
	if err == nil {
		return nil
	}
	var cause *fs.PathError
	switch file := notDirPart(filepath.Dir(path)); {
	case file != "":
		return Usage("%s: %s does not exist, because %s is not a directory; check the path", what, path, file)
	case errors.Is(err, fs.ErrNotExist):
		return queue.Errorf(queue.CodeNotFound, "%s: %s does not exist; check the path", what, path)
	case errors.Is(err, fs.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "%s: no permission to read %s; ask its owner for access, or use another file", what, path)
	case errors.As(err, &cause):
		return fmt.Errorf("%s: cannot read %s: %w", what, path, cause.Err)
	}
	return err
}

// Unwritable returns a message for an error of creating a file in a directory. It names only the
// directory, because the name of the file is internal.
func Unwritable(what, dir string, err error) error {
	if err == nil {
		return nil
	}
	if missing := checkDir(what, dir); missing != nil {
		return missing
	}
	var cause *fs.PathError
	var renamed *os.LinkError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "%s: no permission to write to %s; choose another directory", what, dir)
	case errors.As(err, &cause):
		return fmt.Errorf("%s: cannot write to %s: %w", what, dir, cause.Err)
	case errors.As(err, &renamed):
		return fmt.Errorf("%s: cannot write %s: %w", what, renamed.New, renamed.Err)
	}
	return err
}

// checkDir returns an error if a path is not a directory.
func checkDir(what, dir string) error {
	if file := notDirPart(dir); file != "" {
		return Usage("%s: %s is not a directory; check the path", what, file)
	}
	if !exists(dir) {
		return Usage("%s: directory %s does not exist; create it with: "+makeDir+" %[2]s", what, dir)
	}
	return nil
}

// notDirPart returns the part of a path that exists and is not a directory. With such a part, the
// path cannot be a directory either. It returns "" if there is no such part.
func notDirPart(path string) string {
	for {
		info, err := os.Stat(path)
		switch up := filepath.Dir(path); {
		case err == nil && !info.IsDir():
			return path
		case err == nil || up == path || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return ""
		default:
			path = up
		}
	}
}

// OwnDir returns the absolute path of --dir. The directory may not exist yet.
func (f *Finder) OwnDir() (string, error) {
	dir, err := filepath.Abs(f.Dir)
	if err != nil {
		return "", Usage("--dir: the current directory no longer exists (%v); change to another directory, or give --dir an absolute path", err)
	}
	if file := notDirPart(dir); file != "" {
		return "", Usage("--dir: %s is not a directory; give the directory of the service's data", file)
	}
	return dir, nil
}
