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

// Beside is the folder for copies that an installer makes of a program.
// See docs/decisions/0090.
func Beside(program string) string { return filepath.Join(filepath.Dir(program), "runner") }

// Find is the copy of a program as it is now in the first of some folders that has one, "" if none has.
func Find(program string, dirs ...string) (string, error) {
	name, err := nameOf(program)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); plain(dir) == nil && whole(path) {
			return path, nil
		}
	}
	return "", nil
}

// Make is the copy of a program as it is now in a folder, which is made if it is not there.
func Make(program, dir string) (path string, err error) {
	name, err := nameOf(program)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := plain(dir); err != nil {
		return "", err
	}
	if path = filepath.Join(dir, name); whole(path) {
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
	defer os.Remove(to.Name()) // once it is renamed, it is not there
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
		return "", err
	}
	for end := time.Now().Add(heldFor); ; time.Sleep(20 * time.Millisecond) {
		err := os.Rename(to.Name(), path)
		if err == nil || whole(path) { // or another start was quicker, and it runs
			return path, nil
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

// heldFor is how long a virus scanner may read a program that has just been written.
const heldFor = 5 * time.Second

// ours are the names of copies, and of what is about to be one.
var ours = regexp.MustCompile(`^(queuectl-[0-9a-f]{16}\.exe|new-[0-9]+)$`)

// Remove removes the copies in a folder that nobody runs, but not those to keep, and the folder
// once it is empty. It reports whether that was all of them. What is no copy is left, and so is all
// of a folder that is elsewhere.
func Remove(dir string, keep ...string) bool {
	if err := plain(dir); err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	list, err := os.ReadDir(dir)
	all := err == nil
	for _, e := range list {
		if path := filepath.Join(dir, e.Name()); ours.MatchString(e.Name()) && !slices.Contains(keep, path) {
			all = os.Remove(path) == nil && all // one that runs cannot be removed
		}
	}
	if all && len(keep) == 0 {
		os.Remove(dir) // if it holds nothing else
	}
	return all
}

// plain refuses a folder that leads elsewhere: a link or a junction.
func plain(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.Mode().IsDir() {
		err = fmt.Errorf("%s is not a folder, or is a link to another folder; remove it", dir)
	}
	return err
}

// nameOf is what the copy of a program is called.
func nameOf(program string) (string, error) {
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

// whole reports whether there is the copy that a name says.
func whole(path string) bool {
	name, err := nameOf(path)
	return err == nil && name == filepath.Base(path)
}
