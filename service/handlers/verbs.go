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

// CancelJobs implements control.API.
func (h *API) CancelJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	takes := append(queue.VerbCancel.StatesWithEffect(), queue.Processing)
	return h.applyVerbToSelection(ctx, p, takes, &bulkVerb{method: "cancel", applyToJob: h.cancelJob,
		awaitsAttemptEnd: true})
}

// cancelJob cancels a job that is in one of allowedStates. An empty allowedStates allows every state. If allowedStates
// allows running jobs, cancelJob also ends a running attempt.
func (h *API) cancelJob(ctx context.Context, j *queue.Job, allowedStates []queue.State) (err error) {
	if len(allowedStates) > 0 && !slices.Contains(allowedStates, queue.Processing) {
		return h.changeUnleasedJob(ctx, j, store.JobChange{Verb: queue.VerbCancel, AllowedStates: allowedStates})
	}
	if allowedStates, err = h.endRunningAttempt(ctx, j, allowedStates); err != nil {
		return err
	}
	return h.Store.ChangeJob(ctx, j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: control.PeerFrom(ctx).UID,
		AllowedStates: allowedStates})
}

// endRunningAttempt ends the running attempt of a job. It does this before the store is changed, because a change of
// the store may have to wait for disk space. It returns the states in which the caller may then change the job. If this
// node's pool had the job, these are all states, and the result is nil. Otherwise, the result is allowedStates.
func (h *API) endRunningAttempt(ctx context.Context, j *queue.Job, allowedStates []queue.State) ([]queue.State, error) {
	leased, err := h.Pool.CancelJob(ctx, j.Seq, control.PeerFrom(ctx).UID)
	if leased {
		allowedStates = nil
	}
	return allowedStates, err
}

// changeUnleasedJob applies a change to a job that is not leased.
func (h *API) changeUnleasedJob(ctx context.Context, j *queue.Job, c store.JobChange) error {
	c.UID = control.PeerFrom(ctx).UID
	set := h.Settings.CurrentConfig()
	c.MaxPendingJobs, c.MaxPendingJobsPerUser, c.MaxBytesPerUser = set.MaxPending, set.MaxPendingPerUser,
		h.UserQuota.MaxBytesPerUser()
	done, err := h.Pool.ChangeUnstartedJob(ctx, j.Seq, c)
	if done || err != nil {
		return explainAttemptStartedError(err, j, c.Verb, c.AllowedStates)
	}
	return h.UserQuota.RunWithinQuota(ctx, j.UID, func() error { return h.Store.ChangeJob(ctx, j.Seq, c) })
}

// returnUnstartedJob puts a job that this node has claimed but not started back into the queue.
func (h *API) returnUnstartedJob(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
	return explainAttemptStartedError(h.Pool.ReturnUnstartedJob(ctx, j.Seq), j, queue.VerbEdit, allowedStates)
}

// explainAttemptStartedError replaces worker.ErrAttemptStarted by an error for users. It returns other errors
// unchanged.
func explainAttemptStartedError(err error, j *queue.Job, v queue.Verb, allowedStates []queue.State) error {
	switch {
	case !errors.Is(err, worker.ErrAttemptStarted):
		return err
	case len(allowedStates) > 0:
		return store.ErrJobStateChanged
	}
	next := "cancel it with: queuectl cancel " + j.ID + ", or put it back in the queue with: queuectl requeue " + j.ID
	if v == queue.VerbRemove {
		next = "to stop it and remove it: queuectl rm --force " + j.ID
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is running; %s", j.ID, next)
}

// newJobChangeFunc returns a function that applies a change to a job. It is used for bulkVerb.applyToJob.
func (h *API) newJobChangeFunc(c store.JobChange) func(context.Context, *queue.Job, []queue.State) error {
	return func(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
		c := c
		c.AllowedStates = allowedStates
		return h.changeUnleasedJob(ctx, j, c)
	}
}

// HoldJobs implements control.API.
func (h *API) HoldJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return h.applyVerbToSelection(ctx, p, queue.VerbHold.StatesWithEffect(),
		&bulkVerb{method: "hold", applyToJob: h.newJobChangeFunc(store.JobChange{Verb: queue.VerbHold})})
}

