// Package store defines how jobs are kept: durably, with fenced leases, and with the store as the only clock.
//
// Start with Store, which combines the interfaces below. Package store/sql implements it on SQLite and
// PostgreSQL. Package store/memstore is an independent implementation in memory that tests compare with
// store/sql.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Store keeps jobs. A method that changes something returns after the change is durable. If a method returns
// queue.ErrOutcomeUnknown, the change may or may not be durable. All methods are safe for concurrent use.
// They return queue.ErrNotFound for an id that names no job.
type Store interface {
	Queue
	Session
	Reader
	Upkeep
	Schedules

	// Now returns the time of the store's clock. All stored times come from this clock.
	Now() queue.Millis
	// Order returns the settings from which ranks are computed, as of the last commit.
	Order() queue.Order
	// Broken returns a channel that is closed when the store has failed permanently. The process that uses
	// the store must then end. Changes that were acknowledged before the failure are kept.
	Broken() <-chan struct{}
	// Err returns the reason why the store has failed permanently, or nil if it has not.
	Err() error
	// Close waits for the operations that have begun, then closes the store. Later calls return
	// ErrUnavailable.
	Close() error
}

// ErrNewerSchema is returned for a store that was written by a newer queuectl, or whose tables lack a column
// that this version needs. The store is not changed.
var ErrNewerSchema = &queue.Error{Code: queue.CodeUnsupported, Message: "newer schema"}

// Examiner is a store that can check itself.
type Examiner interface {
	// Examine makes quick checks, for the command doctor.
	Examine(ctx context.Context) []Finding
}

// OutputDirs names the directories that may contain output files. If Since is not zero, files that were last
// written before Since may belong to another store, which used the directories earlier.
type OutputDirs struct {
	Dirs  []string
	Since time.Time
}

// Maintainer is a store that keeps its jobs in local files. All methods are safe for concurrent use.
type Maintainer interface {
	Examiner
	// Room returns an error while the disk has no space for new jobs.
	Room() error
	// Capacity returns the size of the files' file system in bytes, or 0 if it is unknown.
	Capacity() int64
	// Starved returns an error while committed pages cannot be moved from the write-ahead log into the
	// database, because a read transaction does not end.
	Starved() error
	// Slow returns an error while a commit takes so long that the disk may be frozen or failing. It never
	// blocks.
	Slow() error
	// Guard watches the store's files. It makes the store fail soon after they are removed or replaced,
	// because further changes would be lost. It runs until ctx ends.
	Guard(ctx context.Context)
	// Compact returns free space inside the files to the disk, in steps between other changes. It runs until
	// ctx ends.
	Compact(ctx context.Context)
	// Verify copies the stored data, then compares the rows of the copy with each other and with the output
	// files. It calls the function each to report the progress: the number of bytes copied so far, and the
	// total.
	Verify(ctx context.Context, outputs OutputDirs, each func(done, of int64) error) ([]Finding, error)
	// Backup makes a checked copy with its output files. The copy contains every change that was acknowledged
	// before the call, and may contain later ones. Backup also reports its progress to the function each.
	// Only one copy is made at a time.
	Backup(ctx context.Context, outputs Outputs, each func(done, of int64) error) (Copy, error)
}

// Outputs opens an output file by name. It returns os.ErrNotExist if the file is gone.
type Outputs func(ref string) (io.ReadCloser, error)

// Copy is a finished backup, which is read from its beginning. Close deletes it.
type Copy interface {
	io.ReadCloser
	Size() int64 // in bytes
}

