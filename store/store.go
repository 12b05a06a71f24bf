// Package store is the contract for keeping jobs: durable, fenced, and the only
// clock.
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

// Store keeps jobs. A method that changes something returns after the change is
// durable; an error that is ErrOutcomeUnknown means that it may or may not be.
// All methods may be called at once from many goroutines. Ids that name no job
// are ErrNotFound.
type Store interface {
	Queue
	Session
	Reader
	Upkeep
	Schedules

	// Now is the store's clock, which is the only one that instants come from.
	Now() queue.Millis
	// Order is how ranks are made, as of the last commit.
	Order() queue.Order
	// Broken is closed when the store has failed for good; Err says why, nil before. Whoever
	// runs the store then ends the process: what was acknowledged is kept.
	Broken() <-chan struct{}
	Err() error
	// Close ends the store after what has begun. Methods called later fail with
	// ErrUnavailable.
	Close() error
}

// ErrNewerSchema refuses a store that a newer queuectl, or one with other tables, has written and that this one cannot
// use. The store is not changed.
var ErrNewerSchema = &queue.Error{Code: queue.CodeUnsupported, Message: "newer schema"}

// Examiner is a store that can say how what keeps its jobs is.
type Examiner interface {
	// Examine looks quickly at it, as doctor does.
	Examine(ctx context.Context) []Finding
}

// OutputDirs names the directories that may contain output files. Files that were last written before Since, if it is not
// zero, may belong to another store, which used the directories earlier.
type OutputDirs struct {
	Dirs  []string
	Since time.Time
}

// Maintainer is what a store can do beside that keeps its jobs in files of this machine.
// All methods may be called at any time, from many goroutines.
type Maintainer interface {
	Examiner
	// Room is an error while there is no room for new jobs.
	Room() error
	// Capacity is how many bytes the file system of the files has, 0 if that is not known.
	Capacity() int64
	// Starved is an error while what was committed cannot be put in its place, for somebody
	// reads and does not end.
	Starved() error
	// Slow returns an error while a commit takes so long that the disk may be frozen or failing. It never blocks.
	Slow() error
	// Guard fails the store as soon as its files are removed or replaced, until ctx ends.
	Guard(ctx context.Context)
	// Compact gives space that removed rows have left inside the files back to the disk, in steps between
	// other changes, until ctx ends.
	Compact(ctx context.Context)
	// Verify holds all that is stored against each other, and against the output files in
	// folders, on a copy; each hears how many bytes of how many were copied so far.
	Verify(ctx context.Context, outputs OutputDirs, each func(done, of int64) error) ([]Finding, error)
	// Backup makes a checked copy that holds every change which was answered before, and
	// later ones up to some instant, with its output files. each hears as in Verify. One
	// copy is made at a time.
	Backup(ctx context.Context, outputs Outputs, each func(done, of int64) error) (Copy, error)
}

// Outputs opens the output file of a name; one that is gone is os.ErrNotExist.
type Outputs func(ref string) (io.ReadCloser, error)

// Copy is a backup that has been made, to be read from its beginning. Close deletes it.
type Copy interface {
	io.ReadCloser
	Size() int64 // in bytes
}

// Queue takes new jobs and what people ask of stored ones.
type Queue interface {
	// Enqueue stores all drafts of a request or none. See Receipt.
	Enqueue(ctx context.Context, r Request) (Receipt, error)
	// StageBatch keeps one frame of a batch, which Request.Batch names: no claim, list
	// or count sees its jobs, but their ids are taken. Enqueue with that Batch
	// commits all frames, with its own drafts as the last ones; it may have none
	// then. Before the commit the jobs count toward MaxPendingUser only. A commit
	// whose jobs do not fit in MaxPending is refused; the batch stays staged, so the
	// client can repeat it. A batch whose next frame does not come within StageMemory,
	// and one that is not committed when the store is closed, are forgotten; frames
	// that still come for it are ErrForgotten. AbortBatch forgets one that its client
	// gives up.
	StageBatch(ctx context.Context, r Request) (Receipt, error)
	AbortBatch(ctx context.Context, uid int, batch string) error
	// ApplyBatch moves the next frame of a committed batch, by Receipt.Batch, into the
	// queue, and says whether there may be more. What is not finished by calls is
	// finished by Promote, or when the store is opened.
	ApplyBatch(ctx context.Context, batch int64) (more bool, err error)
	// Change carries out a verb on a job, as queue.Verb.Act says. A leased job is
	// ErrLeased. A job that becomes pending anew has no attempts used, its error
	// cleared and its expires_at dropped if it was retried; it keeps them if it
	// was released, but has at least one attempt left. Its history stays. A removed job's history goes with it.
	Change(ctx context.Context, seq int64, c Change) error
	// Audit records what a person does that no other event tells of.
	Audit(ctx context.Context, a Audit) error
}

