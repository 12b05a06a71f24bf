package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Reader reads jobs. Only CountEndedJobs scans the whole table of jobs. No method fails because of the data of other
// users.
type Reader interface {
	// GetJob reads one job by id, without its Env and Stdin, which may be large.
	GetJob(ctx context.Context, id string) (queue.Job, error)
	// GetWithEnvAndStdin reads one job by id, with its Env and Stdin.
	GetWithEnvAndStdin(ctx context.Context, id string) (queue.Job, error)
	// AttemptHistory reads a page of a job's attempts, without their output, in ascending order. It reads the newest
	// attempts whose numbers are below beforeAttemptNumber; if beforeAttemptNumber is 0, the newest of all attempts. The
	// page has at most limit attempts, from 1 to MaxPageRows, and at most MaxHistoryTextBytes of text, but at least one
	// attempt.
	AttemptHistory(ctx context.Context, jobSeq int64, beforeAttemptNumber, limit int) ([]queue.Attempt, error)
	// Attempt reads one attempt with its output. If attemptNumber is 0, it reads the last attempt.
	Attempt(ctx context.Context, jobSeq int64, attemptNumber int) (queue.Attempt, error)
	// ListJobs reads a page of the jobs that match a filter, newest first, without their Env and Stdin. The page
	// has at most Filter.Limit jobs and MaxPageTextBytes of text, but at least one job.
	ListJobs(ctx context.Context, f JobFilter) (JobPage, error)
	// ListJobRefs reads a page of references to the jobs that match a filter, newest first.
	ListJobRefs(ctx context.Context, f JobFilter) (JobRefPage, error)
	// DependencyLinks returns up to limit parents and up to limit dependants of a job. They include parents for which the
	// job no longer waits, and dependants that no longer wait for the job. Unresolved dependencies come first, in the
	// order in which they were added.
	DependencyLinks(ctx context.Context, jobSeq int64, limit int) (parents, children []DependencyLink, err error)
	// ReadScreen reads an overview for people: up to f.RowsPerPart jobs of each part, without their Env and Stdin. For
	// jobs that do not belong to f.DetailsForUID, it reads only the Labels of the Execution. A part has at most
	// MaxScreenPartTextBytes of text, but at least one job. The cost of ReadScreen does not depend on the number of jobs
	// or on the size of other users' jobs.
	ReadScreen(ctx context.Context, f ScreenFilter) (Screen, error)
	// CountEndedJobs returns the number of jobs that PurgeEndedJobs could remove. It reads each of these jobs, so its cost
	// grows with their number.
	CountEndedJobs(ctx context.Context, filter EndedJobFilter) (int64, error)
}

// JobFilter selects the jobs to be listed. A job must match all fields that are set.
type JobFilter struct {
	States []queue.State     // states of the jobs; empty means all states
	Labels map[string]string // labels that the job must have
	Queue  string            // name of the queue; "" means all queues
	UID    *int              // the user whose jobs are selected; nil means all users
	// ViewerUID is the uid of the user who requests the list. Hook jobs that were created because of the settings, and
	// that run as another user, are left out. If ViewerUID is nil, no jobs are left out.
	ViewerUID *int
	Since     queue.UnixMillis // only jobs that ended, or were created if they have not ended, at Since or later
	Until     queue.UnixMillis // only jobs whose time, as for Since, is before Until; 0 means no upper bound
	IDGlob    string           // pattern of ids, see queue.CompileGlob; "" means any
	BeforeSeq int64            // only jobs with a lower seq; 0 means start with the newest job
	Limit     int              // maximum number of jobs, from 1 to MaxPageRows
}

// Limits of a page.
const (
	MaxPageRows         = 1000      // maximum number of jobs or attempts
	MaxPageTextBytes    = 1 << 20   // text of jobs, as measured by JobTextBytes
	MaxHistoryTextBytes = 256 << 10 // text of attempts, as measured by AttemptTextBytes
)

// JobPage is a part of a list. NextBeforeSeq is the value of Filter.BeforeSeq for the next page, or 0 if this page is
// the last. A page that is not the last may contain few jobs or none.
type JobPage struct {
	Jobs          []queue.Job
	NextBeforeSeq int64
}

// JobRef identifies a job. It also contains the state and the user of the job.
type JobRef struct {
	Seq   int64
	ID    string
	State queue.State
	UID   int
}

// JobRefPage is a page of references to matching jobs. NextBeforeSeq is as in JobPage.
type JobRefPage struct {
	Refs          []JobRef
	NextBeforeSeq int64
}

// ScreenFilter selects what a Screen contains.
type ScreenFilter struct {
	RowsPerPart   int  // number of jobs of each part, from 1 to MaxScreenRowsPerPart
	DetailsForUID *int // the user whose jobs are read with their Execution; nil means all users
}

// Screen is an overview of the queue, in parts.
type Screen struct {
	Running []queue.Job // running jobs, oldest first
	// Ready contains the jobs that wait for a worker, or for a lock, rate or other limit, in the order in
	// which they would start without these limits.
	Ready                []queue.Job
	NotYetDue            []queue.Job // jobs that wait until they are due, in the order of their due times
	HeldOrBlocked        []queue.Job // held and blocked jobs, oldest first
	Dead                 []queue.Job // dead jobs; the one that ended last is first
	CompletedOrCancelled []queue.Job // completed and cancelled jobs; the one that ended last is first
}

// MaxScreenRowsPerPart limits the jobs in each part of a Screen.
const MaxScreenRowsPerPart = 100

// MaxScreenPartTextBytes limits the text of a part of a Screen, as measured by JobTextBytes.
const MaxScreenPartTextBytes = 128 << 10
