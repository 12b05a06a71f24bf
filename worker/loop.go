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

// poolLoop is the state of Run. Other goroutines use only its embedded Pool and backgroundTasks. These goroutines pass
// their results to Run through the channel of backgroundTasks.
type poolLoop struct {
	*Pool
	backgroundTasks
	storeSession storeSession
	recovery     recoveryState
	isolation    isolationState
	meanRunTime  time.Duration   // mean run time of recent attempts
	shortage     shortageTracker // recent starts that failed for lack of resources
	progress     progressBatch
}

// backgroundTasks contains the goroutines that run concurrently with Run until ctx ends, and the channel through which
// these goroutines send their results to Run.
type backgroundTasks struct {
	ctx context.Context
	sync.WaitGroup
	pendingCalls        chan func() error // functions for Run to execute
	dependencyReadSlots chan struct{}     // semaphore that limits concurrent reads of dependencies
}

// runInLoop makes Run's goroutine execute a function. If Run ends first, the function is not executed.
func (b *backgroundTasks) runInLoop(call func() error) {
	select {
	case b.pendingCalls <- call:
	case <-b.ctx.Done():
	}
}

// sleepUnlessDone waits for the duration wait. It returns false if ctx ends first.
func sleepUnlessDone(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// Run first takes over the jobs of earlier services: it connects to their runners and records attempts that have ended.
// It then calls onReady, at most jobAdoptionTimeout after its start. If a runner hangs, Run takes over its jobs later,
// when the runner answers. Run claims and runs jobs until ctx ends. Jobs that are running at that time continue in
// their runners. Run returns an error if it cannot continue to use the store or the runners.
func (p *Pool) Run(ctx context.Context, onReady func()) error {
	ctx, cancel := context.WithCancel(ctx)
	l := &poolLoop{
		Pool: p,
		backgroundTasks: backgroundTasks{
			ctx: ctx, pendingCalls: make(chan func() error, 64),
			dependencyReadSlots: make(chan struct{}, maxConcurrentDependencyReads),
		},
		storeSession: storeSession{store: p.store, log: p.cfg.Log, pendingAcks: map[*runnerConn][]wire.Lease{},
			nextRetryDelay: minStoreRetryDelay},
		isolation: isolationState{isolatedUsers: map[int]*isolatedUser{}, spawnRetryDelay: minShortagePause},
		shortage:  shortageTracker{nextPauseDuration: minShortagePause},
	}
	defer l.Wait()
	defer cancel()
	if err := l.adoptLeases(); err != nil {
		return err
	}
	l.ensureRunnerForNewJobs()
	err := l.awaitJobAdoption()
	if err == nil {
		err = l.reportAndClaim()
	}
	if err == nil {
		// End separate runners to which an earlier service has never sent a job.
		l.dismissIdleRunners()
		onReady()
	}
	for err == nil {
		err = l.handleEvents()
	}
	if ctx.Err() != nil {
		return nil // the error is only a consequence of the end of ctx
	}
	return err
}

// awaitJobAdoption handles events until the pool has taken over all jobs of earlier services, at most for
// jobAdoptionTimeout.
func (l *poolLoop) awaitJobAdoption() error {
	end := time.Now().Add(jobAdoptionTimeout)
	for l.isAdoptingJobs() && time.Now().Before(end) {
		if err := l.handleNextEvent(time.Until(end)); err != nil {
			return err
		}
		l.ensureRunnerForNewJobs()
	}
	return nil
}

// isAdoptingJobs reports whether the pool is still adopting (taking over) jobs of earlier services. It also
// returns true until a runner for new jobs is connected or could not be started.
func (l *poolLoop) isAdoptingJobs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runners.hasUnadoptedRunnerLocked() || l.recovery.isSearchingStrayProcesses ||
		l.runners.currentRunnerLocked() == nil && !l.stopRequested && l.runners.lastSpawnErr == nil
}

// handleNextEvent waits for one event, at most for maxWait, and handles it.
func (l *poolLoop) handleNextEvent(maxWait time.Duration) error {
	select {
	case <-l.ctx.Done():
		return l.ctx.Err()
	case call := <-l.pendingCalls:
		return call()
	case <-l.wakeUpSignal:
	case <-time.After(maxWait):
	}
	return nil
}

