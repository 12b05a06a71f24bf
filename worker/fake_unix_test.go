//go:build unix

package worker_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// takeLock makes a file and takes its lock, as a runner does.
func takeLock(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// listen makes the socket of a runner's folder.
func listen(dir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(dir, "run.sock"))
}
