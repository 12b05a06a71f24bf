package copies

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// CopiesDir returns the directory for copies of a program, next to the program. The installer of queuectl puts the
// copies there. See docs/decisions/0090.
func CopiesDir(program string) string { return filepath.Join(filepath.Dir(program), "runner") }

// FindCopy returns the path of a copy that has the same content as the program. It searches the directories in the
// given order, and returns "" if none of them contains such a copy.
func FindCopy(program string, dirs ...string) (string, error) {
	name, err := copyFileName(program)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); checkDirIsNotLink(dir) == nil && isCompleteCopy(path) {
			return path, nil
		}
	}
	return "", nil
}

// EnsureCopy returns the path of a copy in dir that has the same content as the program. It creates the copy and the
// directory if necessary.
func EnsureCopy(program, dir string) (path string, err error) {
	name, err := copyFileName(program)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := checkDirIsNotLink(dir); err != nil {
		return "", err
	}
	if path = filepath.Join(dir, name); isCompleteCopy(path) {
		return path, nil
	}
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(to.Name()) // after the rename, no file has this name, so Remove fails, which is harmless
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
		return "", err
	}
	for end := time.Now().Add(virusScanTimeout); ; time.Sleep(20 * time.Millisecond) {
		err := os.Rename(to.Name(), path)
		// If the rename fails, another process may have made the same copy already.
		if err == nil || isCompleteCopy(path) {
			return path, nil
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

// virusScanTimeout is how long a virus scanner may keep a new program open.
const virusScanTimeout = 5 * time.Second

// copyNamePattern matches the names of complete and of incomplete copies.
var copyNamePattern = regexp.MustCompile(`^(queuectl-[0-9a-f]{16}\.exe|new-[0-9]+)$`)

// RemoveCopies removes the copies in a directory, except those in keptPaths and those that are running. If the
// directory is empty then, RemoveCopies removes it too. It does not touch other files, nor a directory that is a link.
// It reports whether it has removed all copies that are not in keptPaths.
func RemoveCopies(dir string, keptPaths ...string) bool {
	if err := checkDirIsNotLink(dir); err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	list, err := os.ReadDir(dir)
	all := err == nil
	for _, e := range list {
		if path := filepath.Join(dir, e.Name()); copyNamePattern.MatchString(e.Name()) && !slices.Contains(keptPaths, path) {
			all = os.Remove(path) == nil && all // Windows does not remove the file of a running program
		}
	}
	if all && len(keptPaths) == 0 {
		os.Remove(dir) // this call fails if the directory is not empty
	}
	return all
}

// checkDirIsNotLink returns an error if a directory is a link or a junction.
func checkDirIsNotLink(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.Mode().IsDir() {
		err = fmt.Errorf("%s is not a folder, or is a link to another folder; remove it", dir)
	}
	return err
}

// copyFileName returns the name of a program's copy, which contains a hash of its content.
func copyFileName(program string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, from); err != nil {
		return "", err
	}
	return "queuectl-" + hex.EncodeToString(sum.Sum(nil)[:8]) + ".exe", nil
}

// isCompleteCopy reports whether the copy at path exists and has the content whose hash is in its name.
func isCompleteCopy(path string) bool {
	name, err := copyFileName(path)
	return err == nil && name == filepath.Base(path)
}
