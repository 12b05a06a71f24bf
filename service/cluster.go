package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// leaseKeeper renews the node lease and takes over the jobs of lost nodes.
type leaseKeeper struct {
	cluster  store.Cluster // nil if no other node can use the store
	log      *slog.Logger
	pool     *worker.Pool
	drains   *drains
	nodeList *nodeList
	settings *keeper

	workersChanged chan struct{}                // wake-up: the number of workers has changed
	leaseTrouble   atomic.Pointer[leaseTrouble] // why the last renewal of the node lease failed; nil if it succeeded
	orphans        chan struct{}                // wake-up: a lost node has left jobs to take over
}

// nodeFile is the name of a file in the state directory. It contains a random id that distinguishes this node
// from others with the same name.
const nodeFile = "node.id"

// member returns the identity with which this service joins a queue that several nodes share.
func (b *startup) member() (member, error) {
	m := member{Name: b.nodeName(), Version: b.opt.Version, Lease: b.settings.config.Load().NodeLease}
	path := filepath.Join(b.opt.Places.State, nodeFile)
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

// makeNodeFile writes a new random id to the file.
func makeNodeFile(path string) (content []byte, err error) {
	id := make([]byte, 16)
	rand.Read(id) // rand.Read never fails
	content = []byte(hex.EncodeToString(id) + "\n")
	return content, replaceFile(path, content)
}

// replaceFile replaces a file in the state directory atomically: after a power failure, the file has the old
// or the new content.
func replaceFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil || runtime.GOOS == "windows" { // Windows cannot sync a directory
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// replaceNodeID gives this node a new identity. It is needed if the state directory is a copy of another
// node's directory, as on machines that were created from one image.
func (b *startup) replaceNodeID() error {
	path := filepath.Join(b.opt.Places.State, nodeFile)
	b.log.Warn("this state directory is a copy of the state directory of another node whose service is running; this service continues as a separate node", "file", path)
	_, err := makeNodeFile(path)
	return err
}

// storeFile is the name of a file in the state directory. The file names the server database that held the
// queue last. The file is empty if the queue was in the directory itself. Its modification time is the time
// at which the queue first used the directory. Output files that are older may belong to another queue. If
// the file does not exist, the queue has always used the directory.
const storeFile = "store.id"

// checkStoreFile keeps the service from starting a new queue in a directory by mistake. It returns an error
// if the queue is in a server database that the settings no longer name.
func checkStoreFile(dir string) error {
	path := filepath.Join(dir, storeFile)
	database, err := os.ReadFile(path)
	_, has := os.Stat(storeLocation{Dir: dir}.String())
	if err != nil || len(bytes.TrimSpace(database)) == 0 || !errors.Is(has, fs.ErrNotExist) {
		return nil
	}
	return queue.Errorf(queue.CodeInvalid, `the queue of this service is in a database on a server, but the settings name no database; set the setting "store" or store_file again, or start a new queue in %s by removing %s`, dir, path)
}

// prepareStoreChange prepares this service for a different store than that of the previous service. It ends
// idle runners that were used with the previous store. If a runner has jobs that this store does not know,
// it returns an error. This service must neither end such jobs nor start them again, unless a migration has
// moved them to this store.
func (s *Service) prepareStoreChange(ctx context.Context) error {
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
	leftover, err := s.store.Left(ctx)
	if err != nil {
		return err
	}
	known := map[queue.Lease]bool{}
	for i := range leftover.Leased {
		known[leftover.Leased[i].Lease()] = true
	}
	dirs, err := s.home.Find()
	if err != nil {
		return err
	}
	var unknown []string // numbers of the runners' jobs that this store does not know
	var idle []string
	for _, dir := range dirs {
		list, alive, err := runner.Kept(dir)
		if err != nil {
			return err
		}
		if alive && len(list) == 0 {
			idle = append(idle, dir)
		}
		for _, l := range list {
			if !known[queue.Lease{Seq: l.Seq, Fence: l.Fence}] {
				unknown = append(unknown, fmt.Sprint(l.Seq))
			}
		}
	}
	if len(unknown) > 0 {
		return &ExitError{ExitConfig, fmt.Errorf("runners on this node still have jobs of the previous store (job numbers %s); use that store again until these jobs have ended, move the jobs with queuectl migrate, or end the jobs%s", queue.Clip(strings.Join(unknown, ", ")), s.endRunnersHint())}
	}
	for _, dir := range idle {
		if err := s.home.End(dir); err != nil {
			return fmt.Errorf("cannot end an idle runner that belongs to the previous store: %w", err)
		}
	}
	return s.setStoreFile(now)
}

func (s *Service) setStoreFile(database string) error {
	if database != "" {
		database += "\n"
	}
	return replaceFile(filepath.Join(s.opt.Places.State, storeFile), []byte(database))
}

// keepOlderOutputs records that a new queue starts in a directory that contains output files of an earlier
// queue, such as one whose database was moved away. A queue is new if no job was ever enqueued in it, so it
// owns no output files.
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

// outputsSince returns when the current queue first used a state directory. It returns the zero time if the
// queue has always used the directory.
func outputsSince(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, storeFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// endOrphans ends the processes that dead runners have left. It is called when the service is about to
// start or has failed to start. The store may be unavailable for a long time, and other nodes will soon
// take over this node's leases. A dead runner cannot end its jobs.
func (b *startup) endOrphans() {
	if url, err := b.settings.config.Load().StoreURL(); err != nil || url == "" || b.settings.config.Load().OnPartition != "stop" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endOrphansTimeout)
	defer cancel()
	dirs, err := runner.Home{Dir: runnersDir(b.opt.Places)}.Find()
	for _, dir := range dirs {
		if alive, unknown := runner.Lives(dir); alive || unknown != nil {
			continue
		}
		if _, failed := runner.Recover(ctx, dir, nil, nil, nil); failed != nil {
			err = failed
		}
	}
	if err != nil {
		b.log.Warn("processes left behind by a dead runner may still be running", "error", err)
	}
}

// endOrphansTimeout bounds the duration of endOrphans.
const endOrphansTimeout = 5 * time.Second

// isStoreUnavailable reports whether an error means that the database server is unavailable.
func (l *nodeList) isStoreUnavailable(err error) bool {
	return l.cluster != nil && errors.Is(err, queue.ErrUnavailable)
}

// leaseMargin returns how long before the end of the node lease the runners end their jobs.
func leaseMargin(lease time.Duration) time.Duration { return lease / 6 }

func newLeaseKeeper(c store.Cluster, log *slog.Logger, pool *worker.Pool, d *drains, l *nodeList, settings *keeper) *leaseKeeper {
	return &leaseKeeper{cluster: c, log: log, pool: pool, drains: d, nodeList: l, settings: settings, workersChanged: make(chan struct{}, 1), orphans: make(chan struct{}, 1)}
}

// extendLease renews the node lease and extends the time for which the runners may run jobs.
func (k *leaseKeeper) extendLease(ctx context.Context) error {
	if k.cluster == nil {
		return nil
	}
	lease := k.cluster.Lease()
	sent := time.Now()
	timeoutCtx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	recordDrain := k.drains.beginDrainRead()
	m, err := k.cluster.Extend(timeoutCtx, k.nodeList.load())
	if err != nil {
		return err
	}
	if k.settings.config.Load().OnPartition == "stop" {
		k.pool.Prolong(sent.Add(lease - leaseMargin(lease)))
	} else {
		k.pool.Prolong(time.Time{})
	}
	recordDrain(m.Drained)
	if m.Orphans {
		select {
		case k.orphans <- struct{}{}:
		default: // a take-over is already requested
		}
	}
	return nil
}

// takeOverLostNodes takes over the jobs of lost nodes until ctx ends. It runs separately from keepLease, so
// that a take-over does not delay the renewal of the node lease.
func (k *leaseKeeper) takeOverLostNodes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.orphans:
			k.takeOver(ctx)
		}
	}
}