// Queue accepts new jobs, and changes of stored jobs that users request.
type Queue interface {
	// Enqueue stores all drafts of a request, or none; see Receipt.
	Enqueue(ctx context.Context, r Request) (Receipt, error)
	// StageBatch stores one frame of a batch, which Request.Batch names. Claims, lists and counts ignore its
	// jobs, but no other job can get their ids. Enqueue with the same Batch commits all frames. The drafts of
	// that request are the last frame, which may be empty. Before the commit, the jobs count only toward
	// MaxPendingUser.
	//
	// If the jobs do not fit in MaxPending, the commit is rejected and the batch stays staged, so the client
	// can repeat the commit. A batch is discarded if its next frame does not come within StageMemory, or if
	// it is not committed when the store is closed. Further frames for it then return ErrForgotten.
	StageBatch(ctx context.Context, r Request) (Receipt, error)
	// AbortBatch discards a staged batch that its client no longer wants to commit.
	AbortBatch(ctx context.Context, uid int, batch string) error
	// ApplyBatch moves the next frame of a committed batch into the queue; batch is the value of
	// Receipt.Batch. It reports whether there may be more frames. Promote moves frames for which ApplyBatch
	// is not called, and so does opening the store.
	ApplyBatch(ctx context.Context, batch int64) (more bool, err error)
	// Change applies a verb to a job, with the effect that queue.Verb.Act returns. It returns ErrLeased for a
	// leased job. A retried job starts with no used attempts, no error and no expires_at. A released job
	// keeps these values, but has at least one attempt left. The job's history stays; removing the job also
	// removes its history.
	Change(ctx context.Context, seq int64, c Change) error
	// Audit records a user's action that no other event records.
	Audit(ctx context.Context, a Audit) error
}

// Audit describes a user's action: the verb, the process that requested it, and its object. The object is a
// job, named by Seq and ID, or something else, described by Target.
type Audit struct {
	UID    int
	PID    int
	Verb   string
	Job    int64
	ID     string
	Target string // object of the action, described for people
}

// Request contains the jobs to be enqueued by one call of Enqueue.
type Request struct {
	Drafts []queue.Job // drafts made by queue.Resolve, at most queue.MaxBatch
	UID    int         // the user who made the request
	Owner  string      // the current name of UID; the store keeps the first one
	// Key, if set, makes the request safe to repeat for KeyMemory. A later request with the same UID and Key
	// gets the receipt of the first one. If its Sum differs, it gets ErrExists.
	Key string
	Sum [32]byte
	// Batch, if set, is the name under which the batch's frames were staged.
	Batch string
	// Submission, if not 0, is the number of the Inbox submission that this request enqueues. The same
	// transaction deletes the submission. If it was already deleted, nothing is enqueued, and the receipt has
	// Duplicate set.
	Submission int64
	// MaxPending limits all waiting jobs, and MaxPendingUser those of UID. Enqueue returns ErrFull for a
	// request that would exceed either limit. 0 means unlimited.
	MaxPending     int64
	MaxPendingUser int64
	// MaxBytesUser limits the bytes that UID's jobs hold; see UserBytes. Enqueue returns ErrFull for a
	// request that would exceed it. 0 means unlimited.
	MaxBytesUser int64
}

// Limits of staged batches.
const (
	MaxStagedUser  = 16               // batches of one user
	MaxStagedJobs  = 1_000_000        // jobs of one batch
	MaxStagedNames = 1_000_000        // jobs whose id the client chose, in all batches of one user
	StageMemory    = 10 * time.Minute // a batch is discarded if no frame comes for this time
	// ForgottenMemory is the minimum time for which the store remembers the name of a discarded batch.
	ForgottenMemory = 24 * time.Hour
)

// BatchVerb is the verb of audit events about staged batches.
const BatchVerb = "enqueue.batch"

// BatchTarget returns the target of an audit event about a staged batch: the batch's name, what happened to
// it, and its number of jobs.
func BatchTarget(name, action string, jobs int64) string {
	return fmt.Sprintf("%q %s with %d jobs", name, action, jobs)
}

// ErrManyBatches is returned if a user begins a batch and already has MaxStagedUser of them. ErrManyNames is
// returned if a user's staged batches would contain more than MaxStagedNames jobs with an id.
var (
	ErrManyBatches = queue.Errorf(queue.CodeUnavailable, "you have %d open batches, the maximum per user; commit or abort one, or wait %v until abandoned batches are removed", MaxStagedUser, StageMemory)
	ErrManyNames   = queue.Errorf(queue.CodeUnavailable, "your uncommitted batches have more than %d jobs with ids; commit or abort one of the batches, or leave the ids out", MaxStagedNames)
)

