//go:build unix

package daemon

import (
	"context"
	"errors"
	"github.com/queuectl/queuectl/runner/rundir"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// failToWatchDir fails like dir.WaitForChange when the account cannot watch more directories (inotify instances).
func failToWatchDir(context.Context, string, []string, func() bool) error {
	return errors.New("too many open files")
}

// waitWithoutChangeEvent waits until ctx ends, like dir.WaitForChange if the kernel reports no change.
func waitWithoutChangeEvent(ctx context.Context, _ string, _ []string, _ func() bool) error {
	<-ctx.Done()
	return ctx.Err()
}

// withWatchedSocket calls f while keepReachableWith watches the socket root/1.a/run.sock. gone receives the result of
// keepReachableWith.
func withWatchedSocket(t *testing.T, waitForChange waitForChangeFunc,
	f func(t *testing.T, root string, gone <-chan bool)) {
	synctest.Test(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "runner")
		path := filepath.Join(root, "1.a", rundir.SocketFileName)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := newRunnerSocket(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		gone := make(chan bool, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { gone <- s.keepReachableWith(ctx, slog.New(slog.DiscardHandler), waitForChange) }()
		time.Sleep(maxSocketCheckInterval) // after this time, keepReachableWith has finished its first check
		f(t, root, gone)
	})
}

// A runner must end when it has lost its directory in any way, because it cannot start jobs without it.
func TestRunnerNoticesLostDirectory(t *testing.T) {
	for _, c := range []struct {
		name          string
		waitForChange waitForChangeFunc
		lose          func(root string) error
	}{
		{"removed, cannot be watched", failToWatchDir, os.RemoveAll},
		{"parent replaced by a file", failToWatchDir, func(root string) error {
			return errors.Join(os.RemoveAll(root), os.WriteFile(root, nil, 0o600))
		}},
		{"replaced by a file", failToWatchDir, func(root string) error {
			dir := filepath.Join(root, "1.a")
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}},
		{"parent renamed, no event", waitWithoutChangeEvent, func(root string) error { return os.Rename(root, root+"-old") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			withWatchedSocket(t, c.waitForChange, func(t *testing.T, root string, gone <-chan bool) {
				if err := c.lose(root); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-gone:
					if !got {
						t.Error("keepReachableWith returned false, want true: the directory is gone")
					}
				case <-time.After(2 * maxSocketCheckInterval):
					t.Errorf("keepReachableWith has not returned after %v, want that it returns true", 2*maxSocketCheckInterval)
				}
			})
		})
	}
}

// A removed socket is created again even if the kernel does not report changes of the directory.
func TestSocketIsRecreatedWithoutWatch(t *testing.T) {
	for name, waitForChange := range map[string]waitForChangeFunc{"cannot be watched": failToWatchDir,
		"no event": waitWithoutChangeEvent} {
		t.Run(name, func(t *testing.T) {
			withWatchedSocket(t, waitForChange, func(t *testing.T, root string, gone <-chan bool) {
				path := filepath.Join(root, "1.a", rundir.SocketFileName)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-gone:
					t.Fatalf("keepReachableWith returned %t, want that it continues", got)
				case <-time.After(2 * maxSocketCheckInterval):
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("after %v: got %v, want a new socket", 2*maxSocketCheckInterval, err)
				}
			})
		})
	}
}
