package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// A job whose runner died may have killed it, or have been its neighbour. So it runs
// next in a runner of its own, and only what dies there is put down to it.

// startAll hands claimed jobs over: suspects to runners of their own, all others to the
// current one.
func (p *Pool) startAll(ctx context.Context, jobs []queue.Job, stored bool, loops *sync.WaitGroup) error {
	suspects := jobs[:0:0]
	if slices.ContainsFunc(jobs, func(j queue.Job) bool { return j.Suspect }) {
		jobs = slices.DeleteFunc(slices.Clone(jobs), func(j queue.Job) bool {
			if j.Suspect {
				suspects = append(suspects, j)
			}
			return j.Suspect
		})
	}
	if err := p.start(jobs, stored); err != nil {
		return err
	}
	for i := range suspects {
		p.startAlone(ctx, &suspects[i], loops)
	}
	return nil
}

// startAlone starts a runner for one job. If that fails the job is given back, and less
// is claimed for a while.
func (p *Pool) startAlone(ctx context.Context, j *queue.Job, loops *sync.WaitGroup) {
	l, err := p.spawnAlone(ctx, loops)
	defer p.setUp() // one worker less for the others
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.stopping || p.draining {
		if err != nil {
			p.paused = time.Now().Add(pauseFirst)
			p.unheld = append(p.unheld, shortOfRunners(j, err))
		}
		p.pending.Released = append(p.pending.Released, j.Lease())
		p.ring()
		return
	}
	p.take(j, l)
	frames := []wire.Frame{p.startFrame(j)}
	if p.watched[j.Seq] > 0 {
		frames = append(frames, &wire.Watch{Lease: wire.Lease(j.Lease())})
	}
	l.Send(frames...)
}

// spawnAlone starts a runner that runs one job only, and meets it.
func (p *Pool) spawnAlone(ctx context.Context, loops *sync.WaitGroup) (*link, error) {
	epoch, err := p.epoch(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := p.cfg.Runners.Spawn(true)
	if err != nil {
		return nil, err
	}
	c, err := runner.Meet(dir, epoch, p.cfg.Version)
	if err != nil {
		return nil, err
	}
	return p.adopt(ctx, c, false, nil, loops), nil
}

// retire ends the runners that take no new jobs once they have run what they had: those
// of one job, and those of another version or kind than new jobs go to.
func (p *Pool) retire() {
	p.mu.Lock()
	ended := 0
	for _, l := range p.clients {
		if l.current || l.retired || len(l.stuck) > 0 || len(p.acks[l]) > 0 {
			continue
		}
		busy := false
		for _, h := range p.held {
			busy = busy || h.link == l
		}
		if !busy {
			l.retired = true
			l.Send(&wire.Bye{})
			ended++
		}
	}
	p.mu.Unlock()
	if ended > 0 {
		p.setUp() // their workers are the others' again
	}
}
