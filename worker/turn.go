package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// await claims in the background, waiting for the first job.
func (p *Pool) await(ctx context.Context, want int, loops *sync.WaitGroup) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.waiting = true
	loops.Go(func() {
		jobs, err := p.store.Await(ctx, want)
		p.grants <- grant{jobs, err} // buffered: one Await at a time
	})
}

func (p *Pool) granted(ctx context.Context, g grant, loops *sync.WaitGroup) error {
	p.waiting = false
	p.cancel()
	switch {
	case len(g.jobs) > 0:
		p.startAll(ctx, g.jobs, false, loops)
		return nil
	case g.err == nil || errors.Is(g.err, context.Canceled):
		return nil
	}
	return p.storeFailed(g.err)
}

// recorded forgets what the store has taken, says what it has refused, and hands back
// what the log is to be told.
func (p *Pool) recorded(turn store.Report, refused map[queue.Lease]error) []remark {
	p.mu.Lock()
	remarks := append(p.unheld, p.remarks(turn.Ended, func(lease queue.Lease) *queue.Job {
		if h := p.leases[lease]; h != nil {
			return &h.job
		}
		return nil
	})...)
	p.unheld = nil
	attempts := 0
	for i := range turn.Ended {
		if turn.Ended[i].Decision.Started {
			attempts++
		}
		p.forget(turn.Ended[i].Lease)
	}
	p.rate.add(time.Now(), attempts)
	for _, lease := range turn.Released {
		p.forget(lease)
	}
	for i := range turn.Changed {
		lease := turn.Changed[i].Lease
		if h := p.leases[lease]; h != nil && len(h.asks) > 0 {
			h.asks[0].told(refused[lease]) // the others find the job in the store
		}
		p.forget(lease)
	}
	p.mu.Unlock()
	clear(turn.Ended)
	p.pending = store.Report{Ended: turn.Ended[:0]}
	return remarks
}

// acknowledge tells the runners what need not be kept any more.
func (p *Pool) acknowledge() {
	for conn, leases := range p.acks {
		conn.Send(&wire.Ack{Leases: leases})
		delete(p.acks, conn)
	}
}

// forget drops a lease that has come to its end. The caller holds mu.
func (p *Pool) forget(lease queue.Lease) {
	h := p.leases[lease]
	if h == nil {
		return
	}
	delete(p.leases, lease)
	if p.bySeq[lease.Seq] == h {
		delete(p.bySeq, lease.Seq)
	}
	close(h.done)
	close(p.ended)
	p.ended = make(chan struct{})
}

// start hands claimed jobs to the current runner; stored says that all results so
// far are, and are to be acknowledged in the same go.
func (p *Pool) start(jobs []queue.Job, stored bool) {
	if len(jobs) == 0 {
		return
	}
	hitClaimed()
	p.mu.Lock()
	defer p.mu.Unlock()
	conn := p.current()
	frames := make([]wire.Frame, 0, len(jobs)+1)
	if acks := p.acks[conn]; stored && len(acks) > 0 {
		frames = append(frames, &wire.Ack{Leases: acks})
		delete(p.acks, conn)
	}
	for i := range jobs {
		j := &jobs[i]
		if conn == nil || p.stopping || p.draining { // the runner died, or its end was asked for, while these were claimed
			p.pending.Released = append(p.pending.Released, j.Lease())
			p.ring()
			continue
		}
		h := p.hold(j)
		h.conn, h.dir = conn, conn.Dir
		frames = p.startFrames(frames, j)
		if p.watched[j.Seq] > 0 {
			frames = append(frames, &wire.Watch{Lease: wire.Lease(j.Lease())})
		}
	}
	if len(frames) > 0 {
		conn.Send(frames...)
		hitStartSent()
	}
}
