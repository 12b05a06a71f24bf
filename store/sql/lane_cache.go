package sql

import (
	"maps"
	"slices"

	"github.com/queuectl/queuectl/store/rules"
)

// laneCache holds what a transaction knows about the lanes that make demands, and about their gates. Where users take
// turns, a claim moves the head of a lane for each job, and each time it needs to know which lanes wait for the same
// gates. With the cache it does not query the database for each job.
//
// Changed lanes are written before the next statement that may read them: exec, count, query and number do that. Method
// row does not, since it writes rows of other tables only, and neither does fillAhead, which reads jobs only.
type laneCache struct {
	unwritten map[int64]rules.Lane // changed lanes to write, with the Shut to store
	// shut holds the lanes that searches found to be shut on a gate. It is cleared when a lane is shut or opened.
	shut      map[shutLook][]rules.Lane
	gateRules map[int64]rules.Rule // without Used
}

// writeLater puts a changed lane into the cache; writeLanes writes it.
func (t *tx) writeLater(l rules.Lane) {
	if t.unwritten == nil {
		t.unwritten = map[int64]rules.Lane{}
	}
	t.unwritten[l.ID] = l
}

// writeLanes begins the transaction if it has not begun, and writes the changed lanes.
func (t *tx) writeLanes() error {
	if err := t.beginOnce(); err != nil || len(t.unwritten) == 0 {
		return err
	}
	lanes := t.unwritten
	t.unwritten = nil
	for _, id := range slices.Sorted(maps.Keys(lanes)) {
		l := lanes[id]
		err := t.conn.row(`UPDATE lanes SET head_rank = ?, head_seq = ?, priority = ?, shut = ? WHERE id = ?`,
			l.Head.Rank, l.Head.Seq, l.Priority, l.Shut, l.ID)
		if err != nil {
			return err
		}
	}
	return nil
}
