package handlers

import (
	"context"
	"os"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// ServiceStop implements control.API.
func (h *API) StopService(ctx context.Context, p control.ServiceStopParams) (control.ServiceStopResult, error) {
	if err := h.Guard.RecordAudit(ctx, "service.stop", "", nil); err != nil {
		h.Log.Warn("a stop request could not be recorded in the audit log; the service stops anyway", "error", err)
	}
	queue.TrySend(h.StopServiceRequests, p.KeepJobs) // if the service is already stopping, this has no effect
	stopping := control.ServiceStopResult{ServicePID: os.Getpid(), StateDir: h.Paths.StateDir}
	if h.RunnerLocation.HasExternalRunnersDir() {
		stopping.RunnerDir = h.RunnerLocation.RunnersDir
	}
	return stopping, nil
}
