package worker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Prolong says until when the leases are this pool's, or that they are for ever, with the zero time. What runs at that instant is ended by
// its runner, whether this process lives or not. It is to be called before that again and again, and before Run; a pool that
// was never told has them for ever.
func (p *Pool) Prolong(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until.IsZero() && p.until.IsZero() {
		return
	}
	p.until = until
	for _, conn := range p.runners.clients {
		p.prolong(conn)
	}
}

// prolong tells a runner, which may have heard of an end from an earlier service. The caller holds mu.
func (p *Pool) prolong(conn *runnerConn) {
	f := &wire.Prolong{} // for ever
	if !p.until.IsZero() {
		f.For = max(time.Nanosecond, time.Until(p.until))
		f.By = (runner.SinceBoot() + f.For).Milliseconds() // it may be heard late
	}
	conn.Send(f)
}

// lapsed reports whether the leases may be others'. The caller holds mu.
func (p *Pool) lapsed() bool { return !p.until.IsZero() && !time.Now().Before(p.until) }

// endLeft ends what a runner that has died has left alive, of leases that may be others' soon: Run, which recovers it, may wait for the
// store until then. A runner that lives ends it itself.
func (p *Pool) endLeft(ctx context.Context, dir string) {
	p.mu.Lock()
	ends := !p.until.IsZero()
	p.mu.Unlock()
	if !ends {
		return
	}
	for wait := contactFirst; wait <= contactLast; wait *= 2 { // its lock may outlive its connection for a moment
		by, err := p.cleaner(filepath.Dir(dir))
		if lives, unknown := runner.Lives(dir); !lives && unknown == nil && err == nil {
			if by != nil || !p.cfg.Runners.Foreign() {
				p.recoverBy(ctx, by, dir, nil, nil) // Run does so again, and tells of what it meets
			}
			return
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// Lost has leases be settled that were another node's, which is gone: of one that is not known to have started nobody
// knows whether it has. It may be called while Run runs.
func (p *Pool) Lost(list []store.LostLease) {
	p.mu.Lock()
	p.orphaned = append(p.orphaned, list...)
	p.mu.Unlock()
	p.ring()
}

// settleLost has what Lost was told be recorded.
func (l *loop) settleLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := queue.MillisOf(time.Now())
	for i := range l.orphaned {
		j := &l.orphaned[i].Job
		how := queue.PerhapsInterrupted
		a := queue.Attempt{Fence: j.Fence, Node: l.orphaned[i].From, StartedAt: now, EndedAt: now, ExitCode: -1}
		if l.orphaned[i].Running {
			how = queue.Interrupted
			a.Worker, a.PID, a.StartedAt = j.WorkerID, j.PID, j.StartedAt
		}
		d := queue.Decide(j, queue.Outcome{End: how, ExitCode: -1, Paused: j.PausedAt != 0}, l.cfg.Policy())
		if d.Error == "" {
			d.Error = "the node that ran the job is gone: " + l.orphaned[i].From
		}
		l.session.settle(store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d})
	}
	l.orphaned = nil
}
