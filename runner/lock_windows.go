package runner

import (
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/lockfile"
)

// lockFile takes an exclusive lock that is released when this process ends. ok is false if another
// process holds the lock. Child processes do not inherit it.
func lockFile(path string, _ os.FileMode) (f *os.File, ok bool, err error) {
	return lockfile.Take(path, true)
}

// lockHeld reports whether a process holds a lock. It returns false if the file does not exist.
// Concurrent callers do not find each other's locks.
func lockHeld(path string) (bool, error) { return lockfile.Held(path) }

// Lock returns nil, because Windows has no runners of root.
func (h Home) Lock() (*os.File, error) { return nil, nil }

// openPlain opens a file in a runner's directory for reading. Other processes can still remove the
// file.
func openPlain(path string) (*os.File, error) {
	return os.OpenInRoot(filepath.Dir(path), filepath.Base(path))
}

// removeLocked releases the lock, then removes its directory: Windows cannot remove an open file.
func removeLocked(dir string, lock *os.File) error {
	lock.Close()
	return os.RemoveAll(dir)
}
