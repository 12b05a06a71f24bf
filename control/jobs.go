package control

import "context"

// JobAPI reads jobs and waits for them. The caller's right determines which parts of other users' jobs the
// caller gets.
type JobAPI interface {
	// Show returns one job with the end of its output and its newest attempts.
	Show(ctx context.Context, p Show) (JobDetail, error)
	// List returns a page of jobs, newest first.
	List(ctx context.Context, p List) (JobPage, error)
	// Wait waits until jobs have ended. It calls handleNotice once for each job that has ended. If handleNotice
	// returns an error, Wait ends.
	Wait(ctx context.Context, p Wait, handleNotice func(JobEndNotice) error) (WaitResult, error)
}

// Show requests one job and its newest attempts. If HistoryBefore is set, the answer contains only attempts
// with a lower number.
type Show struct {
	ID            JobID `json:"id" rule:"nonEmpty,required"`
	HistoryBefore int   `json:"history_before,omitempty" rule:"attempt"`
	// WithoutEnv hides the values of environment variables. A request that shows these values of another user's
	// job is recorded in the audit log.
	WithoutEnv bool `json:"without_env,omitempty"`
}

// List holds the parameters of the method list, which lists the selected jobs, newest first.
type List struct {
	// State selects jobs in any of these states. "waiting" means blocked, held, pending and failed;
	// "done" means completed.
	State  TextList `json:"state,omitempty" rule:"states"`
	Failed bool     `json:"failed,omitempty"`              // the same as the states dead and failed
	Label  Labels   `json:"label,omitempty" rule:"labels"` // the job must have all of these labels
	Queue  string   `json:"queue,omitempty" rule:"queue"`
	Batch  string   `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	User   string   `json:"user,omitempty" rule:"name"`
	IDGlob string   `json:"id_glob,omitempty" rule:"glob"` // pattern for the id; wildcards: *, ? and sets such as [a-z]
	// Since and Until select the jobs that ended at the time Since or later, and before the time
	// Until. For an unfinished job, the time at which it was enqueued counts instead.
	Since  Time   `json:"since,omitzero"`
	Until  Time   `json:"until,omitzero"`
	Limit  int    `json:"limit,omitempty" rule:"pageRows"` // 1 to 1000; 0 means 1000
	Cursor string `json:"cursor,omitempty" rule:"jobCursor"`
}

// JobPage is one page of a list. Next is the cursor of the next page, nil on the last page.
type JobPage struct {
	Jobs []Job   `json:"jobs"`
	Next *string `json:"next"`
}

// Wait holds the parameters of the method wait, which waits until all given jobs have ended. With Any, it waits
// only until the first of them has ended.
type Wait struct {
	ID      JobID    `json:"id,omitempty" rule:"nonEmpty"`
	IDs     JobIDs   `json:"ids,omitempty" rule:"waitIDs"`
	Any     bool     `json:"any,omitempty"`
	Timeout Duration `json:"timeout,omitempty" rule:"duration"` // longest wait; 0 means unlimited
}

// JobEndNotice is sent once for each job that has ended.
type JobEndNotice struct {
	Job Job `json:"job"`
}

// WaitResult is the response to Wait. UnfinishedIDs lists the jobs that have not ended; there are such jobs
// only after a timeout or with Any.
type WaitResult struct {
	UnfinishedIDs []string `json:"open"`
	TimedOut      bool     `json:"timed_out"`
}