// Audit is what a person does, by which verb and from which process: to a job, by its
// seq and id, or to something else.
type Audit struct {
	UID    int
	PID    int
	Verb   string
	Job    int64
	ID     string
	Target string // what was asked; for people
}

// Request is one enqueue.
type Request struct {
	Drafts []queue.Job // as queue.Resolve makes them, at most queue.MaxBatch
	UID    int         // who asks
	Owner  string      // the name that UID has now; the first one is kept
	// Key, if set, makes the request repeatable for KeyMemory: a later request
	// of the same UID and Key gets the first one's receipt if its Sum is the
	// same, ErrExists if it is not.
	Key string
	Sum [32]byte
	// Batch, if set, is the name that its frames were staged by.
	Batch string
	// Submission, if set, is the number of what an Inbox holds and this enqueues. It is forgotten in the same transaction; if that
	// has happened before nothing is enqueued, and the receipt is Duplicate.
	Submission int64
	// MaxPending, if above 0, refuses with ErrFull a request that would leave
	// more jobs waiting, and MaxPendingUser one that would leave more of UID's.
	MaxPending     int64
	MaxPendingUser int64
	// MaxBytesUser, if above 0, refuses with ErrFull a request after which UID's jobs would hold more bytes
	// than that; see UserBytes.
	MaxBytesUser int64
}

// Limits of batches that are not committed.
const (
	MaxStagedUser  = 16               // batches of one user
	MaxStagedJobs  = 1_000_000        // jobs of one batch
	MaxStagedNames = 1_000_000        // jobs with a named id, in all batches of one user
	StageMemory    = 10 * time.Minute // without a frame; then the batch is forgotten
	// ForgottenMemory is how long at least the name of a forgotten batch is kept.
	ForgottenMemory = 24 * time.Hour
)

// BatchVerb is the verb of audit events about batches that are not committed.
const BatchVerb = "enqueue.batch"

// BatchTarget is the target of such an event: the batch, what became of it, and how many
// jobs it has.
func BatchTarget(name, what string, jobs int64) string {
	return fmt.Sprintf("%q %s with %d jobs", name, what, jobs)
}

// ErrManyBatches refuses to begin one more batch of a user who has as many under way as
// one may, and ErrManyNames one more job with a name.
var (
	ErrManyBatches = queue.Errorf(queue.CodeUnavailable, "you have %d open batches, the maximum per user; commit or abort one, or wait %v until abandoned batches are removed", MaxStagedUser, StageMemory)
	ErrManyNames   = queue.Errorf(queue.CodeUnavailable, "your uncommitted batches have more than %d jobs with ids; commit or abort one of the batches, or leave the ids out", MaxStagedNames)
)

// ErrForgotten refuses more of a batch that has been forgotten.
var ErrForgotten = queue.Errorf(queue.CodeWrongState, "the batch was discarded, because the service was restarted or no request for the batch came for %v; send the batch again from the beginning under another name", StageMemory)

// KeyMemory is how long at least a key is remembered.
const KeyMemory = 10 * time.Minute

// Receipt names the stored jobs, in the order of their drafts. Duplicate means
// that an earlier request with the key had stored them. A draft whose id is
// taken refuses the request with ErrExists. Of a draft whose unique key another job has, that
// one is named.
type Receipt struct {
	IDs       []string
	Seqs      []int64
	Found     []bool   // of drafts for which there was another job; nil if of none
	Begun     []string // queues that there were not before
	Duplicate bool
	Staged    bool  // they are durable, and in the queue once ApplyBatch has moved them
	Batch     int64 // which ApplyBatch is to move, if they are staged
}

