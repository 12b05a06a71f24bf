package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// closedLaneSearch identifies a search for lanes with demands that a gate has closed. If perList is set, it
// finds the best lane of each list; a list holds the lanes of one user in one queue. Otherwise it finds the
// best lane in one queue: of all users if allUsers is set, or of one user.
type closedLaneSearch struct {
	gate     int64
	queue    string
	uid      int
	allUsers bool
	perList  bool
}

// cacheClosedLanes keeps the result of a search for later calls in this transaction.
func (t *Tx) cacheClosedLanes(search closedLaneSearch, closedLanes []rules.Lane) {
	if t.closedLanes == nil {
		t.closedLanes = map[closedLaneSearch][]rules.Lane{}
	}
	t.closedLanes[search] = closedLanes
}

// BestClosedInQueue implements rules.Lanes. It returns the best of the lanes that a gate has closed in a queue.
func (t *Tx) BestClosedInQueue(gate int64, queueName string) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gate: gate, queue: queueName, allUsers: true})
}

// BestClosedInList implements rules.Lanes. It returns the best of the lanes of one user that a gate has closed
// in one queue.
func (t *Tx) BestClosedInList(gate int64, key rules.ClosedListKey) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gate: gate, queue: key.Queue, uid: key.UID})
}

// firstClosedLane returns the best lane that matches a search. The search must not have perList set. Lanes
// without demands are included.
func (t *Tx) firstClosedLane(search closedLaneSearch) (l rules.Lane, found bool, err error) {
	gate, ls := search.gate, t.engine.mem.lanes
	if gate < 0 {
		plain := ls.PlainLanes[lanes.Name{Queue: search.queue, UID: uidOfGate(gate)}]
		if plain != nil && plain.ClosedBy == gate {
			l, found = *plain, true
		}
	}
	closedHere := ls.ClosedHereBy(gate)
	if closedHere == "" && (!t.engine.mem.gates.HasGates || gate < 0 && ls.OverQuota[gate] == 0) {
		return l, found, nil
	}
	other, known := t.closedLanes[search]
	if !known {
		other = t.findClosedLanes(search, closedHere)
		t.cacheClosedLanes(search, other)
	}
	for _, candidate := range other {
		if (search.allUsers || candidate.UID == search.uid) && (!found || l.Head.After(candidate.Head)) {
			l, found = candidate, true
			l.ClosedBy = gate
		}
	}
	return l, found, t.err
}

// findClosedLanes returns lanes with demands that a gate has closed. closedHereIDs lists the ids of lanes that are
// closed only for this node. If closedHereIDs is not empty, the result is those of its lanes that are in
// search.queue. If it is empty, the result is only the best lane that matches the search.
func (t *Tx) findClosedLanes(search closedLaneSearch, closedHereIDs string) []rules.Lane {
	switch {
	case closedHereIDs != "":
		return t.storedLanes(`WHERE `+t.InNumbersSQL("id")+` AND queue = ?`, closedHereIDs, search.queue)
	case search.allUsers:
		return t.storedLanes(`INDEXED BY lanes_shut
			WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? ORDER BY head_rank, head_seq LIMIT 1`,
			search.gate, search.queue)
	}
	return t.storedLanes(`INDEXED BY lanes_shut_user
		WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? AND uid = ? ORDER BY head_rank, head_seq LIMIT 1`,
		search.gate, search.queue, int64(search.uid))
}

// uidOfGate returns the uid of the user whose quota is represented by a gate; see rules.UserGate.
func uidOfGate(gate int64) int {
	if gate%2 != 0 {
		return int((gate + 1) / 2)
	}
	return int((-gate - 2) / 2)
}

// EachClosedList implements rules.Lanes. It passes the best lane of every list of lanes that a gate has closed to
// the callback. It reads all these lanes before the first call, because the callback may change lanes.
func (t *Tx) EachClosedList(gate int64, afterList rules.ClosedListKey, visit func(rules.Lane) (bool, error)) error {
	ls := t.engine.mem.lanes
	best := map[rules.ClosedListKey]rules.Lane{}
	take := func(l rules.Lane) {
		l.ClosedBy = gate
		first, found := best[l.ClosedListKey()]
		if l.ClosedListKey().Compare(afterList) > 0 && (!found || first.Head.After(l.Head)) {
			best[l.ClosedListKey()] = l
		}
	}
	if gate < 0 {
		for _, l := range ls.ByUID[uidOfGate(gate)] {
			if l.ClosedBy == gate {
				take(*l)
			}
		}
	}
	closedHere := ls.ClosedHereBy(gate)
	if closedHere != "" || t.engine.mem.gates.HasGates && (gate > 0 || ls.OverQuota[gate] > 0) {
		list, more := t.closedListLanes(gate, afterList, closedHere)
		for _, l := range list {
			take(l)
		}
		if more { // the next call visits the lists after the last one in list
			last := list[len(list)-1].ClosedListKey()
			maps.DeleteFunc(best, func(list rules.ClosedListKey, _ rules.Lane) bool { return list.Compare(last) > 0 })
		}
	}
	for _, list := range slices.SortedFunc(maps.Keys(best), rules.ClosedListKey.Compare) {
		if more, err := visit(best[list]); !more || err != nil {
			return err
		}
	}
	return t.err
}

// closedListLanes returns lanes with demands that a gate has closed. closedHereIDs lists the ids of lanes that are
// closed only for this node. If closedHereIDs is not empty, the result is exactly its lanes. If it is empty, the
// result is the best lane of each list that comes after afterList. more is true if there may be further lists.
func (t *Tx) closedListLanes(gate int64, afterList rules.ClosedListKey, closedHereIDs string) (
	closedLanes []rules.Lane, more bool) {
	search := closedLaneSearch{gate: gate, allUsers: true, perList: true}
	if known, found := t.closedLanes[search]; found && afterList == (rules.ClosedListKey{}) {
		return known, len(known) == maxListsPerCall && closedHereIDs == ""
	}
	if closedHereIDs != "" {
		closedLanes = t.storedLanes(`WHERE `+t.InNumbersSQL("id"), closedHereIDs)
	} else {
		for last := afterList; len(closedLanes) < maxListsPerCall; last = closedLanes[len(closedLanes)-1].ClosedListKey() {
			l, found := t.firstLaneOfNextList(gate, last)
			if !found {
				break
			}
			closedLanes = append(closedLanes, l)
		}
	}
	if afterList == (rules.ClosedListKey{}) {
		t.cacheClosedLanes(search, closedLanes)
	}
	return closedLanes, len(closedLanes) == maxListsPerCall && closedHereIDs == ""
}

// firstLaneOfNextList returns the best lane in the gate's next list after the list with the given key. The zero
// key comes before all others. One query searches the rest of the previous list's queue, and another one searches
// later queues. With a single condition on the pair (queue, uid), SQLite would use the index only for the
// queue, and read all lanes of the previous list.
func (t *Tx) firstLaneOfNextList(gate int64, previous rules.ClosedListKey) (l rules.Lane, found bool) {
	const condition = `INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = ?`
	if previous != (rules.ClosedListKey{}) {
		l, found, _ = t.storedLane(condition+` AND queue = ? AND uid > ? ORDER BY uid, head_rank, head_seq LIMIT 1`,
			gate, previous.Queue, int64(previous.UID))
	}
	if !found {
		l, found, _ = t.storedLane(condition+` AND queue > ? ORDER BY queue, uid, head_rank, head_seq LIMIT 1`, gate,
			previous.Queue)
	}
	return l, found
}

// maxListsPerCall is the number of lists of one gate that a single call of EachClosedList visits.
const maxListsPerCall = 250
