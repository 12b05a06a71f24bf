package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/store"
)

// nodeFile is a file in the state folder that tells its service from others of the same name.
const nodeFile = "node.id"

// member is this service as a node of a store that others share.
func (s *Service) member() (member, error) {
	m := member{Name: s.nodeName(), Version: s.opt.Version, Lease: s.config.Load().NodeLease}
	path := filepath.Join(s.opt.Places.State, nodeFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = makeNodeFile(path)
	}
	m.Folder = strings.TrimSpace(string(raw))
	if err == nil && m.Folder == "" {
		err = queue.Errorf(queue.CodeInvalid, "the file %s is empty; remove it (jobs that ran on this node are then treated as lost)", path)
	}
	if boot, unknown := process.BootID(); unknown == nil {
		m.Place = boot + "/" + fileID(path)
	}
	return m, err
}

// makeNodeFile makes the file anew.
func makeNodeFile(path string) (content []byte, err error) {
	id := make([]byte, 16)
	rand.Read(id) // it cannot fail
	content = []byte(hex.EncodeToString(id) + "\n")
	return content, keepFile(path, content)
}

// keepFile writes a file of the state folder so that it is whole after a power cut: as it was, or as it is to be.
func keepFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil || runtime.GOOS == "windows" { // where a folder cannot be synced
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// ownNode has a state folder that is a copy of another node's, as machines that are made from one image have it, be one of its own.
func (s *Service) ownNode() error {
	path := filepath.Join(s.opt.Places.State, nodeFile)
	s.log.Warn("this state directory is a copy of another node's, whose service is running; this service continues as a separate node", "file", path)
	_, err := makeNodeFile(path)
	return err
}

// storeFile is a file in the state directory. It contains the name of the database on a server whose queue the service of
// this directory had last, and nothing if that queue was in the directory itself. The time of its last change is when
// this queue first used the directory, unless it has always used it: older output files may belong to another queue.
const storeFile = "store.id"

// knowsItsStore refuses to begin a queue in a folder whose service had one on a server, which the settings do not name any more.
func knowsItsStore(dir string) error {
	path := filepath.Join(dir, storeFile)
	database, err := os.ReadFile(path)
	_, has := os.Stat(place{Dir: dir}.String())
	if err != nil || len(bytes.TrimSpace(database)) == 0 || !errors.Is(has, fs.ErrNotExist) {
		return nil
	}
	return queue.Errorf(queue.CodeInvalid, `the queue of this service is in a database on a server, but the settings name no database; set the setting "store" or store_file again, or start a new queue in %s by removing %s`, dir, path)
}

// meetAnother sees to it that runners which have obeyed the service of another store obey this one's. Jobs of that one that run still
// are not this one's to end, nor to begin again, unless a move has brought them.
func (s *Service) meetAnother(ctx context.Context) error {
	path := filepath.Join(s.opt.Places.State, storeFile)
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now := ""
	if s.cluster != nil {
		now = s.cluster.Database()
	}
	if now == strings.TrimSpace(string(raw)) {
		return s.keepOlderOutputs(now)
	}
	left, err := s.store.Left(ctx)
	if err != nil {
		return err
	}
	known := map[queue.Lease]bool{}
	for i := range left.Leased {
		known[left.Leased[i].Lease()] = true
	}
	dirs, err := s.home.Find()
	if err != nil {
		return err
	}
	var strange []string // their jobs
	var idle []string
	for _, dir := range dirs {
		list, lives, err := runner.Kept(dir)
		if err != nil {
			return err
		}
		if lives && len(list) == 0 {
			idle = append(idle, dir)
		}
		for _, l := range list {
			if !known[queue.Lease{Seq: l.Seq, Fence: l.Fence}] {
				strange = append(strange, fmt.Sprint(l.Seq))
			}
		}
	}
	if len(strange) > 0 {
		return &ExitError{ExitConfig, fmt.Errorf("runners on this node still have jobs of the previous store (job numbers %s); use that store again until these jobs have ended, move the jobs with queuectl migrate, or end the jobs%s", queue.Clip(strings.Join(strange, ", ")), s.endRunners())}
	}
	for _, dir := range idle {
		if err := s.home.End(dir); err != nil {
			return fmt.Errorf("end an idle runner that belongs to the previous store: %w", err)
		}
	}
	return s.setStoreFile(now)
}

func (s *Service) setStoreFile(database string) error {
	if database != "" {
		database += "\n"
	}
	return keepFile(filepath.Join(s.opt.Places.State, storeFile), []byte(database))
}

// keepOlderOutputs notes that a new queue begins in a directory that contains output files of an earlier one, such as of
// a database that was moved away. A queue in which nothing was ever enqueued owns no output files.
func (s *Service) keepOlderOutputs(database string) error {
	if s.store.Counts().Enqueued > 0 {
		return nil
	}
	for _, dir := range s.home.Outputs() {
		if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
			return s.setStoreFile(database)
		}
	}
	return nil
}

