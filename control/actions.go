package control

import (
	"context"
	"encoding/json"

	"github.com/queuectl/queuectl/queue"
)

// ActionAPI changes selected jobs. Each method except RemoveNonRunningJobs accepts only jobs in certain states. If the
// caller names a job in another state, the method leaves the job unchanged and returns the reason.
type ActionAPI interface {
	// CancelJobs ends jobs for good. If a job is running, CancelJobs first ends the running attempt. It returns when all
	// attempts of the jobs have ended.
	CancelJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	// RetryJobs runs ended jobs again, and failed jobs without waiting for their retry time.
	RetryJobs(ctx context.Context, p JobRetryParams) (BulkResult, error)
	// HoldJobs prevents waiting jobs from starting. ReleaseJobs lets them start again.
	HoldJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	ReleaseJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	// PauseJobs freezes running jobs together with their timeouts, and ResumeJobs continues them. PauseJobs with AllJobs
	// freezes all running jobs and prevents all jobs from starting, even after a restart of the service. This pause lasts
	// until ResumeJobs with AllJobs, which needs the right "operate". ResumeJobs with AllJobs does not continue jobs and
	// queues that were paused individually.
	PauseJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	ResumeJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	// RequeueJobs stops running jobs and puts them back in the queue. The interrupted attempt does not count.
	RequeueJobs(ctx context.Context, p JobSelection) (BulkResult, error)
	// KillJobs sends a signal to all processes of running jobs. If the attempt ends because of the signal, its
	// exit status decides whether the job is retried.
	KillJobs(ctx context.Context, p JobKillParams) (BulkResult, error)
	// EditJobs changes fields of waiting jobs.
	EditJobs(ctx context.Context, p JobEditParams) (BulkResult, error)
	// RemoveJobs removes jobs with their history and output.
	RemoveJobs(ctx context.Context, p JobRemoveParams) (BulkResult, error)
	// RemoveNonRunningJobs removes all jobs that are not running.
	RemoveNonRunningJobs(ctx context.Context, p JobClearParams) (RemovalCount, error)
}

