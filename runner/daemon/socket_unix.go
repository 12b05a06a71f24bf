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

// socketRecreateDelay is the time from the removal of the socket until the runner creates it again. The directory may
// be removed in this time too. Then the runner must end instead.
const socketRecreateDelay = 50 * time.Millisecond

// minSocketCheckInterval is the shortest, and maxSocketCheckInterval the longest time between two checks whether the
// socket exists.
const (
	minSocketCheckInterval = time.Second
	maxSocketCheckInterval = 30 * time.Second
)

// waitForChangeFunc waits for a change of files in a directory. Tests replace dir.WaitForChange with another
// function.
type waitForChangeFunc func(ctx context.Context, dir string, names []string, onWatching func() bool) error

// keepReachable creates the socket again each time its file is removed. It returns when ctx ends or the
// runner's directory is gone, and reports whether the directory is gone.
func (s *runnerSocket) keepReachable(ctx context.Context, log *slog.Logger) (dirGone bool) {
	return s.keepReachableWith(ctx, log, dir.WaitForChange)
}

// keepReachableWith implements keepReachable. It uses waitForChange to notice changes immediately. It also checks at
// least every maxSocketCheckInterval, for two reasons: the kernel may refuse to watch a directory, and it does not
// report that a parent directory was renamed.
func (s *runnerSocket) keepReachableWith(
	ctx context.Context, log *slog.Logger, waitForChange waitForChangeFunc,
) (dirGone bool) {
	dir, name := filepath.Dir(s.path), filepath.Base(s.path)
	present := func() bool {
		info, err := os.Lstat(s.path)
		return err == nil && info.Mode()&os.ModeSocket != 0
	}
	warned := false
	for wait := minSocketCheckInterval; ; {
		watch, stop := context.WithTimeout(ctx, maxSocketCheckInterval)
		err := waitForChange(watch, dir, []string{name}, present)
		if watch.Err() != nil {
			err = nil // the timeout of the watch is not an error
		}
		stop()
		if !sleepUnlessDone(ctx, socketRecreateDelay) {
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
		if !sleepUnlessDone(ctx, wait) {
			return false
		}
		if wait = min(2*wait, maxSocketCheckInterval); err == nil {
			wait = minSocketCheckInterval
		}
	}
}

// isDirGone reports whether the directory no longer exists. It returns false if that is unknown.
func isDirGone(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		// ENOTDIR means that a parent directory was replaced by a file.
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	}
	return !info.IsDir()
}

// sleepUnlessDone waits for d. It returns false if ctx ends first.
func sleepUnlessDone(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// recreate creates the socket again.
func (s *runnerSocket) recreate() error {
	os.Remove(s.path) // another file may have been created at this path
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
	return old.Close() // the error of the closed listener makes accept use the new listener
}
