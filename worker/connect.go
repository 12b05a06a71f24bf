package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// This file connects the service to its runners. A runner to which the service is trying to connect is called a
// contact. It is a contact until it is connected, or until it is found dead and its jobs are recovered. Each contact
// has its own goroutine, so a runner that hangs delays only its own jobs.

// These constants are delays in connecting to runners and in replacing them. See docs/decisions/0076.
const (
	// jobAdoptionTimeout is how long a starting service waits until it has adopted the jobs of earlier services. After
	// that, the service serves requests and claims jobs. It adopts the remaining jobs when their runners answer.
	jobAdoptionTimeout = time.Second
	// unreachableRunnerTimeout is how long the runner for new jobs may be unreachable before the pool starts another one.
	unreachableRunnerTimeout = 2 * time.Second
	minContactRetryDelay     = 10 * time.Millisecond
	maxContactRetryDelay     = time.Second
	minSpawnRetryDelay       = 100 * time.Millisecond
	maxSpawnRetryDelay       = 30 * time.Second
	// maxLauncherRetryDelay is the longest retry delay while no launcher is available. The delay can be short, because a
	// failed request to the launcher costs little.
	maxLauncherRetryDelay = time.Second
)

// runnerContact is a runner that the pool is trying to connect to.
type runnerContact struct {
	runnerDir         string // directory of the runner
	origin            contactOrigin
	maxAssignedJobSeq int64     // highest job number assigned before the service started; 0 if the runner is newer
	tryingSince       time.Time // when the pool began to try to connect
	wasFoundDead      bool      // the runner was found dead; guarded by the pool's mu
}

// contactOrigin says how the pool learned of a contact (a runner to which it is trying to connect).
type contactOrigin uint8

const (
	contactLostConnection contactOrigin = iota // the connection was lost, or a new runner was never connected
	// contactLostCurrentRunner means that the connection to the runner for new jobs was lost. When this runner is
	// connected again, it gets new jobs again.
	contactLostCurrentRunner
	contactFoundAtStart // the runner's directory existed when the service started
	// contactFoundUnrecorded means that the runner's directory existed when the service started, but the store has no
	// record of the runner. If such a runner is alive, it may be used. If it is dead, it had no jobs of this
	// queue.
	contactFoundUnrecorded
)

// existedAtStart reports whether this origin means that the runner's directory existed when the service started.
func (o contactOrigin) existedAtStart() bool { return o >= contactFoundAtStart }

// unreachableDeadline returns the deadline that passes if the pool cannot connect to the runner within limit.
func (c *runnerContact) unreachableDeadline(limit time.Duration) deadline {
	return deadlineAfter(c.tryingSince, limit)
}

// contactResult is the outcome of the tries to connect to a runner. Exactly one field is set.
type contactResult struct {
	client     *runner.Client // the runner is alive and connected
	deadRunner *deadRunner    // the runner was dead, and its files were read
	err        error          // the service cannot continue
}

// ErrStoreOlderThanRunner means that a runner has a job with a number that the store has never assigned. So the store
// is older than the runner's jobs: it was probably restored from a backup. See docs/decisions/0035.
var ErrStoreOlderThanRunner = errors.New("a running runner has jobs that were never enqueued in this queue")

