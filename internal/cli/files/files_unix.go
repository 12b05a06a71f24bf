//go:build unix

package files

import (
	"os"
)

// makeDir is the command that creates a directory.
const makeDir = "mkdir -p"

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