// ReleaseJobs implements control.API.
func (h *API) ReleaseJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return h.applyVerbToSelection(ctx, p, queue.VerbRelease.StatesWithEffect(),
		&bulkVerb{method: "release", applyToJob: h.newJobChangeFunc(store.JobChange{Verb: queue.VerbRelease})})
}

// RetryJobs implements control.API. If the caller selects jobs by a filter, completed jobs are retried only if the
// filter names the state "completed".
func (h *API) RetryJobs(ctx context.Context, p control.JobRetryParams) (control.BulkResult, error) {
	takes := queue.VerbRetry.StatesWithEffect()
	if p.UsesFilters() && len(p.States) == 0 {
		takes = []queue.State{queue.Failed, queue.Dead, queue.Cancelled}
	}
	return h.applyVerbToSelection(ctx, p.JobSelection, takes, &bulkVerb{
		method: "retry",
		remoteParams: func(selection control.JobSelection) any {
			return control.JobRetryParams{JobSelection: selection, WithoutDependants: p.WithoutDependants}
		},
		applyToJob: h.newJobChangeFunc(store.JobChange{Verb: queue.VerbRetry, KeepDependantsCancelled: p.WithoutDependants}),
	})
}

// maxBulkEditPatchBytes is the maximum length in bytes of a patch for many jobs. The patch is stored with each job.
const maxBulkEditPatchBytes = 64 << 10

// EditJobs implements control.API.
func (h *API) EditJobs(ctx context.Context, p control.JobEditParams) (result control.BulkResult, err error) {
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed {
		return h.applyVerbToSelection(ctx, p.JobSelection, nil, &bulkVerb{method: "edit", appliesOnThisNode: true,
			applyToJob: h.returnUnstartedJob})
	}
	if len(p.FieldsToSet) > maxBulkEditPatchBytes && (p.UsesFilters() || len(p.AllIDs()) > 1) {
		return result, queue.InvalidFieldError("set",
			"the new values have %d bytes; when one request edits several jobs, the maximum is %d", len(p.FieldsToSet),
			maxBulkEditPatchBytes)
	}
	d := h.Settings.CurrentConfig().JobDefaults()
	sample := queue.Job{MaxAttempts: 1, Unique: "a", ExecutionSettings: queue.ExecutionSettings{
		Command: "true", Shell: d.Shell, OnLost: queue.OnLostRetry, SecretReferences: []string{"QUEUECTL_SAMPLE=/a"},
	}} // a made-up job on which every field may be set
	if err := sample.Edit(p.FieldsToSet, d); err != nil {
		return result, err // the patch is invalid for every job
	}
	peer := control.PeerFrom(ctx)
	scope, err := h.Guard.ParseEditScope(&peer, p.FieldsToSet)
	if err != nil {
		return result, err
	}
	known, nodesErr := h.NodeRegistry.Nodes(ctx)
	nodes := func() ([]store.NodeState, error) { return known, nodesErr }
	edit := func(j *queue.Job) error {
		// Check each job in its current state, because an earlier edit may have changed the user that the job runs as.
		err := h.Guard.CheckMayEdit(&peer, &scope, j)
		demands, priority, name := j.Demands, j.Priority, j.Queue
		if err == nil {
			err = j.Edit(h.QueueRules.ReplaceNullsByDefaults(p.FieldsToSet, j.Queue), d)
		}
		if err == nil && !slices.Equal(demands, j.Demands) {
			err = h.checkDemandsCanBeMet(j, nodes)
		}
		if err == nil && (j.Priority != priority || j.Queue != name) {
			err = h.checkMaySetPriority(&peer, j)
		}
		if err == nil {
			err = checkSystemSupportsJob(j)
		}
		if err == nil {
			scope.ApplyUserChange(j)
		}
		return err
	}
	v, err := h.applyVerbToSelection(ctx, p.JobSelection, queue.VerbEdit.StatesWithEffect(), &bulkVerb{
		method: "edit",
		// This node has checked the edit and applies it. A node that has leased the job only returns the job to the queue.
		remoteParams: func(selection control.JobSelection) any {
			return control.JobEditParams{JobSelection: selection, FieldsToSet: json.RawMessage(`{}`)}
		},
		remoteCallOnlyRequeuesJob: true,
		applyToJob:                h.newJobChangeFunc(store.JobChange{Verb: queue.VerbEdit, EditJob: edit}),
	})
	if err == nil && len(v.ChangedJobIDs) > 0 {
		var notes replyNotes
		h.addDraftNotes(&notes, []queue.Job{sample})
		v.Notes = notes.otherNotes
		v.UnenforcedLimits, err = h.UnenforcedLimits(ctx, []queue.Job{sample}, false)
	}
	return v, err
}

