package store

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits of recurring jobs.
const (
	MaxSchedules     = 1000 // of one user
	MaxScheduleName  = 100  // bytes: the id of a job has room for an instant behind it
	MaxScheduleRuns  = 100  // that are kept of each, the newest
	MaxUnfinished    = 1000 // jobs of one schedule that have not ended; beyond it none is made
	MaxFired         = 100  // instants that are carried out, or recorded as missed, at once
	MaxSchedulesPage = 1000 // that are listed at once
)

// Overlap is what becomes of an instant of a schedule that has a job which has not ended.
type Overlap string

// The ways of Overlap.
const (
	OverlapSkip    Overlap = "skip"
	OverlapQueue   Overlap = "queue"   // it waits until that one has ended
	OverlapReplace Overlap = "replace" // that one is cancelled
)

// CatchUp is what becomes of instants that were missed.
type CatchUp string

// The ways of CatchUp.
const (
	CatchUpNone CatchUp = "none"
	CatchUpOne  CatchUp = "one" // one run stands for all of them
	CatchUpAll  CatchUp = "all" // each has a run, one after another
)

// Outcome is what became of an instant of a schedule.
type Outcome string

// The outcomes.
const (
	OutcomeFired   Outcome = "fired"
	OutcomeMissed  Outcome = "missed"
	OutcomeSkipped Outcome = "skipped" // for a job of the schedule that had not ended
	OutcomeRefused Outcome = "refused" // no job could be made; the note says why
)

// Schedule is a recurring job.
type Schedule struct {
	Name string
	// Gen tells this definition from those that had its name before. The store gives it.
	Gen     int64
	UID     int // whose it is; below 0 an account whose uid belongs to another one now
	Cron    string
	Zone    string
	Jitter  time.Duration
	CatchUp CatchUp
	Overlap Overlap
	// Spec is what was asked of its jobs, as JSON, and Draft what the service made of that.
	Spec  string
	Draft queue.Job

	CreatedAt queue.Millis // what is due every so often is so from then on
	// LastAt is the newest instant that was dealt with: none up to it is ever carried out. NextAt is
	// the next one, and DueAt when that is due, 0 if there is none.
	LastAt, NextAt, DueAt queue.Millis
	// AtBoot says that it runs once a boot, and Boot is the last one for which it has.
	AtBoot bool
	Boot   string
	// PausedAt is when it was paused, 0 if it is not, by whom, nil if nobody did, and why.
	PausedAt queue.Millis
	PausedBy *int
	Note     string
	// Damaged says that what its jobs are cannot be read; Note tells why.
	Damaged bool
}

// ScheduleRun is what became of one instant.
type ScheduleRun struct {
	Instant queue.Millis
	At      queue.Millis // when it was recorded
	Outcome Outcome
	Job     int64 // that was made, by seq and id, 0 if none was
	ID      string
	By      *int   // who asked for it, nil if its time had come
	Note    string // why it was refused, or which job it was skipped for
}

// SchedulePut is a request to store a schedule.
type SchedulePut struct {
	Schedule
	// Replaces is the Gen of the schedule that it replaces, which has the same name; 0 for a new schedule.
	Replaces int64
	// By is the uid of the user who made the request.
	By int
	// MaxBytesUser is how many bytes the jobs and schedules of the schedule's user may use; 0 means unlimited.
	MaxBytesUser int64
}

// Pausing is a change of what a schedule waits for.
type Pausing struct {
	Name  string
	Gen   int64
	By    *int
	Note  string
	Pause bool
	// LastAt, NextAt and DueAt, of a schedule that goes on, and its Boot, take the place of its own.
	LastAt, NextAt, DueAt queue.Millis
	Boot                  string
}

// Firing is what is to become of instants of a schedule.
type Firing struct {
	Name string
	Gen  int64
	// Last and Boot are what the schedule is expected to have: if it has not, or is paused, nothing
	// happens. An instant that a person asks for is beside all others: neither is looked at.
	Last queue.Millis
	Boot string

	Runs   []queue.Millis // to be carried out, the oldest first; each waits for the one before
	Missed []queue.Millis // to be recorded as missed, the oldest first
	By     *int           // who asks for the one run, nil if its time has come
	// IDs are the ids that the job of an instant may have, the first that is free.
	IDs func(instant queue.Millis, n int) string

	// LastAt, NextAt, DueAt and NextBoot are what the schedule has afterwards.
	LastAt, NextAt, DueAt queue.Millis
	NextBoot              string

	Owner                      string // the name that the schedule's user has now; see Request
	MaxPending, MaxPendingUser int64  // as in Request
	MaxBytesUser               int64  // as in Request
	// FailOverQuota returns the QuotaError that refuses the job of the first of Runs, and changes nothing. Otherwise the
	// run is recorded as refused.
	FailOverQuota bool
}

// MaxIDs is how many ids of an instant are tried: of the last ones nobody can take any before.
const MaxIDs = 100

// Fired is what became of a Firing. Done says that it was carried out.
type Fired struct {
	Done bool
	Runs []ScheduleRun // one an instant of Firing.Runs
	// Leased are jobs that would have to be ended before those are made that replace them. Nothing
	// has happened then.
	Leased []int64
}

// ErrChanged refuses a change of a schedule that is another one by now.
var ErrChanged = errors.New("another request changed the schedule; try again")

// ErrManySchedules refuses one more schedule of a user.
var ErrManySchedules = queue.Errorf(queue.CodeFull, "you have %d schedules, the maximum per user; remove one with: queuectl schedule rm NAME", MaxSchedules)

// DisownedNote is the note of a schedule whose uid was taken from its owner: it is paused.
const DisownedNote = "the uid of the schedule's owner now belongs to another account; add the schedule again with --replace"

// Schedules keeps recurring jobs, and what became of their instants. Names that no schedule has are
// ErrNotFound.
type Schedules interface {
	// PutSchedule stores a schedule, and returns it with its new Gen. It returns ErrChanged if the schedule that it
	// replaces has changed, and ErrFull if its user has MaxSchedules or would use more than MaxBytesUser.
	PutSchedule(ctx context.Context, p SchedulePut) (Schedule, error)
	// Schedule reads a schedule and its newest runs, the newest first, up to MaxScheduleRuns.
	Schedule(ctx context.Context, name string) (Schedule, []ScheduleRun, error)
	// Schedules lists up to limit schedules whose names come after one, by name, without env and
	// stdin of their jobs.
	Schedules(ctx context.Context, after string, limit int) ([]Schedule, error)
	// RemoveSchedule forgets a schedule and its runs, if it has this gen; its jobs stay.
	RemoveSchedule(ctx context.Context, name string, gen int64, by int) error
	// PauseSchedule has a schedule make no jobs until it goes on. One that stands so already is left
	// as it is.
	PauseSchedule(ctx context.Context, p Pausing) error
	// DueSchedules lists up to limit schedules that are due: of each user the one that has been for
	// longest, then of each the next one, and so on, of as many as an engine looks at. It says how long
	// until another one is, at most an hour; 0 if there may be more now. Those of another boot than
	// this one are due; "" is any boot.
	DueSchedules(ctx context.Context, boot string, limit int) (due []Schedule, next time.Duration, err error)
	// Fire carries out and records what is to become of instants, in one transaction: each is in the
	// history, its job in the queue, and what comes next known, or nothing has happened. Whether an
	// instant is carried out beside a job of the schedule that has not ended its Overlap decides. A
	// job for which there is no room is recorded as refused.
	Fire(ctx context.Context, f Firing) (Fired, error)
}
