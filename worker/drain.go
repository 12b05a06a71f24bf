package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// A drain recalls every job that has not started. It is complete when no job can start any more:
// every job that was sent to a runner has been dropped, has a process, or has ended.
//
// A runner records an attempt in its running table, then starts the process, then records the
// process. After it has recorded an attempt, it refuses to drop that attempt. But the runner may
// hang or be stopped before it starts the process. So an answer that it is too late to drop a job
// does not complete the drain. The drain is complete for a job once the runner sends StartReport or
// Result, or once the running table names the process. If none of these happens in time,
// AwaitNoStarts returns an error, because only the end of that runner can prevent the job from
// starting.

// SetDraining starts or ends a drain. During a drain no job is sent to a runner. A job that was sent
// before may still start until AwaitNoStarts returns.
func (p *Pool) SetDraining(on bool) {
	p.mu.Lock()
	p.draining = on
	p.recallForDrainLocked()
	p.leases.notifyChangeLocked()
	p.mu.Unlock()
	p.wake()
}

// recallForDrainLocked recalls from all runners the jobs that have not started, if a drain is on.
func (p *Pool) recallForDrainLocked() {
	if p.draining {
		p.recallLocked(func(*lease) bool { return true })
	}
}

// IsDraining reports whether a drain is on.
func (p *Pool) IsDraining() bool { return locked(p, &p.draining) }

// NoStartsTimeout is how long AwaitNoStarts should wait for a runner that does not answer. A runner
// does not start jobs that were sent to it more than startDeadline ago. After that time its files
// show which attempts it may have started.
const NoStartsTimeout = startDeadline + startDeadlineMargin + livenessTimeout

// MaxNoStartsWait is the longest time that AwaitNoStarts takes with the timeout NoStartsTimeout.
// AwaitNoStarts returns only after a check of the runners. A check starts every livenessInterval
// and takes up to livenessTimeout.
const MaxNoStartsWait = NoStartsTimeout + livenessInterval + livenessTimeout

// AwaitNoStarts waits until no job can start any more, or until the drain ends. If a job can still
// start after the timeout, it returns an error. The error says how many jobs can start. If a runner
// does not answer, the error names that runner. If all runners answer, it names a job whose start takes
// long.
func (p *Pool) AwaitNoStarts(ctx context.Context, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(livenessInterval)
	defer tick.Stop()
	for {
		p.mu.Lock()
		list, changed := p.leases.startableLocked(), p.leases.changeSignal
		done := len(list) == 0 || !p.draining
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			unresponsive := p.checkRunnersOf(ctx, list)
			if ctx.Err() == nil && !time.Now().Before(deadline) {
				return stillStartingError(list, unresponsive)
			}
		}
	}
}

// stillStartingError returns the error about jobs that can still start during a drain. unresponsive
// is the error about a runner that does not answer; nil if all runners answer.
func stillStartingError(list []*lease, unresponsive error) error {
	jobs, more := "this job", ""
	if len(list) > 1 {
		jobs, more = fmt.Sprintf("up to %d jobs", len(list)), fmt.Sprintf(" and up to %d more", len(list)-1)
	}
	if unresponsive == nil {
		return queue.Errorf(queue.CodeUnavailable, "draining has begun, but job %s%s may still start", list[0].job.ID, more)
	}
	return withConsequence(unresponsive, "draining has begun, but "+jobs+" may still start")
}

// checkRunnersOf checks concurrently that the runners of leases answer, each runner once. It
// returns the error about one runner that does not answer, or nil.
func (p *Pool) checkRunnersOf(ctx context.Context, list []*lease) error {
	p.mu.Lock()
	leaseAt := map[leaseLocation]*lease{}
	for _, h := range list {
		if leaseAt[h.leaseLocation] == nil && h.phase.mayStart() && !h.phase.neverSent() {
			leaseAt[h.leaseLocation] = h
		}
	}
	p.mu.Unlock()
	errs := make(chan error, len(leaseAt))
	var checks sync.WaitGroup
	for _, h := range leaseAt {
		checks.Go(func() {
			if err := p.checkRunnerOf(ctx, h); err != nil {
				errs <- err
			}
		})
	}
	checks.Wait()
	close(errs)
	return <-errs
}

// WaitIdle waits until no lease is left, the drain ends, or ctx ends.
func (p *Pool) WaitIdle(ctx context.Context) error {
	for {
		p.mu.Lock()
		done, changed := len(p.leases.byLease) == 0 || !p.draining, p.leases.changeSignal
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
