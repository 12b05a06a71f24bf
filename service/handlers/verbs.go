package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Cancel implements control.API.
func (h *API) Cancel(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	takes := append(queue.VerbCancel.ActsIn(), queue.Processing)
	return h.applyToJobs(ctx, p, takes, &bulkVerb{method: "cancel", apply: h.cancel,
		awaitsAttemptEnd: true})
}

// cancel cancels a job that is in one of allowedStates. An empty allowedStates allows every state. If allowedStates
// allows running jobs, cancel also ends a running attempt.
func (h *API) cancel(ctx context.Context, j *queue.Job, allowedStates []queue.State) (err error) {
	if len(allowedStates) > 0 && !slices.Contains(allowedStates, queue.Processing) {
		return h.changeJob(ctx, j, store.Change{Verb: queue.VerbCancel, OnlyStates: allowedStates})
	}
	if allowedStates, err = h.cancelLeased(ctx, j, allowedStates); err != nil {
		return err
	}
	return h.Store.Change(ctx, j.Seq, store.Change{Verb: queue.VerbCancel, UID: control.PeerFrom(ctx).UID,
		OnlyStates: allowedStates})
}

// cancelLeased ends the running attempt of a job. It does so before the store is changed, because that change
// may have to wait for disk space. It returns the states in which the caller may then change the job: nil,
// which means all states, if this node's pool had the job, and otherwise allowedStates.
func (h *API) cancelLeased(ctx context.Context, j *queue.Job, allowedStates []queue.State) ([]queue.State, error) {
	leased, err := h.Pool.Cancel(ctx, j.Seq, control.PeerFrom(ctx).UID)
	if leased {
		allowedStates = nil
	}
	return allowedStates, err
}

// changeJob applies a change to a job that is not leased.
func (h *API) changeJob(ctx context.Context, j *queue.Job, c store.Change) error {
	c.UID = control.PeerFrom(ctx).UID
	set := h.Settings.Current()
	c.MaxPending, c.MaxPendingPerUser, c.MaxBytesPerUser = set.MaxPending, set.MaxPendingPerUser, h.Quota.MaxBytesPerUser()
	done, err := h.Pool.ChangeUnstarted(ctx, j.Seq, c)
	if done || err != nil {
		return replaceStartedError(err, j, c.Verb, c.OnlyStates)
	}
	return h.Quota.RunWithinQuota(ctx, j.UID, func() error { return h.Store.Change(ctx, j.Seq, c) })
}

// returnUnstarted puts a job that this node has claimed but not started back into the queue.
func (h *API) returnUnstarted(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
	return replaceStartedError(h.Pool.ReturnUnstarted(ctx, j.Seq), j, queue.VerbEdit, allowedStates)
}

