package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Reader reads jobs. No method scans the whole table of jobs, except CountEnded. No method fails because of
// data that other users have stored.
type Reader interface {
	// Get reads one job by id, without its Env and Stdin, which may be large.
	Get(ctx context.Context, id string) (queue.Job, error)
	// GetFull reads one job by id, with its Env and Stdin.
	GetFull(ctx context.Context, id string) (queue.Job, error)
	// History reads a page of a job's attempts, without output: the newest attempts with numbers below the given
	// one (0 means all), in ascending order. The page ends after limit attempts, 1 to MaxPageRows, or
	// MaxHistoryBytes of text, but has at least one attempt.
	History(ctx context.Context, seq int64, beforeNumber, limit int) ([]queue.Attempt, error)
	// Attempt reads one attempt with its output. If n is 0, it reads the last attempt.
	Attempt(ctx context.Context, seq int64, n int) (queue.Attempt, error)
	// List reads a page of jobs, newest first, each without Env and Stdin. The page ends after Filter.Limit
	// jobs or MaxPageBytes of text, but has at least one job.
	List(ctx context.Context, f Filter) (Page, error)
	// ListRefs reads a page of references to the jobs that match a filter, newest first.
	ListRefs(ctx context.Context, f Filter) (RefPage, error)
	// DependencyLinks returns up to limit parents and up to limit children of a job, past and present. Unresolved
	// dependencies come first, in the order in which they were added.
	DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []DependencyLink, err error)
	// Screen reads an overview for people: up to f.Rows jobs of each part, each without Env and Stdin. Jobs
	// of users other than f.DetailsForUID have only the Labels of their Execution. A part ends after
	// MaxScreenPartBytes of text, but has at least one job. The cost does not depend on the number of jobs,
	// or on the size of other users' jobs.
	Screen(ctx context.Context, f ScreenFilter) (Screen, error)
	// CountEnded returns the number of jobs that Purge could remove. It reads each of these jobs, so its cost
	// grows with their number.
	CountEnded(ctx context.Context, filter EndedFilter) (int64, error)
}

// Filter selects the jobs to be listed. A job must match all fields that are set.
type Filter struct {
	States []queue.State     // states of the jobs; empty means all states
	Labels map[string]string // the job must have all of them
	Queue  string            // name of the queue; "" means all queues
	UID    *int              // selects the jobs of this user; nil means all users
	// Viewer is the uid of the user who requests the list. The list leaves out hooks that the settings have
	// created and that run as other users. If Viewer is nil, nothing is left out.
	Viewer    *int
	Since     queue.Millis // lower bound of the end time or, for an unfinished job, of the creation time
	Until     queue.Millis // the same time must be before Until; 0 means no upper bound
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

// Page is part of a list. Next is the value of Filter.BeforeSeq for the next page, or 0 at the end. A page
// other than the last may have few jobs or none.
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

// ScreenFilter says how much of a Screen is read.
type ScreenFilter struct {
	Rows          int  // number of jobs of each part, 1 to MaxScreenRows
	DetailsForUID *int // the user whose jobs are read with their Execution; nil means all users
}

// Screen is an overview of the queue, in parts.
type Screen struct {
	Running []queue.Job // running jobs, oldest first
	// Ready contains the jobs that wait for a worker or a gate, in the order in which they would start if no
	// gate were full.
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
