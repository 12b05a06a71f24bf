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

// ErrRuns refuses a change of a job whose attempt has started.
var ErrRuns = errors.New("the job is running")

// ErrOtherwise says that an attempt which was to be given back came to another end.
var ErrOtherwise = errors.New("the attempt ended in another way")

// Cancel ends a leased job for good, on behalf of uid, and waits until that, or
// how it ended before, is recorded. It reports whether the job was leased.
func (p *Pool) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	leased, err := p.Change(ctx, seq, store.Change{Verb: queue.VerbCancel, UID: uid})
	if errors.Is(err, ErrRuns) {
		h, err := p.end(ctx, seq, queue.Killed, uid, "cancel")
		return h != nil, err
	}
	return leased, err
}

// Requeue ends what runs of a leased job, on behalf of uid, gives it back, and waits
// until that, or how it ended before, which is ErrOtherwise, is recorded. It reports whether the job was
// leased.
func (p *Pool) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	h, err := p.end(ctx, seq, queue.Stopped, uid, "requeue")
	if h == nil || err != nil {
		return h != nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !h.returned {
		err = ErrOtherwise
	}
	return true, err
}

// Change has a leased job that has not started given back and changed in the
// same commit, and waits for that; one that has started is ErrRuns, unless its end is being stored, which is
// waited for. It reports whether the job was leased and dealt with; if not, it is the store's again.
func (p *Pool) Change(ctx context.Context, seq int64, c store.Change) (bool, error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	if h == nil {
		p.mu.Unlock()
		return false, nil
	}
	if h.over { // others may know of its end already
		p.mu.Unlock()
		_, err := p.waitFor(ctx, h, nil)
		return err != nil, err
	}
	if h.running || h.begun {
		p.mu.Unlock()
		return true, ErrRuns
	}
	answered, err := p.askFor(ctx, h, &pendingChange{Change: c, answer: make(chan error, 1)})
	return answered || err != nil, err
}

// askFor has a lease that has not started given back, and waits for that. The caller holds mu, which it lets go.
func (p *Pool) askFor(ctx context.Context, h *leaseState, a *pendingChange) (answered bool, err error) {
	h.asks = append(h.asks, a)
	if len(h.asks) == 1 { // else it is being asked for
		p.drop(h)
	}
	p.mu.Unlock()
	answered, err = p.waitFor(ctx, h, a.answer)
	if !answered && err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.asks = slices.DeleteFunc(h.asks, func(o *pendingChange) bool { return o == a })
	}
	return answered, err
}

// GiveBack has a job that is leased and has not started be given back, and waits for that. One that has started is ErrRuns. It
// reports whether there was a lease.
func (p *Pool) GiveBack(ctx context.Context, seq int64) (bool, error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	if h == nil || h.running || h.begun {
		p.mu.Unlock()
		if h == nil {
			return false, nil
		}
		return true, ErrRuns
	}
	_, err := p.askFor(ctx, h, &pendingChange{release: true, answer: make(chan error, 1)})
	return true, err
}

// end ends what runs of a leased job and waits until it is settled or given back. Of one that is not leased there is no lease.
func (p *Pool) end(ctx context.Context, seq int64, how queue.End, uid int, verb string) (*leaseState, error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	p.mu.Unlock()
	if h == nil {
		return nil, nil
	}
	p.endOne(h, how, &uid, verb)
	_, err := p.waitFor(ctx, h, nil)
	return h, later(err, "the job will be ended when the runner answers")
}

// later adds to the error about a runner that does not answer what becomes of what was asked.
func later(err error, what string) error {
	if errors.Is(err, queue.ErrUnavailable) {
		return queue.Errorf(queue.CodeUnavailable, "%v; %s", err, what)
	}
	return err
}

