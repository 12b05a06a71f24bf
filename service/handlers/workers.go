package handlers

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/worker"
)

// WorkerStart implements control.API. Normally, it adds the requested count to the number of workers. But if a client
// started the service on demand and no user has set a number of workers yet, the count is the new total.
func (h *API) StartWorkers(ctx context.Context, p control.WorkerStartParams) (control.WorkerCount, error) {
	return h.changeWorkerCount(ctx, func(current int) int {
		switch {
		case p.WorkersToAdd == nil:
			return current + 1
		case h.StartedOnDemand && h.Settings.CurrentConfig().OriginInEffect("workers") == config.FromDefault:
			return *p.WorkersToAdd
		}
		return current + *p.WorkersToAdd
	})
}

// WorkerScale implements control.API.
func (h *API) ScaleWorkers(ctx context.Context, p control.WorkerScaleParams) (control.WorkerCount, error) {
	return h.changeWorkerCount(ctx, func(int) int { return p.TargetWorkers })
}

// WorkerStop implements control.API. It returns when the jobs of the removed workers have ended.
func (h *API) StopWorkers(ctx context.Context, p control.WorkerStopParams) (control.WorkerCount, error) {
	timeout := control.DefaultJobFinishTimeout
	if p.JobFinishTimeout != nil {
		timeout = time.Duration(*p.JobFinishTimeout)
	}
	if p.StopJobsImmediately {
		timeout = 0
	}
	count, err := h.changeWorkerCount(ctx, func(current int) int {
		if p.WorkersToRemove == nil {
			return 0
		}
		return max(0, current-*p.WorkersToRemove)
	})
	if err != nil {
		return count, err
	}
	err = h.Pool.WaitForScaleDown(ctx, timeout, new(control.PeerFrom(ctx).UID))
	return control.WorkerCount{Workers: h.Pool.WantedWorkerCount()}, err
}

// WorkerList implements control.API.
func (h *API) ListWorkers(ctx context.Context, _ control.NoParams) (control.WorkerList, error) {
	workers := h.Pool.ListWorkers(ctx) // hold no read slot here: runners may be slow
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJobRead, func() (control.WorkerList, error) {
		return newWorkerListView(workers, h.NodeName, new(control.PeerFrom(ctx))), nil
	})
}

// newWorkerListView converts the workers of the node nodeName to their form in a reply. The reply contains only what
// the peer may see.
func newWorkerListView(workers []worker.WorkerStatus, nodeName string, p *control.Peer) control.WorkerList {
	list := control.WorkerList{Workers: []control.Worker{}}
	for _, w := range workers {
		view := control.Worker{ID: w.ID, Node: nodeName, LastHeartbeat: control.Time(queue.UnixMillisOf(w.LastHeartbeat)),
			State: "idle"}
		if w.JobID != "" {
			view.State, view.Job, view.PID, view.StartedAt = "busy", &w.JobID, &w.PID, control.Time(w.StartedAt)
		}
		if !access.MaySeeJobExists(p, w.RestrictedToUID) {
			view.Job, view.PID, view.StartedAt = nil, nil, 0
		}
		if w.Surplus {
			view.State = "stopping"
		}
		if w.Paused {
			view.State = "paused"
		}
		if w.Stale {
			view.State = "stale"
		}
		if w.Stuck {
			view.State, view.PID, view.StartedAt = "stuck", &w.PID, control.Time(w.StartedAt)
		}
		list.Workers = append(list.Workers, view)
	}
	return list
}
