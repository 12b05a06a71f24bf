package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// This file lists what the rules need of an engine, with one interface for each kind of data. These interfaces
// are called roles. A part of the rules takes only the roles that it uses.
//
// For all roles: the caller owns the values that methods return. The engine may delay writes until the end of
// the transaction, provided that reads return the written values. An error that is a *queue.Error rejects one
// operation. Any other error ends the transaction, and the engine rolls it back. Before the rollback, the rules
// may still call methods, but these methods execute no statement; see failure.

// Tx is one transaction of an engine, which plays all roles. Only Rules has a Tx: Rules.Init gives each part of
// the rules the roles of that part.
// See docs/decisions/0012 and 0100.
type Tx interface {
	Clock
	Settings
	Jobs
	History
	Counters
	Leases
	Queues
	Lanes
	UserTurns
	Gates
	Dependencies
	Schedules
	Savepoints
}

// Clock returns the time of the transaction, and wakes the service later.
type Clock interface {
	// Now returns the time of the transaction. It is the same for the whole transaction.
	Now() queue.Millis
	// WakeAt ensures that store.Timers.Promote is called at the given time or earlier. 0 has no effect.
	WakeAt(at queue.Millis)
}

// Settings are the settings that concern all jobs, and the node that claims.
type Settings interface {
	// Order returns the settings from which ranks are computed. reranking reports whether some jobs still have
	// ranks that earlier settings have produced.
	Order() (o queue.Order, reranking bool)
	// MaxLeasedPerUser returns how many jobs of one user may be leased; 0 means unlimited.
	MaxLeasedPerUser() int
	// Node returns the node that claims.
	Node() *store.Node
	// Hooks returns the hook settings that were last passed to store.Settings.SetHooks.
	Hooks() *store.Hooks
}

// Jobs stores the jobs.
type Jobs interface {
	// Job reads a job. It returns queue.ErrNotFound if the job does not exist.
	Job(seq int64, scope ReadScope) (Job, error)
	// FindByID returns the seq of the job with the given id, or 0 if none exists. It also finds jobs in this
	// user's staged batches. It does not find hooks that come from the settings and run as another user.
	FindByID(uid int, id string) (seq int64, err error)
	// UniqueKeyHolder returns the job of a user that has the given unique key: the job that has not ended or, if all
	// have ended, the one that ended last.
	UniqueKeyHolder(uid int, key string) (j Job, found bool, err error)
	// IDTaken reports whether an id belongs to a job, including jobs that are not in the queue yet.
	IDTaken(id string) (bool, error)
	// FormerOwnerUID returns the uid below 0 that a job of this uid gets once it is not leased. It returns 0 if the
	// job keeps its uid, because the uid still belongs to the same account.
	FormerOwnerUID(uid int, seq int64) int
	// RegisterDraft assigns a seq and an id to a draft, without checking the limits on waiting jobs. It also
	// returns the draft number to be passed to Insert.
	RegisterDraft(draft *queue.Job) (draftNumber int, seq int64, id string, err error)
	// Insert stores a new job. draftNumber is counted from 0: it is the index of the draft in the request, or the
	// number from RegisterDraft.
	Insert(j *Job, draftNumber int) error
	// StoredSize returns how many bytes a job's row, input and dependencies will take when the job is
	// completely written.
	StoredSize(j *queue.Job) (int64, error)
	// Put writes a stored job: the parts that j.WriteScope names.
	Put(j *Job) error
	// PutProgress writes the progress of a job that is already stored.
	PutProgress(j *Job) error
	// Remove deletes a job and its history. The engine may delete the data later, but no reader sees the job
	// any more.
	Remove(seq int64) error
	// NotifyWatches notifies the watches of a job once the transaction is committed.
	NotifyWatches(seq int64)
}

// History records what happens to jobs, and keeps the outputs of their attempts.
type History interface {
	// AddEvent adds an event about a job, which is in the given state after the event. The event concerns no
	// job if j has no seq.
	AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error
	// AddAttempt records an attempt of a job. The attempt's number is j.StartedAttempts.
	AddAttempt(j *Job, settlement *store.Settlement) error
	// DeleteOldestAttempt deletes the oldest attempt record of a leased job, with its output. It does nothing if
	// the job has none.
	DeleteOldestAttempt(seq int64) error
	// AddDeletableOutput records that an output file on a node is no longer needed.
	AddDeletableOutput(ref, node string) error
	// TrimUserData removes outputs and inputs of a user until the user's bytes are at most maxBytes. It removes them
	// in the same order as store.Quotas.TrimUserData. It removes nothing if more of them would have to be removed
	// than store.RemovalLimit allows.
	TrimUserData(uid int, maxBytes int64) error
	// AddMeasurement adds the start or the end of an attempt to the statistics of its queue, in this transaction.
	AddMeasurement(m Measurement)
}

