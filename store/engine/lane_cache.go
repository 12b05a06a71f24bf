package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/rules"
)

// laneCache holds what a transaction knows about lanes with demands. When users take turns, a claim moves the
// head of a lane for every job that it takes. For each move, the claim must know which other lanes wait for the
// same gates. The cache saves a query for each of these moves.
//
// Exec, ExecCount, Query and QueryNumber write the changed lanes before they execute a statement that may read
// them. WriteRow does not write them, since it only writes rows of other tables. Neither does readLanes, which
// only reads jobs.
type laneCache struct {
	unwrittenLanes map[int64]rules.Lane // changed lanes to be written, with the ClosedBy to be stored
	// closedLanes holds the result of each search for lanes that a gate closes. It is cleared when any lane
	// is closed or opened.
	closedLanes map[closedLaneSearch][]rules.Lane
}

// cacheLane puts a changed lane into the cache, for writeLanes to write.
func (t *Tx) cacheLane(l rules.Lane) {
	if t.unwrittenLanes == nil {
		t.unwrittenLanes = map[int64]rules.Lane{}
	}
	t.unwrittenLanes[l.ID] = l
}

// writeLanes begins the transaction if necessary, and writes the changed lanes.
func (t *Tx) writeLanes() error {
	if t.EnsureBegun() != nil || len(t.unwrittenLanes) == 0 {
		return t.err
	}
	lanes := t.unwrittenLanes
	t.unwrittenLanes = nil
	for _, id := range slices.Sorted(maps.Keys(lanes)) {
		l := lanes[id]
		t.WriteRow(`UPDATE lanes SET head_rank = ?, head_seq = ?, priority = ?, shut = ? WHERE id = ?`,
			l.Head.Rank, l.Head.Seq, l.Priority, l.ClosedBy, l.ID)
	}
	return t.err
}
