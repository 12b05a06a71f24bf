package worker

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// When a runner has died, this file decides and records how the leases of its jobs ended, in three steps:
//
//   - recoverRunner ends the processes that a dead runner left behind, and reads its files.
//   - settleDeadRunner decides how each lease of the runner ended, and adds these decisions to the pending
//     report.
//   - finishRecovery removes the runner's directory when the report is stored.

// deadRunner describes a dead runner and what it left behind. If dir is "", it represents all runners whose
// directories are gone. See docs/decisions/0056.
type deadRunner struct {
	runner.RecoveryResult
	dir         string
	recoveredBy *runner.Client // living runner that ended the processes; nil if this process did
	keepDir     bool           // keep the directory, because no runner with the rights to remove it exists
}

// recovery contains what the pool knows about leases whose runners were not found. Only Run's goroutine uses
// it.
type recovery struct {
	searchingStrays bool     // searchStrayProcesses is in progress
	rebooted        bool     // a dead runner was found that was started before the last boot
	storeMoved      bool     // the store is a copy or was restored
	uncertainDirs   []string // directories, missing or damaged, of runners that may have had jobs
	dirMissing      bool     // a runner directory that the store had recorded was missing at the start
}

// recoverRunner ends the processes that a dead runner left behind, and reads its files.
func (p *Pool) recoverRunner(ctx context.Context, c *runnerContact) (*deadRunner, error) {
	p.mu.Lock()
	c.dead = true
	leased, known := p.leases.orphansOfLocked(c.dir)
	p.mu.Unlock()
	p.wake()
	d := &deadRunner{dir: c.dir, keepDir: true, RecoveryResult: runner.RecoveryResult{SameBoot: true}}
	if c.origin == contactUnknown {
		return d, nil
	}
	recoverer, err := p.recovererFor(filepath.Dir(c.dir))
	if err != nil {
		return nil, err
	}
	if d.keepDir = recoverer == nil && p.cfg.RunnerLocation.IsExternal(); d.keepDir {
		d.RecoveryResult, err = runner.ReadDeadRunner(c.dir, leased)
	} else {
		if recoverer != nil {
			d.recoveredBy = recoverer.Client
		}
		d.RecoveryResult, err = p.recoverVia(ctx, recoverer, c.dir, leased, known)
	}
	return d, err
}

