package engine

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// claimWaiter is a claim that waits until a job can start.
type claimWaiter struct {
	maxJobs    int
	resultChan chan claimResult // receives the claim's result; buffered, so that sending never blocks
	// retrySignal receives a value if the claim must run again, because it took too many steps for one transaction.
	retrySignal  chan struct{}
	contextEnded bool // AwaitJobs' context has ended, so it only waits for the result; guarded by the engine's mu
}

// claimResult is the result of a waiting claim.
type claimResult struct {
	waiter *claimWaiter
	jobs   []queue.Job
	err    error
}

// ReportAndClaim records what happened to leases and claims more jobs, in one commit.
func (e *Engine) ReportAndClaim(ctx context.Context, report store.LeaseReport) (store.ReportAndClaimResult, error) {
	o := &queuedOperation{priorityClass: UrgentClass,
		operationForecast: operationForecast{report.Settlements, report.MaxBytesPerUser, report.MaxJobsToClaim}}
	return doOpWithResult(ctx, e, o,
		func(t *Tx) (store.ReportAndClaimResult, error) { return t.rules.ReportAndClaim(&report) })
}

// BuildReportAndClaim is ReportAndClaim with a report that is computed inside the transaction, by calling the given
// function. The report claims at most maxJobs jobs.
func (e *Engine) BuildReportAndClaim(ctx context.Context, maxJobs int, buildReport func(t *Tx) *store.LeaseReport) (
	store.ReportAndClaimResult, error) {
	o := &queuedOperation{priorityClass: UrgentClass, operationForecast: operationForecast{expectedClaimJobs: maxJobs}}
	return doOpWithResult(ctx, e, o,
		func(t *Tx) (store.ReportAndClaimResult, error) { return t.rules.ReportAndClaim(buildReport(t)) })
}

// AwaitJobs claims up to maxJobs jobs. If no job can start, it waits for the first one that can.
func (e *Engine) AwaitJobs(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	w := &claimWaiter{maxJobs: maxJobs, resultChan: make(chan claimResult, 1), retrySignal: make(chan struct{}, 1)}
	var jobs []queue.Job
	for more := true; more; {
		err := e.RunAndCommit(ctx, UrgentClass, func(t *Tx) (err error) {
			if jobs, more, err = t.rules.Claim(maxJobs); err != nil || len(jobs) > 0 || more {
				return err
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waitingClaim = w
			t.OnRollback(func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.waitingClaim = nil
			})
			return nil
		})
		switch {
		case err != nil:
			return nil, err // the transaction with the claim was rolled back
		case len(jobs) > 0:
			return jobs, nil
		}
	}
	var endErr error
	for endErr == nil {
		select {
		case g := <-w.resultChan:
			return g.jobs, g.err
		case <-w.retrySignal:
			endErr = e.RunAndCommit(ctx, UrgentClass, func(t *Tx) error { t.rules.JobsMayBeClaimable = true; return nil })
		case <-ctx.Done():
			endErr = ctx.Err()
		}
	}
	e.mu.Lock()
	waits := e.waitingClaim == w
	if w.contextEnded = true; waits {
		e.waitingClaim = nil
	}
	e.mu.Unlock()
	if waits {
		return nil, endErr
	}
	g := <-w.resultChan // a transaction is claiming jobs for this waiter, so wait for the result
	if g.err == nil && len(g.jobs) == 0 {
		g.err = endErr
	}
	return g.jobs, g.err
}

// endClaimWaiter ends the waiting claim, if there is one, with an error. Only the goroutine with the right to
// write calls it.
func (e *Engine) endClaimWaiter(err error) {
	if w := e.takeClaimWaiter(); w != nil {
		w.resultChan <- claimResult{err: err}
	}
}

// takeClaimWaiter returns the claim that waits, or nil, and makes it wait no longer.
func (e *Engine) takeClaimWaiter() *claimWaiter {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.waitingClaim
	e.waitingClaim = nil
	return w
}

// resumeClaimWaiter makes a claim that got no jobs wait again. If the context of its AwaitJobs call has ended, the
// claim ends with an empty result instead.
func (e *Engine) resumeClaimWaiter(w *claimWaiter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.contextEnded {
		w.resultChan <- claimResult{waiter: w}
		return
	}
	e.waitingClaim = w
}

// serveClaimWaiter claims jobs for the claim that waits, in the transaction that made a job ready to start. It
// returns nil if no claim waits or if no job could be claimed.
func (t *Tx) serveClaimWaiter() (*claimResult, error) {
	if !t.rules.JobsMayBeClaimable {
		return nil, nil
	}
	w := t.engine.takeClaimWaiter() // from now on, AwaitJobs waits for the result even if its context ends
	if w == nil {
		return nil, nil
	}
	jobs, more, err := t.rules.Claim(w.maxJobs)
	if err != nil || len(jobs) > 0 {
		t.OnRollback(func() { t.engine.resumeClaimWaiter(w) })
		return &claimResult{waiter: w, jobs: jobs}, err
	}
	t.engine.resumeClaimWaiter(w)
	if more {
		t.OnCommitted(func() { queue.TrySend(w.retrySignal, struct{}{}) })
	}
	return nil, nil
}

// PreviousSession returns the leases and runners that the previous service of this node has left.
func (e *Engine) PreviousSession(ctx context.Context) (session store.PreviousSession, err error) {
	return executeWithResult(ctx, e, UrgentClass,
		func(t *Tx) (left store.PreviousSession, err error) {
			left = store.PreviousSession{HighestJobSeq: t.NextJobSeq - 1, IsDatabaseCopy: e.isDatabaseCopy}
			for _, seq := range slices.Sorted(maps.Keys(t.leases)) {
				if t.leases[seq].Job.LastLeasingNodeID != e.nodeID {
					continue
				}
				j, err := t.Job(seq, rules.ReadScopeFull)
				if err != nil {
					return left, err
				}
				j.Fence = t.leases[seq].Job.Fence
				left.LeasedJobs = append(left.LeasedJobs, j.Job)
			}
			text, err := database.ReadNote(t, database.RunnerDirsNoteKey(e.nodeID))
			if err == nil && text != "" {
				err = json.Unmarshal([]byte(text), &left.RunnerDirs)
			}
			return left, err
		})
}

// AdvanceEpoch increases the number of service starts (the epoch) and returns it.
func (e *Engine) AdvanceEpoch(ctx context.Context) (epoch int64, err error) {
	return executeWithResult(ctx, e, UrgentClass, func(t *Tx) (epoch int64, err error) {
		t.Exec(`UPDATE meta SET epoch = epoch + 1`)
		return t.QueryNumber(`SELECT epoch FROM meta`)
	})
}
