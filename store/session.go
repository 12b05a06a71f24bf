package store

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
)

// Session contains the methods that a worker pool needs.
type Session interface {
	// Exchange records what happened to leases and claims up to r.WantedJobs jobs, in one commit. A fence is the
	// number of a lease. Entries of r with a stale fence change nothing, and the result lists them. The claimed
	// jobs are the head of the queue, in order. Until the pool reports a claimed job as started or ended, the
	// job's state remains pending or failed. Exchange may return fewer jobs than could run, or none, because one
	// call checks a limited number of jobs. Await then continues the search.
	Exchange(ctx context.Context, r Report) (Grant, error)
	// Await waits until a job is runnable. It then claims at least one job, and at most as many as requested.
	// The transaction that makes a job runnable also claims it. If ctx ends first, Await claims no job. Only one
	// Await may be active at a time.
	Await(ctx context.Context, maxJobs int) ([]queue.Job, error)
	// Pause records that a running job is paused or resumed. The record is deleted when the attempt ends.
	// Nothing changes if the job already is in the requested state. Pause returns ErrStateChanged for a stale lease,
	// and ErrLeased for a lease that is not known to have started.
	Pause(ctx context.Context, p Pause) error
	// Parents returns the jobs that a job has waited for, except removed ones, in the order in which the
	// dependencies were added. Their Results have at most queue.MaxDependencyResultBytes bytes in total;
	// a Result that does not fit is left out.
	Parents(ctx context.Context, seq int64) ([]Parent, error)
	// PreviousSession returns the leases and runners of an earlier service, for a service that is starting.
	PreviousSession(ctx context.Context) (PreviousSession, error)
	// NextEpoch increments the epoch, the number of the service's start, and returns it.
	NextEpoch(ctx context.Context) (int64, error)
	// StoreRunnerDirs stores the directories of the runners that may have leases, in any order, for the next
	// service. After this call, the store no longer counts as a copy; see PreviousSession.IsCopy.
	StoreRunnerDirs(ctx context.Context, dirs []string) error
}

// PreviousSession contains the leases and runners of an earlier service.
type PreviousSession struct {
	// LeasedJobs contains all leased jobs, ordered by seq. A job that was reported as started is Processing.
	LeasedJobs []queue.Job
	// RunnerDirs contains the directories last passed to StoreRunnerDirs.
	RunnerDirs []string
	// LastSeq is the highest seq that any job of the store has had; 0 if there was none. No lease of this
	// store has a higher seq.
	LastSeq int64
	// IsCopy reports that the store is a copy or was restored, and that StoreRunnerDirs has not been called since.
	// Its leases may belong to the original store.
	IsCopy bool
}

// Report contains the changes of leases that a pool reports to the store in one Exchange. The store does not
// retain the slices.
type Report struct {
	Starts      []AttemptStart
	Progress    []Progress // progress of attempts that were reported as started, in this report or earlier
	Settlements []Settlement
	// Releases contains leases that were never started. Their jobs are runnable again at their old positions.
	Releases []queue.Lease
	// Changes contains changes of leased jobs that were never started; Releases does not list their leases.
	// Each lease is released. Then the job is changed as by the method Change.
	Changes    []LeasedChange
	WantedJobs int
	// MaxBytesPerUser limits the bytes that one user's jobs may hold; 0 means unlimited. If an ended attempt would
	// exceed it, outputs and inputs of the same user are removed, as TrimUserData does. RemovalLimit limits their
	// number. If removing that many would not make enough room, nothing is removed. The attempt is then recorded
	// without its output, and its output size is set to OutputOverQuota. If there is no room for the attempt's record
	// either, and the job has KeptAttemptRecords records, the new record replaces the oldest.
	MaxBytesPerUser int64
}

// LeasedChange is a change that was requested while the job was leased.
type LeasedChange struct {
	queue.Lease
	Change
}

// AttemptStart reports that an attempt is running.
type AttemptStart struct {
	queue.Lease
	StartedAt queue.Millis
	Worker    string
	PID       int
}

// Progress reports the progress of a running attempt. The store also adds an event.
type Progress struct {
	queue.Lease
	queue.Progress
}

// Settlement describes how an attempt ended and what happens to its job. The store records the Attempt if
// Decision.RecordsAttempt is true, and assigns its Number.
type Settlement struct {
	queue.Lease
	Attempt  queue.Attempt
	Decision queue.Decision
	// Progress is the last progress of the attempt. If it is nil, the progress reported earlier stays.
	Progress *queue.Progress
	// EndedBy is the uid of the user who ended the attempt, and Verb is the user's verb. EndedBy is nil if no user
	// ended it.
	EndedBy *int
	Verb    string
	// Fingerprint identifies the command of a completed job, for the typical run time. If it is 0, the run
	// time is not recorded.
	Fingerprint uint64
	// DeletableOutput names an output file of the attempt that is not needed and may exist; "" means none. The
	// store adds it to DeletableOutputs. If the lease is stale, the store ignores it.
	DeletableOutput string
}

// Grant is the result of an Exchange. It contains the jobs that the pool has now leased, with their fences. It
// also lists the stale leases of the report, for which nothing was recorded, and the rejected changes.
type Grant struct {
	Jobs            []queue.Job
	StaleLeases     []queue.Lease
	RejectedChanges map[queue.Lease]error // the error of each rejected change, as Change would have returned it
}

// Pause is a request of the user UID to pause or resume a leased job.
type Pause struct {
	queue.Lease
	Paused bool
	UID    int
}

// ErrStateChanged is returned for a change of a job whose state is not listed in OnlyStates, and for a stale lease.
var ErrStateChanged = errors.New("the state of the job has changed")

// ErrLeased is returned for a change of a leased job. The owner of the lease must give it back or end the job
// first.
var ErrLeased = errors.New("the job is running or about to start")