// handleEvents waits for an event, and handles it and all other events that have arrived in the meantime. It records
// all these events in the store with one call.
func (l *poolLoop) handleEvents() error {
	err := l.handleNextEvent(l.maxEventWait())
	for err == nil && len(l.pendingCalls) > 0 {
		err = (<-l.pendingCalls)()
	}
	if err != nil {
		return err
	}
	l.recallStaleJobs()
	l.startLivenessChecks()
	l.ensureRunnerForNewJobs()
	l.settleLostLeases()
	err = l.reportAndClaim()
	l.dismissIdleRunners()
	l.sendChangedRunnerSetup()
	return err
}

// maxEventWait returns how long handleEvents may wait for an event. After that time, a check or another timed action is
// due.
func (l *poolLoop) maxEventWait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	next := deadlineAfter(now, time.Hour)
	for _, h := range l.leases.byID {
		next = next.earlierOf(l.nextRecallCheckLocked(h, now))
	}
	// Wake up when a runner has been unreachable for unreachableRunnerTimeout: at that time, ensureRunnerForNewJobs must
	// start another runner.
	for _, c := range l.runners.contactsByDir {
		if due := c.unreachableDeadline(unreachableRunnerTimeout); !due.hasPassed(now) {
			next = next.earlierOf(due)
		}
	}
	next = next.earlierOf(deadline{l.progress.nextRecordTimeLocked()})
	for _, conn := range l.runners.conns {
		if l.needsLivenessCheckLocked(conn) {
			next = next.earlierOf(conn.livenessCheckDueLocked(l.cfg.HeartbeatInterval()))
		}
	}
	// After a store error, wake up at retryAt, because reportAndClaim does nothing before that time.
	// Otherwise, wake up when the pause of claims ends.
	next = next.earlierOf(deadline{cmp.Or(l.storeSession.retryAt, l.claimsPausedUntil)})
	return max(next.time.Sub(now), time.Millisecond)
}

// nextRecallCheckLocked returns when recallStaleJobs must check whether the job of the lease has waited too long in its
// runner. The zero deadline means never.
func (l *poolLoop) nextRecallCheckLocked(h *lease, now time.Time) deadline {
	switch {
	case h.phase == phaseSent && h.runnerConn != nil:
		return h.recallDeadlineLocked()
	case l.mustTakeBackJobLocked(h):
		if due := h.takeBackDeadlineLocked(); due.time.After(now.Add(time.Second)) {
			return due
		}
		return deadlineAfter(now, time.Second)
	}
	return deadline{}
}

// recallStaleJobs takes jobs that have waited too long back from their runners. If a job has waited in a runner for
// unstartedRecallDelay, all workers of the runner are busy. In the meantime, a job that ranks before the waiting jobs
// may be enqueued. So recallStaleJobs recalls (takes back) all jobs that this runner has not started, and the pool
// claims the best-ranked jobs again. It ignores a job whose start hangs, because such a job does not wait for a worker.
// An unresponsive or unreachable runner cannot return its jobs. From such a runner, recallStaleJobs takes a job back
// after the job's start deadline.
func (l *poolLoop) recallStaleJobs() {
	stale, expired := map[*runnerConn]bool{}, map[leaseLocation][]*lease{}
	l.mu.Lock()
	now := time.Now()
	for _, h := range l.leases.byID {
		switch {
		case h.phase == phaseWithdrawn:
			l.returnJobToQueueLocked(h)
		case h.phase == phaseSent && h.runnerConn != nil && h.recallDeadlineLocked().hasPassed(now):
			stale[h.runnerConn] = true
		case l.mustTakeBackJobLocked(h) && h.takeBackDeadlineLocked().hasPassed(now):
			expired[h.leaseLocation] = append(expired[h.leaseLocation], h)
		}
	}
	for conn := range stale {
		l.recallFromRunnerLocked(conn)
	}
	l.mu.Unlock()
	for location, list := range expired {
		l.returnExpiredLeases(location, list)
	}
}

// mustTakeBackJobLocked reports whether the pool must take the job of a lease back after its start deadline,
// because the runner is unresponsive or unreachable.
func (l *poolLoop) mustTakeBackJobLocked(h *lease) bool {
	switch h.phase {
	case phaseSent:
		return h.runnerConn == nil
	case phaseDropping, phaseRecalling:
		return h.runnerConn.state == connUnresponsive
	}
	return l.needsRunnerFileCheckLocked(h)
}