// Act is what the change makes of a job; see queue.Verb.Act.
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

// Change is what a person asks of a job.
type Change struct {
	Verb    queue.Verb
	UID     int                    // who asks
	Timeout *time.Duration         // of a retried job, if not nil
	Edit    func(*queue.Job) error // of VerbEdit: pure; an error refuses the change
	// Alone has a retry leave those as they are that were cancelled for the job's sake; else they
	// wait for it again.
	Alone bool
	// Only, if set, are the states in which the job is to be changed; in any other
	// the change is ErrMoved.
	Only []queue.State
	// MaxPending and MaxPendingUser are as in Request, for a change that has a job wait
	// which had ended, and for its user.
	MaxPending     int64
	MaxPendingUser int64
	// MaxBytesUser is as in Request, for an edit after which the job holds more bytes.
	MaxBytesUser int64
}

// Pause has a job of a lease paused, on behalf of a uid, or resumed.
type Pause struct {
	queue.Lease
	On  bool
	UID int
}

// ErrMoved refuses a change of a job that is in none of the states of Only any more.
var ErrMoved = errors.New("the state of the job has changed")

// ErrLeased refuses a change of a job that a worker holds: whoever holds it must
// give it back or end it first.
var ErrLeased = errors.New("the job is running or about to start")

// Session is what a pool of workers needs.
type Session interface {
	// Exchange records what happened to leases and claims up to t.Want jobs, in one
	// commit. Entries whose fence is stale change nothing and are named in the
	// result. The claimed jobs are the head of the queue, in order; they stay
	// pending (or failed) in every count until reported as started or ended. There may
	// be fewer than could be claimed, or none, where many were looked at in vain, like
	// those that are too late: Await goes on.
	Exchange(ctx context.Context, t Report) (Grant, error)
	// Await claims at least one and up to want jobs, waiting for the first one
	// to become runnable: the transaction that makes it so also claims it. When
	// ctx ends first it claims none. At most one Await may be under way.
	Await(ctx context.Context, want int) ([]queue.Job, error)
	// Pause records that a running job is paused from now on, or that it is not any more. The
	// record ends with the attempt. What is so already stays as it is, with who asked first. A
	// lease that does not hold any more is ErrMoved, one that is not known to have started
	// ErrLeased.
	Pause(ctx context.Context, p Pause) error
	// Parents are those that a job has waited for, in the order in which it came to, but for those that
	// were removed. There are Results up to queue.MaxDeps bytes in all.
	Parents(ctx context.Context, seq int64) ([]Parent, error)
	// Left is what an earlier service has left, for one that starts.
	Left(ctx context.Context) (Left, error)
	// NextEpoch raises and returns the service's epoch.
	NextEpoch(ctx context.Context) (int64, error)
	// NoteRunners keeps the folders of the runners that may have leases, in any order, for
	// the next service. It makes a copy an original; see Left.
	NoteRunners(ctx context.Context, dirs []string) error
}

// Left is what an earlier service has left.
type Left struct {
	// Leased are all leased jobs, by seq. One that was reported as started is Processing.
	Leased []queue.Job
	// Runners are the folders that were noted last.
	Runners []string
	// LastSeq is the highest number that a job has had, of any that the store has known, 0
	// before the first: no lease of this store is of a higher one.
	LastSeq int64
	// Moved says that the store is a copy, or was restored, and has noted no runners since:
	// its leases may be those of the store that it was copied from.
	Moved bool
}

// Report is what a pool tells the store in one exchange, which keeps none of the slices.
type Report struct {
	Started  []Started
	Progress []Progress // of attempts that have been reported as started, here or before
	Ended    []Settlement
	Released []queue.Lease // never started: runnable again at their old place
	// Changed leases were never started either: they are released, and their
	// jobs changed, as if Change had met them waiting.
	Changed []Changed
	Want    int
	// MaxBytesUser is how many bytes the jobs of one user may hold; 0 means unlimited. If an ended attempt would
	// exceed it, outputs and inputs of the same user are removed, as TrimUser does. If as many as RemovalLimit allows
	// do not make enough room, nothing is removed. The attempt is then recorded without its output, and its output size
	// is set to OutputOverQuota. If not even the attempt's record fits, it replaces the
	// oldest record of a job that has KeptRecords of them.
	MaxBytesUser int64
}

