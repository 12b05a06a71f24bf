package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// loop is the state of Run. Other goroutines use only its embedded Pool and backgroundTasks. They pass their
// results to Run through the channels of backgroundTasks.
type loop struct {
	*Pool
	backgroundTasks
	session     storeSession
	recovery    recovery
	isolation   isolation
	meanRunTime time.Duration   // mean run time of recent attempts
	shortage    shortageTracker // recent starts that failed for lack of resources
	progress    progressBatch
}

// backgroundTasks contains the goroutines that run concurrently with Run until ctx ends, and the channels
// through which they send to Run.
type backgroundTasks struct {
	ctx context.Context
	sync.WaitGroup
	inbox        chan delivery     // frames from runners
	pendingCalls chan func() error // functions for Run to execute
	depsReads    chan struct{}     // semaphore that limits concurrent reads of dependencies
}

// delivery contains frames that arrived together from one runner.
type delivery struct {
	conn   *runnerConn
	frames []wire.Frame // nil means that the connection has ended
}

// post makes Run's goroutine execute a function. If Run ends first, the function is not executed.
func (b *backgroundTasks) post(call func() error) {
	select {
	case b.pendingCalls <- call:
	case <-b.ctx.Done():
	}
}

// sleepOrDone waits for the duration wait. It returns false if ctx ends first.
func sleepOrDone(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// Run first takes over the jobs of earlier services: it connects to their runners and records attempts that
// have ended. It then calls ready, at most adoptTimeout after its start. If a runner hangs, Run takes over
// its jobs later, when the runner answers. Run claims and runs jobs until ctx ends. Jobs that are running at
// that time continue in their runners. Run returns an error if it cannot continue to use the store or the
// runners.
func (p *Pool) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	l := &loop{
		Pool: p,
		backgroundTasks: backgroundTasks{
			ctx: ctx, inbox: make(chan delivery, 64), pendingCalls: make(chan func() error, 64),
			depsReads: make(chan struct{}, maxDepsReads),
		},
		session: storeSession{store: p.store, log: p.cfg.Log, pendingAcks: map[*runnerConn][]wire.Lease{},
			retryDelay: storeRetryMin},
		isolation: isolation{users: map[int]*isolatedUser{}, spawnPause: shortagePauseMin},
		shortage:  shortageTracker{nextPause: shortagePauseMin},
	}
	defer l.Wait()
	defer cancel()
	if err := l.adoptLeases(); err != nil {
		return err
	}
	l.ensureRunner()
	err := l.awaitAdoption()
	if err == nil {
		err = l.exchangeWithStore()
	}
	if err == nil {
		// End separate runners that an earlier service has started, but to which it never sent a job.
		l.dismissIdle()
		ready()
	}
	for err == nil {
		err = l.step()
	}
	if ctx.Err() != nil {
		return nil // the end of ctx has caused the error
	}
	return err
}

// awaitAdoption handles events until the pool has taken over all jobs of earlier services, at most for
// adoptTimeout.
func (l *loop) awaitAdoption() error {
	timeout := time.After(adoptTimeout)
	for l.isAdopting() {
		if expired, err := l.handleNextEvent(timeout); expired || err != nil {
			return err
		}
		l.ensureRunner()
	}
	return nil
}

// isAdopting reports whether the pool is still adopting (taking over) jobs of earlier services. It also
// returns true until a runner for new jobs is connected or could not be started.
func (l *loop) isAdopting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runners.hasUnadoptedLocked() || l.recovery.searchingStrays ||
		l.runners.currentLocked() == nil && !l.stopping && l.runners.spawnErr == nil
}

// handleNextEvent waits for one event and handles it. expired is true if the timer fired first.
func (l *loop) handleNextEvent(timer <-chan time.Time) (expired bool, err error) {
	select {
	case <-l.ctx.Done():
		return false, l.ctx.Err()
	case d := <-l.inbox:
		l.handleDelivery(d)
	case call := <-l.pendingCalls:
		return false, call()
	case <-l.wakeUp:
	case <-timer:
		return true, nil
	}
	return false, nil
}

