package handlers

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// PauseJobs implements control.API.
func (h *API) PauseJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return h.setJobsPaused(ctx, "pause", p, true)
}

// ResumeJobs implements control.API.
func (h *API) ResumeJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return h.setJobsPaused(ctx, "resume", p, false)
}

// setJobsPaused pauses the selected jobs or, if pause is false, resumes them. method is the name of the method
// that the client called.
func (h *API) setJobsPaused(ctx context.Context, method string, p control.JobSelection, pause bool) (control.BulkResult,
	error) {
	if p.AllJobs {
		return h.setAllJobsPaused(ctx, method, p, pause)
	}
	return h.applyVerbToSelection(ctx, p, []queue.State{queue.Processing}, h.newPauseVerb(pause))
}

// newPauseVerb returns the verb that pauses running jobs, or resumes paused ones.
func (h *API) newPauseVerb(pause bool) *bulkVerb {
	method := "resume"
	if pause {
		method = "pause"
	}
	return &bulkVerb{method: method, applyToJob: func(ctx context.Context, j *queue.Job,
		allowedStates []queue.State) error {
		runs, err := h.Pool.SetJobPaused(ctx, j.Seq, pause, control.PeerFrom(ctx).UID)
		switch {
		case err != nil || runs:
			return err
		case len(allowedStates) > 0:
			return store.ErrJobStateChanged
		}
		now, err := h.rereadCompactJob(ctx, j)
		if err != nil {
			return err
		}
		return cannotPauseError(&now, pause)
	}}
}

// cannotPauseError returns the error for a job that cannot be paused or, if pause is false, cannot be resumed.
func cannotPauseError(j *queue.Job, pause bool) error {
	next := "only running jobs can be paused"
	switch {
	case pause && j.State.IsWaiting() && j.State != queue.Held:
		next += "; to keep it from starting: queuectl hold " + j.ID
	case !pause && j.State == queue.Held:
		next = "let it run with: queuectl release " + j.ID
	case !pause:
		next = "only paused jobs can be resumed"
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is %s; %s", j.ID, j.State, next)
}

// setAllJobsPaused pauses all jobs or, if pause is false, ends the pause of all jobs. Jobs that were also paused
// individually then stay paused. The pause of all jobs outlasts restarts of the service.
func (h *API) setAllJobsPaused(ctx context.Context, method string, p control.JobSelection,
	pause bool) (control.BulkResult,
	error) {
	v := control.BulkResult{ChangedJobIDs: []string{}, Refusals: []control.Refusal{}}
	peer := control.PeerFrom(ctx)
	if !peer.Right.Covers(control.RightOperate) {
		return v, h.Rights.MissingRightError(&peer, method+" of all jobs", control.RightOperate)
	}
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed {
		if err := h.ReloadSharedSettings(ctx); err != nil {
			return v, err
		}
		return localPauseResult(h.Pool.SetAllJobsPaused(h.PauseOfAllJobs.Load() != nil)(ctx)), nil
	}
	if p.DryRun {
		v.SelectedCount = new(int(h.Store.Counts().JobsByState[queue.Processing]))
		return v, nil
	}
	var awaitPause func(context.Context) ([]string, error)
	err := h.SettingsLock.RunLocked(ctx, func() error {
		// Read the store, because another node may have paused or resumed all jobs since this node last read it.
		stored, err := h.Store.Settings(ctx)
		if err != nil {
			return err
		}
		paused := slices.ContainsFunc(stored, func(set store.Setting) bool { return set.Key == settings.PauseSettingKey })
		if paused != pause || h.Pool.AreAllJobsPaused() != pause {
			if err := h.storePauseOfAllJobs(ctx, pause); err != nil {
				return err
			}
		}
		awaitPause = h.Pool.SetAllJobsPaused(pause)
		return nil
	})
	if err != nil {
		return v, err
	}
	done, err := awaitPause(ctx)
	v.ChangedJobIDs = append(v.ChangedJobIDs, done...)
	request := cluster.Request{APIMethod: method, Params: control.JobSelection{AllJobs: true}}
	for _, other := range notifyNodes[control.BulkResult](ctx, h, request) {
		v.ChangedJobIDs = append(v.ChangedJobIDs, other.Result.ChangedJobIDs...)
		for _, r := range other.Result.Refusals {
			h.Log.Warn("a node could not "+method+" all of its jobs", "node", other.Node.Name, "error", r.Message)
		}
	}
	return v, err
}

// localPauseResult returns this node's answer to another node that has paused or resumed all jobs. changedIDs contains
// the ids of the jobs that this node has changed. err is the reason why some jobs could not be changed; nil if all were
// changed.
func localPauseResult(changedIDs []string, err error) control.BulkResult {
	v := control.BulkResult{ChangedJobIDs: changedIDs}
	if err != nil {
		v.Refusals = append(v.Refusals, newRefusal("", &queue.Error{Code: queue.CodeUnavailable, Message: err.Error()}))
	}
	return v
}

// storePauseOfAllJobs stores the start or the end of a pause of all jobs. The caller holds the settings lock.
func (h *API) storePauseOfAllJobs(ctx context.Context, pause bool) error {
	set := store.Setting{Key: settings.PauseSettingKey, SetByUID: control.PeerFrom(ctx).UID, EventKind: queue.EventResumed}
	if pause {
		set.Value, set.EventKind = "on", queue.EventPaused
	}
	if err := h.storeSetting(ctx, set); err != nil {
		return err
	}
	if !pause {
		h.PauseOfAllJobs.Store(nil)
		return nil
	}
	set.SetAt = h.Store.Now()
	// Continue even if the request was cancelled, because the change is already stored.
	stored, _ := h.Store.Settings(context.WithoutCancel(ctx))
	for i := range stored {
		if stored[i].Key == settings.PauseSettingKey {
			set = stored[i] // use the stored start time of the pause, which later services report too
		}
	}
	h.PauseOfAllJobs.Store(&set)
	return nil
}