// RemoveJobs implements control.API.
func (h *API) RemoveJobs(ctx context.Context, p control.JobRemoveParams) (control.BulkResult, error) {
	takes := queue.VerbRemove.StatesWithEffect()
	if p.EndRunningJobs {
		takes = append(takes, queue.Processing)
	}
	return h.applyVerbToSelection(ctx, p.JobSelection, takes, &bulkVerb{
		method: "rm",
		remoteParams: func(selection control.JobSelection) any {
			return control.JobRemoveParams{JobSelection: selection, EndRunningJobs: p.EndRunningJobs}
		},
		awaitsAttemptEnd: p.EndRunningJobs,
		applyToJob: func(ctx context.Context, j *queue.Job, allowedStates []queue.State) (err error) {
			if p.EndRunningJobs && (len(allowedStates) == 0 || slices.Contains(allowedStates, queue.Processing)) {
				if allowedStates, err = h.endRunningAttempt(ctx, j, allowedStates); err != nil {
					return err
				}
			}
			return h.changeUnleasedJob(ctx, j, store.JobChange{Verb: queue.VerbRemove, AllowedStates: allowedStates})
		},
	})
}

// RemoveNonRunningJobs implements control.API.
func (h *API) RemoveNonRunningJobs(ctx context.Context, p control.JobClearParams) (control.RemovalCount, error) {
	return h.removeJobsInStates(ctx, "clear", p, queue.VerbRemove.StatesWithEffect())
}

// removeJobsInStates removes all jobs in the given states. If p names a batch, it removes only jobs of that batch. With
// p.DryRun, it only counts the jobs.
func (h *API) removeJobsInStates(ctx context.Context, method string, p control.JobClearParams,
	states []queue.State) (control.RemovalCount, error) {
	var removedCount control.RemovalCount
	peer := control.PeerFrom(ctx)
	f, err := h.parseListFilter(&peer, control.JobListParams{Batch: p.Batch})
	if err != nil {
		return removedCount, err
	}
	f.States = states
	if p.DryRun {
		removedCount.SelectedCount = new(int)
	} else if err := h.Guard.RecordAudit(ctx, method, p.Batch, nil); err != nil {
		return removedCount, err
	}
	remove := &bulkVerb{method: method, remoteMethod: "rm",
		applyToJob: h.newJobChangeFunc(store.JobChange{Verb: queue.VerbRemove})}
	for {
		page, err := h.listJobRefs(ctx, f)
		if err != nil {
			return removedCount, err
		}
		if f.BeforeSeq = page.NextBeforeSeq; p.DryRun {
			if *removedCount.SelectedCount += len(page.Refs); f.BeforeSeq == 0 {
				return removedCount, nil
			}
			continue
		}
		verdict, err := h.applyVerbToJobRefs(ctx, remove, page.Refs, states)
		removedCount.RemovedJobs += len(verdict.ChangedJobIDs)
		if err != nil || f.BeforeSeq == 0 {
			return removedCount, err
		}
	}
}

// RequeueJobs implements control.API.
func (h *API) RequeueJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return h.applyVerbToSelection(ctx, p, []queue.State{queue.Processing},
		&bulkVerb{method: "requeue", applyToJob: h.requeueRunningJob, awaitsAttemptEnd: true})
}

