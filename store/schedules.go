package store

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits of schedules.
const (
	MaxSchedulesPerUser   = 1000 // maximum number of schedules of one user
	MaxScheduleNameBytes  = 100  // the id of a job consists of this name and the time of the occurrence
	MaxRecordsPerSchedule = 100  // number of records that are kept of each schedule's occurrences; the oldest are deleted
	// maximum number of unfinished jobs of one schedule; at this number, no further job is created
	MaxUnfinishedJobsPerSchedule = 1000
	MaxOccurrencesPerRequest     = 100  // maximum number of occurrences in one OccurrenceRequest, including missed ones
	MaxSchedulesPerPage          = 1000 // maximum number of schedules that one call lists
)

// OverlapPolicy says what happens to an occurrence if an earlier job of the schedule has not ended. Only jobs of the
// schedule's present owner count as earlier jobs.
type OverlapPolicy string

// The values of OverlapPolicy. With OverlapSkip, no job is created for the occurrence.
const (
	OverlapSkip    OverlapPolicy = "skip"
	OverlapQueue   OverlapPolicy = "queue"   // the new job waits until the earlier job has ended
	OverlapReplace OverlapPolicy = "replace" // the earlier job is cancelled
)

// CatchUpPolicy says what happens to occurrences that were due while no service ran.
type CatchUpPolicy string

// The values of CatchUpPolicy. With CatchUpNone, no missed occurrence is carried out.
const (
	CatchUpNone CatchUpPolicy = "none"
	CatchUpOne  CatchUpPolicy = "one" // one job is created for all missed occurrences together
	CatchUpAll  CatchUpPolicy = "all" // a job is created for each missed occurrence, and these jobs run one after another
)

// OccurrenceOutcome says what happened to an occurrence.
type OccurrenceOutcome string

// The values of OccurrenceOutcome.
const (
	OccurrenceEnqueued OccurrenceOutcome = "fired"
	OccurrenceMissed   OccurrenceOutcome = "missed"
	OccurrenceSkipped  OccurrenceOutcome = "skipped" // no job was created, because an earlier job had not ended
	OccurrenceRefused  OccurrenceOutcome = "refused" // no job could be created; OutcomeNote contains the reason
)

// Schedule is the definition and the state of a recurring job.
type Schedule struct {
	Name string
	// Generation distinguishes this definition from earlier ones with the same name. The store assigns it.
	Generation int64
	OwnerUID   int // uid of the owner; negative if the uid now belongs to another account
	CronLine   string
	TimeZone   string
	MaxJitter  time.Duration
	CatchUp    CatchUpPolicy
	Overlap    OverlapPolicy
	// SpecJSON is the job spec as JSON, as the user requested it. JobDraft is the job that the service made from SpecJSON.
	SpecJSON string
	JobDraft queue.Job

	CreatedAt queue.UnixMillis // a schedule like "every 10 minutes" counts its intervals from this time
	// LastOccurrenceAt is the newest occurrence that was handled. No occurrence up to LastOccurrenceAt is carried out
	// again. NextOccurrenceAt is the next occurrence. NextDueAt is NextOccurrenceAt plus the jitter: the time at which the
	// occurrence is carried out. NextOccurrenceAt and NextDueAt are 0 if no occurrence follows.
	LastOccurrenceAt, NextOccurrenceAt, NextDueAt queue.UnixMillis
	// RunsAtBoot reports that the schedule runs once per boot. LastBootID identifies the last boot for which it ran.
	RunsAtBoot bool
	LastBootID string
	// PausedAt is the time when the schedule was paused, or 0. PausedByUID is the user who paused it, or nil.
	// Note is the reason for the pause.
	PausedAt          queue.UnixMillis
	PausedByUID       *int
	PauseOrDamageNote string
	// IsDamaged reports that the stored job definition cannot be read. Note contains the reason.
	IsDamaged bool
}

// OccurrenceRecord is the record of one occurrence: a planned start of a schedule.
type OccurrenceRecord struct {
	OccurrenceAt   queue.UnixMillis
	RecordedAt     queue.UnixMillis // time when the record was made
	Outcome        OccurrenceOutcome
	JobSeq         int64 // seq of the created job, or 0 if no job was created; JobID is the id of the job
	JobID          string
	RequestedByUID *int   // the user who requested the run; nil if the schedule was due
	OutcomeNote    string // why no job could be created, or the id of the unfinished job that prevented it
}

// SchedulePutRequest is a request to store a schedule.
type SchedulePutRequest struct {
	Schedule
	// ReplacedGeneration is the Generation of the schedule that this request replaces; 0 for a new schedule.
	ReplacedGeneration int64
	// RequestedByUID is the uid of the user who made the request.
	RequestedByUID int
	// MaxBytesPerUser limits the bytes that all jobs and schedules of one user may use; 0 means unlimited.
	MaxBytesPerUser int64
}

// SchedulePauseRequest is a request to pause or resume a schedule.
type SchedulePauseRequest struct {
	ScheduleName   string
	Generation     int64
	RequestedByUID *int
	PauseNote      string
	Paused         bool // true pauses, false resumes
	// LastOccurrenceAt, NextOccurrenceAt, NextDueAt and LastBootID are the new values of the schedule's fields when it is
	// resumed.
	LastOccurrenceAt, NextOccurrenceAt, NextDueAt queue.UnixMillis
	LastBootID                                    string
}