// takeOver takes over the jobs of nodes whose leases have expired.
func (k *leaseKeeper) takeOver(ctx context.Context) {
	for more := true; more; {
		list, err := k.cluster.TakeOver(ctx)
		if err != nil {
			if ctx.Err() == nil {
				k.log.Warn("cannot take over the jobs of a lost node yet; trying again", "error", err)
			}
			return
		}
		if len(list) > 0 {
			byNode := map[string]int{}
			for i := range list {
				byNode[list[i].From]++
			}
			for _, name := range slices.Sorted(maps.Keys(byNode)) {
				k.log.Warn("another node is gone; its running jobs are treated as lost (see the setting on_lost)", "node", name, "jobs", byNode[name])
			}
			k.pool.Lost(list)
		}
		more = len(list) == store.MaxTakeOver
	}
}

// leaseTrouble describes why a node cannot renew its lease.
type leaseTrouble struct {
	text  string
	lapse time.Time // when the node may start no more jobs
}

// keepLease renews the node lease periodically until ctx ends.
func (k *leaseKeeper) keepLease(ctx context.Context) {
	if k.cluster == nil {
		return
	}
	lease := k.cluster.Lease()
	failing, renewed := false, time.Now()
	defer k.leaseTrouble.Store(nil)
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-k.workersChanged: // the renewal also stores the number of workers
		}
		wait = lease / 3
		started := time.Now()
		err := k.extendLease(ctx)
		if err == nil {
			renewed = started
		}
		switch {
		case err == nil && failing:
			failing = false
			k.leaseTrouble.Store(nil)
			k.log.Info("this node's right to run jobs (node lease) is renewed again")
		case err != nil && ctx.Err() == nil:
			wait = lease / 10
			k.leaseTrouble.Store(&leaseTrouble{
				text:  fmt.Sprintf("this node cannot renew its right to run jobs (node lease): %v; check the database server", err),
				lapse: renewed.Add(lease - leaseMargin(lease)),
			})
			if !failing {
				failing = true
				k.log.Warn("cannot renew this node's right to run jobs (node lease); if the renewal does not succeed soon, the setting on_partition decides whether its running jobs end or continue", "error", err, "lease", lease.String(), "on_partition", k.settings.config.Load().OnPartition)
			}
		}
	}
}

