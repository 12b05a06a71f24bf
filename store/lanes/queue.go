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
	Rule       store.QueueRule
	CreatorUID int // user who created the queue, with its first job
	LeasedJobs int
	// RetainedJobs is the number of kept jobs that ended while the queue had its own retention. RetainedOutputBytes is the
	// total size of their outputs.
	RetainedJobs, RetainedOutputBytes int64
	LaneCount                         int // number of lanes, including those without jobs
	// LastTurnByUID holds, for each user, the number of the claim that last took a job of the user. If a job is
	// returned before it starts, its turn is undone, except turns up to LastPermanentTurn, which were taken under an
	// earlier rule of the queue.
	LastTurnByUID     map[int]int64
	LastPermanentTurn int64

	OpenLanes           headHeap[*rules.Lane, laneOrdering] // the queue's open lanes without demands
	BestLaneWithDemands *rules.Lane                         // best open lane with demands; nil if none is open
	ReadyHeapIndex      int                                 // index in LaneCache.ReadyQueues, -1 if the queue is not in it
	AllUsersLanesStale  bool                                // the open lanes with demands of all users must be read again
	UIDsWithStaleLanes  map[int]bool                        // users whose open lanes with demands must be read again

	demandLanesByUID map[int]userLanes
	secondBestHead   rules.Position // position at or before the first job of the second-best open lane with demands
	// mustFindBestLane is true while the queue is in LaneCache.staleQueues. BestLaneWithDemands and secondBestHead are
	// then unknown.
	mustFindBestLane bool
}

func newQueue(name string) *Queue {
	return &Queue{Queue: rules.Queue{Name: name, Weight: 1}, Rule: store.DefaultQueueRule, ReadyHeapIndex: -1,
		UIDsWithStaleLanes: map[int]bool{}, demandLanesByUID: map[int]userLanes{}}
}

// Exists reports whether users see the queue: whether it has a rule or unfinished jobs.
func (q *Queue) Exists() bool {
	return q.Rule != store.DefaultQueueRule || q.WaitingJobs > 0 || q.LeasedJobs > 0
}

// NeedsDatabaseRow reports whether the queue needs a row in the database: it exists, or ended jobs still follow its own
// retention.
func (q *Queue) NeedsDatabaseRow() bool {
	return q.Exists() || q.RetainedJobs > 0 || q.RetainedOutputBytes > 0
}

// IsEvictable reports whether the queue can be removed from memory: it has no lanes, needs no row in the database, and
// is neither in LaneCache.staleQueues nor in LaneCache.ReadyQueues.
func (q *Queue) IsEvictable() bool {
	return q.LaneCount == 0 && !q.NeedsDatabaseRow() && !q.mustFindBestLane && q.ReadyHeapIndex < 0
}

// StoredCounts returns the counts that the queue's row in the database holds.
func (q *Queue) StoredCounts() records.QueueCounts {
	return records.QueueCounts{WaitingJobs: q.WaitingJobs, CreatorUID: q.CreatorUID, RetainedJobs: q.RetainedJobs,
		RetainedOutputBytes: q.RetainedOutputBytes}
}

// SetStoredCounts sets the counts that were read from the queue's row in the database.
func (q *Queue) SetStoredCounts(c records.QueueCounts) {
	q.WaitingJobs, q.CreatorUID, q.RetainedJobs, q.RetainedOutputBytes = c.WaitingJobs, c.CreatorUID, c.RetainedJobs,
		c.RetainedOutputBytes
}

// SetRule sets the rule of the queue. The caller must then call UpdateQueueReadiness.
func (q *Queue) SetRule(rule store.QueueRule) {
	q.Rule, q.Weight, q.MaxWaitingJobs, q.HasOwnRetention = rule, rule.Weight, rule.MaxPendingJobs,
		rule.Retention != store.Retention{}
}

