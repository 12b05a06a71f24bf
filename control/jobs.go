package control

import "context"

// JobAPI reads jobs and waits for them. The caller's right determines which parts of other users' jobs the
// caller gets.
type JobAPI interface {
	// ShowJob returns one job with the end of its output and its newest attempts.
	ShowJob(ctx context.Context, p JobShowParams) (JobDetail, error)
	// ListJobs returns a page of jobs, newest first.
	ListJobs(ctx context.Context, p JobListParams) (JobPage, error)
	// WaitForJobs waits until jobs have ended. It calls handleJobEnd once for each job that has ended. If handleJobEnd
	// returns an error, WaitForJobs ends.
	WaitForJobs(ctx context.Context, p JobWaitParams, handleJobEnd func(JobEndNotice) error) (JobWaitResult, error)
}

// JobShowParams requests one job and its newest attempts. If AttemptsBelowNumber is set, the answer contains only
// attempts with a lower number.
type JobShowParams struct {
	ID                  JobID `json:"id" rule:"nonEmpty,required"`
	AttemptsBelowNumber int   `json:"history_before,omitempty" rule:"attempt"`
	// HideEnv hides the values of environment variables. Without HideEnv, a request for another user's job is recorded in
	// the audit log, because the answer contains these values.
	HideEnv bool `json:"without_env,omitempty"`
}

// JobListParams holds the parameters of the method list, which lists the selected jobs, newest first.
type JobListParams struct {
	// States selects jobs in any of these states. "waiting" means blocked, held, pending and failed;
	// "done" means completed.
	States       TextList `json:"state,omitempty" rule:"states"`
	FailedOrDead bool     `json:"failed,omitempty"`              // the same as the states dead and failed
	WithLabels   Labels   `json:"label,omitempty" rule:"labels"` // the job must have all of these labels
	Queue        string   `json:"queue,omitempty" rule:"queue"`
	Batch        string   `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	Submitter    string   `json:"user,omitempty" rule:"name"`
	// pattern for the id; wildcards: *, ? and sets such as [a-z]
	IDGlob string `json:"id_glob,omitempty" rule:"glob"`
	// EndedOrEnqueuedSince and EndedOrEnqueuedBefore select jobs by the time at which they ended: at or after the first
	// time, and before the second. For an unfinished job, the time at which it was enqueued counts instead.
	EndedOrEnqueuedSince  Time   `json:"since,omitzero"`
	EndedOrEnqueuedBefore Time   `json:"until,omitzero"`
	PageSize              int    `json:"limit,omitempty" rule:"pageRows"` // 1 to 1000; 0 means 1000
	Cursor                string `json:"cursor,omitempty" rule:"jobCursor"`
}

// JobPage is one page of a list. NextCursor is the cursor of the next page, nil on the last page.
type JobPage struct {
	Jobs       []Job   `json:"jobs"`
	NextCursor *string `json:"next"`
}

// JobWaitParams holds the parameters of the method wait, which waits until all given jobs have ended. With
// ReturnAfterFirst, it waits only until the first of the jobs has ended.
type JobWaitParams struct {
	ID               JobID    `json:"id,omitempty" rule:"nonEmpty"`
	IDs              JobIDs   `json:"ids,omitempty" rule:"waitIDs"`
	ReturnAfterFirst bool     `json:"any,omitempty"`
	MaxWait          Duration `json:"timeout,omitempty" rule:"duration"` // longest wait; 0 means unlimited
}

// AllIDs returns the ids in ID and IDs together.
func (p JobWaitParams) AllIDs() []string { return JobSelection{ID: p.ID, IDs: p.IDs}.AllIDs() }

// JobEndNotice is sent once for each job that has ended.
type JobEndNotice struct {
	Job Job `json:"job"`
}

// JobWaitResult is the response to WaitForJobs. UnfinishedJobIDs lists the given jobs that have not ended. It is empty
// unless MaxWait has passed or the request had ReturnAfterFirst.
type JobWaitResult struct {
	UnfinishedJobIDs []string `json:"open"`
	TimedOut         bool     `json:"timed_out"`
}
