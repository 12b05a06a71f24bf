package control

import (
	"context"
	"time"
)

// WorkerAPI lists and changes the workers of the node that answers. A worker is a slot that runs one job at a
// time.
type WorkerAPI interface {
	// StartWorkers adds workers.
	StartWorkers(ctx context.Context, p WorkerStartParams) (WorkerCount, error)
	// StopWorkers removes workers. It returns when the jobs that ran on the removed workers have ended.
	StopWorkers(ctx context.Context, p WorkerStopParams) (WorkerCount, error)
	// ScaleWorkers sets the number of workers.
	ScaleWorkers(ctx context.Context, p WorkerScaleParams) (WorkerCount, error)
	// ListWorkers lists the workers and the jobs that they run.
	ListWorkers(ctx context.Context, p NoParams) (WorkerList, error)
}

// WorkerStartParams holds the parameters of the method worker.start: the number of workers to add. nil means 1.
type WorkerStartParams struct {
	WorkersToAdd *int `json:"count,omitempty" rule:"someWorkers"`
}

// WorkerStopParams holds the parameters of the method worker.stop, which removes WorkersToRemove workers, or all
// workers. The running jobs of these workers get JobFinishTimeout to finish (nil means DefaultJobFinishTimeout). After
// that, the jobs are stopped and put back in the queue.
type WorkerStopParams struct {
	WorkersToRemove     *int      `json:"count,omitempty" rule:"someWorkers"`
	AllWorkers          bool      `json:"all,omitempty"`
	JobFinishTimeout    *Duration `json:"timeout,omitempty" rule:"duration"`
	StopJobsImmediately bool      `json:"force,omitempty"` // has the same effect as a JobFinishTimeout of 0
}

// DefaultJobFinishTimeout is how long the method worker.stop waits for running jobs to finish, unless the request has a
// JobFinishTimeout.
const DefaultJobFinishTimeout = 30 * time.Second

// WorkerScaleParams holds the parameters of the method worker.scale, which sets the number of workers.
type WorkerScaleParams struct {
	TargetWorkers int `json:"count" rule:"workers,required"`
}

// WorkerCount is the response to the methods that change the number of workers. Workers is the new number.
type WorkerCount struct {
	Workers int `json:"workers"`
}

// WorkerList is the response to the method worker.list.
type WorkerList struct {
	Workers []Worker `json:"workers"`
}

// Worker describes one worker in an answer.
type Worker struct {
	ID   string `json:"id"`
	Node string `json:"node"`
	// PID is the pid of the worker's job. If State is stuck, PID is the pid of a process that has survived SIGKILL.
	PID           *int `json:"pid"`
	StartedAt     Time `json:"started_at"`
	LastHeartbeat Time `json:"last_heartbeat"`
	// State is idle, busy, paused, stopping, stale or stuck. "stuck" means that the job of the worker has
	// ended, but one of the job's processes has survived SIGKILL.
	State string  `json:"state"`
	Job   *string `json:"job"` // id of the worker's job; null if it has none
}
