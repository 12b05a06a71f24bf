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

// sweepTimeout is how long the sweeper tries to remove one directory. After that, the rest stays until the
// next call of addLeftoverDirs.
const sweepTimeout = 10 * time.Second

// sweeper removes the private directories of ended attempts. It removes a part of each directory in turn,
// so that a large directory does not delay the removal of other directories. Call init before use. addPath
// and addLeftoverDirs may be called from any goroutine.
type sweeper struct {
	diskQueue
	log *slog.Logger

	mu          sync.Mutex
	queuedPaths map[string]bool // paths that are queued; guarded by mu
	loggedPaths map[string]bool // paths whose failed removal was logged; guarded by mu
}

func (s *sweeper) init(log *slog.Logger) {
	s.diskQueue.wake = make(chan struct{}, 1)
	s.log, s.queuedPaths, s.loggedPaths = log, map[string]bool{}, map[string]bool{}
}

// maxQueuedPaths is how many directories can be queued. If the queue is full, addPath itself removes a part
// of the new directory, so its caller has to wait.
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

// removeStep removes a part of a directory, and queues the next step for the rest.
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

// addLeftoverDirs queues the directories in dir that attempts have used and that still exist. Such a directory
// was renamed by privdir.Dir.Rename.
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
