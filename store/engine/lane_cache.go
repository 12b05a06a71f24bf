package engine

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/rules"
)

// laneCache holds what a transaction knows about lanes with demands. (Such a lane holds the jobs of one queue
// and user that need the same locks or other limits.) When users take turns, a claim changes a lane for every
// job that it takes. For each change it must know which other lanes wait for the same limits. The cache saves
// a query each time.
//
// Exec, ExecCount, Query and QueryNumber first write the changed lanes, because their statement may read
// them. WriteRow does not, since it only writes rows of other tables. Neither does readLaneJobs, which only
// reads jobs.
type laneCache struct {
	unwrittenLanes map[int64]rules.Lane // changed lanes to be written; ClosedBy is the value to be stored
	// closedLanesBySearch holds the results of searches for the lanes that a lock or other limit closes. It is
	// cleared whenever a lane is closed or opened.
	closedLanesBySearch map[closedLaneSearch][]rules.Lane
}

// cacheLane puts a changed lane (a list of jobs) into the cache, for writeCachedLanes to write.
func (t *Tx) cacheLane(l rules.Lane) {
	if t.unwrittenLanes == nil {
		t.unwrittenLanes = map[int64]rules.Lane{}
	}
	t.unwrittenLanes[l.ID] = l
}

// writeCachedLanes writes the changed lanes to the table. It begins the transaction if it has not begun.
func (t *Tx) writeCachedLanes() error {
	if t.EnsureBegun() != nil || len(t.unwrittenLanes) == 0 {
		return t.statementErr
	}
	lanes := t.unwrittenLanes
	t.unwrittenLanes = nil
	for _, id := range slices.Sorted(maps.Keys(lanes)) {
		l := lanes[id]
		t.WriteRow(`UPDATE lanes SET head_rank = ?, head_seq = ?, priority = ?, shut = ? WHERE id = ?`,
			l.Head.Rank, l.Head.Seq, l.Priority, l.ClosedBy, l.ID)
	}
	return t.statementErr
}
