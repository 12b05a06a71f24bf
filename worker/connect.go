package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// This file connects the service to its runners. While the service is trying to connect to a runner, the
// runner is a contact. A contact ends when the runner is connected, or when it is found dead and its jobs
// are recovered. Each contact has its own goroutine, so a runner that hangs delays only its own jobs.

// These constants are delays in connecting to runners and in replacing them. See docs/decisions/0076.
const (
	// adoptTimeout is how long a starting service waits until it has adopted the jobs of earlier services.
	// After that, it serves requests and claims jobs. It adopts the remaining jobs when their runners answer.
	adoptTimeout = time.Second
	// replaceRunnerAfter is how long the runner for new jobs may be unreachable before the pool starts another one.
	replaceRunnerAfter = 2 * time.Second
	contactRetryMin    = 10 * time.Millisecond
	contactRetryMax    = time.Second
	spawnRetryMin      = 100 * time.Millisecond
	spawnRetryMax      = 30 * time.Second
	// launcherRetryMax is the longest retry delay while no launcher is available. It can be short, because a
	// failed request to the launcher costs little.
	launcherRetryMax = time.Second
)

// runnerContact is a runner that the pool is trying to connect to.
type runnerContact struct {
	dir            string // directory of the runner
	origin         contactOrigin
	maxAssignedSeq int64     // highest job number assigned before the service started; 0 if the runner is newer
	tryingSince    time.Time // when the pool began to try to connect
	dead           bool      // the runner was found dead; guarded by the pool's mu
}

// contactOrigin says how the pool learned of a contact.
type contactOrigin uint8

const (
	contactLost contactOrigin = iota // the connection was lost, or a new runner was never connected
	// contactCurrent means that the connection to the runner for new jobs was lost. When this runner is
	// connected again, it gets new jobs again.
	contactCurrent
	contactFound // the runner's directory existed when the service started
	// contactUnknown means that the runner's directory existed when the service started, but the store has no
	// record of the runner. If such a runner is alive, it may be used. If it is dead, it had no jobs of this
	// queue.
	contactUnknown
)

// existedAtStart reports whether the runner's directory existed when the service started.
func (o contactOrigin) existedAtStart() bool { return o >= contactFound }

// unreachableDeadline returns the deadline that passes if the pool cannot connect to the runner within limit.
func (c *runnerContact) unreachableDeadline(limit time.Duration) deadline {
	return deadlineAfter(c.tryingSince, limit)
}

// contactResult is the outcome of a contact. Exactly one field is set.
type contactResult struct {
	client     *runner.Client // the runner is alive and connected
	deadRunner *deadRunner    // the runner was dead, and its files were read
	err        error          // the service cannot continue
}

// ErrStoreOlder means that a runner has a job with a number that the store has never assigned. So the store
// is older than the runner's jobs: it was probably restored from a backup. See docs/decisions/0035.
var ErrStoreOlder = errors.New("a running runner has jobs that were never enqueued in this queue")

// adoptLeases adds the jobs that earlier services have claimed to the pool, with their leases. It starts to
// connect to the runners that are alive, and to recover the dead ones. The pool keeps each lease until its
// runner is found.
func (l *loop) adoptLeases() error {
	found, err := l.cfg.RunnerLocation.ListDirs()
	if err != nil {
		return err
	}
	previous, err := l.store.PreviousSession(l.ctx)
	if err != nil {
		return err
	}
	maxAssignedSeq := previous.LastSeq
	if previous.IsCopy { // the store is a copy or was restored, so runners may have jobs with higher numbers
		maxAssignedSeq = math.MaxInt64
	}
	contacts := l.contactsFor(found, previous.RunnerDirs, maxAssignedSeq)
	uncertain := slices.DeleteFunc(previous.RunnerDirs, func(dir string) bool { return slices.Contains(found, dir) })
	l.recovery = recovery{storeMoved: previous.IsCopy, uncertainDirs: uncertain, dirMissing: len(uncertain) > 0}
	l.mu.Lock()
	for i := range previous.LeasedJobs {
		j := &previous.LeasedJobs[i]
		h := l.leases.addLocked(j, phaseSent)
		if j.State == queue.Processing {
			h.markStartedLocked()
			h.attempt = attemptInfo{j.WorkerID, j.PID, j.StartedAt}
		}
	}
	l.mu.Unlock()
	for _, c := range contacts {
		l.connectOrRecover(c)
	}
	if len(contacts) == 0 {
		l.searchStrayProcesses()
	}
	return nil
}

