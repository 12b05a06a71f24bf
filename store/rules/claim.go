package rules

import (
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Queue is the state of a queue that the rules need to choose the next job.
type Queue struct {
	Name string
	// Weight is the queue's share of all starts, relative to the weights of the other queues.
	Weight int
	// LeasableJobs is how many more jobs of the queue may be leased. It is 0 while the queue is paused.
	LeasableJobs int
	BestHead     Position // the best Head of the queue's open lanes; see lanes.go
	// NextTurn is the number of the queue's next turn. While queues have different weights, the queue with the lowest
	// number is next.
	NextTurn int64

	WaitingJobs     int64 // number of waiting jobs
	MaxWaitingJobs  int64 // limit of WaitingJobs; 0 means unlimited
	HasOwnRetention bool  // the queue has its own settings of how long ended jobs are kept
}

// claimer chooses jobs and leases them. It also opens and closes lanes (lists of ready jobs); see lanes.go.
type claimer struct {
	*laneKeeper
	jobs  Jobs
	turns UserTurns

	contenders []contender // memory that pickNextLane reuses
	// turnSteps counts the lanes that the current claim has checked in order to decide which user is next,
	// and the jobs that it has leased.
	turnSteps int
	// ClaimBytesRead is the size in bytes of the jobs that this transaction has read in order to claim them.
	ClaimBytesRead int
}

// Claim leases up to maxJobs jobs that may start, in the order of their ranks. It stops when their size
// reaches MaxBytesReadPerClaim. If it leases none and hasMore is true, the caller must continue the claim in another
// transaction.
func (c *claimer) Claim(maxJobs int) (jobs []queue.Job, hasMore bool, err error) {
	bytes := 0
	c.turnSteps = 0
	clear(c.skippedPriorityByLaneID)
	for len(jobs) < maxJobs && bytes < MaxBytesReadPerClaim {
		c.recordErr(c.OpenLanes())
		q, scan := c.chooseNextQueue()
		if c.err != nil {
			return nil, false, c.err
		}
		if q == nil {
			hasMore = c.recheckState.DirtyGateCount() > 0 // a check of the remaining gates may open a lane
			break
		}
		if hasMore = c.claimSteps >= MaxLaneStepsPerTx; hasMore {
			break
		}
		c.claimSteps++
		n := c.pickNextLane(q, &scan, maxJobs-len(jobs))
		if n == 0 {
			continue
		}
		l := &scan.Lane
		scan.ExpectedJobsPerLane = min(n, scan.ExpectedJobsPerLane)
		scan.JobReadScope, scan.MaxDamagedJobs, scan.ClaimBytesRead = ReadScopeFull, MaxLaneStepsPerTx-c.claimSteps, bytes
		scan.MaxJobs = min(n, scan.MaxJobs, maxJobs-len(jobs), q.LeasableJobs)
		c.stopScanAtClosedLanes(&scan)
		c.recordErr(c.lanes.ScanLane(&scan))
		bytes = scan.ClaimBytesRead
		for i := range scan.DamagedJobs {
			c.claimSteps++
			c.recordErr(c.unclaimableHandler.HoldDamagedJob(&scan.DamagedJobs[i]))
		}
		closedBy := Open
		if scan.ReachedLaneEnd {
			closedBy = Empty
		}
		l.Priority = scan.NextPriority
		c.storeLaneHead(l, scan.NextPosition, closedBy)
		countBefore := len(jobs)
		jobs = c.leaseScannedJobs(jobs, &scan, q)
		if len(jobs)-countBefore == n { // all units of a gate are now in use
			c.markResourcesDirty()
		}
	}
	c.ClaimBytesRead += bytes
	return jobs, (hasMore || bytes >= MaxBytesReadPerClaim) && len(jobs) == 0, c.err
}

// leaseScannedJobs leases the jobs that ScanLane has found. Jobs that have expired are cancelled instead.
func (c *claimer) leaseScannedJobs(jobs []queue.Job, scan *LaneScan, q *Queue) []queue.Job {
	jobs = slices.Grow(jobs, len(scan.Jobs))
	for i := range scan.Jobs {
		j := &scan.Jobs[i]
		if c.jobHasExpired(j) {
			c.claimSteps++
			c.recordErr(c.unclaimableHandler.CancelExpiredJob(j))
			continue
		}
		c.leaseJob(j, &scan.Lane, c.turns.RecordUserTurn(q, j.UID))
		c.advanceQueueTurn(q)
		jobs = append(jobs, j.Job)
		last := &jobs[len(jobs)-1]
		last.StartPosition = queue.StartPosition(j.Position())
		if scan.NewStartPosition != nil {
			last.StartPosition = *scan.NewStartPosition
		}
	}
	return jobs
}

// chooseNextQueue returns the queue that is next, and a scan of its best open lane (the list of jobs that goes first).
// The scan ends at scan.StopPosition, the position from which a job of another lane or queue goes first. While all
// queues have the same weight, the queue with the best-ranked job is next. Otherwise, stride scheduling chooses the
// queue for each job.
func (c *claimer) chooseNextQueue() (q *Queue, scan LaneScan) {
	weighted := c.queues.QueueWeightsDiffer()
	nextHead := MaxPosition
	c.recordErr(c.queues.EachReadyQueue(func(other *Queue) bool {
		switch {
		case q == nil:
			q = other
		case !weighted:
			nextHead = other.BestHead
			return false
		case c.nextTurnOfQueue(other) < c.nextTurnOfQueue(q), c.nextTurnOfQueue(other) == c.nextTurnOfQueue(q) &&
			other.Name < q.Name:
			q = other
		}
		return true
	}))
	if c.err != nil || q == nil {
		return nil, scan
	}
	var err error
	scan.Lane, scan.StopPosition, err = c.lanes.BestLane(q)
	c.recordErr(err)
	scan.MaxJobs = math.MaxInt
	if weighted {
		scan.MaxJobs = 1
	} else if scan.StopPosition.After(nextHead) {
		scan.StopPosition = nextHead
	}
	return q, scan
}

// nextTurnOfQueue returns the number of the queue's next turn. It is at least the number of the turn that was
// served last. So a queue that had no job to start does not get extra turns later.
func (c *claimer) nextTurnOfQueue(q *Queue) int64 {
	return max(q.NextTurn, c.queues.LastServedQueueTurn())
}

// turnStride is added to the next turn of a queue of weight 1 for each started job. With weight w, a job adds
// turnStride/w. For weights from 1 to 1000, the rounding error of this division is negligible.
const turnStride = 1 << 30

// advanceQueueTurn raises the number of the queue's next turn, because one of its jobs was leased. See Waldspurger
// and Weihl, Stride Scheduling, 1995.
func (c *claimer) advanceQueueTurn(q *Queue) {
	if c.queues.QueueWeightsDiffer() {
		turn := c.nextTurnOfQueue(q)
		c.queues.RecordQueueTurn(q, turn, turn+turnStride/int64(max(1, q.Weight)))
	}
}

// stopScanAtClosedLanes lowers scan.StopPosition, so that the scan of a lane (a list of jobs) ends where a job of a
// closed lane ranks first. It considers the lanes that a gate of the scanned lane has closed, and stops at the best of
// their heads. The gate may have room for the job there by the time the claim reaches it.
func (c *claimer) stopScanAtClosedLanes(scan *LaneScan) {
	l := &scan.Lane
	stopBefore := func(other Lane) {
		if scan.StopPosition.After(other.Head) && !l.Head.After(other.Head) {
			scan.StopPosition = other.Head
		}
	}
	limitAtGate := func(gate int64, sameQueueOnly bool) {
		if sameQueueOnly {
			c.claimSteps++
			other, found, err := c.lanes.BestClosedLaneInQueue(gate, l.Queue)
			c.recordErr(err)
			if found {
				stopBefore(other)
			}
			return
		}
		c.recordErr(c.lanes.EachClosedLaneList(gate, ClosedLaneListKey{}, func(other Lane) (bool, error) {
			c.claimSteps++
			if other.Queue == l.Queue || c.queues.Queue(other.Queue).LeasableJobs > 0 {
				stopBefore(other)
			}
			return true, nil
		}))
	}
	weighted := c.queues.QueueWeightsDiffer()
	limitAtGate(UserQuotaGateID(l.UID), weighted)
	for _, n := range l.GateNeeds {
		limitAtGate(n.GateID, weighted || n.Kind == queue.GateResource)
	}
}

// leaseJob leases a job. It writes the row of the job only if the job takes units of resources, because their
// numbers are stored in the row. Other leases are stored in a list; see docs/decisions/0003.
func (c *claimer) leaseJob(j *Job, l *Lane, turn UserTurn) {
	j.Fence += c.leases.RandomFenceIncrement()
	j.LastLeasingNodeID = c.settings.ThisNode().ID
	if _, reranking := c.settings.RankOrder(); reranking {
		j.Rank = computeRank(c.settings, &j.Job)
	}
	j.HeldUnits = ""
	for _, d := range j.Demands {
		if d.Kind == queue.GateResource {
			j.HeldUnits = queue.AppendResourceUnits(j.HeldUnits, d.GateKey,
				queue.PickFreeUnits(d.Amount, c.gates.LeasedUnitNumbers(d.GateKey)))
		}
	}
	lease := &Lease{Job: *j, HeldGateUnits: l.GateNeeds, UserTurn: turn}
	lease.Job.ExecutionSettings = queue.ExecutionSettings{}
	c.leases.PutLease(lease)
	if len(l.GateNeeds) > 0 { // skipped lanes may need the units that the job has taken
		clear(c.skippedPriorityByLaneID)
	}
	if j.HeldUnits != "" {
		c.recordErr(c.jobs.PutJob(j))
	}
}
