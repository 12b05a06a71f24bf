package worker

import (
	"context"
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// needsRunner starts a runner for new jobs if there is none, and none is to be expected.
func (p *Pool) needsRunner(ctx context.Context, loops *sync.WaitGroup) {
	p.mu.Lock()
	needed := p.current() == nil && !p.stopping && !p.spawning
	for _, c := range p.contacts {
		if (c.current || c.initial) && !c.dead && time.Since(c.since) < againWithin {
			needed = false
		}
	}
	p.spawning = p.spawning || needed
	p.mu.Unlock()
	if needed {
		p.spawn(ctx, purpose{kind: forNew}, loops)
	}
}

// spawn starts a runner in the background. One for new jobs is tried until there is one.
func (p *Pool) spawn(ctx context.Context, why purpose, loops *sync.WaitGroup) {
	loops.Go(func() {
		for wait := spawnFirst; ; wait = min(2*wait, spawnLast) {
			f := p.trySpawn(ctx, why, loops)
			if f.err == nil || why.kind != forNew {
				select {
				case p.found <- f:
				case <-ctx.Done():
				}
				return
			}
			p.mu.Lock()
			p.spawnErr = f.err
			stopping := p.stopping
			p.mu.Unlock()
			if ctx.Err() != nil || stopping {
				return
			}
			p.cfg.Log.Error("no runner could be started; it is tried again", "error", f.err, "in_ms", wait.Milliseconds())
			p.ring()
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	})
}

func (p *Pool) trySpawn(ctx context.Context, why purpose, loops *sync.WaitGroup) finding {
	f := finding{spawned: &why}
	epoch, err := p.epoch(ctx)
	if err != nil {
		f.err = err
		return f
	}
	dir, err := p.cfg.Runners.Spawn(why.kind == forSuspect)
	if err != nil {
		f.err = err
		return f
	}
	if f.client, f.err = runner.Connect(dir, epoch, p.cfg.Version); f.err != nil {
		p.approach(ctx, &contact{dir: dir, since: time.Now()}, loops) // it has died, or hangs
	}
	return f
}

// spawnedRunner takes a runner that was started into use.
func (p *Pool) spawnedRunner(ctx context.Context, f finding, loops *sync.WaitGroup) {
	switch f.spawned.kind {
	case forSuspect:
		p.spawnedAlone(ctx, f, loops)
	case forOwner:
		p.spawnedFor(ctx, f, loops)
	default:
		p.mu.Lock()
		p.spawning, p.spawnErr = false, nil
		p.mu.Unlock()
		p.adopt(ctx, f.client, true, loops)
	}
}

// setUp tells the runners how many workers each has, unless they know: those that drain
// keep what they run, the current one gets the rest.
func (p *Pool) setUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	elsewhere := 0
	for _, h := range p.leases {
		if (h.conn == nil || !h.conn.current) && (h.running || h.conn != nil) {
			elsewhere++
		}
	}
	for _, conn := range p.clients {
		if !conn.current {
			elsewhere += p.takenBy(conn)
		}
	}
	for _, conn := range p.clients {
		n := elsewhere
		switch {
		case runner.Isolated(conn.Dir):
			n = 1
		case conn.current:
			n = max(0, p.target-elsewhere)
		case conn.owner != nil:
			n = p.target
		}
		if set := (wire.Setup{Workers: int64(n), SettleDelay: p.cfg.SettleDelay(), StopTimeout: p.cfg.StopTimeout()}); set != conn.set {
			conn.set = set
			conn.Send(&set)
		}
	}
}
