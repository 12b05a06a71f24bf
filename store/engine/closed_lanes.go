package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// closedLaneSearch describes a search for lanes that a gate has closed. A lane holds the jobs of one queue
// and user with the same demands, such as a lock; a gate is the lock or other limit. The best lane is the one
// whose first job comes first. If bestOfEachList is set, the search finds the best lane of each queue and user.
// Otherwise it finds the best lane in one queue, of one user or, if allUsers is set, of all users.
type closedLaneSearch struct {
	gateID         int64
	queue          string
	uid            int
	allUsers       bool
	bestOfEachList bool
}

// cacheClosedLanes keeps the result of a search until the end of this transaction.
func (t *Tx) cacheClosedLanes(search closedLaneSearch, closedLanes []rules.Lane) {
	if t.closedLanesBySearch == nil {
		t.closedLanesBySearch = map[closedLaneSearch][]rules.Lane{}
	}
	t.closedLanesBySearch[search] = closedLanes
}

// BestClosedLaneInQueue implements rules.Lanes. Of the lanes (lists of jobs) in a queue that a gate (a lock or other
// limit) has closed, it returns the one with the best first job.
func (t *Tx) BestClosedLaneInQueue(gateID int64, queueName string) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gateID: gateID, queue: queueName, allUsers: true})
}

// BestClosedLaneInList implements rules.Lanes. Of the lanes (lists of jobs) of one user in one queue that a gate (a
// lock or other limit) has closed, it returns the one with the best first job.
func (t *Tx) BestClosedLaneInList(gateID int64, key rules.ClosedLaneListKey) (l rules.Lane, found bool, err error) {
	return t.firstClosedLane(closedLaneSearch{gateID: gateID, queue: key.Queue, uid: key.UID})
}

// firstClosedLane returns the best lane that matches a search in which bestOfEachList is not set. It also considers
// lanes whose jobs need no lock or other limit.
func (t *Tx) firstClosedLane(search closedLaneSearch) (l rules.Lane, found bool, err error) {
	gate, ls := search.gateID, t.lanes
	if gate < 0 {
		plain := ls.DemandFreeLanes[lanes.DemandFreeLaneKey{Queue: search.queue, UID: uidOfUserQuotaGate(gate)}]
		if plain != nil && plain.ClosedBy == gate {
			l, found = *plain, true
		}
	}
	closedHere := ls.JoinLocallyClosedIDs(gate)
	if closedHere == "" && (!t.gates.HasGates || gate < 0 && ls.OverQuotaLaneCounts[gate] == 0) {
		return l, found, nil
	}
	other, known := t.closedLanesBySearch[search]
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
	return l, found, t.statementErr
}

// findClosedLanes returns lanes that a gate has closed, of jobs with demands such as locks. If locallyClosedIDs
// is empty, it returns only the best lane that matches the search. Otherwise locallyClosedIDs lists the ids of
// lanes that are closed only on this node, and findClosedLanes returns those of them that are in
// search.queue.
func (t *Tx) findClosedLanes(search closedLaneSearch, locallyClosedIDs string) []rules.Lane {
	switch {
	case locallyClosedIDs != "":
		return t.storedLanes(`WHERE `+t.ColumnInNumbersSQL("id")+` AND queue = ?`, locallyClosedIDs, search.queue)
	case search.allUsers:
		return t.storedLanes(`INDEXED BY lanes_shut
			WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? ORDER BY head_rank, head_seq LIMIT 1`,
			search.gateID, search.queue)
	}
	return t.storedLanes(`INDEXED BY lanes_shut_user
		WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? AND uid = ? ORDER BY head_rank, head_seq LIMIT 1`,
		search.gateID, search.queue, search.uid)
}

// uidOfUserQuotaGate returns the uid of the user whose limit of running jobs the gate represents; see
// rules.UserQuotaGateID.
func uidOfUserQuotaGate(gateID int64) int {
	if gateID%2 != 0 {
		return int((gateID + 1) / 2)
	}
	return int((-gateID - 2) / 2)
}

