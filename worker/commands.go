package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// ErrAttemptStarted means that a job cannot be changed because its attempt has started.
var ErrAttemptStarted = errors.New("the job is running")

// ErrAttemptEnded means that a job could not be returned to the queue, because its attempt had already ended
// in another way.
var ErrAttemptEnded = errors.New("the attempt ended before it could be requeued")

// CancelJob cancels a leased job (a job that this pool has claimed) on behalf of the user requesterUID. It waits until
// the cancellation is recorded or, if the attempt ends by itself first, until that end is recorded. It returns false if
// the job is not leased.
func (p *Pool) CancelJob(ctx context.Context, jobSeq int64, requesterUID int) (bool, error) {
	leased, err := p.ChangeUnstartedJob(ctx, jobSeq, store.JobChange{Verb: queue.VerbCancel, UID: requesterUID})
	if errors.Is(err, ErrAttemptStarted) {
		h, err := p.endLeasedAttempt(ctx, jobSeq, queue.EndCancelled, requesterUID, "cancel")
		return h != nil, err
	}
	return leased, err
}

// RequeueJob ends the attempt of a leased job (a job that this pool has claimed) on behalf of the user requesterUID,
// and returns the job to the queue. It waits until the return is recorded. If the attempt ends in another way first, it
// returns ErrAttemptEnded. It returns false if the job is not leased.
func (p *Pool) RequeueJob(ctx context.Context, jobSeq int64, requesterUID int) (bool, error) {
	h, err := p.endLeasedAttempt(ctx, jobSeq, queue.EndStopped, requesterUID, "requeue")
	if h == nil || err != nil {
		return h != nil, err
	}
	if readWithLock(p, &h.phase) != phaseReturned {
		err = ErrAttemptEnded
	}
	return true, err
}

// ChangeUnstartedJob changes a leased job (a job that this pool has claimed) that has not started. It returns when one
// commit has stored both the change and the job's return to the queue. If the attempt has started, ChangeUnstartedJob
// returns ErrAttemptStarted. ChangeUnstartedJob returns false if the job is not leased or its lease has ended. In this
// case, the caller can change the job in the store.
func (p *Pool) ChangeUnstartedJob(ctx context.Context, jobSeq int64, change store.JobChange) (bool, error) {
	p.mu.Lock()
	h := p.leases.byJobSeq[jobSeq]
	if h == nil {
		p.mu.Unlock()
		return false, nil
	}
	if h.phase.isEndDecided() { // wait until the lease has ended; the store may already have recorded the end
		p.mu.Unlock()
		_, err := p.awaitRunnerAnswer(ctx, h, nil)
		return err != nil, err
	}
	if h.phase.mayHaveStarted() {
		p.mu.Unlock()
		return true, ErrAttemptStarted
	}
	a := &pendingChange{JobChange: change, answer: make(chan error, 1)}
	h.pendingChanges = append(h.pendingChanges, a)
	if len(h.pendingChanges) == 1 { // for later changes, the pool has already asked the runner to give the job back
		p.sendDropStartLocked(h)
	}
	p.mu.Unlock()
	answered, err := p.awaitRunnerAnswer(ctx, h, a.answer)
	if !answered && err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.pendingChanges = slices.DeleteFunc(h.pendingChanges, func(other *pendingChange) bool { return other == a })
	}
	return answered || err != nil, err
}

// ReturnUnstartedJob puts a claimed job of this pool back into the queue, unless the job has started. It waits
// until this is stored. If the attempt has started, ReturnUnstartedJob returns ErrAttemptStarted.
func (p *Pool) ReturnUnstartedJob(ctx context.Context, jobSeq int64) error {
	edit := func(*queue.Job) error { return store.ErrJobStateChanged }
	_, err := p.ChangeUnstartedJob(ctx, jobSeq, store.JobChange{Verb: queue.VerbEdit, EditJob: edit})
	if errors.Is(err, store.ErrJobStateChanged) { // the usual case: edit refuses the change, so the job is only returned
		err = nil
	}
	return err
}

// pendingChange is a change of a job that this pool has claimed, with the caller that waits for the change.
type pendingChange struct {
	store.JobChange
	answer chan error // receives the error, or nil; has a buffer of one, so that sending does not block
}