// Changed is a change of a job that was leased when it was asked for.
type Changed struct {
	queue.Lease
	Change
}

// Started reports an attempt that is running.
type Started struct {
	queue.Lease
	At     queue.Millis
	Worker string
	PID    int
}

// Progress reports how far a running attempt says that it is. It is an event too.
type Progress struct {
	queue.Lease
	queue.Progress
}

// Settlement is how an attempt ended and what follows. The Attempt is recorded
// if Decision.Started says so; its N is given by the store.
type Settlement struct {
	queue.Lease
	Attempt  queue.Attempt
	Decision queue.Decision
	// Progress is the last that the attempt has told; nil leaves what was reported of it.
	Progress *queue.Progress
	// By is who had the attempt ended, nil if nobody did, and Verb how.
	By   *int
	Verb string
	// Fingerprint is that of a job which has completed, so that it is known how long such ones run; 0
	// leaves the run out.
	Fingerprint uint64
	// DeletableOutput names the output file that may be left of it and that nobody needs, "" for
	// none. It is among DeletableOutputs from then on, unless the lease is stale.
	DeletableOutput string
}

// Grant is what a pool gets for its Report: jobs that it has leased now, with their fences; leases of
// its report that are over already, of which nothing was recorded; and changes that were refused.
type Grant struct {
	Jobs    []queue.Job
	Stale   []queue.Lease
	Refused map[queue.Lease]error // changes that Change would have refused
}

// Reader reads. No method scans the whole table of jobs, and no method fails because of
// what other users have stored.
type Reader interface {
	// Get reads one job by id, but for its Env and Stdin, which may be large. Whole
	// reads all of it.
	Get(ctx context.Context, id string) (queue.Job, error)
	Whole(ctx context.Context, id string) (queue.Job, error)
	// History reads a page of a job's attempts, without output: the newest ones of
	// those numbered below before (0: of all), from first to last. It ends after limit
	// of them, 1 to MaxPage, or MaxHistoryBytes of text, but has one at least.
	History(ctx context.Context, seq int64, before, limit int) ([]queue.Attempt, error)
	// Attempt reads one attempt with its output; n = 0 is the last one.
	Attempt(ctx context.Context, seq int64, n int) (queue.Attempt, error)
	// List reads a page of jobs, newest first, as Get reads each. It ends after
	// Filter.Limit of them or MaxPageBytes of text, but has one at least.
	List(ctx context.Context, f Filter) (Page, error)
	// Select reads a page of references to the jobs that a filter selects, newest first.
	Select(ctx context.Context, f Filter) (Selected, error)
	// Queues lists the queues that have a rule or jobs which have not ended, by name.
	Queues(ctx context.Context) ([]QueueState, error)
	// Links lists up to limit jobs that a job waits or waited for and up to limit that wait or
	// waited for it: those that do still first, in the order in which they came to.
	Links(ctx context.Context, seq int64, limit int) (parents, children []Link, err error)
	// Obstacles returns, by seq, the gates without room that keep jobs from starting, except workers: of each job
	// that is pending or failed, due and not leased, none if the next claim may take it. Of one that is not due
	// only a pause of its queue is an obstacle. Jobs without obstacles, and seqs without a job, are left out.
	Obstacles(ctx context.Context, seqs []int64) (map[int64][]Obstacle, error)
	// Simulate returns up to n jobs that claims would take next if there were n free workers now. It changes nothing.
	Simulate(ctx context.Context, n int) (Simulation, error)
	// Counts is how many jobs are in each state, and how many were ever
	// enqueued; it reads no table.
	Counts() Counts
	// UserBytes returns how many bytes a user's jobs hold as of the last commit. It counts what they run by, as it is
	// stored, and JobBytes for the rest of each row. It adds DependencyBytes for each dependency, RecordSize of each
	// attempt, and the outputs. Batches that are not in the queue yet count too. Like Counts, it reads no table and
	// waits for no commit.
	UserBytes(uid int) int64
	// BestWaiting returns the effective priority of a user's best-ranked job that is due or waits to be retried, and is
	// not leased. What it reads does not depend on the number of jobs: it reads one job in each queue where the user
	// has waiting jobs, in up to 1,000 queues, at up to 1,000 lanes with demands, and at each job that is leased and not
	// known to have started. If it reaches these limits, it returns an upper bound.
	BestWaiting(ctx context.Context, uid int) (WaitingPriority, error)
	// Oldest is when the job that waits longest became runnable, 0 if none waits.
	Oldest(ctx context.Context) (queue.Millis, error)
	// Screen reads what a person asks first: up to f.Rows of each part, as Get reads each job,
	// but for the Execution of those that are not f.Submitter's, of which there are the Labels
	// alone. A part that has MaxPartBytes of text ends there; it has one job at least. It costs
	// the same however many jobs there are, and however much others have in theirs.
	Screen(ctx context.Context, f ScreenFilter) (Screen, error)
	// Stats reads figures of attempts. They are counted in the commit of what they tell, so none is lost
	// or counted twice over crashes; a job's removal leaves them.
	Stats(ctx context.Context, f StatsFilter) (Stats, error)
	// Usual is how long a job of this queue.Job.Fingerprint usually runs, by those that have completed; 0
	// if that is not known. It reads no table. After a crash it may not know of the last two minutes.
	Usual(fingerprint uint64) time.Duration
	// Events lists up to limit events after a sequence number. What they tell of is in the
	// Counts by then.
	Events(ctx context.Context, after int64, limit int) ([]queue.Event, error)
	// LastEvent is the number of the newest event, 0 if there was none, and a channel
	// that is closed once there is a newer one.
	LastEvent() (last int64, newer <-chan struct{})
	// Watch hints at changes of some jobs, until the watch is stopped.
	Watch(seqs []int64) *Watching
}