// replaceStartedError replaces worker.ErrAttemptStarted by an error for users. It returns other errors
// unchanged.
func replaceStartedError(err error, j *queue.Job, v queue.Verb, allowedStates []queue.State) error {
	switch {
	case !errors.Is(err, worker.ErrAttemptStarted):
		return err
	case len(allowedStates) > 0:
		return store.ErrStateChanged
	}
	next := "cancel it with: queuectl cancel " + j.ID + ", or put it back in the queue with: queuectl requeue " + j.ID
	if v == queue.VerbRemove {
		next = "to stop it and remove it: queuectl rm --force " + j.ID
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is running; %s", j.ID, next)
}

// changeFunc returns a function that applies a change to a job. It is used for bulkVerb.apply.
func (h *API) changeFunc(c store.Change) func(context.Context, *queue.Job, []queue.State) error {
	return func(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
		c := c
		c.OnlyStates = allowedStates
		return h.changeJob(ctx, j, c)
	}
}

// Hold implements control.API.
func (h *API) Hold(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	return h.applyToJobs(ctx, p, queue.VerbHold.ActsIn(),
		&bulkVerb{method: "hold", apply: h.changeFunc(store.Change{Verb: queue.VerbHold})})
}

// Release implements control.API.
func (h *API) Release(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	return h.applyToJobs(ctx, p, queue.VerbRelease.ActsIn(),
		&bulkVerb{method: "release", apply: h.changeFunc(store.Change{Verb: queue.VerbRelease})})
}

// Retry implements control.API. If the caller selects jobs by a filter, completed jobs are retried only if the
// filter names that state.
func (h *API) Retry(ctx context.Context, p control.Retry) (control.BulkResult, error) {
	takes := queue.VerbRetry.ActsIn()
	if p.SelectsByFilter() && len(p.State) == 0 {
		takes = []queue.State{queue.Failed, queue.Dead, queue.Cancelled}
	}
	return h.applyToJobs(ctx, p.Selection, takes, &bulkVerb{
		method: "retry",
		remoteParams: func(selection control.Selection) any {
			return control.Retry{Selection: selection, WithoutDependants: p.WithoutDependants}
		},
		apply: h.changeFunc(store.Change{Verb: queue.VerbRetry, KeepDependants: p.WithoutDependants}),
	})
}

// maxBulkEditBytes is the maximum length in bytes of a patch for many jobs. The patch is stored with each job.
const maxBulkEditBytes = 64 << 10

// Edit implements control.API.
func (h *API) Edit(ctx context.Context, p control.Edit) (control.BulkResult, error) {
	if _, relayed := cluster.RelayedRequest(ctx); relayed {
		return h.applyToJobs(ctx, p.Selection, nil, &bulkVerb{method: "edit", localOnly: true,
			apply: h.returnUnstarted})
	}
	if len(p.Set) > maxBulkEditBytes && (p.SelectsByFilter() || len(p.AllIDs()) > 1) {
		return control.BulkResult{}, queue.Invalid("set",
			"the new values have %d bytes; when one request edits several jobs, the maximum is %d", len(p.Set), maxBulkEditBytes)
	}
	d := h.Settings.Current().JobDefaults()
	sample := queue.Job{MaxAttempts: 1, Unique: "a", Execution: queue.Execution{
		Command: "true", Shell: d.Shell, OnLost: queue.OnLostRetry, Secrets: []string{"QUEUECTL_SAMPLE=/a"},
	}} // an invented job on which every field may be set
	if err := sample.Edit(p.Set, d); err != nil {
		return control.BulkResult{}, err // the patch is invalid for every job
	}
	peer := control.PeerFrom(ctx)
	scope, err := h.Guard.ParseEditScope(&peer, p.Set)
	if err != nil {
		return control.BulkResult{}, err
	}
	known, nodesErr := h.AllNodes.Nodes(ctx)
	nodes := func() ([]store.NodeState, error) { return known, nodesErr }
	edit := func(j *queue.Job) error {
		// Check each job in its current state, because an earlier edit may have changed the user that it runs
		// as.
		err := h.Guard.CheckMayEdit(&peer, &scope, j)
		demands, priority, name := j.Demands, j.Priority, j.Queue
		if err == nil {
			err = j.Edit(h.QueueRules.ReplaceNulls(p.Set, j.Queue), d)
		}
		if err == nil && !slices.Equal(demands, j.Demands) {
			err = h.checkDemands(j, nodes)
		}
		if err == nil && (j.Priority != priority || j.Queue != name) {
			err = h.checkPriority(&peer, j)
		}
		if err == nil {
			err = checkSystemSupports(j)
		}
		if err == nil {
			scope.Apply(j)
		}
		return err
	}
	v, err := h.applyToJobs(ctx, p.Selection, queue.VerbEdit.ActsIn(), &bulkVerb{
		method: "edit",
		// This node has checked the edit and applies it. A node that has leased the job only returns it to
		// the queue.
		remoteParams: func(selection control.Selection) any {
			return control.Edit{Selection: selection, Set: json.RawMessage(`{}`)}
		},
		remoteOnlyReturnsJob: true,
		apply:                h.changeFunc(store.Change{Verb: queue.VerbEdit, Edit: edit}),
	})
	if err == nil && len(v.DoneIDs) > 0 {
		var notes replyNotes
		h.addDraftNotes(&notes, []queue.Job{sample})
		v.Notes = notes.notes
		v.UnenforcedLimits, err = h.examiner.UnenforcedLimits(ctx, []queue.Job{sample}, false)
	}
	return v, err
}

// Remove implements control.API.
func (h *API) Remove(ctx context.Context, p control.Remove) (control.BulkResult, error) {
	takes := queue.VerbRemove.ActsIn()
	if p.Force {
		takes = append(takes, queue.Processing)
	}
	return h.applyToJobs(ctx, p.Selection, takes, &bulkVerb{
		method: "rm",
		remoteParams: func(selection control.Selection) any {
			return control.Remove{Selection: selection, Force: p.Force}
		},
		awaitsAttemptEnd: p.Force,
		apply: func(ctx context.Context, j *queue.Job, allowedStates []queue.State) (err error) {
			if p.Force && (len(allowedStates) == 0 || slices.Contains(allowedStates, queue.Processing)) {
				if allowedStates, err = h.cancelLeased(ctx, j, allowedStates); err != nil {
					return err
				}
			}
			return h.changeJob(ctx, j, store.Change{Verb: queue.VerbRemove, OnlyStates: allowedStates})
		},
	})
}

// Clear implements control.API.
func (h *API) Clear(ctx context.Context, p control.ClearParams) (control.RemovalCount, error) {
	return h.removeAll(ctx, "clear", p, queue.VerbRemove.ActsIn())
}

// removeAll removes all jobs in the given states. If p names a batch, it removes only jobs of that batch. With
// p.DryRun, it only counts the jobs.
func (h *API) removeAll(ctx context.Context, method string, p control.ClearParams,
	states []queue.State) (control.RemovalCount, error) {
	var removedCount control.RemovalCount
	peer := control.PeerFrom(ctx)
	f, err := h.parseFilter(&peer, control.List{Batch: p.Batch})
	if err != nil {
		return removedCount, err
	}
	f.States = states
	if p.DryRun {
		removedCount.MatchCount = new(int)
	} else if err := h.Guard.Audit(ctx, method, p.Batch, nil); err != nil {
		return removedCount, err
	}
	remove := &bulkVerb{method: method, remoteMethod: "rm", apply: h.changeFunc(store.Change{Verb: queue.VerbRemove})}
	for {
		page, err := h.listRefs(ctx, f)
		if err != nil {
			return removedCount, err
		}
		if f.BeforeSeq = page.Next; p.DryRun {
			if *removedCount.MatchCount += len(page.Refs); f.BeforeSeq == 0 {
				return removedCount, nil
			}
			continue
		}
		verdict, err := h.applyToRefs(ctx, remove, page.Refs, states)
		removedCount.Count += len(verdict.DoneIDs)
		if err != nil || f.BeforeSeq == 0 {
			return removedCount, err
		}
	}
}

// Requeue implements control.API.
func (h *API) Requeue(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	return h.applyToJobs(ctx, p, []queue.State{queue.Processing},
		&bulkVerb{method: "requeue", apply: h.requeue, awaitsAttemptEnd: true})
}

// requeue ends the attempt of a running job and returns the job to the queue.
func (h *API) requeue(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
	held, err := h.Pool.Requeue(ctx, j.Seq, control.PeerFrom(ctx).UID)
	switch {
	case errors.Is(err, worker.ErrAttemptEnded):
		if *j, err = h.rereadCompact(ctx, j); err != nil || !j.State.Ended() {
			return err
		}
	case err != nil || held || j.State == queue.Pending:
		return err
	case len(allowedStates) > 0:
		return store.ErrStateChanged
	}
	next := ""
	if j.State.Ended() {
		next = "; put it back in the queue with: queuectl retry " + j.ID
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is %s; only running jobs can be requeued%s", j.ID, j.State, next)
}

// Kill implements control.API.
func (h *API) Kill(ctx context.Context, p control.Kill) (control.BulkResult, error) {
	number, err := queue.ParseSignal(cmp.Or(p.Signal, "TERM"))
	if err != nil {
		return control.BulkResult{}, err
	}
	return h.applyToJobs(ctx, p.Selection, []queue.State{queue.Processing}, &bulkVerb{
		method:       "kill",
		remoteParams: func(selection control.Selection) any { return control.Kill{Selection: selection, Signal: p.Signal} },
		apply: func(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
			if h.Pool.LeasedAttemptNumber(j.Seq) > 0 {
				if err := h.Guard.Audit(ctx, "kill", queue.SignalText(number), j); err != nil {
					return err
				}
			}
			if number == int(syscall.SIGTERM) { // resume the job, since a paused one cannot handle the signal
				if err := h.Pool.ResumeForSignal(ctx, j.Seq, control.PeerFrom(ctx).UID); err != nil {
					return err
				}
			}
			runs, err := h.Pool.Signal(ctx, j.Seq, number)
			switch {
			case err != nil || runs:
				return err
			case len(allowedStates) > 0:
				return store.ErrStateChanged
			}
			return queue.Errorf(queue.CodeWrongState, "job %s is %s; only a running job can receive a signal", j.ID, j.State)
		},
	})
}

// DLQRetry implements control.API. If the request names no jobs, DLQRetry retries the newest dead jobs, up to
// a limit, oldest first.
func (h *API) DLQRetry(ctx context.Context, p control.DLQRetry) (control.BulkResult, error) {
	selected := control.Selection{ID: p.ID, IDs: p.IDs, DryRun: p.DryRun}
	if len(selected.AllIDs()) == 0 {
		selected.State, selected.Batch, selected.Cursor = control.TextList{queue.Dead.String()}, p.Batch, p.Cursor
	}
	return h.applyToJobs(ctx, selected, []queue.State{queue.Dead}, &bulkVerb{
		method:       "dlq.retry",
		remoteParams: func(selection control.Selection) any { return control.DLQRetry{ID: selection.ID, Timeout: p.Timeout} },
		apply:        h.changeFunc(store.Change{Verb: queue.VerbRetryDead, Timeout: (*time.Duration)(p.Timeout)}),
		oldestFirst:  true,
	})
}

// DLQClear implements control.API.
func (h *API) DLQClear(ctx context.Context, p control.ClearParams) (control.RemovalCount, error) {
	return h.removeAll(ctx, "dlq.clear", p, []queue.State{queue.Dead})
}

// countVerb returns the verb for a dry run on named jobs. The verb succeeds for jobs in one of the given
// states and fails for others, but changes no job.
func countVerb(method string, states []queue.State) *bulkVerb {
	return &bulkVerb{method: method, localOnly: true, apply: func(_ context.Context, j *queue.Job, _ []queue.State) error {
		if !slices.Contains(states, j.State) {
			return store.ErrStateChanged
		}
		return nil
	}}
}

// applyToJobs applies a verb to the jobs that the request names. If the request names none, applyToJobs uses
// the filter in the request, up to a limit of jobs. A filter without states selects jobs in defaultStates.
func (h *API) applyToJobs(ctx context.Context, p control.Selection, defaultStates []queue.State,
	verb *bulkVerb) (control.BulkResult, error) {
	switch {
	case p.SelectsByFilter():
		return h.applyToSelected(ctx, p, defaultStates, verb)
	case p.DryRun:
		verb = countVerb(verb.method, defaultStates)
	}
	v, err := h.applyToIDs(ctx, verb, p.AllIDs())
	if p.DryRun {
		v.MatchCount, v.DoneIDs = new(len(v.DoneIDs)), []string{}
	}
	return v, err
}

// applyToSelected applies a verb to the jobs that match a filter, up to a limit per request. If the caller may
// use the verb only on the caller's own jobs, it skips the jobs of other users.
func (h *API) applyToSelected(ctx context.Context, p control.Selection, defaultStates []queue.State,
	verb *bulkVerb) (control.BulkResult, error) {
	method := verb.method
	v := control.BulkResult{DoneIDs: []string{}, Refusals: []control.Refusal{}}
	peer := control.PeerFrom(ctx)
	f, err := h.parseFilter(&peer, control.List{State: p.State, Failed: p.Failed, Label: p.Label, Queue: p.Queue,
		Batch: p.Batch, User: p.User, IDGlob: p.IDGlob, Limit: control.MaxSelectedPerRequest, Cursor: p.Cursor})
	if err != nil {
		return v, err
	}
	if len(f.States) == 0 {
		f.States = defaultStates
	}
	if onlyUID := access.OwnJobsOnlyUID(&peer, method); onlyUID != nil {
		if f.UID != nil && *f.UID != *onlyUID {
			return v, h.Rights.RefusalError(&peer, method+" on another user's jobs", control.RequiredRight(method, false))
		}
		f.UID = onlyUID
	}
	if p.OlderThan != 0 {
		f.Until = h.Store.Now().Add(-time.Duration(p.OlderThan))
	}
	page, err := h.listRefs(ctx, f)
	if err != nil {
		return v, err
	}
	if p.DryRun {
		v.MatchCount = new(len(slices.DeleteFunc(page.Refs, func(r store.JobRef) bool {
			return !slices.Contains(defaultStates, r.State)
		})))
	} else {
		if verb.oldestFirst {
			slices.Reverse(page.Refs)
		}
		v, err = h.applyToRefs(ctx, verb, page.Refs, f.States)
		if err != nil {
			return v, err
		}
		// Leave out jobs that were removed in the meantime.
		v.Refusals = slices.DeleteFunc(v.Refusals, func(r control.Refusal) bool { return r.Code == queue.CodeNotFound })
	}
	v.Next = pageCursor(page.Next)
	return v, nil
}

// listRefs reads one page of references to the jobs that match a filter.
func (h *API) listRefs(ctx context.Context, f store.Filter) (store.RefPage, error) {
	return readInSlot(ctx, h.UserLimits, control.ClassManyJobs,
		func() (store.RefPage, error) { return h.Store.ListRefs(ctx, f) })
}

// pageCursor returns the cursor of the next page, or nil after the last page.
func pageCursor(next int64) *string {
	if next == 0 {
		return nil
	}
	return new(strconv.FormatInt(next, 10))
}