// JobSelection selects jobs: those whose ids are in ID or IDs or, without ids, those that match all other fields that
// are set. Without ids, one request processes at most MaxJobsPerSelection jobs, the newest ones. If more jobs match,
// BulkResult.NextCursor is the Cursor for the next request.
type JobSelection struct {
	ID      JobID  `json:"id,omitempty" rule:"nonEmpty"`
	IDs     JobIDs `json:"ids,omitempty" rule:"selectedIDs"`
	AllJobs bool   `json:"all,omitempty"` // every job whose state the method accepts
	// States selects jobs in any of these states. Empty means the states that the method accepts.
	States       TextList `json:"state,omitempty" rule:"selectedStates"`
	FailedOrDead bool     `json:"failed,omitempty"`                      // the same as States with dead and failed
	WithLabels   Labels   `json:"label,omitempty" rule:"selectedLabels"` // only jobs that have all of these labels
	Queue        string   `json:"queue,omitempty" rule:"queue"`
	Batch        string   `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	Submitter    string   `json:"user,omitempty" rule:"name"`   // user who enqueued the jobs
	// OlderThan selects jobs that ended at least this long ago, and unfinished jobs that were enqueued at least
	// this long ago.
	OlderThan Duration `json:"older_than,omitempty" rule:"positiveDuration"`
	IDGlob    string   `json:"id_glob,omitempty" rule:"glob"` // pattern; wildcards: *, ? and sets such as [a-z]
	DryRun    bool     `json:"dry_run,omitempty"`             // count the jobs without changing them
	Cursor    string   `json:"cursor,omitempty" rule:"jobCursor"`
}

// PauseSelection selects jobs for the methods pause and resume. For these methods, AllJobs means all jobs in every
// state (see ActionAPI.PauseJobs), so AllJobs cannot be combined with other fields.
type PauseSelection struct{ JobSelection }

// MaxJobsPerSelection is the maximum number of jobs that one request without ids processes.
const MaxJobsPerSelection = 1000

// AllIDs returns the ids in ID and IDs together.
func (s JobSelection) AllIDs() []string {
	if s.ID == "" {
		return s.IDs
	}
	return append([]string{string(s.ID)}, s.IDs...)
}

// JobKillParams holds the parameters of the method kill, which sends a signal to all processes of running jobs. Signal
// is a number or a name, with or without SIG; "" means TERM.
type JobKillParams struct {
	JobSelection
	Signal string `json:"signal,omitempty" rule:"signal"`
}

// JobEditParams holds the parameters of the method edit, which changes waiting jobs. FieldsToSet is an object of job
// fields; the value null restores the default of a field.
type JobEditParams struct {
	JobSelection
	FieldsToSet json.RawMessage `json:"set" rule:"editedFields,required"`
}

// JobRetryParams holds the parameters of the method retry, which runs ended jobs again, and failed jobs without waiting
// for their retry time. The failure of a job cancels the jobs that depend on it. Unless WithoutDependants is true, the
// method also runs these cancelled dependants again.
type JobRetryParams struct {
	JobSelection
	WithoutDependants bool `json:"only,omitempty"`
}

// JobRemoveParams holds the parameters of the method rm, which removes jobs and their history. With EndRunningJobs, the
// method first ends the selected jobs that are running. Without EndRunningJobs, the method refuses to remove a running
// job.
type JobRemoveParams struct {
	JobSelection
	EndRunningJobs bool `json:"force,omitempty"`
}

// JobClearParams holds the parameters of the methods clear and dlq.clear, which remove jobs for good. With Batch,
// they remove only the jobs of the caller's batch with this name.
type JobClearParams struct {
	Confirmed bool   `json:"yes"` // confirms the removal; required if DryRun is false
	Batch     string `json:"batch,omitempty" rule:"label"`
	DryRun    bool   `json:"dry_run,omitempty"`
}

// BulkResult says which jobs a method has changed. Refusals contains the jobs that it did not change, and why.
type BulkResult struct {
	// These two fields are always sent, even if empty, except after a dry run.
	ChangedJobIDs []string  `json:"done,omitempty"`
	Refusals      []Refusal `json:"refused,omitempty"`
	SelectedCount *int      `json:"matched,omitempty"` // number of selected jobs; set only after a dry run
	NextCursor    *string   `json:"next,omitempty"`    // cursor for the remaining jobs
	// UnenforcedLimits is set only by the method edit. It lists the new limits of the jobs that this machine
	// enforces only in part or not at all.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// Notes is set only by the method edit. It contains sentences for the user, such as warnings.
	Notes []string `json:"notes,omitempty"`
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only SelectedCount and NextCursor.
func (r BulkResult) MarshalJSON() ([]byte, error) {
	if r.SelectedCount != nil {
		return json.Marshal(struct {
			Matched int     `json:"matched"`
			Next    *string `json:"next,omitempty"`
		}{*r.SelectedCount, r.NextCursor})
	}
	type whole BulkResult
	return json.Marshal(struct {
		Done    []string  `json:"done"`
		Refused []Refusal `json:"refused"`
		whole
	}{r.ChangedJobIDs, r.Refusals, whole(r)})
}

// Refusal says why a method refused to change one job.
type Refusal struct {
	JobID   string          `json:"id"`
	Code    queue.ErrorCode `json:"code"`
	Field   string          `json:"field,omitempty"` // the invalid field of the job; "" if the reason is not a field
	Message string          `json:"message"`
}

// AsError returns the refusal as an error.
func (r *Refusal) AsError() *queue.Error {
	return &queue.Error{Code: r.Code, Field: r.Field, Message: r.Message}
}

// RemovalCount says how many jobs a method has removed.
type RemovalCount struct {
	RemovedJobs   int  `json:"removed,omitempty"` // always sent, even if 0, except after a dry run
	SelectedCount *int `json:"matched,omitempty"` // number of selected jobs; set only after a dry run
	JobsToRemove  int  `json:"of,omitempty"`      // total number of jobs to remove; set only in progress reports
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only SelectedCount.
func (r RemovalCount) MarshalJSON() ([]byte, error) {
	if r.SelectedCount != nil {
		return json.Marshal(struct {
			Matched int `json:"matched"`
		}{*r.SelectedCount})
	}
	type whole RemovalCount
	return json.Marshal(struct {
		Removed int `json:"removed"`
		whole
	}{r.RemovedJobs, whole(r)})
}
