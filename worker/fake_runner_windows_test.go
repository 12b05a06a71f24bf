package worker_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/internal/pipe"
)

// createLockFile creates a file and locks it, as a runner does.
func createLockFile(path string) (*os.File, error) {
	f, ok, err := lockfile.Acquire(path, true)
	if err == nil && !ok {
		err = errors.New("the lock is taken")
	}
	return f, err
}

// listenAsRunner creates the named pipe of a runner.
func listenAsRunner(runnerDir string) (net.Listener, error) {
	return pipe.Listen(`\\.\pipe\queuectl-runner-`+filepath.Base(runnerDir), pipe.OwnerOnlySecurityDescriptor())
}