// requeueRunningJob ends the attempt of a running job and returns the job to the queue.
func (h *API) requeueRunningJob(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
	held, err := h.Pool.RequeueJob(ctx, j.Seq, control.PeerFrom(ctx).UID)
	switch {
	case errors.Is(err, worker.ErrAttemptEnded):
		if *j, err = h.rereadCompactJob(ctx, j); err != nil || !j.State.HasEnded() {
			return err
		}
	case err != nil || held || j.State == queue.Pending:
		return err
	case len(allowedStates) > 0:
		return store.ErrJobStateChanged
	}
	next := ""
	if j.State.HasEnded() {
		next = "; put it back in the queue with: queuectl retry " + j.ID
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is %s; only running jobs can be requeued%s", j.ID, j.State, next)
}

// KillJobs implements control.API.
func (h *API) KillJobs(ctx context.Context, p control.JobKillParams) (control.BulkResult, error) {
	number, err := queue.ParseSignal(cmp.Or(p.Signal, "TERM"))
	if err != nil {
		return control.BulkResult{}, err
	}
	return h.applyVerbToSelection(ctx, p.JobSelection, []queue.State{queue.Processing}, &bulkVerb{
		method: "kill",
		remoteParams: func(selection control.JobSelection) any {
			return control.JobKillParams{JobSelection: selection, Signal: p.Signal}
		},
		applyToJob: func(ctx context.Context, j *queue.Job, allowedStates []queue.State) error {
			if h.Pool.LeasedAttemptNumber(j.Seq) > 0 {
				if err := h.Guard.RecordAudit(ctx, "kill", queue.SignalText(number), j); err != nil {
					return err
				}
			}
			if number == int(syscall.SIGTERM) { // resume the job, since a paused one cannot handle the signal
				if err := h.Pool.ResumeJobForSignal(ctx, j.Seq, control.PeerFrom(ctx).UID); err != nil {
					return err
				}
			}
			runs, err := h.Pool.SignalJob(ctx, j.Seq, number)
			switch {
			case err != nil || runs:
				return err
			case len(allowedStates) > 0:
				return store.ErrJobStateChanged
			}
			return queue.Errorf(queue.CodeWrongState, "job %s is %s; only a running job can receive a signal", j.ID, j.State)
		},
	})
}

// RetryDeadJobs implements control.API. If the request names no jobs, RetryDeadJobs retries the newest dead jobs, up to
// a limit. Of the selected jobs, it retries the oldest first.
func (h *API) RetryDeadJobs(ctx context.Context, p control.DeadJobRetryParams) (control.BulkResult, error) {
	selected := control.JobSelection{ID: p.ID, IDs: p.IDs, DryRun: p.DryRun}
	if len(selected.AllIDs()) == 0 {
		selected.States, selected.Batch, selected.Cursor = control.TextList{queue.Dead.String()}, p.Batch, p.Cursor
	}
	return h.applyVerbToSelection(ctx, selected, []queue.State{queue.Dead}, &bulkVerb{
		method: "dlq.retry",
		remoteParams: func(selection control.JobSelection) any {
			return control.DeadJobRetryParams{ID: selection.ID, NewTimeout: p.NewTimeout}
		},
		applyToJob: h.newJobChangeFunc(store.JobChange{Verb: queue.VerbRetryDead,
			NewTimeout: (*time.Duration)(p.NewTimeout)}),
		changesOldestJobsFirst: true,
	})
}

// RemoveDeadJobs implements control.API.
func (h *API) RemoveDeadJobs(ctx context.Context, p control.JobClearParams) (control.RemovalCount, error) {
	return h.removeJobsInStates(ctx, "dlq.clear", p, []queue.State{queue.Dead})
}

// newDryRunVerb returns the verb for a dry run on named jobs. The verb succeeds for jobs in one of the given states and
// fails for jobs in other states, but changes no job.
func newDryRunVerb(method string, states []queue.State) *bulkVerb {
	return &bulkVerb{method: method, appliesOnThisNode: true, applyToJob: func(_ context.Context, j *queue.Job,
		_ []queue.State) error {
		if !slices.Contains(states, j.State) {
			return store.ErrJobStateChanged
		}
		return nil
	}}
}

// applyVerbToSelection applies a verb to the jobs that the request names. If the request names none,
// applyVerbToSelection uses the filter in the request, up to a limit of jobs. A filter without states selects jobs in
// defaultStates.
func (h *API) applyVerbToSelection(ctx context.Context, p control.JobSelection, defaultStates []queue.State,
	verb *bulkVerb) (control.BulkResult, error) {
	switch {
	case p.UsesFilters():
		return h.applyVerbToMatchingJobs(ctx, p, defaultStates, verb)
	case p.DryRun:
		verb = newDryRunVerb(verb.method, defaultStates)
	}
	v, err := h.applyVerbToJobIDs(ctx, verb, p.AllIDs())
	if p.DryRun {
		v.SelectedCount, v.ChangedJobIDs = new(len(v.ChangedJobIDs)), []string{}
	}
	return v, err
}

// applyVerbToMatchingJobs applies a verb to the jobs that match a filter, up to a limit per request. If the caller may
// use the verb only on the caller's own jobs, it skips the jobs of other users.
func (h *API) applyVerbToMatchingJobs(ctx context.Context, p control.JobSelection, defaultStates []queue.State,
	verb *bulkVerb) (control.BulkResult, error) {
	method := verb.method
	v := control.BulkResult{ChangedJobIDs: []string{}, Refusals: []control.Refusal{}}
	peer := control.PeerFrom(ctx)
	f, err := h.parseListFilter(&peer, control.JobListParams{States: p.States, FailedOrDead: p.FailedOrDead,
		WithLabels: p.WithLabels, Queue: p.Queue,
		Batch: p.Batch, Submitter: p.Submitter, IDGlob: p.IDGlob, PageSize: control.MaxJobsPerSelection, Cursor: p.Cursor})
	if err != nil {
		return v, err
	}
	if len(f.States) == 0 {
		f.States = defaultStates
	}
	if onlyUID := access.OwnerUIDFilter(&peer, method); onlyUID != nil {
		if f.UID != nil && *f.UID != *onlyUID {
			return v, h.Rights.MissingRightError(&peer, method+" on another user's jobs", control.RequiredRight(method, false))
		}
		f.UID = onlyUID
	}
	if p.OlderThan != 0 {
		f.Until = h.Store.Now().Add(-time.Duration(p.OlderThan))
	}
	page, err := h.listJobRefs(ctx, f)
	if err != nil {
		return v, err
	}
	if p.DryRun {
		v.SelectedCount = new(len(slices.DeleteFunc(page.Refs, func(r store.JobRef) bool {
			return !slices.Contains(defaultStates, r.State)
		})))
	} else {
		if verb.changesOldestJobsFirst {
			slices.Reverse(page.Refs)
		}
		v, err = h.applyVerbToJobRefs(ctx, verb, page.Refs, f.States)
		if err != nil {
			return v, err
		}
		// Leave out jobs that were removed after they were selected.
		v.Refusals = slices.DeleteFunc(v.Refusals, func(r control.Refusal) bool { return r.Code == queue.CodeNotFound })
	}
	v.NextCursor = nextPageCursor(page.NextBeforeSeq)
	return v, nil
}

// listJobRefs reads one page of references to the jobs that match a filter.
func (h *API) listJobRefs(ctx context.Context, f store.JobFilter) (store.JobRefPage, error) {
	return withReadSlot(ctx, h.UserLimits, control.ClassManyJobsRead,
		func() (store.JobRefPage, error) { return h.Store.ListJobRefs(ctx, f) })
}

// nextPageCursor returns the cursor of the next page, or nil after the last page.
func nextPageCursor(nextBeforeSeq int64) *string {
	if nextBeforeSeq == 0 {
		return nil
	}
	return new(strconv.FormatInt(nextBeforeSeq, 10))
}
