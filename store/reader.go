package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Reader reads jobs. Only CountEnded scans the whole table of jobs. Data of other users never makes a method
// fail.
type Reader interface {
	// Get reads one job by id, without its Env and Stdin, which may be large.
	Get(ctx context.Context, id string) (queue.Job, error)
	// GetFull reads one job by id, with its Env and Stdin.
	GetFull(ctx context.Context, id string) (queue.Job, error)
	// History reads a page of a job's attempts, without their output, in ascending order: the newest ones
	// with numbers below beforeNumber; 0 means all. The page has at most limit attempts, from 1 to
	// MaxPageRows, and at most MaxHistoryBytes of text, but at least one attempt.
	History(ctx context.Context, seq int64, beforeNumber, limit int) ([]queue.Attempt, error)
	// Attempt reads one attempt with its output. If n is 0, it reads the last attempt.
	Attempt(ctx context.Context, seq int64, n int) (queue.Attempt, error)
	// List reads a page of the jobs that match a filter, newest first, without their Env and Stdin. The page
	// has at most Filter.Limit jobs and MaxPageBytes of text, but at least one job.
	List(ctx context.Context, f Filter) (Page, error)
	// ListRefs reads a page of references to the jobs that match a filter, newest first.
	ListRefs(ctx context.Context, f Filter) (RefPage, error)
	// DependencyLinks returns up to limit parents and up to limit dependants of a job, including those for
	// which the job or the dependant no longer waits. Unresolved dependencies come first, in the order in
	// which they were added.
	DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []DependencyLink, err error)
	// Screen reads an overview for people: up to f.Rows jobs of each part, without their Env and Stdin. Of
	// jobs that do not belong to f.DetailsForUID, it reads only the Labels of the Execution. A part has at
	// most MaxScreenPartBytes of text, but at least one job. The cost does not depend on the number of jobs
	// or on the size of other users' jobs.
	Screen(ctx context.Context, f ScreenFilter) (Screen, error)
	// CountEnded returns the number of jobs that Purge could remove. It reads each of these jobs, so its cost
	// grows with their number.
	CountEnded(ctx context.Context, filter EndedFilter) (int64, error)
}

// Filter selects the jobs to be listed. A job must match all fields that are set.
type Filter struct {
	States []queue.State     // states of the jobs; empty means all states
	Labels map[string]string // labels that the job must have
	Queue  string            // name of the queue; "" means all queues
	UID    *int              // the user whose jobs are selected; nil means all users
	// Viewer is the uid of the user who requests the list. Hook jobs that the settings have created and that
	// run as another user are left out. nil leaves nothing out.
	Viewer    *int
	Since     queue.Millis // only jobs that ended at Since or later or, if unfinished, were created then or later
	Until     queue.Millis // only jobs whose time, as for Since, is before Until; 0 means no upper bound
	Glob      string       // pattern of ids, see queue.Glob; "" means any
	BeforeSeq int64        // only jobs with a lower seq; 0 means start with the newest job
	Limit     int          // maximum number of jobs, from 1 to MaxPageRows
}

// Limits of a page.
const (
	MaxPageRows     = 1000      // maximum number of jobs or attempts
	MaxPageBytes    = 1 << 20   // text of jobs, as measured by JobTextSize
	MaxHistoryBytes = 256 << 10 // text of attempts, as measured by AttemptTextSize
)

// Page is a part of a list. Next is the value of Filter.BeforeSeq for the next page, or 0 if this page is the
// last. A page that is not the last may also have few jobs or none.
type Page struct {
	Jobs []queue.Job
	Next int64
}

// JobRef identifies a job, with its state and its user.
type JobRef struct {
	Seq   int64
	ID    string
	State queue.State
	UID   int
}

// RefPage is a page of references to matching jobs. Next is as in Page.
type RefPage struct {
	Refs []JobRef
	Next int64
}

// ScreenFilter selects what a Screen contains.
type ScreenFilter struct {
	Rows          int  // number of jobs of each part, 1 to MaxScreenRows
	DetailsForUID *int // the user whose jobs are read with their Execution; nil means all users
}

// Screen is an overview of the queue, in parts.
type Screen struct {
	Running []queue.Job // running jobs, oldest first
	// Ready contains the jobs that wait for a worker, or for a lock, rate or other limit, in the order in
	// which they would start without these limits.
	Ready         []queue.Job
	Timed         []queue.Job // jobs that wait until they are due, in the order of their due times
	HeldOrBlocked []queue.Job // held and blocked jobs, oldest first
	Dead          []queue.Job // dead jobs; the one that ended last is first
	Done          []queue.Job // completed and cancelled jobs; the one that ended last is first
}

// MaxScreenRows limits the jobs in each part of a Screen.
const MaxScreenRows = 100

// MaxScreenPartBytes limits the text of a part of a Screen, as measured by JobTextSize.
const MaxScreenPartBytes = 128 << 10