// endOne has a lease dropped if it has not started, or its tree ended if it has.
func (p *Pool) endOne(h *leaseState, how queue.End, by *int, verb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.end == nil || how == queue.Killed {
		h.end, h.grace, h.by, h.verb = &how, h.job.KillAfter, by, verb
	}
	if p.stopping || by == nil || *by != h.job.UID || verb == "worker.stop" { // only its user waits for as long as the job asks
		h.grace = min(h.grace, p.grace)
	}
	switch {
	case h.conn == nil && !h.waiting: // it is told once its runner is connected
	case h.running || h.begun:
		h.conn.Send(&wire.Kill{Lease: h.lease(), Cause: int64(how), Grace: h.grace})
	default:
		p.drop(h)
	}
}

// drop asks for what has not started back. The caller holds mu.
func (p *Pool) drop(h *leaseState) {
	h.dropSent = true
	if h.conn == nil {
		p.ring() // Run gives back what waits for a runner
		return
	}
	h.conn.Send(&wire.Drop{Lease: h.lease()})
}

// Signal sends a signal to a running job's whole tree. It reports whether the job
// runs; an error names a runner that does not answer.
func (p *Pool) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	h := p.runningSoon(ctx, seq, startedWithin)
	if h == nil {
		return false, nil
	}
	p.mu.Lock()
	if h.conn != nil {
		h.conn.Send(&wire.Signal{Lease: h.lease(), Number: int64(number)})
	}
	p.mu.Unlock()
	return true, later(p.answers(ctx, h), "the signal will be sent when the runner answers")
}

// runningSoon is the lease of a job that runs, or is heard to within a while; nil if it does not.
func (p *Pool) runningSoon(ctx context.Context, seq int64, within time.Duration) *leaseState {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.leases.bySeq[seq]
	if h != nil && !h.running && !h.waiting && h.conn != nil {
		h.conn.Send(&wire.Watch{Lease: h.lease()}) // its start is told at once then
		p.mu.Unlock()
		select {
		case <-h.started:
		case <-h.done:
		case <-time.After(within):
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
	if h == nil || !h.running {
		return nil
	}
	return h
}

// startedWithin is how long a signal waits to hear that its job runs: a start is told with
// the next results, but at once to who asks for it.
const startedWithin = 100 * time.Millisecond

// Watch has the end of a job told at once, whenever it runs, until stop.
func (p *Pool) Watch(seq int64) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases.watched[seq]++
	if h := p.leases.bySeq[seq]; h != nil && h.conn != nil {
		h.conn.Send(&wire.Watch{Lease: h.lease()})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.leases.watched[seq]--; p.leases.watched[seq] <= 0 {
			delete(p.leases.watched, seq)
		}
	}
}

// Read reads output of a running job after a cursor; wait waits for some, as long as the
// lease lasts. ok is false when the job does not run here: its output is in the store, or
// will be, or another lease has it run again; or its runner is not connected now. Without
// wait, a runner that does not answer is an error that names it.
// The chunk is as wire.Chunk says.
func (p *Pool) Read(ctx context.Context, seq int64, cursor [2]int64, wait bool) (chunk *wire.Chunk, ok bool, err error) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	var conn *runnerConn
	if h != nil {
		conn = h.conn
	}
	p.mu.Unlock()
	if conn == nil {
		return nil, false, nil
	}
	within, cancel, until := ctx, func() {}, h.done
	if !wait {
		within, cancel = context.WithTimeout(ctx, aliveWithin)
		until = nil
	}
	defer cancel()
	chunk, err = conn.Read(within, h.lease(), cursor, until)
	switch {
	case errors.Is(err, runner.ErrGone):
		return nil, false, nil // Connected tells of the next connection, the store of what becomes of the job
	case err != nil && ctx.Err() == nil:
		return nil, false, p.silence(conn.Reply.PID, h)
	case err != nil || chunk.Gone:
		return nil, false, err
	}
	return chunk, true, nil
}

// Running is which attempt of a job is held here, by number; 0 is none.
func (p *Pool) Running(seq int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.leases.bySeq[seq]; h != nil {
		return h.job.Runs + 1
	}
	return 0
}