// maxUnknownRunners is the maximum number of runners in an account's directory that the service contacts
// although the store has no record of them. The service may ignore more of them: if an earlier service
// started a runner but did not record it, the runner has no jobs and ends itself.
const maxUnknownRunners = 16

// contactsFor returns the runners to which a starting service must connect. dirs lists the existing runner
// directories, and recordedDirs those that the store has recorded. maxAssignedSeq is the highest job number
// that the store has assigned. An account can create any files in the directory of its runners. So
// contactsFor accepts unrecorded runners of accounts only in the directory of the account that jobs run as
// now, and at most maxUnknownRunners of them.
func (p *Pool) contactsFor(dirs, recordedDirs []string, maxAssignedSeq int64) (contacts []*runnerContact) {
	unknown := 0
	for _, dir := range dirs {
		c := &runnerContact{dir: dir, origin: contactFound, maxAssignedSeq: maxAssignedSeq, tryingSince: time.Now()}
		if runner.HasSwitchedAccount(dir) && !slices.Contains(recordedDirs, dir) {
			c.origin = contactUnknown
			if unknown++; unknown > maxUnknownRunners || filepath.Dir(dir) != p.cfg.RunnerLocation.NewRunnersDir() {
				continue
			}
		}
		contacts = append(contacts, c)
	}
	return contacts
}

// connectOrRecover connects to a runner, or recovers it if it is dead, and passes the result to Run. It
// retries in the background until one of the two succeeds.
func (l *loop) connectOrRecover(c *runnerContact) {
	l.mu.Lock()
	l.runners.contacts[c.dir] = c
	l.mu.Unlock()
	l.Go(func() {
		logged := false
		for wait := contactRetryMin; ; wait = min(2*wait, contactRetryMax) {
			f, err := l.tryContact(l.ctx, c)
			if err == nil {
				l.post(func() error { return l.finishContact(c, f) })
				return
			}
			if !logged && c.unreachableDeadline(replaceRunnerAfter).passed(time.Now()) && l.ctx.Err() == nil {
				logged = true
				l.cfg.Log.Error("the service cannot find out which jobs of a runner have ended, so these jobs stay in state "+
					"processing; trying again; see: queuectl doctor", "dir", c.dir, "error", err)
			}
			l.wake() // makes Run check whether another runner is needed now
			if !sleepOrDone(l.ctx, wait) {
				return
			}
		}
	})
}

// tryContact tries once to connect to a runner or to recover it. If it returns an error, the caller
// retries.
func (p *Pool) tryContact(ctx context.Context, c *runnerContact) (result contactResult, err error) {
	alive, err := runner.IsAlive(c.dir)
	if err != nil {
		return result, err
	}
	if !alive {
		result.deadRunner, err = p.recoverRunner(ctx, c)
		return result, err
	}
	// Use a new epoch (see nextEpoch) for each try, because the runner accepts only a higher epoch than
	// before. It may have accepted the epoch of the last try, although its answer came too late.
	epoch, err := p.nextEpoch(ctx)
	if err != nil {
		return result, err
	}
	client, err := runner.Connect(c.dir, epoch, p.cfg.Version)
	switch {
	// The runner refuses the connection, because it has already worked with a newer database. This ends the
	// service. A runner that has switched to another account cannot end it, because such a runner may send
	// any answer.
	case errors.Is(err, runner.ErrNewerDatabase) && !runner.HasSwitchedAccount(c.dir):
		return contactResult{err: fmt.Errorf("%w (the runner in %s)", err, c.dir)}, nil
	case err != nil:
		return result, err
	}
	if newestSeq := client.NewestJobSeq(); c.origin.existedAtStart() && newestSeq > c.maxAssignedSeq &&
		!runner.HasSwitchedAccount(c.dir) {
		client.Close()
		err := fmt.Errorf("%w (the runner in %s; its newest job is job %d, but the newest job of this queue is job %d)",
			ErrStoreOlder, c.dir, newestSeq, c.maxAssignedSeq)
		return contactResult{err: err}, nil
	}
	return contactResult{client: client}, nil
}