// step waits for an event, and handles it and all other events that have arrived in the meantime. It records
// all of them in the store with one call.
func (l *loop) step() error {
	_, err := l.handleNextEvent(time.After(l.nextWait()))
	for err == nil && len(l.inbox) > 0 {
		l.handleDelivery(<-l.inbox)
	}
	for err == nil && len(l.pendingCalls) > 0 {
		err = (<-l.pendingCalls)()
	}
	if err != nil {
		return err
	}
	l.recallStale()
	l.startLivenessChecks()
	l.ensureRunner()
	l.settleLostLeases()
	err = l.exchangeWithStore()
	l.dismissIdle()
	l.sendSetup()
	return err
}

// nextWait returns how long step may wait for an event. After that, a check or another timed action is due.
func (l *loop) nextWait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	next := deadlineAfter(now, time.Hour)
	for _, h := range l.leases.byLease {
		next = next.earliest(l.nextCheckLocked(h, now))
	}
	// Wake up when a runner has been unreachable for replaceRunnerAfter, because ensureRunner then starts
	// another runner.
	for _, c := range l.runners.contacts {
		if due := c.unreachableDeadline(replaceRunnerAfter); !due.passed(now) {
			next = next.earliest(due)
		}
	}
	next = next.earliest(deadline{l.progress.nextRecordTimeLocked()})
	for _, conn := range l.runners.clients {
		if l.needsLivenessCheckLocked(conn) {
			next = next.earliest(conn.checkDueLocked(l.cfg.HeartbeatInterval()))
		}
	}
	// After a store error, wake up at retryAt, because exchangeWithStore does nothing before that time.
	// Otherwise, wake up when the pause of claims ends.
	next = next.earliest(deadline{cmp.Or(l.session.retryAt, l.claimsPausedUntil)})
	return max(next.time.Sub(now), time.Millisecond)
}

// nextCheckLocked returns when recallStale must check whether a lease's job has waited too long. The zero
// deadline means never.
func (l *loop) nextCheckLocked(h *lease, now time.Time) deadline {
	switch {
	case h.phase == phaseSent && h.conn != nil:
		return h.recallDueLocked()
	case h.phase == phaseSent, h.phase == phaseDropping, h.phase == phaseRecalling, l.needsFileCheckLocked(h):
		if due := h.startDueLocked(); due.time.After(now.Add(time.Second)) {
			return due
		}
		return deadlineAfter(now, time.Second)
	}
	return deadline{}
}

// recallStale takes jobs that have waited too long back from their runners. If a job has waited in a runner
// for recallAfter, all workers of the runner are busy, and a job that ranks before the waiting ones may
// arrive. So recallStale recalls (takes back) all jobs that this runner has not started. It ignores a job
// whose start hangs, because such a job does not wait for a worker. An unresponsive or unreachable runner
// cannot return its jobs. From such a runner, recallStale takes a job back after the job's start deadline.
func (l *loop) recallStale() {
	stale, expired := map[*runnerConn]bool{}, map[leaseLocation][]*lease{}
	l.mu.Lock()
	now := time.Now()
	for _, h := range l.leases.byLease {
		switch {
		case h.phase == phaseWithdrawn:
			l.returnToQueueLocked(h)
		case h.phase == phaseSent && h.conn != nil && h.recallDueLocked().passed(now):
			stale[h.conn] = true
		case l.expiresLocked(h) && h.startDueLocked().passed(now):
			expired[h.leaseLocation] = append(expired[h.leaseLocation], h)
		}
	}
	for conn := range stale {
		l.recallFromLocked(conn)
	}
	l.mu.Unlock()
	for location, list := range expired {
		l.returnExpired(location, list)
	}
}

// expiresLocked reports whether the pool must take the job of a lease back after its start deadline,
// because the runner is unresponsive or unreachable.
func (l *loop) expiresLocked(h *lease) bool {
	switch h.phase {
	case phaseSent:
		return h.conn == nil
	case phaseDropping, phaseRecalling:
		return h.conn.state == connUnresponsive
	}
	return l.needsFileCheckLocked(h)
}

