package store

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits of schedules.
const (
	MaxSchedules     = 1000 // schedules of one user
	MaxScheduleName  = 100  // maximum length in bytes; a job's id appends the time of the occurrence to it
	MaxScheduleRuns  = 100  // records kept of each schedule, the newest
	MaxUnfinished    = 1000 // unfinished jobs of one schedule; no further job is created
	MaxFired         = 100  // occurrences carried out or recorded as missed in one Firing
	MaxSchedulesPage = 1000 // schedules listed by one call
)

// Overlap says what happens to an occurrence if an earlier job of the schedule has not ended.
type Overlap string

// The values of Overlap. OverlapSkip creates no job.
const (
	OverlapSkip    Overlap = "skip"
	OverlapQueue   Overlap = "queue"   // the new job waits until the earlier one has ended
	OverlapReplace Overlap = "replace" // the earlier job is cancelled
)

// CatchUp says what happens to occurrences that were missed.
type CatchUp string

// The values of CatchUp. CatchUpNone runs none of them.
const (
	CatchUpNone CatchUp = "none"
	CatchUpOne  CatchUp = "one" // one run for all of them together
	CatchUpAll  CatchUp = "all" // one run for each, one after another
)

// Outcome says what happened to an occurrence.
type Outcome string

// The values of Outcome.
const (
	OutcomeFired   Outcome = "fired"
	OutcomeMissed  Outcome = "missed"
	OutcomeSkipped Outcome = "skipped" // an earlier job had not ended
	OutcomeRefused Outcome = "refused" // no job could be created; the note contains the reason
)

// Schedule is the definition and the state of a recurring job.
type Schedule struct {
	Name string
	// Gen distinguishes this definition from earlier ones with the same name. The store assigns it.
	Gen     int64
	UID     int // owner; below 0 if the owner's uid belongs to another account now
	Cron    string
	Zone    string
	Jitter  time.Duration
	CatchUp CatchUp
	Overlap Overlap
	// Spec is the requested job spec as JSON. Draft is the job that the service has made of it.
	Spec  string
	Draft queue.Job

	CreatedAt queue.Millis // start of the intervals of a schedule like "every 10 minutes"
	// LastAt is the newest occurrence that was handled; no occurrence up to it is ever carried out. NextAt is
	// the next occurrence, and DueAt the time when it is due, including jitter. Both are 0 if there is none.
	LastAt, NextAt, DueAt queue.Millis
	// AtBoot reports that the schedule runs once per boot. Boot is the id of the last boot for which it has
	// run.
	AtBoot bool
	Boot   string
	// PausedAt is the time when the schedule was paused, or 0. PausedBy is the user who paused it, or nil.
	// Note is the reason.
	PausedAt queue.Millis
	PausedBy *int
	Note     string
	// Damaged reports that the job definition cannot be read. Note contains the reason.
	Damaged bool
}

// ScheduleRun is the record of one occurrence.
type ScheduleRun struct {
	Instant queue.Millis
	At      queue.Millis // time of the record
	Outcome Outcome
	Job     int64 // seq of the created job, 0 if none; ID is its id
	ID      string
	By      *int   // the user who requested the run; nil if it was due
	Note    string // why it was refused, or the id of the job because of which it was skipped
}

// SchedulePut is a request to store a schedule.
type SchedulePut struct {
	Schedule
	// Replaces is the Gen of the schedule of the same name to be replaced; 0 for a new schedule.
	Replaces int64
	// By is the uid of the user who made the request.
	By int
	// MaxBytesUser is how many bytes the jobs and schedules of the schedule's user may use; 0 means
	// unlimited.
	MaxBytesUser int64
}

// Pausing is a request to pause or resume a schedule.
type Pausing struct {
	Name  string
	Gen   int64
	By    *int
	Note  string
	Pause bool
	// LastAt, NextAt, DueAt and Boot replace the schedule's values when it is resumed.
	LastAt, NextAt, DueAt queue.Millis
	Boot                  string
}

