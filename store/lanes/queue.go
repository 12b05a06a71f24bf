package lanes

import (
	"math"
	"slices"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Queue is the state of a queue in the writer's memory, with its open lanes.
type Queue struct {
	rules.Queue
	Rule   store.QueueRule
	UID    int // the user who enqueued the first of its current jobs
	Leased int
	// RetainedJobs is the number of kept jobs that ended while the queue had its own retention. RetainedBytes is the
	// total size of their outputs.
	RetainedJobs, RetainedBytes int64
	LaneCount                   int // number of lanes, including those without jobs
	// LastTurns holds, for each user, the turn in which a job of the user was last claimed. A turn numbered up to
	// FixedTurns was taken under an earlier rule of the queue. Such a turn still counts after its lease is returned; a
	// later turn does not.
	LastTurns  map[int]int64
	FixedTurns int64

	OpenLanes      headHeap[*rules.Lane, laneOrdering] // the queue's open lanes without demands
	BestDemandLane *rules.Lane                         // best open lane with demands; nil if none is open
	ReadyIndex     int                                 // index in Lanes.Ready, -1 if the queue is not in it
	Stale          bool                                // the open lanes with demands of all users must be read again
	StaleUsers     map[int]bool                        // users whose open lanes with demands must be read again

	lanesByUID map[int]userLanes
	secondHead rules.Position // at or before the head of the second-best open lane with demands
	// mustRefresh is true while the queue is in Lanes.staleQueues. BestDemandLane and secondHead are then unknown.
	mustRefresh bool
}

func newQueue(name string) *Queue {
	return &Queue{Queue: rules.Queue{Name: name, Weight: 1}, Rule: store.DefaultQueueRule, ReadyIndex: -1}
}

// Exists reports whether users see the queue, because it has a rule or unfinished jobs.
func (q *Queue) Exists() bool {
	return q.Rule != store.DefaultQueueRule || q.Waiting > 0 || q.Leased > 0
}

// HasRow reports whether the queue needs a row: it exists, or its own retention still applies to ended jobs.
func (q *Queue) HasRow() bool { return q.Exists() || q.RetainedJobs > 0 || q.RetainedBytes > 0 }

// IsIdle reports whether the queue can be removed from memory: it has no lanes, needs no row, and is in no list
// of this package.
func (q *Queue) IsIdle() bool {
	return q.LaneCount == 0 && !q.HasRow() && !q.mustRefresh && q.ReadyIndex < 0
}

// StoredCounts returns the stored counts of the queue.
func (q *Queue) StoredCounts() records.QueueCounts {
	return records.QueueCounts{Waiting: q.Waiting, UID: q.UID, RetainedJobs: q.RetainedJobs,
		RetainedBytes: q.RetainedBytes}
}

// SetStoredCounts sets the stored counts of the queue.
func (q *Queue) SetStoredCounts(c records.QueueCounts) {
	q.Waiting, q.UID, q.RetainedJobs, q.RetainedBytes = c.Waiting, c.UID, c.RetainedJobs, c.RetainedBytes
}

// SetRule sets the rule of the queue. The caller must then call UpdateQueue.
func (q *Queue) SetRule(rule store.QueueRule) {
	q.Rule, q.Weight, q.MaxWaiting, q.HasOwnRetention = rule, rule.Weight, rule.MaxPending,
		rule.Retention != store.Retention{}
}

// HasSeveralUsers reports whether several users may have open lanes in the queue.
func (q *Queue) HasSeveralUsers() bool { return len(q.OpenLanes)+len(q.lanesByUID) > 1 }

// PredictedLane returns the lane from which the next job of the queue will probably be claimed, or nil if that is
// unknown. byArrival reports whether jobs are claimed in the order of their arrival.
func (q *Queue) PredictedLane(byArrival bool) *rules.Lane {
	if q.mustRefresh || q.BestDemandLane != nil || len(q.OpenLanes) == 0 || len(q.OpenLanes) > 1 && !byArrival {
		return nil
	}
	return q.OpenLanes[0]
}

// BestLane returns the open lane with the best head, and the head of the second-best lane. The queue must be in
// Lanes.Ready.
func (q *Queue) BestLane() (rules.Lane, rules.Position) {
	if len(q.OpenLanes) == 0 {
		return *q.BestDemandLane, q.secondHead
	}
	l, next := q.OpenLanes[0], rules.EndPosition
	if second := q.OpenLanes.secondBestIndex(); second > 0 {
		next = q.OpenLanes[second].Head
	}
	switch {
	case q.BestDemandLane == nil:
	case l.Head.After(q.BestDemandLane.Head):
		return *q.BestDemandLane, earlierPosition(l.Head, q.secondHead)
	default:
		next = earlierPosition(next, q.BestDemandLane.Head)
	}
	return *l, next
}

// UpdateQueue computes a queue's room and head again, and its position among the ready queues.
func (ls *Lanes) UpdateQueue(q *Queue) {
	q.Room = math.MaxInt
	switch {
	case q.Rule.Paused:
		q.Room = 0
	case q.Rule.Concurrency > 0:
		q.Room = max(0, q.Rule.Concurrency-q.Leased)
	}
	q.Head = rules.EndPosition
	if len(q.OpenLanes) > 0 {
		q.Head = q.OpenLanes[0].Head
	}
	if q.BestDemandLane != nil {
		q.Head = earlierPosition(q.Head, q.BestDemandLane.Head)
	}
	ls.Ready.update(q, q.Room > 0 && (len(q.OpenLanes) > 0 || q.BestDemandLane != nil))
}

// MarkStale marks all users' open lanes with demands in a queue as stale, so that the next claim reads them again.
func (ls *Lanes) MarkStale(q *Queue) {
	q.lanesByUID, q.Stale = nil, true
	ls.clearBestLane(q)
}

// MarkStaleUser marks one user's open lanes with demands as stale, so that the next claim reads them again.
func (ls *Lanes) MarkStaleUser(q *Queue, uid int) {
	if q.StaleUsers == nil {
		q.StaleUsers = map[int]bool{}
	}
	q.StaleUsers[uid] = true
	ls.clearBestLane(q)
}

// clearBestLane makes the next Refresh find the queue's best open lane with demands again.
func (ls *Lanes) clearBestLane(q *Queue) {
	q.BestDemandLane, q.secondHead = nil, rules.EndPosition
	if !q.mustRefresh {
		q.mustRefresh = true
		ls.staleQueues = append(ls.staleQueues, q)
	}
	ls.UpdateQueue(q)
}

// readStaleLanes forgets the queue's stale open lanes. It then calls the callback, which adds the current ones
// with AddOpen.
func (q *Queue) readStaleLanes(readOpenLanes func(q *Queue) error) error {
	if q.Stale || q.lanesByUID == nil {
		q.lanesByUID = map[int]userLanes{}
	}
	for uid := range q.StaleUsers {
		delete(q.lanesByUID, uid)
	}
	if err := readOpenLanes(q); err != nil {
		return err
	}
	q.Stale = false
	clear(q.StaleUsers)
	return nil
}

// userLanes holds the best open lanes with demands of one user in a queue.
type userLanes struct {
	openLanes []*rules.Lane // in the order of their heads; has at least one
	// omittedLanesFrom is at or before the heads of all the user's open lanes that are not in openLanes.
	omittedLanesFrom rules.Position
}

// MaxOpenPerUser is the largest number of open lanes with demands of each user that a queue keeps. With these
// lanes in memory, a claim usually finds the user's next best lane without a query.
const MaxOpenPerUser = 4

// secondHead returns the head of the user's second-best lane. If that lane is not in memory, it returns a position
// at or before its head.
func (u *userLanes) secondHead() rules.Position {
	if len(u.openLanes) > 1 {
		return u.openLanes[1].Head
	}
	return u.omittedLanesFrom
}

// addOpenLane adds an open lane, and drops the last one if there are more than MaxOpenPerUser.
func (u *userLanes) addOpenLane(l rules.Lane) {
	if l.Head.After(u.omittedLanesFrom) {
		return
	}
	index := slices.IndexFunc(u.openLanes, func(other *rules.Lane) bool { return other.Head.After(l.Head) })
	if index < 0 {
		index = len(u.openLanes)
	}
	if u.openLanes = slices.Insert(u.openLanes, index, &l); len(u.openLanes) > MaxOpenPerUser {
		u.omittedLanesFrom, u.openLanes = u.openLanes[MaxOpenPerUser].Head, u.openLanes[:MaxOpenPerUser]
	}
}

// userOpenLanes returns a user's open lanes with demands.
func (q *Queue) userOpenLanes(uid int) userLanes {
	if lanesOfUser, known := q.lanesByUID[uid]; known {
		return lanesOfUser
	}
	return userLanes{omittedLanesFrom: rules.EndPosition}
}

// AddOpen adds a lane with demands that was read from the database as open.
func (q *Queue) AddOpen(l rules.Lane) {
	lanesOfUser := q.userOpenLanes(l.UID)
	lanesOfUser.addOpenLane(l)
	q.lanesByUID[l.UID] = lanesOfUser
}

// HasOpenLane reports whether a lane with demands is in memory as an open lane.
func (q *Queue) HasOpenLane(l *rules.Lane) bool {
	return !q.Stale && !q.StaleUsers[l.UID] &&
		slices.ContainsFunc(q.lanesByUID[l.UID].openLanes, func(o *rules.Lane) bool { return o.ID == l.ID })
}

// SetOpen records the new state of a lane with demands: its head, and whether it is open. It marks the user's
// lanes as stale only if memory then has no open lane of the user, but the database has.
func (ls *Lanes) SetOpen(q *Queue, l rules.Lane) {
	if q.Stale || q.StaleUsers[l.UID] {
		ls.MarkStaleUser(q, l.UID)
		return
	}
	lanesOfUser := q.userOpenLanes(l.UID)
	lanesOfUser.openLanes = slices.DeleteFunc(slices.Clone(lanesOfUser.openLanes),
		func(other *rules.Lane) bool { return other.ID == l.ID })
	if l.ClosedBy == rules.Open {
		lanesOfUser.addOpenLane(l)
	}
	switch {
	case len(lanesOfUser.openLanes) > 0:
		if q.lanesByUID == nil {
			q.lanesByUID = map[int]userLanes{}
		}
		q.lanesByUID[l.UID] = lanesOfUser
	case lanesOfUser.omittedLanesFrom != rules.EndPosition: // other open lanes exist in the database
		ls.MarkStaleUser(q, l.UID)
		return
	default:
		delete(q.lanesByUID, l.UID)
	}
	ls.clearBestLane(q)
}
