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

// dirRemovalTimeout is how long the sweeper tries to remove one directory. After that, the rest of the directory stays
// until queueLeftoverDirs queues it again.
const dirRemovalTimeout = 10 * time.Second

// workDirSweeper removes the private directories of ended attempts. It alternates between the queued directories and
// removes a part of one at a time, so that a large directory does not delay others. Call init before use.
// queueRemoval and queueLeftoverDirs may be called from any goroutine.
type workDirSweeper struct {
	diskOperationQueue
	log *slog.Logger

	mu                 sync.Mutex
	queuedPaths        map[string]bool // paths that are queued; guarded by mu
	failureLoggedPaths map[string]bool // paths for which a failed removal was logged; guarded by mu
}

func (s *workDirSweeper) init(log *slog.Logger) {
	s.diskOperationQueue.wake = make(chan struct{}, 1)
	s.log, s.queuedPaths, s.failureLoggedPaths = log, map[string]bool{}, map[string]bool{}
}

// maxQueuedRemovals limits how many directories are queued. If the queue is full, queueRemoval itself removes a part of
// the new directory. This slows down the caller, and so limits how fast new directories are created.
const maxQueuedRemovals = 64

// queueRemoval queues a directory of the given owner for removal.
func (s *workDirSweeper) queueRemoval(path string, owner *runas.Identity) {
	s.mu.Lock()
	queued, full := s.queuedPaths[path], len(s.queuedPaths) >= maxQueuedRemovals
	s.queuedPaths[path] = true
	s.mu.Unlock()
	if queued {
		return
	}
	deadline := time.Now().Add(dirRemovalTimeout)
	if full {
		s.removePartOfDir(path, owner, deadline)
		return
	}
	s.diskOperationQueue.addOperation(func() { s.removePartOfDir(path, owner, deadline) })
}

// removePartOfDir removes a part of a directory. If more is left, it queues itself again for the next part.
func (s *workDirSweeper) removePartOfDir(path string, owner *runas.Identity, deadline time.Time) {
	more, err := privdir.RemoveDirStep(path, owner)
	if more && time.Now().Before(deadline) {
		s.diskOperationQueue.addOperation(func() { s.removePartOfDir(path, owner, deadline) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queuedPaths, path)
	if err != nil && !s.failureLoggedPaths[path] {
		if len(s.failureLoggedPaths) < maxQueuedRemovals {
			s.failureLoggedPaths[path] = true
		}
		s.log.Warn("the runner could not remove the private directory of an ended job; it tries again later", "dir", path,
			"error", err)
	}
}

// queueLeftoverDirs queues the leftover directories in parentDir. These are directories of ended attempts, which
// privdir.Dir.Rename has renamed to mark them for removal.
func (s *workDirSweeper) queueLeftoverDirs(parentDir string) {
	list, err := os.ReadDir(parentDir)
	if err != nil {
		return // parentDir was removed together with all directories in it
	}
	for _, e := range list {
		path := filepath.Join(parentDir, e.Name())
		if !e.IsDir() || !strings.Contains(e.Name(), privdir.RenamedDirNameInfix) {
			continue
		}
		if owner, err := privdir.OwnerIdentity(path); err == nil {
			s.queueRemoval(path, owner)
		}
	}
}
