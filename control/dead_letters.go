package control

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// DeadLetterAPI handles dead jobs: those that have failed for good.
type DeadLetterAPI interface {
	// DLQList returns a page of dead jobs, newest first.
	DLQList(ctx context.Context, p DLQList) (JobPage, error)
	// DLQRetry puts dead jobs back in the queue. It returns the jobs that it could not put back, and the
	// reasons.
	DLQRetry(ctx context.Context, p DLQRetry) (BulkResult, error)
	// DLQClear removes all dead jobs, or those of one batch.
	DLQClear(ctx context.Context, p ClearParams) (RemovalCount, error)
}

// DLQList holds the parameters of the method dlq.list, which lists dead jobs, newest first.
type DLQList struct {
	Label  Labels `json:"label,omitempty" rule:"labels"` // the job must have all of these labels
	Queue  string `json:"queue,omitempty" rule:"queue"`
	Batch  string `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	User   string `json:"user,omitempty" rule:"name"`
	IDGlob string `json:"id_glob,omitempty" rule:"glob"`   // pattern for the id; wildcards: *, ? and sets such as [a-z]
	Since  Time   `json:"since,omitzero"`                  // only jobs that ended at this time or later
	Until  Time   `json:"until,omitzero"`                  // only jobs that ended before this time
	Limit  int    `json:"limit,omitempty" rule:"pageRows"` // 1 to 1000; 0 means 1000
	Cursor string `json:"cursor,omitempty" rule:"jobCursor"`
}

// List returns parameters for the method list that select the same jobs.
func (p DLQList) List() List {
	return List{State: TextList{queue.Dead.String()}, Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User,
		IDGlob: p.IDGlob, Since: p.Since, Until: p.Until, Limit: p.Limit, Cursor: p.Cursor}
}

// DLQRetry holds the parameters of the method dlq.retry, which puts dead jobs back in the queue: those with the
// given ids, those in a batch of the caller, or all of them. Without ids, one request processes at most
// MaxSelectedPerRequest jobs.
type DLQRetry struct {
	ID      JobID     `json:"id,omitempty" rule:"nonEmpty"`
	IDs     JobIDs    `json:"ids,omitempty" rule:"selectedIDs"`
	All     bool      `json:"all,omitempty"`
	Batch   string    `json:"batch,omitempty" rule:"label"`
	Timeout *Duration `json:"timeout,omitempty" rule:"duration"` // replaces the timeout of the jobs
	DryRun  bool      `json:"dry_run,omitempty"`                 // count the jobs without changing them
	Cursor  string    `json:"cursor,omitempty" rule:"jobCursor"`
}
