package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// closedSearch identifies a search for lanes with demands that a gate has closed. It finds the best lane of a
// queue (of one user, or of all users), or the best lane of each list. A list holds one user's lanes in a
// queue.
type closedSearch struct {
	gate     int64
	queue    string
	uid      int
	allUsers bool
	perList  bool
}

func (t *Tx) cacheClosed(search closedSearch, list []rules.Lane) {
	if t.closedLanes == nil {
		t.closedLanes = map[closedSearch][]rules.Lane{}
	}
	t.closedLanes[search] = list
}

// FirstShut implements rules.Tx.
func (t *Tx) FirstShut(gate int64, queueName string) (l rules.Lane, found bool, err error) {
	return t.firstClosed(gate, queueName, nil)
}

// NextShut implements rules.Tx.
func (t *Tx) NextShut(gate int64, list rules.List) (l rules.Lane, found bool, err error) {
	return t.firstClosed(gate, list.Queue, &list.UID)
}

// firstClosed returns the best lane in a queue that a gate has closed: of one user, or of all users if uid is
// nil.
func (t *Tx) firstClosed(gate int64, queueName string, uid *int) (l rules.Lane, found bool, err error) {
	ls := t.s.mem.lanes
	if gate < 0 {
		if plain := ls.Plain[lanes.Name{Queue: queueName, UID: userOf(gate)}]; plain != nil && plain.ClosedBy == gate {
			l, found = *plain, true
		}
	}
	closedHere := ls.ClosedHereBy(gate)
	if closedHere == "" && (!t.s.mem.gates.Exist || gate < 0 && ls.OverQuota[gate] == 0) {
		return l, found, nil
	}
	search := closedSearch{gate: gate, queue: queueName, allUsers: uid == nil}
	if uid != nil {
		search.uid = *uid
	}
	other, known := t.closedLanes[search]
	if !known {
		if other, err = t.findClosed(search, closedHere); err != nil {
			return l, found, err
		}
		t.cacheClosed(search, other)
	}
	if len(other) > 0 && (!found || l.Head.After(other[0].Head)) {
		l, found = other[0], true
	}
	return l, found, nil
}

// findClosed finds the best lane with demands that a gate has closed. closedHere lists the ids of lanes that
// are closed only for this node.
func (t *Tx) findClosed(search closedSearch, closedHere string) (list []rules.Lane, err error) {
	best := func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if err == nil && (search.allUsers || l.UID == search.uid) && (len(list) == 0 || list[0].Head.After(l.Head)) {
			l.ClosedBy = search.gate
			list = []rules.Lane{l}
		}
		return closedHere != "", err
	}
	switch {
	case closedHere != "":
		err = t.Query(best, `SELECT `+records.LaneColumns+` FROM lanes WHERE `+t.IsOneOf("id")+` AND queue = ?`, closedHere,
			search.queue)
	case search.allUsers:
		err = t.Query(best, `SELECT `+records.LaneColumns+` FROM lanes INDEXED BY lanes_shut
			WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? ORDER BY head_rank, head_seq LIMIT 1`,
			search.gate, search.queue)
	default:
		err = t.Query(best, `SELECT `+records.LaneColumns+` FROM lanes INDEXED BY lanes_shut_user
			WHERE demands <> '' AND shut <> 0 AND shut = ? AND queue = ? AND uid = ? ORDER BY head_rank, head_seq LIMIT 1`,
			search.gate, search.queue, int64(search.uid))
	}
	return list, err
}

// userOf returns the uid of the user whose quota is represented by a gate; see rules.UserGate.
func userOf(gate int64) int {
	if gate%2 != 0 {
		return int((gate + 1) / 2)
	}
	return int((-gate - 2) / 2)
}

// Shut implements rules.Tx. It reads all the lanes before the first call of each, because each may change
// lanes.
func (t *Tx) Shut(gate int64, after rules.List, each func(rules.Lane) (bool, error)) error {
	ls := t.s.mem.lanes
	best := map[rules.List]rules.Lane{}
	take := func(l rules.Lane) {
		if first, found := best[l.List()]; l.List().Compare(after) > 0 && (!found || first.Head.After(l.Head)) {
			best[l.List()] = l
		}
	}
	if gate < 0 {
		for _, l := range ls.ByUID[userOf(gate)] {
			if l.ClosedBy == gate {
				take(*l)
			}
		}
	}
	closedHere := ls.ClosedHereBy(gate)
	if closedHere != "" || t.s.mem.gates.Exist && (gate > 0 || ls.OverQuota[gate] > 0) {
		list, more, err := t.closedLists(gate, after, closedHere)
		if err != nil {
			return err
		}
		for _, l := range list {
			take(l)
		}
		if more { // leave lanes in lists after the last one to the next call
			last := list[len(list)-1].List()
			maps.DeleteFunc(best, func(list rules.List, _ rules.Lane) bool { return list.Compare(last) > 0 })
		}
	}
	for _, list := range slices.SortedFunc(maps.Keys(best), rules.List.Compare) {
		if more, err := each(best[list]); !more || err != nil {
			return err
		}
	}
	return nil
}

// closedLists returns lanes with demands that a gate has closed. If closedHere lists lanes that are closed
// only for this node, it returns exactly these lanes. If closedHere is empty, it returns the best lane of
// each list that follows the list after. more is true if there may be further lists.
func (t *Tx) closedLists(gate int64, after rules.List, closedHere string) (list []rules.Lane, more bool, err error) {
	search := closedSearch{gate: gate, allUsers: true, perList: true}
	if known, found := t.closedLanes[search]; found && after == (rules.List{}) {
		return known, len(known) == maxLists && closedHere == "", nil
	}
	if closedHere != "" {
		err = t.Query(func(r database.Row) (bool, error) {
			l, err := records.ReadLane(r)
			l.ClosedBy = gate
			list = append(list, l)
			return true, err
		}, `SELECT `+records.LaneColumns+` FROM lanes WHERE `+t.IsOneOf("id"), closedHere)
	} else {
		for last := after; len(list) < maxLists; last = list[len(list)-1].List() {
			l, found, err := t.listAfter(gate, last)
			if err != nil {
				return nil, false, err
			}
			if !found {
				break
			}
			list = append(list, l)
		}
	}
	if err == nil && after == (rules.List{}) {
		t.cacheClosed(search, list)
	}
	return list, len(list) == maxLists && closedHere == "", err
}

// listAfter returns the best lane in the gate's list that follows the list last. The zero list comes before
// all others. It uses two queries, one for the rest of the last list's queue and one for later queues. With a
// single condition on the pair (queue, uid), SQLite would use the index only for the queue, and read all
// lanes of the last list.
func (t *Tx) listAfter(gate int64, last rules.List) (l rules.Lane, found bool, err error) {
	const shut = `INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = ?`
	if last != (rules.List{}) {
		l, found, err = t.storedLane(shut+` AND queue = ? AND uid > ? ORDER BY uid, head_rank, head_seq LIMIT 1`,
			gate, last.Queue, int64(last.UID))
	}
	if err == nil && !found {
		l, found, err = t.storedLane(shut+` AND queue > ? ORDER BY queue, uid, head_rank, head_seq LIMIT 1`, gate,
			last.Queue)
	}
	return l, found, err
}

// maxLists is the number of lists of one gate that a single call of Shut visits.
const maxLists = 250