// EachClosedLaneList implements rules.Lanes. A list holds the lanes of one user in one queue that a gate (a lock or
// other limit) has closed. EachClosedLaneList passes the best lane of each list to the callback. It reads these lanes
// before the first call, because the callback may change lanes.
func (t *Tx) EachClosedLaneList(gateID int64, afterList rules.ClosedLaneListKey,
	visit func(rules.Lane) (bool, error)) error {
	ls := t.lanes
	best := map[rules.ClosedLaneListKey]rules.Lane{}
	take := func(l rules.Lane) {
		l.ClosedBy = gateID
		first, found := best[l.ClosedLaneListKey()]
		if l.ClosedLaneListKey().Compare(afterList) > 0 && (!found || first.Head.After(l.Head)) {
			best[l.ClosedLaneListKey()] = l
		}
	}
	if gateID < 0 {
		for _, l := range ls.DemandFreeLanesByUID[uidOfUserQuotaGate(gateID)] {
			if l.ClosedBy == gateID {
				take(*l)
			}
		}
	}
	closedHere := ls.JoinLocallyClosedIDs(gateID)
	if closedHere != "" || t.gates.HasGates && (gateID > 0 || ls.OverQuotaLaneCounts[gateID] > 0) {
		list, more := t.closedListLanes(gateID, afterList, closedHere)
		for _, l := range list {
			take(l)
		}
		if more { // the next call visits the lists after the last one that was read
			last := list[len(list)-1].ClosedLaneListKey()
			maps.DeleteFunc(best, func(list rules.ClosedLaneListKey, _ rules.Lane) bool { return list.Compare(last) > 0 })
		}
	}
	for _, list := range slices.SortedFunc(maps.Keys(best), rules.ClosedLaneListKey.Compare) {
		if more, err := visit(best[list]); !more || err != nil {
			return err
		}
	}
	return t.statementErr
}

// closedListLanes returns lanes that a gate has closed, of jobs with demands such as locks. If locallyClosedIDs
// is empty, it returns the best lane of each list after afterList, and more is true if there may be further
// lists. Otherwise locallyClosedIDs lists the ids of lanes that are closed only on this node, and
// closedListLanes returns exactly these lanes.
func (t *Tx) closedListLanes(gateID int64, afterList rules.ClosedLaneListKey, locallyClosedIDs string) (
	closedLanes []rules.Lane, more bool) {
	search := closedLaneSearch{gateID: gateID, allUsers: true, bestOfEachList: true}
	if known, found := t.closedLanesBySearch[search]; found && afterList == (rules.ClosedLaneListKey{}) {
		return known, len(known) == maxClosedListsPerCall && locallyClosedIDs == ""
	}
	if locallyClosedIDs != "" {
		closedLanes = t.storedLanes(`WHERE `+t.ColumnInNumbersSQL("id"), locallyClosedIDs)
	} else {
		for last := afterList; len(closedLanes) < maxClosedListsPerCall; {
			l, found := t.firstLaneOfNextList(gateID, last)
			if !found {
				break
			}
			closedLanes, last = append(closedLanes, l), l.ClosedLaneListKey()
		}
	}
	if afterList == (rules.ClosedLaneListKey{}) {
		t.cacheClosedLanes(search, closedLanes)
	}
	return closedLanes, len(closedLanes) == maxClosedListsPerCall && locallyClosedIDs == ""
}

// firstLaneOfNextList returns the best lane of the gate's next list after the given one. (A list holds the
// lanes of one user in one queue; the zero key comes before all lists.) The first query searches the rest of
// the same queue, and the second query the later queues. A single condition on the pair (queue, uid) would be
// slow: SQLite would use the index only for the queue, and read all lanes of the given list again.
func (t *Tx) firstLaneOfNextList(gateID int64, previous rules.ClosedLaneListKey) (l rules.Lane, found bool) {
	const condition = `INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = ?`
	if previous != (rules.ClosedLaneListKey{}) {
		l, found, _ = t.storedLane(condition+` AND queue = ? AND uid > ? ORDER BY uid, head_rank, head_seq LIMIT 1`,
			gateID, previous.Queue, previous.UID)
	}
	if !found {
		l, found, _ = t.storedLane(condition+` AND queue > ? ORDER BY queue, uid, head_rank, head_seq LIMIT 1`, gateID,
			previous.Queue)
	}
	return l, found
}

// maxClosedListsPerCall is the maximum number of lists that one call of EachClosedLaneList visits.
const maxClosedListsPerCall = 250
