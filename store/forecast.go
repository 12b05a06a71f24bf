package store

import (
	"context"
	"math"

	"github.com/queuectl/queuectl/queue"
)

// Forecast predicts which jobs start next, and shows what keeps other jobs from starting. Its methods change
// nothing.
type Forecast interface {
	// WaitReasons returns, by seq, what keeps jobs from starting: locks or other limits without room, and paused queues.
	// It ignores whether a worker is free. For a job that is not due, only a paused queue is a reason. Some jobs have no
	// entry: a job that is leased, that is neither pending nor failed, that the next claim may take, or that does not
	// exist.
	WaitReasons(ctx context.Context, jobSeqs []int64) (map[int64][]WaitReason, error)
	// SimulateClaims returns up to jobCount jobs: those that claims would take next if that many workers were free now.
	SimulateClaims(ctx context.Context, jobCount int) (ClaimSimulation, error)
	// BestWaitingPriority returns the effective priority of one of a user's jobs. It considers the jobs that are due or
	// wait for a retry, and are not leased. Of these, it chooses the one with the best rank. Its cost does not depend on
	// the number of jobs. It reads one job in each queue where the user has waiting jobs, and one for each group of jobs
	// that need the same locks or other limits. It reads at most 1,000 queues and 1,000 such groups. If it reaches one of
	// these limits, it returns an upper bound. It also reads each leased job that is not known to have started.
	BestWaitingPriority(ctx context.Context, uid int) (WaitingPriority, error)
}

// WaitReason is the reason why a job cannot start: its queue, or a gate (a lock or other limit) without room.
type WaitReason struct {
	GateKind           queue.GateKind // kind of the gate; 0 means that the reason is the queue
	GateKeyOrQueueName string         // key of the gate, or name of the queue
	UsedUnits          int
	MaxUnits           int
	NeededUnits        int              // units that the job needs
	RateOpensAt        queue.UnixMillis // for a rate: when its oldest counted start no longer counts; 0 if unknown
	QueuePaused        bool             // the queue is paused
	// UnitsKeptForOtherJob reports that the resource has enough free units for the job, but keeps them for another job.
	// The other job ranks first in the same queue, and needs more units than are free.
	UnitsKeptForOtherJob bool
}

// WaitingPriority is the effective priority of a user's best-ranked waiting job. It includes the priority that the job
// has gained by waiting.
type WaitingPriority struct {
	Priority int64 // the priority, at most MaxWaitingPriority
	JobFound bool  // false if no waiting job of the user was found
	// IsUpperBound reports that the search stopped at its limit. Then no waiting job of the user has a higher priority
	// than Priority, but perhaps no job has Priority.
	IsUpperBound bool
}

// MaxWaitingPriority is below the largest int64, so that adding the priority gained by waiting cannot overflow.
const MaxWaitingPriority = math.MaxInt64 / 2

// ClaimSimulation contains the jobs that claims would take next, in order.
type ClaimSimulation struct {
	StartingJobs []queue.Job
	IsIncomplete bool // true if the search for further jobs stopped at its limit
}
