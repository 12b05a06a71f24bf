// Package files checks the files and directories that a command names, so that errors say which argument is
// wrong and why. It also restricts who can read the files that a process creates.
//
// Start with Open and UnwritableError.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// Open opens a file for reading. Its errors begin with errorPrefix, the flag or command that named the file.
func Open(errorPrefix, path string) (*os.File, error) {
	if err := CheckIsFile(errorPrefix, path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	return f, UnreadableError(errorPrefix, path, err)
}

// CheckIsFile returns an error if the path is a directory or does not exist. It does not check whether the
// user may read the file.
func CheckIsFile(errorPrefix, path string) error {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return fault.Usagef("%s: %s is a directory; give a file", errorPrefix, path)
	}
	return UnreadableError(errorPrefix, path, err)
}

// UnreadableError describes, for the user, why a file cannot be read. err is the error of the read.
// UnreadableError returns nil if err is nil.
func UnreadableError(errorPrefix, path string, err error) error {
	if err == nil {
		return nil
	}
	var pathErr *fs.PathError
	switch file := FirstNonDirInPath(filepath.Dir(path)); {
	case file != "":
		return fault.Usagef("%s: %s does not exist, because %s is not a directory; check the path", errorPrefix, path, file)
	case errors.Is(err, fs.ErrNotExist):
		return queue.Errorf(queue.CodeNotFound, "%s: %s does not exist; check the path", errorPrefix, path)
	case errors.Is(err, fs.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "%s: no permission to read %s; ask its owner for access, or use another file",
			errorPrefix, path)
	case errors.As(err, &pathErr):
		return fmt.Errorf("%s: cannot read %s: %w", errorPrefix, path, pathErr.Err)
	}
	return err
}

// UnwritableError describes, for the user, why a file cannot be created in a directory. The error names only the
// directory, because queuectl has chosen the name of the file and users do not know this name. It returns nil if err is
// nil.
func UnwritableError(errorPrefix, dir string, err error) error {
	if err == nil {
		return nil
	}
	if missing := CheckIsDir(errorPrefix, dir); missing != nil {
		return missing
	}
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "%s: no permission to write to %s; choose another directory", errorPrefix, dir)
	case errors.As(err, &pathErr):
		return fmt.Errorf("%s: cannot write to %s: %w", errorPrefix, dir, pathErr.Err)
	case errors.As(err, &linkErr):
		return fmt.Errorf("%s: cannot write %s: %w", errorPrefix, linkErr.New, linkErr.Err)
	}
	return err
}

// CheckIsDir returns an error for the user if dir is not a directory. The error begins with errorPrefix.
func CheckIsDir(errorPrefix, dir string) error {
	if file := FirstNonDirInPath(dir); file != "" {
		return fault.Usagef("%s: %s is not a directory; check the path", errorPrefix, file)
	}
	if !Exists(dir) {
		return fault.Usagef("%s: directory %s does not exist; create it with: "+mkdirCommand+" %[2]s", errorPrefix, dir)
	}
	return nil
}

// FirstNonDirInPath returns the first part of a path that exists but is not a directory, and so prevents the path from
// being a directory. It returns "" if no such part exists.
func FirstNonDirInPath(path string) string {
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

// Exists reports whether a path exists. If that cannot be determined, for example because permission is missing, it
// returns true.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}