// endLeasedAttempt ends the attempt of a leased job (a job that this pool has claimed) for the given cause. It waits
// until the attempt's end, or the job's return to the queue, is recorded. It returns the lease, or nil if the job is
// not leased.
func (p *Pool) endLeasedAttempt(ctx context.Context, jobSeq int64, cause queue.EndCause, requesterUID int,
	auditVerb string) (*lease, error) {
	h := p.leaseOfJob(jobSeq)
	if h == nil {
		return nil, nil
	}
	p.requestAttemptEnd(h, cause, &requesterUID, auditVerb)
	_, err := p.awaitRunnerAnswer(ctx, h, nil)
	return h, addUnresponsiveConsequence(err, "if the runner answers later, it ends the job then")
}

// addUnresponsiveConsequence adds a text to the error about an unresponsive runner: what will happen later because of
// the user's request. It returns other errors unchanged.
func addUnresponsiveConsequence(err error, consequence string) error {
	if errors.Is(err, queue.ErrUnavailable) {
		return queue.Errorf(queue.CodeUnavailable, "%v; %s", err, consequence)
	}
	return err
}

// requestAttemptEnd asks the runner of a lease to end the attempt for the given cause. If the attempt has not started,
// the job returns to the queue instead.
func (p *Pool) requestAttemptEnd(h *lease, cause queue.EndCause, endedByUID *int, auditVerb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.endRequest == nil || cause == queue.EndCancelled {
		h.endRequest = &endRequest{cause: cause, killGrace: h.job.KillAfter, endedByUID: endedByUID, auditVerb: auditVerb}
	}
	// Limit the grace period to maxKillGrace, except if the job's own user ends the job. That user gets the full
	// kill_after.
	if p.stopRequested || endedByUID == nil || *endedByUID != h.job.UID || auditVerb == "worker.stop" {
		h.endRequest.killGrace = min(h.endRequest.killGrace, p.maxKillGrace)
	}
	switch {
	// resendLeaseRequestsLocked will send the request when the runner is connected
	case h.runnerConn == nil && !h.phase.wasNeverSent():
	// The runner has recorded the attempt, and refuses to give the job back.
	case h.phase.mayHaveStarted() || h.hasStarted():
		h.runnerConn.Send(&wire.EndAttempt{Lease: h.wireLease(), EndCause: int64(cause), GracePeriod: h.endRequest.killGrace})
	default:
		p.sendDropStartLocked(h)
	}
}

// sendDropStartLocked asks the runner of a job to give the job back, with a DropStart frame. The runner refuses this if
// it has begun to start the job.
func (p *Pool) sendDropStartLocked(h *lease) {
	switch {
	case h.phase.wasNeverSent():
		h.advancePhaseLocked(eventWithdrawn)
		p.wakeLoop() // makes Run return the job to the queue
		return
	case h.runnerConn == nil: // resendLeaseRequestsLocked will send this request when the runner is connected
		return
	case h.phase == phaseSent:
		h.advancePhaseLocked(eventDropSent)
	}
	h.runnerConn.Send(&wire.DropStart{Lease: h.wireLease()})
}

// SignalJob sends a signal to all processes of a running job. It returns false if the job does not run. If the
// job's runner does not answer, the error contains the runner's pid.
func (p *Pool) SignalJob(ctx context.Context, jobSeq int64, signalNumber int) (bool, error) {
	h := p.awaitRunningLease(ctx, jobSeq, maxSignalStartWait)
	if h == nil {
		return false, nil
	}
	p.mu.Lock()
	if h.runnerConn != nil {
		h.runnerConn.Send(&wire.SignalAttempt{Lease: h.wireLease(), SignalNumber: int64(signalNumber)})
	}
	p.mu.Unlock()
	return true, addUnresponsiveConsequence(p.checkLeaseRunnerAlive(ctx, h),
		"the signal will be sent when the runner answers")
}

// awaitRunningLease returns the lease of a running job, or nil if the job does not run. If the job was sent
// to a runner, awaitRunningLease waits for its start, at most for the timeout.
func (p *Pool) awaitRunningLease(ctx context.Context, jobSeq int64, timeout time.Duration) *lease {
	p.mu.Lock()
	h := p.leases.byJobSeq[jobSeq]
	mayRun := h != nil && (h.runnerConn != nil || h.hasStarted())
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !mayRun || !p.awaitLeaseStart(ctx, h) {
		return nil
	}
	return h
}

// maxSignalStartWait is how long SignalJob waits until a job that was sent to a runner is known to have started.
// Runners normally report a start together with their next results, but immediately for jobs that the service watches.
const maxSignalStartWait = 100 * time.Millisecond

