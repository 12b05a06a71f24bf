package handlers

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// healthNotRunning is the health of a queue without a service.
const healthNotRunning = "degraded: the service is not running, so no jobs start"

// offlineStatus returns the status of a queue without its service. It removes the values that only a
// running service knows. The health is ok if all jobs have ended, since no job then needs the service.
func offlineStatus(st control.Status) control.Status {
	st.Service = ""
	st.PID, st.Started, st.Workers, st.Throughput = 0, 0, control.WorkerSummary{}, 0
	st.Health = "ok"
	for _, s := range queue.States() {
		if !s.Ended() && st.Jobs[s.String()] > 0 {
			st.Health = healthNotRunning
		}
	}
	if n := st.Jobs[queue.Processing.String()]; n > 0 {
		st.Health += "; jobs shown as running were running when the service stopped"
	}
	return st
}
