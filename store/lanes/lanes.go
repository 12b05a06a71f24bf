// Package lanes keeps in memory from which queues and lanes a claim may take jobs, so that it usually finds
// the best job without a query. A lane is the list of waiting jobs of one queue and user that have the same
// demands.
//
// Start with Lanes. The comment at the top of store/rules/lanes.go explains lanes.
package lanes

import (
	"container/heap"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// Lanes is the engine's cache of queues and lanes. It holds all lanes whose jobs have no demands, called
// plain lanes. A user can have very many lanes with demands, so it holds only the best of these for each
// queue and user.
type Lanes struct {
	PlainLanes  map[Name]*rules.Lane
	ByUID       map[int][]*rules.Lane // plain lanes by uid
	Queues      map[string]*Queue
	Ready       headHeap[*Queue, queueOrdering] // queues that have room and an open lane
	staleQueues []*Queue                        // queues whose best lane must be found before the next claim
	// OverQuota counts the lanes with demands (locks or other limits) that wait for a user's quota, by the gate of
	// the quota; see rules.UserGate.
	OverQuota map[int64]int
	Weights   int // number of queues whose weight is not 1
	// ClosedHere lists lanes that are open in the database, but whose jobs cannot start on this node. It maps
	// the id of the lane to the gate (a resource or other limit) that prevents the start.
	ClosedHere map[int64]int64
}

// New returns an empty cache.
func New() *Lanes {
	return &Lanes{PlainLanes: map[Name]*rules.Lane{}, ByUID: map[int][]*rules.Lane{}, Queues: map[string]*Queue{},
		OverQuota: map[int64]int{}, ClosedHere: map[int64]int64{}}
}

// Name identifies a lane without demands: each queue and user have one such lane.
type Name struct {
	Queue string
	UID   int
}

// NameOf returns the name of a lane without demands.
func NameOf(l *rules.Lane) Name { return Name{l.Queue, l.UID} }

// headHeap is a heap of queues or lanes. The first element is the one whose head, the position of its first
// job, is best.
type headHeap[T any, O headOrdering[T]] []T

// headOrdering gives headHeap access to the head and the heap index of an element. The index is -1 if the element is
// in no heap.
type headOrdering[T any] interface {
	head(T) rules.Position
	index(T) *int
}

type laneOrdering struct{} // the ordering of lanes

func (laneOrdering) head(l *rules.Lane) rules.Position { return l.Head }
func (laneOrdering) index(l *rules.Lane) *int          { return &l.HeapIndex }

type queueOrdering struct{} // the ordering of queues

func (queueOrdering) head(q *Queue) rules.Position { return q.Head }
func (queueOrdering) index(q *Queue) *int          { return &q.ReadyIndex }

// Len implements heap.Interface.
func (h headHeap[T, O]) Len() int { return len(h) }

// Less implements heap.Interface. It reports whether the first job of element i ranks before that of element
// j.
func (h headHeap[T, O]) Less(i, j int) bool {
	var o O
	return o.head(h[j]).After(o.head(h[i]))
}

// Swap implements heap.Interface. It swaps two elements and their heap indexes.
func (h headHeap[T, O]) Swap(i, j int) {
	var o O
	h[i], h[j] = h[j], h[i]
	*o.index(h[i]), *o.index(h[j]) = i, j
}

// Push implements heap.Interface.
func (h *headHeap[T, O]) Push(x any) {
	var o O
	*o.index(x.(T)) = len(*h)
	*h = append(*h, x.(T))
}

// Pop implements heap.Interface. It removes the last element.
func (h *headHeap[T, O]) Pop() any {
	var o O
	last := len(*h) - 1
	x := (*h)[last]
	*h = slices.Delete(*h, last, last+1)
	*o.index(x) = -1
	return x
}

// update brings the heap up to date after an element has changed: it adds, moves or, if shouldContain is
// false, removes the element.
func (h *headHeap[T, O]) update(element T, shouldContain bool) {
	var o O
	switch index := *o.index(element); {
	case shouldContain && index < 0:
		heap.Push(h, element)
	case shouldContain:
		heap.Fix(h, index)
	case index >= 0:
		heap.Remove(h, index)
	}
}

// secondBestIndex returns the index of the element with the second-best head, or 0 if the heap has fewer than two
// elements.
func (h headHeap[T, O]) secondBestIndex() int {
	switch { // the second-best element is a child of the root
	case len(h) < 2:
		return 0
	case len(h) > 2 && h.Less(2, 1):
		return 2
	}
	return 1
}

// Queue returns the queue with this name, and adds it to the cache if necessary.
func (ls *Lanes) Queue(name string) *Queue {
	q := ls.Queues[name]
	if q == nil {
		q = newQueue(name)
		ls.Queues[name] = q
	}
	return q
}

// Add adds a plain lane, whose jobs need no lock or other limit, to the cache.
func (ls *Lanes) Add(l *rules.Lane) {
	ls.PlainLanes[NameOf(l)] = l
	ls.ByUID[l.UID] = append(ls.ByUID[l.UID], l)
	ls.Update(l)
}

// Update brings the queue's heap of open lanes up to date after a plain lane (one without demands) has
// changed. The heap contains the lane only if its first job may start.
func (ls *Lanes) Update(l *rules.Lane) {
	q := ls.Queue(l.Queue)
	q.OpenLanes.update(l, l.ClosedBy == rules.Open)
	ls.UpdateQueue(q)
}

// Remove removes a plain lane, whose jobs need no lock or other limit, from the cache.
func (ls *Lanes) Remove(l *rules.Lane) {
	delete(ls.PlainLanes, NameOf(l))
	others := slices.DeleteFunc(slices.Clone(ls.ByUID[l.UID]), func(other *rules.Lane) bool { return other == l })
	if ls.ByUID[l.UID] = others; len(others) == 0 {
		delete(ls.ByUID, l.UID)
	}
	q := ls.Queue(l.Queue)
	q.OpenLanes.update(l, false)
	ls.UpdateQueue(q)
}

// AddOverQuota adds delta to the number of lanes with demands (locks or other limits) that wait for a user's
// quota. It does nothing if gate is not the gate of a user's quota.
func (ls *Lanes) AddOverQuota(gate int64, delta int) {
	if gate >= 0 || gate == rules.Empty {
		return
	}
	if ls.OverQuota[gate] += delta; ls.OverQuota[gate] == 0 {
		delete(ls.OverQuota, gate)
	}
}

// ClosedHereBy returns the ids of the lanes that a gate closes on this node but not in the database. The ids
// are joined by database.JoinNumbers; "" means no lanes.
func (ls *Lanes) ClosedHereBy(gate int64) string {
	var laneIDs []int64
	for lane, closedBy := range ls.ClosedHere {
		if closedBy == gate {
			laneIDs = append(laneIDs, lane)
		}
	}
	return database.JoinNumbers(slices.Values(laneIDs))
}

// EachReady calls visit for the queues in which a job may start, until visit returns false. The queue whose
// first job ranks best comes first, then the second best, then the others in any order.
func (ls *Lanes) EachReady(visit func(*rules.Queue) bool) {
	second := ls.Ready.secondBestIndex()
	if len(ls.Ready) == 0 || !visit(&ls.Ready[0].Queue) || second == 0 || !visit(&ls.Ready[second].Queue) {
		return
	}
	for i, q := range ls.Ready {
		if i != 0 && i != second && !visit(&q.Queue) {
			return
		}
	}
}

// Refresh finds the best open lane of each queue whose lanes have changed. readOpenLanes reads the open lanes
// of the users in q.StaleUsers, or of all users if q.Stale is set, and passes each lane to q.AddOpen.
func (ls *Lanes) Refresh(readOpenLanes func(q *Queue) error) error {
	for len(ls.staleQueues) > 0 {
		q := ls.staleQueues[len(ls.staleQueues)-1]
		if q.Stale || len(q.StaleUsers) > 0 {
			if err := q.readStaleLanes(readOpenLanes); err != nil {
				return err
			}
		}
		q.BestDemandLane, q.secondHead = nil, rules.EndPosition
		for _, lanes := range q.lanesByUID {
			switch best := lanes.openLanes[0]; {
			case q.BestDemandLane == nil:
				q.BestDemandLane, q.secondHead = best, lanes.secondHead()
			case q.BestDemandLane.Head.After(best.Head):
				q.BestDemandLane, q.secondHead = best, earlierPosition(q.BestDemandLane.Head, lanes.secondHead())
			default:
				q.secondHead = earlierPosition(q.secondHead, best.Head)
			}
		}
		q.mustRefresh = false
		ls.staleQueues = ls.staleQueues[:len(ls.staleQueues)-1]
		ls.UpdateQueue(q)
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

// Contenders calls visit once for every user with an open lane in a queue, and passes the best of these lanes.
// lastTurn is the number of the user's last turn, or 0 if unknown.
func (ls *Lanes) Contenders(q *Queue, visit func(l *rules.Lane, lastTurn int64)) {
	for _, l := range q.OpenLanes {
		if demandLanes, found := q.lanesByUID[l.UID]; found && l.Head.After(demandLanes.openLanes[0].Head) {
			l = demandLanes.openLanes[0]
		}
		visit(l, q.LastTurns[l.UID])
	}
	for uid, demandLanes := range q.lanesByUID {
		if plain := ls.PlainLanes[Name{q.Name, uid}]; plain == nil || plain.HeapIndex < 0 {
			visit(demandLanes.openLanes[0], q.LastTurns[uid])
		}
	}
}