// WatchJobEnd makes the runner of a job report the job's end immediately. This applies to the current attempt
// and to later attempts, until the caller calls the returned function.
func (p *Pool) WatchJobEnd(jobSeq int64) (stopWatching func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases.endWatcherCountsByJobSeq[jobSeq]++
	if h := p.leases.byJobSeq[jobSeq]; h != nil && h.runnerConn != nil {
		h.runnerConn.Send(&wire.ReportAttemptImmediately{Lease: h.wireLease()})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.leases.endWatcherCountsByJobSeq[jobSeq]--; p.leases.endWatcherCountsByJobSeq[jobSeq] <= 0 {
			delete(p.leases.endWatcherCountsByJobSeq, jobSeq)
		}
	}
}

// ReadOutput reads the output of an attempt of a running job, beginning at a position. attemptNumber 0 means the
// attempt that runs now. streamOffsets holds the positions in stdout and in stderr (output.StreamCursor). If
// waitForOutput is true, ReadOutput waits until there is output or the lease ends. If waitForOutput is false and the
// runner does not answer, ReadOutput returns an error that names the runner.
//
// If the job has started and its runner is not connected, for example because the service has just started, a call
// without wait first waits for the connection. It returns the same error if the runner does not accept it.
//
// ok is false if the job's runner is not connected, or if the attempt's lease has ended. If the lease has ended,
// the store has the output or will get it, or the job runs under another lease.
func (p *Pool) ReadOutput(ctx context.Context, jobSeq int64, attemptNumber int, streamOffsets [2]int64,
	waitForOutput bool) (
	chunk *wire.ReadOutputReply, ok bool, err error,
) {
	h := p.leaseOfJob(jobSeq)
	if h == nil || attemptNumber != 0 && attemptNumber != h.job.StartedAttempts+1 {
		return nil, false, nil
	}
	conn, err := p.awaitLeaseConn(ctx, h, waitForOutput)
	if err != nil || conn == nil {
		return nil, false, err
	}
	readCtx, cancel, leaseDone := ctx, func() {}, h.endStoredSignal
	if !waitForOutput {
		readCtx, cancel = context.WithTimeout(ctx, livenessCheckTimeout)
		leaseDone = nil
	}
	defer cancel()
	chunk, err = conn.ReadOutput(readCtx, h.wireLease(), streamOffsets, leaseDone)
	switch {
	case errors.Is(err, runner.ErrNoReply):
		// This is not an error: the caller reads the job's state from the store, or uses RunnerConnectedSignal to
		// wait for the next connection.
		return nil, false, nil
	case err != nil && ctx.Err() == nil:
		return nil, false, p.unresponsiveError(conn.HelloReply.RunnerPID, h)
	case err != nil || chunk.AttemptUnknown:
		return nil, false, err
	}
	return chunk, true, nil
}

// awaitLeaseConn returns the connection to the runner of a lease, or nil if no runner is connected. Unless mayBeMissing
// is set, it waits up to livenessCheckTimeout for the runner of an attempt that has started. If the runner does not
// accept the connection in this time, awaitLeaseConn returns an error that names the runner.
func (p *Pool) awaitLeaseConn(ctx context.Context, h *lease, mayBeMissing bool) (*runnerConn, error) {
	var timeout <-chan time.Time
	for {
		p.mu.Lock()
		conn, connected := h.runnerConn, p.runners.connectedSignal
		p.mu.Unlock()
		if conn != nil || mayBeMissing || !h.hasStarted() {
			return conn, nil
		}
		if timeout == nil {
			timeout = time.After(livenessCheckTimeout)
		}
		select {
		case <-connected:
		case <-h.endStoredSignal:
			return nil, nil
		case <-timeout:
			return nil, p.checkLeaseRunnerAlive(ctx, h)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// LeasedAttemptNumber returns the number of a job's current attempt, or 0 if this pool has not claimed the
// job.
func (p *Pool) LeasedAttemptNumber(jobSeq int64) int {
	if h := p.leaseOfJob(jobSeq); h != nil {
		return h.job.StartedAttempts + 1
	}
	return 0
}

// leaseOfJob returns the lease of a job, or nil if this pool has not claimed the job.
func (p *Pool) leaseOfJob(jobSeq int64) *lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leases.byJobSeq[jobSeq]
}
