package runner

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner/process"
)

// sweepTimeout is how long the sweeper spends on one directory before it leaves the rest to a later
// round. removeTimeout bounds the removal of all private directories of a runner.
const (
	sweepTimeout  = 10 * time.Second
	removeTimeout = 20 * time.Second
)

// makeWorkspaces creates the directory that holds the private directories of a runner's jobs, and
// returns its path. If othersEnter is true, other accounts can enter the directory to reach their own
// files, but cannot list it.
func makeWorkspaces(o *Options, name string, othersEnter bool) (string, error) {
	parent := o.Tmpdir
	err := error(nil)
	if parent == "" {
		parent = filepath.Join(o.Root, workspacesName)
		err = makeWorkspacesDir(parent, othersEnter)
	} else {
		err = checkTmpdir(parent, o.Root, othersEnter)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, name)
	return dir, makeWorkspacesDir(dir, othersEnter)
}

func makeWorkspacesDir(dir string, othersEnter bool) error {
	mode := os.FileMode(0o700)
	if othersEnter {
		mode = 0o711
	}
	err := os.Mkdir(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode) // this sets the exact mode, independent of the umask and of a setgid parent
	}
	if errors.Is(err, os.ErrExist) {
		err = checkWorkspaces(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot create the directory for private directories of jobs: %w", err)
	}
	return nil
}

// removeRunner removes a dead runner's directory and the private directories of its jobs. It removes
// each private directory with the rights of the account that owns it. Private directories that cannot
// be removed stay.
func removeRunner(dir string) error {
	tmpdir, err := startedTmpdir(dir)
	for _, parent := range []string{filepath.Join(filepath.Dir(dir), workspacesName), tmpdir} {
		if parent != "" {
			err = cmp.Or(removeWorkspaces(filepath.Join(parent, filepath.Base(dir)), time.Now().Add(removeTimeout)), err)
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// removeWorkspaces removes the directory that holds the private directories of a runner's jobs, with
// its contents. None of the jobs may be running. It stops at the deadline.
func removeWorkspaces(dir string, deadline time.Time) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			err = errors.Join(err, os.Remove(path))
			continue
		}
		owner, failed := process.OwnerOf(path)
		more := failed == nil
		for more && failed == nil && time.Now().Before(deadline) {
			more, failed = process.Remove(path, owner)
		}
		if failed == nil && more {
			failed = fmt.Errorf("%s is not empty yet", path)
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

// sweeper removes the private directories of ended attempts. It removes a part of each in turn, so that
// a large directory does not delay the others. Call init before use. add and addLeftovers may be called
// from any goroutine.
type sweeper struct {
	diskQueue
	log *slog.Logger

	mu      sync.Mutex
	pending map[string]bool // paths that are queued; guarded by mu
	logged  map[string]bool // paths whose failed removal was logged; guarded by mu
}

func (s *sweeper) init(log *slog.Logger) {
	s.diskQueue.wake = make(chan struct{}, 1)
	s.log, s.pending, s.logged = log, map[string]bool{}, map[string]bool{}
}

// maxPending is how many directories can be queued. When the queue is full, add removes a part of the
// new directory itself, which slows its caller down.
const maxPending = 64

// add queues a directory of the given owner for removal.
func (s *sweeper) add(path string, owner *process.Identity) {
	s.mu.Lock()
	queued, full := s.pending[path], len(s.pending) >= maxPending
	s.pending[path] = true
	s.mu.Unlock()
	if queued {
		return
	}
	deadline := time.Now().Add(sweepTimeout)
	if full {
		s.step(path, owner, deadline)
		return
	}
	s.diskQueue.add(func() { s.step(path, owner, deadline) })
}

// step removes a part of a directory, and queues the next step for the rest.
func (s *sweeper) step(path string, owner *process.Identity, deadline time.Time) {
	more, err := process.Remove(path, owner)
	if more && time.Now().Before(deadline) {
		s.diskQueue.add(func() { s.step(path, owner, deadline) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, path)
	if err != nil && !s.logged[path] {
		if len(s.logged) < maxPending {
			s.logged[path] = true
		}
		s.log.Warn("could not remove a job's private directory; trying again; the job's user may have to remove the directory", "error", err)
	}
}

// addLeftovers queues the directories in dir that were moved aside and still exist.
func (s *sweeper) addLeftovers(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return // dir was removed together with all directories in it
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() || !strings.Contains(e.Name(), process.AsideInfix) {
			continue
		}
		if owner, err := process.OwnerOf(path); err == nil {
			s.add(path, owner)
		}
	}
}
