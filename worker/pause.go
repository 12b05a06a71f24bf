package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// This file pauses and resumes jobs. The store first records that a job is paused or resumed, and then the runner gets
// the change. When the pool connects to a runner again, it sends the recorded state again, because a frame (message)
// may have been lost with the earlier connection.

// ErrAllPaused means that a job cannot be resumed, because all jobs are paused. See
// docs/decisions/0049.
var ErrAllPaused = queue.Errorf(queue.CodeWrongState, "all jobs are paused; resume them with: queuectl resume --all")

// maxPauseStartWait is how long SetJobPaused waits for its job to start. This is enough: if a job has not started
// within unstartedRecallDelay, which is much shorter, the pool takes it back from its runner.
const maxPauseStartWait = time.Second

// runnerPauseTimeout limits how long the pool waits until a runner has paused or resumed a process tree.
const runnerPauseTimeout = 5 * time.Second

// SetJobPaused pauses a running job, or resumes it if paused is false, on behalf of the user requesterUID. It records
// the change, and waits until the runner has applied the change. It returns false if the job does not run. The error
// names the runner if the runner does not answer. There is also an error if some processes of the job could not be
// stopped.
func (p *Pool) SetJobPaused(ctx context.Context, jobSeq int64, paused bool, requesterUID int) (bool, error) {
	h := p.awaitRunningLease(ctx, jobSeq, maxPauseStartWait)
	if h == nil {
		return false, nil
	}
	select {
	case h.pause.changeLock <- struct{}{}:
		defer func() { <-h.pause.changeLock }()
	case <-ctx.Done():
		return true, ctx.Err()
	}
	p.mu.Lock()
	isEnding, pausedByAll := h.endRequest != nil, !paused && !h.pause.isRecordedAsPaused && p.isJobPausedLocked(h)
	p.mu.Unlock()
	switch {
	case isEnding && paused:
		return true, errJobEnding
	case pausedByAll:
		return true, ErrAllPaused
	}
	// Try again while the store returns ErrJobLeased: the start of the job is not recorded yet, but Run will record it
	// soon.
	err := store.ErrJobLeased
	for errors.Is(err, store.ErrJobLeased) {
		if err = p.store.RecordJobPause(ctx, store.JobPauseRequest{Lease: h.job.Lease(), Paused: paused,
			RequesterUID: requesterUID}); errors.Is(err, store.ErrJobLeased) {
			sleepUnlessDone(ctx, time.Millisecond)
		}
	}
	if errors.Is(err, store.ErrJobStateChanged) {
		return false, nil // no error: the attempt has ended in the meantime
	}
	if err != nil {
		return true, err
	}
	p.mu.Lock()
	h.pause.isRecordedAsPaused = paused
	p.mu.Unlock()
	return true, p.applyPauseState(ctx, h)
}

// ResumeJobForSignal resumes a paused job on behalf of the user requesterUID, so that the job can handle a signal. It
// also works while all jobs are paused.
func (p *Pool) ResumeJobForSignal(ctx context.Context, jobSeq int64, requesterUID int) error {
	p.mu.Lock()
	h := p.leases.byJobSeq[jobSeq]
	paused := h != nil && p.isJobPausedLocked(h)
	if paused {
		h.pause.isExemptFromPauseAll = true
	}
	p.mu.Unlock()
	if !paused {
		return nil
	}
	_, err := p.SetJobPaused(ctx, jobSeq, false, requesterUID)
	return err
}

