package control

import (
	"context"
	"encoding/json"

	"github.com/queuectl/queuectl/queue"
)

// ActionAPI changes selected jobs. Each method except Clear accepts only jobs in certain states. If the caller
// names a job in another state, the method leaves the job unchanged and returns the reason.
type ActionAPI interface {
	// Cancel ends jobs for good. It ends the running attempts first, and returns when they have
	// ended.
	Cancel(ctx context.Context, p Selection) (BulkResult, error)
	// Retry runs ended jobs again, and failed jobs without waiting for their retry time.
	Retry(ctx context.Context, p Retry) (BulkResult, error)
	// Hold prevents waiting jobs from starting. Release lets them start again.
	Hold(ctx context.Context, p Selection) (BulkResult, error)
	Release(ctx context.Context, p Selection) (BulkResult, error)
	// Pause freezes running jobs together with their timeouts, and Resume continues them. Pause with All
	// freezes all running jobs and prevents all jobs from starting, even after a restart of the service, until
	// Resume with All. All needs the right "operate". Resume with All does not continue jobs and queues that
	// were paused individually.
	Pause(ctx context.Context, p Selection) (BulkResult, error)
	Resume(ctx context.Context, p Selection) (BulkResult, error)
	// Requeue stops running jobs and puts them back in the queue. The interrupted attempt does not count.
	Requeue(ctx context.Context, p Selection) (BulkResult, error)
	// Kill sends a signal to all processes of running jobs. If the attempt ends because of the signal, its
	// exit status decides whether the job is retried.
	Kill(ctx context.Context, p Kill) (BulkResult, error)
	// Edit changes fields of waiting jobs.
	Edit(ctx context.Context, p Edit) (BulkResult, error)
	// Remove removes jobs with their history and output.
	Remove(ctx context.Context, p Remove) (BulkResult, error)
	// Clear removes all jobs that are not running.
	Clear(ctx context.Context, p ClearParams) (RemovalCount, error)
}

// Selection selects jobs: those whose ids are in ID or IDs or, without ids, those that match all other fields
// that are set. Without ids, one request processes at most MaxSelectedPerRequest jobs, the newest ones. If more
// jobs match, BulkResult.Next is the Cursor of the next request.
type Selection struct {
	ID  JobID  `json:"id,omitempty" rule:"nonEmpty"`
	IDs JobIDs `json:"ids,omitempty" rule:"selectedIDs"`
	All bool   `json:"all,omitempty"` // every job whose state the method accepts
	// State selects jobs in any of these states. Empty means the states that the method accepts.
	State  TextList `json:"state,omitempty" rule:"selectedStates"`
	Failed bool     `json:"failed,omitempty"`                      // the same as the states dead and failed
	Label  Labels   `json:"label,omitempty" rule:"selectedLabels"` // only jobs that have all of these labels
	Queue  string   `json:"queue,omitempty" rule:"queue"`
	Batch  string   `json:"batch,omitempty" rule:"label"` // value of the label batch; selects only the caller's jobs
	User   string   `json:"user,omitempty" rule:"name"`   // user who enqueued the jobs
	// OlderThan selects jobs that ended at least this long ago, and unfinished jobs that were enqueued at least
	// this long ago.
	OlderThan Duration `json:"older_than,omitempty" rule:"positiveDuration"`
	IDGlob    string   `json:"id_glob,omitempty" rule:"glob"` // pattern; wildcards: *, ? and sets such as [a-z]
	DryRun    bool     `json:"dry_run,omitempty"`             // count the jobs without changing them
	Cursor    string   `json:"cursor,omitempty" rule:"jobCursor"`
}

// PauseSelection selects jobs for the methods pause and resume. For these methods, All means everything (see
// ActionAPI.Pause), so it cannot be combined with other fields.
type PauseSelection struct{ Selection }

// MaxSelectedPerRequest is the maximum number of jobs that one request without ids processes.
const MaxSelectedPerRequest = 1000

