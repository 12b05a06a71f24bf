//go:build unix

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/dir"
	"github.com/queuectl/queuectl/runner/rundir"
)

// recreateDelay is the delay before a removed socket is created again. During this time, the rest of the
// directory may be removed too, and then the runner must end instead.
const recreateDelay = 50 * time.Millisecond

// minCheckInterval and maxCheckInterval are the shortest and the longest time between two checks of the
// socket.
const (
	minCheckInterval = time.Second
	maxCheckInterval = 30 * time.Second
)

// waitForChangeFunc is a function like dir.WaitForChange, which waits for a change in a directory.
type waitForChangeFunc func(ctx context.Context, dir string, names []string, onWatching func() bool) error

// keepReachable creates the socket again when its file is removed, until ctx ends or the runner's directory
// is gone. It reports whether the directory is gone.
func (s *socket) keepReachable(ctx context.Context, log *slog.Logger) (dirGone bool) {
	return s.keepReachableWith(ctx, log, dir.WaitForChange)
}

// keepReachableWith does the work of keepReachable. It calls waitForChange to notice changes. It also checks
// the socket at least every maxCheckInterval, because waitForChange may miss a removal: the kernel may refuse
// to watch a directory, and it does not report that a parent directory was renamed.
func (s *socket) keepReachableWith(
	ctx context.Context, log *slog.Logger, waitForChange waitForChangeFunc,
) (dirGone bool) {
	dir, name := filepath.Dir(s.path), filepath.Base(s.path)
	present := func() bool {
		info, err := os.Lstat(s.path)
		return err == nil && info.Mode()&os.ModeSocket != 0
	}
	warned := false
	for wait := minCheckInterval; ; {
		watch, stop := context.WithTimeout(ctx, maxCheckInterval)
		err := waitForChange(watch, dir, []string{name}, present)
		if watch.Err() != nil {
			err = nil // this error only means that the time of the watch is over
		}
		stop()
		if !sleepOrDone(ctx, recreateDelay) {
			return false
		}
		if isDirGone(dir) {
			return true
		}
		if err != nil && !warned {
			log.Warn("cannot watch the runner's directory for changes; checking it at intervals instead", "error", err)
			warned = true
		}
		if !present() {
			if err = s.recreate(); err != nil {
				log.Error("the runner's socket was removed and cannot be created again; trying again", "error", err, "in", wait)
			} else {
				log.Warn("the runner's socket was removed; it has been created again")
			}
		}
		if !sleepOrDone(ctx, wait) {
			return false
		}
		if wait = min(2*wait, maxCheckInterval); err == nil {
			wait = minCheckInterval
		}
	}
}

// isDirGone reports whether there is no directory at a path. It returns false if the path cannot be
// checked.
func isDirGone(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		// ENOTDIR means that a parent directory was replaced by a file.
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	}
	return !info.IsDir()
}

// sleepOrDone waits for d. It returns false if ctx ends first.
func sleepOrDone(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// recreate creates the socket again.
func (s *socket) recreate() error {
	os.Remove(s.path) // remove another file that may have been created at this path
	l, err := rundir.Listen(s.path, s.mode)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return l.Close()
	}
	old := s.listener
	s.listener = l
	return old.Close() // the method accept then uses the new listener
}
