package store

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits of schedules.
const (
	MaxSchedules         = 1000 // maximum number of schedules of one user
	MaxScheduleNameBytes = 100  // the id of a job consists of this name and the time of the occurrence
	MaxOccurrenceRecords = 100  // records kept of each schedule's occurrences; the oldest are deleted
	MaxUnfinishedJobs    = 1000 // unfinished jobs of one schedule; once there are this many, no further job is created
	MaxOccurrences       = 100  // maximum number of occurrences in one OccurrenceRequest, including missed ones
	MaxSchedulesPage     = 1000 // maximum number of schedules that one call lists
)

// Overlap says what happens to an occurrence if an earlier job of the schedule has not ended. It considers only jobs
// of the schedule's present owner.
type Overlap string

// The values of Overlap. OverlapSkip creates no job for the occurrence.
const (
	OverlapSkip    Overlap = "skip"
	OverlapQueue   Overlap = "queue"   // the new job waits until the earlier one has ended
	OverlapReplace Overlap = "replace" // the earlier job is cancelled
)

// CatchUp says what happens to occurrences that were due while no service ran.
type CatchUp string

// The values of CatchUp. CatchUpNone runs no missed occurrence.
const (
	CatchUpNone CatchUp = "none"
	CatchUpOne  CatchUp = "one" // one run replaces all missed occurrences
	CatchUpAll  CatchUp = "all" // each missed occurrence runs, one after another
)

// Outcome says what happened to an occurrence.
type Outcome string

// The values of Outcome.
const (
	OutcomeEnqueued Outcome = "fired"
	OutcomeMissed   Outcome = "missed"
	OutcomeSkipped  Outcome = "skipped" // no job was created, because an earlier job had not ended
	OutcomeRefused  Outcome = "refused" // no job could be created; the note contains the reason
)

// Schedule is the definition and the state of a recurring job.
type Schedule struct {
	Name string
	// Generation distinguishes this definition from earlier ones with the same name. The store assigns it.
	Generation int64
	UID        int // uid of the owner; negative if the uid now belongs to another account
	Cron       string
	TimeZone   string
	Jitter     time.Duration
	CatchUp    CatchUp
	Overlap    Overlap
	// Spec is the job spec as JSON, as the user requested it. Draft is the job that the service made from Spec.
	Spec  string
	Draft queue.Job

	CreatedAt queue.Millis // a schedule like "every 10 minutes" counts its intervals from this time
	// LastAt is the newest occurrence that was handled. No occurrence up to LastAt is carried out again. NextAt is
	// the next occurrence. DueAt is NextAt plus the jitter, the time at which the occurrence is carried out.
	// NextAt and DueAt are 0 if there is no next occurrence.
	LastAt, NextAt, DueAt queue.Millis
	// AtBoot reports that the schedule runs once per boot. BootID identifies the last boot for which it ran.
	AtBoot bool
	BootID string
	// PausedAt is the time when the schedule was paused, or 0. PausedBy is the user who paused it, or nil.
	// Note is the reason for the pause.
	PausedAt queue.Millis
	PausedBy *int
	Note     string
	// Damaged reports that the stored job definition cannot be read. Note contains the reason.
	Damaged bool
}

// OccurrenceRecord is the record of one occurrence: a planned start of a schedule.
type OccurrenceRecord struct {
	OccurrenceAt queue.Millis
	RecordedAt   queue.Millis // time when the record was made
	Outcome      Outcome
	JobSeq       int64 // seq of the created job, 0 if no job was created; JobID is its id
	JobID        string
	RequestedBy  *int   // the user who requested the run; nil if the schedule was due
	Note         string // why no job could be created, or the id of the unfinished job that prevented it
}

// SchedulePut is a request to store a schedule.
type SchedulePut struct {
	Schedule
	// ReplacedGeneration is the Generation of the schedule of the same name to be replaced; 0 for a new schedule.
	ReplacedGeneration int64
	// RequestedBy is the uid of the user who made the request.
	RequestedBy int
	// MaxBytesPerUser limits the bytes that all jobs and schedules of one user may use; 0 means unlimited.
	MaxBytesPerUser int64
}

// SchedulePause is a request to pause or resume a schedule.
type SchedulePause struct {
	Name        string
	Generation  int64
	RequestedBy *int
	Note        string
	Pause       bool // true pauses, false resumes
	// LastAt, NextAt, DueAt and BootID are the new values of the schedule's fields when it is resumed.
	LastAt, NextAt, DueAt queue.Millis
	BootID                string
}

