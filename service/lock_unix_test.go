//go:build unix

package service

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// A service also locks the state directory itself, so a second service cannot start even if the lock file was
// removed.
func TestStateDirLockSurvivesFileRemoval(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.Remove(filepath.Join(dir, stateDirLockName)); err != nil {
		t.Fatal(err)
	}
	if again, err := lockStateDir(dir); !errors.Is(err, queue.ErrWrongState) {
		again.Close()
		t.Errorf("a second lock of the directory: %v, want a refusal", err)
	}
}
