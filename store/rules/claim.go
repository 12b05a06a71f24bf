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
	// Room is how many more jobs of the queue may be leased. It is 0 while the queue is paused.
	Room int
	Head Position // the best Head of the queue's open lanes; see lanes.go
	// NextTurn decides, while queues have different weights, which queue is next: the one with the lowest
	// number.
	NextTurn int64

	Waiting         int64 // number of waiting jobs
	MaxWaiting      int64 // limit of Waiting; 0 means unlimited
	HasOwnRetention bool  // the queue has its own settings of how long ended jobs are kept
}

// claimer chooses jobs and leases them. It also opens and closes lanes (lists of ready jobs); see lanes.go.
type claimer struct {
	*laneKeeper
	jobs  Jobs
	turns UserTurns

	contenders []contender // memory that pickLane reuses
	// turnSteps counts the lanes that the current claim has checked in order to decide which user is next,
	// and the jobs that it has leased.
	turnSteps int
	// ClaimedBytes is the size in bytes of the jobs that this transaction has read in order to claim them.
	ClaimedBytes int
}

// Claim leases up to wantedJobs jobs that may start, in the order of their ranks. It stops when their size
// reaches MaxClaimBytes. If it leases none and hasMore is true, the caller must continue the claim in another
// transaction.
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
			hasMore = c.rechecks.DirtyGateCount() > 0 // a check of the remaining gates may open a lane
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
		if len(jobs)-countBefore == n { // all units of a gate are now in use
			c.markResourcesDirty()
		}
	}
	c.ClaimedBytes += bytes
	return jobs, (hasMore || bytes >= MaxClaimBytes) && len(jobs) == 0, c.err
}

// leaseFound leases the jobs that ScanLane has found. It cancels expired jobs instead.
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

// chooseQueue returns the queue that is next, and a scan of its best open lane. The scan ends at scan.StopAt,
// the position from which a job of another lane or queue goes first. While all queues have the same weight,
// the queue with the best-ranked job is next. Otherwise, stride scheduling chooses the queue for each job.
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

// queueTurn returns the number of the queue's next turn. It is at least the number of the turn that was
// served last. So a queue that had no job to start does not get extra turns later.
func (c *claimer) queueTurn(q *Queue) int64 { return max(q.NextTurn, c.queues.LastServedTurn()) }

// stride is added to the next turn of a queue of weight 1 for each started job. With weight w, a job adds
// stride/w. For weights from 1 to 1000, the rounding error of this division is negligible.
const stride = 1 << 30

// advanceTurn raises the number of the queue's next turn, because one of its jobs was leased. See Waldspurger
// and Weihl, Stride Scheduling, 1995.
func (c *claimer) advanceTurn(q *Queue) {
	if c.queues.WeightsDiffer() {
		turn := c.queueTurn(q)
		c.queues.RecordQueueTurn(q, turn, turn+stride/int64(max(1, q.Weight)))
	}
}

// limitScan makes the scan of a lane end before jobs of other lanes that a gate of this lane has closed: it
// lowers scan.StopAt to the best head of these lanes. From there on, a job of a closed lane ranks first, and
// the gate may have room for that job by then.
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

// leaseJob leases a job. It writes the row of the job only if the job takes units of resources, because their
// numbers are stored in the row. Other leases are stored in a list; see docs/decisions/0003.
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
	if len(l.Needs) > 0 { // skipped lanes may need the units that the job has taken
		clear(c.skippedPriorities)
	}
	if j.HeldUnits != "" {
		c.recordErr(c.jobs.Put(j))
	}
}
