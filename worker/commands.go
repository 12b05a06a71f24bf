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

// Cancel cancels a leased job (a job that this pool has claimed) on behalf of the user with this uid. It
// waits until the cancellation is recorded or, if the attempt ends by itself first, until that end is
// recorded. It returns false if the job is not leased.
func (p *Pool) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	leased, err := p.ChangeUnstarted(ctx, seq, store.Change{Verb: queue.VerbCancel, UID: uid})
	if errors.Is(err, ErrAttemptStarted) {
		h, err := p.endAttempt(ctx, seq, queue.EndKilled, uid, "cancel")
		return h != nil, err
	}
	return leased, err
}

// Requeue ends the attempt of a leased job (a job that this pool has claimed) on behalf of the user with this
// uid, and returns the job to the queue. It waits until the return is recorded. If the attempt ends in
// another way first, it returns ErrAttemptEnded. It returns false if the job is not leased.
func (p *Pool) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	h, err := p.endAttempt(ctx, seq, queue.EndStopped, uid, "requeue")
	if h == nil || err != nil {
		return h != nil, err
	}
	if lockedValue(p, &h.phase) != phaseReturned {
		err = ErrAttemptEnded
	}
	return true, err
}

// ChangeUnstarted changes a leased job (a job that this pool has claimed) that has not started. It returns
// when one commit has stored both the change and the job's return to the queue. If the attempt has started,
// ChangeUnstarted returns ErrAttemptStarted. It returns false if the job is not leased or its lease has
// ended; the caller can then change the job in the store.
func (p *Pool) ChangeUnstarted(ctx context.Context, seq int64, c store.Change) (bool, error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	if h == nil {
		p.mu.Unlock()
		return false, nil
	}
	if h.phase.isEndDecided() { // wait until the lease has ended; the store may already have recorded the end
		p.mu.Unlock()
		_, err := p.awaitAnswer(ctx, h, nil)
		return err != nil, err
	}
	if h.phase.mayHaveStarted() {
		p.mu.Unlock()
		return true, ErrAttemptStarted
	}
	a := &pendingChange{Change: c, answer: make(chan error, 1)}
	h.pendingChanges = append(h.pendingChanges, a)
	if len(h.pendingChanges) == 1 { // for later changes, the runner was already asked to give the job back
		p.sendDropLocked(h)
	}
	p.mu.Unlock()
	answered, err := p.awaitAnswer(ctx, h, a.answer)
	if !answered && err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.pendingChanges = slices.DeleteFunc(h.pendingChanges, func(other *pendingChange) bool { return other == a })
	}
	return answered || err != nil, err
}

// ReturnUnstarted returns a job that this pool has claimed to the queue if the job has not started. It waits
// until the return is stored. If the attempt has started, ReturnUnstarted returns ErrAttemptStarted.
func (p *Pool) ReturnUnstarted(ctx context.Context, seq int64) error {
	edit := func(*queue.Job) error { return store.ErrStateChanged }
	_, err := p.ChangeUnstarted(ctx, seq, store.Change{Verb: queue.VerbEdit, Edit: edit})
	if errors.Is(err, store.ErrStateChanged) { // as intended: edit refuses the change, so the job was only returned
		err = nil
	}
	return err
}

// pendingChange is a change of a job that this pool has claimed, with the caller that waits for the change.
type pendingChange struct {
	store.Change
	answer chan error // receives the error, or nil; has a buffer of one, so that sending does not block
}

// endAttempt ends the attempt of a leased job (a job that this pool has claimed). It waits until the
// attempt's end, or the job's return to the queue, is recorded. It returns the lease, or nil if the job is
// not leased.
func (p *Pool) endAttempt(ctx context.Context, seq int64, end queue.EndCause, uid int, verb string) (*lease, error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	p.mu.Unlock()
	if h == nil {
		return nil, nil
	}
	p.requestEnd(h, end, &uid, verb)
	_, err := p.awaitAnswer(ctx, h, nil)
	return h, withConsequence(err, "if the runner answers later, it ends the job then")
}

// withConsequence adds to the error about an unresponsive runner what will happen to the user's request
// later. It returns other errors unchanged.
func withConsequence(err error, consequence string) error {
	if errors.Is(err, queue.ErrUnavailable) {
		return queue.Errorf(queue.CodeUnavailable, "%v; %s", err, consequence)
	}
	return err
}