// needsFileCheckLocked reports whether a drain waits for the job of a lease, and the runner that may have
// started the job is unresponsive or unreachable. The pool then reads the runner's files repeatedly until
// they name the process.
func (l *loop) needsFileCheckLocked(h *lease) bool {
	return l.draining && h.phase == phaseAccepted && (h.conn == nil || h.conn.state == connUnresponsive)
}

// recallFromLocked takes back all jobs that wait in a runner. If this is the runner for new jobs, its jobs
// run longer than expected. recallFromLocked then raises the mean run time, so that the pool sends fewer jobs
// in advance.
func (l *loop) recallFromLocked(conn *runnerConn) {
	recall := l.dropUnstartedLocked
	if conn.state == connCurrent {
		recall, l.meanRunTime = l.recallLocked, max(l.meanRunTime, recallAfter)
	}
	recall(func(h *lease) bool { return h.conn == conn })
}

// exchangeWithStore records the pending events in the store and claims jobs for the free workers, in one commit. It
// then sends acknowledgements and jobs to the runners.
func (l *loop) exchangeWithStore() error {
	s := &l.session
	if time.Now().Before(s.retryAt) {
		return nil
	}
	s.retryAt = time.Time{}
	if err := s.recordRunnerDirs(l.ctx, l.leaseDirs()); err != nil {
		return s.handleStoreError(err)
	}
	l.mu.Lock()
	capacity, workers, recalls := l.claimCapacityLocked(), l.usableWorkerCountLocked(), l.recallCount
	l.progress.moveDueLocked(time.Now(), &s.pendingReport)
	l.mu.Unlock()
	report, callCount := s.pendingReport, len(s.afterExchange)
	if s.cancelClaim == nil {
		report.WantedJobs = capacity
	} else if capacity == 0 || workers < s.workersAtClaim {
		// Cancel the claim that waits for jobs, because it may return more jobs than can start now.
		s.cancelClaim()
	}
	var lines []logLine
	// If there is nothing to record, no exchange is needed: claimInBackground below claims the jobs.
	if len(report.Starts)+len(report.Progress)+len(report.Settlements)+len(report.Releases)+len(report.Changes) > 0 {
		if l.cfg.UserQuota != nil {
			report.MaxBytesPerUser = l.cfg.UserQuota()
		}
		// Record these events even if Run is stopped, because they have happened.
		reply, err := s.store.Exchange(context.WithoutCancel(l.ctx), report)
		if err != nil {
			return s.handleStoreError(err)
		}
		failpoint.Hit("settled")
		s.retryDelay = storeRetryMin
		lines = l.finishStored(report, reply.RejectedChanges)
		failpoint.Hit("before-ack")
		l.startAll(reply.Jobs, true)
		capacity -= len(reply.Jobs)
	}
	s.sendAcks() // these also include results that an earlier service has stored
	s.writeLog(lines)
	for _, call := range s.afterExchange[:callCount] {
		l.Go(call) // in the background, since call may remove large directories
	}
	s.afterExchange = s.afterExchange[callCount:]
	// Record returned jobs before the next claim, so that the claim can choose them too.
	if capacity > 0 && s.cancelClaim == nil && len(s.pendingReport.Releases) == 0 {
		l.claimInBackground(capacity, workers, recalls)
	}
	return nil
}