// nextEpoch returns a new epoch: a number with which the service connects to a runner. The store keeps the
// last epoch, and each call raises it by one. Runners obey only the service with the highest epoch, so they
// ignore earlier services. After a temporary error nextEpoch tries again until ctx ends.
func (p *Pool) nextEpoch(ctx context.Context) (int64, error) {
	for wait := storeRetryMin; ; wait = min(2*wait, storeRetryMax) {
		epoch, err := p.store.NextEpoch(ctx)
		if !isTemporary(err) {
			return epoch, err
		}
		p.cfg.Log.Warn("could not write to the store; trying again", "error", err, "in_ms", wait.Milliseconds())
		if !sleepOrDone(ctx, wait) {
			return 0, ctx.Err()
		}
	}
}

// finishContact handles the result of an attempt to connect to a runner or to recover it. It runs in Run's
// goroutine.
func (l *loop) finishContact(c *runnerContact, result contactResult) error {
	if result.err != nil {
		return result.err
	}
	l.mu.Lock()
	delete(l.runners.contacts, c.dir)
	lastFoundAtStart := c.origin.existedAtStart() && !l.runners.hasUnadoptedLocked()
	state := connOther
	if c.origin == contactCurrent || result.client != nil && l.runners.canTakeNewJobs(result.client) {
		state = connCurrent
	}
	l.mu.Unlock()
	if result.client != nil {
		l.adopt(result.client, state)
		// The runner is alive, but does not have some of the jobs that were sent to it, because they never
		// arrived. Settle the leases of these jobs like those of a dead runner.
		l.settleDeadRunner(&deadRunner{dir: c.dir, RecoveryResult: runner.RecoveryResult{SameBoot: true}})
	} else {
		l.finishRecovery(result.deadRunner)
	}
	if lastFoundAtStart {
		l.searchStrayProcesses()
	}
	return nil
}

// adopt assigns leases to the connection of a runner that has just connected. These are the leases of the
// attempts that run there and of those whose results the runner still keeps.
func (l *loop) adopt(c *runner.Client, state connState) *runnerConn {
	conn := newRunnerConn(c, state)
	l.mu.Lock()
	for _, a := range c.HelloReply.Attempts {
		h := l.leases.byLease[queue.Lease(a.Lease)]
		switch {
		case h == nil: // the lease has ended, so this attempt must not run
			l.cfg.Log.Warn("a runner still has a job that the queue does not list as running, so the service ends the "+
				"job's process there", "runner", c.HelloReply.PID, "job", a.Seq, "pid", a.PID)
			conn.Send(&wire.Drop{Lease: a.Lease},
				&wire.EndAttempt{Lease: a.Lease, Cause: int64(queue.EndStopped), Grace: runner.StopGrace()})
			continue
		case h.conn != nil || h.phase.neverSent():
			continue // another runner has the lease, or no runner has ever received it
		}
		h.assignToLocked(conn)
		if a.PID != 0 {
			l.recordStartLocked(h, a)
		}
		l.resendRequestsLocked(h)
		l.resendPauseLocked(h)
	}
	for _, lease := range c.HelloReply.EndedLeases {
		if h := l.leases.byLease[queue.Lease(lease)]; h != nil && h.conn == nil && !h.phase.neverSent() {
			h.assignToLocked(conn)
			h.markStartedLocked()
		}
	}
	l.runners.addLocked(conn)
	l.recallForDrainLocked()
	l.sendLeaseDeadlineLocked(conn)
	l.mu.Unlock()
	l.receiveFrames(conn)
	l.sendSetup()
	l.cfg.Log.Debug("runner met", "pid", c.HelloReply.PID, "running", len(c.HelloReply.Attempts), "ended",
		len(c.HelloReply.EndedLeases))
	return conn
}

