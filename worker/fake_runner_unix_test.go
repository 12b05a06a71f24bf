//go:build unix

package worker_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// createLockFile creates a file and locks it, as a runner does.
func createLockFile(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// listenAsRunner creates the socket in a runner's directory.
func listenAsRunner(runnerDir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(runnerDir, "run.sock"))
}
