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

// waiter is a claim that waits for the first runnable job.
type waiter struct {
	maxJobs int
	result  chan claimResult // receives the claim's result; buffered, so that the writer never blocks
	// retry receives a value when the claim was cut short, because it took too many steps for one
	// transaction, and must run again.
	retry     chan struct{}
	abandoned bool // Await's context has ended; Await now waits only to receive from result; guarded by the engine's mu
	hasResult bool // result has received a value; guarded by the engine's mu
}

// claimResult is the result of a waiting claim.
type claimResult struct {
	waiter *waiter
	jobs   []queue.Job
	err    error
}

// Exchange records what happened to leases and claims more jobs, in one commit.
func (e *Engine) Exchange(ctx context.Context, report store.Report) (store.Grant, error) {
	o := &op{forecast: forecast{report.Settlements, report.MaxBytesPerUser, report.WantedJobs}}
	return e.exchange(ctx, o, func(*Tx) *store.Report { return &report })
}

// exchange implements Exchange. Inside the transaction, it calls the given function, which returns the report. The
// operation o holds the part of the report that is known before the transaction begins.
func (e *Engine) exchange(ctx context.Context, o *op, report func(t *Tx) *store.Report) (store.Grant, error) {
	o.priorityClass = Urgent
	return doWithResult(ctx, e, o, func(t *Tx) (store.Grant, error) { return t.rules.Exchange(report(t)) })
}

// ExchangeLater is like Exchange, but it gets the report from a function that it calls inside the transaction.
// maxJobs is the maximum number of jobs that the report will claim.
func (e *Engine) ExchangeLater(ctx context.Context, maxJobs int, report func(t *Tx) *store.Report) (
	store.Grant, error) {
	return e.exchange(ctx, &op{forecast: forecast{wantedJobs: maxJobs}}, report)
}

// Await claims up to maxJobs jobs. If no job is runnable, it waits for the first one.
func (e *Engine) Await(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	w := &waiter{maxJobs: maxJobs, result: make(chan claimResult, 1), retry: make(chan struct{}, 1)}
	var jobs []queue.Job
	for more := true; more; {
		err := e.Do(ctx, Urgent, func(t *Tx) (err error) {
			if jobs, more, err = t.rules.Claim(maxJobs); err != nil || len(jobs) > 0 || more {
				return err
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waiter = w
			t.undo = append(t.undo, func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.waiter = nil
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
		case g := <-w.result:
			return g.jobs, g.err
		case <-w.retry:
			endErr = e.Do(ctx, Urgent, func(t *Tx) error { t.rules.MadeJobsReady = true; return nil })
		case <-ctx.Done():
			endErr = ctx.Err()
		}
	}
	e.mu.Lock()
	if e.waiter == w {
		e.waiter = nil
		e.mu.Unlock()
		select {
		case g := <-w.result: // the writer has served this waiter just before the lock was taken
			return g.jobs, g.err
		default:
			return nil, endErr
		}
	}
	w.abandoned = true
	e.mu.Unlock()
	g := <-w.result // wait, because the writer is serving this waiter and may have leased jobs for it
	if g.err == nil && len(g.jobs) == 0 {
		g.err = endErr
	}
	return g.jobs, g.err
}

// endWaiter ends the claim that waits, with an error. The caller is the writer.
func (e *Engine) endWaiter(err error) {
	e.mu.Lock()
	w := e.waiter
	e.waiter = nil
	e.mu.Unlock()
	if w != nil {
		w.result <- claimResult{err: err}
	}
}

// resumeWaiter lets a waiter wait again after it was not served. If the context of its Await call has ended, the
// waiter gets an empty result instead. The caller holds mu.
func (e *Engine) resumeWaiter(w *waiter) {
	if w.abandoned {
		w.result <- claimResult{waiter: w}
		return
	}
	e.waiter = w
}

// serveWaiter claims jobs for the waiting claim, in the same transaction that made a job runnable. It returns
// nil if no claim waits or no job could be claimed.
func (t *Tx) serveWaiter() (*claimResult, error) {
	if !t.rules.MadeJobsReady {
		return nil, nil
	}
	t.engine.mu.Lock()
	w := t.engine.waiter
	if w != nil {
		t.engine.waiter = nil // from now on, Await waits for the result even if its context ends
		t.undo = append(t.undo, func() {
			t.engine.mu.Lock()
			defer t.engine.mu.Unlock()
			if t.engine.waiter == nil && !w.hasResult {
				t.engine.resumeWaiter(w)
			}
		})
	}
	t.engine.mu.Unlock()
	if w == nil {
		return nil, nil
	}
	jobs, more, err := t.rules.Claim(w.maxJobs)
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		if more {
			t.interruptedWaiter = w
		}
		t.engine.mu.Lock()
		t.engine.resumeWaiter(w)
		w.hasResult = w.abandoned // an abandoned waiter has received an empty result from resumeWaiter
		t.engine.mu.Unlock()
		return nil, nil
	}
	return &claimResult{waiter: w, jobs: jobs}, nil
}

// PreviousSession returns the leases and runners that an earlier service of this node has left.
func (e *Engine) PreviousSession(ctx context.Context) (left store.PreviousSession, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Urgent}, func(t *Tx) (left store.PreviousSession, err error) {
		left = store.PreviousSession{LastSeq: e.mem.nextSeq - 1, IsCopy: e.isCopy}
		for _, seq := range slices.Sorted(maps.Keys(e.mem.leases)) {
			if e.mem.leases[seq].Job.Node != e.node {
				continue
			}
			j, err := t.Job(seq, rules.ReadFull)
			if err != nil {
				return left, err
			}
			j.Fence = e.mem.leases[seq].Job.Fence
			left.LeasedJobs = append(left.LeasedJobs, j.Job)
		}
		text, err := database.ReadNote(t, database.RunnerDirsNoteKey(e.node))
		if err == nil && text != "" {
			err = json.Unmarshal([]byte(text), &left.RunnerDirs)
		}
		return left, err
	})
}

// NextEpoch raises and returns the service's epoch, the number of its start.
func (e *Engine) NextEpoch(ctx context.Context) (epoch int64, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Urgent}, func(t *Tx) (epoch int64, err error) {
		t.Exec(`UPDATE meta SET epoch = epoch + 1`)
		return t.QueryNumber(`SELECT epoch FROM meta`)
	})
}