// resendRequestsLocked sends requests about a lease, such as the request to end the attempt, to the runner
// again. The runner may not have received them over an earlier connection.
func (l *loop) resendRequestsLocked(h *lease) {
	if l.leases.watcherCounts[h.job.Seq] > 0 {
		h.conn.Send(&wire.ReportImmediately{Lease: h.wireLease()})
	}
	switch {
	case h.endRequest != nil && h.hasStarted():
		h.conn.Send(&wire.EndAttempt{Lease: h.wireLease(), Cause: int64(h.endRequest.cause), Grace: h.endRequest.grace})
	case h.endRequest != nil, len(h.pendingChanges) > 0:
		l.sendDropLocked(h)
	}
}

// recordStartLocked notes in the lease that the attempt runs, and adds the start to the pending report for
// the store.
func (l *loop) recordStartLocked(h *lease, a wire.Attempt) {
	hadStarted := h.hasStarted()
	if !h.markStartedLocked() {
		return
	}
	h.attempt = attemptInfo{runner.WorkerName(h.conn.Dir, a.Slot), int(a.PID), queue.Millis(a.StartedAtMillis)}
	if !hadStarted {
		if l.draining {
			l.leases.notifyChangeLocked()
		}
		l.session.pendingReport.Starts = append(l.session.pendingReport.Starts, store.AttemptStart{
			Lease: queue.Lease(a.Lease), StartedAt: h.attempt.startedAt, Worker: h.attempt.workerID, PID: h.attempt.pid,
		})
	}
}

// receiveFrames passes the frames of a runner to Run until the connection ends. It then reports the end to
// Run.
func (l *loop) receiveFrames(conn *runnerConn) {
	deliver := func(d delivery) {
		select {
		case l.inbox <- d:
		case <-l.ctx.Done():
		}
	}
	l.Go(func() {
		err := conn.Run(l.ctx, func(frames []wire.Frame) { deliver(delivery{conn, frames}) })
		close(conn.closed)
		l.mu.Lock()
		endExpected := l.stopping || conn.dismissed
		l.mu.Unlock()
		if l.ctx.Err() == nil && !endExpected {
			l.cfg.Log.Warn("lost the connection to a runner; its jobs continue while the service connects again, unless the "+
				"runner has died", "runner", conn.HelloReply.PID, "error", err)
			l.Go(func() { l.endOrphanProcesses(l.ctx, conn.Dir) })
		}
		deliver(delivery{conn: conn})
	})
}

// connectionEnded handles the end of a runner's connection. The pool reconnects to the runner, or
// recovers it if it has died.
func (l *loop) connectionEnded(conn *runnerConn) {
	l.mu.Lock()
	l.runners.removeLocked(conn)
	delete(l.session.pendingAcks, conn)
	hasOpenLease := false
	for _, h := range l.leases.byLease {
		if h.conn == conn {
			h.conn, h.lastMessageAt, hasOpenLease = nil, conn.lastMessageAt, hasOpenLease || !h.phase.isEndDecided()
			h.advanceLocked(eventDisconnected)
		}
	}
	origin := contactLost
	if conn.state == connCurrent {
		origin = contactCurrent
	}
	finished := conn.dismissed && !hasOpenLease // the runner ended because the pool sent it a Shutdown
	l.mu.Unlock()
	if finished {
		// The next exchange with the store records the runner's results. Remove the directory only after
		// that.
		l.session.afterExchange = append(l.session.afterExchange, func() { l.removeDismissedDir(l.ctx, conn.Dir) })
	} else {
		l.connectOrRecover(&runnerContact{dir: conn.Dir, origin: origin, tryingSince: time.Now()})
	}
}

