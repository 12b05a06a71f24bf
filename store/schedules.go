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
	MaxScheduleNameBytes = 100  // maximum length in bytes; a job's id is this name and the time of the occurrence
	MaxOccurrenceRecords = 100  // number of records kept of each schedule; the oldest are deleted
	MaxUnfinishedJobs    = 1000 // unfinished jobs of one schedule; at this number, no further job is created
	MaxOccurrences       = 100  // maximum number of occurrences in one OccurrenceRequest, including missed ones
	MaxSchedulesPage     = 1000 // maximum number of schedules that one call lists
)

// Overlap says what happens to an occurrence if an earlier job of the schedule has not ended.
type Overlap string

// The values of Overlap. With OverlapSkip, no job is created for the occurrence.
const (
	OverlapSkip    Overlap = "skip"
	OverlapQueue   Overlap = "queue"   // the new job waits until the earlier one has ended
	OverlapReplace Overlap = "replace" // the earlier job is cancelled
)

// CatchUp says what happens to occurrences that were missed.
type CatchUp string

// The values of CatchUp. With CatchUpNone, no missed occurrence runs.
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
	UID        int // uid of the owner; below 0 if the uid belongs to another account now
	Cron       string
	TimeZone   string
	Jitter     time.Duration
	CatchUp    CatchUp
	Overlap    Overlap
	// Spec is the requested job spec as JSON. Draft is the job that the service has made of it.
	Spec  string
	Draft queue.Job

	CreatedAt queue.Millis // start of the intervals of a schedule like "every 10 minutes"
	// LastAt is the newest occurrence that was handled. Neither it nor an earlier occurrence is ever carried
	// out again. NextAt is the next occurrence. DueAt is the time when that occurrence is due, including
	// jitter. NextAt and DueAt are 0 if there is no next occurrence.
	LastAt, NextAt, DueAt queue.Millis
	// AtBoot reports that the schedule runs once per boot. BootID is the id of the last boot for which it has
	// run.
	AtBoot bool
	BootID string
	// PausedAt is the time when the schedule was paused, or 0. PausedBy is the user who paused it, or nil.
	// Note is the reason for the pause.
	PausedAt queue.Millis
	PausedBy *int
	Note     string
	// Damaged reports that the job definition cannot be read. Note contains the reason.
	Damaged bool
}

// OccurrenceRecord is the record of one occurrence: a planned start of a schedule.
type OccurrenceRecord struct {
	OccurrenceAt queue.Millis
	RecordedAt   queue.Millis // time when the record was made
	Outcome      Outcome
	JobSeq       int64 // seq of the created job, 0 if none; JobID is its id
	JobID        string
	RequestedBy  *int   // the user who requested the run; nil if the schedule was due
	Note         string // why the run was refused, or the id of the unfinished job because of which it was skipped
}

// SchedulePut is a request to store a schedule.
type SchedulePut struct {
	Schedule
	// ReplacedGeneration is the Generation of the schedule of the same name to be replaced; 0 for a new schedule.
	ReplacedGeneration int64
	// RequestedBy is the uid of the user who made the request.
	RequestedBy int
	// MaxBytesPerUser is how many bytes the jobs and schedules of the schedule's user may use; 0 means
	// unlimited.
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
	// ExpectedLastAt and ExpectedBootID are the values that the schedule is expected to have. If the schedule
	// has other values, or is paused, nothing happens. For a run that a user requests, neither the values nor
	// the pause are checked.
	ExpectedLastAt queue.Millis
	ExpectedBootID string

	Occurrences       []queue.Millis // occurrences to be carried out, oldest first; each job waits for the one before it
	MissedOccurrences []queue.Millis // occurrences to be recorded as missed, oldest first
	RequestedBy       *int           // the user who requests the only occurrence; nil if the occurrences are due
	// CandidateID returns a candidate for the id of an occurrence's job: the nth one, counted from 1. The job
	// gets the first candidate that no job has.
	CandidateID func(instant queue.Millis, n int) string

	// LastAt, NextAt, DueAt and NextBootID are the schedule's values after the request was carried out.
	LastAt, NextAt, DueAt queue.Millis
	NextBootID            string

	// Owner is the current name of the schedule's user; see Request.
	Owner                         string
	MaxPending, MaxPendingPerUser int64 // limits of waiting jobs, as in Request
	MaxBytesPerUser               int64 // limit of the user's bytes, as in Request
	// FailOverQuota decides what happens if the job of the first of Occurrences exceeds MaxBytesPerUser. If it
	// is true, RunOccurrences returns the QuotaError and changes nothing. If it is false, the run is recorded
	// as refused.
	FailOverQuota bool
}