// OccurrenceRequest is a request to carry out and record occurrences of a schedule.
type OccurrenceRequest struct {
	Name       string
	Generation int64
	// ExpectedLastAt and ExpectedBootID are the values that the caller has read from the schedule. If the
	// schedule has changed or is paused, nothing happens. If a user requests the run, neither the values
	// nor the pause are checked.
	ExpectedLastAt queue.Millis
	ExpectedBootID string

	Occurrences       []queue.Millis // occurrences to be carried out, oldest first; each job waits for the one before it
	MissedOccurrences []queue.Millis // occurrences to be recorded as missed, oldest first
	RequestedBy       *int           // the user who requests the run of one occurrence; nil if the occurrences are due
	// CandidateID returns the nth possible id for the job of an occurrence; n starts at 1. The job gets the first
	// of these ids that no other job has.
	CandidateID func(instant queue.Millis, n int) string

	// LastAt, NextAt, DueAt and NextBootID are the new values of the schedule's fields once
	// the request is carried out.
	LastAt, NextAt, DueAt queue.Millis
	NextBootID            string

	// Owner is the current name of the schedule's user; see Request.
	Owner                         string
	MaxPending, MaxPendingPerUser int64 // limits of waiting jobs, as in Request
	MaxBytesPerUser               int64 // limit of the user's bytes, as in Request
	// FailOverQuota decides what happens if the job of the first occurrence in Occurrences exceeds
	// MaxBytesPerUser. If true, RunOccurrences returns a QuotaError and changes nothing. If false, the
	// occurrence is recorded as refused.
	FailOverQuota bool
}

// MaxCandidateIDs is the number of ids that are tried for the job of an occurrence. Users cannot predict the
// last of these ids, so they cannot block the schedule by using all of them for other jobs.
const MaxCandidateIDs = 100

// OccurrenceResult is the result of an OccurrenceRequest. CarriedOut reports whether the
// request was carried out.
type OccurrenceResult struct {
	CarriedOut bool
	Records    []OccurrenceRecord // one record for each occurrence in OccurrenceRequest.Occurrences
	// LeasedSeqs lists running jobs that OverlapReplace must cancel. If it is not empty, nothing has happened yet:
	// the caller must end these jobs and then repeat the request.
	LeasedSeqs []int64
}

// ErrScheduleChanged is returned if another request has changed the schedule since the caller read it.
var ErrScheduleChanged = errors.New("another request changed the schedule; try again")

// ErrTooManySchedules is returned for a new schedule if the user already has MaxSchedules schedules.
var ErrTooManySchedules = queue.Errorf(queue.CodeQueueFull,
	"you have %d schedules, the maximum per user; remove one with: queuectl schedule rm NAME", MaxSchedules)

// DisownedNote is the note of a schedule that was paused because the uid of its owner now belongs to another
// account.
const DisownedNote = "the uid of the schedule's owner now belongs to another account; " +
	"add the schedule again with --replace"

// Schedules stores schedules and the records of their occurrences. Its methods return ErrNotFound if no
// schedule has the given name.
type Schedules interface {
	// PutSchedule stores a schedule, and returns it with its new Generation. It returns ErrScheduleChanged if the
	// schedule that it replaces has changed, and ErrQueueFull if the schedule's user already has MaxSchedules
	// schedules or would use more than MaxBytesPerUser.
	PutSchedule(ctx context.Context, p SchedulePut) (Schedule, error)
	// Schedule reads a schedule and its newest records, newest first, up to MaxOccurrenceRecords.
	Schedule(ctx context.Context, name string) (Schedule, []OccurrenceRecord, error)
	// Schedules lists up to limit schedules in the order of their names, starting after the given name. Their
	// drafts lack Env and Stdin.
	Schedules(ctx context.Context, afterName string, limit int) ([]Schedule, error)
	// RemoveSchedule deletes a schedule and its records, but not its jobs. byUID is the user who requested the
	// removal, and generation must be the schedule's Generation.
	RemoveSchedule(ctx context.Context, name string, generation int64, byUID int) error
	// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs. If the schedule already is in
	// the requested state, nothing changes.
	PauseSchedule(ctx context.Context, p SchedulePause) error
	// DueSchedules lists up to limit due schedules. It takes one schedule of each user in turn, the one that has
	// been due longest first. A call may miss some due schedules. untilNext is the time until another schedule is
	// due, at most an hour; 0 means that more may be due now. A schedule that runs at boot is due if it has not
	// run for the boot bootID; if bootID is "", no such schedule is due.
	DueSchedules(ctx context.Context, bootID string, limit int) (
		dueSchedules []Schedule, untilNext time.Duration, err error)
	// RunOccurrences carries out and records occurrences in one transaction: their records, their jobs and the
	// schedule's next occurrence are all stored, or none. If an earlier job of the schedule has not ended,
	// Overlap decides what happens. Jobs of another user do not count, even if they come from a schedule that had
	// the same name, or if that user owned this schedule before. An occurrence whose job does not fit in the queue
	// is recorded as refused.
	RunOccurrences(ctx context.Context, request OccurrenceRequest) (OccurrenceResult, error)
}
