package top

import (
	"context"
	"io"

	"github.com/queuectl/queuectl/control"
)

// Client is a caller's connection to a queue, divided by purpose. control.Client implements all
// parts.
type Client struct {
	Reader
	JobActions
	Controls
	io.Closer
}

// Reader contains the methods that read the data on the screen.
type Reader interface {
	control.StatusAPI
	Whoami(ctx context.Context, p control.NoParams) (control.Whoami, error)
	List(ctx context.Context, p control.List) (control.JobPage, error)
	Why(ctx context.Context, p control.WhyParams) (control.Why, error)
	Logs(ctx context.Context, p control.Logs, each func(control.OutputPiece) error) (control.LogsEnd, error)
	QueueList(ctx context.Context, p control.QueueListParams) (control.QueueList, error)
	ScheduleList(ctx context.Context, p control.ScheduleList) (control.SchedulePage, error)
}

// JobActions contains the methods that keys call for jobs.
type JobActions interface {
	Retry(ctx context.Context, p control.Retry) (control.BulkResult, error)
	Cancel(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Pause(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Resume(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Hold(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Release(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Edit(ctx context.Context, p control.Edit) (control.BulkResult, error)
}

// Controls contains the methods that keys call for queues, schedules and workers.
type Controls interface {
	QueuePause(ctx context.Context, p control.QueuePause) (control.QueueList, error)
	QueueResume(ctx context.Context, p control.QueueName) (control.QueueList, error)
	SchedulePause(ctx context.Context, p control.ScheduleName) (control.Schedule, error)
	ScheduleResume(ctx context.Context, p control.ScheduleName) (control.Schedule, error)
	ScheduleRun(ctx context.Context, p control.ScheduleName) (control.EnqueueResult, error)
	WorkerStart(ctx context.Context, p control.WorkerStart) (control.WorkerCount, error)
	WorkerScale(ctx context.Context, p control.WorkerScale) (control.WorkerCount, error)
}
