package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// This file pauses and resumes jobs. The store records a change first, and then the runner gets it. When the
// pool connects to a runner again, it sends the recorded state again, because a frame may have been lost.

// ErrAllPaused means that a job cannot be resumed, because all jobs are paused. See
// docs/decisions/0049.
var ErrAllPaused = queue.Errorf(queue.CodeWrongState, "all jobs are paused; resume them with: queuectl resume --all")

// pauseStartWait is how long SetPaused waits for its job to start. This is enough: if a job has not started
// within recallAfter, which is much shorter, the pool takes it back from its runner.
const pauseStartWait = time.Second

// pauseTimeout limits how long the pool waits until a runner has paused or resumed a process tree.
const pauseTimeout = 5 * time.Second

// SetPaused pauses a running job, or resumes it if paused is false, on behalf of the user with this uid. It
// records the change, and waits until the runner has applied it. It returns false if the job does not run.
// An error names a runner that does not answer, or says that some processes still run.
func (p *Pool) SetPaused(ctx context.Context, seq int64, paused bool, uid int) (bool, error) {
	h := p.awaitRunningLease(ctx, seq, pauseStartWait)
	if h == nil {
		return false, nil
	}
	select {
	case h.pause.lock <- struct{}{}:
		defer func() { <-h.pause.lock }()
	case <-ctx.Done():
		return true, ctx.Err()
	}
	p.mu.Lock()
	isEnding, pausedByAll := h.endRequest != nil, !paused && !h.pause.isRecorded && p.isPausedLocked(h)
	p.mu.Unlock()
	switch {
	case isEnding && paused:
		return true, errJobEnding
	case pausedByAll:
		return true, ErrAllPaused
	}
	// Try again while the store returns ErrLeased: the start of the job is not recorded yet, but will be soon.
	err := store.ErrLeased
	for errors.Is(err, store.ErrLeased) {
		if err = p.store.Pause(ctx, store.Pause{Lease: h.job.Lease(), Paused: paused, UID: uid}); errors.Is(err,
			store.ErrLeased) {
			sleepOrDone(ctx, time.Millisecond)
		}
	}
	if errors.Is(err, store.ErrStateChanged) {
		return false, nil // no error: the attempt has ended in the meantime
	}
	if err != nil {
		return true, err
	}
	p.mu.Lock()
	h.pause.isRecorded = paused
	p.mu.Unlock()
	return true, p.applyPause(ctx, h)
}

// ResumeForSignal resumes a paused job on behalf of the user with this uid, so that the job can handle a
// signal. It also works while all jobs are paused.
func (p *Pool) ResumeForSignal(ctx context.Context, seq int64, uid int) error {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	paused := h != nil && p.isPausedLocked(h)
	if paused {
		h.pause.exemptFromPauseAll = true
	}
	p.mu.Unlock()
	if !paused {
		return nil
	}
	_, err := p.SetPaused(ctx, seq, false, uid)
	return err
}

