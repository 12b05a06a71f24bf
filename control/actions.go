package control

import (
	"context"
	"encoding/json"

	"github.com/queuectl/queuectl/queue"
)

// ActionAPI acts on selected jobs. Each method except Clear acts on the jobs whose state allows it.
// For each other job that the caller named, the method returns why it refused the job.
type ActionAPI interface {
	// Cancel ends jobs for good. It ends the running attempts first, and returns when they have
	// ended.
	Cancel(ctx context.Context, p Selection) (BulkResult, error)
	// Retry runs ended jobs again, and failed jobs without waiting for their retry time.
	Retry(ctx context.Context, p Retry) (BulkResult, error)
	// Hold prevents waiting jobs from starting. Release lets them start again.
	Hold(ctx context.Context, p Selection) (BulkResult, error)
	Release(ctx context.Context, p Selection) (BulkResult, error)
	// Pause freezes running jobs together with their timeouts. Resume continues them. With All, the
	// methods affect the whole queue and need the right "operate": running jobs are frozen and no job
	// starts, also after a restart, until Resume is called with All. Jobs and queues that were paused
	// individually then stay paused.
	Pause(ctx context.Context, p Selection) (BulkResult, error)
	Resume(ctx context.Context, p Selection) (BulkResult, error)
	// Requeue stops running jobs and puts them back in the queue. The attempt does not count.
	Requeue(ctx context.Context, p Selection) (BulkResult, error)
	// Kill sends a signal to all processes of running jobs. What happens to a job depends on how
	// its attempt ends.
	Kill(ctx context.Context, p Kill) (BulkResult, error)
	// Edit changes fields of waiting jobs.
	Edit(ctx context.Context, p Edit) (BulkResult, error)
	// Remove removes jobs with their history and output.
	Remove(ctx context.Context, p Remove) (BulkResult, error)
	// Clear removes all jobs that are not running.
	Clear(ctx context.Context, p ClearParams) (RemovalCount, error)
}

// Selection selects jobs either by their ids, in ID or IDs, or by the other fields. The service
// processes at most MaxSelectedPerRequest jobs selected by the other fields in a request, the newest first.
// BulkResult.Next is then the Cursor for the remaining jobs.
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
	// OlderThan selects jobs that ended at least this long ago. An unfinished job is selected if it
	// was enqueued at least this long ago.
	OlderThan Duration `json:"older_than,omitempty" rule:"positiveDuration"`
	IDGlob    string   `json:"id_glob,omitempty" rule:"glob"` // pattern; wildcards: *, ? and sets such as [a-z]
	DryRun    bool     `json:"dry_run,omitempty"`             // count the jobs without changing them
	Cursor    string   `json:"cursor,omitempty" rule:"jobCursor"`
}

// PauseSelection selects jobs for the methods pause and resume. For these methods, All means the
// whole queue. It therefore cannot be combined with fields that select some of the jobs.
type PauseSelection struct{ Selection }

// MaxSelectedPerRequest is the maximum number of selected jobs that one request processes.
const MaxSelectedPerRequest = 1000

// AllIDs returns the ids in ID and IDs.
func (s Selection) AllIDs() []string {
	if s.ID == "" {
		return s.IDs
	}
	return append([]string{string(s.ID)}, s.IDs...)
}

// Kill sends a signal to all processes of running jobs. Signal is a number or a name, with or
// without SIG; "" means TERM.
type Kill struct {
	Selection
	Signal string `json:"signal,omitempty" rule:"signal"`
}

// Edit changes waiting jobs. Set is an object of job fields; null restores the default of a field.
type Edit struct {
	Selection
	Set json.RawMessage `json:"set" rule:"editedFields,required"`
}

// Retry runs ended jobs again, and failed jobs without waiting for their retry time. It also
// retries the jobs that were cancelled because the selected jobs failed, unless WithoutDependants is set.
type Retry struct {
	Selection
	WithoutDependants bool `json:"only,omitempty"`
}

// Remove removes jobs and their history. With Force, it first ends the jobs that are running.
type Remove struct {
	Selection
	Force bool `json:"force,omitempty"`
}

// ClearParams holds the parameters of methods that remove jobs permanently: all jobs, or all jobs in a
// batch of the caller.
type ClearParams struct {
	Confirmed bool   `json:"yes"` // confirms the removal; required unless DryRun is set
	Batch     string `json:"batch,omitempty" rule:"label"`
	DryRun    bool   `json:"dry_run,omitempty"`
}

// BulkResult lists the jobs that a method has changed, and the jobs for which the method was
// refused, with the reasons.
type BulkResult struct {
	// DoneIDs and Refusals are always sent, even if empty, except after a dry run.
	DoneIDs    []string  `json:"done,omitempty"`
	Refusals   []Refusal `json:"refused,omitempty"`
	MatchCount *int      `json:"matched,omitempty"` // after a dry run: the number of selected jobs
	Next       *string   `json:"next,omitempty"`    // cursor for the remaining jobs
	// For an edit, UnenforcedLimits lists the new limits that this machine does not enforce, or
	// enforces only in part.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// For an edit, Notes has the same meaning as EnqueueResult.Notes.
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

// Refusal describes why a verb was refused for one job.
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

// RemovalCount reports how many jobs a method has removed.
type RemovalCount struct {
	Count      int  `json:"removed,omitempty"` // always sent, even if 0, except after a dry run
	MatchCount *int `json:"matched,omitempty"` // after a dry run: the number of selected jobs
	Total      int  `json:"of,omitempty"`      // in a progress report: the number of jobs to remove in total
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
