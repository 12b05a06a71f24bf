package rules

import (
	"cmp"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Users whose next jobs in a queue have the same priority take turns: each turn is one claimed job. With the
// scheduling setting fifo, users do not take turns. A user's next job is the best-ranked job whose gates
// (locks, rates and other limits) all have room. Turns never change the order of one user's jobs.
//
// An example: user 1 has 10,000 jobs of priority 5. Then user 2 enqueues job 10001 of priority 5, and user 3
// enqueues job 10002 of priority 3. The best-ranked waiting job is job 1 of user 1, so the next job comes from
// this queue and has priority 5. Users 1 and 2 have such jobs, and user 2 was served less recently, so a claim
// takes job 10001. The runner starts job 10001 before job 1, because it gets the start position of job 1
// (Job.StartPosition). The rank of job 10001 does not change, so the job keeps its position if it is given
// back. The next claim takes job 1. User 3 takes no turn: job 10002 waits until it is the best-ranked job. A
// job waits for at most k turns of each user with k better-ranked jobs.
//
// Turns are numbered by a counter of the node's claimed jobs. The user whose last turn has the lowest number
// was served least recently. Turns are kept in memory and lost with a restart. A user without waiting jobs
// saves up no turns, because every turn makes its user the one who was served last. When a job is given back
// before it starts, its user also gets the turn back. Otherwise, a user whose jobs are given back repeatedly
// would always be last and never start one.

// UnknownLanePriority is the stored priority of a lane (waiting jobs of one queue and user that need the same locks and
// other limits) whose first job has not been read. See docs/decisions/0014.
const UnknownLanePriority = math.MinInt64

// UserTurn describes a user's turn in a queue: its number, and the number of the user's previous turn.
type UserTurn struct{ TurnNumber, PreviousTurnNumber int64 }

// contender is the best open lane (list of jobs that may start) of one user in a queue, and the number of the user's
// last turn.
type contender struct {
	lane           *Lane // belongs to the engine; copy it before use
	lastTurnNumber int64
}

// pickNextLane chooses the lane from which the claim takes its next jobs: that of the user with the next turn in the
// queue. It prepares scan for that lane. wantedJobs is the number of jobs that the claim still wants.
// pickNextLane returns how many jobs of the lane may be leased. A result of 0 means that lanes have opened or
// closed, and the caller must choose again.
func (c *claimer) pickNextLane(q *Queue, scan *LaneScan, wantedJobs int) (maxJobs int) {
	c.stepCounter = &c.claimSteps
	defer func() { c.stepCounter = &c.nonClaimSteps }()
	maxJobs = c.findRoomOrCloseLane(&scan.Lane)
	if order, _ := c.settings.RankOrder(); maxJobs == 0 || order.Scheduling == queue.SchedulingByArrival ||
		!c.turns.HasSeveralUsers(q) {
		return maxJobs
	}
	first := &scan.Lane
	if c.ensureLanePriority(first) {
		return 0
	}
	scan.MaxJobs, scan.MustReadNextPriority = 1, true
	c.contenders = c.contenders[:0]
	c.turns.EachContendingLane(q, func(l *Lane, lastTurn int64) {
		// A lane whose known priority differs from that of the first lane takes no turn. If it also has no demands,
		// it cannot block other lanes, so it need not be checked.
		if len(l.GateNeeds) > 0 || l.Priority == UnknownLanePriority || l.Priority == first.Priority {
			c.contenders = append(c.contenders, contender{l, lastTurn})
		}
	})
	scan.ExpectedJobsPerLane = (wantedJobs + len(c.contenders) - 1) / max(1, len(c.contenders))
	priority := first.Priority
	scan.UpcomingLanes = func(n int) []Lane { return c.upcomingLanes(priority, min(n, wantedJobs)) }
	for list := c.contenders; ; {
		index := c.nextContender(list, first)
		if index < 0 {
			break
		}
		l := *list[index].lane
		list[index], list[len(list)-1] = list[len(list)-1], list[index]
		list = list[:len(list)-1]
		if l.UID == first.UID {
			break
		}
		steps := c.claimSteps
		n := c.contenderRoom(&l)
		c.turnSteps += c.claimSteps - steps
		if n == 0 {
			return 0
		}
		if l.Priority != first.Priority {
			if c.skippedPriorityByLaneID == nil {
				c.skippedPriorityByLaneID = map[int64]int64{}
			}
			c.skippedPriorityByLaneID[l.ID] = l.Priority
			continue
		}
		if c.closeOvertakenLanes(&l, list) {
			return 0
		}
		scan.NewStartPosition, scan.Lane, scan.StopPosition = new(queue.StartPosition(first.Head)), l, MaxPosition
		return n
	}
	return maxJobs
}

// upcomingLanes returns the lanes of up to maxLanes contenders (users with jobs that may start) whose next job is known
// to have the given priority, ordered by user: the user who was served least recently comes first.
func (c *claimer) upcomingLanes(priority int64, maxLanes int) (lanes []Lane) {
	next := slices.Clone(c.contenders)
	slices.SortFunc(next, contender.compare)
	for i := range next {
		if len(lanes) < maxLanes && next[i].lane.Priority == priority {
			lanes = append(lanes, *next[i].lane)
		}
	}
	return lanes
}

// maxTurnCheckSteps limits the steps that a claim takes to check which users take turns. After maxDemandLaneSteps
// steps, the claim checks no more lanes with demands. This leaves steps for lanes without demands, whose priorities are
// unknown after a restart. After maxTurnCheckSteps steps, only lanes whose priority is already known to equal that of
// the best lane take turns. The claim needs the other steps to lease jobs.
const (
	maxTurnCheckSteps  = MaxLaneStepsPerTx / 2
	maxDemandLaneSteps = maxTurnCheckSteps / 2
)

// nextContender returns the index of the contender to check next, or -1. Among the contenders whose next job
// may have the first lane's priority, it chooses the one whose user was served least recently. It skips lanes
// that this claim has already checked and whose next job has another priority. Otherwise, the claim would read
// these lanes again for each job that it leases.
func (c *claimer) nextContender(contenders []contender, firstLane *Lane) int {
	best := -1
	for i := range contenders {
		l := contenders[i].lane
		priority, checked := c.skippedPriorityByLaneID[l.ID]
		if !checked {
			priority = l.Priority
		}
		outOfSteps := c.turnSteps >= maxTurnCheckSteps || c.claimSteps >= MaxLaneStepsPerTx ||
			len(l.GateNeeds) > 0 && c.turnSteps >= maxDemandLaneSteps
		if l.UID != firstLane.UID && priority != firstLane.Priority && (checked || outOfSteps) {
			continue
		}
		if best < 0 || contenders[i].compare(contenders[best]) < 0 {
			best = i
		}
	}
	return best
}

// compare orders contenders by their turns: the user who was served least recently comes first.
func (c contender) compare(other contender) int {
	return cmp.Or(cmp.Compare(c.lastTurnNumber, other.lastTurnNumber), c.lane.Head.Compare(other.lane.Head))
}

// closeOvertakenLanes ensures that jobs of lane l do not take units of a resource for which a better-ranked
// job waits. It closes the better-ranked lanes that need the same resource and have no room.
// keepResourceForBetterLane then keeps the resource for them. The result reports whether any lane has changed.
func (c *claimer) closeOvertakenLanes(l *Lane, otherContenders []contender) (lanesChanged bool) {
	for i := range otherContenders {
		other := *otherContenders[i].lane
		_, skipped := c.skippedPriorityByLaneID[other.ID]
		if skipped || !l.Head.After(other.Head) || !slices.ContainsFunc(l.GateNeeds, func(n GateNeed) bool {
			return n.Kind == queue.GateResource && laneNeedsResource(&other, n.GateID)
		}) {
			continue
		}
		if c.contenderRoom(&other) == 0 {
			return true
		}
	}
	return false
}

// contenderRoom reads the priority of lane l if it is unknown. It returns how many jobs of the lane may be
// leased, or 0 if lanes have opened or closed.
func (c *claimer) contenderRoom(l *Lane) (maxJobs int) {
	if c.ensureLanePriority(l) {
		return 0
	}
	if len(l.GateNeeds) > 0 {
		c.claimSteps++
	}
	return c.findRoomOrCloseLane(l)
}

// findRoomOrCloseLane returns how many jobs of an open lane (list of jobs) may be leased. If a gate has no room for the
// first job, it closes the lane.
func (c *claimer) findRoomOrCloseLane(l *Lane) (maxJobs int) {
	maxJobs, fullGate := c.laneRoom(l)
	if maxJobs == 0 && fullGate != chooseLaneAgain {
		c.moveHead(l, l.Head, fullGate)
	}
	return maxJobs
}
