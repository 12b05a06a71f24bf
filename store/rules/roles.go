package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// This file lists what the rules need from an engine, the code that runs transactions and stores the data.
// There is one interface for each kind of data; in this package they are called roles. Each part of the rules
// gets only those that it uses.
//
// For all of them: the caller owns the values that methods return. The engine may delay writes until the end of the
// transaction, if reads return the written values. An error that is a *queue.Error rejects one operation. Any other
// error ends the transaction, and the engine rolls it back. Until then, the rules may still call methods, but these
// methods execute no statement; see txFailure.

// Tx is one transaction of an engine. It implements all interfaces of this file. Only Rules has a Tx:
// Rules.Init passes each part of the rules the interfaces that the part uses. See docs/decisions/0012 and
// 0100.
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

// Clock returns the time of the transaction, and makes the service wake up at a later time.
type Clock interface {
	// Now returns the time of the transaction. It is the same for the whole transaction.
	Now() queue.UnixMillis
	// WakeServiceAt makes the service call store.Timers.ApplyDueChanges at the given time or earlier. 0 has no effect.
	WakeServiceAt(at queue.UnixMillis)
}

// Settings returns the settings that concern all jobs, and the node on which the rules run.
type Settings interface {
	// RankOrder returns the settings from which ranks are computed. isReranking reports whether some jobs still have ranks
	// from earlier settings.
	RankOrder() (o queue.RankPolicy, isReranking bool)
	// MaxLeasedPerUser returns how many jobs of one user may be leased; 0 means unlimited.
	MaxLeasedPerUser() int
	// Node returns the node on which the rules run, which claims jobs.
	ThisNode() *store.Node
	// Hooks returns the hook settings that were last passed to store.Settings.SetHooks.
	Hooks() *store.HookSettings
}

// Jobs stores the jobs.
type Jobs interface {
	// Job reads a job. It returns queue.ErrNotFound if the job does not exist.
	Job(seq int64, scope ReadScope) (Job, error)
	// FindJobSeqByID returns the seq of the job with the given id, or 0 if none exists. It also finds jobs in the
	// batches of this user. It returns store.StagedParentError for a job of a batch that is not committed yet, unless the
	// transaction adds jobs to this batch. It does not find hooks that the settings have created and that run as
	// another user.
	FindJobSeqByID(uid int, id string) (jobSeq int64, err error)
	// IsJobInCommittedFrame reports whether a job that is not in the queue is in a frame (the jobs of one request) of a
	// committed batch. Such a job comes into the queue later.
	IsJobInCommittedFrame(jobSeq int64) (bool, error)
	// UniqueKeyHolder returns the job of a user that has the given unique key: the job that has not ended or, if all
	// have ended, the one that ended last.
	UniqueKeyHolder(uid int, uniqueKey string) (holder Job, found bool, err error)
	// IsJobIDTaken reports whether an id belongs to a job, even to one in a batch that is not in the queue yet.
	IsJobIDTaken(id string) (bool, error)
	// FormerOwnerUID returns the negative uid that a job of this uid gets when it is not leased, because
	// another account has the uid now. It returns 0 if the job keeps its uid.
	FormerOwnerUID(uid int, jobSeq int64) int
	// RegisterDraft assigns a seq and an id to a draft. It also returns the draft number to pass to InsertJob. It does not
	// check the limits on waiting jobs.
	RegisterDraft(draft *queue.Job) (draftNumber int, seq int64, id string, err error)
	// InsertJob stores a new job. draftNumber is the index of the draft in the request, counted from 0, or the
	// number from RegisterDraft.
	InsertJob(j *Job, draftNumber int) error
	// StoredJobBytes returns how many bytes the row, the input and the dependencies of a job will take.
	StoredJobBytes(j *queue.Job) (int64, error)
	// PutJob writes those parts of a stored job that j.WriteScope names.
	PutJob(j *Job) error
	// PutProgress writes the progress of a job that is already stored.
	PutProgress(j *Job) error
	// PutHookUID writes the HookUID of a hook that is already stored.
	PutHookUID(j *Job) error
	// RemoveJob deletes a job and its history. The engine may delete the data later, but no reader sees the job
	// any more.
	RemoveJob(seq int64) error
	// NotifyJobWatches notifies the callers that watch a job, after the commit.
	NotifyJobWatches(jobSeq int64)
}

