package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// closedLaneSearch describes a search for lanes that a gate has closed. A lane holds the jobs of one queue
// and user with the same demands, such as a lock; a gate is the lock or other limit. The best lane is the one
// whose first job comes first. If perList is set, the search finds the best lane of each queue and user.
// Otherwise it finds the best lane in one queue, of one user or, if allUsers is set, of all users.
type closedLaneSearch struct {
	gate     int64
	queue    string
	uid      int
	allUsers bool
	perList  bool
}

// cacheClosedLanes keeps the result of a search until the end of this transaction.
func (t *Tx) cacheClosedLanes(search closedLaneSearch, closedLanes []rules.Lane) {
	if t.closedLanes == nil {
		t.closedLanes = map[closedLaneSearch][]rules.Lane{}
	}
	t.closedLanes[search] = closedLanes
}

// BestClosedInQueue implements rules.Lanes. Of the lanes in a queue that a gate (a lock or other limit) has
// closed, it returns the one with the best first job.
func (t *Tx) BestClosedInQueue(gate int64, queueName string) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gate: gate, queue: queueName, allUsers: true})
}

// BestClosedInList implements rules.Lanes. Of the lanes of one user in one queue that a gate (a lock or other
// limit) has closed, it returns the one with the best first job.
func (t *Tx) BestClosedInList(gate int64, key rules.ClosedListKey) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gate: gate, queue: key.Queue, uid: key.UID})
}

// firstClosedLane returns the best lane that matches a search in which perList is not set. It also considers
// lanes whose jobs need no lock or other limit.
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

// findClosedLanes returns lanes that a gate has closed, of jobs with demands such as locks. If closedHereIDs
// is empty, it returns only the best lane that matches the search. Otherwise closedHereIDs lists the ids of
// lanes that are closed only on this node, and findClosedLanes returns those of them that are in
// search.queue.
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

// uidOfGate returns the uid of the user whose limit of running jobs the gate represents; see rules.UserGate.
func uidOfGate(gate int64) int {
	if gate%2 != 0 {
		return int((gate + 1) / 2)
	}
	return int((-gate - 2) / 2)
}

// EachClosedList implements rules.Lanes. A list holds the lanes of one user in one queue that a gate (a lock
// or other limit) has closed. EachClosedList passes the best lane of each list to the callback. It reads all
// of them before the first call, because the callback may change lanes.
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
		if more { // the next call visits the lists after the last one that was read
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

// closedListLanes returns lanes that a gate has closed, of jobs with demands such as locks. If closedHereIDs
// is empty, it returns the best lane of each list after afterList, and more is true if there may be further
// lists. Otherwise closedHereIDs lists the ids of lanes that are closed only on this node, and
// closedListLanes returns exactly these lanes.
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

// firstLaneOfNextList returns the best lane of the gate's next list after the given one. (A list holds the
// lanes of one user in one queue; the zero key comes before all lists.) The first query searches the rest of
// the same queue, and the second query the later queues. A single condition on the pair (queue, uid) would be
// slow: SQLite would use the index only for the queue, and read all lanes of the given list again.
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

// maxListsPerCall is the maximum number of lists that one call of EachClosedList visits.
const maxListsPerCall = 250