// Counters counts jobs and the bytes that they use. Counts and UserCounts include the transaction's changes.
type Counters interface {
	// Counts returns the counts of all jobs.
	Counts() Counts
	// UserCounts returns the counts of one user.
	UserCounts(uid int) UserCounts
	// CountEnqueued counts an enqueued job.
	CountEnqueued()
	// CountTransition counts a job's transition between two states, for the job's user and queue. State 0 means that
	// the job is not stored.
	CountTransition(j *Job, oldState, newState queue.State)
	// AdjustRetainedCount counts an ended job to which its queue's own retention applies, and the bytes of its
	// outputs. sign is 1 to add both to the counts, or -1 to subtract them.
	AdjustRetainedCount(j *Job, sign int)
	// AddUserBytes changes the counted bytes of a user's jobs and schedules. It adds outputBytes to the
	// bytes of outputs, and storedBytes to all other bytes. Both may be negative.
	AddUserBytes(uid int, storedBytes, outputBytes int64)
}

// Leases stores the leases of jobs.
type Leases interface {
	// Lease returns the lease of a job, or nil if the job is not leased.
	Lease(seq int64) *Lease
	// PutLease stores a lease. It replaces an earlier Lease of the same job.
	PutLease(l *Lease)
	// DeleteLease deletes a lease.
	DeleteLease(l *Lease)
	// FenceStep returns by how much a claim raises the fence of a job, which is the number of its lease. The
	// step is at least 1, and users cannot predict it.
	FenceStep() int64
}

// Queues knows the queues, and which of them a claim serves next.
type Queues interface {
	// Queues passes the queues that have room and an open lane to the callback, until it returns false. The
	// queue with the best head comes first, then the second best, then the others in any order.
	Queues(visit func(*Queue) bool) error
	// Queue returns the state of a queue.
	Queue(name string) *Queue
	// QueueWaitReason describes why a queue has no room.
	QueueWaitReason(name string) store.WaitReason
	// WeightsDiffer reports whether any queue has a weight other than 1.
	WeightsDiffer() bool
	// LastServedTurn returns the turn of the queue that was served last.
	LastServedTurn() int64
	// RecordQueueTurn records that a queue was served in a turn, and sets the queue's next turn.
	RecordQueueTurn(q *Queue, turn, nextTurn int64)
}

// Lanes stores the lanes, and finds the best of them. The comment at the top of lanes.go explains lanes.
type Lanes interface {
	// Lane returns the lane for jobs with this job's queue, user and demands. If the lane does not exist, the
	// engine creates it, together with the gates that the job needs.
	Lane(j *Job) (Lane, error)
	// SetLane writes a lane's head, its priority, and the gate that closes the lane.
	SetLane(l Lane) error
	// BestLane returns the open lane with the best head in a queue, and the head of the second best lane. The
	// queue must be one that Queues has passed to its callback.
	BestLane(q *Queue) (Lane, Position, error)
	// ScanLane reads the next jobs of a lane. It takes its parameters from l, and stores its results in l.
	ScanLane(l *LaneScan) error
	// EachClosedList visits the lists of lanes that a gate has closed. It passes the best lane of every list to
	// the callback, until the callback returns false. The lists come in the order of ClosedListKey.Compare,
	// beginning after the list with the given key.
	EachClosedList(gate int64, afterList ClosedListKey, visit func(Lane) (bool, error)) error
	// BestClosedInList returns the best lane of one list of lanes that a gate has closed.
	BestClosedInList(gate int64, key ClosedListKey) (l Lane, found bool, err error)
	// BestClosedInQueue returns the best lane of a queue, of any user, among the lanes that a gate has closed.
	BestClosedInQueue(gate int64, queue string) (l Lane, found bool, err error)
}

// UserTurns remembers which users were served last. The comment at the top of user_turns.go explains turns.
type UserTurns interface {
	// HasSeveralUsers reports whether several users may have open lanes in a queue.
	HasSeveralUsers(q *Queue) bool
	// EachContender passes the best open lane of every user in a queue to the callback, with the number of the
	// user's last turn, or 0 if that is unknown.
	EachContender(q *Queue, visit func(l *Lane, lastTurn int64))
	// RecordUserTurn records that a claim took a job of a user, and returns the turn.
	RecordUserTurn(q *Queue, uid int) UserTurn
	// UndoUserTurn undoes a turn that RecordUserTurn has recorded.
	UndoUserTurn(q *Queue, uid int, t UserTurn)
}

