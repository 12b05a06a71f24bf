package service

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// allPause holds the pause of all jobs.
type allPause struct {
	// Who paused all jobs and when; nil if they are not paused.
	paused atomic.Pointer[store.Setting]
}

// pauseKey is the stored setting that keeps a pause of all jobs across restarts. It is not a configuration
// key.
const pauseKey = "pause"

// Pause implements control.API.
func (h *Actions) Pause(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	return h.pause(ctx, "pause", p, true)
}

// Resume implements control.API.
func (h *Actions) Resume(ctx context.Context, p control.Selection) (control.BulkResult, error) {
	return h.pause(ctx, "resume", p, false)
}

func (h *Actions) pause(ctx context.Context, method string, p control.Selection, on bool) (control.BulkResult, error) {
	if p.All {
		return h.pauseAll(ctx, method, p, on)
	}
	return h.bulk.onJobs(ctx, method, p, []queue.State{queue.Processing}, func(ctx context.Context, j *queue.Job, only []queue.State) error {
		runs, err := h.router.Pause(ctx, j.Seq, on, control.PeerFrom(ctx).UID)
		switch {
		case err != nil || runs:
			return err
		case len(only) > 0:
			return store.ErrMoved
		}
		now, err := h.reader.rereadOutline(ctx, j)
		if err != nil {
			return err
		}
		return notPaused(&now, on)
	})
}

// notPaused returns the error for a job that cannot be paused because it does not run, or cannot be resumed
// because it is not paused.
func notPaused(j *queue.Job, on bool) error {
	next := "only running jobs can be paused"
	switch {
	case on && j.State.Waiting() && j.State != queue.Held:
		next += "; to keep it from starting: queuectl hold " + j.ID
	case !on && j.State == queue.Held:
		next = "let it run with: queuectl release " + j.ID
	case !on:
		next = "only paused jobs can be resumed"
	}
	return queue.Errorf(queue.CodeWrongState, "job %s is %s; %s", j.ID, j.State, next)
}

// pauseAll begins or ends a pause of all jobs. Ending it resumes only jobs that were not paused
// individually. The pause also lasts across restarts of the service.
func (h *Actions) pauseAll(ctx context.Context, method string, p control.Selection, on bool) (control.BulkResult, error) {
	v := control.BulkResult{Done: []string{}, Refused: []control.Refusal{}}
	peer := control.PeerFrom(ctx)
	if !peer.Right.Covers(control.Operate) {
		return v, h.rights.Refuse(&peer, method+" of all jobs", control.Operate)
	}
	if p.DryRun {
		v.Matched = new(int(h.store.Counts().States[queue.Processing]))
		return v, nil
	}
	var wait func(context.Context) ([]string, error)
	err := h.lock.withSettingsLock(ctx, func() error {
		// Read the store, since another node may have paused or resumed all jobs.
		stored, err := h.store.Settings(ctx)
		if err != nil {
			return err
		}
		paused := slices.ContainsFunc(stored, func(set store.Setting) bool { return set.Key == pauseKey })
		if paused != on || h.pool.Frozen() != on {
			if err := h.storePause(ctx, on); err != nil {
				return err
			}
		}
		wait = h.pool.PauseAll(on)
		return nil
	})
	if err != nil {
		return v, err
	}
	done, err := wait(ctx)
	v.Done = append(v.Done, done...)
	for _, other := range h.changes.notifyNodes(ctx, nodeRequest{Command: "freeze"}) {
		v.Done = append(v.Done, other.Done...)
	}
	return v, err
}

// storePause stores the start or the end of a pause of all jobs. The caller holds the settings lock.
func (h *Actions) storePause(ctx context.Context, on bool) error {
	set := store.Setting{Key: pauseKey, UID: control.PeerFrom(ctx).UID, Kind: queue.EventResumed}
	if on {
		set.Value, set.Kind = "on", queue.EventPaused
	}
	if err := h.changes.storeSetting(ctx, set); err != nil {
		return err
	}
	if !on {
		h.pauses.paused.Store(nil)
		return nil
	}
	set.At = h.store.Now()
	// Continue even if the request was cancelled, since the pause is already stored.
	stored, _ := h.store.Settings(context.WithoutCancel(ctx))
	for i := range stored {
		if stored[i].Key == pauseKey {
			set = stored[i] // use the stored start time, since later services report it too
		}
	}
	h.pauses.paused.Store(&set)
	return nil
}

// pauseOf returns since when a running job is paused, and by whom. If the job was not paused individually,
// pauseOf describes the pause of all jobs. It returns 0 if the job is not paused at all.
func (p *allPause) pauseOf(j *queue.Job) (since queue.Millis, uid int) {
	all := p.paused.Load()
	if j.PausedAt != 0 || j.State != queue.Processing || all == nil {
		return j.PausedAt, j.PausedBy
	}
	return max(all.At, j.StartedAt), all.UID
}

// pausedHealth returns who has paused all jobs, or "" if they are not paused.
func (h *healthCheck) pausedHealth() string {
	all := h.pauses.paused.Load()
	if all == nil {
		return ""
	}
	return fmt.Sprintf("all jobs are paused, by %s since %s; resume them with: queuectl resume --all", h.owners.userName(all.UID), all.At)
}
