package handlers

import (
	"context"
	"os"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// ServiceStop implements control.API.
func (h *API) ServiceStop(ctx context.Context, p control.ServiceStop) (control.ServiceStopResult, error) {
	if err := h.Guard.Audit(ctx, "service.stop", "", nil); err != nil {
		h.Log.Warn("a stop request could not be recorded in the audit log; the service stops anyway", "error", err)
	}
	queue.TrySend(h.StopRequests, p.KeepJobs) // a second request has no effect
	stopping := control.ServiceStopResult{PID: os.Getpid(), Dir: h.Paths.StateDir}
	if h.RunnerLocation.IsExternal() {
		stopping.RunnerDir = h.RunnerLocation.Dir
	}
	return stopping, nil
}
