package rules

import (
	"cmp"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Users whose next jobs in a queue have the same priority take turns: each turn is one claimed job. With the
// scheduling fifo, users do not take turns. A user's next job is the best-ranked one that all its gates have
// room for, so the jobs of one user never change their order.
//
// An example: user 1 has 10,000 jobs of priority 5. Then user 2 enqueues job 10001 of priority 5, and user 3
// enqueues job 10002 of priority 3. The lane with the best head belongs to user 1, so the next job comes from
// this queue and has priority 5. Users 1 and 2 have such jobs, and user 2 was served less recently, so a claim
// takes job 10001. The job gets the place of job 1 (Job.StartPosition), so the runner starts it before job 1.
// Its own rank does not change, so it keeps its position if it is given back. The next claim takes job 1. User
// 3 does not take turns with the others: job 10002 waits until it is the best-ranked job. If n users each have
// k jobs that rank before a job, that job waits for at most k turns of each user.
//
// Turns are numbered by a counter of the node's claimed jobs, and the user with the lowest last turn was served
// least recently. Turns are hints: they are kept in memory and lost with a restart. A user without waiting jobs
// saves up no turns, since each turn makes the user the one who was served last. When a job is given back
// before it starts, its user also gets the turn back. Without that, a user whose jobs are given back again and
// again would always be last and never start one.

// UnknownPriority is the stored priority of a lane whose first job has not been read. The head of such a lane
// may be a position before that job. See docs/decisions/0014.
const UnknownPriority = math.MinInt64

// UserTurn describes a user's turn in a queue: its number, and the number of the user's previous turn.
type UserTurn struct{ Number, Previous int64 }

// contender is the best open lane of a user, with the number of the user's last turn.
type contender struct {
	lane     *Lane // belongs to the engine; copy it before use
	lastTurn int64
}

// pickLane chooses the lane whose user has the next turn in the queue, and prepares scan for that lane.
// wantedJobs is the number of jobs that the claim still wants. pickLane returns how many jobs of the lane may be
// leased. A result of 0 means that lanes have changed and the caller must choose again.
func (c *claimer) pickLane(q *Queue, scan *LaneScan, wantedJobs int) (n int) {
	c.steps = &c.claimSteps
	defer func() { c.steps = &c.otherSteps }()
	n = c.roomOrClose(&scan.Lane)
	if order, _ := c.settings.Order(); n == 0 || order.Scheduling == queue.ByArrival || !c.turns.HasSeveralUsers(q) {
		return n
	}
	first := &scan.Lane
	if c.ensurePriority(first) {
		return 0
	}
	scan.WantedJobs, scan.PeekPriority = 1, true
	c.contenders = c.contenders[:0]
	c.turns.EachContender(q, func(l *Lane, lastTurn int64) {
		// A lane without demands needs no check if its priority is known to differ from that of the first
		// lane. Such a lane cannot hold back a job that could start.
		if len(l.Needs) > 0 || l.Priority == UnknownPriority || l.Priority == first.Priority {
			c.contenders = append(c.contenders, contender{l, lastTurn})
		}
	})
	scan.ExpectedJobs = (wantedJobs + len(c.contenders) - 1) / max(1, len(c.contenders))
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
			if c.skippedPriorities == nil {
				c.skippedPriorities = map[int64]int64{}
			}
			c.skippedPriorities[l.ID] = l.Priority
			continue
		}
		if c.closeOvertakenLanes(&l, list) {
			return 0
		}
		scan.StartPlace, scan.Lane, scan.StopAt = new(queue.StartPosition(first.Head)), l, EndPosition
		return n
	}
	return n
}

// upcomingLanes returns the lanes of up to n contenders whose next job is known to have the given priority.
// Lanes of users who were served least recently come first.
func (c *claimer) upcomingLanes(priority int64, n int) (list []Lane) {
	next := slices.Clone(c.contenders)
	slices.SortFunc(next, contender.compare)
	for i := range next {
		if len(list) < n && next[i].lane.Priority == priority {
			list = append(list, *next[i].lane)
		}
	}
	return list
}

// maxTurnSteps limits the steps that a claim takes to check contenders. After maxDemandSteps of them, the
// claim checks no more lanes with demands. The remaining steps are for lanes without demands, whose
// priorities are not known after a restart, and for leasing jobs. After maxTurnSteps steps, only lanes whose
// priority is known to be that of the best lane take turns.
const (
	maxTurnSteps   = MaxSteps / 2
	maxDemandSteps = maxTurnSteps / 2
)

// nextContender returns the index of the contender to check next, or -1. Among the contenders that may have a
// job of the first lane's priority, it chooses the one whose user was served least recently. It skips lanes
// that this claim has already checked and whose next job has another priority. So the claim does not read these
// lanes again for each job that it leases.
func (c *claimer) nextContender(contenders []contender, firstLane *Lane) int {
	best := -1
	for i := range contenders {
		l := contenders[i].lane
		priority, checked := c.skippedPriorities[l.ID]
		if !checked {
			priority = l.Priority
		}
		outOfSteps := c.turnSteps >= maxTurnSteps || c.claimSteps >= MaxSteps ||
			len(l.Needs) > 0 && c.turnSteps >= maxDemandSteps
		if l.UID != firstLane.UID && priority != firstLane.Priority && (checked || outOfSteps) {
			continue
		}
		if best < 0 || contenders[i].compare(contenders[best]) < 0 {
			best = i
		}
	}
	return best
}

// compare orders contenders by their turns: the user that was served least recently comes first.
func (c contender) compare(other contender) int {
	return cmp.Or(cmp.Compare(c.lastTurn, other.lastTurn), c.lane.Head.Compare(other.lane.Head))
}

// closeOvertakenLanes prevents a lane from overtaking better-ranked lanes that need the same resource. A
// better-ranked lane without room is closed, so that it holds back this lane at the resource. The result
// reports whether any lane has changed.
func (c *claimer) closeOvertakenLanes(l *Lane, otherContenders []contender) (lanesChanged bool) {
	for i := range otherContenders {
		other := *otherContenders[i].lane
		_, skipped := c.skippedPriorities[other.ID]
		if skipped || !l.Head.After(other.Head) || !slices.ContainsFunc(l.Needs, func(n Need) bool {
			return n.Kind == queue.GateResource && needsResource(&other, n.Gate)
		}) {
			continue
		}
		if c.contenderRoom(&other) == 0 {
			return true
		}
	}
	return false
}

// contenderRoom finds the priority of a lane and returns how many of its jobs may be leased. It returns 0 if
// lanes have changed.
func (c *claimer) contenderRoom(l *Lane) (n int) {
	if c.ensurePriority(l) {
		return 0
	}
	if len(l.Needs) > 0 {
		c.claimSteps++
	}
	return c.roomOrClose(l)
}

// roomOrClose returns how many jobs of an open lane may be leased. It closes a lane without room.
func (c *claimer) roomOrClose(l *Lane) (n int) {
	n, fullGate := c.laneRoom(l)
	if n == 0 && fullGate != chooseAgain {
		c.moveHead(l, l.Head, fullGate)
	}
	return n
}
