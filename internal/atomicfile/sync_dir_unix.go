//go:build unix

package atomicfile

import (
	"errors"
	"os"
)

// SyncDir syncs a directory, so that the names in it survive a power failure.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