// needsRunnerFileCheckLocked reports whether the pool must read the files of a lease's runner. This is necessary if a
// drain waits for the job of the lease, and the runner that may have started the job is unresponsive or unreachable.
// The pool then reads the runner's files repeatedly, until they contain the process of the job.
func (l *poolLoop) needsRunnerFileCheckLocked(h *lease) bool {
	return l.draining && h.phase == phaseAccepted && (h.runnerConn == nil || h.runnerConn.state == connUnresponsive)
}

// recallFromRunnerLocked takes back all jobs that wait in a runner. If this is the runner for new jobs, its jobs run
// longer than expected. recallFromRunnerLocked then raises the mean run time, so that the pool prefetches fewer jobs.
func (l *poolLoop) recallFromRunnerLocked(conn *runnerConn) {
	recall := l.dropUnstartedJobsLocked
	if conn.state == connCurrent {
		recall, l.meanRunTime = l.recallJobsLocked, max(l.meanRunTime, unstartedRecallDelay)
	}
	recall(func(h *lease) bool { return h.runnerConn == conn })
}

// reportAndClaim records the pending events in the store and claims jobs for the free workers, in one commit. It
// then sends acknowledgements and jobs to the runners.
func (l *poolLoop) reportAndClaim() error {
	s := &l.storeSession
	if time.Now().Before(s.retryAt) {
		return nil
	}
	s.retryAt = time.Time{}
	if err := s.recordRunnerDirs(l.ctx, l.leaseRunnerDirs()); err != nil {
		return s.handleStoreError(err)
	}
	l.mu.Lock()
	capacity, workers, recalls := l.claimableJobCountLocked(), l.usableWorkerCountLocked(), l.recallCount
	l.progress.moveDueProgressToReportLocked(time.Now(), &s.pendingReport)
	l.mu.Unlock()
	report, callCount := s.pendingReport, len(s.afterReportFuncs)
	if s.cancelClaim == nil {
		report.MaxJobsToClaim = capacity
	} else if capacity == 0 || workers < s.workerCountAtClaim {
		// Cancel the claim that waits for jobs, because this claim may return more jobs than can start now.
		s.cancelClaim()
	}
	var lines []logLine
	// If there is nothing to record, do not call the store here: claimInBackground below claims the jobs.
	if len(report.AttemptStarts)+len(report.ProgressReports)+len(report.Settlements)+len(report.ReleasedLeases)+
		len(report.LeasedJobChanges) > 0 {
		report.MaxBytesPerUser = l.cfg.UserQuotaBytes()
		// Record these events even if ctx has ended, because they have already happened.
		reply, err := s.store.ReportAndClaim(context.WithoutCancel(l.ctx), report)
		if err != nil {
			return s.handleStoreError(err)
		}
		failpoint.Hit("settled")
		s.nextRetryDelay = minStoreRetryDelay
		lines = l.handleStoredReport(report, reply.RejectedChanges)
		failpoint.Hit("before-ack")
		l.dispatchClaimedJobs(reply.ClaimedJobs, true)
		capacity -= len(reply.ClaimedJobs)
	}
	s.sendAcks() // these also include results that an earlier service has stored
	s.writeLog(lines)
	for _, call := range s.afterReportFuncs[:callCount] {
		l.Go(call) // in the background, because the function may remove large directories
	}
	s.afterReportFuncs = s.afterReportFuncs[callCount:]
	// Record returned jobs before the next claim, so that the claim can choose them too.
	if capacity > 0 && s.cancelClaim == nil && len(s.pendingReport.ReleasedLeases) == 0 {
		l.claimInBackground(capacity, workers, recalls)
	}
	return nil
}

// handleFrames handles frames (messages) that arrived together from one runner.
func (l *poolLoop) handleFrames(conn *runnerConn, frames []wire.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runners.markAliveLocked(conn)
	for _, f := range frames {
		switch f := f.(type) {
		case *wire.StartReport:
			if h := l.leases.byID[queue.Lease(f.Lease)]; h != nil && h.runnerConn == conn {
				l.recordAttemptStartLocked(h, f.Attempt)
			}
		case *wire.ProgressReport:
			if h := l.leases.byID[queue.Lease(f.Lease)]; h != nil && h.runnerConn == conn {
				l.progress.addProgressLocked(h, f.Progress)
			}
		case *wire.Result:
			l.handleResultLocked(conn, f)
		case *wire.DropStartReply:
			l.handleDropReplyLocked(conn, f)
		case *wire.StuckAttemptsReport:
			l.runners.setStuckAttemptsLocked(conn, f.Attempts)
		}
	}
}

