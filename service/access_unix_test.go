//go:build unix

package service

import (
	"os"
	"syscall"
)

// holdStateDirLock takes the lock of a state directory.
func holdStateDirLock(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
}
