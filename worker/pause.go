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

// That a job is paused is recorded first, and then its runner is told. A runner that is met again
// is told anew what is recorded, so whatever is lost between both holds in the end.

// ErrAllPaused refuses to resume a job that stands still because everything does.
// See docs/decisions/0049.
var ErrAllPaused = queue.Errorf(queue.CodeWrongState, "all jobs are paused; resume them with: queuectl resume --all")

// beginsWithin is how long a pause waits to hear that its job runs: what its runner has not begun
// is asked back long before.
const beginsWithin = time.Second

// pausedWithin bounds the wait for a runner that freezes a tree, or has it go on.
const pausedWithin = 5 * time.Second

// Pause records that a running job is paused, on behalf of uid, or resumed, and waits until its
// tree stands still, or goes on. It reports whether the job runs. An error names a runner that
// does not answer, or says what still runs.
func (p *Pool) Pause(ctx context.Context, seq int64, on bool, uid int) (bool, error) {
	h := p.runningSoon(ctx, seq, beginsWithin)
	if h == nil {
		return false, nil
	}
	leave, err := p.enterPause(ctx, h)
	if err != nil {
		return true, err
	}
	defer leave()
	p.mu.Lock()
	ends, byAll := h.end != nil, !on && !h.paused && p.standsStill(h)
	p.mu.Unlock()
	switch {
	case ends && on:
		return true, errEnding
	case byAll:
		return true, ErrAllPaused
	}
	for err = store.ErrLeased; errors.Is(err, store.ErrLeased); { // its start is about to be recorded
		if err = p.store.Pause(ctx, store.Pause{Lease: h.job.Lease(), On: on, UID: uid}); errors.Is(err, store.ErrLeased) {
			pause(ctx, time.Millisecond)
		}
	}
	if errors.Is(err, store.ErrMoved) {
		return false, nil // it has ended meanwhile
	}
	if err != nil {
		return true, err
	}
	p.mu.Lock()
	h.paused = on
	p.mu.Unlock()
	return true, p.tellPause(ctx, h)
}

// Thaw has a paused job go on, on behalf of uid, for a signal that it is to handle: also where
// everything is paused.
func (p *Pool) Thaw(ctx context.Context, seq int64, uid int) error {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	still := h != nil && p.standsStill(h)
	if still {
		h.woken = true
	}
	p.mu.Unlock()
	if !still {
		return nil
	}
	_, err := p.Pause(ctx, seq, false, uid)
	return err
}

// PauseAll starts nothing and freezes whatever runs, or undoes that, but for jobs that are paused
// by themselves. What it returns waits until these trees stand still, or go on, and lists the ids
// of their jobs.
func (p *Pool) PauseAll(on bool) (wait func(context.Context) ([]string, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = on
	var list []*leaseState
	if on {
		p.recall(func(*leaseState) bool { return true })
	}
	for _, h := range p.leases.byAge() {
		h.woken = false
		if h.conn != nil && h.end == nil && !h.paused {
			list = append(list, h)
		}
	}
	p.ring()
	return func(ctx context.Context) ([]string, error) { return p.tellAll(ctx, list) }
}

// Withdraw gives back what is leased of a queue and has not begun. It lists the jobs that have, or may have,
// and says how many of the others have not been given back yet.
func (p *Pool) Withdraw(name string) (begun []int64, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.leases.byAge() {
		switch {
		case h.job.Queue != name || h.over:
		case h.running || h.begun:
			begun = append(begun, h.job.Seq)
		default:
			left++
		}
	}
	p.recall(func(h *leaseState) bool { return h.job.Queue == name })
	return begun, left
}

// tellAll has the runners of leases do what is recorded, all at once, and lists the ids of those
// jobs that run.
func (p *Pool) tellAll(ctx context.Context, list []*leaseState) (ids []string, err error) {
	errs := make([]error, len(list))
	var calls sync.WaitGroup
	for i, h := range list {
		calls.Go(func() {
			if err := p.tellPause(ctx, h); err != errEnding {
				errs[i] = err
			}
		})
	}
	calls.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range list {
		if h.running && !h.over {
			ids = append(ids, h.job.ID)
		}
	}
	return ids, errors.Join(errs...)
}

// Frozen reports whether everything is paused.
func (p *Pool) Frozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen
}

// standsStill reports whether a lease's tree is to stand still. The caller holds mu.
func (p *Pool) standsStill(h *leaseState) bool { return h.paused || p.frozen && !h.woken }

// enterPause waits until nobody else pauses or resumes a job: what is recorded last is to be what
// its runner is told last.
func (p *Pool) enterPause(ctx context.Context, h *leaseState) (leave func(), err error) {
	for {
		p.mu.Lock()
		other := h.pausing
		if other == nil {
			own := make(chan struct{})
			h.pausing = own
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				h.pausing = nil
				close(own)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tellPause has the runner of a lease do what is recorded, and waits until it has. A runner that
// is not connected is told when it is met.
func (p *Pool) tellPause(ctx context.Context, h *leaseState) error {
	for {
		p.mu.Lock()
		conn, still := h.conn, p.standsStill(h)
		p.mu.Unlock()
		what := "the job will resume when the runner answers"
		if still {
			what = "the job will pause when the runner answers"
		}
		if conn == nil {
			return later(p.answers(ctx, h), what)
		}
		within, cancel := context.WithTimeout(ctx, pausedWithin)
		left, err := conn.Pause(within, h.lease(), still)
		cancel()
		p.mu.Lock()
		changed := p.standsStill(h) != still // meanwhile, so that this may have been told last
		p.mu.Unlock()
		switch {
		case changed && ctx.Err() == nil:
		case errors.Is(err, runner.ErrEnds) && still:
			return errEnding
		case errors.Is(err, runner.ErrEnds), errors.Is(err, runner.ErrGone):
			return nil // there is nothing to resume, or it is told when its runner is met again
		case err != nil && ctx.Err() == nil:
			return later(p.silence(conn.Reply.PID, h), what)
		case err != nil:
			return err
		case left > 0 && still:
			return queue.Errorf(queue.CodeUnavailable, "job %s is paused, but %d of its processes still run: they start and end too quickly, or cannot be stopped; the runner keeps trying", h.job.ID, left)
		default:
			return nil
		}
	}
}

// errEnding refuses to pause a job whose attempt has ended, or is being ended.
var errEnding = queue.Errorf(queue.CodeWrongState, "the job is ending, so it cannot be paused")

// pauseAgain tells a runner that was met whether a lease's tree is to stand still. The caller
// holds mu.
func (p *Pool) pauseAgain(h *leaseState) {
	if h.end == nil {
		h.conn.Send(&wire.Pause{Lease: h.lease(), On: p.standsStill(h)})
	}
}

// heldBack reports whether what is given back of a lease is to be held: its person had it paused,
// and has not asked for it to run anew. What a frozen queue keeps needs no hold.
func (p *Pool) heldBack(h *leaseState) bool {
	return h.paused && h.verb != "requeue" && !(p.cfg.Frozen != nil && p.cfg.Frozen(h.job.Queue))
}