// handleResultLocked handles a result. It ignores a result from a runner that does not have the lease.
func (l *poolLoop) handleResultLocked(conn *runnerConn, r *wire.Result) {
	h := l.leases.byID[queue.Lease(r.Lease)]
	switch {
	case h == nil:
		l.wakeLoop() // the attempt was settled before, so the next reportAndClaim only acknowledges the result
	case h.runnerConn != conn:
		return
	case h.phase.isEndDecided(): // the same result has arrived before, through another connection
	case !l.settleLeaseResultLocked(h, r, conn.RunnerDir):
		return // do not acknowledge the result, so that the runner keeps it
	}
	l.storeSession.pendingAcks[conn] = append(l.storeSession.pendingAcks[conn], r.Lease)
}

// settleLeaseResultLocked adds the result of an attempt to the pending report. runnerDir is the directory of the runner
// that sent the result. settleLeaseResultLocked returns false and does nothing if the end of the lease was already
// decided.
func (l *poolLoop) settleLeaseResultLocked(h *lease, r *wire.Result, runnerDir string) bool {
	if r.EndCause == int64(queue.EndStopped) && h.endRequest != nil {
		// The service requested a stop of the attempt, and perhaps later another end, such as a cancellation. The
		// later request applies.
		r.EndCause = int64(h.endRequest.cause)
	}
	last := eventEndDecided
	if r.EndCause == int64(queue.EndStopped) {
		last = eventReturnDecided
	}
	if !h.advancePhaseLocked(last) {
		return false
	}
	s := l.resultSettlementLocked(h, r, runnerDir)
	h.recordEndingUserLocked(&s)
	// Remove the start from the pending report, because the settlement (the record of the attempt's end) includes the
	// start.
	started := &l.storeSession.pendingReport.AttemptStarts
	*started = slices.DeleteFunc(*started, func(st store.AttemptStart) bool { return st.Lease == s.Lease })
	l.updateCapacityFromResultLocked(h, r)
	l.storeSession.addSettlement(s)
	return true
}

// handleDropReplyLocked handles the answer to a DropStart frame, which asks a runner to give a job back. If the runner
// gives the job back, the job returns to the queue. If the runner has started the job, handleDropReplyLocked carries
// out pending requests to end it.
func (l *poolLoop) handleDropReplyLocked(conn *runnerConn, f *wire.DropStartReply) {
	h := l.leases.byID[queue.Lease(f.Lease)]
	if h == nil || h.phase.isEndDecided() || h.runnerConn != conn {
		return
	}
	h.claimedOrSentAt = time.Now()
	if f.StartDropped {
		l.returnJobToQueueLocked(h)
		return
	}
	// The runner has refused to give the job back, because it has begun the attempt. The runner will send a StartReport or
	// Result frame for the attempt.
	if !h.advancePhaseLocked(eventAccepted) {
		return
	}
	l.leases.notifyChangeLocked()
	if h.endRequest != nil {
		h.runnerConn.Send(&wire.EndAttempt{Lease: f.Lease, EndCause: int64(h.endRequest.cause),
			GracePeriod: h.endRequest.killGrace})
	}
	for _, a := range h.pendingChanges {
		a.answer <- ErrAttemptStarted
	}
	h.pendingChanges = nil
}

// returnJobToQueueLocked adds the return of a job to the queue to the pending report. The job must not have
// started. If callers wait for changes of the job, the report also contains the first of these changes, so
// that one commit stores both.
func (l *poolLoop) returnJobToQueueLocked(h *lease) {
	last := eventEndDecided
	if len(h.pendingChanges) == 0 {
		last = eventReturnDecided
	}
	if !h.advancePhaseLocked(last) {
		return
	}
	report := &l.storeSession.pendingReport
	if len(h.pendingChanges) > 0 {
		h.changeInReport = h.pendingChanges[0]
		report.LeasedJobChanges = append(report.LeasedJobChanges,
			store.LeasedJobChange{Lease: h.job.Lease(), JobChange: h.changeInReport.JobChange})
	} else {
		report.ReleasedLeases = append(report.ReleasedLeases, h.job.Lease())
	}
	l.wakeLoop()
}