// ErrForgotten is returned for further frames of a batch that was discarded.
var ErrForgotten = queue.Errorf(queue.CodeWrongState, "the batch was discarded, because the service was restarted or no request for the batch came for %v; send the batch again from the beginning under another name", StageMemory)

// KeyMemory is the minimum time for which a key is remembered.
const KeyMemory = 10 * time.Minute

// Receipt names the stored jobs, in the order of their drafts. Enqueue returns ErrExists instead if the id of
// a draft is taken. If another job has a draft's unique key, the receipt may name that job; see Found.
type Receipt struct {
	IDs       []string
	Seqs      []int64
	Found     []bool   // true for drafts that name another job; nil if none do
	Begun     []string // names of the queues that the request has created
	Duplicate bool
	Staged    bool  // the jobs are stored, but not in the queue until ApplyBatch has moved them
	Batch     int64 // the argument for ApplyBatch, if Staged
}

// Act returns the effect of the change on a job; see queue.Verb.Act.
func (c *Change) Act(j *queue.Job) (to queue.State, event queue.EventKind, acts bool, err error) {
	if len(c.Only) > 0 && !slices.Contains(c.Only, j.State) {
		return 0, "", false, ErrMoved
	}
	to, event, acts, err = c.Verb.Act(j)
	if err == nil && acts && to.Waiting() && !j.State.Waiting() {
		err = InputGone(j)
	}
	return to, event, acts, err
}

// Change is a change of a job that a user requests.
type Change struct {
	Verb    queue.Verb
	UID     int            // the user who made the request
	Timeout *time.Duration // new timeout of a retried job, if not nil
	// Edit changes the job, for VerbEdit. It must have no side effects. Its error rejects the change.
	Edit func(*queue.Job) error
	// Alone leaves dependants that were cancelled because of this job unchanged when the job is retried. If
	// Alone is false, these dependants wait for the job again.
	Alone bool
	// Only lists the states in which the change applies; in other states, Change returns ErrMoved. If it is
	// empty, any state will do.
	Only []queue.State
	// MaxPending and MaxPendingUser limit waiting jobs as in Request. They are checked only if the change
	// makes an ended job wait again.
	MaxPending     int64
	MaxPendingUser int64
	// MaxBytesUser limits the user's bytes as in Request. It is checked only for an edit that makes the job
	// larger.
	MaxBytesUser int64
}

// Pause pauses or resumes a leased job, on behalf of a user.
type Pause struct {
	queue.Lease
	On  bool
	UID int
}

// ErrMoved is returned for a change of a job whose state is not listed in Only, and for a stale lease.
var ErrMoved = errors.New("the state of the job has changed")

// ErrLeased is returned for a change of a leased job. The owner of the lease must give it back or end the job
// first.
var ErrLeased = errors.New("the job is running or about to start")

// Session contains the methods that a worker pool needs.
type Session interface {
	// Exchange records what happened to leases and claims up to t.Want jobs, in one commit. Entries with a
	// stale fence change nothing and are listed in the result. The claimed jobs are the head of the queue, in
	// order. Until the pool reports a claimed job as started or ended, the job's state remains pending or
	// failed. Exchange may return fewer jobs than could run, or none, if it checked many jobs that cannot
	// run, such as expired ones. Await then continues the search.
	Exchange(ctx context.Context, t Report) (Grant, error)
	// Await waits until a job is runnable, and claims at most want jobs, at least one; the transaction that
	// makes a job runnable also claims it. If ctx ends first, Await claims no job. Only one Await may be
	// active at a time.
	Await(ctx context.Context, want int) ([]queue.Job, error)
	// Pause records that a running job is paused or resumed. The record is deleted when the attempt ends.
	// Nothing changes if the job already is in the requested state. Pause returns ErrMoved for a stale lease,
	// and ErrLeased for a lease that is not known to have started.
	Pause(ctx context.Context, p Pause) error
	// Parents returns the jobs that a job has waited for, except removed ones, in the order in which the
	// dependencies were added. The Results are limited to queue.MaxDeps bytes in total.
	Parents(ctx context.Context, seq int64) ([]Parent, error)
	// Left returns the leases and runners of an earlier service, for a service that is starting.
	Left(ctx context.Context) (Left, error)
	// NextEpoch increments the service's epoch and returns it.
	NextEpoch(ctx context.Context) (int64, error)
	// NoteRunners stores the directories of the runners that may have leases, in any order, for the next
	// service. After this call, the store no longer counts as a copy; see Left.Moved.
	NoteRunners(ctx context.Context, dirs []string) error
}

