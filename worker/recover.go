package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// settleRemains settles what a dead runner ran: by its journal, or as lost. The folder
// goes once that is stored.
func (p *Pool) settleRemains(f finding) {
	r, dir := f.remains, f.contact.dir
	p.mu.Lock()
	settled, lost := 0, 0
	for _, result := range r.Results {
		if h := p.orphan(result.Lease, dir); h != nil {
			h.over = true
			p.pending.Ended = append(p.pending.Ended, p.settlement(&h.job, result, dir))
			settled++
		}
	}
	for i := range r.Running {
		a := &r.Running[i]
		if h := p.orphan(a.Lease, dir); h != nil {
			h.over = true
			p.pending.Ended = append(p.pending.Ended, p.lost(h, a, h.asAsked(howLost(*r, a.Lease), slices.Contains(r.Alive, a.Lease)), dir))
			lost++
		}
	}
	p.rebooted = p.rebooted || !r.SameBoot
	if r.Damaged {
		p.unsure = append(p.unsure, dir)
	}
	if !f.stays {
		p.stored = append(p.stored, func() {
			if err := runner.Forget(dir, f.by); err != nil { // on Windows whoever reads a file keeps it there
				p.cfg.Log.Warn("a dead runner's folder stays, to be removed at the next start", "folder", dir, "error", err)
			}
		})
	}
	p.mu.Unlock()
	p.ring()
	for _, left := range r.Stuck {
		p.cfg.Log.Error("a process of a dead runner outlives SIGKILL", "pid", left.PID, "runner", dir)
	}
	if lost > 0 {
		p.cfg.Log.Warn("a runner has died", "runner", dir, "results", settled, "lost", lost)
	} else {
		p.cfg.Log.Info("a runner had ended", "runner", dir, "results", settled)
	}
}

// orphan is a lease without a connection that may be of a runner's folder, nil if there is
// none. The caller holds mu.
func (p *Pool) orphan(lease wire.Lease, dir string) *leaseState {
	if h := p.leases[queue.Lease(lease)]; h != nil && h.conn == nil && !h.over && (h.dir == dir || h.dir == "" && !h.waiting) {
		return h
	}
	return nil
}

// abandon gives up the leases that were sent to a runner, if it does not know them: it
// never got them, or its notes are damaged.
func (p *Pool) abandon(f finding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.leases {
		if h.conn == nil && !h.over && h.dir == f.contact.dir {
			p.unknown(h, f.remains != nil && f.remains.Damaged, f.remains == nil || f.remains.SameBoot)
		}
	}
}

// unknown gives back a lease of which no runner knows, or settles it as lost if it had
// been started. unsure says that it may have been, for notes are damaged. The caller
// holds mu.
func (p *Pool) unknown(h *leaseState, unsure, sameBoot bool) {
	how := queue.End(0)
	switch {
	case h.running || h.begun:
		how = queue.Interrupted
		if sameBoot {
			how = queue.Lost
		}
	case unsure:
		how = queue.PerhapsInterrupted
		if sameBoot {
			how = queue.PerhapsLost
		}
	}
	if how == 0 {
		p.giveBack(h)
		return
	}
	h.over = true
	p.pending.Ended = append(p.pending.Ended, p.lost(h, nil, h.asAsked(how, false), ""))
	p.ring()
}

// asAsked is how an attempt ended whose runner is gone: as somebody had asked, if that was
// to cancel it, or if it lived until it was ended. Else nobody knows how it ended.
func (h *leaseState) asAsked(how queue.End, lived bool) queue.End {
	if how != queue.Unkillable && h.end != nil && (*h.end == queue.Killed || lived) {
		return *h.end
	}
	return how
}

// seekStrays looks, once all folders are found, for what the leases of which no runner
// knows have left alive: their runner's folder may be gone, and they live on.
func (p *Pool) seekStrays(ctx context.Context, loops *sync.WaitGroup) {
	p.mu.Lock()
	leased, _ := p.leasedIn("")
	p.seeking = len(leased) > 0
	p.mu.Unlock()
	if len(leased) == 0 {
		return
	}
	if !p.moved { // else they are of the queue that this one is a copy of
		after := time.Duration(0)
		if p.missing {
			after = startBy + startSpare
		}
		loops.Go(func() { p.seek(ctx, leased, after) })
		return
	}
	p.settleStrays(finding{})
}

// seek looks for them once a while has passed: a runner whose folder is gone may live, and
// begin what it was sent by an earlier service for as long as it has to.
func (p *Pool) seek(ctx context.Context, leased []wire.Attempt, after time.Duration) {
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return
	}
	for wait := contactFirst; ; wait = min(2*wait, contactLast) {
		by, err := p.cleaner(p.cfg.Runners.Root())
		var r runner.Remains
		if err == nil {
			r, _, err = p.recoverBy(ctx, by, "", nil, leased)
		}
		if err == nil {
			f := finding{}
			for _, lease := range r.Alive {
				f.strays = append(f.strays, queue.Lease(lease))
			}
			select {
			case p.found <- f:
			case <-ctx.Done():
			}
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// settleStrays settles the leases of which no runner knows: what had processes had been
// started.
func (p *Pool) settleStrays(f finding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seeking = false
	for _, lease := range f.strays {
		if h := p.leases[lease]; h != nil && h.conn == nil {
			h.begun = true
		}
	}
	for _, h := range p.leases {
		if h.conn == nil && !h.over && h.dir == "" && !h.waiting {
			p.unknown(h, len(p.unsure) > 0, !p.rebooted)
		}
	}
	p.ring()
}

// lost is the settlement of an attempt whose runner, of a folder, has died; running is
// nil if the runner has not noted that it began. Of one of which nobody has, it is not known
// when it began, if it did: it has lasted no time.
func (p *Pool) lost(h *leaseState, running *wire.Attempt, how queue.End, dir string) store.Settlement {
	j, now := &h.job, p.now()
	o := queue.Outcome{End: how, ExitCode: -1, Alone: runner.Isolated(dir)}
	a := queue.Attempt{Fence: j.Fence, Node: p.cfg.Node, StartedAt: now, EndedAt: now, ExitCode: -1}
	switch {
	case running != nil:
		a.Worker, a.PID, a.StartedAt = runner.Worker(dir, running.Slot), int(running.PID), queue.Millis(running.StartedAt)
	case h.running:
		a.Worker, a.PID, a.StartedAt = h.worker, h.pid, h.at
	}
	d := queue.Decide(j, o, p.cfg.Policy())
	left := runner.OutputRef(wire.Lease(j.Lease())) // of a runner that died before it could tell
	s := store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d, DeletableOutput: left}
	h.blame(&s)
	return s
}

// howLost is how an attempt ended whose runner has died.
func howLost(r runner.Remains, lease wire.Lease) queue.End {
	switch {
	case r.Unkilled[lease]:
		return queue.Unkillable
	case r.SameBoot:
		return queue.Lost
	}
	return queue.Interrupted
}
