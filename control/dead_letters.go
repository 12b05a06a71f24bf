package control

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// DeadLetterAPI handles dead jobs: jobs that have failed for good.
type DeadLetterAPI interface {
	// ListDeadJobs returns a page of dead jobs, newest first.
	ListDeadJobs(ctx context.Context, p DeadJobListParams) (JobPage, error)
	// RetryDeadJobs puts dead jobs back in the queue. It returns the jobs that it could not put back, and the
	// reasons.
	RetryDeadJobs(ctx context.Context, p DeadJobRetryParams) (BulkResult, error)
	// RemoveDeadJobs removes all dead jobs, or only the dead jobs of one batch.
	RemoveDeadJobs(ctx context.Context, p JobClearParams) (RemovalCount, error)
}

// DeadJobListParams holds the parameters of the method dlq.list, which lists dead jobs, newest first.
type DeadJobListParams struct {
	WithLabels Labels `json:"label,omitempty" rule:"labels"` // the job must have all of these labels
	Queue      string `json:"queue,omitempty" rule:"queue"`
	Batch      string `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	Submitter  string `json:"user,omitempty" rule:"name"`
	// pattern for the id; wildcards: *, ? and sets such as [a-z]
	IDGlob      string `json:"id_glob,omitempty" rule:"glob"`
	EndedSince  Time   `json:"since,omitzero"`                  // only jobs that ended at this time or later
	EndedBefore Time   `json:"until,omitzero"`                  // only jobs that ended before this time
	PageSize    int    `json:"limit,omitempty" rule:"pageRows"` // 1 to 1000; 0 means 1000
	Cursor      string `json:"cursor,omitempty" rule:"jobCursor"`
}

// AsListParams returns parameters for the method list that select the same jobs.
func (p DeadJobListParams) AsListParams() JobListParams {
	return JobListParams{States: TextList{queue.Dead.String()}, WithLabels: p.WithLabels, Queue: p.Queue, Batch: p.Batch,
		Submitter: p.Submitter,
		IDGlob:    p.IDGlob, EndedOrEnqueuedSince: p.EndedSince, EndedOrEnqueuedBefore: p.EndedBefore, PageSize: p.PageSize,
		Cursor: p.Cursor}
}

// DeadJobRetryParams holds the parameters of the method dlq.retry, which puts dead jobs back in the queue: the jobs
// with the given ids, the jobs in a batch of the caller, or all of them. Without ids, one request processes at most
// MaxJobsPerSelection jobs.
type DeadJobRetryParams struct {
	ID          JobID     `json:"id,omitempty" rule:"nonEmpty"`
	IDs         JobIDs    `json:"ids,omitempty" rule:"selectedIDs"`
	AllDeadJobs bool      `json:"all,omitempty"`
	Batch       string    `json:"batch,omitempty" rule:"label"`
	NewTimeout  *Duration `json:"timeout,omitempty" rule:"duration"` // replaces the timeout of the jobs
	DryRun      bool      `json:"dry_run,omitempty"`                 // count the jobs without changing them
	Cursor      string    `json:"cursor,omitempty" rule:"jobCursor"`
}

// AllIDs returns the ids in ID and IDs together.
func (p DeadJobRetryParams) AllIDs() []string { return JobSelection{ID: p.ID, IDs: p.IDs}.AllIDs() }