// MaxScreen is how many jobs of each part of a Screen there may be.
const MaxScreen = 100

// MaxPartBytes bounds the text of a part of a Screen, as TextSize measures it.
const MaxPartBytes = 128 << 10

// ScreenFilter says how much of a Screen is read.
type ScreenFilter struct {
	Rows      int  // of each part, 1 to MaxScreen
	Submitter *int // whose jobs are read whole, nil for all
}

// Screen is how the queue stands, in parts.
type Screen struct {
	Running []queue.Job // the oldest first
	Ready   []queue.Job // those that wait for a worker or a gate, in the order in which they start if no gate is full
	Timed   []queue.Job // those that wait for their time, the next first
	Kept    []queue.Job // held and blocked ones, the oldest first
	Dead    []queue.Job // the last ended first
	Done    []queue.Job // completed and cancelled ones, the last ended first
}

// WaitingPriority is the effective priority, points for waiting included, of a user's best-ranked waiting job.
type WaitingPriority struct {
	Priority int64 // at most MaxWaitingPriority
	Found    bool  // false if the user has no such job
	Bound    bool  // the search stopped at its limit: no job has a higher priority, but perhaps none has this one
}

// MaxWaitingPriority leaves room for the points that new jobs give to waiting ones.
const MaxWaitingPriority = math.MaxInt64 / 2

// Simulation holds the jobs that claims would take next, in order.
type Simulation struct {
	Jobs       []queue.Job
	Incomplete bool // the search for more jobs stopped at its limit
}

// Filter selects jobs to list.
type Filter struct {
	States []queue.State     // any, if empty
	Labels map[string]string // all of them
	Queue  string            // "" is any
	UID    *int
	Knows  *int         // who asks, from whom others' hooks of the settings are kept; nil leaves nothing out
	Since  queue.Millis // ended, or else created, at or after
	Older  queue.Millis // ended, or else created, before; 0 is any time
	Glob   string       // of ids, as queue.Glob takes it; "" is any
	Before int64        // seq below; 0 for the newest
	Limit  int          // 1 to MaxPage
}

// Limits of a page.
const (
	MaxPage         = 1000      // jobs or attempts
	MaxPageBytes    = 1 << 20   // of jobs' text, as TextSize measures it
	MaxHistoryBytes = 256 << 10 // of attempts' text, as AttemptSize measures it
)

// Page is part of a list. Next is the Before of the next page, 0 at the end; a page
// that is not the last one may have few jobs, or none.
type Page struct {
	Jobs []queue.Job
	Next int64
}

// Ref names a job and says what a selector needs to know of it.
type Ref struct {
	Seq   int64
	ID    string
	State queue.State
	UID   int
}