// Left contains the leases and runners of an earlier service.
type Left struct {
	// Leased contains all leased jobs, ordered by seq. A job that was reported as started is Processing.
	Leased []queue.Job
	// Runners contains the directories last passed to NoteRunners.
	Runners []string
	// LastSeq is the highest seq that any job of the store has had; 0 if there was none. No lease of this
	// store has a higher seq.
	LastSeq int64
	// Moved reports that the store is a copy or was restored, and that NoteRunners has not been called since.
	// Its leases may belong to the original store.
	Moved bool
}

// Report contains the changes of leases that a pool reports to the store in one Exchange. The store does not
// retain the slices.
type Report struct {
	Started  []Started
	Progress []Progress // progress of attempts that were reported as started, in this report or earlier
	Ended    []Settlement
	// Released contains leases that were never started. Their jobs are runnable again at their old positions.
	Released []queue.Lease
	// Changed lists further leases that were never started. They are released, and then each job is changed
	// as Change would do.
	Changed []Changed
	Want    int
	// MaxBytesUser limits the bytes that one user's jobs may hold; 0 means unlimited. If an ended attempt
	// would exceed it, outputs and inputs of the same user are removed, as TrimUser does. Nothing is removed
	// if the number that RemovalLimit allows would not make enough room. The attempt is then recorded without
	// its output, and its output size is set to OutputOverQuota. If not even the attempt's record fits, it
	// replaces the oldest record of a job that has KeptRecords of them.
	MaxBytesUser int64
}

// Changed is a change that was requested while the job was leased.
type Changed struct {
	queue.Lease
	Change
}

// Started reports that an attempt is running.
type Started struct {
	queue.Lease
	At     queue.Millis
	Worker string
	PID    int
}

// Progress reports the progress of a running attempt. The store also adds an event.
type Progress struct {
	queue.Lease
	queue.Progress
}

// Settlement describes how an attempt ended and what happens to its job. The store records the Attempt if
// Decision.Started is true, and assigns its number N.
type Settlement struct {
	queue.Lease
	Attempt  queue.Attempt
	Decision queue.Decision
	// Progress is the last progress of the attempt. If it is nil, the progress reported earlier stays.
	Progress *queue.Progress
	// By is the uid of the user who ended the attempt, and Verb is the user's verb. By is nil if no user
	// ended it.
	By   *int
	Verb string
	// Fingerprint identifies the command of a completed job, for the typical run time. If it is 0, the run
	// time is not recorded.
	Fingerprint uint64
	// DeletableOutput names an output file of the attempt that is not needed and may exist; "" means none.
	// The store adds it to DeletableOutputs, unless the lease is stale.
	DeletableOutput string
}

// Grant is the result of an Exchange: the jobs that the pool has leased, with their fences; the stale leases
// of the report, for which nothing was recorded; and the rejected changes.
type Grant struct {
	Jobs    []queue.Job
	Stale   []queue.Lease
	Refused map[queue.Lease]error // errors that Change would have returned
}