// recovererFor returns a living runner that has the rights to clean up after the dead runners in a directory.
// It returns nil if this process has these rights itself. It also returns nil if no runner has these rights
// and none will be started: the operating system has then ended the dead runner's processes, and its
// directory stays. If such a runner may be available later, recovererFor returns an error.
func (p *Pool) recovererFor(parentDir string) (*runnerConn, error) {
	if !p.cfg.RunnerLocation.IsExternal() {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.runners.clients {
		if filepath.Dir(conn.Dir) == parentDir && conn.state != connUnresponsive {
			return conn, nil
		}
	}
	for other, c := range p.runners.contacts {
		if filepath.Dir(other) == parentDir && !c.dead {
			return nil, errors.New("this runner is dead; only another runner can end the remaining processes of its jobs, " +
				"and the service is connecting to one; if this lasts, see: queuectl doctor")
		}
	}
	if parentDir == p.cfg.RunnerLocation.NewRunnersDir() && !p.stopping {
		return nil, errors.New("this runner is dead; only another runner can end the remaining processes of its jobs, and " +
			"the service waits until one has started; if this lasts, see: queuectl doctor")
	}
	return nil, nil
}

// recoverVia calls runner.Recover. The runner recoverer does the work, or this process if recoverer is nil.
// If recoverer does not answer liveness checks, recoverVia stops waiting and returns an error.
func (p *Pool) recoverVia(
	ctx context.Context, recoverer *runnerConn, dir string, leasedAttempts, knownAttempts []wire.Attempt,
) (runner.RecoveryResult, error) {
	if recoverer == nil {
		return runner.Recover(ctx, dir, leasedAttempts, knownAttempts, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var checks sync.WaitGroup
	defer checks.Wait()
	checks.Go(func() {
		for sleepOrDone(ctx, livenessInterval) {
			if !p.checkAlive(ctx, recoverer) {
				cancel()
			}
		}
	})
	defer cancel()
	return runner.Recover(ctx, dir, leasedAttempts, knownAttempts, recoverer.Client)
}

// decideCauseLocked returns how an attempt without a result ended, or 0 if it never started. If the service
// had requested the end of the attempt, the request counts as the cause in two cases: it was a cancellation,
// or recoverRunner found and ended processes of the attempt. In all other cases, the outcome is unknown.
func (d *deadRunner) decideCauseLocked(h *lease, tableEntry *wire.Attempt) queue.EndCause {
	started := tableEntry != nil || h.phase.mayHaveStarted()
	switch {
	case !started && !d.FilesDamaged:
		return 0
	case d.LeasesWithStuckProcesses[h.wireLease()]:
		return queue.EndUnkillable
	case h.endRequest != nil && (h.endRequest.cause == queue.EndKilled ||
		tableEntry != nil && slices.Contains(d.LeasesWithProcesses, h.wireLease())):
		return h.endRequest.cause
	case started && d.SameBoot:
		return queue.EndRunnerLost
	case started:
		return queue.EndInterrupted
	case d.SameBoot:
		return queue.EndPerhapsRunnerLost
	}
	return queue.EndPerhapsInterrupted
}

// settleDeadRunner decides how the leases ended whose jobs the dead runner had or may have had, and adds the
// decisions to the pending report. Results in the runner's journal (its file of results) are final. Attempts
// in its running table (its file of running attempts) were lost while they ran. The runner never received the
// other leases, unless its files are damaged. settleDeadRunner returns the number of results and the number
// of attempts that were lost while they ran.
func (l *loop) settleDeadRunner(d *deadRunner) (resultCount, lostCount int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := func(id wire.Lease) (h *lease, ended bool) { // ends a lease; returns false if its end was decided before
		h = l.leases.byLease[queue.Lease(id)]
		held := h != nil && (h.isOrphanInLocked(d.dir) || h.isOrphanInLocked(""))
		return h, held && h.advanceLocked(eventEndDecided)
	}
	for _, r := range d.Results {
		if h, ended := end(r.Lease); ended {
			resultCount++
			l.session.addSettlement(l.settlementLocked(h, r, d.dir))
		}
	}
	for i := range d.RunningAttempts {
		entry := &d.RunningAttempts[i]
		if h, ended := end(entry.Lease); ended {
			lostCount++
			l.session.addSettlement(l.lostSettlementLocked(h, entry, d.decideCauseLocked(h, entry), d.dir))
		}
	}
	for _, h := range l.leases.byLease {
		if !h.isOrphanInLocked(d.dir) {
			continue
		}
		if cause := d.decideCauseLocked(h, nil); cause == 0 {
			l.returnToQueueLocked(h)
		} else if h.advanceLocked(eventEndDecided) {
			l.session.addSettlement(l.lostSettlementLocked(h, nil, cause, ""))
		}
	}
	l.wake()
	return resultCount, lostCount
}

// finishRecovery settles the leases of a dead runner. When the report with the settlements is stored, it
// removes the runner's directory.
func (l *loop) finishRecovery(d *deadRunner) {
	results, lost := l.settleDeadRunner(d)
	l.recovery.rebooted = l.recovery.rebooted || !d.SameBoot
	if d.FilesDamaged {
		l.recovery.uncertainDirs = append(l.recovery.uncertainDirs, d.dir)
	}
	if !d.keepDir {
		l.session.afterExchange = append(l.session.afterExchange, func() {
			// An error does not end the service: on Windows, removing fails while another process reads one of the
			// runner's files.
			if err := runner.RemoveDeadRunner(d.dir, d.recoveredBy); err != nil {
				l.cfg.Log.Warn("could not remove a dead runner's directory; it will be removed at the next start",
					"dir", d.dir, "error", err)
			}
		})
	}
	for _, process := range d.StuckProcesses {
		l.cfg.Log.Error("a process of a job survived SIGKILL after its runner had died; the job (QUEUECTL_JOB_ID in the "+
			"process's environment) is recorded as ended; check the disk or device that the process waits for",
			"pid", process.PID,
			"runner", d.dir)
	}
	if lost > 0 {
		l.cfg.Log.Warn("a runner died", "runner", d.dir, "results", results, "lost", lost)
	} else {
		l.cfg.Log.Info("a runner ended", "runner", d.dir, "results", results)
	}
}

// leaseDirs returns the directories of all runners that may have jobs of this service. A missing or damaged
// directory is included until the end of all leases of its runner is recorded.
func (l *loop) leaseDirs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leases.anyOrphanInLocked(l.recovery.uncertainDirs) {
		l.recovery.uncertainDirs = nil
	}
	return l.runners.leaseDirsLocked(slices.Clone(l.recovery.uncertainDirs))
}

// searchStrayProcesses searches for living processes of stray leases: leases that no known runner has. The
// directory of their runner may be gone. Run calls searchStrayProcesses when the runners in all existing
// directories are connected or recovered.
func (l *loop) searchStrayProcesses() {
	l.mu.Lock()
	leased, _ := l.leases.orphansOfLocked("")
	l.mu.Unlock()
	if len(leased) == 0 {
		return
	}
	if l.recovery.storeMoved { // the processes belong to the original queue, from which this store was copied
		l.settleStrayLeases(nil)
		return
	}
	l.recovery.searchingStrays = true
	delay := time.Duration(0)
	if l.recovery.dirMissing {
		delay = startDeadline + startDeadlineMargin
	}
	l.Go(func() {
		if alive, ok := l.endStrayProcesses(l.ctx, leased, delay); ok {
			l.post(func() error { l.settleStrayLeases(alive); return nil })
		}
	})
}

// endStrayProcesses ends the processes of leases without a known runner, and returns the leases that had
// processes. It first waits for the delay: a runner whose directory is gone may be alive, and may still
// start attempts of an earlier service until their start deadlines.
func (p *Pool) endStrayProcesses(ctx context.Context, leasedAttempts []wire.Attempt, delay time.Duration) (
	aliveLeases []wire.Lease, ok bool,
) {
	for wait := contactRetryMin; sleepOrDone(ctx, delay); wait = min(2*wait, contactRetryMax) {
		if recoverer, err := p.recovererFor(p.cfg.RunnerLocation.NewRunnersDir()); err == nil {
			if r, err := p.recoverVia(ctx, recoverer, "", nil, leasedAttempts); err == nil {
				return r.LeasesWithProcesses, true
			}
		}
		delay = wait
	}
	return nil, false
}

// settleStrayLeases settles the leases that no known runner has. aliveLeases lists the leases that had
// processes. The attempts of these leases count as started.
func (l *loop) settleStrayLeases(aliveLeases []wire.Lease) {
	l.recovery.searchingStrays = false
	l.mu.Lock()
	for _, lease := range aliveLeases {
		if h := l.leases.byLease[queue.Lease(lease)]; h != nil && h.isOrphanLocked() {
			h.advanceLocked(eventAccepted)
		}
	}
	l.mu.Unlock()
	l.settleDeadRunner(&deadRunner{RecoveryResult: runner.RecoveryResult{
		SameBoot: !l.recovery.rebooted, FilesDamaged: len(l.recovery.uncertainDirs) > 0,
	}})
}

// lostSettlementLocked returns the settlement of an attempt whose runner has died. dir is the runner's
// directory. tableEntry is the attempt in the runner's running table, or nil if the table does not contain
// it. If the start time is unknown, the attempt gets a duration of zero.
func (p *Pool) lostSettlementLocked(h *lease, tableEntry *wire.Attempt, end queue.EndCause,
	dir string) store.Settlement {
	j, now := &h.job, queue.MillisOf(time.Now())
	o := queue.Outcome{EndCause: end, ExitCode: -1, Isolated: runner.IsIsolated(dir), WasPaused: p.staysPausedLocked(h)}
	a := queue.Attempt{Fence: j.Fence, Node: p.cfg.Node, StartedAt: now, EndedAt: now, ExitCode: -1}
	switch {
	case tableEntry != nil:
		a.Worker = runner.WorkerName(dir, tableEntry.Slot)
		a.PID, a.StartedAt = int(tableEntry.PID), queue.Millis(tableEntry.StartedAtMillis)
	case h.hasStarted():
		a.Worker, a.PID, a.StartedAt = h.attempt.workerID, h.attempt.pid, h.attempt.startedAt
	}
	d := queue.Decide(j, o, p.cfg.Policy())
	// Delete the output file, which may exist even if the runner did not report it.
	output := runner.OutputRef(wire.Lease(j.Lease()))
	s := store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d, DeletableOutput: output}
	h.setEndedByLocked(&s)
	return s
}
