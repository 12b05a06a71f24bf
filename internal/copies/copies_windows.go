package copies

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Beside is the folder for copies that an installer makes of a program.
func Beside(program string) string { return filepath.Join(filepath.Dir(program), "runner") }

// Find is the copy of a program as it is now in the first of some folders that has one, "" if none has.
func Find(program string, dirs ...string) (string, error) {
	name, size, err := nameOf(program)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); whole(path, size) {
			return path, nil
		}
	}
	return "", nil
}

// Make is the copy of a program as it is now in a folder, which is made if it is not there.
func Make(program, dir string) (path string, err error) {
	name, size, err := nameOf(program)
	if err != nil {
		return "", err
	}
	if path = filepath.Join(dir, name); whole(path, size) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
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
		if err == nil || whole(path, size) { // or another start was quicker, and it runs
			return path, nil
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

// heldFor is how long a virus scanner may read a program that has just been written.
const heldFor = 5 * time.Second

// Remove removes the copies in a folder that nobody runs, but not those to keep, and the folder
// once it is empty. It reports whether that was all of them.
func Remove(dir string, keep ...string) bool {
	list, _ := os.ReadDir(dir) // what cannot be listed stays, which is told below
	for _, e := range list {
		if path := filepath.Join(dir, e.Name()); !slices.Contains(keep, path) {
			os.Remove(path) // one that runs cannot be removed
		}
	}
	err := os.Remove(dir) // nor a folder that holds something
	return err == nil || errors.Is(err, os.ErrNotExist)
}

// nameOf is what the copy of a program is called, and its size in bytes.
func nameOf(program string) (name string, size int64, err error) {
	from, err := os.Open(program)
	if err != nil {
		return "", 0, err
	}
	defer from.Close()
	sum := sha256.New()
	size, err = io.Copy(sum, from)
	return "queuectl-" + hex.EncodeToString(sum.Sum(nil)[:8]) + ".exe", size, err
}

// whole reports whether there is a file of this size: its name has what it is a copy of, and nobody writes there who could
// not replace the program itself, or be the service.
func whole(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() == size
}
