package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// A drain recalls every job that has not started. It is complete once no job can start any more: each job that was sent
// to a runner has been dropped, has a process, or has ended.
//
// A runner notes an attempt in its running table, then starts the process, then notes the process. Once it has noted
// the attempt it drops it no more, but it may still be stopped, or hang, before it starts the process. So "too late to
// drop" does not complete the drain. Started or Result does, or a table that names the process. If a runner does none of
// these in time, AwaitNoStarts says so in an error: nothing but the end of that runner can keep it from starting the job.

// Drain starts or ends a drain, during which no job starts. A job that was sent to a runner before may still start
// until AwaitNoStarts returns.
func (p *Pool) Drain(on bool) {
	p.mu.Lock()
	p.draining = on
	p.takeBackForDrain()
	p.leases.wake()
	p.mu.Unlock()
	p.ring()
}

// takeBackForDrain recalls all jobs that have not started, from every runner, if a drain is on. The caller holds mu.
func (p *Pool) takeBackForDrain() {
	if p.draining {
		p.recall(func(*leaseState) bool { return true })
	}
}

// Draining reports whether no jobs are started.
func (p *Pool) Draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// NoStartsWithin is how long AwaitNoStarts should wait for a runner that does not answer: it starts nothing that was
// sent to it more than startBy ago, and its notes then say which attempts it has begun.
const NoStartsWithin = startBy + startSpare + aliveWithin

// AwaitNoStarts waits until no job can start any more, or the drain is over. If some job can still start after within,
// the error says how many can, and names a runner that does not answer or a job whose start takes long.
func (p *Pool) AwaitNoStarts(ctx context.Context, within time.Duration) error {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		p.mu.Lock()
		list, ended := p.leases.startable(), p.leases.ended
		over := len(list) == 0 || !p.draining
		p.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		case <-tick.C:
			silence := p.answerAll(ctx, list)
			if ctx.Err() == nil && !time.Now().Before(deadline) {
				return unconfirmed(list, silence)
			}
		}
	}
}

// unconfirmed is the error about jobs that can still start during a drain. silence is the error about a runner that
// does not answer, nil if all of them do.
func unconfirmed(list []*leaseState, silence error) error {
	if silence == nil {
		silence = queue.Errorf(queue.CodeUnavailable, "the start of job %s takes long", list[0].job.ID)
	}
	which := "this job"
	if len(list) > 1 {
		which = fmt.Sprintf("up to %d jobs", len(list))
	}
	return later(silence, "the drain is on, but "+which+" may still start")
}

// answerAll asks the runners of leases for a sign of life, each once and all at the same time. The error names one that
// gives none.
func (p *Pool) answerAll(ctx context.Context, list []*leaseState) error {
	p.mu.Lock()
	of := map[place]*leaseState{}
	for _, h := range list {
		if at := (place{h.conn, h.dir}); of[at] == nil && !h.waiting {
			of[at] = h
		}
	}
	p.mu.Unlock()
	silences := make(chan error, len(of))
	var asks sync.WaitGroup
	for _, h := range of {
		asks.Go(func() {
			if err := p.answers(ctx, h); err != nil {
				silences <- err
			}
		})
	}
	asks.Wait()
	close(silences)
	return <-silences
}

// Quiet waits until nothing runs, the drain is over, or ctx ends.
func (p *Pool) Quiet(ctx context.Context) error {
	for {
		p.mu.Lock()
		over, ended := len(p.leases.all) == 0 || !p.draining, p.leases.ended
		p.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
