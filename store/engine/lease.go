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

// waiter is a claim that waits until a job can start.
type waiter struct {
	maxJobs int
	result  chan claimResult // receives the claim's result; buffered, so that sending never blocks
	// retry receives a value if the claim must run again, because it took too many steps for one transaction.
	retry     chan struct{}
	abandoned bool // Await's context has ended, and Await only waits for the result; guarded by the engine's mu
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

// exchange does the work of Exchange. It calls report inside the transaction to get the report. o contains
// what is known of the report before the transaction begins.
func (e *Engine) exchange(ctx context.Context, o *op, report func(t *Tx) *store.Report) (store.Grant, error) {
	o.priorityClass = Urgent
	return doWithResult(ctx, e, o, func(t *Tx) (store.Grant, error) { return t.rules.Exchange(report(t)) })
}

// ExchangeLater is Exchange with a report that is computed inside the transaction, by calling the given
// function. The report claims at most maxJobs jobs.
func (e *Engine) ExchangeLater(ctx context.Context, maxJobs int, report func(t *Tx) *store.Report) (
	store.Grant, error) {
	return e.exchange(ctx, &op{forecast: forecast{wantedJobs: maxJobs}}, report)
}

// Await claims up to maxJobs jobs. If no job can start, it waits for the first one that can.
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
		case g := <-w.result: // a transaction has sent the result just before mu was locked
			return g.jobs, g.err
		default:
			return nil, endErr
		}
	}
	w.abandoned = true
	e.mu.Unlock()
	g := <-w.result // a transaction is claiming jobs for this waiter, so wait for the result
	if g.err == nil && len(g.jobs) == 0 {
		g.err = endErr
	}
	return g.jobs, g.err
}

// endWaiter ends the waiting claim, if there is one, with an error. Only the goroutine with the right to
// write calls it.
func (e *Engine) endWaiter(err error) {
	e.mu.Lock()
	w := e.waiter
	e.waiter = nil
	e.mu.Unlock()
	if w != nil {
		w.result <- claimResult{err: err}
	}
}

// resumeWaiter makes a claim that got no jobs wait again. If the context of its Await call has ended, the
// claim ends with an empty result instead. The caller holds mu.
func (e *Engine) resumeWaiter(w *waiter) {
	if w.abandoned {
		w.result <- claimResult{waiter: w}
		return
	}
	e.waiter = w
}

// serveWaiter claims jobs for the claim that waits, in the transaction that made a job ready to start. It
// returns nil if no claim waits or if no job could be claimed.
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
		w.hasResult = w.abandoned // resumeWaiter has sent the empty result to an abandoned waiter
		t.engine.mu.Unlock()
		return nil, nil
	}
	return &claimResult{waiter: w, jobs: jobs}, nil
}

// PreviousSession returns the leases and runners that the previous service of this node has left.
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

// NextEpoch increases the number of service starts (the epoch) and returns it.
func (e *Engine) NextEpoch(ctx context.Context) (epoch int64, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Urgent}, func(t *Tx) (epoch int64, err error) {
		t.Exec(`UPDATE meta SET epoch = epoch + 1`)
		return t.QueryNumber(`SELECT epoch FROM meta`)
	})
}