// Reader contains the methods that read. No method scans the whole table of jobs. No method fails because of
// data that other users have stored.
type Reader interface {
	// Get reads one job by id, without its Env and Stdin, which may be large.
	Get(ctx context.Context, id string) (queue.Job, error)
	// Whole reads one job by id, with its Env and Stdin.
	Whole(ctx context.Context, id string) (queue.Job, error)
	// History reads a page of a job's attempts, without output: the newest attempts with numbers below before
	// (0 means all), in ascending order. The page ends after limit attempts, 1 to MaxPage, or MaxHistoryBytes
	// of text, but has at least one attempt.
	History(ctx context.Context, seq int64, before, limit int) ([]queue.Attempt, error)
	// Attempt reads one attempt with its output. If n is 0, it reads the last attempt.
	Attempt(ctx context.Context, seq int64, n int) (queue.Attempt, error)
	// List reads a page of jobs, newest first, each without Env and Stdin. The page ends after Filter.Limit
	// jobs or MaxPageBytes of text, but has at least one job.
	List(ctx context.Context, f Filter) (Page, error)
	// Select reads a page of references to the jobs that match a filter, newest first.
	Select(ctx context.Context, f Filter) (Selected, error)
	// Queues lists, by name, the queues that have a rule or jobs that have not ended.
	Queues(ctx context.Context) ([]QueueState, error)
	// Links returns up to limit parents and up to limit children of a job, past and present. Undecided
	// dependencies come first, in the order in which they were added.
	Links(ctx context.Context, seq int64, limit int) (parents, children []Link, err error)
	// Obstacles returns, by seq, the gates without room that keep jobs from starting. It checks jobs that are
	// pending or failed, due and not leased, and does not consider workers. A job that the next claim may
	// take has no obstacles. For a job that is not due, only a pause of its queue is an obstacle. The map has
	// no entry for a job without obstacles, or for a seq without a job.
	Obstacles(ctx context.Context, seqs []int64) (map[int64][]Obstacle, error)
	// Simulate returns up to n jobs that claims would take next if n workers were free now. It changes
	// nothing.
	Simulate(ctx context.Context, n int) (Simulation, error)
	// Counts returns the number of jobs in each state, and the number of jobs ever enqueued. It reads no
	// table.
	Counts() Counts
	// UserBytes returns how many bytes a user's jobs hold as of the last commit. It counts the stored
	// Execution of each job, and JobBytes for the rest of its row. It adds DependencyBytes for each
	// dependency, RecordSize of each attempt, and the outputs. Batches that are not in the queue yet count
	// too. Like Counts, it reads no table and does not wait for a commit.
	UserBytes(uid int) int64
	// BestWaiting returns the effective priority of a user's best-ranked job that is due or waits to be
	// retried, and is not leased. The cost does not depend on the number of jobs. BestWaiting reads one job
	// in each queue where the user has waiting jobs, in up to 1,000 queues and up to 1,000 lanes with
	// demands. It also reads each leased job that is not known to have started. If it reaches these limits,
	// it returns an upper bound.
	BestWaiting(ctx context.Context, uid int) (WaitingPriority, error)
	// Oldest returns the time since which the oldest waiting job has been runnable; 0 if no job waits.
	Oldest(ctx context.Context) (queue.Millis, error)
	// Screen reads an overview for people: up to f.Rows jobs of each part, each without Env and Stdin. Jobs
	// of users other than f.Submitter have only the Labels of their Execution. A part ends after MaxPartBytes
	// of text, but has at least one job. The cost does not depend on the number of jobs, or on the size of
	// other users' jobs.
	Screen(ctx context.Context, f ScreenFilter) (Screen, error)
	// Stats reads statistics of attempts. They are updated in the transaction that records the start or end,
	// so a crash neither loses nor repeats any. Removing a job does not change them.
	Stats(ctx context.Context, f StatsFilter) (Stats, error)
	// Usual returns the typical run time of jobs with this queue.Job.Fingerprint, computed from completed
	// jobs; 0 if it is not known. It reads no table. After a crash, it may not include the last two minutes.
	Usual(fingerprint uint64) time.Duration
	// Events lists up to limit events after a sequence number. The changes that the returned events report
	// are already included in Counts.
	Events(ctx context.Context, after int64, limit int) ([]queue.Event, error)
	// LastEvent returns the number of the newest event, or 0 if there was none. The returned channel is
	// closed when a newer event is stored.
	LastEvent() (last int64, newer <-chan struct{})
	// Watch sends hints about changes of some jobs until the watch is stopped.
	Watch(seqs []int64) *Watching
}