// removeDismissedDir removes the directory of a dismissed runner (one that got a Shutdown) if the runner was
// killed before it could do this itself. Call it only after the runner's results are stored.
func (p *Pool) removeDismissedDir(ctx context.Context, dir string) {
	// Remove the directory only after two checks have found the runner dead. At the time of the first check,
	// the runner may still be removing the directory.
	foundDead := 0
	for wait := contactRetryMin; wait <= contactRetryMax && sleepOrDone(ctx, wait); wait *= 2 {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if alive, err := runner.IsAlive(dir); alive || err != nil {
			continue
		}
		recoverer, err := p.recovererFor(filepath.Dir(dir))
		if foundDead++; foundDead < 2 || err != nil {
			continue
		}
		switch {
		case recoverer != nil:
			runner.RemoveDeadRunner(dir, recoverer.Client)
		case !p.cfg.RunnerLocation.IsExternal():
			runner.RemoveDeadRunner(dir, nil) // if this fails, the next service tries again at its start
		}
		return
	}
}

// ensureRunner starts a runner for new jobs if no such runner exists and none is expected soon.
func (l *loop) ensureRunner() {
	l.mu.Lock()
	needed := !l.stopping && l.runners.lacksCurrentLocked()
	l.runners.spawning = l.runners.spawning || needed
	l.mu.Unlock()
	if !needed {
		return
	}
	l.spawn(forNewJobs, func(*runnerConn, error) { l.runners.spawning, l.runners.spawnErr = false, nil })
}

// runnerPurpose says which jobs a runner is started for.
type runnerPurpose uint8

const (
	forNewJobs runnerPurpose = iota // all new jobs
	forSuspect                      // one job that may have killed its last runner (a suspect; see isolation.go)
	forUser                         // the jobs of one user
)

// spawn starts a runner in the background. If the runner is for new jobs, spawn retries until one has
// started. For other purposes, it tries once. Then Run's goroutine adopts the runner, and calls onSpawned
// with the connection or the error, while it holds mu.
func (l *loop) spawn(purpose runnerPurpose, onSpawned func(*runnerConn, error)) {
	l.Go(func() {
		logged := ""
		for wait := spawnRetryMin; ; wait = min(2*wait, spawnRetryMax) {
			client, dir, err := l.trySpawn(l.ctx, purpose == forSuspect)
			if err != nil && dir != "" { // a runner was started, but it has died or hangs
				c := &runnerContact{dir: dir, tryingSince: time.Now()}
				l.post(func() error { l.connectOrRecover(c); return nil })
			}
			if err == nil || purpose != forNewJobs {
				l.post(func() error { l.adoptSpawned(client, purpose, onSpawned, err); return nil })
				return
			}
			l.mu.Lock()
			l.runners.spawnErr = err
			stopping := l.stopping
			l.mu.Unlock()
			if l.ctx.Err() != nil || stopping {
				return
			}
			if launcher := new(runner.LauncherError); errors.As(err, &launcher) {
				wait = min(wait, launcherRetryMax)
			}
			if err.Error() != logged {
				l.cfg.Log.Error("could not start a runner for jobs; new jobs may have to wait, and the service tries again",
					"error", err, "in_ms", wait.Milliseconds())
			}
			logged = err.Error()
			l.wake()
			if !sleepOrDone(l.ctx, wait) {
				return
			}
		}
	})
}

// adoptSpawned adds a runner that spawn has started to the pool, and passes the connection or err to
// onSpawned.
func (l *loop) adoptSpawned(client *runner.Client, purpose runnerPurpose,
	onSpawned func(*runnerConn, error), err error) {
	var conn *runnerConn
	if err == nil {
		state := connOther
		if purpose == forNewJobs {
			state = connCurrent
		}
		conn = l.adopt(client, state)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	onSpawned(conn, err)
}

// trySpawn starts a runner and connects to it. If isolated is set, the runner is for a single job that may
// have killed its last runner. dir is the runner's directory, or "" if no runner was started. After an error,
// dir may be set without a client.
func (p *Pool) trySpawn(ctx context.Context, isolated bool) (client *runner.Client, dir string, err error) {
	epoch, err := p.nextEpoch(ctx)
	if err != nil {
		return nil, "", err
	}
	if dir, err = p.cfg.RunnerLocation.Spawn(isolated); err != nil {
		return nil, "", err
	}
	client, err = runner.Connect(dir, epoch, p.cfg.Version)
	return client, dir, err
}
