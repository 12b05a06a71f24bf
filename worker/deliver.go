package worker

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// delivery is what a runner has sent at once.
type delivery struct {
	from   *runnerConn
	frames []wire.Frame // nil: the connection has ended
}

// deliver deals with what a runner has sent.
func (l *loop) deliver(d delivery) {
	if d.frames == nil {
		l.runnerGone(d.from)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runners.answers(d.from)
	for _, f := range d.frames {
		switch f := f.(type) {
		case *wire.Started:
			if h := l.leases.all[queue.Lease(f.Lease)]; h != nil && h.conn == d.from {
				l.running(h, f.Attempt)
			}
		case *wire.Result:
			l.result(d.from, f)
		case *wire.Dropped:
			l.dropped(d.from, f)
		case *wire.Stuck:
			l.runners.stuck(d.from, f.Attempts)
		}
	}
}

// result settles an attempt. It counts from the runner alone that holds the lease. The
// caller holds mu.
func (l *loop) result(from *runnerConn, r *wire.Result) {
	h := l.leases.all[queue.Lease(r.Lease)]
	if h != nil && h.conn != from {
		return
	}
	l.session.acks[from] = append(l.session.acks[from], r.Lease)
	if h == nil {
		l.ring() // stored already, or given up: acknowledged with the next turn
		return
	}
	if h.over {
		return // told again by another connection
	}
	h.over = true
	if r.Cause == int64(queue.Stopped) && h.end != nil {
		r.Cause = int64(*h.end) // somebody has cancelled it since
	}
	s := l.settlement(&h.job, r, from.Dir)
	h.blame(&s)
	l.session.pending.Started = slices.DeleteFunc(l.session.pending.Started, func(st store.Started) bool { return st.Lease == s.Lease }) // its end says so too
	l.learn(h, r)
	l.session.settle(s)
}

// dropped gives back what was not started, or ends what was. The caller holds mu.
func (l *loop) dropped(from *runnerConn, f *wire.Dropped) {
	h := l.leases.all[queue.Lease(f.Lease)]
	if h == nil || h.over || h.conn != from {
		return
	}
	h.asked, h.sent = false, time.Now()
	if f.Dropped {
		l.giveBack(h)
		return
	}
	h.begun = true // it is running, and will say so
	if h.end != nil {
		h.conn.Send(&wire.Kill{Lease: f.Lease, Cause: int64(*h.end), Grace: h.grace})
	}
	for _, a := range h.asks {
		a.answer <- ErrRuns
	}
	h.asks = nil
}

// giveBack returns a lease that was never started, changed as the first that asked has
// it. The caller holds mu.
func (l *loop) giveBack(h *leaseState) {
	h.over = true
	if len(h.asks) > 0 {
		l.session.pending.Changed = append(l.session.pending.Changed, store.Changed{Lease: h.job.Lease(), Change: h.asks[0].Change})
	} else {
		l.session.pending.Released = append(l.session.pending.Released, h.job.Lease())
	}
	l.ring()
}
