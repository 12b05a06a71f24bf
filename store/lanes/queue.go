package lanes

import (
	"math"
	"slices"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Queue is the state of a queue in the engine's memory. It contains the queue's open lanes, the lists of jobs
// from which a job may start.
type Queue struct {
	rules.Queue
	Rule   store.QueueRule
	UID    int // user who created the queue, with its first job
	Leased int
	// RetainedJobs is the number of kept jobs that ended while the queue had its own retention. RetainedBytes is the
	// total size of their outputs.
	RetainedJobs, RetainedBytes int64
	LaneCount                   int // number of lanes, including those without jobs
	// LastTurns holds, for each user, the number of the claim that last took a job of the user. If a job is
	// returned before it starts, its turn is undone, except turns up to FixedTurns, which were taken under an
	// earlier rule of the queue.
	LastTurns  map[int]int64
	FixedTurns int64

	OpenLanes      headHeap[*rules.Lane, laneOrdering] // the queue's open lanes without demands
	BestDemandLane *rules.Lane                         // best open lane with demands; nil if none is open
	ReadyIndex     int                                 // index in Lanes.Ready, -1 if the queue is not in it
	Stale          bool                                // the open lanes with demands of all users must be read again
	StaleUsers     map[int]bool                        // users whose open lanes with demands must be read again

	lanesByUID map[int]userLanes
	secondHead rules.Position // position at or before the first job of the second-best open lane with demands
	// mustRefresh is true while the queue is in Lanes.staleQueues. BestDemandLane and secondHead are then unknown.
	mustRefresh bool
}

func newQueue(name string) *Queue {
	return &Queue{Queue: rules.Queue{Name: name, Weight: 1}, Rule: store.DefaultQueueRule, ReadyIndex: -1}
}

// Exists reports whether users see the queue: whether it has a rule or unfinished jobs.
func (q *Queue) Exists() bool {
	return q.Rule != store.DefaultQueueRule || q.Waiting > 0 || q.Leased > 0
}

// HasRow reports whether the queue needs a row in the database: it exists, or ended jobs still follow its own
// retention.
func (q *Queue) HasRow() bool { return q.Exists() || q.RetainedJobs > 0 || q.RetainedBytes > 0 }

// IsIdle reports whether the queue can be removed from memory: it has no lanes, needs no row in the database,
// and is in neither list of Lanes.
func (q *Queue) IsIdle() bool {
	return q.LaneCount == 0 && !q.HasRow() && !q.mustRefresh && q.ReadyIndex < 0
}

// StoredCounts returns the counts that the queue's row in the database holds.
func (q *Queue) StoredCounts() records.QueueCounts {
	return records.QueueCounts{Waiting: q.Waiting, UID: q.UID, RetainedJobs: q.RetainedJobs,
		RetainedBytes: q.RetainedBytes}
}

// SetStoredCounts sets the counts that were read from the queue's row in the database.
func (q *Queue) SetStoredCounts(c records.QueueCounts) {
	q.Waiting, q.UID, q.RetainedJobs, q.RetainedBytes = c.Waiting, c.UID, c.RetainedJobs, c.RetainedBytes
}

// SetRule sets the rule of the queue. The caller must then call UpdateQueue.
func (q *Queue) SetRule(rule store.QueueRule) {
	q.Rule, q.Weight, q.MaxWaiting, q.HasOwnRetention = rule, rule.Weight, rule.MaxPending,
		rule.Retention != store.Retention{}
}

// HasSeveralUsers reports whether more than one user may have jobs that can start in the queue.
func (q *Queue) HasSeveralUsers() bool { return len(q.OpenLanes)+len(q.lanesByUID) > 1 }

// PredictedLane returns the lane from which the next job of the queue will probably be claimed, or nil if that is
// unknown. byArrival reports whether jobs are claimed in the order of their arrival.
func (q *Queue) PredictedLane(byArrival bool) *rules.Lane {
	if q.mustRefresh || q.BestDemandLane != nil || len(q.OpenLanes) == 0 || len(q.OpenLanes) > 1 && !byArrival {
		return nil
	}
	return q.OpenLanes[0]
}

// BestLane returns the open lane whose first job ranks best, and the position of the first job of the
// second-best lane. The queue must be in Lanes.Ready.
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

// UpdateQueue computes how many more jobs of a queue may start, and the queue's position among the ready
// queues.
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

// MarkStale marks the open lanes with demands (locks or other limits) of all users in a queue, so that the
// next claim reads these lanes again.
func (ls *Lanes) MarkStale(q *Queue) {
	q.lanesByUID, q.Stale = nil, true
	ls.clearBestLane(q)
}

// MarkStaleUser marks the open lanes with demands (locks or other limits) of one user, so that the next claim
// reads these lanes again.
func (ls *Lanes) MarkStaleUser(q *Queue, uid int) {
	if q.StaleUsers == nil {
		q.StaleUsers = map[int]bool{}
	}
	q.StaleUsers[uid] = true
	ls.clearBestLane(q)
}

// clearBestLane makes the next Refresh find the queue's best open lane with demands (locks or other limits)
// again.
func (ls *Lanes) clearBestLane(q *Queue) {
	q.BestDemandLane, q.secondHead = nil, rules.EndPosition
	if !q.mustRefresh {
		q.mustRefresh = true
		ls.staleQueues = append(ls.staleQueues, q)
	}
	ls.UpdateQueue(q)
}

// readStaleLanes removes the stale open lanes from memory and calls readOpenLanes, which adds the current
// ones with AddOpen.
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

// userLanes holds the best open lanes with demands of one user in a queue. The jobs of these lanes need locks
// or other limits, and the first job of each may start.
type userLanes struct {
	openLanes []*rules.Lane // in the order of their heads; has at least one
	// omittedLanesFrom is a position at or before the heads of all open lanes of the user that are not in
	// openLanes.
	omittedLanesFrom rules.Position
}

// MaxOpenPerUser is the largest number of open lanes with demands that a queue keeps for each user. With
// several of them in memory, a claim usually finds the user's next best lane without a query.
const MaxOpenPerUser = 4

// secondHead returns the position of the first job of the user's second-best lane. If that lane is not in
// memory, it returns a position that is not after that job.
func (u *userLanes) secondHead() rules.Position {
	if len(u.openLanes) > 1 {
		return u.openLanes[1].Head
	}
	return u.omittedLanesFrom
}

// addOpenLane adds an open lane. If there are then more than MaxOpenPerUser, it removes the last one.
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

// userOpenLanes returns the lanes with demands (locks or other limits) of one user from which a job may
// start.
func (q *Queue) userOpenLanes(uid int) userLanes {
	if lanesOfUser, known := q.lanesByUID[uid]; known {
		return lanesOfUser
	}
	return userLanes{omittedLanesFrom: rules.EndPosition}
}

// AddOpen adds a lane with demands (locks or other limits). The lane was read from the database and is open
// there.
func (q *Queue) AddOpen(l rules.Lane) {
	lanesOfUser := q.userOpenLanes(l.UID)
	lanesOfUser.addOpenLane(l)
	q.lanesByUID[l.UID] = lanesOfUser
}

// HasOpenLane reports whether memory holds this lane, one with demands, as open.
func (q *Queue) HasOpenLane(l *rules.Lane) bool {
	return !q.Stale && !q.StaleUsers[l.UID] &&
		slices.ContainsFunc(q.lanesByUID[l.UID].openLanes, func(o *rules.Lane) bool { return o.ID == l.ID })
}

// SetOpen records the new head of a lane with demands, and whether the lane is open. It marks the user's
// lanes as stale only if memory then holds no open lane of the user, but the database has one.
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
	case lanesOfUser.omittedLanesFrom != rules.EndPosition: // the database has other open lanes of the user
		ls.MarkStaleUser(q, l.UID)
		return
	default:
		delete(q.lanesByUID, l.UID)
	}
	ls.clearBestLane(q)
}
