package service

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// After a service has died, its lock may be held for a moment: by one of its child processes, or by a program that
// reads the queue's files. The next service waits for the lock and starts. If a running service holds the lock, the
// next service fails immediately.
func TestServiceRetriesStateDirLock(t *testing.T) {
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pid  int
		free bool
	}{{dead.Process.Pid, true}, {os.Getpid(), false}} {
		dir := t.TempDir()
		holder, err := holdStateDirLock(filepath.Join(dir, stateDirLockName))
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		if _, err := holder.WriteString(strconv.Itoa(c.pid) + "\n"); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(50*time.Millisecond, func() { holder.Close() })
		lock, err := lockStateDir(dir)
		if c.free && err != nil {
			t.Errorf("after a dead service: %v", err)
		}
		if !c.free && (err == nil || !strings.Contains(err.Error(), strconv.Itoa(c.pid))) {
			t.Errorf("next to a living service: got %v, want its pid", err)
		}
		if err == nil {
			lock.Close()
		}
	}
}