// HasSeveralUsers reports whether more than one user may have jobs that can start in the queue.
func (q *Queue) HasSeveralUsers() bool { return len(q.OpenLanes)+len(q.demandLanesByUID) > 1 }

// PredictedNextLane returns the lane from which the next job of the queue will probably be claimed, or nil if that is
// unknown. inArrivalOrder reports whether jobs are claimed in the order of their arrival.
func (q *Queue) PredictedNextLane(inArrivalOrder bool) *rules.Lane {
	if q.mustFindBestLane || q.BestLaneWithDemands != nil || len(q.OpenLanes) == 0 || len(q.OpenLanes) > 1 &&
		!inArrivalOrder {
		return nil
	}
	return q.OpenLanes[0]
}

// BestLane returns the lane whose first job may start and ranks best, and the position of the first job of the
// second-best lane. The queue must be in LaneCache.ReadyQueues.
func (q *Queue) BestLane() (rules.Lane, rules.Position) {
	if len(q.OpenLanes) == 0 {
		return *q.BestLaneWithDemands, q.secondBestHead
	}
	l, next := q.OpenLanes[0], rules.MaxPosition
	if second := q.OpenLanes.secondBestIndex(); second > 0 {
		next = q.OpenLanes[second].Head
	}
	switch {
	case q.BestLaneWithDemands == nil:
	case l.Head.After(q.BestLaneWithDemands.Head):
		return *q.BestLaneWithDemands, earlierPosition(l.Head, q.secondBestHead)
	default:
		next = earlierPosition(next, q.BestLaneWithDemands.Head)
	}
	return *l, next
}

// UpdateQueueReadiness computes how many more jobs of a queue may start, and the queue's position among the ready
// queues.
func (ls *LaneCache) UpdateQueueReadiness(q *Queue) {
	q.LeasableJobs = math.MaxInt
	switch {
	case q.Rule.Paused:
		q.LeasableJobs = 0
	case q.Rule.Concurrency > 0:
		q.LeasableJobs = max(0, q.Rule.Concurrency-q.LeasedJobs)
	}
	q.BestHead = rules.MaxPosition
	if len(q.OpenLanes) > 0 {
		q.BestHead = q.OpenLanes[0].Head
	}
	if q.BestLaneWithDemands != nil {
		q.BestHead = earlierPosition(q.BestHead, q.BestLaneWithDemands.Head)
	}
	ls.ReadyQueues.update(q, q.LeasableJobs > 0 && (len(q.OpenLanes) > 0 || q.BestLaneWithDemands != nil))
}

// MarkQueueLanesStale marks the open lanes with demands (locks or other limits) of all users in a queue, so that the
// next claim reads these lanes again.
func (ls *LaneCache) MarkQueueLanesStale(q *Queue) {
	clear(q.demandLanesByUID)
	q.AllUsersLanesStale = true
	ls.clearBestLane(q)
}

// MarkUserLanesStale marks the open lanes with demands (locks or other limits) of one user, so that the next claim
// reads these lanes again.
func (ls *LaneCache) MarkUserLanesStale(q *Queue, uid int) {
	q.UIDsWithStaleLanes[uid] = true
	ls.clearBestLane(q)
}

// clearBestLane makes the next RefreshBestLanes find the queue's best open lane with demands (locks or other limits)
// again.
func (ls *LaneCache) clearBestLane(q *Queue) {
	q.BestLaneWithDemands, q.secondBestHead = nil, rules.MaxPosition
	if !q.mustFindBestLane {
		q.mustFindBestLane = true
		ls.staleQueues = append(ls.staleQueues, q)
	}
	ls.UpdateQueueReadiness(q)
}

// rereadStaleLanes removes the lanes that are out of date from memory, and calls readOpenLanes, which adds the current
// lanes with AddOpenLane.
func (q *Queue) rereadStaleLanes(readOpenLanes func(q *Queue) error) error {
	if q.AllUsersLanesStale {
		clear(q.demandLanesByUID)
	}
	for uid := range q.UIDsWithStaleLanes {
		delete(q.demandLanesByUID, uid)
	}
	if err := readOpenLanes(q); err != nil {
		return err
	}
	q.AllUsersLanesStale = false
	clear(q.UIDsWithStaleLanes)
	return nil
}

