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

// sweepWithin is how long the sweeper spends on one directory before it leaves the rest to a later
// round. clearWithin bounds the removal of all private directories of a runner.
const (
	sweepWithin = 10 * time.Second
	clearWithin = 20 * time.Second
)

// makePlace creates the directory that holds the private directories of a runner's jobs, and returns
// its path. With pass, other accounts can enter it to reach what belongs to them, but cannot list it.
func makePlace(o *Options, name string, pass bool) (string, error) {
	all := o.Tmpdir
	err := error(nil)
	if all == "" {
		all = filepath.Join(o.Root, placesName)
		err = makePlaceDir(all, pass)
	} else {
		err = checkTmpdir(all, o.Root, pass)
	}
	if err != nil {
		return "", err
	}
	place := filepath.Join(all, name)
	return place, makePlaceDir(place, pass)
}

func makePlaceDir(dir string, pass bool) error {
	mode := os.FileMode(0o700)
	if pass {
		mode = 0o711
	}
	err := os.Mkdir(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode) // sets the exact mode, independent of the umask and of a setgid parent
	}
	if errors.Is(err, os.ErrExist) {
		err = checkPlace(dir)
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
	tmpdir, err := tmpdirOf(dir)
	for _, all := range []string{filepath.Join(filepath.Dir(dir), placesName), tmpdir} {
		if all != "" {
			err = cmp.Or(clearPlace(filepath.Join(all, filepath.Base(dir)), time.Now().Add(clearWithin)), err)
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// clearPlace removes the directory that holds the private directories of a runner's jobs, with its
// contents. None of the jobs may be running. It stops at the time until.
func clearPlace(place string, until time.Time) error {
	list, err := os.ReadDir(place)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(place, e.Name())
		if !e.IsDir() {
			err = errors.Join(err, os.Remove(path))
			continue
		}
		owner, failed := process.OwnerOf(path)
		more := failed == nil
		for more && failed == nil && time.Now().Before(until) {
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
	return os.Remove(place)
}

// sweeper removes the private directories of ended attempts. It removes a part of each in turn, so that
// a large one does not delay the others. Call init before use. add and look may be called from any
// goroutine.
type sweeper struct {
	chores
	log *slog.Logger

	mu      sync.Mutex
	pending map[string]bool // paths that are queued; guarded by mu
	told    map[string]bool // paths whose failed removal was logged; guarded by mu
}

func (s *sweeper) init(log *slog.Logger) {
	s.chores.bell = make(chan struct{}, 1)
	s.log, s.pending, s.told = log, map[string]bool{}, map[string]bool{}
}

// maxSwept is how many directories can be queued. When more are queued, add itself removes a part of
// the new directory, which slows its caller down.
const maxSwept = 64

// add queues a directory of the given owner for removal.
func (s *sweeper) add(path string, owner *process.Identity) {
	s.mu.Lock()
	known, crowded := s.pending[path], len(s.pending) >= maxSwept
	s.pending[path] = true
	s.mu.Unlock()
	if known {
		return
	}
	until := time.Now().Add(sweepWithin)
	if crowded {
		s.step(path, owner, until)
		return
	}
	s.chores.add(func() { s.step(path, owner, until) })
}

// step removes a part of a directory, and queues the next step for the rest.
func (s *sweeper) step(path string, owner *process.Identity, until time.Time) {
	more, err := process.Remove(path, owner)
	if more && time.Now().Before(until) {
		s.chores.add(func() { s.step(path, owner, until) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, path)
	if err != nil && !s.told[path] {
		if len(s.told) < maxSwept {
			s.told[path] = true
		}
		s.log.Warn("could not remove a job's private directory; trying again; the job's user may have to remove the directory", "error", err)
	}
}

// look queues the directories below place that were moved aside and still exist.
func (s *sweeper) look(place string) {
	list, err := os.ReadDir(place)
	if err != nil {
		return // place was removed, and all directories with it
	}
	for _, e := range list {
		path := filepath.Join(place, e.Name())
		if !e.IsDir() || !strings.Contains(e.Name(), process.GoneWord) {
			continue
		}
		if owner, err := process.OwnerOf(path); err == nil {
			s.add(path, owner)
		}
	}
}
