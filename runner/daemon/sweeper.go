package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/runas"
)

// sweepTimeout is how long the sweeper tries to remove one directory. Whatever is left then stays until
// addLeftoverDirs queues it again.
const sweepTimeout = 10 * time.Second

// sweeper removes the private directories of ended attempts. It alternates between the queued directories and
// removes a part of one at a time, so that a large directory does not delay others. Call init before use.
// addPath and addLeftoverDirs may be called from any goroutine.
type sweeper struct {
	diskQueue
	log *slog.Logger

	mu          sync.Mutex
	queuedPaths map[string]bool // paths that are queued; guarded by mu
	loggedPaths map[string]bool // paths for which a failed removal was logged; guarded by mu
}

func (s *sweeper) init(log *slog.Logger) {
	s.diskQueue.wake = make(chan struct{}, 1)
	s.log, s.queuedPaths, s.loggedPaths = log, map[string]bool{}, map[string]bool{}
}

// maxQueuedPaths limits how many directories are queued. If the queue is full, addPath removes a part of the
// new directory itself. This slows down the caller, and so the creation of further directories.
const maxQueuedPaths = 64

// addPath queues a directory of the given owner for removal.
func (s *sweeper) addPath(path string, owner *runas.Identity) {
	s.mu.Lock()
	queued, full := s.queuedPaths[path], len(s.queuedPaths) >= maxQueuedPaths
	s.queuedPaths[path] = true
	s.mu.Unlock()
	if queued {
		return
	}
	deadline := time.Now().Add(sweepTimeout)
	if full {
		s.removeStep(path, owner, deadline)
		return
	}
	s.diskQueue.add(func() { s.removeStep(path, owner, deadline) })
}

// removeStep removes a part of a directory. If more is left, it queues another step.
func (s *sweeper) removeStep(path string, owner *runas.Identity, deadline time.Time) {
	more, err := privdir.RemoveSome(path, owner)
	if more && time.Now().Before(deadline) {
		s.diskQueue.add(func() { s.removeStep(path, owner, deadline) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queuedPaths, path)
	if err != nil && !s.loggedPaths[path] {
		if len(s.loggedPaths) < maxQueuedPaths {
			s.loggedPaths[path] = true
		}
		s.log.Warn("the runner could not remove the private directory of an ended job; it tries again later", "dir", path,
			"error", err)
	}
}

// addLeftoverDirs queues the leftover directories in dir. Attempts have used them, and privdir.Dir.Rename has
// renamed them to mark them for removal.
func (s *sweeper) addLeftoverDirs(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return // dir was removed together with all directories in it
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() || !strings.Contains(e.Name(), privdir.RenamedInfix) {
			continue
		}
		if owner, err := privdir.OwnerIdentity(path); err == nil {
			s.addPath(path, owner)
		}
	}
}
