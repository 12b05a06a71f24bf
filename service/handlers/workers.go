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

// WorkerStart implements control.API. It adds the requested count to the number of workers. But if a client
// started the service on demand and no user has set a number yet, the count is the new total.
func (h *API) WorkerStart(ctx context.Context, p control.WorkerStart) (control.WorkerCount, error) {
	err := h.changeWorkerCount(ctx, func(current int) int {
		switch {
		case p.Count == nil:
			return current + 1
		case h.StartedOnDemand && h.Settings.Current().Origin("workers") == config.FromDefault:
			return *p.Count
		}
		return current + *p.Count
	})
	return control.WorkerCount{Workers: h.Pool.WantedWorkers()}, err
}

// WorkerScale implements control.API.
func (h *API) WorkerScale(ctx context.Context, p control.WorkerScale) (control.WorkerCount, error) {
	err := h.changeWorkerCount(ctx, func(int) int { return p.Count })
	return control.WorkerCount{Workers: h.Pool.WantedWorkers()}, err
}

// WorkerStop implements control.API. It returns when the jobs of the removed workers have ended.
func (h *API) WorkerStop(ctx context.Context, p control.WorkerStop) (control.WorkerCount, error) {
	timeout := control.DefaultStopTimeout
	if p.Timeout != nil {
		timeout = time.Duration(*p.Timeout)
	}
	if p.Force {
		timeout = 0
	}
	err := h.changeWorkerCount(ctx, func(current int) int {
		if p.Count == nil {
			return 0
		}
		return max(0, current-*p.Count)
	})
	if err != nil {
		return control.WorkerCount{}, err
	}
	err = h.Pool.WaitForScaleDown(ctx, timeout, new(control.PeerFrom(ctx).UID))
	return control.WorkerCount{Workers: h.Pool.WantedWorkers()}, err
}

// WorkerList implements control.API.
func (h *API) WorkerList(ctx context.Context, _ control.NoParams) (control.WorkerList, error) {
	workers := h.Pool.ListWorkers(ctx) // hold no read slot here: runners may be slow
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJob, func() (control.WorkerList, error) {
		return viewWorkers(workers, h.Node, new(control.PeerFrom(ctx))), nil
	})
}

// viewWorkers converts the workers of a node to their form in a reply, with only what the peer may see.
func viewWorkers(workers []worker.WorkerStatus, node string, p *control.Peer) control.WorkerList {
	list := control.WorkerList{Workers: []control.Worker{}}
	for _, w := range workers {
		view := control.Worker{ID: w.ID, Node: node, LastHeartbeat: control.Time(queue.MillisOf(w.LastHeartbeat)),
			State: "idle"}
		if w.JobID != "" {
			view.State, view.Job, view.PID, view.StartedAt = "busy", &w.JobID, &w.PID, control.Time(w.StartedAt)
		}
		if !access.MayRead(p, w.RestrictedToUID) {
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
