package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
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
	if len(suspects) > 0 {
		p.startAlone(ctx, suspects, loops)
	}
	return nil
}

// release gives back jobs whose start was overtaken by a stop or a drain.
func (p *Pool) release(jobs []queue.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range jobs {
		p.pending.Released = append(p.pending.Released, jobs[i].Lease())
	}
	p.ring()
}

// Limits of suspects.
const (
	// maxAlone is how many run at once. Each has a process of 11 MB beside it, and a guard
	// where that is root's; its start takes 60 ms, in which the pool does nothing else. A
	// runner with thousands of workers leaves thousands of suspects.
	maxAlone = 16
	// aloneEvery is the time between two that come back after they were put off: no more
	// come than could be started.
	aloneEvery = time.Second / maxAlone
	// putOffFor is how long one is put off at least.
	putOffFor = time.Second
)

// startAlone starts a runner for each suspect, and puts off those for which there is no
// room, or none could be started.
func (p *Pool) startAlone(ctx context.Context, suspects []queue.Job, loops *sync.WaitGroup) {
	p.mu.Lock()
	ends := p.stopping || p.draining
	p.mu.Unlock()
	if ends {
		p.release(suspects)
		return
	}
	defer p.setUp() // fewer workers for the others
	for i := range suspects {
		j := &suspects[i]
		if why := p.crowdedAlone(); why != nil {
			p.putOff(suspects[i:], why)
			return
		}
		l, err := p.spawnAlone(ctx, loops)
		if err != nil {
			p.failedAlone(j, err)
			p.putOff(suspects[i:], err)
			return
		}
		p.alonePause = pauseFirst
		if !p.handOver(j, l) {
			p.release(suspects[i:])
			return
		}
	}
}

// crowdedAlone says why no more suspects are started now, nil if they are.
func (p *Pool) crowdedAlone() error {
	if time.Now().Before(p.aloneAfter) {
		return errors.New("no runner of its own could be started a moment ago")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.clients {
		if runner.Lone(l.Dir) && !l.retired {
			n++
		}
	}
	if n >= maxAlone {
		return fmt.Errorf("%d jobs run alone already, each after its runner died; this one follows them", n)
	}
	return nil
}

// failedAlone has less claimed for a while, as after any shortage, and suspects tried
// again some time after that: else nobody but they would ever be claimed.
func (p *Pool) failedAlone(j *queue.Job, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.short()
	p.aloneAfter = p.paused.Add(p.alonePause)
	p.alonePause = min(2*p.alonePause, pauseLast)
	p.unheld = append(p.unheld, shortOfRunners(j, err))
}

// putOff gives suspects back for a while. At their old place, the head of the queue, they
// would be claimed again at once, and nothing else.
func (p *Pool) putOff(suspects []queue.Job, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range suspects {
		j := &suspects[i]
		now := time.Now()
		d := queue.Decide(j, queue.Outcome{End: queue.Unstarted, Error: why.Error()}, p.cfg.Policy())
		d.Reason = queue.ReasonShortage // of which others are the cause: it costs no refund
		p.putOffTo = p.putOffTo.Add(aloneEvery)
		for _, at := range []time.Time{now.Add(putOffFor), p.aloneAfter} {
			if p.putOffTo.Before(at) {
				p.putOffTo = at
			}
		}
		d.Delay = p.putOffTo.Sub(now)
		p.pending.Ended = append(p.pending.Ended, store.Settlement{Lease: j.Lease(), Decision: d})
	}
	p.ring()
}

// handOver gives a job to a runner that was started for it, unless nothing is to be
// started any more.
func (p *Pool) handOver(j *queue.Job, l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping || p.draining {
		return false
	}
	p.take(j, l)
	frames := p.startFrames(nil, j)
	if p.watched[j.Seq] > 0 {
		frames = append(frames, &wire.Watch{Lease: wire.Lease(j.Lease())})
	}
	l.Send(frames...)
	return true
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