// outputsSince returns when the queue in use first used a state directory, or zero if it has always used it.
func outputsSince(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, storeFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// endDead ends what dead runners have left alive, of a service that is about to start or could not: its store may be away for long,
// its leases are others' soon, and a runner that is dead ends nothing.
func (s *Service) endDead() {
	if url, err := s.config.Load().StoreURL(); err != nil || url == "" || s.config.Load().OnPartition != "stop" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endDeadWithin)
	defer cancel()
	dirs, err := runner.Home{Dir: runnersOf(s.opt.Places)}.Find()
	for _, dir := range dirs {
		if lives, unknown := runner.Lives(dir); lives || unknown != nil {
			continue
		}
		if _, failed := runner.Recover(ctx, dir, nil, nil, nil); failed != nil {
			err = failed
		}
	}
	if err != nil {
		s.log.Warn("processes that a dead runner left may still be running", "error", err)
	}
}

// endDeadWithin bounds that.
const endDeadWithin = 5 * time.Second

// isAway reports whether an error says that the server of the database is away.
func (s *Service) isAway(err error) bool {
	return s.cluster != nil && errors.Is(err, queue.ErrUnavailable)
}

// marginOf is how long before the end of a lease what runs is ended.
func marginOf(lease time.Duration) time.Duration { return lease / 6 }

// prolong prolongs the lease of this node, and what its runners may do with it.
func (s *Service) prolong(ctx context.Context) error {
	if s.cluster == nil {
		return nil
	}
	lease := s.cluster.Lease()
	asked := time.Now()
	within, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	applyDrain := s.beginDrainRead()
	m, err := s.cluster.Extend(within, s.load())
	if err != nil {
		return err
	}
	if s.config.Load().OnPartition == "stop" {
		s.pool.Prolong(asked.Add(lease - marginOf(lease)))
	} else {
		s.pool.Prolong(time.Time{})
	}
	applyDrain(m.Drained)
	if m.Orphans {
		select {
		case s.orphans <- struct{}{}:
		default: // it is known
		}
	}
	return nil
}

// inheritAll takes over, until ctx ends, what nodes have left. It keeps no lease from being prolonged.
func (s *Service) inheritAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.orphans:
			s.inherit(ctx)
		}
	}
}

// inherit takes over what nodes have left whose leases are over.
func (s *Service) inherit(ctx context.Context) {
	for more := true; more; {
		list, err := s.cluster.TakeOver(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("a lost node's jobs are not taken over yet; trying again", "error", err)
			}
			return
		}
		if len(list) > 0 {
			of := map[string]int{}
			for i := range list {
				of[list[i].From]++
			}
			for _, name := range slices.Sorted(maps.Keys(of)) {
				s.log.Warn("another node is gone; its running jobs are treated as lost", "node", name, "jobs", of[name])
			}
			s.pool.Lost(list)
		}
		more = len(list) == store.MaxTakeOver
	}
}

// keepLease prolongs the lease again and again, until ctx ends.
func (s *Service) keepLease(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	lease := s.cluster.Lease()
	failing := false
	defer s.leaseTrouble.Store(nil)
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-s.scaled: // which is told with it
		}
		wait = lease / 3
		err := s.prolong(ctx)
		switch {
		case err == nil && failing:
			failing = false
			s.leaseTrouble.Store(nil)
			s.log.Info("this node's right to run jobs (node lease) is renewed again")
		case err != nil && ctx.Err() == nil:
			wait = lease / 10
			s.leaseTrouble.Store(new(fmt.Sprintf("this node cannot renew its right to run jobs (node lease): %v", err)))
			if !failing {
				failing = true
				s.log.Warn("cannot renew this node's right to run jobs (node lease); unless that succeeds soon, its running jobs end or continue, depending on the setting on_partition", "error", err, "lease", lease.String(), "on_partition", s.config.Load().OnPartition)
			}
		}
	}
}

// takePart does what other nodes ask for, and has shared settings hold that were changed elsewhere, until ctx ends.
func (s *Service) takePart(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	defer s.answering.Wait()
	looked, said := time.Time{}, ""
	for {
		wait := time.Hour
		if !looked.IsZero() {
			wait = time.Until(looked.Add(shareEvery))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.cluster.Hints():
			s.answerAsks(ctx)
		case <-s.cluster.Changes():
			if looked.IsZero() {
				looked = time.Now()
			}
		case <-time.After(wait):
			looked = time.Time{}
			switch err := s.obey(ctx); {
			case err == nil:
				said = ""
			case ctx.Err() == nil:
				looked = time.Now()
				if said != err.Error() { // it may be for long
					said = err.Error()
					s.log.Warn("settings changed on another node are not applied on this node yet", "error", err)
				}
			}
		}
	}
}

// shareEvery is how long after a change of anything it is looked whether settings have changed.
const shareEvery = 500 * time.Millisecond

// takeShared has settings and rules hold as they are stored now.
func (s *Service) takeShared(ctx context.Context) error {
	return s.inTurn(ctx, func() error {
		stored, err := s.store.Settings(ctx)
		if err != nil {
			return err
		}
		var bound error
		if s.own || !slices.Equal(stored, s.shared) {
			if err := s.setStored(stored); err != nil {
				return err
			}
			s.shared = stored
			bound = s.bindStore(ctx)
			s.own = bound != nil && !errors.Is(bound, queue.ErrInvalid) // the next look does it again
			s.applyHere()
			s.obeyDrain()
			if paused := s.paused.Load() != nil; paused != s.pool.Frozen() {
				s.pool.PauseAll(paused)
			}
		}
		return errors.Join(bound, s.loadRules(ctx), s.loadGates(ctx))
	})
}