// MaxScreen limits the jobs in each part of a Screen.
const MaxScreen = 100

// MaxPartBytes limits the text of a part of a Screen, as measured by TextSize.
const MaxPartBytes = 128 << 10

// ScreenFilter says how much of a Screen is read.
type ScreenFilter struct {
	Rows      int  // number of jobs of each part, 1 to MaxScreen
	Submitter *int // the user whose jobs are read with their Execution; nil for all
}

// Screen is an overview of the queue, in parts.
type Screen struct {
	Running []queue.Job // running jobs, oldest first
	// Ready contains the jobs that wait for a worker or a gate, in the order in which they would start if no
	// gate were full.
	Ready []queue.Job
	Timed []queue.Job // jobs that wait until they are due, in the order of their due times
	Kept  []queue.Job // held and blocked jobs, oldest first
	Dead  []queue.Job // dead jobs; the one that ended last is first
	Done  []queue.Job // completed and cancelled jobs; the one that ended last is first
}

// WaitingPriority is the effective priority of a user's best-ranked waiting job, including points for
// waiting.
type WaitingPriority struct {
	Priority int64 // at most MaxWaitingPriority
	Found    bool  // false if the user has no such job
	// Bound reports that the search stopped at its limit. Priority is then only an upper bound: no job
	// exceeds it, but perhaps no job has it.
	Bound bool
}

// MaxWaitingPriority is below the largest int64, so that adding the points that waiting jobs gain from each
// new job cannot overflow.
const MaxWaitingPriority = math.MaxInt64 / 2

// Simulation contains the jobs that claims would take next, in order.
type Simulation struct {
	Jobs       []queue.Job
	Incomplete bool // true if the search for more jobs stopped at its limit
}

// Filter selects the jobs to be listed. A job must match all fields that are set.
type Filter struct {
	States []queue.State     // empty means any
	Labels map[string]string // the job must have all of them
	Queue  string            // "" means any
	UID    *int
	// Knows is the uid of the user who requests the list. The list leaves out hooks from the settings that
	// run as other users. If Knows is nil, nothing is left out.
	Knows  *int
	Since  queue.Millis // earliest end time or, for an unfinished job, creation time
	Older  queue.Millis // the same time must be before Older; 0 means no bound
	Glob   string       // pattern of ids, see queue.Glob; "" means any
	Before int64        // only jobs with a seq below Before; 0 means start with the newest
	Limit  int          // 1 to MaxPage
}

// Limits of a page.
const (
	MaxPage         = 1000      // jobs or attempts
	MaxPageBytes    = 1 << 20   // text of jobs, as measured by TextSize
	MaxHistoryBytes = 256 << 10 // text of attempts, as measured by AttemptSize
)

// Page is part of a list. Next is the value of Filter.Before for the next page, or 0 at the end. A page other
// than the last may have few jobs or none.
type Page struct {
	Jobs []queue.Job
	Next int64
}

// Ref contains the values of a job that a selector needs.
type Ref struct {
	Seq   int64
	ID    string
	State queue.State
	UID   int
}

// Selected is a page of references to matching jobs. Next is as in Page.
type Selected struct {
	Refs []Ref
	Next int64
}

// Counts contains totals of the whole queue. Each change updates them, so reading them costs the same however
// many jobs exist.
type Counts struct {
	States   [queue.Cancelled + 1]int64 // number of jobs in each state
	Enqueued int64                      // number of jobs ever enqueued
	// Reranking reports that Rerank has more to do.
	Reranking bool
	Bytes     int64 // bytes of the database
	Outputs   int64 // bytes of all outputs, in the database and in files
	// Kept is the number of completed and cancelled jobs that ended while their queue had its own retention.
	Kept int64
}

// UserBytes is the number of bytes that the jobs of one user hold.
type UserBytes struct {
	UID   int
	Bytes int64
}

// SortUserBytes sorts users by the bytes of their jobs, most first.
func SortUserBytes(list []UserBytes) {
	slices.SortFunc(list, func(a, b UserBytes) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID)) })
}

