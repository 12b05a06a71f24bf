package rules

import (
	"cmp"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Slot says where the store finds a job: among the jobs that are ready, wait for their due time, or run.
type Slot int64

// The values of Slot. A claimed job keeps its Slot until its start is reported.
const (
	SlotNotQueued       Slot = 0 // the job is held, blocked or ended
	SlotReady           Slot = 1 // the job is in its lane, ordered by rank
	SlotWaitingUntilDue Slot = 2 // the job waits until DueAt
	SlotRunning         Slot = 3 // the job is leased and was started
)

// WriteScope says which parts of a job the method PutJob writes.
type WriteScope uint8

// The values of WriteScope.
const (
	WriteScopeRowOnly  WriteScope = iota // PutJob writes only the row
	WriteScopeSettings                   // PutJob writes the row and Execution, without Env, Stdin and Labels
	WriteScopeFull                       // PutJob writes the row and all of Execution
)

// ReadScope says how much of a job is read.
type ReadScope uint8

// The values of ReadScope. Each includes the ones before it.
const (
	ReadScopeSummary  ReadScope = iota // read only the short columns of the row
	ReadScopeSettings                  // also read Execution, without Env and Stdin
	ReadScopeFull                      // also read Env and Stdin
)

// Job is a stored job with the values that the rules need to change it.
type Job struct {
	queue.Job
	Slot Slot
	// LastLeasingNodeID is the number of the node that leased the job last, or 0 if only one node uses the database.
	LastLeasingNodeID  int64
	LaneID             int64   // number of the lane that contains the job, if Slot is SlotReady
	NewError           *string // new value of Job.Error; nil keeps the stored value
	StoredBytes        int64   // bytes stored for the job's row, input, dependencies and attempts, without outputs
	EncodedLastAttempt string  // last attempt, as encoded in the job's row; "" if the attempt has its own row
	WriteScope         WriteScope
	// IsDamaged reports that a part of the job that was to be read is damaged. Error contains the reason.
	IsDamaged bool
}

// Position returns the job's position in its lane, the list of ready jobs. If the job is in no lane, it returns the
// position that it would have.
func (j *Job) Position() Position { return Position{j.Rank, j.Seq} }

// Position is a position in the order in which jobs are claimed: the lowest rank comes first, then the lowest
// seq.
type Position struct{ Rank, Seq int64 }

// Compare returns a negative number if p comes before q, a positive one if p comes after q, and 0 if they are
// equal.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Rank, q.Rank), cmp.Compare(p.Seq, q.Seq))
}

// After reports whether p comes after q.
func (p Position) After(q Position) bool { return p.Rank > q.Rank || p.Rank == q.Rank && p.Seq > q.Seq }

// AttemptMeasurement describes the start or the end of an attempt, for the statistics.
type AttemptMeasurement struct {
	Queue string
	// EndState is the state of the job after the attempt, or 0 for a start.
	EndState queue.State
	// WaitOrRunTime is how long the job has waited, for a start, or the attempt's run time, for an end.
	WaitOrRunTime time.Duration
	// CommandFingerprint identifies the command of a completed job, to record its run time. 0 means not to record
	// it.
	CommandFingerprint uint64
}

// Lease describes a leased job. The field Job contains the job's row, with changes that the engine has not
// written yet, but no Execution. The rules never modify a Lease; they replace it with a new one.
type Lease struct {
	Job            Job
	AttemptStarted bool       // the attempt is known to have started
	HeldGateUnits  []GateNeed // units of locks and other gates that the job holds, without its user's quota
	// UserTurn records how the claim has changed the turns of users, so that the change can be undone. It is zero
	// after the attempt has started or the service was restarted.
	UserTurn UserTurn
}

// UserCounts holds the counts of one user.
type UserCounts struct {
	WaitingJobs  int64 // number of waiting jobs
	WaitingHooks int64 // number of waiting hooks of this user's jobs, even if they run as another user
	StagedJobs   int64 // jobs in batches that are not in the queue yet
	LeasedJobs   int   // number of leased jobs
	UsedBytes    int64 // bytes used by the user's jobs and schedules; see store.Quotas
	OutputBytes  int64 // part of UsedBytes that outputs take
}

// JobCounts holds the counts of all jobs.
type JobCounts struct {
	WaitingJobs   int64 // number of waiting jobs, including those of committed batches
	EnqueuedTotal int64 // number of jobs that were ever enqueued
}
