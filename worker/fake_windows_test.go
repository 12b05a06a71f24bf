package worker_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/internal/pipe"
)

// takeLock makes a file and takes its lock, as a runner does.
func takeLock(path string) (*os.File, error) {
	f, ok, err := lockfile.Take(path, true)
	if err == nil && !ok {
		err = errors.New("the lock is taken")
	}
	return f, err
}

// listen makes the socket of a runner's folder.
func listen(dir string) (net.Listener, error) {
	return pipe.Listen(`\\.\pipe\queuectl-runner-`+filepath.Base(dir), pipe.OwnerOnly())
}
