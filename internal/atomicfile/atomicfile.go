// Package atomicfile replaces files durably: after a crash, a file has its old or its new content.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file, or creates it. When Write returns, the new content is on the disk. There is
// one exception: a directory that the process may not read cannot be synced. In such a directory, a
// power failure soon afterwards can bring the old content back.
func Write(path string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename, no file has this name
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := SyncDir(dir); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