// BoundedStates lists the states in which a retention limits the number of jobs. Dead jobs stay until a user
// handles them.
var BoundedStates = []queue.State{queue.Completed, queue.Cancelled}

// Bounded returns the number of jobs that the retention for all queues limits.
func (c Counts) Bounded() int64 {
	n := -c.Kept
	for _, s := range BoundedStates {
		n += c.States[s]
	}
	return n
}

// Waiting returns the number of jobs that are waiting to run.
func (c Counts) Waiting() int64 {
	return c.States[queue.Blocked] + c.States[queue.Held] + c.States[queue.Pending] + c.States[queue.Failed]
}

// Upkeep stores settings and performs the periodic duties.
type Upkeep interface {
	// Settings lists the stored settings.
	Settings(ctx context.Context) ([]Setting, error)
	// SetSetting stores one setting; an empty value removes it.
	SetSetting(ctx context.Context, s Setting) error
	// SetOrder changes the order by which jobs are ranked. Waiting jobs keep their ranks until Rerank has
	// reached them.
	SetOrder(ctx context.Context, o queue.Order) error
	// Rerank gives a limited number of waiting jobs their ranks under the current order, and reports whether
	// there may be more. It can continue after the store was closed and opened again.
	Rerank(ctx context.Context) (more bool, err error)
	// SetMaxRunningUser limits the leased jobs of one user (queue.Job.UID) to n. 0 means unlimited, as in a
	// store that was just opened. Leases above the limit are not ended. Jobs that the limit holds back stay
	// in the queue. They are claimed in their usual order once fewer jobs of their user are leased.
	SetMaxRunningUser(ctx context.Context, n int) error
	// SetQueue stores the rule of a queue. A queue without a stored rule has QueueRule{Weight: 1}. The turns
	// that queues have had by weight are forgotten, so all queues start equal again.
	SetQueue(ctx context.Context, name string, rule QueueRule) error
	// SetNode sets the node that this store runs on, until the store is closed. Jobs that may not run on it,
	// or need more resources than it has, wait. Leased jobs keep their units of resources until they end.
	SetNode(ctx context.Context, node Node) error
	// SetGate stores the rule of a shared lock or rate, and jobs cannot change it. If N is 0, the stored rule
	// is removed. The first job that names the key then sets the rule, which lasts as long as unfinished jobs
	// name the key.
	SetGate(ctx context.Context, rule queue.Demand) error
	// Gates lists shared locks, rates and resources, and those of one user. It lists at most MaxGates of
	// them, those that follow the gate after. Locks and rates without a stored rule are listed while jobs
	// name them.
	Gates(ctx context.Context, uid int, after GateState) ([]GateState, error)
	// SetHooks sets which hooks the store creates, until it is closed. The transaction that records a job's
	// new state also creates the hooks for that state. No limit on waiting jobs applies to hooks.
	SetHooks(ctx context.Context, h Hooks) error
	// RemovableBytes returns how many bytes of a user's data TrimUser can remove. It stops counting once it
	// has reached need bytes.
	RemovableBytes(ctx context.Context, uid int, need int64) (int64, error)
	// TrimUser removes a limited number of inputs and outputs of a user's jobs while the user holds more than
	// keep bytes (UserBytes). It takes them first from jobs that have not ended, then from ended jobs, in the
	// order in which they ended. It removes the outputs of all attempts that have ended. It removes inputs
	// longer than KeptInput if LosesInput is true for the job's state. The rows of the jobs stay. It reports
	// whether there is more to remove.
	TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error)
	// UsersOver lists the users whose jobs hold more bytes than keep, most bytes first. It reads no table.
	UsersOver(keep int64) []UserBytes
	// Promote makes due jobs runnable, cancels expired jobs and deletes old keys, a limited number of each.
	// It returns the time until something is due again: 0 if more is due now, and at most an hour.
	Promote(ctx context.Context) (next time.Duration, err error)
	// Purge removes up to limit of the matching jobs that ended first, with their history, and returns their
	// number. by is the user who requested it, or nil for a periodic duty.
	Purge(ctx context.Context, of Ended, limit int, by *int) (int, error)
	// CountEnded returns the number of jobs that Purge could remove. It reads each of these jobs, so its cost
	// grows with their number.
	CountEnded(ctx context.Context, of Ended) (int64, error)
	// Keeping lists, by name, the queues with jobs that ended while the queue had its own retention. It reads
	// no job.
	Keeping(ctx context.Context) ([]KeepingQueue, error)
	// TrimJobs removes jobs in BoundedStates, those that ended first, until at most keep of them are stored.
	// One call removes at most limit jobs. It applies to the jobs that ended while the given queue had its
	// own retention. With an empty name, it applies to the jobs of all queues that ended while their queue
	// had none. It reports whether there are more to remove.
	TrimJobs(ctx context.Context, queue string, keep int64, limit int) (more bool, err error)
	// TrimEvents deletes the events that are older than the time before. It also deletes the oldest events
	// until at most keep events are stored. One call deletes a limited number. It reports whether there are
	// more to delete.
	TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error)
	// TrimOutputs removes a limited number of outputs if all outputs together have more bytes than keep. It
	// takes them from the users with the most output, so no user loses any while another has more. Within one
	// user it uses TrimUser's order. The attempts stay, with their output size set to OutputForgotten. It
	// reports whether there is more to remove.
	TrimOutputs(ctx context.Context, keep int64) (more bool, err error)
	// TrimOutputsOf does the same as TrimOutputs for the jobs of a queue that ended while the queue had its
	// own retention. It starts with the job that ended first.
	TrimOutputsOf(ctx context.Context, queue string, keep int64) (more bool, err error)
	// Owners returns the name that each uid had when it first enqueued a job. It lists former owners under
	// uids below 0. moving lists the former owners whose jobs may not all have their new uid yet.
	Owners(ctx context.Context) (names map[int]string, moving []int, err error)
	// Disown takes a uid from its recorded owner, because the uid now belongs to another account. It does
	// nothing unless Owners lists this name for the uid. Waiting jobs of the former owner are held with
	// ReasonDisowned. All jobs of the former owner get a uid below 0, which no peer has, and under which
	// Owners lists the name. Leased jobs get it once their lease is over. Keys and staged batches are
	// deleted.
	//
	// Each call makes one step and reports whether there is more to do. Promote also makes these steps. Jobs
	// that the uid enqueues after the first call belong to its new owner.
	Disown(ctx context.Context, uid int, owner string) (more bool, err error)
	// Unowned returns those of the given output files that belong to no attempt and no lease, and are not
	// listed as deletable. It adds them to the list of DeletableOutputs.
	Unowned(ctx context.Context, refs []string) ([]string, error)
	// DueSooner returns a channel that receives a hint when something becomes due before the time that the
	// last call of Promote returned.
	DueSooner() <-chan struct{}
	// DeletableOutputs lists up to limit output files whose attempts are gone.
	DeletableOutputs(ctx context.Context, limit int) ([]string, error)
	// OutputsDeleted removes files from the list of DeletableOutputs after the caller has deleted them.
	OutputsDeleted(ctx context.Context, refs []string) error
}

// Setting is one stored setting, with the user who set it and the time.
type Setting struct {
	Key   string
	Value string
	UID   int
	At    queue.Millis
	// Kind is the kind of the event that records the change; "" means EventSetting. It is not stored.
	Kind queue.EventKind
	// Secret leaves the value out of the event. It is not stored.
	Secret bool
}

// Told returns the value as the event about the setting shows it.
func (s *Setting) Told() string {
	if s.Secret && s.Value != "" {
		return "***"
	}
	return s.Value
}

// Level is the severity of a finding.
type Level string

// The levels. A warning is worth knowing; a failure must be fixed.
const (
	Fine    Level = "ok"
	Warning Level = "warning"
	Failure Level = "failure"
)

// Finding is the result of one check: what was found, and what the user can do next.
type Finding struct {
	Check   string
	Level   Level
	Message string
	Next    string
}