// Selected is a page of what a filter selects, with Next as in Page.
type Selected struct {
	Refs []Ref
	Next int64
}

// Counts are figures of the whole queue. They are kept up with each change, so that to ask for them
// costs the same however many jobs there are.
type Counts struct {
	States   [queue.Cancelled + 1]int64 // by state
	Enqueued int64                      // ever
	// Reranking says that Rerank has more to do.
	Reranking bool
	Bytes     int64 // of the database
	Outputs   int64 // bytes of all outputs, in the database and in files
	// Kept is how many completed and cancelled jobs ended while their queue had its own retention.
	Kept int64
}

// UserBytes is how many bytes the jobs of one user hold.
type UserBytes struct {
	UID   int
	Bytes int64
}

// SortUserBytes orders users by the bytes of their jobs, most first.
func SortUserBytes(list []UserBytes) {
	slices.SortFunc(list, func(a, b UserBytes) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID)) })
}

// BoundedStates are the states whose jobs a retention bounds by number. Dead jobs stay until a user has seen to them.
var BoundedStates = []queue.State{queue.Completed, queue.Cancelled}

// Bounded is how many jobs the retention of all queues bounds by number.
func (c Counts) Bounded() int64 {
	n := -c.Kept
	for _, s := range BoundedStates {
		n += c.States[s]
	}
	return n
}

// Waiting is how many jobs have yet to run.
func (c Counts) Waiting() int64 {
	return c.States[queue.Blocked] + c.States[queue.Held] + c.States[queue.Pending] + c.States[queue.Failed]
}

