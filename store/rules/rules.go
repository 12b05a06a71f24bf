// Package rules decides how jobs are enqueued, ordered, claimed, settled and changed, once for every
// database.
//
// An engine stores jobs in a database. It gives the rules a transaction, Tx, and makes no decisions itself.
//
// Start with Move, which changes a job's state, Claim, which leases jobs, and Exchange, which handles the
// reports of the worker pool. The comment at the top of lanes.go explains how claims avoid jobs that cannot
// start.
package rules

import (
	"cmp"
	"maps"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Standing says where claims find a job.
type Standing int64

// The values of Standing. A job that is leased but not known to have started keeps the Standing that it had
// before the claim.
const (
	Nowhere Standing = 0 // the job is held, blocked or ended
	Ready   Standing = 1 // the job is in its lane, ordered by rank
	Timed   Standing = 2 // the job waits until DueAt
	Running Standing = 3 // the job is leased and was started
)

// Rewrite says which parts of a job Put writes.
type Rewrite uint8

// The values of Rewrite.
const (
	RowAlone       Rewrite = iota // only the row
	WithTerms                     // the row and Execution, without Env, Stdin and Labels
	WithEverything                // the row and all of Execution
)

// Part says how much of a job is read.
type Part uint8

// The values of Part. Each includes the ones before it.
const (
	Summary Part = iota // the short columns of the row
	Terms               // Execution, without Env and Stdin
	Whole               // Env and Stdin
)

// Job is a stored job together with the values that the rules need to change it.
type Job struct {
	queue.Job
	Standing Standing
	// Node is the number of the node that leased the job last. It is 0 if only one node uses the store.
	Node     int64
	Lane     int64   // number of the lane that contains the job, if Standing is Ready
	NewError *string // the new text of Job.Error to be written; nil keeps the stored one
	Stored   int64   // bytes stored for the job's row, input, dependencies and attempts, without outputs
	Ran      string  // used only by the engine, which stores the last attempt here if it fits
	Rewrite  Rewrite
	// Damaged reports that a requested part cannot be read. Error contains the reason.
	Damaged bool
}

// Position returns the job's position in its lane. If the job is in no lane, it returns the position that the
// job would have.
func (j *Job) Position() Position { return Position{j.Rank, j.Seq} }

// Position is a position in the order of claims: the lowest rank comes first, then the lowest seq.
type Position struct{ Rank, Seq int64 }

// After reports whether p comes after q.
func (p Position) After(q Position) bool { return p.Rank > q.Rank || p.Rank == q.Rank && p.Seq > q.Seq }

// Measured describes the start or the end of an attempt, for the statistics.
type Measured struct {
	Queue string
	// End is the state of the job after the attempt. It is 0 if Measured describes a start.
	End queue.State
	// Took is the job's wait if Measured describes a start, and the attempt's run time if it describes an
	// end.
	Took time.Duration
	// Fingerprint identifies the command of a completed job. It is 0 if the run time is not to be recorded
	// for the command.
	Fingerprint uint64
}

// Lease describes a leased job. Job equals the job's row, including changes that the engine has not written
// yet, but has no Execution. A Lease is never modified; the rules replace it with a new one.
type Lease struct {
	Job     Job
	Running bool   // the attempt is known to have started
	Needs   []Need // the gates that the job holds, except its user's quota
	// Turn is the turn that the job's user used for the claim. It is zero once the attempt has started, and
	// after a restart of the service.
	Turn Turn
}

// User holds the counts of one user.
type User struct {
	Waiting int64 // waiting jobs
	Hooks   int64 // number of waiting hooks of this user's jobs, whichever account runs them
	Staged  int64 // jobs of staged batches, which are not in the queue yet
	Leased  int
	Bytes   int64 // bytes used by the user's jobs and schedules; see store.Reader
	Outputs int64 // the bytes of outputs, which are part of Bytes
}

// Counts holds the counts of all jobs.
type Counts struct {
	Waiting  int64 // waiting jobs, including those of committed batches
	Enqueued int64 // jobs that were ever enqueued
}

// Tx is one transaction of an engine. The caller owns the values that its methods return. The engine may
// delay writes until the end of the transaction, provided that reads return the written values. An error that
// is a *queue.Error rejects one operation. Any other error ends the transaction, and the engine rolls it
// back.
// See docs/decisions/0012.
type Tx interface {
	// Now returns the time of the transaction. It is the same for the whole transaction.
	Now() queue.Millis
	// Order returns the settings from which ranks are computed. reranking reports whether some jobs still have
	// a rank of an earlier order.
	Order() (o queue.Order, reranking bool)
	// FenceStep returns by how much a claim raises a fence. The step is at least 1, and users cannot predict
	// it.
	FenceStep() int64
	// Counts and User return current counts, which include the changes of this transaction.
	Counts() Counts
	User(uid int) User
	// Disowned returns the uid below 0 that a job of this uid gets once it is not leased. It returns 0 if the
	// job keeps its uid, because the uid still belongs to the same account.
	Disowned(uid int, seq int64) int
	// Hooks returns the value last passed to store.Upkeep.SetHooks.
	Hooks() *store.Hooks
	// NewJob registers a draft without checking the limits on waiting jobs. It returns the new job's seq and
	// id, and the draft number to be passed to Insert.
	NewJob(draft *queue.Job) (at int, seq int64, id string, err error)
	// WakeAt ensures that store.Upkeep.Promote is called at the given time or earlier. 0 has no effect.
	WakeAt(at queue.Millis)
	// Attempt runs a part of the transaction. If the part returns an error, Attempt undoes the part's changes
	// and returns the error. A part must not call Attempt.
	Attempt(part func() error) error

	// Job reads a job. It returns queue.ErrNotFound if the job does not exist.
	Job(seq int64, part Part) (Job, error)
	// Insert stores a new job. draft is the number of its draft, counted from 0: the index in the request, or
	// the number from NewJob.
	Insert(j *Job, draft int) error
	// Put writes a job that is already stored.
	Put(j *Job) error
	// PutProgress writes the progress of a job that is already stored.
	PutProgress(j *Job) error
	// Remove deletes a job and its history. The engine may delete the data later, but no reader sees the job
	// any more.
	Remove(seq int64) error
	// AddAttempt records an attempt of a job. The attempt's number is j.Runs.
	AddAttempt(j *Job, e *store.Settlement) error
	// ForgetAttempt deletes the oldest attempt record of a leased job, with its output. It does nothing if
	// the job has none.
	ForgetAttempt(seq int64) error
	// AddGarbage records that an output file on a node is no longer needed.
	AddGarbage(ref, node string) error
	// AddEvent adds an event about a job, which is in the given state after the event. The event concerns no
	// job if j has no seq.
	AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error
	// Arrived counts an enqueued job.
	Arrived()
	// Moved counts a job's transition between two states, for the job's user and queue. State 0 means that
	// the job is not stored.
	Moved(j *Job, from, to queue.State)
	// CountKept adds the job to the counts of ended jobs that the queue's own retention bounds, if the
	// parameter by is 1. If it is -1, CountKept subtracts the job. The counts are the number of these jobs
	// and the bytes of their outputs.
	CountKept(j *Job, by int)
	// Measure adds the start or the end of an attempt to the statistics of its queue, in this transaction.
	Measure(m Measured)
	// Touched notifies the watches of a job once the transaction is committed.
	Touched(seq int64)
	// StoredSize returns how many bytes a job's row, input and dependencies will take when the job is
	// completely written.
	StoredSize(j *queue.Job) (int64, error)
	// TrimUser removes outputs and inputs of a user until the user holds at most keep bytes. It removes them
	// in the same order as store.Upkeep.TrimUser. It removes nothing if more of them would have to be removed
	// than store.RemovalLimit allows.
	TrimUser(uid int, keep int64) error
	// Holds adds to the counted bytes of a user's jobs and schedules. outputs is the change of the bytes of
	// outputs, and stored the change of all other bytes; both may be negative.
	Holds(uid int, stored, outputs int64)

	// HasEdges reports whether the store contains any edge, decided or not. An edge is a dependency of a job
	// (the child) on another job (the parent).
	HasEdges() bool
	// AddEdge stores an edge with its status.
	AddEdge(child int64, d queue.Dependency, do queue.Otherwise, status store.Met) error
	// Waits reports whether any edge of a child has the given status.
	Waits(child int64, status store.Met) (bool, error)
	// Parents returns up to n jobs that a job waits for.
	Parents(child int64, n int) ([]int64, error)
	// DropEdges deletes all edges of a child.
	DropEdges(child int64) error
	// Named returns the seq of the job with the given id, or 0 if none exists. It also finds jobs in this
	// user's staged batches. It does not find hooks from the settings that run as another user.
	Named(uid int, id string) (seq int64, err error)
	// Holder returns the job of a user that has the given unique key: the job that has not ended or, if all
	// have ended, the one that ended last.
	Holder(uid int, key string) (j Job, found bool, err error)
	// AddEnded adds a note about a parent whose edges must be decided later. The note says that the parent
	// has ended, was removed (state 0), or runs again (state Anew). It applies to the edges that the parent
	// has now. If none of them has an id above after, AddEnded adds no note.
	AddEnded(parent int64, uid int, state queue.State, after int64) error
	// Noted returns the number of notes about a parent, and the newest note.
	Noted(parent int64) (n int64, newest EndedParent, err error)
	// BackToAnew deletes the notes that are newer than the parent's newest Anew note, and extends that note
	// to all current edges of the parent. It returns false if the parent has no Anew note.
	BackToAnew(parent int64) (found bool, err error)
	// NextEnded returns the oldest note of the next user; users take turns. Its parent may have been removed.
	NextEnded() (e EndedParent, found bool, err error)
	// Edges returns up to n edges that a note applies to: edges with the status store.Open or, for an Anew
	// note, store.Failed.
	Edges(e EndedParent, n int) ([]Edge, error)
	// DropEnded deletes a note.
	DropEnded(id int64) error
	// Postpone moves all notes about a parent behind the other notes of its user, and keeps their order.
	Postpone(parent int64) error
	// SetEdge writes the status of an edge.
	SetEdge(e *Edge, status store.Met) error

	// Schedule reads a schedule. It returns queue.ErrNotFound if the schedule does not exist.
	Schedule(name string) (store.Schedule, error)
	// SetTimes writes a schedule's times, its boot id and its pause.
	SetTimes(s *store.Schedule) error
	// Unfinished lists the unfinished jobs of a schedule, newest first, at most as many as the parameter
	// most.
	Unfinished(schedule string, most int) ([]Job, error)
	// AddRun records the outcome of an occurrence of a schedule, and deletes the schedule's oldest records
	// above the limit.
	AddRun(schedule string, r store.ScheduleRun) error
	// Taken reports whether an id belongs to a job, including jobs that are not in the queue yet.
	Taken(id string) (bool, error)

	// Lease returns the lease of a job, or nil if the job is not leased.
	Lease(seq int64) *Lease
	// Hold stores a lease. It replaces an earlier Lease of the same job.
	Hold(l *Lease)
	// Drop deletes a lease.
	Drop(l *Lease)

	// Queues calls the function each for the queues that have room and an open lane, until it returns false.
	// The queue with the best head comes first, then the second best, then the others in any order.
	Queues(each func(*Queue) bool) error
	// Queue returns the state of a queue.
	Queue(name string) *Queue
	// QueueObstacle describes why a queue has no room.
	QueueObstacle(name string) store.Obstacle
	// Weighted reports whether any queue has a weight other than 1.
	Weighted() bool
	// Turn returns the turn of the queue that was served last.
	Turn() int64
	// Serve records that a queue was served in a turn, and sets the queue's next turn.
	Serve(q *Queue, turn, next int64)
	// Lane returns the lane for jobs with this job's queue, user and demands. If the lane does not exist, the
	// engine creates it, together with the gates that the job needs.
	Lane(j *Job) (Lane, error)
	// Best returns the open lane with the best head in a queue, and the head of the second best lane. The
	// queue must be one that Queues has passed to its callback.
	Best(q *Queue) (Lane, Position, error)
	// Shared reports whether several users may have open lanes in a queue.
	Shared(q *Queue) bool
	// Contenders calls the function each for the best open lane of every user in a queue. served is the
	// number of the user's last turn, or 0 if it is not known.
	Contenders(q *Queue, each func(l *Lane, served int64))
	// ServeUser records that a claim took a job of a user, and returns the turn.
	ServeUser(q *Queue, uid int) Turn
	// Unserve undoes a turn that ServeUser has recorded.
	Unserve(q *Queue, uid int, t Turn)
	// Shut visits the lists of closed lanes of a gate. It calls the function each for the best lane of every
	// list, until the function returns false. Lists are ordered by List.Compare, and those up to the list
	// after are left out.
	Shut(gate int64, after List, each func(Lane) (bool, error)) error
	// NextShut returns the best lane of one list of a gate.
	NextShut(gate int64, list List) (l Lane, found bool, err error)
	// FirstShut returns the best lane of all lists of a gate that belong to the given queue.
	FirstShut(gate int64, queue string) (l Lane, found bool, err error)
	// SetLane writes a lane's head, its priority, and the gate that closes the lane.
	SetLane(l Lane) error
	// Find reads the next jobs of a lane. It takes its parameters from l, and stores its results in l.
	Find(l *Look) error
	// Quota returns how many jobs of one user may be leased; 0 means unlimited.
	Quota() int
	// Node returns the node that claims.
	Node() *store.Node
	// Rule returns the rule of a gate and the units in use.
	Rule(gate int64) (Rule, error)
	// TakenUnits returns the units of a resource that leased jobs hold.
	TakenUnits(name string) map[int]bool
	// Resources returns the gates that are resources. They are few.
	Resources() []int64
	// RecordStart stores a start for a rate limit, and may delete starts that are older than the period.
	RecordStart(gate int64, at queue.Millis) error
	// Starts counts the starts at or after since. A start in the future counts as now.
	Starts(gate int64, since queue.Millis) (n int, err error)
	// StartBefore returns the time of the start that exactly n newer starts follow. It considers only starts
	// at or after since, and returns 0 if there are at most n of them.
	StartBefore(gate int64, since queue.Millis, n int) (at queue.Millis, err error)
	// SetOpens ensures that Promote checks a gate again at the given time.
	SetOpens(gate int64, at queue.Millis) error
	// SetRule sets the rule of a lock or rate from a job's demand. It returns the gate, or 0 if the rule is
	// unchanged. A job cannot change the rule of a shared key that other unfinished jobs name. The engine
	// keeps the rule while unfinished jobs name the key.
	SetRule(j *Job, d queue.Demand) (gate int64, err error)
	// CountNaming changes the counts of unfinished jobs that name a key, for each key that j names. The
	// parameter by is 1 or -1, and is added to each count.
	CountNaming(j *Job, by int) error
	// KeepRule sets the rule of a shared lock or rate, and jobs cannot change it. It returns the gate, or 0
	// if the rule is unchanged. If d.N is 0, jobs set the rule again.
	KeepRule(d queue.Demand) (gate int64, err error)
}

// Look holds the parameters and the results of Tx.Find, which reads the next jobs of a lane.
type Look struct {
	Lane Lane
	// Part is the part of each job to be read.
	Part Part
	// Upto ends the search: from this position on, jobs of another lane go first.
	Upto Position
	Want int // number of jobs wanted
	// Steps is the number of damaged jobs after which the search ends.
	Steps int
	// Bytes is the size of the jobs read so far, including those of earlier searches. The search ends with
	// the job by which the size reaches MaxClaimBytes.
	Bytes int
	Peek  bool // Find also sets NextPriority
	// Likely is the approximate number of jobs that the claim will take from this lane, and from each
	// upcoming lane. It is 0 unless users take turns.
	Likely int
	// Upcoming returns up to n other lanes that will probably have the next turns, in that order. It is nil
	// unless users take turns.
	Upcoming func(n int) []Lane
	// Start is the place that the found jobs get in the order of starts. If it is nil, each job gets the
	// place given by its own rank.
	Start *queue.Place

	Jobs    []Job    // jobs that may be leased
	Damaged []Job    // jobs that cannot be read or do not belong in the lane
	Next    Position // Find has read all jobs before this position
	// NextPriority is the priority of the job at Next, or Unknown.
	NextPriority int64
	End          bool // the lane has no further jobs at all
}

// MaxClaimBytes limits the size of the jobs that a claim reads, in bytes. The claim ends with the job by
// which the size reaches the limit.
const MaxClaimBytes = 1 << 20

// MaxReplacedHooks limits the bytes read and written for the hooks of jobs that one request replaces, if it
// replaces several. A single request may be equally large.
const MaxReplacedHooks = 8 << 20

// MaxHookBytes limits the bytes read and written for hooks in one step of an operation that ends many jobs.
// The step ends with the hook by which the bytes reach the limit.
const MaxHookBytes = 1 << 20

// Memory holds the state that the rules keep between transactions. An engine that loses it must call Recheck
// for every gate that closes a lane.
type Memory struct {
	// Looks limits the steps that Reopen takes in one transaction; 0 means StepsMost. The next Promote checks
	// the lanes that remain. Until then, jobs of other lanes may start although they have a worse rank.
	Looks int

	// recheck contains the gates that may have room for a lane that they have closed, with the progress of
	// the check.
	recheck map[int64]recheckRound
}

func (m *Memory) maxReopenSteps() int { return cmp.Or(m.Looks, StepsMost) }

// recheckRound is the progress of checking all lists of a gate once. Lists are ordered by List.Compare. A round
// starts behind one list, continues to the last list, then from the first list back to where it started.
type recheckRound struct {
	startedBehind List // the round started behind this list
	lastChecked   List // the last list that was checked
	wrapped       bool // the round has passed the last list and continues from the first
}

// Left returns the number of gates that Reopen still has to check because it ran out of steps.
func (m *Memory) Left() int { return len(m.recheck) }

// Keep remembers the gates that are to be checked. If the transaction is undone, the caller must call the
// returned function, so that these gates are checked again.
func (m *Memory) Keep() (back func()) {
	if len(m.recheck) == 0 {
		return func() {}
	}
	kept := maps.Clone(m.recheck)
	return func() { maps.Copy(m.recheck, kept) }
}

// Rules carries out operations in one transaction.
type Rules struct {
	tx  Tx
	mem *Memory
	// job is the job that is being inserted or settled. There is only one at a time, so its memory is reused.
	job Job
	// Readied reports whether a job became runnable, or a queue got room for one.
	Readied bool
	// Steps counts the steps of claims in this transaction: lanes that were checked, including lanes that
	// wait for the same resource and rank first, and jobs that cannot run.
	Steps      int
	rates      map[int64]rateRoom // the rate limits checked in this transaction
	otherSteps int                // steps taken outside claims, by Reopen and by jobs that join a lane
	claiming   bool               // a claim is running, so steps count in Steps instead of otherSteps

	contenders []contender // used by pickLane, which reuses the memory
	// turnSteps counts the steps that the current claim has taken to check contenders.
	turnSteps int
	// skippedPriorities contains lanes, by id, that the claim has skipped: they had room, but their priority
	// differed from that of the best lane. The value is the lane's priority. A change of the lane removes its
	// entry.
	skippedPriorities map[int64]int64
	// Bytes is the size of the jobs that claims have read.
	Bytes int
	// HookBytes is the number of bytes read and written for hooks. A job that has hooks may be large, even if
	// the operation on it is small.
	HookBytes int
}

// New returns Rules for a transaction.
func New(tx Tx, mem *Memory) Rules {
	if mem.recheck == nil {
		mem.recheck = map[int64]recheckRound{}
	}
	return Rules{tx: tx, mem: mem}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
