package worker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// When a runner has died, the functions in this file decide and record how the leases of its jobs ended, in three
// steps:
//
//   - recoverDeadRunner ends the processes that a dead runner left behind, and reads its files.
//   - settleDeadRunner decides how each lease of the runner ended, and adds these decisions to the pending
//     report.
//   - finishRecovery removes the runner's directory when the report is stored.

// deadRunner describes a dead runner and what it left behind. If runnerDir is "", it represents all runners whose
// directories are gone. See docs/decisions/0056.
type deadRunner struct {
	runner.RecoveryResult
	runnerDir   string
	recoveredBy *runner.Client // living runner that ended the processes; nil if this process did
	mustKeepDir bool           // keep the directory, because no runner has the rights to remove it
}

// recoveryState contains what the pool knows about leases whose runners were not found. Only Run's goroutine uses
// it.
type recoveryState struct {
	isSearchingStrayProcesses bool     // searchStrayProcesses is in progress
	rebootDetected            bool     // a dead runner was found that was started before the last boot
	storeCopiedOrRestored     bool     // the store is a copy or was restored
	uncertainRunnerDirs       []string // directories, missing or damaged, of runners that may have had jobs
	isRecordedDirMissing      bool     // a runner directory that the store had recorded was missing at the start
}

// recoverDeadRunner ends the processes that a dead runner left behind, and reads its files.
func (p *Pool) recoverDeadRunner(ctx context.Context, c *runnerContact) (*deadRunner, error) {
	p.mu.Lock()
	c.wasFoundDead = true
	leased, known := p.leases.orphanAttemptsOfRunnerLocked(c.runnerDir)
	p.mu.Unlock()
	p.wakeLoop()
	d := &deadRunner{runnerDir: c.runnerDir, mustKeepDir: true,
		RecoveryResult: runner.RecoveryResult{RunnerStartedThisBoot: true}}
	if c.origin == contactFoundUnrecorded {
		return d, nil
	}
	recoverer, err := p.recovererForDir(filepath.Dir(c.runnerDir))
	if err != nil {
		return nil, err
	}
	if d.mustKeepDir = recoverer == nil && p.cfg.RunnerLocation.HasExternalRunnersDir(); d.mustKeepDir {
		d.RecoveryResult, err = runner.ReadDeadRunnerFiles(c.runnerDir, leased)
	} else {
		if recoverer != nil {
			d.recoveredBy = recoverer.Client
		}
		d.RecoveryResult, err = p.recoverWithRunner(ctx, recoverer, c.runnerDir, leased, known)
	}
	return d, err
}