// serveCluster answers requests of other nodes and applies shared settings that other nodes have changed,
// until ctx ends.
func (r *responder) serveCluster(ctx context.Context) {
	if r.cluster == nil {
		return
	}
	defer r.requestHandlers.Wait()
	changedAt, lastError := time.Time{}, ""
	for {
		wait := time.Hour
		if !changedAt.IsZero() {
			wait = time.Until(changedAt.Add(sharedReloadDelay))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cluster.Hints():
			r.answerRequests(ctx)
		case <-r.cluster.Changes():
			if changedAt.IsZero() {
				changedAt = time.Now()
			}
		case <-time.After(wait):
			changedAt = time.Time{}
			switch err := r.changes.reloadShared(ctx); {
			case err == nil:
				lastError = ""
			case ctx.Err() == nil:
				changedAt = time.Now()
				if lastError != err.Error() { // log each error only once, since it may last long
					lastError = err.Error()
					r.log.Warn("settings changed on another node are not applied on this node yet", "error", err)
				}
			}
		}
	}
}

// sharedReloadDelay is the delay between a change in the store and the check whether settings have changed.
// Because of the delay, one check covers several changes.
const sharedReloadDelay = 500 * time.Millisecond

// applyShared applies the settings and rules that are in the store now.
func (ch *changer) applyShared(ctx context.Context) error {
	return ch.lock.withSettingsLock(ctx, func() error {
		stored, err := ch.store.Settings(ctx)
		if err != nil {
			return err
		}
		var bound error
		if ch.reapplyShared || !slices.Equal(stored, ch.sharedSettings) {
			if err := ch.stored.setStored(stored); err != nil {
				return err
			}
			ch.sharedSettings = stored
			bound = ch.applyToStore(ctx)
			// If applyToStore failed, the next check calls it again.
			ch.reapplyShared = bound != nil && !errors.Is(bound, queue.ErrInvalid)
			ch.applyHere()
			ch.drains.applyDrain()
			if paused := ch.pauses.paused.Load() != nil; paused != ch.pool.Frozen() {
				ch.pool.PauseAll(paused)
			}
		}
		return errors.Join(bound, ch.queueRules.loadRules(ctx), ch.gateRules.loadGates(ctx))
	})
}