// OccurrenceRequest is a request to carry out and record occurrences of a schedule.
type OccurrenceRequest struct {
	ScheduleName string
	Generation   int64
	// ExpectedLastOccurrenceAt and ExpectedLastBootID are the values that the caller has read from the schedule. If the
	// schedule now has other values, or is paused, the request does nothing. If a user requests the run, neither the
	// values nor the pause are checked.
	ExpectedLastOccurrenceAt queue.UnixMillis
	ExpectedLastBootID       string

	// occurrences to be carried out, oldest first; each job waits for the job before it
	OccurrencesToRun  []queue.UnixMillis
	MissedOccurrences []queue.UnixMillis // occurrences to be recorded as missed, oldest first
	RequestedByUID    *int               // the user who requests the run of one occurrence; nil if the occurrences are due
	// CandidateJobID returns the nth possible id for the job of an occurrence; n starts at 1. The job gets the first of
	// these ids that no other job has.
	CandidateJobID func(instant queue.UnixMillis, n int) string

	// NewLastOccurrenceAt, NewNextOccurrenceAt, NewNextDueAt and NewLastBootID are the values that the fields
	// of the schedule get when the request is carried out.
	NewLastOccurrenceAt, NewNextOccurrenceAt, NewNextDueAt queue.UnixMillis
	NewLastBootID                                          string

	// OwnerName is the current name of the schedule's user, as in EnqueueRequest.
	OwnerName                             string
	MaxPendingJobs, MaxPendingJobsPerUser int64 // limits of waiting jobs, as in EnqueueRequest
	MaxBytesPerUser                       int64 // limit of the user's bytes, as in EnqueueRequest
	// FailIfOverQuota decides what happens if the job of the first occurrence in OccurrencesToRun exceeds MaxBytesPerUser.
	// If it is true, RunOccurrences returns a QuotaError and changes nothing. If it is false, the occurrence is recorded
	// as refused.
	FailIfOverQuota bool
}

// MaxCandidateJobIDs is the number of ids that are tried for the job of an occurrence. Users cannot predict the last of
// these ids. So they cannot block the schedule by using all of the ids for other jobs.
const MaxCandidateJobIDs = 100

// OccurrenceResult is the result of an OccurrenceRequest. RequestCarriedOut reports whether the
// request was carried out.
type OccurrenceResult struct {
	RequestCarriedOut bool
	Records           []OccurrenceRecord // one record for each occurrence in OccurrenceRequest.OccurrencesToRun
	// JobSeqsToCancel lists running jobs that must be cancelled because of OverlapReplace. If it is not empty, nothing has
	// happened yet: the caller must end these jobs and then repeat the request.
	JobSeqsToCancel []int64
}

// ErrScheduleChanged is returned if another request has changed the schedule since the caller read it.
var ErrScheduleChanged = errors.New("another request changed the schedule; try again")

// ErrTooManySchedules is returned for a new schedule if the user already has MaxSchedulesPerUser schedules.
var ErrTooManySchedules = queue.Errorf(queue.CodeQueueFull,
	"you have %d schedules, the maximum per user; remove one with: queuectl schedule rm NAME", MaxSchedulesPerUser)

// DisownedScheduleNote is the note of a schedule that was paused because the uid of its owner now belongs to another
// account.
const DisownedScheduleNote = "the uid of the schedule's owner now belongs to another account; " +
	"add the schedule again with --replace"

// Schedules stores schedules and the records of their occurrences. Its methods return ErrNotFound if no
// schedule has the given name.
type Schedules interface {
	// PutSchedule stores a schedule, and returns it with its new Generation. It returns ErrScheduleChanged if the
	// schedule that it replaces has changed, and ErrQueueFull if the schedule's user already has MaxSchedulesPerUser
	// schedules or would use more than MaxBytesPerUser.
	PutSchedule(ctx context.Context, p SchedulePutRequest) (Schedule, error)
	// GetSchedule reads a schedule and its newest records, newest first, up to MaxRecordsPerSchedule.
	GetSchedule(ctx context.Context, name string) (Schedule, []OccurrenceRecord, error)
	// ListSchedules lists up to limit schedules in the order of their names, starting after the given name. Their
	// drafts lack Env and Stdin.
	ListSchedules(ctx context.Context, afterName string, limit int) ([]Schedule, error)
	// RemoveSchedule deletes a schedule and its records, but not its jobs. requestedByUID is the user who requested the
	// removal, and generation must be the schedule's Generation.
	RemoveSchedule(ctx context.Context, name string, generation int64, requesterUID int) error
	// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs. If the schedule is already in the
	// requested state, nothing changes.
	PauseSchedule(ctx context.Context, p SchedulePauseRequest) error
	// DueSchedules lists up to limit due schedules. It takes one schedule of each user in turn; of each user's schedules,
	// it takes the one that has been due longest first. A call may miss some due schedules. untilNextDue is the time until
	// another schedule is due, at most an hour; 0 means that more may be due now. A schedule that runs at boot is due if
	// it has not run for the boot bootID. If bootID is "", no such schedule is due.
	DueSchedules(ctx context.Context, bootID string, limit int) (
		dueSchedules []Schedule, untilNextDue time.Duration, err error)
	// RunOccurrences carries out and records occurrences in one transaction. Either all of the following are stored, or
	// nothing: the records of the occurrences, their jobs and the schedule's next occurrence. If an earlier job of the
	// schedule has not ended, Schedule.Overlap decides what happens. Jobs of another user do not count as earlier jobs,
	// even if they come from a schedule that had the same name, or if that user owned this schedule before. An occurrence
	// whose job does not fit in the queue is recorded as refused.
	RunOccurrences(ctx context.Context, request OccurrenceRequest) (OccurrenceResult, error)
}