// Firing is a request to carry out and record occurrences of a schedule.
type Firing struct {
	Name string
	Gen  int64
	// Last and Boot are the values that the schedule is expected to have. If it has others, or is paused,
	// nothing happens. Neither is checked for a run that a user requests.
	Last queue.Millis
	Boot string

	Runs   []queue.Millis // to be carried out, oldest first; each waits for the one before
	Missed []queue.Millis // to be recorded as missed, oldest first
	By     *int           // the user who requests the only run; nil if the runs are due
	// IDs returns the nth candidate for the id of an occurrence's job, from n = 1. The first free id is used.
	IDs func(instant queue.Millis, n int) string

	// LastAt, NextAt, DueAt and NextBoot are the schedule's values after the firing.
	LastAt, NextAt, DueAt queue.Millis
	NextBoot              string

	// Owner is the current name of the schedule's user; see Request.
	Owner                      string
	MaxPending, MaxPendingUser int64 // as in Request
	MaxBytesUser               int64 // as in Request
	// FailOverQuota makes Fire return the QuotaError that rejects the job of the first of Runs, and change
	// nothing. Otherwise, the run is recorded as refused.
	FailOverQuota bool
}

// MaxIDs is the number of ids that are tried for an occurrence. No user can predict the last ones and take
// them first.
const MaxIDs = 100

// Fired is the result of a Firing. Done reports whether it was carried out.
type Fired struct {
	Done bool
	Runs []ScheduleRun // one for each occurrence in Firing.Runs
	// Leased lists running jobs that must be ended before the new jobs can replace them. If it is not empty,
	// nothing has happened.
	Leased []int64
}

// ErrChanged is returned for a change of a schedule that another request has changed.
var ErrChanged = errors.New("another request changed the schedule; try again")

// ErrManySchedules is returned if a user has MaxSchedules schedules and adds another.
var ErrManySchedules = queue.Errorf(queue.CodeFull, "you have %d schedules, the maximum per user; remove one with: queuectl schedule rm NAME", MaxSchedules)

// DisownedNote is the note of a schedule that was paused because its owner's uid belongs to another account
// now.
const DisownedNote = "the uid of the schedule's owner now belongs to another account; add the schedule again with --replace"

// Schedules stores schedules and the records of their occurrences. Methods return ErrNotFound for a name that
// no schedule has.
type Schedules interface {
	// PutSchedule stores a schedule, and returns it with its new Gen. It returns ErrChanged if the schedule
	// that it replaces has changed, and ErrFull if its user has MaxSchedules or would use more than
	// MaxBytesUser.
	PutSchedule(ctx context.Context, p SchedulePut) (Schedule, error)
	// Schedule reads a schedule and its newest records, newest first, up to MaxScheduleRuns.
	Schedule(ctx context.Context, name string) (Schedule, []ScheduleRun, error)
	// Schedules lists, by name, up to limit schedules with names after the given one. Their drafts have no
	// Env and Stdin.
	Schedules(ctx context.Context, after string, limit int) ([]Schedule, error)
	// RemoveSchedule deletes a schedule and its records if it has the given gen. Its jobs stay.
	RemoveSchedule(ctx context.Context, name string, gen int64, by int) error
	// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs. A schedule that already
	// is in the requested state does not change.
	PauseSchedule(ctx context.Context, p Pausing) error
	// DueSchedules lists up to limit due schedules. It takes users in turn: first each user's schedule that
	// has been due longest, then each user's next one, and so on. An engine considers a limited number of due
	// schedules. next is the time until another schedule is due, at most an hour, and 0 if more may be due
	// now. AtBoot schedules are due if they have not run for the given boot; if boot is "", none of them is
	// due.
	DueSchedules(ctx context.Context, boot string, limit int) (due []Schedule, next time.Duration, err error)
	// Fire carries out and records occurrences in one transaction: their records, their jobs and the
	// schedule's next occurrence are all stored, or none. If an earlier job of the schedule has not ended,
	// Overlap decides what happens. An occurrence whose job does not fit in the queue is recorded as refused.
	Fire(ctx context.Context, f Firing) (Fired, error)
}
