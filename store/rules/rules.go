// Package rules is what an engine does with jobs, written once for every engine: how they come,
// are claimed, end and change, in which order, and what holds them back. An engine stores; it
// offers a Tx, and never decides.
package rules

import (
	"cmp"
	"maps"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Standing is where a job stands for the claim.
type Standing int64

// The standings. A job that is leased and not known to have started keeps its own.
const (
	Nowhere Standing = 0 // held, blocked or ended
	Ready   Standing = 1 // in its lane, in order of rank
	Timed   Standing = 2 // waits for DueAt
	Running Standing = 3 // leased and started
)

// Rewrite is what else of a job has changed than its row.
type Rewrite uint8

// The parts of a job that are written if they have changed.
const (
	RowAlone       Rewrite = iota
	WithTerms              // and what it runs by, but for env and stdin
	WithEverything         // and env, stdin and labels
)

// Part is how much of a job is read.
type Part uint8

// The parts of a job, each with those before it.
const (
	Summary Part = iota // what is short
	Terms               // what it runs by, but for env and stdin
	Whole               // env and stdin
)

// Job is a job as it is moved.
type Job struct {
	queue.Job
	Standing Standing
	Node     int64   // the node that had it leased last, as the engine numbers them; 0 of one that has one alone
	Lane     int64   // that it stands in, if it is Ready
	NewError *string // its new error; nil leaves the one that it has
	Stored   int64   // bytes stored for its row, input, dependencies and attempts, without outputs
	Ran      string  // the engine's, which keeps the last attempt there if it can
	Rewrite  Rewrite
	// Damaged says that a part that was asked for cannot be read; Error tells why.
	Damaged bool
}

// Position is where the job stands in its lane, or would.
func (j *Job) Position() Position { return Position{j.Rank, j.Seq} }

// Position is a place in the order of claims.
type Position struct{ Rank, Seq int64 }

// After reports whether p comes after q.
func (p Position) After(q Position) bool { return p.Rank > q.Rank || p.Rank == q.Rank && p.Seq > q.Seq }

// Measured is the start or the end of an attempt.
type Measured struct {
	Queue string
	End   queue.State   // that the job came to, 0 at a start
	Took  time.Duration // at a start the wait before it, at an end the run
	// Fingerprint is, of one that completed, that of its job if it is known; else 0.
	Fingerprint uint64
}

// Lease is a leased job as its row has it or, of what has not been written yet, will, but for
// what it runs by. It is replaced, not changed.
type Lease struct {
	Job     Job
	Running bool   // known to have started
	Needs   []Need // what it holds, but for its user's quota
	Turn    Turn   // of its user, zero once it has started or the service was started again
}

// User is what is known of one user.
type User struct {
	Waiting int64 // jobs
	Hooks   int64 // that wait and are for jobs of this user, whoever runs them
	Staged  int64 // jobs of batches that are not in the queue yet
	Leased  int
	Bytes   int64 // bytes that the user's jobs and schedules hold; see store.Reader
	Outputs int64 // the part of Bytes that outputs take
}

// Counts is what is known of all jobs.
type Counts struct {
	Waiting  int64 // jobs, with those of committed batches
	Enqueued int64 // ever
}

// Tx is one transaction of an engine. What it hands out is the caller's own. A write may be
// kept back until the end of the transaction, as long as what is read has it. An error that is
// a *queue.Error refuses one operation; any other one ends the transaction, nothing of which
// holds then.
// See docs/decisions/0012.
type Tx interface {
	// Now is one instant for all of the transaction.
	Now() queue.Millis
	// Order is how ranks are made; changing says that ranks of an earlier order are left.
	Order() (o queue.Order, changing bool)
	// FenceStep is how far a claim raises a fence: at least 1, and not to be foreseen.
	FenceStep() int64
	// Counts and User are as of now, in this transaction.
	Counts() Counts
	User(uid int) User
	// Disowned is the uid below 0 that a job belongs to once nobody holds it, for its own
	// belongs to another account now; 0 if it does not.
	Disowned(uid int, seq int64) int
	// Hooks are those that the store was told of.
	Hooks() *store.Hooks
	// NewJob takes a draft, which needs no room, and says which number for Insert it has, and its seq and id.
	NewJob(draft *queue.Job) (at int, seq int64, id string, err error)
	// WakeAt has Promote called at an instant, or before.
	WakeAt(at queue.Millis)
	// Attempt carries out a part of the transaction. If that fails all is as it was before. A part has none
	// of its own.
	Attempt(part func() error) error

	// Job reads a job. One that is not there is queue.ErrNotFound.
	Job(seq int64, part Part) (Job, error)
	// Insert stores a new job: the one of that number, from 0, that the engine was given.
	Insert(j *Job, draft int) error
	// Put writes a job that is stored.
	Put(j *Job) error
	// PutProgress writes the progress of a job that is stored.
	PutProgress(j *Job) error
	// Remove deletes a job, with its history, now or later; no reader sees it from then on.
	Remove(seq int64) error
	// AddAttempt records an attempt of a job, which has been numbered: Job.Runs.
	AddAttempt(j *Job, e *store.Settlement) error
	// ForgetAttempt deletes the oldest attempt record of a leased job, with its output. It does nothing if the job
	// has none.
	ForgetAttempt(seq int64) error
	// AddGarbage names an output file of a node that nobody needs.
	AddGarbage(ref, node string) error
	// AddEvent tells what happened to a job, which is in this state after it, or to something else
	// if there is none.
	AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error
	// Arrived counts a job that was enqueued.
	Arrived()
	// Moved counts a move of a job, which is of its user and its queue, from one state to another; 0
	// is outside.
	Moved(j *Job, from, to queue.State)
	// CountKept counts a job that its queue's own retention bounds from now on (by is 1), or no longer
	// does (-1), with the bytes of its outputs.
	CountKept(j *Job, by int)
	// Measure counts the start or the end of an attempt in the figures of its queue, in this transaction.
	Measure(m Measured)
	// Touched has whoever watches a job told.
	Touched(seq int64)
	// StoredSize returns how many bytes a job's row, input and dependencies will take when the job is completely
	// written.
	StoredSize(j *queue.Job) (int64, error)
	// TrimUser removes outputs and inputs of a user until the user holds at most keep bytes, in the order of
	// store.Upkeep.TrimUser. It removes nothing if that takes more of them than store.RemovalLimit allows.
	TrimUser(uid int, keep int64) error
	// Holds adjusts the bytes that a user's jobs and schedules hold. It adds stored to the bytes that count without
	// outputs, and outputs to the bytes of outputs.
	Holds(uid int, stored, outputs int64)

	// HasEdges says that some job waits for another one, or has done so. AddEdge notes that a job does, or
	// what had come of that before, and
	// Waits tells whether one of a job's edges has come to this.
	HasEdges() bool
	AddEdge(child int64, d queue.Dependency, do queue.Otherwise, met store.Met) error
	Waits(child int64, met store.Met) (bool, error)
	// Parents are up to n jobs that one waits for, and DropEdges forgets all that it does or has.
	Parents(child int64, n int) ([]int64, error)
	DropEdges(child int64) error
	// Named is the number of the job of an id, of those that are stored and of those that a batch of
	// this user stages; 0 if there is none. Others' hooks of the settings are none.
	Named(uid int, id string) (seq int64, err error)
	// Holder is the job that has a user's unique key and has not ended or, of those that have, the one
	// that ended last.
	Holder(uid int, key string) (j Job, found bool, err error)
	// AddEnded notes that the edges which a user's job has now as a parent, if there are any after one, are
	// to be decided. Noted is how many such notes of it there are, and the newest. BackToAnew has the newest by
	// which it runs anew be the last one, for all edges that it has now; it is false if there is none.
	// NextEnded is the first such job that was noted, which may have been removed since, of the user
	// whose turn it is: users take turns. Edges are up to n of its edges, and DropEnded forgets what is
	// done. Postpone has what is noted of a job come after that of all others of its user. If the state is Anew its edges that had Failed are meant. SetEdge notes what becomes of one.
	AddEnded(parent int64, uid int, state queue.State, after int64) error
	Noted(parent int64) (n int64, newest EndedParent, err error)
	BackToAnew(parent int64) (was bool, err error)
	NextEnded() (e EndedParent, found bool, err error)
	Edges(e EndedParent, n int) ([]Edge, error)
	DropEnded(id int64) error
	Postpone(parent int64) error
	SetEdge(e *Edge, met store.Met) error

	// Schedule reads a schedule. One that is not there is queue.ErrNotFound. SetTimes writes its
	// instants, its boot and whether it is paused.
	Schedule(name string) (store.Schedule, error)
	SetTimes(s *store.Schedule) error
	// Unfinished lists up to most jobs of a schedule that have not ended, the newest first.
	Unfinished(schedule string, most int) ([]Job, error)
	// AddRun records what became of an instant of a schedule, whose oldest are forgotten.
	AddRun(schedule string, r store.ScheduleRun) error
	// Taken reports whether a job has an id, or will.
	Taken(id string) (bool, error)

	// Lease is the lease of a job, nil if it has none.
	Lease(seq int64) *Lease
	// Hold notes a lease, in the place of what is known of it, and Drop that it is over.
	Hold(l *Lease)
	Drop(l *Lease)

	// Queues calls each with the queues that have room and an open lane, until it says false:
	// first that with the best head, then that with the second best, then the others in any
	// order.
	Queues(each func(*Queue) bool) error
	// Queue is what is known of a queue, and QueueObstacle why it has no room.
	Queue(name string) *Queue
	QueueObstacle(name string) store.Obstacle
	// Weighted says that queues differ in weight. Turn is whose turn it was last, and Serve
	// notes that of a queue, and its next one.
	Weighted() bool
	Turn() int64
	Serve(q *Queue, turn, next int64)
	// Lane is the lane of jobs like this one. It is made if there is none, and with it the
	// gates that the job names.
	Lane(j *Job) (Lane, error)
	// Best is the open lane with the best head, of a queue that Queues has told of, and the
	// head of the next one.
	Best(q *Queue) (Lane, Position, error)
	// Shared reports whether several users may have open lanes in a queue. Contenders calls each with the best open
	// lane of each of them, and with when the user was served last, 0 if that is not known.
	Shared(q *Queue) bool
	Contenders(q *Queue, each func(l *Lane, served int64))
	// ServeUser notes that a job of a user was claimed, and Unserve takes that back.
	ServeUser(q *Queue, uid int) Turn
	Unserve(q *Queue, uid int, t Turn)
	// Shut calls each with the best lane of each list of a gate, in order, beginning after one list, until it returns
	// false. NextShut returns the best lane of one list, and FirstShut that of all lists of a queue.
	Shut(gate int64, after List, each func(Lane) (bool, error)) error
	NextShut(gate int64, of List) (l Lane, found bool, err error)
	FirstShut(gate int64, of string) (l Lane, found bool, err error)
	// SetLane writes the head of a lane, its priority, and what the lane is shut on.
	SetLane(l Lane) error
	// Find looks for the next jobs of a lane.
	Find(l *Look) error
	// Quota is how many jobs of one user may be leased, 0 for any number, and Node the node that claims.
	Quota() int
	Node() *store.Node
	// Rule is what is known of a gate.
	Rule(gate int64) (Rule, error)
	// TakenUnits are the units of a resource that leases hold.
	TakenUnits(name string) map[int]bool
	// Resources are the gates that are resources: few.
	Resources() []int64
	// RecordStart notes a start at a gate that is a rate, which may forget those before its period. Starts are how many
	// there have been since an instant, that included, and StartBefore is that of them before which n others are newer, 0 if there is
	// none; one in the future counts as now.
	RecordStart(gate int64, at queue.Millis) error
	Starts(gate int64, since queue.Millis) (n int, err error)
	StartBefore(gate int64, since queue.Millis, n int) (at queue.Millis, err error)
	// SetOpens has Promote look at a gate again at an instant.
	SetOpens(gate int64, at queue.Millis) error
	// SetRule sets the rule of a lock or a rate of a job, and tells which gate it is, 0 if
	// nothing has changed: no job changes that of everybody's key while others name it. It is kept
	// as long as some job names it: CountNaming counts one more, or less, that does and has not ended.
	SetRule(j *Job, d queue.Demand) (gate int64, err error)
	CountNaming(j *Job, by int) error
	// KeepRule sets the rule of everybody's lock or rate, whatever jobs say, and tells which gate it is, 0
	// if nothing has changed; n is 0 for jobs to say it again.
	KeepRule(d queue.Demand) (gate int64, err error)
}

// Look is one look for the next jobs of a lane.
type Look struct {
	Lane  Lane
	Part  Part     // of each job that is read
	Upto  Position // from here on another lane's jobs go first
	Want  int      // jobs
	Steps int      // damaged jobs that may be met
	Bytes int      // that jobs take, with those found before; the one that reaches MaxClaimBytes is the last
	Peek  bool     // find the priority of the job at Next, too
	// Likely is the approximate number of jobs that the claim will take from this lane, and from each upcoming lane.
	// It is 0 unless users take turns.
	Likely int
	// Upcoming returns up to n other lanes that will probably have the next turns, in that order. It is nil unless
	// users take turns.
	Upcoming func(n int) []Lane
	// Start is the place that the jobs take in the order of starts, nil for their own.
	Start *queue.Place

	Jobs    []Job    // that may be leased
	Damaged []Job    // that cannot be read, or do not belong there
	Next    Position // before it the lane has no others
	// NextPriority is that of the job at Next, or Unknown.
	NextPriority int64
	End          bool // nor after it
}

// MaxClaimBytes is how much of jobs, in bytes, a claim reads: with the job that reaches
// it, it has enough.
const MaxClaimBytes = 1 << 20

// MaxReplacedHooks is how much may be done for hooks of the jobs that one request replaces, if they are more
// than one: as much as the request itself may have.
const MaxReplacedHooks = 8 << 20

// MaxHookBytes is how much is done for hooks in one step of what ends many jobs: with the hook that reaches it,
// the step is over.
const MaxHookBytes = 1 << 20

// Memory is what an engine keeps of the rules from one transaction to the next. If it is lost, all
// gates that a lane is shut on are to be looked at: see Recheck.
type Memory struct {
	// Looks is how many steps Reopen takes in one transaction, 0 is StepsMost. What is left then
	// may be passed by what ranks behind it, until Promote has gone on.
	Looks int

	recheck map[int64]round // gates where a lane may be shut that fits
}

func (m *Memory) looks() int { return cmp.Or(m.Looks, StepsMost) }

// round is a look at the lists of a gate, by the names of their queues: from the one after which it
// began to the end, and then from the first one up to that.
type round struct {
	from  List // it began after this one
	after List // the last list that it has come to
	again bool // it has come to the end, and begun with the first one
}

// Left is how many gates Reopen has yet to look at, since it had taken as many steps as it may.
func (m *Memory) Left() int { return len(m.recheck) }

// Keep remembers which gates are to be looked at, for a transaction that is undone: back has them
// looked at again.
func (m *Memory) Keep() (back func()) {
	if len(m.recheck) == 0 {
		return func() {}
	}
	kept := maps.Clone(m.recheck)
	return func() { maps.Copy(m.recheck, kept) }
}

// Rules carries out what is asked for in one transaction.
type Rules struct {
	tx  Tx
	mem *Memory
	job Job // that is being inserted or settled: one at a time
	// Readied says that a job became runnable, or that there is room for one.
	Readied bool
	// Steps of claims were taken: lanes that were looked at, those that wait for a resource before
	// them, and jobs that cannot run.
	Steps    int
	rates    map[int64]rateRoom // as they were looked at
	looks    int                // of all else: Reopen, and jobs that come to their lane
	claiming bool               // what room looks at is a step of a claim

	contenders []contender // of pick, which uses the memory again
	// turnSteps counts the steps that this claim has taken to check contenders. roomy maps the IDs of lanes that had room,
	// but a priority other than the one in turn, to that priority; a change of the lane removes it.
	turnSteps int
	roomy     map[int64]int64
	// Bytes of jobs were read by claims.
	Bytes int
	// HookBytes were read and written for hooks: a job that has some may be large, whatever is done with it.
	HookBytes int
}

// New begins to work in a transaction.
func New(tx Tx, mem *Memory) Rules {
	if mem.recheck == nil {
		mem.recheck = map[int64]round{}
	}
	return Rules{tx: tx, mem: mem}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