// userLanes holds the best open lanes with demands of one user in a queue. The jobs of these lanes need locks
// or other limits, and the first job of each may start.
type userLanes struct {
	openLanes []*rules.Lane // in the order of their heads; has at least one
	// firstOmittedPosition is a position at or before the first jobs of all open lanes of the user that are not in
	// openLanes.
	firstOmittedPosition rules.Position
}

// MaxOpenLanesPerUser is the largest number of lanes with demands (locks or other limits) that a queue keeps in memory
// for each user. With several lanes in memory, a claim usually finds the user's next best lane without a query.
const MaxOpenLanesPerUser = 4

// secondBestHead returns the position of the first job of the user's second-best lane. If that lane is not in
// memory, it returns a position that is not after that job.
func (u *userLanes) secondBestHead() rules.Position {
	if len(u.openLanes) > 1 {
		return u.openLanes[1].Head
	}
	return u.firstOmittedPosition
}

// addOpenLane adds an open lane. If there are then more than MaxOpenLanesPerUser lanes, it removes the last lane.
func (u *userLanes) addOpenLane(l rules.Lane) {
	if l.Head.After(u.firstOmittedPosition) {
		return
	}
	index := slices.IndexFunc(u.openLanes, func(other *rules.Lane) bool { return other.Head.After(l.Head) })
	if index < 0 {
		index = len(u.openLanes)
	}
	if u.openLanes = slices.Insert(u.openLanes, index, &l); len(u.openLanes) > MaxOpenLanesPerUser {
		u.firstOmittedPosition, u.openLanes = u.openLanes[MaxOpenLanesPerUser].Head, u.openLanes[:MaxOpenLanesPerUser]
	}
}

// userOpenLanes returns the lanes with demands (locks or other limits) of one user from which a job may
// start.
func (q *Queue) userOpenLanes(uid int) userLanes {
	if lanesOfUser, known := q.demandLanesByUID[uid]; known {
		return lanesOfUser
	}
	return userLanes{firstOmittedPosition: rules.MaxPosition}
}

// AddOpenLane adds a lane with demands (locks or other limits). The lane was read from the database and is open in the
// database.
func (q *Queue) AddOpenLane(l rules.Lane) {
	lanesOfUser := q.userOpenLanes(l.UID)
	lanesOfUser.addOpenLane(l)
	q.demandLanesByUID[l.UID] = lanesOfUser
}

// HasOpenLane reports whether l, a lane whose jobs need locks or other limits, is among the open lanes in memory.
func (q *Queue) HasOpenLane(l *rules.Lane) bool {
	return !q.AllUsersLanesStale && !q.UIDsWithStaleLanes[l.UID] &&
		slices.ContainsFunc(q.demandLanesByUID[l.UID].openLanes, func(o *rules.Lane) bool { return o.ID == l.ID })
}

// UpdateLaneWithDemands records the new first position (head) of a lane with demands, and whether the lane is open. If
// memory then holds no open lane of the user, but the database has one, the next claim reads the user's lanes again.
func (ls *LaneCache) UpdateLaneWithDemands(q *Queue, l rules.Lane) {
	if q.AllUsersLanesStale || q.UIDsWithStaleLanes[l.UID] {
		ls.MarkUserLanesStale(q, l.UID)
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
		q.demandLanesByUID[l.UID] = lanesOfUser
	case lanesOfUser.firstOmittedPosition != rules.MaxPosition: // the database has other open lanes of the user
		ls.MarkUserLanesStale(q, l.UID)
		return
	default:
		delete(q.demandLanesByUID, l.UID)
	}
	ls.clearBestLane(q)
}