// Gates stores the limits of gates, the starts that count for rate limits, and how many jobs name a gate.
type Gates interface {
	// GateRule returns the rule of a gate and the units in use.
	GateRule(gate int64) (GateRule, error)
	// TakenUnits returns the numbers of the units of a resource that leased jobs hold.
	TakenUnits(name string) map[int]bool
	// ResourceGates returns the gates that are resources. They are few.
	ResourceGates() []int64
	// RecordStart stores a start for a rate limit, and may delete starts that are older than the period.
	RecordStart(gate int64, startedAt queue.Millis) error
	// CountStarts counts the starts at or after the time since. A start in the future counts as one now.
	CountStarts(gate int64, since queue.Millis) (n int, err error)
	// NthNewestStart returns the time of the start that has exactly n newer starts. It considers only starts at
	// or after the time since. If there are n or fewer of them, it returns 0.
	NthNewestStart(gate int64, since queue.Millis, n int) (at queue.Millis, err error)
	// ScheduleRecheck ensures that Promote checks a gate again at the given time.
	ScheduleRecheck(gate int64, at queue.Millis) error
	// SetRuleFromJob sets the rule of a lock or rate from a job's demand. It returns the gate, or 0 if the rule is
	// unchanged. A job cannot change the rule of a shared key that other unfinished jobs name. The engine
	// keeps the rule while unfinished jobs name the key.
	SetRuleFromJob(j *Job, d queue.Demand) (gate int64, err error)
	// SetFixedRule sets the rule of a shared lock or rate, and jobs cannot change it. It returns the gate, or 0
	// if the rule is unchanged. If d.Amount is 0, the rule stays as it is, but jobs can change it again.
	SetFixedRule(d queue.Demand) (gate int64, err error)
	// AdjustNamingCounts adds delta, which is 1 or -1, to the number of unfinished jobs that name a key. It does so
	// for each key of a lock or rate that j names.
	AdjustNamingCounts(j *Job, delta int) error
}

// Dependencies stores edges, and notes about parents whose edges must be decided later; see ParentChange. An
// edge is a dependency of a job (the child) on another job (the parent).
type Dependencies interface {
	// HasEdges reports whether any edge is stored, decided or not.
	HasEdges() bool
	// AddEdge stores an edge with its status.
	AddEdge(child int64, d queue.Dependency, onFailure queue.OnDependencyFailure, status store.DependencyStatus) error
	// SetEdgeStatus writes the status of an edge.
	SetEdgeStatus(e *Edge, status store.DependencyStatus) error
	// DeleteEdges deletes all edges of a child.
	DeleteEdges(child int64) error
	// HasEdgeWithStatus reports whether any edge of a child has the given status.
	HasEdgeWithStatus(child int64, status store.DependencyStatus) (bool, error)
	// Parents returns the seqs of up to n jobs that a job waits for.
	Parents(child int64, n int) ([]int64, error)
	// EdgesToDecide returns up to n edges that a note applies to: edges with the status store.Unresolved or, for a Rerun
	// note, store.Broken.
	EdgesToDecide(e ParentChange, n int) ([]Edge, error)
	// AddParentChange adds a note about a parent whose edges must be decided later. The note says that the
	// parent has ended, was removed (state 0), or runs again (state Rerun). It applies to the edges that the
	// parent has now. If none of these edges has an id above afterEdge, AddParentChange adds no note.
	AddParentChange(parent int64, uid int, state queue.State, afterEdge int64) error
	// CountParentChanges returns the number of notes about a parent, and the newest note.
	CountParentChanges(parent int64) (n int64, newest ParentChange, err error)
	// ExtendRerunChange deletes the notes that are newer than the parent's newest Rerun note, and extends that note
	// to all current edges of the parent. It returns false if the parent has no Rerun note.
	ExtendRerunChange(parent int64) (found bool, err error)
	// NextParentChange returns the oldest note of the next user; users take turns. The parent in that note may
	// have been removed.
	NextParentChange() (e ParentChange, found bool, err error)
	// PostponeParentChanges moves all notes about a parent behind the other notes of its user, and keeps their order.
	PostponeParentChanges(parent int64) error
	// DeleteParentChange deletes a note.
	DeleteParentChange(id int64) error
}

// Schedules stores the schedules and the outcomes of their occurrences.
type Schedules interface {
	// Schedule reads a schedule. It returns queue.ErrNotFound if the schedule does not exist.
	Schedule(name string) (store.Schedule, error)
	// SetScheduleState writes a schedule's times, its boot id and its pause.
	SetScheduleState(s *store.Schedule) error
	// UnfinishedJobs lists up to limit unfinished jobs of a schedule, newest first.
	UnfinishedJobs(schedule string, limit int) ([]Job, error)
	// AddOccurrenceRecord records the outcome of an occurrence of a schedule, and deletes the schedule's oldest records
	// above the limit.
	AddOccurrenceRecord(schedule string, r store.OccurrenceRecord) error
}

// Savepoints undoes a part of a transaction.
type Savepoints interface {
	// WithSavepoint runs a part of the transaction. If the part returns an error, WithSavepoint undoes the part's changes
	// and returns the error. A part must not call WithSavepoint.
	WithSavepoint(part func() error) error
}
