package runner

import (
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/lockfile"
)

// lockFile takes an exclusive lock that ends with this process; ok is false when
// another process holds it. Children do not inherit it.
func lockFile(path string, _ os.FileMode) (f *os.File, ok bool, err error) {
	return lockfile.Take(path, true)
}

// lockHeld reports whether a process holds a lock. A file that is not there is held by
// nobody. Those who ask at once do not take one another for the holder.
func lockHeld(path string) (bool, error) { return lockfile.Held(path) }

// Lock takes root's runners for this service; there are none.
func (h Home) Lock() (*os.File, error) { return nil, nil }

// openPlain opens a file of a runner's folder to read it, which keeps nobody from removing
// it.
func openPlain(path string) (*os.File, error) {
	return os.OpenInRoot(filepath.Dir(path), filepath.Base(path))
}

// removeLocked removes a folder with a lock in it: what is open cannot be removed.
func removeLocked(dir string, lock *os.File) error {
	lock.Close()
	return os.RemoveAll(dir)
}