// recovererForDir returns a living runner that has the rights to clean up after the dead runners in a directory. It
// returns nil if this process has these rights itself. It also returns nil if no runner has these rights and no such
// runner will be started. In that case, the operating system has ended the dead runner's processes, and the dead
// runner's directory stays. If a runner with these rights may be available later, recovererForDir returns an error.
func (p *Pool) recovererForDir(parentDir string) (*runnerConn, error) {
	if !p.cfg.RunnerLocation.HasExternalRunnersDir() {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.runners.conns {
		if filepath.Dir(conn.RunnerDir) == parentDir && conn.state != connUnresponsive {
			return conn, nil
		}
	}
	for other, c := range p.runners.contactsByDir {
		if filepath.Dir(other) == parentDir && !c.wasFoundDead {
			return nil, errors.New("this runner is dead; only another runner can end the remaining processes of its jobs, " +
				"and the service is connecting to one; if this lasts, see: queuectl doctor")
		}
	}
	if parentDir == p.cfg.RunnerLocation.DirForNewRunners() && !p.stopRequested {
		return nil, errors.New("this runner is dead; only another runner can end the remaining processes of its jobs, and " +
			"the service waits until one has started; if this lasts, see: queuectl doctor")
	}
	return nil, nil
}

// recoverWithRunner calls runner.Recover. If recoverer is not nil, that runner does the work, and otherwise this
// process does it. If recoverer does not answer liveness checks, recoverWithRunner stops waiting and returns an error.
func (p *Pool) recoverWithRunner(
	ctx context.Context, recoverer *runnerConn, dir string, leasedAttempts, certainAttempts []wire.Attempt,
) (runner.RecoveryResult, error) {
	if recoverer == nil {
		return runner.RecoverDeadRunner(ctx, dir, leasedAttempts, certainAttempts, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var checks sync.WaitGroup
	defer checks.Wait()
	checks.Go(func() {
		for sleepUnlessDone(ctx, livenessCheckInterval) {
			if !p.checkRunnerAlive(ctx, recoverer) {
				cancel()
			}
		}
	})
	defer cancel()
	return runner.RecoverDeadRunner(ctx, dir, leasedAttempts, certainAttempts, recoverer.Client)
}

// decideEndCauseLocked returns how an attempt without a result ended, or 0 if it never started. If the service had
// requested the end of the attempt, this request counts as the cause in two cases: it was a cancellation, or
// recoverDeadRunner has found and ended processes of the attempt. In all other cases, the outcome is unknown.
func (d *deadRunner) decideEndCauseLocked(h *lease, runningTableEntry *wire.Attempt) queue.EndCause {
	started := runningTableEntry != nil || h.phase.mayHaveStarted()
	switch {
	case !started && !d.RunnerFilesDamaged:
		return 0
	case d.LeasesWithStuckProcesses[h.wireLease()]:
		return queue.EndUnkillable
	case h.endRequest != nil && (h.endRequest.cause == queue.EndCancelled ||
		runningTableEntry != nil && slices.Contains(d.LeasesWithProcesses, h.wireLease())):
		return h.endRequest.cause
	case started && d.RunnerStartedThisBoot:
		return queue.EndRunnerLost
	case started:
		return queue.EndInterrupted
	case d.RunnerStartedThisBoot:
		return queue.EndRunnerLostMaybeStarted
	}
	return queue.EndInterruptedMaybeStarted
}

// settleDeadRunner decides how the leases ended whose jobs the dead runner had or may have had, and adds the decisions
// to the pending report. Results in the runner's journal (its file of results) are final. Attempts in its running table
// (its file of running attempts) were lost while they ran. Leases in neither file were never received by the runner,
// unless its files are damaged. settleDeadRunner returns the number of results and the number of attempts that were
// lost while they ran.
func (l *poolLoop) settleDeadRunner(d *deadRunner) (resultCount, lostAttemptCount int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := func(id wire.Lease) (h *lease, ended bool) { // ends a lease; returns false if its end was decided before
		h = l.leases.byID[queue.Lease(id)]
		held := h != nil && (h.isOrphanOfRunnerLocked(d.runnerDir) || h.isOrphanOfRunnerLocked(""))
		return h, held && h.advancePhaseLocked(eventEndDecided)
	}
	for _, r := range d.AttemptResults {
		if h, ended := end(r.Lease); ended {
			resultCount++
			l.storeSession.addSettlement(l.resultSettlementLocked(h, r, d.runnerDir))
		}
	}
	for i := range d.RunningAttempts {
		entry := &d.RunningAttempts[i]
		if h, ended := end(entry.Lease); ended {
			lostAttemptCount++
			l.storeSession.addSettlement(l.lostSettlementLocked(h, entry, d.decideEndCauseLocked(h, entry), d.runnerDir))
		}
	}
	for _, h := range l.leases.byID {
		if !h.isOrphanOfRunnerLocked(d.runnerDir) {
			continue
		}
		if cause := d.decideEndCauseLocked(h, nil); cause == 0 {
			l.returnJobToQueueLocked(h)
		} else if h.advancePhaseLocked(eventEndDecided) {
			l.storeSession.addSettlement(l.lostSettlementLocked(h, nil, cause, ""))
		}
	}
	l.wakeLoop()
	return resultCount, lostAttemptCount
}

// finishRecovery settles the leases of a dead runner. When the report with the settlements is stored, it
// removes the runner's directory.
func (l *poolLoop) finishRecovery(d *deadRunner) {
	results, lost := l.settleDeadRunner(d)
	l.recovery.rebootDetected = l.recovery.rebootDetected || !d.RunnerStartedThisBoot
	if d.RunnerFilesDamaged {
		l.recovery.uncertainRunnerDirs = append(l.recovery.uncertainRunnerDirs, d.runnerDir)
	}
	if !d.mustKeepDir {
		l.storeSession.afterReportFuncs = append(l.storeSession.afterReportFuncs, func() {
			// An error does not end the service: on Windows, a directory cannot be removed while another process reads one of
			// the files in it.
			if err := runner.RemoveDeadRunnerDir(d.runnerDir, d.recoveredBy); err != nil {
				l.cfg.Log.Warn("could not remove a dead runner's directory; it will be removed at the next start",
					"dir", d.runnerDir, "error", err)
			}
		})
	}
	for _, process := range d.StuckProcesses {
		l.cfg.Log.Error("a process of a job survived SIGKILL after its runner had died; the job (QUEUECTL_JOB_ID in the "+
			"process's environment) is recorded as ended; check the disk or device that the process waits for",
			"pid", process.PID,
			"runner", d.runnerDir)
	}
	if lost > 0 {
		l.cfg.Log.Warn("a runner died", "runner", d.runnerDir, "results", results, "lost", lost)
	} else {
		l.cfg.Log.Info("a runner ended", "runner", d.runnerDir, "results", results)
	}
}

// removeDismissedRunnerDir removes the directory of a dismissed runner (one that got a Shutdown) if the runner was
// killed before it could do this itself. Call it only after the runner's results are stored.
func (p *Pool) removeDismissedRunnerDir(ctx context.Context, dir string) {
	// Remove the directory only after two checks have found the runner dead. At the time of the first check,
	// the runner may still be removing the directory.
	foundDead := 0
	for wait := minContactRetryDelay; wait <= maxContactRetryDelay && sleepUnlessDone(ctx, wait); wait *= 2 {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if alive, err := runner.IsAlive(dir); alive || err != nil {
			continue
		}
		recoverer, err := p.recovererForDir(filepath.Dir(dir))
		if foundDead++; foundDead < 2 || err != nil {
			continue
		}
		switch {
		case recoverer != nil:
			runner.RemoveDeadRunnerDir(dir, recoverer.Client)
		case !p.cfg.RunnerLocation.HasExternalRunnersDir():
			runner.RemoveDeadRunnerDir(dir, nil) // if this fails, the next service tries again at its start
		}
		return
	}
}

// leaseRunnerDirs returns the directories of all runners that may have jobs of this service. A missing or damaged
// directory is included until the end of all leases of its runner is recorded.
func (l *poolLoop) leaseRunnerDirs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leases.anyOrphanOfRunnersLocked(l.recovery.uncertainRunnerDirs) {
		l.recovery.uncertainRunnerDirs = nil
	}
	return l.runners.appendLeaseRunnerDirsLocked(slices.Clone(l.recovery.uncertainRunnerDirs))
}

// searchStrayProcesses searches for living processes of stray leases: leases that no known runner has. The directory of
// the runner that had such a lease may be gone. Run calls searchStrayProcesses when the runners in all existing
// directories are connected or recovered.
func (l *poolLoop) searchStrayProcesses() {
	l.mu.Lock()
	leased, _ := l.leases.orphanAttemptsOfRunnerLocked("")
	l.mu.Unlock()
	if len(leased) == 0 {
		return
	}
	if l.recovery.storeCopiedOrRestored { // the processes belong to the original queue, from which this store was copied
		l.settleStrayLeases(nil)
		return
	}
	l.recovery.isSearchingStrayProcesses = true
	delay := time.Duration(0)
	if l.recovery.isRecordedDirMissing {
		delay = startDeadline + startDeadlineMargin
	}
	l.Go(func() {
		if alive, ok := l.endStrayProcesses(l.ctx, leased, delay); ok {
			l.runInLoop(func() error { l.settleStrayLeases(alive); return nil })
		}
	})
}

// endStrayProcesses ends the processes of leases without a known runner, and returns the leases that had
// processes. It first waits for the delay: a runner whose directory is gone may be alive, and may still
// start attempts of an earlier service until their start deadlines.
func (p *Pool) endStrayProcesses(ctx context.Context, leasedAttempts []wire.Attempt, delay time.Duration) (
	aliveLeases []wire.Lease, ok bool,
) {
	for wait := minContactRetryDelay; sleepUnlessDone(ctx, delay); wait = min(2*wait, maxContactRetryDelay) {
		if recoverer, err := p.recovererForDir(p.cfg.RunnerLocation.DirForNewRunners()); err == nil {
			if r, err := p.recoverWithRunner(ctx, recoverer, "", nil, leasedAttempts); err == nil {
				return r.LeasesWithProcesses, true
			}
		}
		delay = wait
	}
	return nil, false
}

// settleStrayLeases settles the leases that no known runner has. aliveLeases lists the leases that had processes. The
// attempts of the leases in aliveLeases count as started.
func (l *poolLoop) settleStrayLeases(aliveLeases []wire.Lease) {
	l.recovery.isSearchingStrayProcesses = false
	l.mu.Lock()
	for _, lease := range aliveLeases {
		if h := l.leases.byID[queue.Lease(lease)]; h != nil && h.isOrphanLocked() {
			h.advancePhaseLocked(eventAccepted)
		}
	}
	l.mu.Unlock()
	l.settleDeadRunner(&deadRunner{RecoveryResult: runner.RecoveryResult{
		RunnerStartedThisBoot: !l.recovery.rebootDetected, RunnerFilesDamaged: len(l.recovery.uncertainRunnerDirs) > 0,
	}})
}

// lostSettlementLocked returns the settlement of an attempt whose runner has died. runnerDir is the runner's directory.
// runningTableEntry is the attempt in the runner's running table, or nil if the table does not contain it. If the start
// time is unknown, the attempt gets a duration of zero.
func (p *Pool) lostSettlementLocked(h *lease, runningTableEntry *wire.Attempt, endCause queue.EndCause,
	runnerDir string) store.Settlement {
	j, now := &h.job, queue.UnixMillisOf(time.Now())
	o := queue.AttemptOutcome{EndCause: endCause, ExitCode: -1, RanIsolated: runner.IsIsolatedRunnerDir(runnerDir),
		WasPausedAtEnd: p.mustHoldReturnedJobLocked(h)}
	a := queue.Attempt{Fence: j.Fence, Node: p.cfg.NodeName, StartedAt: now, EndedAt: now, ExitCode: -1}
	switch {
	case runningTableEntry != nil:
		a.Worker = runner.WorkerName(runnerDir, runningTableEntry.TableSlot)
		a.PID, a.StartedAt = int(runningTableEntry.PID), queue.UnixMillis(runningTableEntry.StartedAtMillis)
	case h.hasStarted():
		a.Worker, a.PID, a.StartedAt = h.attempt.workerID, h.attempt.pid, h.attempt.startedAt
	}
	d := queue.DecideAfterAttempt(j, o, p.cfg.RetryPolicy())
	// Delete the output file, which may exist even if the runner did not report it.
	output := runner.OutputRef(wire.Lease(j.Lease()))
	s := store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d, DeletableOutputFile: output}
	h.recordEndingUserLocked(&s)
	return s
}