// SetAllJobsPaused pauses all jobs if paused is true. Otherwise it resumes the jobs, except those that are also
// paused individually. While all jobs are paused, no job starts. The returned function waits until the
// runners have applied the change, and returns the ids of the running jobs.
func (p *Pool) SetAllJobsPaused(paused bool) (awaitApplied func(context.Context) ([]string, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allJobsPaused = paused
	var running []*lease
	if paused {
		p.recallJobsLocked(func(*lease) bool { return true })
	}
	for _, h := range p.leases.leasesOldestFirstLocked() {
		h.pause.isExemptFromPauseAll = false
		if h.runnerConn != nil && h.endRequest == nil && !h.pause.isRecordedAsPaused {
			running = append(running, h)
		}
	}
	p.wakeLoop()
	return func(ctx context.Context) ([]string, error) { return p.applyPauseStates(ctx, running) }
}

// RecallQueueJobs takes back those jobs of a queue that runners have received but not started. startedJobSeqs lists the
// numbers of the jobs that have started or may have started. unstartedCount is the number of jobs that have not started
// and are still on their way back to the queue.
func (p *Pool) RecallQueueJobs(queueName string) (startedJobSeqs []int64, unstartedCount int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.leases.leasesOldestFirstLocked() {
		switch {
		case h.job.Queue != queueName || h.phase.isEndDecided():
		case h.phase.mayHaveStarted():
			startedJobSeqs = append(startedJobSeqs, h.job.Seq)
		default:
			unstartedCount++
		}
	}
	p.recallJobsLocked(func(h *lease) bool { return h.job.Queue == queueName })
	return startedJobSeqs, unstartedCount
}

// applyPauseStates informs the runners of leases which of the jobs are paused, and waits until the runners have paused
// or resumed the jobs. It does this concurrently for all leases. runningJobIDs contains the ids of the jobs that are
// running.
func (p *Pool) applyPauseStates(ctx context.Context, leaseList []*lease) (runningJobIDs []string, err error) {
	errs := make([]error, len(leaseList))
	var wg sync.WaitGroup
	for i, h := range leaseList {
		wg.Go(func() {
			if err := p.applyPauseState(ctx, h); err != errJobEnding {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range leaseList {
		if h.phase == phaseRunning {
			runningJobIDs = append(runningJobIDs, h.job.ID)
		}
	}
	return runningJobIDs, errors.Join(errs...)
}

// AreAllJobsPaused reports whether all jobs are paused.
func (p *Pool) AreAllJobsPaused() bool { return readWithLock(p, &p.allJobsPaused) }

// isJobPausedLocked reports whether the job of a lease is paused, individually or because all jobs are paused.
func (p *Pool) isJobPausedLocked(h *lease) bool {
	return h.pause.isRecordedAsPaused || p.allJobsPaused && !h.pause.isExemptFromPauseAll
}

// applyPauseState informs the runner of a lease whether the job is paused now, and waits until the runner has paused or
// resumed the job. A disconnected runner gets this state when it connects.
func (p *Pool) applyPauseState(ctx context.Context, h *lease) error {
	for {
		p.mu.Lock()
		conn, paused := h.runnerConn, p.isJobPausedLocked(h)
		p.mu.Unlock()
		consequence := "the job will resume when the runner answers"
		if paused {
			consequence = "the job will pause when the runner answers"
		}
		if conn == nil {
			return addUnresponsiveConsequence(p.checkLeaseRunnerAlive(ctx, h), consequence)
		}
		timeoutCtx, cancel := context.WithTimeout(ctx, runnerPauseTimeout)
		running, err := conn.SetAttemptPaused(timeoutCtx, h.wireLease(), paused)
		cancel()
		p.mu.Lock()
		// Another caller may have changed the pause state after this function read it. The runner may then have received the
		// frames of both callers in the wrong order, so send the current state again.
		changed := p.isJobPausedLocked(h) != paused
		p.mu.Unlock()
		switch {
		case changed && ctx.Err() == nil:
		case errors.Is(err, runner.ErrAttemptEnding) && paused:
			return errJobEnding
		case errors.Is(err, runner.ErrAttemptEnding), errors.Is(err, runner.ErrNoReply):
			return nil // there is nothing to resume, or resendLeaseRequestsLocked will send the pause when the runner connects
		case err != nil && ctx.Err() == nil:
			return addUnresponsiveConsequence(p.unresponsiveError(conn.HelloReply.RunnerPID, h), consequence)
		case err != nil:
			return err
		case running > 0 && paused:
			return queue.Errorf(queue.CodeUnavailable,
				"job %s is paused, but %d of its processes still run: they start and end too quickly, "+
					"or cannot be stopped; the runner keeps trying", h.job.ID, running)
		default:
			return nil
		}
	}
}

// errJobEnding means that a job cannot be paused, because its attempt has ended or is being ended.
var errJobEnding = queue.Errorf(queue.CodeWrongState, "the job is ending, so it cannot be paused")

// mustHoldReturnedJobLocked reports whether a job that returns to the queue must be held, because it must not start.
// This is the case if a user has paused the job and has not requeued it. If the whole queue of the job is paused, the
// job need not be held, because the queue starts no jobs.
func (p *Pool) mustHoldReturnedJobLocked(h *lease) bool {
	isRequeued := h.endRequest != nil && h.endRequest.auditVerb == "requeue"
	return h.pause.isRecordedAsPaused && !isRequeued && !p.cfg.AreRunningJobsPaused(h.job.Queue)
}