// AllIDs returns the ids in ID and IDs together.
func (s Selection) AllIDs() []string {
	if s.ID == "" {
		return s.IDs
	}
	return append([]string{string(s.ID)}, s.IDs...)
}

// Kill holds the parameters of the method kill, which sends a signal to all processes of running jobs. Signal is a
// number or a name, with or without SIG; "" means TERM.
type Kill struct {
	Selection
	Signal string `json:"signal,omitempty" rule:"signal"`
}

// Edit holds the parameters of the method edit, which changes waiting jobs. Set is an object of job fields; the
// value null restores the default of a field.
type Edit struct {
	Selection
	Set json.RawMessage `json:"set" rule:"editedFields,required"`
}

// Retry holds the parameters of the method retry, which runs ended jobs again, and failed jobs without waiting
// for their retry time. The failure of a job cancels the jobs that depend on it. Unless WithoutDependants is
// true, retry runs these dependants again too.
type Retry struct {
	Selection
	WithoutDependants bool `json:"only,omitempty"`
}

// Remove holds the parameters of the method rm, which removes jobs and their history. With Force, the method first
// ends the jobs that are running.
type Remove struct {
	Selection
	Force bool `json:"force,omitempty"`
}

// ClearParams holds the parameters of the methods clear and dlq.clear, which remove jobs for good. With Batch,
// they remove only the jobs of the caller's batch with this name.
type ClearParams struct {
	Confirmed bool   `json:"yes"` // confirms the removal; required if DryRun is false
	Batch     string `json:"batch,omitempty" rule:"label"`
	DryRun    bool   `json:"dry_run,omitempty"`
}

// BulkResult says which jobs a method has changed. Refusals contains the jobs that it did not change, and why.
type BulkResult struct {
	// These two fields are always sent, even if empty, except after a dry run.
	DoneIDs    []string  `json:"done,omitempty"`
	Refusals   []Refusal `json:"refused,omitempty"`
	MatchCount *int      `json:"matched,omitempty"` // number of selected jobs; set only after a dry run
	Next       *string   `json:"next,omitempty"`    // cursor for the remaining jobs
	// UnenforcedLimits is set only by the method edit. It lists the new limits of the jobs that this machine
	// enforces only in part or not at all.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// Notes is set only by the method edit. It contains sentences for the user, such as warnings.
	Notes []string `json:"notes,omitempty"`
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only MatchCount and Next.
func (r BulkResult) MarshalJSON() ([]byte, error) {
	if r.MatchCount != nil {
		return json.Marshal(struct {
			Matched int     `json:"matched"`
			Next    *string `json:"next,omitempty"`
		}{*r.MatchCount, r.Next})
	}
	type whole BulkResult
	return json.Marshal(struct {
		Done    []string  `json:"done"`
		Refused []Refusal `json:"refused"`
		whole
	}{r.DoneIDs, r.Refusals, whole(r)})
}

// Refusal says why a method refused to change one job.
type Refusal struct {
	ID      string     `json:"id"`
	Code    queue.Code `json:"code"`
	Field   string     `json:"field,omitempty"` // the invalid field of the job; "" if the reason is not a field
	Message string     `json:"message"`
}

// Err returns the refusal as an error.
func (r *Refusal) Err() *queue.Error {
	return &queue.Error{Code: r.Code, Field: r.Field, Message: r.Message}
}

// RemovalCount says how many jobs a method has removed.
type RemovalCount struct {
	Count      int  `json:"removed,omitempty"` // always sent, even if 0, except after a dry run
	MatchCount *int `json:"matched,omitempty"` // number of selected jobs; set only after a dry run
	TotalJobs  int  `json:"of,omitempty"`      // total number of jobs to remove; set only in progress reports
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only MatchCount.
func (r RemovalCount) MarshalJSON() ([]byte, error) {
	if r.MatchCount != nil {
		return json.Marshal(struct {
			Matched int `json:"matched"`
		}{*r.MatchCount})
	}
	type whole RemovalCount
	return json.Marshal(struct {
		Removed int `json:"removed"`
		whole
	}{r.Count, whole(r)})
}
