// Package lanes keeps in memory from which queues and lanes a claim may take jobs, so that it usually finds the best
// job without a query. A lane is the list of waiting jobs of one queue and user that have the same demands (locks and
// other limits).
//
// Start with LaneCache. The comment at the top of store/rules/lanes.go explains lanes.
package lanes

import (
	"container/heap"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// LaneCache is the engine's cache of queues and lanes. It holds all lanes whose jobs have no demands (locks or other
// limits). These lanes are called plain lanes. A user can have very many lanes with demands, so the cache holds only
// the best of them for each queue and user.
type LaneCache struct {
	DemandFreeLanes      map[DemandFreeLaneKey]*rules.Lane
	DemandFreeLanesByUID map[int][]*rules.Lane // the same lanes by uid
	Queues               map[string]*Queue
	ReadyQueues          headHeap[*Queue, queueOrdering] // queues that have room and an open lane
	staleQueues          []*Queue                        // queues whose best lane must be found before the next claim
	// OverQuotaLaneCounts counts the lanes with demands (locks or other limits) that wait for a user's quota, by the gate
	// of the quota; see rules.UserQuotaGateID.
	OverQuotaLaneCounts map[int64]int
	WeightedQueueCount  int // number of queues whose weight is not 1
	// LocalClosingGateByLaneID lists lanes that are open in the database, but whose jobs cannot start on this node. It
	// maps the id of the lane to the gate (a resource or other limit) that prevents the start.
	LocalClosingGateByLaneID map[int64]int64
}

// New returns an empty cache.
func New() *LaneCache {
	return &LaneCache{DemandFreeLanes: map[DemandFreeLaneKey]*rules.Lane{}, DemandFreeLanesByUID: map[int][]*rules.Lane{},
		Queues:              map[string]*Queue{},
		OverQuotaLaneCounts: map[int64]int{}, LocalClosingGateByLaneID: map[int64]int64{}}
}

// DemandFreeLaneKey identifies a lane whose jobs need no lock or other limit: each queue and user have one such lane.
type DemandFreeLaneKey struct {
	Queue string
	UID   int
}

// DemandFreeKeyOf returns the name of a lane whose jobs need no lock or other limit.
func DemandFreeKeyOf(l *rules.Lane) DemandFreeLaneKey { return DemandFreeLaneKey{l.Queue, l.UID} }

// headHeap is a heap of queues or lanes. The first element is the one whose head, the position of its first
// job, is best.
type headHeap[T any, O headOrdering[T]] []T

// headOrdering gives headHeap access to the head (the position of the first job) and the heap index of an element. The
// index is -1 if the element is in no heap.
type headOrdering[T any] interface {
	headPosition(T) rules.Position
	heapIndex(T) *int
}

type laneOrdering struct{} // the ordering of lanes

func (laneOrdering) headPosition(l *rules.Lane) rules.Position { return l.Head }
func (laneOrdering) heapIndex(l *rules.Lane) *int              { return &l.HeapIndex }

type queueOrdering struct{} // the ordering of queues

func (queueOrdering) headPosition(q *Queue) rules.Position { return q.BestHead }
func (queueOrdering) heapIndex(q *Queue) *int              { return &q.ReadyHeapIndex }

// Len implements heap.Interface.
func (h headHeap[T, O]) Len() int { return len(h) }

// Less implements heap.Interface. It reports whether the first job of element i ranks before that of element
// j.
func (h headHeap[T, O]) Less(i, j int) bool {
	var o O
	return o.headPosition(h[j]).After(o.headPosition(h[i]))
}

// Swap implements heap.Interface. It swaps two elements and their heap indexes.
func (h headHeap[T, O]) Swap(i, j int) {
	var o O
	h[i], h[j] = h[j], h[i]
	*o.heapIndex(h[i]), *o.heapIndex(h[j]) = i, j
}

// Push implements heap.Interface.
func (h *headHeap[T, O]) Push(x any) {
	var o O
	*o.heapIndex(x.(T)) = len(*h)
	*h = append(*h, x.(T))
}

// Pop implements heap.Interface. It removes the last element.
func (h *headHeap[T, O]) Pop() any {
	var o O
	last := len(*h) - 1
	x := (*h)[last]
	*h = slices.Delete(*h, last, last+1)
	*o.heapIndex(x) = -1
	return x
}

// update brings the heap up to date after an element has changed: it adds, moves or, if shouldContain is
// false, removes the element.
func (h *headHeap[T, O]) update(element T, shouldContain bool) {
	var o O
	switch index := *o.heapIndex(element); {
	case shouldContain && index < 0:
		heap.Push(h, element)
	case shouldContain:
		heap.Fix(h, index)
	case index >= 0:
		heap.Remove(h, index)
	}
}

// secondBestIndex returns the index of the element with the second-best head (the position of its first job), or 0 if
// the heap has fewer than two elements.
func (h headHeap[T, O]) secondBestIndex() int {
	switch { // the second-best element is a child of the root
	case len(h) < 2:
		return 0
	case len(h) > 2 && h.Less(2, 1):
		return 2
	}
	return 1
}

// FindOrAddQueue returns the queue with this name, and adds it to the cache if necessary.
func (ls *LaneCache) FindOrAddQueue(name string) *Queue {
	q := ls.Queues[name]
	if q == nil {
		q = newQueue(name)
		ls.Queues[name] = q
	}
	return q
}

// AddDemandFreeLane adds a plain lane, whose jobs need no lock or other limit, to the cache.
func (ls *LaneCache) AddDemandFreeLane(l *rules.Lane) {
	ls.DemandFreeLanes[DemandFreeKeyOf(l)] = l
	ls.DemandFreeLanesByUID[l.UID] = append(ls.DemandFreeLanesByUID[l.UID], l)
	ls.UpdateDemandFreeLane(l)
}

// UpdateDemandFreeLane brings the queue's heap of open lanes up to date after a plain lane (one without demands) has
// changed. The heap contains the lane only if its first job may start.
func (ls *LaneCache) UpdateDemandFreeLane(l *rules.Lane) {
	q := ls.FindOrAddQueue(l.Queue)
	q.OpenLanes.update(l, l.ClosedBy == rules.Open)
	ls.UpdateQueueReadiness(q)
}

// RemoveDemandFreeLane removes a plain lane, whose jobs need no lock or other limit, from the cache.
func (ls *LaneCache) RemoveDemandFreeLane(l *rules.Lane) {
	delete(ls.DemandFreeLanes, DemandFreeKeyOf(l))
	others := slices.DeleteFunc(slices.Clone(ls.DemandFreeLanesByUID[l.UID]),
		func(other *rules.Lane) bool { return other == l })
	if ls.DemandFreeLanesByUID[l.UID] = others; len(others) == 0 {
		delete(ls.DemandFreeLanesByUID, l.UID)
	}
	q := ls.FindOrAddQueue(l.Queue)
	q.OpenLanes.update(l, false)
	ls.UpdateQueueReadiness(q)
}

// AdjustOverQuotaCount adds delta to the number of lanes with demands (locks or other limits) that wait for a user's
// quota. It does nothing if gateID is not the gate of a user's quota.
func (ls *LaneCache) AdjustOverQuotaCount(gateID int64, delta int) {
	if gateID >= 0 || gateID == rules.Empty {
		return
	}
	if ls.OverQuotaLaneCounts[gateID] += delta; ls.OverQuotaLaneCounts[gateID] == 0 {
		delete(ls.OverQuotaLaneCounts, gateID)
	}
}

// JoinLocallyClosedIDs returns the ids of the lanes that a gate (a lock or other limit) closes on this node but not in
// the database. The ids are joined by database.JoinNumbers; "" means no lanes.
func (ls *LaneCache) JoinLocallyClosedIDs(gateID int64) string {
	var laneIDs []int64
	for lane, closedBy := range ls.LocalClosingGateByLaneID {
		if closedBy == gateID {
			laneIDs = append(laneIDs, lane)
		}
	}
	return database.JoinNumbers(slices.Values(laneIDs))
}

// EachReadyQueue calls visit for the queues in which a job may start, until visit returns false. The queue whose
// first job ranks best comes first, then the second best, then the others in any order.
func (ls *LaneCache) EachReadyQueue(visit func(*rules.Queue) bool) {
	second := ls.ReadyQueues.secondBestIndex()
	if len(ls.ReadyQueues) == 0 || !visit(&ls.ReadyQueues[0].Queue) || second == 0 ||
		!visit(&ls.ReadyQueues[second].Queue) {
		return
	}
	for i, q := range ls.ReadyQueues {
		if i != 0 && i != second && !visit(&q.Queue) {
			return
		}
	}
}

// RefreshBestLanes finds the best open lane of each queue whose lanes have changed. (A lane is open if its first job
// may start.) readOpenLanes reads the open lanes of the users in q.UIDsWithStaleLanes, or of all users if
// q.AllUsersLanesStale is set, and passes each lane to q.AddOpenLane.
func (ls *LaneCache) RefreshBestLanes(readOpenLanes func(q *Queue) error) error {
	for len(ls.staleQueues) > 0 {
		q := ls.staleQueues[len(ls.staleQueues)-1]
		if q.AllUsersLanesStale || len(q.UIDsWithStaleLanes) > 0 {
			if err := q.rereadStaleLanes(readOpenLanes); err != nil {
				return err
			}
		}
		q.BestLaneWithDemands, q.secondBestHead = nil, rules.MaxPosition
		for _, lanes := range q.demandLanesByUID {
			switch best := lanes.openLanes[0]; {
			case q.BestLaneWithDemands == nil:
				q.BestLaneWithDemands, q.secondBestHead = best, lanes.secondBestHead()
			case q.BestLaneWithDemands.Head.After(best.Head):
				q.BestLaneWithDemands, q.secondBestHead = best, earlierPosition(q.BestLaneWithDemands.Head, lanes.secondBestHead())
			default:
				q.secondBestHead = earlierPosition(q.secondBestHead, best.Head)
			}
		}
		q.mustFindBestLane = false
		ls.staleQueues = ls.staleQueues[:len(ls.staleQueues)-1]
		ls.UpdateQueueReadiness(q)
	}
	return nil
}

// earlierPosition returns the position that is served first.
func earlierPosition(a, b rules.Position) rules.Position {
	if a.After(b) {
		return b
	}
	return a
}

// EachContendingLane calls visit once for every user with an open lane in a queue, and passes the best of these lanes.
// lastTurn is the number of the user's last turn, or 0 if unknown.
func (ls *LaneCache) EachContendingLane(q *Queue, visit func(l *rules.Lane, lastTurn int64)) {
	for _, l := range q.OpenLanes {
		if demandLanes, found := q.demandLanesByUID[l.UID]; found && l.Head.After(demandLanes.openLanes[0].Head) {
			l = demandLanes.openLanes[0]
		}
		visit(l, q.LastTurnByUID[l.UID])
	}
	for uid, demandLanes := range q.demandLanesByUID {
		if plain := ls.DemandFreeLanes[DemandFreeLaneKey{q.Name, uid}]; plain == nil || plain.HeapIndex < 0 {
			visit(demandLanes.openLanes[0], q.LastTurnByUID[uid])
		}
	}
}