// adoptLeases adds the jobs that earlier services have claimed to the pool, with their leases. It starts to
// connect to the runners that are alive, and to recover the dead ones. The pool keeps each lease until its
// runner is found.
func (l *poolLoop) adoptLeases() error {
	found, err := l.cfg.RunnerLocation.ListRunnerDirs()
	if err != nil {
		return err
	}
	previous, err := l.store.PreviousSession(l.ctx)
	if err != nil {
		return err
	}
	maxAssignedSeq := previous.HighestJobSeq
	if previous.IsDatabaseCopy { // the store is a copy or was restored, so runners may have jobs with higher numbers
		maxAssignedSeq = math.MaxInt64
	}
	contacts := l.startupContacts(found, previous.RunnerDirs, maxAssignedSeq)
	uncertain := slices.DeleteFunc(previous.RunnerDirs, func(dir string) bool { return slices.Contains(found, dir) })
	l.recovery = recoveryState{storeCopiedOrRestored: previous.IsDatabaseCopy, uncertainRunnerDirs: uncertain,
		isRecordedDirMissing: len(uncertain) > 0}
	l.mu.Lock()
	for i := range previous.LeasedJobs {
		j := &previous.LeasedJobs[i]
		h := l.leases.addLeaseLocked(j, phaseSent)
		if j.State == queue.Processing {
			h.markStartedLocked()
			h.attempt = startedAttempt{j.WorkerID, j.PID, j.StartedAt}
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

// maxUnrecordedRunners is the maximum number of runners in an account's directory that the service contacts although
// the store has no record of them. The service ignores further ones. This loses no jobs: if an earlier service started
// a runner but did not record it, the runner has no jobs and ends itself.
const maxUnrecordedRunners = 16

// startupContacts returns the runners to which a starting service must connect. runnerDirs lists the existing runner
// directories, and recordedDirs those that the store has recorded. maxAssignedJobSeq is the highest job number that the
// store has assigned. An account can create any files in the directory of its runners. So startupContacts accepts
// unrecorded runners of accounts only in the directory of the account that jobs run as now, and at most
// maxUnrecordedRunners of them.
func (p *Pool) startupContacts(runnerDirs, recordedDirs []string, maxAssignedJobSeq int64) (contacts []*runnerContact) {
	unknown := 0
	for _, dir := range runnerDirs {
		c := &runnerContact{runnerDir: dir, origin: contactFoundAtStart, maxAssignedJobSeq: maxAssignedJobSeq,
			tryingSince: time.Now()}
		if runner.RunnerHasSwitchedAccount(dir) && !slices.Contains(recordedDirs, dir) {
			c.origin = contactFoundUnrecorded
			if unknown++; unknown > maxUnrecordedRunners || filepath.Dir(dir) != p.cfg.RunnerLocation.DirForNewRunners() {
				continue
			}
		}
		contacts = append(contacts, c)
	}
	return contacts
}

// connectOrRecover connects to a runner, or, if the runner is dead, recovers its jobs, and passes the result to Run. It
// retries in the background until one of the two succeeds.
func (l *poolLoop) connectOrRecover(c *runnerContact) {
	l.mu.Lock()
	l.runners.contactsByDir[c.runnerDir] = c
	l.mu.Unlock()
	l.Go(func() {
		logged := false
		for wait := minContactRetryDelay; ; wait = min(2*wait, maxContactRetryDelay) {
			f, err := l.tryContact(l.ctx, c)
			if err == nil {
				l.runInLoop(func() error { return l.handleContactResult(c, f) })
				return
			}
			if !logged && c.unreachableDeadline(unreachableRunnerTimeout).hasPassed(time.Now()) && l.ctx.Err() == nil {
				logged = true
				l.cfg.Log.Error("the service cannot find out which jobs of a runner have ended, so these jobs stay in state "+
					"processing; trying again; see: queuectl doctor", "dir", c.runnerDir, "error", err)
			}
			l.wakeLoop() // makes Run check whether another runner is needed now
			if !sleepUnlessDone(l.ctx, wait) {
				return
			}
		}
	})
}

// tryContact tries once to connect to a runner or to recover the jobs of a dead one. If it returns an error, the caller
// retries.
func (p *Pool) tryContact(ctx context.Context, c *runnerContact) (result contactResult, err error) {
	alive, err := runner.IsAlive(c.runnerDir)
	if err != nil {
		return result, err
	}
	if !alive {
		result.deadRunner, err = p.recoverDeadRunner(ctx, c)
		return result, err
	}
	// Use a new epoch (see nextEpoch) for each try, because the runner accepts only a higher epoch than the last one. The
	// runner may have accepted the epoch of the last try, although its answer came too late.
	epoch, err := p.nextEpoch(ctx)
	if err != nil {
		return result, err
	}
	client, err := runner.Connect(c.runnerDir, epoch, p.cfg.ServiceVersion)
	switch {
	// The runner refuses the connection, because it has already worked with a newer database. This error ends the service.
	// A runner that has switched to another account cannot end the service in this way, because such a runner may send any
	// answer.
	case errors.Is(err, runner.ErrRunnerSawNewerDatabase) && !runner.RunnerHasSwitchedAccount(c.runnerDir):
		return contactResult{err: fmt.Errorf("%w (the runner in %s)", err, c.runnerDir)}, nil
	case err != nil:
		return result, err
	}
	if newestSeq := client.NewestJobSeq(); c.origin.existedAtStart() && newestSeq > c.maxAssignedJobSeq &&
		!runner.RunnerHasSwitchedAccount(c.runnerDir) {
		client.Close()
		err := fmt.Errorf("%w (the runner in %s; its newest job is job %d, but the newest job of this queue is job %d)",
			ErrStoreOlderThanRunner, c.runnerDir, newestSeq, c.maxAssignedJobSeq)
		return contactResult{err: err}, nil
	}
	return contactResult{client: client}, nil
}

// nextEpoch returns a new epoch: a number with which the service connects to a runner. The store keeps the last epoch,
// and each call raises it by one. A runner obeys only the service with the highest epoch, so it ignores earlier
// services. After a temporary error, nextEpoch tries again until ctx ends.
func (p *Pool) nextEpoch(ctx context.Context) (int64, error) {
	for wait := minStoreRetryDelay; ; wait = min(2*wait, maxStoreRetryDelay) {
		epoch, err := p.store.AdvanceEpoch(ctx)
		if !isTemporaryStoreError(err) {
			return epoch, err
		}
		p.cfg.Log.Warn("could not write to the store; trying again", "error", err, "in_ms", wait.Milliseconds())
		if !sleepUnlessDone(ctx, wait) {
			return 0, ctx.Err()
		}
	}
}

// handleContactResult handles the result of the tries to connect to a runner: the runner is connected, or its jobs were
// recovered. It runs in Run's goroutine.
func (l *poolLoop) handleContactResult(c *runnerContact, result contactResult) error {
	if result.err != nil {
		return result.err
	}
	l.mu.Lock()
	delete(l.runners.contactsByDir, c.runnerDir)
	lastFoundAtStart := c.origin.existedAtStart() && !l.runners.hasUnadoptedRunnerLocked()
	state := connRestricted
	if c.origin == contactLostCurrentRunner || result.client != nil && l.runners.canTakeNewJobs(result.client) {
		state = connCurrent
	}
	l.mu.Unlock()
	if result.client != nil {
		l.adoptRunner(result.client, state)
		// The runner is alive, but some of the jobs that were sent to it never arrived. Settle the leases of these jobs like
		// those of a dead runner.
		l.settleDeadRunner(&deadRunner{runnerDir: c.runnerDir,
			RecoveryResult: runner.RecoveryResult{RunnerStartedThisBoot: true}})
	} else {
		l.finishRecovery(result.deadRunner)
	}
	if lastFoundAtStart {
		l.searchStrayProcesses()
	}
	return nil
}

// adoptRunner assigns leases to the connection of a runner that has just connected: the leases of attempts that the
// runner has not ended, and those of attempts whose results the runner still keeps.
func (l *poolLoop) adoptRunner(c *runner.Client, state connState) *runnerConn {
	conn := newRunnerConn(c, state)
	l.mu.Lock()
	for _, a := range c.HelloReply.UnendedAttempts {
		h := l.leases.byID[queue.Lease(a.Lease)]
		switch {
		case h == nil: // the lease has ended, so this attempt must not run
			l.cfg.Log.Warn("a runner still has a job that the queue does not list as running, so the service ends the "+
				"job's process there", "runner", c.HelloReply.RunnerPID, "job", a.Seq, "pid", a.PID)
			conn.Send(&wire.DropStart{Lease: a.Lease},
				&wire.EndAttempt{Lease: a.Lease, EndCause: int64(queue.EndStopped), GracePeriod: runner.StopGracePeriod()})
			continue
		case h.runnerConn != nil || h.phase.wasNeverSent():
			continue // another runner has the lease, or no runner has ever received it
		}
		h.assignToRunnerLocked(conn)
		if a.PID != 0 {
			l.recordAttemptStartLocked(h, a)
		}
		l.resendLeaseRequestsLocked(h)
	}
	for _, lease := range c.HelloReply.UnacknowledgedLeases {
		if h := l.leases.byID[queue.Lease(lease)]; h != nil && h.runnerConn == nil && !h.phase.wasNeverSent() {
			h.assignToRunnerLocked(conn)
			h.markStartedLocked()
		}
	}
	l.runners.addConnLocked(conn)
	l.recallAllJobsForDrainLocked()
	l.sendLeaseDeadlineLocked(conn)
	l.mu.Unlock()
	l.receiveFrames(conn)
	l.sendChangedRunnerSetup()
	l.cfg.Log.Debug("runner met", "pid", c.HelloReply.RunnerPID, "running", len(c.HelloReply.UnendedAttempts), "ended",
		len(c.HelloReply.UnacknowledgedLeases))
	return conn
}

// resendLeaseRequestsLocked sends requests about a lease, such as the request to end or to pause the attempt, to the
// runner again. The runner may not have received them over an earlier connection.
func (l *poolLoop) resendLeaseRequestsLocked(h *lease) {
	if l.leases.endWatcherCountsByJobSeq[h.job.Seq] > 0 {
		h.runnerConn.Send(&wire.ReportAttemptImmediately{Lease: h.wireLease()})
	}
	switch {
	case h.endRequest != nil && h.hasStarted():
		h.runnerConn.Send(&wire.EndAttempt{Lease: h.wireLease(), EndCause: int64(h.endRequest.cause),
			GracePeriod: h.endRequest.killGrace})
	case h.endRequest != nil, len(h.pendingChanges) > 0:
		l.sendDropStartLocked(h)
	}
	if h.endRequest == nil {
		h.runnerConn.Send(&wire.PauseAttempt{Lease: h.wireLease(), Paused: l.isJobPausedLocked(h)})
	}
}

// recordAttemptStartLocked notes in the lease that the attempt runs, and adds the start to the pending report for
// the store.
func (l *poolLoop) recordAttemptStartLocked(h *lease, a wire.Attempt) {
	hadStarted := h.hasStarted()
	if !h.markStartedLocked() {
		return
	}
	h.attempt = startedAttempt{runner.WorkerName(h.runnerConn.RunnerDir, a.TableSlot), int(a.PID),
		queue.UnixMillis(a.StartedAtMillis)}
	if !hadStarted {
		if l.draining {
			l.leases.notifyChangeLocked()
		}
		report := &l.storeSession.pendingReport
		report.AttemptStarts = append(report.AttemptStarts, store.AttemptStart{
			Lease: queue.Lease(a.Lease), StartedAt: h.attempt.startedAt, WorkerID: h.attempt.workerID, PID: h.attempt.pid,
		})
	}
}

// receiveFrames passes the frames of a runner to Run until the connection ends. It then reports the end of the
// connection to Run.
func (l *poolLoop) receiveFrames(conn *runnerConn) {
	l.Go(func() {
		err := conn.ReceiveFrames(l.ctx, func(frames []wire.Frame) {
			l.runInLoop(func() error { l.handleFrames(conn, frames); return nil })
		})
		close(conn.closedSignal)
		l.mu.Lock()
		endExpected := l.stopRequested || conn.shutdownSent
		l.mu.Unlock()
		if l.ctx.Err() == nil && !endExpected {
			l.cfg.Log.Warn("lost the connection to a runner; its jobs continue while the service connects again, unless the "+
				"runner has died", "runner", conn.HelloReply.RunnerPID, "error", err)
			l.Go(func() { l.endOrphanProcesses(l.ctx, conn.RunnerDir) })
		}
		l.runInLoop(func() error { l.handleConnectionEnd(conn); return nil })
	})
}

// handleConnectionEnd handles the end of a runner's connection. The pool reconnects to the runner, or
// recovers it if it has died.
func (l *poolLoop) handleConnectionEnd(conn *runnerConn) {
	l.mu.Lock()
	l.runners.removeConnLocked(conn)
	delete(l.storeSession.pendingAcks, conn)
	hasOpenLease := false
	for _, h := range l.leases.byID {
		if h.runnerConn == conn {
			h.runnerConn, h.lastMessageAt, hasOpenLease = nil, conn.lastMessageAt, hasOpenLease || !h.phase.isEndDecided()
			h.advancePhaseLocked(eventDisconnected)
		}
	}
	origin := contactLostConnection
	if conn.state == connCurrent {
		origin = contactLostCurrentRunner
	}
	finished := conn.shutdownSent && !hasOpenLease // the runner ended because of the pool's Shutdown frame
	l.mu.Unlock()
	if finished {
		// The next call of ReportAndClaim records the runner's results in the store. Remove the runner's directory only after
		// that.
		l.storeSession.afterReportFuncs = append(l.storeSession.afterReportFuncs,
			func() { l.removeDismissedRunnerDir(l.ctx, conn.RunnerDir) })
	} else {
		l.connectOrRecover(&runnerContact{runnerDir: conn.RunnerDir, origin: origin, tryingSince: time.Now()})
	}
}

// ensureRunnerForNewJobs starts a runner for new jobs if no such runner exists and none is expected soon.
func (l *poolLoop) ensureRunnerForNewJobs() {
	l.mu.Lock()
	needed := !l.stopRequested && l.runners.needsCurrentRunnerLocked()
	l.runners.isSpawningCurrentRunner = l.runners.isSpawningCurrentRunner || needed
	l.mu.Unlock()
	if !needed {
		return
	}
	l.spawnRunner(runnerForNewJobs, func(*runnerConn, error) {
		l.runners.isSpawningCurrentRunner, l.runners.lastSpawnErr = false, nil
	})
}

// runnerPurpose says which jobs a runner is started for.
type runnerPurpose uint8

const (
	runnerForNewJobs runnerPurpose = iota // all new jobs
	// one job that may have killed its last runner (a suspect; see isolation.go)
	runnerForSuspectJob
	runnerForIsolatedUser // the jobs of one user
)

// spawnRunner starts a runner in the background. If the runner is for new jobs, spawnRunner retries until a runner has
// started. For other purposes, it tries once. Then Run's goroutine adopts the runner, and calls onSpawned with the
// connection or the error, while it holds the pool's mu.
func (l *poolLoop) spawnRunner(purpose runnerPurpose, onSpawned func(*runnerConn, error)) {
	l.Go(func() {
		logged := ""
		for wait := minSpawnRetryDelay; ; wait = min(2*wait, maxSpawnRetryDelay) {
			client, dir, err := l.trySpawnRunner(l.ctx, purpose == runnerForSuspectJob)
			if err != nil && dir != "" { // a runner was started, but it has died or hangs
				c := &runnerContact{runnerDir: dir, tryingSince: time.Now()}
				l.runInLoop(func() error { l.connectOrRecover(c); return nil })
			}
			if err == nil || purpose != runnerForNewJobs {
				l.runInLoop(func() error { l.adoptSpawnedRunner(client, purpose, onSpawned, err); return nil })
				return
			}
			l.mu.Lock()
			l.runners.lastSpawnErr = err
			stopping := l.stopRequested
			l.mu.Unlock()
			if l.ctx.Err() != nil || stopping {
				return
			}
			if launcher := new(runner.LauncherError); errors.As(err, &launcher) {
				wait = min(wait, maxLauncherRetryDelay)
			}
			if err.Error() != logged {
				l.cfg.Log.Error("could not start a runner for jobs; new jobs may have to wait, and the service tries again",
					"error", err, "in_ms", wait.Milliseconds())
			}
			logged = err.Error()
			l.wakeLoop()
			if !sleepUnlessDone(l.ctx, wait) {
				return
			}
		}
	})
}

// adoptSpawnedRunner adds a runner that spawnRunner has started to the pool, and passes the connection or err to
// onSpawned.
func (l *poolLoop) adoptSpawnedRunner(client *runner.Client, purpose runnerPurpose,
	onSpawned func(*runnerConn, error), err error) {
	var conn *runnerConn
	if err == nil {
		state := connRestricted
		if purpose == runnerForNewJobs {
			state = connCurrent
		}
		conn = l.adoptRunner(client, state)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	onSpawned(conn, err)
}

// trySpawnRunner starts a runner and connects to it. If forSuspectJob is true, the runner is for a single job that may
// have killed its last runner. runnerDir is the runner's directory, or "" if no runner was started. If the runner was
// started but cannot be reached, runnerDir is returned together with an error.
func (p *Pool) trySpawnRunner(ctx context.Context, forSuspectJob bool) (client *runner.Client, runnerDir string,
	err error) {
	epoch, err := p.nextEpoch(ctx)
	if err != nil {
		return nil, "", err
	}
	if runnerDir, err = p.cfg.RunnerLocation.SpawnRunner(forSuspectJob); err != nil {
		return nil, "", err
	}
	client, err = runner.Connect(runnerDir, epoch, p.cfg.ServiceVersion)
	return client, runnerDir, err
}
