package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// During a drain, no job starts, and every job that has not started is recalled: the pool takes it back from its
// runner. The drain is complete when no job can start any more. At that time, every job that was sent to a runner has
// been given back, has a process, or has ended.
//
// A runner first records an attempt in its running table, then starts the process, and then records the process. Once
// it has recorded an attempt, it refuses to drop the attempt. But the runner may hang before it starts the process. So
// if a runner refuses to drop a job, the job may still start later. The drain must wait until the runner sends
// StartReport or Result, or until the running table names the process. If this does not happen in time,
// AwaitNoJobStarts returns an error, because only the end of the runner can prevent the start.

// SetDraining starts or ends a drain. During a drain, the pool sends no job to a runner. Jobs that were
// sent before may still start until AwaitNoJobStarts has returned.
func (p *Pool) SetDraining(draining bool) {
	p.mu.Lock()
	p.draining = draining
	p.recallAllJobsForDrainLocked()
	p.leases.notifyChangeLocked()
	p.mu.Unlock()
	p.wakeLoop()
}

// recallAllJobsForDrainLocked takes all jobs that have not started back from all runners. It does nothing unless a
// drain is in progress.
func (p *Pool) recallAllJobsForDrainLocked() {
	if p.draining {
		p.recallJobsLocked(func(*lease) bool { return true })
	}
}

// IsDraining reports whether a drain is in progress.
func (p *Pool) IsDraining() bool { return readWithLock(p, &p.draining) }

// NoJobStartsTimeout is the timeout that callers should pass to AwaitNoJobStarts. It is long enough even if a
// runner does not answer. Such a runner starts no job that was sent more than startDeadline ago. After this
// time, its files show which attempts it may have started.
const NoJobStartsTimeout = startDeadline + startDeadlineMargin + livenessCheckTimeout

// MaxNoJobStartsWait is the longest time that AwaitNoJobStarts takes with the timeout NoJobStartsTimeout. It is
// longer than the timeout, because AwaitNoJobStarts returns only after a check of the runners. A check starts
// every livenessCheckInterval and takes up to livenessCheckTimeout.
const MaxNoJobStartsWait = NoJobStartsTimeout + livenessCheckInterval + livenessCheckTimeout

// AwaitNoJobStarts waits until no job can start any more, or until the drain ends. If jobs can still start
// after the timeout or at the deadline of ctx, it returns an error with the number of these jobs. If a
// runner does not answer, the error names the runner. If all runners answer, the error names a job whose
// start takes long.
func (p *Pool) AwaitNoJobStarts(ctx context.Context, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(livenessCheckInterval)
	defer tick.Stop()
	var unresponsive error
	for {
		p.mu.Lock()
		list, changed := p.leases.startableLeasesLocked(), p.leases.changeSignal
		done := len(list) == 0 || !p.draining
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return startableJobsError(list, unresponsive)
			}
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			if err := p.checkLeaseRunnersAlive(ctx, list); ctx.Err() == nil {
				unresponsive = err
				if !time.Now().Before(deadline) {
					return startableJobsError(list, unresponsive)
				}
			}
		}
	}
}

// startableJobsError returns the error about jobs that can still start during a drain. unresponsiveErr is the error
// about a runner that does not answer, or nil if all runners answer.
func startableJobsError(startableLeases []*lease, unresponsiveErr error) error {
	jobs, more := "this job", ""
	if len(startableLeases) > 1 {
		jobs, more = fmt.Sprintf("up to %d jobs", len(startableLeases)),
			fmt.Sprintf(" and up to %d more", len(startableLeases)-1)
	}
	if unresponsiveErr == nil {
		return queue.Errorf(queue.CodeUnavailable, "draining has begun, but job %s%s may still start",
			startableLeases[0].job.ID, more)
	}
	return addUnresponsiveConsequence(unresponsiveErr, "draining has begun, but "+jobs+" may still start")
}

// checkLeaseRunnersAlive checks, for all leases at the same time, that their runners answer. It returns the error
// about one runner that does not answer, or nil.
func (p *Pool) checkLeaseRunnersAlive(ctx context.Context, leaseList []*lease) error {
	p.mu.Lock()
	leaseAt := map[leaseLocation]*lease{}
	for _, h := range leaseList {
		if leaseAt[h.leaseLocation] == nil && h.phase.mayStart() && !h.phase.wasNeverSent() {
			leaseAt[h.leaseLocation] = h
		}
	}
	p.mu.Unlock()
	errs := make(chan error, len(leaseAt))
	var checks sync.WaitGroup
	for _, h := range leaseAt {
		checks.Go(func() {
			if err := p.checkLeaseRunnerAlive(ctx, h); err != nil {
				errs <- err
			}
		})
	}
	checks.Wait()
	close(errs)
	return <-errs
}

// AwaitNoLeases waits until no lease is left, the drain ends, or ctx ends.
func (p *Pool) AwaitNoLeases(ctx context.Context) error {
	for {
		p.mu.Lock()
		done, changed := len(p.leases.byID) == 0 || !p.draining, p.leases.changeSignal
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