// SetAllPaused pauses all jobs if paused is true. Otherwise it resumes the jobs, except those that are also
// paused individually. While all jobs are paused, no job starts. The returned function waits until the
// runners have applied the change, and returns the ids of the running jobs.
func (p *Pool) SetAllPaused(paused bool) (wait func(context.Context) ([]string, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allPaused = paused
	var running []*lease
	if paused {
		p.recallLocked(func(*lease) bool { return true })
	}
	for _, h := range p.leases.oldestFirstLocked() {
		h.pause.exemptFromPauseAll = false
		if h.conn != nil && h.endRequest == nil && !h.pause.isRecorded {
			running = append(running, h)
		}
	}
	p.wake()
	return func(ctx context.Context) ([]string, error) { return p.applyPauses(ctx, running) }
}

// RecallQueue takes the jobs of a queue that have not started back from their runners. startedSeqs lists the
// numbers of the jobs that have started or may have started. unstartedCount is the number of the other jobs,
// which are still on their way back to the queue.
func (p *Pool) RecallQueue(name string) (startedSeqs []int64, unstartedCount int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.leases.oldestFirstLocked() {
		switch {
		case h.job.Queue != name || h.phase.isEndDecided():
		case h.phase.mayHaveStarted():
			startedSeqs = append(startedSeqs, h.job.Seq)
		default:
			unstartedCount++
		}
	}
	p.recallLocked(func(h *lease) bool { return h.job.Queue == name })
	return startedSeqs, unstartedCount
}

// applyPauses sends the runners of leases which of the jobs are paused, and waits until the runners have
// paused or resumed the jobs. It does this concurrently for all leases. It returns the ids of the jobs that
// run.
func (p *Pool) applyPauses(ctx context.Context, leaseList []*lease) (ids []string, err error) {
	errs := make([]error, len(leaseList))
	var wg sync.WaitGroup
	for i, h := range leaseList {
		wg.Go(func() {
			if err := p.applyPause(ctx, h); err != errJobEnding {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range leaseList {
		if h.phase == phaseRunning {
			ids = append(ids, h.job.ID)
		}
	}
	return ids, errors.Join(errs...)
}

// IsAllPaused reports whether all jobs are paused.
func (p *Pool) IsAllPaused() bool { return lockedValue(p, &p.allPaused) }

// isPausedLocked reports whether the job of a lease is paused, individually or because all jobs are paused.
func (p *Pool) isPausedLocked(h *lease) bool {
	return h.pause.isRecorded || p.allPaused && !h.pause.exemptFromPauseAll
}

// applyPause sends the runner of a lease whether the job is paused now, and waits until the runner has paused
// or resumed the job. A disconnected runner gets this state when it connects.
func (p *Pool) applyPause(ctx context.Context, h *lease) error {
	for {
		p.mu.Lock()
		conn, paused := h.conn, p.isPausedLocked(h)
		p.mu.Unlock()
		consequence := "the job will resume when the runner answers"
		if paused {
			consequence = "the job will pause when the runner answers"
		}
		if conn == nil {
			return withConsequence(p.checkRunnerOf(ctx, h), consequence)
		}
		timeoutCtx, cancel := context.WithTimeout(ctx, pauseTimeout)
		running, err := conn.Pause(timeoutCtx, h.wireLease(), paused)
		cancel()
		p.mu.Lock()
		// Another caller may have changed the pause state after this function read it. The runner may then have
		// received the two frames in the wrong order, so send the current state again.
		changed := p.isPausedLocked(h) != paused
		p.mu.Unlock()
		switch {
		case changed && ctx.Err() == nil:
		case errors.Is(err, runner.ErrAttemptEnding) && paused:
			return errJobEnding
		case errors.Is(err, runner.ErrAttemptEnding), errors.Is(err, runner.ErrNoReply):
			return nil // there is nothing to resume, or resendPauseLocked will send the pause later
		case err != nil && ctx.Err() == nil:
			return withConsequence(p.unresponsiveError(conn.HelloReply.PID, h), consequence)
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

// resendPauseLocked sends a runner that has just connected whether the job of a lease is paused.
func (p *Pool) resendPauseLocked(h *lease) {
	if h.endRequest == nil {
		h.conn.Send(&wire.Pause{Lease: h.wireLease(), Paused: p.isPausedLocked(h)})
	}
}

// staysPausedLocked reports whether a job that returns to the queue must be held, because it must not start.
// This is so if a user has paused the job and has not requeued it. If its whole queue is paused, the job is
// not held, because the queue starts no jobs.
func (p *Pool) staysPausedLocked(h *lease) bool {
	isRequeued := h.endRequest != nil && h.endRequest.auditVerb == "requeue"
	return h.pause.isRecorded && !isRequeued && !(p.cfg.RunningJobsPaused != nil && p.cfg.RunningJobsPaused(h.job.Queue))
}