// History records what happens to jobs, and keeps the outputs of their attempts.
type History interface {
	// AddEvent adds an event about a job. state is the state of the job after the event. If j has no seq, the
	// event concerns no job.
	AddEvent(kind queue.EventKind, j *queue.Job, state queue.State, detail []byte) error
	// AddAttempt records an ended attempt of a job, with the number j.StartedAttempts.
	AddAttempt(j *Job, settlement *store.Settlement) error
	// DeleteOldestAttempt deletes the oldest attempt record of a leased job and its output, if the job has a
	// record.
	DeleteOldestAttempt(jobSeq int64) error
	// AddDeletableOutput records that an output file on a node must be deleted.
	AddDeletableOutput(outputRef, nodeName string) error
	// TrimUserData removes outputs and inputs of a user, in the same order as store.Quotas.TrimUserData, until the user's
	// bytes are at most maxUserBytes. It removes nothing if it would have to remove more outputs and inputs than
	// store.QuotaRemovalLimit allows.
	TrimUserData(uid int, maxUserBytes int64) error
	// AddMeasurement adds the start or the end of an attempt to the statistics of its queue, in this
	// transaction.
	AddMeasurement(m AttemptMeasurement)
}

// Counters counts jobs and the bytes that they use. The results include the changes of this transaction.
type Counters interface {
	// Counts returns the counts of all jobs.
	Counts() JobCounts
	// UserCounts returns the counts of one user.
	UserCounts(uid int) UserCounts
	// CountEnqueuedJob counts an enqueued job.
	CountEnqueuedJob()
	// CountStateTransition counts the change of a job from one state to another, for the job's user and queue.
	// State 0 means that the job is not stored.
	CountStateTransition(j *Job, oldState, newState queue.State)
	// AdjustRetainedCounts counts an ended job to which its queue's own retention applies, and the bytes of
	// its outputs. sign is 1 to add them to the counts, and -1 to subtract them.
	AdjustRetainedCounts(j *Job, sign int)
	// AdjustUserBytes changes the counted bytes of a user's jobs and schedules: outputBytesDelta is the change of the
	// bytes of outputs, and storedBytesDelta that of all other bytes. Both may be negative.
	AdjustUserBytes(uid int, storedBytesDelta, outputBytesDelta int64)
}

// Leases stores the leases of jobs.
type Leases interface {
	// Lease returns the lease of a job, or nil if the job is not leased.
	Lease(jobSeq int64) *Lease
	// PutLease stores a lease. It replaces an earlier Lease of the same job.
	PutLease(l *Lease)
	// DeleteLease deletes a lease.
	DeleteLease(l *Lease)
	// RandomFenceIncrement returns by how much a claim raises a job's fence, the number of the job's lease. The step is
	// at least 1, and users cannot predict it.
	RandomFenceIncrement() int64
}

// Queues returns the state of queues, and which queue a claim serves next.
type Queues interface {
	// EachReadyQueue calls visit for the queues that have room and an open lane (a list of jobs that may start), until
	// visit returns false. The queue with the best first job comes first, then the second best, then the others in any
	// order.
	EachReadyQueue(visit func(*Queue) bool) error
	// Queue returns the state of a queue.
	Queue(queueName string) *Queue
	// QueueWaitReason returns why no job of a queue may start: the queue is paused or has reached its limit.
	QueueWaitReason(queueName string) store.WaitReason
	// QueueWeightsDiffer reports whether any queue has a weight other than 1.
	QueueWeightsDiffer() bool
	// LastServedQueueTurn returns the number of the turn in which a job was last claimed from any queue.
	LastServedQueueTurn() int64
	// RecordQueueTurn records that a job was claimed from a queue in the turn with this number, and sets the number of the
	// queue's next turn.
	RecordQueueTurn(q *Queue, usedTurn, nextTurn int64)
}

