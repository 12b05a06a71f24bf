package rules

import (
	"cmp"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Slot says where claims find a job.
type Slot int64

// The values of Slot. A job that is leased but not known to have started keeps the Slot that it had
// before the claim.
const (
	NotQueued Slot = 0 // the job is held, blocked or ended
	Ready     Slot = 1 // the job is in its lane, ordered by rank
	Timed     Slot = 2 // the job waits until DueAt
	Running   Slot = 3 // the job is leased and was started
)

// WriteScope says which parts of a job Put writes.
type WriteScope uint8

// The values of WriteScope.
const (
	WriteRow   WriteScope = iota // Put writes only the row
	WriteTerms                   // Put writes the row and Execution, without Env, Stdin and Labels
	WriteFull                    // Put writes the row and all of Execution
)

// ReadScope says how much of a job is read.
type ReadScope uint8

// The values of ReadScope. Each includes the ones before it.
const (
	ReadSummary ReadScope = iota // read only the short columns of the row
	ReadTerms                    // also read Execution, without Env and Stdin
	ReadFull                     // also read Env and Stdin
)

// Job is a stored job together with the values that the rules need to change it.
type Job struct {
	queue.Job
	Slot Slot
	// Node is the number of the node that leased the job last. It is 0 if only one process uses the database.
	Node        int64
	Lane        int64   // number of the lane that contains the job, if Slot is Ready
	NewError    *string // new text of Job.Error to be written; nil keeps the stored text
	StoredBytes int64   // bytes stored for the job's row, input, dependencies and attempts, without outputs
	LastAttempt string  // encoded last attempt, or "" if it has its own row; used by the engine only
	WriteScope  WriteScope
	// Damaged reports that a requested part cannot be read. Error contains the reason.
	Damaged bool
}

// Position returns the job's position in its lane. If the job is in no lane, it returns the position that the
// job would get in its lane.
func (j *Job) Position() Position { return Position{j.Rank, j.Seq} }

// Position is a position in the order of claims: the lowest rank comes first, then the lowest seq.
type Position struct{ Rank, Seq int64 }

// Compare returns a number below 0 if p comes before q, above 0 if p comes after q, and 0 if both are equal.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Rank, q.Rank), cmp.Compare(p.Seq, q.Seq))
}

// After reports whether p comes after q.
func (p Position) After(q Position) bool { return p.Rank > q.Rank || p.Rank == q.Rank && p.Seq > q.Seq }

// Measurement describes the start or the end of an attempt, for the statistics.
type Measurement struct {
	Queue string
	// EndState is the state of the job after the attempt. It is 0 if Measurement describes a start.
	EndState queue.State
	// Duration is the job's wait if Measurement describes a start, and the attempt's run time if it describes an
	// end.
	Duration time.Duration
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
	// Turn is the turn in which the job's user was served by the claim. It is zero after the attempt has
	// started or the service was restarted.
	Turn UserTurn
}

// UserCounts holds the counts of one user.
type UserCounts struct {
	Waiting     int64 // number of waiting jobs
	Hooks       int64 // number of waiting hooks of this user's jobs, whichever account runs them
	StagedJobs  int64 // jobs of staged batches, which are not in the queue yet
	Leased      int   // number of leased jobs
	Bytes       int64 // bytes used by the user's jobs and schedules; see store.Quotas
	OutputBytes int64 // the bytes of outputs, which are part of Bytes
}

// Counts holds the counts of all jobs.
type Counts struct {
	Waiting       int64 // waiting jobs, including those of committed batches
	EnqueuedTotal int64 // number of jobs that were ever enqueued
}
