package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// deliver deals with what a runner has sent.
func (p *Pool) deliver(ctx context.Context, d delivery, loops *sync.WaitGroup) {
	if d.frames == nil {
		p.runnerGone(ctx, d.from, loops)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard(d.from)
	for _, f := range d.frames {
		switch f := f.(type) {
		case *wire.Started:
			if h := p.leases[queue.Lease(f.Lease)]; h != nil && h.conn == d.from {
				p.running(h, f.Attempt)
			}
		case *wire.Result:
			p.result(d.from, f)
		case *wire.Dropped:
			p.dropped(d.from, f)
		case *wire.Stuck:
			p.stuckNow(d.from, f.Attempts)
		}
	}
}

// result settles an attempt. It counts from the runner alone that holds the lease. The
// caller holds mu.
func (p *Pool) result(from *runnerConn, r *wire.Result) {
	h := p.leases[queue.Lease(r.Lease)]
	if h != nil && h.conn != from {
		return
	}
	p.acks[from] = append(p.acks[from], r.Lease)
	if h == nil {
		p.ring() // stored already, or given up: acknowledged with the next turn
		return
	}
	if h.over {
		return // told again by another connection
	}
	h.over = true
	if r.Cause == int64(queue.Stopped) && h.end != nil {
		r.Cause = int64(*h.end) // somebody has cancelled it since
	}
	s := p.settlement(&h.job, r, from.Dir)
	h.blame(&s)
	p.pending.Started = slices.DeleteFunc(p.pending.Started, func(st store.Started) bool { return st.Lease == s.Lease }) // its end says so too
	p.learn(h, r)
	p.pending.Ended = append(p.pending.Ended, s)
}

// blame notes who had an attempt end.
func (h *leaseState) blame(s *store.Settlement) {
	if why := s.Decision.Reason; h.by != nil && (why == queue.ReasonCancelled || why == queue.ReasonStopped) {
		s.By, s.Verb = h.by, h.verb
	}
}

// dropped gives back what was not started, or ends what was. The caller holds mu.
func (p *Pool) dropped(from *runnerConn, f *wire.Dropped) {
	h := p.leases[queue.Lease(f.Lease)]
	if h == nil || h.over || h.conn != from {
		return
	}
	h.asked, h.sent = false, time.Now()
	if f.Dropped {
		p.giveBack(h)
		return
	}
	h.begun = true // it is running, and will say so
	if h.end != nil {
		h.conn.Send(&wire.Kill{Lease: f.Lease, Cause: int64(*h.end), Grace: h.grace})
	}
	for _, a := range h.asks {
		a.told(ErrRuns)
	}
	h.asks = nil
}

// giveBack returns a lease that was never started, changed as the first that asked has
// it. The caller holds mu.
func (p *Pool) giveBack(h *leaseState) {
	h.over = true
	if len(h.asks) > 0 {
		p.pending.Changed = append(p.pending.Changed, store.Changed{Lease: h.job.Lease(), Change: h.asks[0].Change})
	} else {
		p.pending.Released = append(p.pending.Released, h.job.Lease())
	}
	p.ring()
}