// Lanes stores lanes, and finds the best of them. A lane is the list of ready jobs with the same queue, user
// and demands; see the top of lanes.go.
type Lanes interface {
	// FindOrAddLane returns the lane for jobs with the queue, user and demands of j. If necessary, the engine creates
	// the lane and the gates that its jobs need.
	FindOrAddLane(j *Job) (Lane, error)
	// SetLane stores a lane's head, its priority, and the gate that closes the lane.
	SetLane(l Lane) error
	// BestLane returns the open lane of a queue with the best head (the position of its first job), and the head of the
	// second-best lane. EachReadyQueue must have passed the queue to its callback.
	BestLane(q *Queue) (Lane, Position, error)
	// ScanLane reads the next jobs of a lane. scan contains its parameters, and receives its results.
	ScanLane(scan *LaneScan) error
	// EachClosedLaneList visits the lists of lanes that a gate has closed, beginning after the list with the key
	// afterList, in the order of ClosedLaneListKey.Compare. It calls visit with the best lane of each list, until
	// visit returns false.
	EachClosedLaneList(gateID int64, afterList ClosedLaneListKey, visit func(Lane) (bool, error)) error
	// BestClosedLaneInList returns the best lane of one list of a gate's closed lanes.
	BestClosedLaneInList(gateID int64, key ClosedLaneListKey) (l Lane, found bool, err error)
	// BestClosedLaneInQueue returns the best lane of a queue, of any user, among a gate's closed lanes.
	BestClosedLaneInQueue(gateID int64, queueName string) (l Lane, found bool, err error)
}

// UserTurns remembers which users were served last. The top of user_turns.go explains turns.
type UserTurns interface {
	// HasSeveralUsers reports whether more than one user may have jobs that can start (open lanes) in a queue.
	HasSeveralUsers(q *Queue) bool
	// EachContendingLane calls visit for the best open lane of every user in a queue. lastTurn is the number of
	// the user's last turn, or 0 if it is unknown.
	EachContendingLane(q *Queue, visit func(l *Lane, lastTurn int64))
	// RecordUserTurn records that a claim took a job of a user, and returns what UndoUserTurn needs.
	RecordUserTurn(q *Queue, uid int) UserTurn
	// UndoUserTurn undoes a turn that RecordUserTurn has recorded, because the job was returned before it started.
	UndoUserTurn(q *Queue, uid int, t UserTurn)
}

// Gates stores the limits of gates, the starts that count for rates, and how many jobs name each gate. A gate
// is a limited thing that a job needs in order to start, such as a lock.
type Gates interface {
	// GateRule returns the rule of a gate and the units in use.
	GateRule(gateID int64) (GateRule, error)
	// LeasedUnitNumbers returns the numbers of those units of a resource that leased jobs hold.
	LeasedUnitNumbers(resourceName string) map[int]bool
	// ResourceGateIDs returns the gates that are resources. A database has few of them.
	ResourceGateIDs() []int64
	// RecordRateStart stores a start for a rate, and may delete starts that are older than its period.
	RecordRateStart(gateID int64, startedAt queue.UnixMillis) error
	// CountRateStarts counts the starts at or after the time since. A start in the future counts as a start now.
	CountRateStarts(gateID int64, since queue.UnixMillis) (n int, err error)
	// NthNewestRateStart considers the starts at or after the time since. It returns the time of the start that
	// has exactly that number of newer starts, or 0 if no start has.
	NthNewestRateStart(gateID int64, since queue.UnixMillis, newerStartCount int) (startedAt queue.UnixMillis, err error)
	// ScheduleGateRecheck makes ApplyDueChanges check at the given time whether lanes that the gate has closed can open.
	ScheduleGateRecheck(gateID int64, recheckAt queue.UnixMillis) error
	// SetGateRuleFromJob sets the rule of a lock or rate to what a job demands, unless the key is shared and
	// other unfinished jobs name it. It returns the gate, or 0 if the rule has not changed. The engine keeps
	// the rule while unfinished jobs name the key.
	SetGateRuleFromJob(j *Job, d queue.Demand) (gateID int64, err error)
	// SetFixedGateRule sets the rule of a shared lock or rate, which jobs then cannot change. It returns the
	// gate, or 0 if the rule has not changed. If d.Amount is 0, the rule stays as it is, but jobs can change
	// it.
	SetFixedGateRule(d queue.Demand) (gateID int64, err error)
	// AdjustGateJobCounts adds delta, which is 1 or -1, to the number of unfinished jobs that name a key, for
	// each lock and rate that j names.
	AdjustGateJobCounts(j *Job, delta int) error
}