// handleDelivery handles frames from a runner, or the end of its connection.
func (l *loop) handleDelivery(d delivery) {
	if d.frames == nil {
		l.connectionEnded(d.conn)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runners.markAliveLocked(d.conn)
	for _, f := range d.frames {
		switch f := f.(type) {
		case *wire.StartReport:
			if h := l.leases.byLease[queue.Lease(f.Lease)]; h != nil && h.conn == d.conn {
				l.recordStartLocked(h, f.Attempt)
			}
		case *wire.ProgressReport:
			if h := l.leases.byLease[queue.Lease(f.Lease)]; h != nil && h.conn == d.conn {
				l.progress.addLocked(h, f.Progress)
			}
		case *wire.Result:
			l.handleResultLocked(d.conn, f)
		case *wire.DropReply:
			l.handleDropReplyLocked(d.conn, f)
		case *wire.StuckReport:
			l.runners.setStuckLocked(d.conn, f.Attempts)
		}
	}
}

// handleResultLocked handles a result. It ignores a result from a runner that does not have the lease.
func (l *loop) handleResultLocked(conn *runnerConn, r *wire.Result) {
	h := l.leases.byLease[queue.Lease(r.Lease)]
	switch {
	case h == nil:
		l.wake() // the attempt was settled before, so the next exchangeWithStore only acknowledges the result
	case h.conn != conn:
		return
	case h.phase.isEndDecided(): // the same result has arrived before, through another connection
	case !l.settleResultLocked(h, r, conn.Dir):
		return // do not acknowledge the result, so that the runner keeps it
	}
	l.session.pendingAcks[conn] = append(l.session.pendingAcks[conn], r.Lease)
}

// settleResultLocked adds the result of an attempt to the pending report. dir is the directory of the runner
// that sent it. settleResultLocked returns false and does nothing if the end of the lease was already
// decided.
func (l *loop) settleResultLocked(h *lease, r *wire.Result, dir string) bool {
	if r.Cause == int64(queue.EndStopped) && h.endRequest != nil {
		// The service requested a stop of the attempt, and perhaps later another end, such as a cancellation. The
		// later request applies.
		r.Cause = int64(h.endRequest.cause)
	}
	last := eventEndDecided
	if r.Cause == int64(queue.EndStopped) {
		last = eventReturnDecided
	}
	if !h.advanceLocked(last) {
		return false
	}
	s := l.settlementLocked(h, r, dir)
	h.setEndedByLocked(&s)
	// Remove the start from the pending report, because the settlement includes it.
	started := &l.session.pendingReport.Starts
	*started = slices.DeleteFunc(*started, func(st store.AttemptStart) bool { return st.Lease == s.Lease })
	l.learnFromResultLocked(h, r)
	l.session.addSettlement(s)
	return true
}

// handleDropReplyLocked handles the answer to a Drop frame, which asks a runner to give a job back. If the
// runner has dropped the job, the job returns to the queue. If the runner has started the job,
// handleDropReplyLocked carries out pending requests to end it.
func (l *loop) handleDropReplyLocked(conn *runnerConn, f *wire.DropReply) {
	h := l.leases.byLease[queue.Lease(f.Lease)]
	if h == nil || h.phase.isEndDecided() || h.conn != conn {
		return
	}
	h.sentAt = time.Now()
	if f.Dropped {
		l.returnToQueueLocked(h)
		return
	}
	// The runner has refused to drop the job, because it has begun the attempt. It will send StartReport or
	// Result for the attempt.
	if !h.advanceLocked(eventAccepted) {
		return
	}
	l.leases.notifyChangeLocked()
	if h.endRequest != nil {
		h.conn.Send(&wire.EndAttempt{Lease: f.Lease, Cause: int64(h.endRequest.cause), Grace: h.endRequest.grace})
	}
	for _, a := range h.pendingChanges {
		a.answer <- ErrAttemptStarted
	}
	h.pendingChanges = nil
}

// returnToQueueLocked adds the return of a job to the queue to the pending report. The job must not have
// started. If callers wait for changes of the job, the report also contains the first of these changes, so
// that one commit stores both.
func (l *loop) returnToQueueLocked(h *lease) {
	last := eventEndDecided
	if len(h.pendingChanges) == 0 {
		last = eventReturnDecided
	}
	if !h.advanceLocked(last) {
		return
	}
	if len(h.pendingChanges) > 0 {
		h.reportedChange = h.pendingChanges[0]
		l.session.pendingReport.Changes = append(l.session.pendingReport.Changes,
			store.LeasedChange{Lease: h.job.Lease(), Change: h.reportedChange.Change})
	} else {
		l.session.pendingReport.Releases = append(l.session.pendingReport.Releases, h.job.Lease())
	}
	l.wake()
}
