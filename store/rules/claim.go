package rules

import (
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Queue is the state of a queue.
type Queue struct {
	Name string
	// Weight is the queue's share of all starts, relative to the weights of the other queues.
	Weight int
	// Room is how many more jobs of the queue may be leased. It is 0 while the queue is paused.
	Room int
	Head Position // the best position among the heads of the queue's open lanes
	// NextTurn is the number of the queue's next turn while queues have different weights. The queue with the
	// lowest number is served first.
	NextTurn int64

	Waiting         int64 // number of waiting jobs
	MaxWaiting      int64 // limit of Waiting; 0 means unlimited
	HasOwnRetention bool  // the queue has its own retention instead of the general one
}

// claimer chooses jobs and leases them. It also opens and closes lanes.
type claimer struct {
	*laneKeeper
	jobs  Jobs
	turns UserTurns

	contenders []contender // used by pickLane, which reuses the memory
	// turnSteps counts the lanes that the current claim has checked to decide which user has the next turn, and
	// the jobs that it has leased.
	turnSteps int
	// ClaimedBytes is the size of the jobs that claims in this transaction have read, in bytes.
	ClaimedBytes int
}

// Claim leases the best jobs for which all gates have room, in the order of their ranks. It stops at the
// wanted number of jobs, or when their size reaches MaxClaimBytes. If it leases none and hasMore is true, the
// caller continues the claim in another transaction.
func (c *claimer) Claim(wantedJobs int) (jobs []queue.Job, hasMore bool, err error) {
	bytes := 0
	c.turnSteps = 0
	clear(c.skippedPriorities)
	for len(jobs) < wantedJobs && bytes < MaxClaimBytes {
		c.recordErr(c.OpenLanes())
		q, scan := c.chooseQueue()
		if c.err != nil {
			return nil, false, c.err
		}
		if q == nil {
			hasMore = c.rechecks.DirtyGateCount() > 0 // a gate that is still to be checked may open a lane
			break
		}
		if hasMore = c.claimSteps >= MaxSteps; hasMore {
			break
		}
		c.claimSteps++
		n := c.pickLane(q, &scan, wantedJobs-len(jobs))
		if n == 0 {
			continue
		}
		l := &scan.Lane
		scan.ExpectedJobs = min(n, scan.ExpectedJobs)
		scan.Scope, scan.MaxDamagedJobs, scan.BytesRead = ReadFull, MaxSteps-c.claimSteps, bytes
		scan.WantedJobs = min(n, scan.WantedJobs, wantedJobs-len(jobs), q.Room)
		c.limitScan(&scan)
		c.recordErr(c.lanes.ScanLane(&scan))
		bytes = scan.BytesRead
		for i := range scan.DamagedJobs {
			c.claimSteps++
			c.recordErr(c.dropper.HoldDamaged(&scan.DamagedJobs[i]))
		}
		closedBy := Open
		if scan.Exhausted {
			closedBy = Empty
		}
		l.Priority = scan.NextPriority
		c.setHead(l, scan.NextPosition, closedBy)
		countBefore := len(jobs)
		jobs = c.leaseFound(jobs, &scan, q)
		if len(jobs)-countBefore == n { // the claim has taken all the room, so a gate is full now
			c.markResourcesDirty()
		}
	}
	c.ClaimedBytes += bytes
	return jobs, (hasMore || bytes >= MaxClaimBytes) && len(jobs) == 0, c.err
}

// leaseFound leases the jobs that ScanLane has found, except expired ones, which it cancels.
func (c *claimer) leaseFound(jobs []queue.Job, scan *LaneScan, q *Queue) []queue.Job {
	jobs = slices.Grow(jobs, len(scan.Jobs))
	for i := range scan.Jobs {
		j := &scan.Jobs[i]
		if c.hasExpired(j) {
			c.claimSteps++
			c.recordErr(c.dropper.Expire(j))
			continue
		}
		c.leaseJob(j, &scan.Lane, c.turns.RecordUserTurn(q, j.UID))
		c.advanceTurn(q)
		jobs = append(jobs, j.Job)
		last := &jobs[len(jobs)-1]
		last.StartPosition = queue.StartPosition(j.Position())
		if scan.StartPlace != nil {
			last.StartPosition = *scan.StartPlace
		}
	}
	return jobs
}

// chooseQueue returns the queue that has the next turn, and a scan of its best open lane. From the position
// scan.StopAt on, a job of another lane or queue goes first. While all queues have the same weight, the queue
// whose first job has the best rank is chosen. While weights differ, stride scheduling chooses the queue for
// each job.
func (c *claimer) chooseQueue() (q *Queue, scan LaneScan) {
	weighted := c.queues.WeightsDiffer()
	nextHead := EndPosition
	c.recordErr(c.queues.Queues(func(other *Queue) bool {
		switch {
		case q == nil:
			q = other
		case !weighted:
			nextHead = other.Head
			return false
		case c.queueTurn(other) < c.queueTurn(q), c.queueTurn(other) == c.queueTurn(q) && other.Name < q.Name:
			q = other
		}
		return true
	}))
	if c.err != nil || q == nil {
		return nil, scan
	}
	var err error
	scan.Lane, scan.StopAt, err = c.lanes.BestLane(q)
	c.recordErr(err)
	scan.WantedJobs = math.MaxInt
	if weighted {
		scan.WantedJobs = 1
	} else if scan.StopAt.After(nextHead) {
		scan.StopAt = nextHead
	}
	return q, scan
}

// queueTurn returns the number of the queue's next turn. The number is at least that of the turn that was
// served last, so a queue does not save up turns while it has no job to start.
func (c *claimer) queueTurn(q *Queue) int64 { return max(q.NextTurn, c.queues.LastServedTurn()) }

// stride is the number that each started job adds to the turn of a queue of weight 1. For a queue of weight w,
// each job adds stride/w. For weights from 1 to 1000, the rounding error of the division is negligible.
const stride = 1 << 30

// advanceTurn raises the number of the queue's next turn after one of its jobs was leased (Waldspurger and
// Weihl, Stride Scheduling, 1995).
func (c *claimer) advanceTurn(q *Queue) {
	if c.queues.WeightsDiffer() {
		turn := c.queueTurn(q)
		c.queues.RecordQueueTurn(q, turn, turn+stride/int64(max(1, q.Weight)))
	}
}

// limitScan lowers scan.StopAt to the best head among the lanes that the gates of scan.Lane have closed. From
// that position on, the job of the closed lane ranks first, and its gates may have room again.
func (c *claimer) limitScan(scan *LaneScan) {
	l := &scan.Lane
	stopBefore := func(other Lane) {
		if scan.StopAt.After(other.Head) && !l.Head.After(other.Head) {
			scan.StopAt = other.Head
		}
	}
	limitAtGate := func(gate int64, sameQueueOnly bool) {
		if sameQueueOnly {
			c.claimSteps++
			other, found, err := c.lanes.BestClosedInQueue(gate, l.Queue)
			c.recordErr(err)
			if found {
				stopBefore(other)
			}
			return
		}
		c.recordErr(c.lanes.EachClosedList(gate, ClosedListKey{}, func(other Lane) (bool, error) {
			c.claimSteps++
			if other.Queue == l.Queue || c.queues.Queue(other.Queue).Room > 0 {
				stopBefore(other)
			}
			return true, nil
		}))
	}
	weighted := c.queues.WeightsDiffer()
	limitAtGate(UserGate(l.UID), weighted)
	for _, n := range l.Needs {
		limitAtGate(n.Gate, weighted || n.Kind == queue.GateResource)
	}
}

// leaseJob leases a job. It writes the job's row only if the job takes units of resources, because the row
// stores the numbers of these units.
// See docs/decisions/0003.
func (c *claimer) leaseJob(j *Job, l *Lane, turn UserTurn) {
	j.Fence += c.leases.FenceStep()
	j.Node = c.settings.Node().ID
	if _, reranking := c.settings.Order(); reranking {
		j.Rank = rankOf(c.settings, &j.Job)
	}
	j.HeldUnits = ""
	for _, d := range j.Demands {
		if d.Kind == queue.GateResource {
			j.HeldUnits = queue.FormatUnits(j.HeldUnits, d.Key, queue.PickFreeUnits(d.Amount, c.gates.TakenUnits(d.Key)))
		}
	}
	lease := &Lease{Job: *j, Needs: l.Needs, Turn: turn}
	lease.Job.Execution = queue.Execution{}
	c.leases.PutLease(lease)
	if len(l.Needs) > 0 { // the job has taken room at gates that other lanes need too
		clear(c.skippedPriorities)
	}
	if j.HeldUnits != "" {
		c.recordErr(c.jobs.Put(j))
	}
}