// Dependencies stores the dependencies between jobs, called edges: a job, the child, waits for another job,
// the parent. It also stores notes about parents whose edges must be decided later; see ParentStateChange.
type Dependencies interface {
	// HasEdges reports whether any edge (dependency) is stored, decided or not.
	HasEdges() bool
	// AddEdge stores an edge (a dependency) with its status.
	AddEdge(childSeq int64, d queue.Dependency, onFailure queue.OnDependencyFailure, status store.DependencyStatus) error
	// SetEdgeStatus writes the status of an edge (a dependency).
	SetEdgeStatus(e *DependencyEdge, status store.DependencyStatus) error
	// DeleteEdges deletes all edges (dependencies) of a child.
	DeleteEdges(childSeq int64) error
	// HasEdgeWithStatus reports whether any edge (dependency) of a child has the given status.
	HasEdgeWithStatus(childSeq int64, status store.DependencyStatus) (bool, error)
	// UnresolvedParentSeqs returns the seqs of the jobs for which a job waits, up to the limit.
	UnresolvedParentSeqs(childSeq int64, limit int) ([]int64, error)
	// EdgesToResolve returns up to maxEdges edges to which a note applies: those with the status store.Unresolved or, if
	// the parent runs again, store.Broken.
	EdgesToResolve(change ParentStateChange, maxEdges int) ([]DependencyEdge, error)
	// AddParentStateChange adds a note that a parent has ended in parentState, was removed (parentState 0), or runs again
	// (ParentRerunState). The note applies to the edges that the parent has now. If none of them has an id above
	// afterEdgeID, no note is added.
	AddParentStateChange(parentSeq int64, parentUID int, parentState queue.State, afterEdgeID int64) error
	// CountParentStateChanges returns the number of notes about a parent, and the newest note.
	CountParentStateChanges(parentSeq int64) (changeCount int64, newestChange ParentStateChange, err error)
	// ExtendParentRerunChange extends a parent's newest Rerun note (with ParentRerunState) to all current edges of the
	// parent, and deletes the notes after it. found is false if the parent has no Rerun note.
	ExtendParentRerunChange(parentSeq int64) (found bool, err error)
	// NextParentStateChange returns the oldest note about a parent of the next user; users take turns. The parent
	// may have been removed.
	NextParentStateChange() (change ParentStateChange, found bool, err error)
	// PostponeParentStateChanges moves the notes about a parent, in the same order, behind the other notes of its
	// user.
	PostponeParentStateChanges(parentSeq int64) error
	// DeleteParentStateChange deletes a note about a parent.
	DeleteParentStateChange(changeID int64) error
}

// Schedules stores the schedules and the outcomes of their occurrences.
type Schedules interface {
	// Schedule reads a schedule. It returns queue.ErrNotFound if the schedule does not exist.
	Schedule(name string) (store.Schedule, error)
	// SetScheduleState writes a schedule's times, its boot id and its pause.
	SetScheduleState(s *store.Schedule) error
	// UnfinishedJobs lists up to limit unfinished jobs of a user's schedule, newest first. Jobs of another user are
	// not listed, because a schedule of that user may have had the same name.
	UnfinishedJobs(scheduleName string, uid, limit int) ([]Job, error)
	// AddOccurrenceRecord records the outcome of an occurrence of a schedule. It deletes the schedule's
	// oldest records if there are more than the limit.
	AddOccurrenceRecord(scheduleName string, r store.OccurrenceRecord) error
}

// Savepoints undoes a part of a transaction.
type Savepoints interface {
	// WithSavepoint runs an operation. If the operation returns an error, WithSavepoint undoes the changes of the
	// operation and returns the error. The operation must not call WithSavepoint.
	WithSavepoint(operation func() error) error
}