// Upkeep keeps settings and does the periodic duties.
type Upkeep interface {
	// Settings lists the stored settings.
	Settings(ctx context.Context) ([]Setting, error)
	// SetSetting stores one setting; an empty value removes it.
	SetSetting(ctx context.Context, s Setting) error
	// SetOrder has jobs ranked by another order from now on. Those that wait keep
	// their rank until Rerank, called again and again, has reached them, a bounded
	// number at a time; it says whether there may be more. What was not reached when
	// the store is closed is, once it is opened again.
	SetOrder(ctx context.Context, o queue.Order) error
	Rerank(ctx context.Context) (more bool, err error)
	// SetMaxRunningUser has at most n jobs of one user (queue.Job.UID) leased at once
	// from now on; 0 is any number, as in a store that has just been opened. What is
	// leased beyond that may end. A job that is kept back by it waits as all others do,
	// and is claimed in its turn once its user has room.
	SetMaxRunningUser(ctx context.Context, n int) error
	// SetQueue has a queue go by a rule from now on, over restarts too; one that was not given any
	// goes by QueueRule{Weight: 1}. Shares by weight begin anew.
	SetQueue(ctx context.Context, name string, rule QueueRule) error
	// SetNode has the store be of this node, from now on until it is closed: jobs that may run
	// elsewhere only, or need more than it has, wait. Jobs have what they hold until they end.
	SetNode(ctx context.Context, node Node) error
	// SetGate has everybody's lock or rate go by this rule, over restarts, whatever the jobs that name it
	// say; n is 0 for none: then the word of the first job that names it holds for as long as some do.
	// Gates lists those that have such a rule or are named by jobs, and the resources: everybody's and a
	// user's own, as many as MaxGates after one of them.
	SetGate(ctx context.Context, rule queue.Demand) error
	Gates(ctx context.Context, uid int, after GateState) ([]GateState, error)
	// SetHooks has hooks be made so from now on, until it is closed. They are made in the commit of what
	// they tell of, and are not refused for want of room in the queue.
	SetHooks(ctx context.Context, h Hooks) error
	// RemovableBytes returns how many bytes of a user's data TrimUser can remove. It stops counting once it has
	// counted need bytes.
	RemovableBytes(ctx context.Context, uid int, need int64) (int64, error)
	// TrimUser removes a limited number of inputs and outputs of a user's jobs while the user holds more than keep
	// bytes (UserBytes). It takes them first from jobs that have not ended, then from the jobs that ended
	// first. It removes the outputs of all attempts that have ended. It removes inputs longer than KeptInput if
	// LosesInput is true for the job's state. The rows stay. It reports whether there is more to remove.
	TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error)
	// UsersOver lists the users whose jobs hold more than keep bytes, those that hold most first. It reads what
	// UserBytes reads.
	UsersOver(keep int64) []UserBytes
	// Promote makes due jobs runnable, cancels expired ones and forgets old
	// keys, a bounded number of each, and says how long until the next is due:
	// 0 if more are due now, at most an hour.
	Promote(ctx context.Context) (next time.Duration, err error)
	// Purge removes, with their history, those of some ended jobs that ended first, up to limit, and
	// says how many. by is who asks, nil if nobody does.
	Purge(ctx context.Context, of Ended, limit int, by *int) (int, error)
	// CountEnded is how many jobs Purge could remove. It reads each of them.
	CountEnded(ctx context.Context, of Ended) (int64, error)
	// Keeping lists the queues, by name, that have jobs which ended while the queue had its own retention. It
	// reads no job.
	Keeping(ctx context.Context) ([]KeepingQueue, error)
	// TrimJobs removes up to limit of the bounded jobs of a queue that ended first, while more than keep of them
	// are stored. The jobs are those that ended while the queue had its own retention, or with an empty name
	// those of all queues that ended while their queue had none. It reports whether there are more to remove.
	TrimJobs(ctx context.Context, queue string, keep int64, limit int) (more bool, err error)
	// TrimEvents forgets a bounded number of events: the oldest, while they are from
	// before an instant or more than keep are there. It says whether there are more.
	TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error)
	// TrimOutputs removes a limited number of outputs if the total is over keep bytes. It takes them from the users
	// with the most output, so no user loses any while another has more. Within one user it uses TrimUser's order.
	// The attempts stay, with their output size set to OutputForgotten. It reports whether there is more to remove.
	// TrimOutputsOf does the same for the jobs of a queue that ended while the queue had its own retention, starting
	// with the job that ended first.
	TrimOutputs(ctx context.Context, keep int64) (more bool, err error)
	TrimOutputsOf(ctx context.Context, queue string, keep int64) (more bool, err error)
	// Owners lists the name that each uid had when it enqueued first, and those of
	// former owners by uids below 0; moving are the uids of these whose jobs may not all
	// have changed hands yet.
	Owners(ctx context.Context) (names map[int]string, moving []int, err error)
	// Disown takes a uid from the owner of this name, if Owners has it for the uid: that
	// belongs to another account now. Jobs of that owner that wait are held, as
	// ReasonDisowned, and all get a uid below 0, which no peer has, and under which
	// Owners lists the name; leased ones do when they are given back or have ended.
	// Keys, and batches that are not committed, are forgotten. Each call takes a step,
	// and says whether there is more; what is not finished by calls, Promote finishes.
	// What the uid enqueues from the first call on is its new owner's.
	Disown(ctx context.Context, uid int, owner string) (more bool, err error)
	// Unowned tells which output files, of these names, belong to no attempt, lease or
	// garbage. They are garbage from then on.
	Unowned(ctx context.Context, refs []string) ([]string, error)
	// DueSooner hints that something is due earlier than the last Promote said.
	DueSooner() <-chan struct{}
	// DeletableOutputs lists up to limit output files whose attempts are gone, and
	// OutputsDeleted forgets them once they are deleted.
	DeletableOutputs(ctx context.Context, limit int) ([]string, error)
	OutputsDeleted(ctx context.Context, refs []string) error
}

// Setting is one stored setting: who set it, and when.
type Setting struct {
	Key   string
	Value string
	UID   int
	At    queue.Millis
	Kind  queue.EventKind // of the event that tells of it; EventSetting if it is "". It is not stored
	// Secret leaves the value out of the event. It is not stored either.
	Secret bool
}

// Told is the value as its event has it.
func (s *Setting) Told() string {
	if s.Secret && s.Value != "" {
		return "***"
	}
	return s.Value
}

// Level says how bad a finding is.
type Level string

// The levels. A warning is worth to know; a failure is to be mended.
const (
	Fine    Level = "ok"
	Warning Level = "warning"
	Failure Level = "failure"
)

// Finding is one thing that was looked at: what was found, and what to do about it.
type Finding struct {
	Check   string
	Level   Level
	Message string
	Next    string
}