// MaxCandidateIDs is the number of ids that are tried for the job of an occurrence. Users cannot predict the
// last candidates, so they cannot take all of them in advance.
const MaxCandidateIDs = 100

// OccurrenceResult is the result of an OccurrenceRequest. CarriedOut reports whether it was carried out.
type OccurrenceResult struct {
	CarriedOut bool
	Records    []OccurrenceRecord // one record for each occurrence in OccurrenceRequest.Occurrences
	// LeasedSeqs lists leased jobs that the caller must end before it repeats the request, because
	// OverlapReplace cancels them. If it is not empty, nothing has happened.
	LeasedSeqs []int64
}

// ErrScheduleChanged is returned for a change of a schedule that another request has changed.
var ErrScheduleChanged = errors.New("another request changed the schedule; try again")

// ErrTooManySchedules is returned if a user has MaxSchedules schedules and adds another.
var ErrTooManySchedules = queue.Errorf(queue.CodeQueueFull,
	"you have %d schedules, the maximum per user; remove one with: queuectl schedule rm NAME", MaxSchedules)

// DisownedNote is the note of a schedule that was paused because the uid of its owner now belongs to another
// account.
const DisownedNote = "the uid of the schedule's owner now belongs to another account; " +
	"add the schedule again with --replace"

// Schedules stores schedules and the records of their occurrences. Methods return ErrNotFound for a name that
// no schedule has.
type Schedules interface {
	// PutSchedule stores a schedule, and returns it with its new Generation. It returns ErrScheduleChanged if the
	// schedule that it replaces has changed, and ErrQueueFull if the schedule's user already has MaxSchedules
	// schedules or would use more than MaxBytesPerUser.
	PutSchedule(ctx context.Context, p SchedulePut) (Schedule, error)
	// Schedule reads a schedule and its newest records, newest first, up to MaxOccurrenceRecords.
	Schedule(ctx context.Context, name string) (Schedule, []OccurrenceRecord, error)
	// Schedules lists schedules in the order of their names: at most limit schedules, starting after the
	// given name. Their drafts have no Env and Stdin.
	Schedules(ctx context.Context, afterName string, limit int) ([]Schedule, error)
	// RemoveSchedule deletes a schedule and its records. byUID is the user who requested the removal, and generation
	// must be the schedule's Generation. The jobs of the schedule stay.
	RemoveSchedule(ctx context.Context, name string, generation int64, byUID int) error
	// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs. A schedule that already
	// is in the requested state does not change.
	PauseSchedule(ctx context.Context, p SchedulePause) error
	// DueSchedules lists up to limit due schedules. It takes users in turn: first each user's schedule that has
	// been due longest, then each user's next one, and so on. One call may skip some due schedules.
	// untilNext is the time until another schedule is due, at most an hour, and 0 if more may be due now. AtBoot
	// schedules are due if they have not run for the boot bootID; if bootID is "", none of them is due.
	DueSchedules(ctx context.Context, bootID string, limit int) (
		dueSchedules []Schedule, untilNext time.Duration, err error)
	// RunOccurrences carries out and records occurrences in one transaction: their records, their jobs and the
	// schedule's next occurrence are all stored, or none. If an earlier job of the schedule has not ended,
	// Overlap decides what happens. An occurrence whose job does not fit in the queue is recorded as refused.
	RunOccurrences(ctx context.Context, f OccurrenceRequest) (OccurrenceResult, error)
}
