package store

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
)

// Session contains the methods that a worker pool needs.
type Session interface {
	// ReportAndClaim reports to the store what happened to leases, and claims up to r.WantedJobCount jobs, in one commit.
	// Each lease has a number, its fence. Entries of r with an old fence change nothing, and the result lists them. The
	// claimed jobs are the first jobs that may start, in the order of the queue. A claimed job stays pending or failed
	// until the pool reports that it has started or ended. One call checks a limited number of jobs, so it may return
	// fewer jobs than could run, or none. AwaitJobs then continues the search.
	ReportAndClaim(ctx context.Context, r LeaseReport) (ReportAndClaimResult, error)
	// AwaitJobs waits until a job can start, and then claims at least one job and at most maxJobs. The transaction that
	// makes a job ready to start also claims it. If ctx ends first, AwaitJobs claims no job. Only one call of AwaitJobs
	// may be active at a time.
	AwaitJobs(ctx context.Context, maxJobs int) ([]queue.Job, error)
	// RecordJobPause records that a running job is paused or resumed. The record is deleted when the attempt ends. If the
	// job is already in the requested state, nothing changes. RecordJobPause returns ErrJobStateChanged if the lease has
	// ended, and ErrJobLeased if the pool has not reported the job as started yet.
	RecordJobPause(ctx context.Context, p JobPauseRequest) error
	// ParentJobs returns the jobs that a job has waited for, except removed ones, in the order in which the dependencies
	// were added. If all ResultJSON together would exceed queue.MaxDependencyResultBytes, some are left out.
	ParentJobs(ctx context.Context, jobSeq int64) ([]ParentJob, error)
	// PreviousSession returns the leases and runners of the service that ran before. A service
	// calls it when it starts.
	PreviousSession(ctx context.Context) (PreviousSession, error)
	// AdvanceEpoch increments the epoch, the number of the service's start, and returns it.
	AdvanceEpoch(ctx context.Context) (int64, error)
	// StoreRunnerDirs stores the directories of the runners that may have leases, in any order, so that the next
	// service can find them. After this call, PreviousSession.IsDatabaseCopy is false.
	StoreRunnerDirs(ctx context.Context, dirs []string) error
}

// PreviousSession contains the leases and runners of an earlier service.
type PreviousSession struct {
	// LeasedJobs contains all leased jobs, ordered by seq. The state of a job that was reported
	// as started is Processing.
	LeasedJobs []queue.Job
	// RunnerDirs contains the directories last passed to StoreRunnerDirs.
	RunnerDirs []string
	// HighestJobSeq is the highest seq that any job of the store has had; 0 if the store has never had a job. No lease of
	// this store has a higher seq.
	HighestJobSeq int64
	// IsDatabaseCopy reports that the database is a copy or was restored, and that StoreRunnerDirs has not been called
	// since. Its leases may then belong to the original database.
	IsDatabaseCopy bool
}

// LeaseReport contains the changes of leases that a pool reports to the store in one call of ReportAndClaim. The store
// does not retain the slices.
type LeaseReport struct {
	AttemptStarts   []AttemptStart
	ProgressReports []AttemptProgress // progress of attempts that were reported as started, in this report or earlier
	Settlements     []Settlement
	// ReleasedLeases contains leases whose jobs were never started. These jobs return to their old positions in the queue.
	ReleasedLeases []queue.Lease
	// LeasedJobChanges contains users' changes of leased jobs that were never started. The leases of these jobs are not in
	// ReleasedLeases. The store releases each of these leases and then changes the job as ChangeJob does.
	LeasedJobChanges []LeasedJobChange
	MaxJobsToClaim   int
	// MaxBytesPerUser limits the bytes that one user's jobs may use; 0 means unlimited. If the output of an ended attempt
	// would exceed the limit, outputs and inputs of the same user are removed, as by TrimUserData, at most
	// QuotaRemovalLimit of them. If removing that many is not enough, nothing is removed, and the attempt is recorded
	// without its output. Its output size is then set to OutputRemovedByQuota. If even this record exceeds the limit, and
	// the job already has MinKeptAttemptRecords records, the new record replaces the oldest one.
	MaxBytesPerUser int64
}

// LeasedJobChange is a change of a job that a user requested while the job was leased.
type LeasedJobChange struct {
	queue.Lease
	JobChange
}

// AttemptStart reports that an attempt is running.
type AttemptStart struct {
	queue.Lease
	StartedAt queue.UnixMillis
	WorkerID  string
	PID       int
}

// AttemptProgress reports the progress of a running attempt. The store also adds an event.
type AttemptProgress struct {
	queue.Lease
	queue.Progress
}

// Settlement describes how an attempt ended and what happens to its job. If Decision.RecordsAttempt is true, the store
// records Attempt and assigns its Number.
type Settlement struct {
	queue.Lease
	Attempt  queue.Attempt
	Decision queue.AttemptDecision
	// Progress is the last progress of the attempt. If it is nil, the store keeps the progress
	// that was reported before.
	Progress *queue.Progress
	// EndedByUID is the uid of the user who ended the attempt, or nil. EndedByVerb is the command that the user gave.
	EndedByUID  *int
	EndedByVerb string
	// CommandFingerprint identifies the command of a completed job, for the typical run time. If it is 0, the run
	// time is not recorded.
	CommandFingerprint uint64
	// DeletableOutputFile is the name of an output file of the attempt that is no longer needed and may exist; "" means
	// that no such file exists. The store adds the file to the list of DeletableOutputs, unless the lease has ended.
	DeletableOutputFile string
}

// ReportAndClaimResult is the result of ReportAndClaim. ClaimedJobs contains the jobs that the pool has now leased,
// with the fences of their leases. StaleLeases lists leases in the report that had already ended; nothing was recorded
// for them.
type ReportAndClaimResult struct {
	ClaimedJobs     []queue.Job
	StaleLeases     []queue.Lease
	RejectedChanges map[queue.Lease]error // the error of each rejected change, as ChangeJob would have returned it
}

// JobPauseRequest is a request of the user RequesterUID to pause or resume a leased job.
type JobPauseRequest struct {
	queue.Lease
	Paused       bool
	RequesterUID int
}

// ErrJobStateChanged is returned for a change if AllowedStates does not list the job's state, or if the lease has
// ended.
var ErrJobStateChanged = errors.New("the state of the job has changed")

// ErrJobLeased is returned for a change of a leased job. The worker pool must first end the job or release its lease.
var ErrJobLeased = errors.New("the job is running or about to start")