// requestEnd asks the runner of a lease to end the attempt. If the attempt has not started, the job returns
// to the queue instead.
func (p *Pool) requestEnd(h *lease, end queue.EndCause, endedBy *int, verb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.endRequest == nil || end == queue.EndKilled {
		h.endRequest = &endRequest{cause: end, grace: h.job.KillAfter, endedBy: endedBy, auditVerb: verb}
	}
	// Limit the grace period to maxGrace, except if the job's own user ends the job. That user gets the full
	// kill_after.
	if p.stopping || endedBy == nil || *endedBy != h.job.UID || verb == "worker.stop" {
		h.endRequest.grace = min(h.endRequest.grace, p.maxGrace)
	}
	switch {
	case h.conn == nil && !h.phase.neverSent(): // resendRequestsLocked will send the request when the runner is connected
	case h.mayHaveStartedLocked():
		h.conn.Send(&wire.EndAttempt{Lease: h.wireLease(), Cause: int64(end), Grace: h.endRequest.grace})
	default:
		p.sendDropLocked(h)
	}
}

// sendDropLocked asks the runner of a job to give the job back, with a Drop frame. The runner refuses if it
// has begun to start the job.
func (p *Pool) sendDropLocked(h *lease) {
	switch {
	case h.phase.neverSent():
		h.advanceLocked(eventWithdrawn)
		p.wake() // makes Run return the job to the queue
		return
	case h.conn == nil: // resendRequestsLocked will send the Drop frame when the runner is connected
		return
	case h.phase == phaseSent:
		h.advanceLocked(eventDropSent)
	}
	h.conn.Send(&wire.Drop{Lease: h.wireLease()})
}

// Signal sends a signal to all processes of a running job. It returns false if the job does not run. If the
// job's runner does not answer, the error contains the runner's pid.
func (p *Pool) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	h := p.awaitRunningLease(ctx, seq, signalStartWait)
	if h == nil {
		return false, nil
	}
	p.mu.Lock()
	if h.conn != nil {
		h.conn.Send(&wire.Signal{Lease: h.wireLease(), Number: int64(number)})
	}
	p.mu.Unlock()
	return true, withConsequence(p.checkRunnerOf(ctx, h), "the signal will be sent when the runner answers")
}

// awaitRunningLease returns the lease of a running job, or nil if the job does not run. If the job was sent
// to a runner, awaitRunningLease waits for its start, at most for the timeout.
func (p *Pool) awaitRunningLease(ctx context.Context, seq int64, timeout time.Duration) *lease {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	mayRun := h != nil && (h.conn != nil || h.hasStarted())
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !mayRun || !p.awaitStart(ctx, h) {
		return nil
	}
	return h
}

// signalStartWait is how long Signal waits until a job that was sent to a runner is known to have started.
// Runners normally report a start together with their next results, but immediately for jobs that the service
// watches.
const signalStartWait = 100 * time.Millisecond

// WatchEnd makes the runner of a job report the job's end immediately. This applies to the current attempt
// and to later attempts, until the caller calls the returned function.
func (p *Pool) WatchEnd(seq int64) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases.watcherCounts[seq]++
	if h := p.leases.bySeq[seq]; h != nil && h.conn != nil {
		h.conn.Send(&wire.ReportImmediately{Lease: h.wireLease()})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.leases.watcherCounts[seq]--; p.leases.watcherCounts[seq] <= 0 {
			delete(p.leases.watcherCounts, seq)
		}
	}
}

// ReadOutput reads the output of an attempt of a running job after a position. attempt is its number; 0 means
// the attempt that runs now. cursor holds the position in stdout and in stderr (output.Cursor). If wait is true,
// ReadOutput waits until there is output or the lease ends. If wait is false and the runner does not answer, it
// returns an error that names the runner.
//
// ok is false if the job's runner is not connected, or if the attempt's lease has ended. If the lease has ended,
// the store has the output or will get it, or the job runs under another lease.
func (p *Pool) ReadOutput(ctx context.Context, seq int64, attempt int, cursor [2]int64, wait bool) (
	chunk *wire.ReadOutputReply, ok bool, err error,
) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	var conn *runnerConn
	if h != nil && (attempt == 0 || attempt == h.job.StartedAttempts+1) {
		conn = h.conn
	}
	p.mu.Unlock()
	if conn == nil {
		return nil, false, nil
	}
	readCtx, cancel, leaseDone := ctx, func() {}, h.storedSignal
	if !wait {
		readCtx, cancel = context.WithTimeout(ctx, livenessTimeout)
		leaseDone = nil
	}
	defer cancel()
	chunk, err = conn.ReadOutput(readCtx, h.wireLease(), cursor, leaseDone)
	switch {
	case errors.Is(err, runner.ErrNoReply):
		// This is not an error: the caller reads the job's state from the store, or uses RunnerConnected to
		// wait for the next connection.
		return nil, false, nil
	case err != nil && ctx.Err() == nil:
		return nil, false, p.unresponsiveError(conn.HelloReply.PID, h)
	case err != nil || chunk.AttemptGone:
		return nil, false, err
	}
	return chunk, true, nil
}

// LeasedAttemptNumber returns the number of a job's current attempt, or 0 if this pool has not claimed the
// job.
func (p *Pool) LeasedAttemptNumber(seq int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.leases.bySeq[seq]; h != nil {
		return h.job.StartedAttempts + 1
	}
	return 0
}
