package engine

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// HasSeveralUsers implements rules.UserTurns. It reports whether jobs of more than one user may be ready to
// start in a queue.
func (t *Tx) HasSeveralUsers(q *rules.Queue) bool {
	return t.lanes.FindOrAddQueue(q.Name).HasSeveralUsers()
}

// EachContendingLane implements rules.UserTurns. For every user in a queue it calls visit with the open lane whose next
// job is the best. A lane is the list of a user's waiting jobs that need the same locks and other limits. The lane is
// open if its next job may start.
func (t *Tx) EachContendingLane(q *rules.Queue, visit func(l *rules.Lane, lastTurn int64)) {
	ls := t.lanes
	ls.EachContendingLane(ls.FindOrAddQueue(q.Name), visit)
}

// RecordUserTurn implements rules.UserTurns. It records that a claim took a job of a user from a queue, and
// returns what UndoUserTurn needs.
func (t *Tx) RecordUserTurn(rulesQueue *rules.Queue, uid int) rules.UserTurn {
	q := t.lanes.FindOrAddQueue(rulesQueue.Name)
	t.claimedJobCount++
	turn := rules.UserTurn{TurnNumber: t.claimedJobCount, PreviousTurnNumber: q.LastTurnByUID[uid]}
	t.setLastUserTurn(q, uid, turn.TurnNumber)
	// forget older turns: a user without a turn goes first anyway
	if int64(len(q.LastTurnByUID)) > 2*maxRememberedUserTurns {
		old := t.claimedJobCount - maxRememberedUserTurns
		t.OnCommitted(func() {
			maps.DeleteFunc(q.LastTurnByUID, func(_ int, turnNumber int64) bool { return turnNumber < old })
		})
	}
	return turn
}

// maxRememberedUserTurns is how many of the node's last turns a queue always remembers. If a queue remembers more
// than 2*maxRememberedUserTurns users, it forgets those whose turns are older.
const maxRememberedUserTurns = 1000

// UndoUserTurn implements rules.UserTurns. It undoes a turn that RecordUserTurn has recorded, because the claimed job
// was returned before it started.
func (t *Tx) UndoUserTurn(rulesQueue *rules.Queue, uid int, turn rules.UserTurn) {
	if q := t.lanes.FindOrAddQueue(rulesQueue.Name); turn.TurnNumber > q.LastPermanentTurn {
		t.setLastUserTurn(q, uid, min(q.LastTurnByUID[uid], turn.PreviousTurnNumber))
	}
}

// setLastUserTurn sets the number of a user's last turn in a queue.
func (t *Tx) setLastUserTurn(q *lanes.Queue, uid int, turnNumber int64) {
	if q.LastTurnByUID == nil {
		q.LastTurnByUID = map[int]int64{}
	}
	restoreOnRollback(t, q.LastTurnByUID, uid)
	q.LastTurnByUID[uid] = turnNumber
	t.markUserTurnsChanged(q)
}

// markUserTurnsChanged notes that users have taken turns in a queue, so that readers see the turns after the commit.
func (t *Tx) markUserTurnsChanged(q *lanes.Queue) {
	if !slices.Contains(t.queuesWithChangedTurns, q) {
		t.queuesWithChangedTurns = append(t.queuesWithChangedTurns, q)
	}
}

// refreshStaleQueues updates the queues whose lanes in memory are out of date. It reads from the database the
// lanes in which a job may start.
func (t *Tx) refreshStaleQueues() error {
	return t.lanes.RefreshBestLanes(t.readStaleLanes)
}

// readStaleLanes reads again from the database the lanes of a queue that are out of date in memory. It makes
// one query for each user. On a server, where each query takes a round trip, it makes a single query for all
// users.
func (t *Tx) readStaleLanes(q *lanes.Queue) error {
	if t.usesDatabaseServer() {
		return t.readStaleLanesInOneQuery(q)
	}
	if !q.AllUsersLanesStale {
		for uid := range q.UIDsWithStaleLanes {
			t.readOpenLanesOfNextUser(q, `uid = ?`, uid)
		}
		return t.statementErr
	}
	for last := new(math.MinInt); last != nil; {
		last = t.readOpenLanesOfNextUser(q, `uid > ?`, *last)
	}
	return t.statementErr
}

// readStaleLanesInOneQuery reads again, in a single query for all users, the lanes of a queue that are out of
// date in memory. The query leaves out lanes whose jobs may not start on this node.
func (t *Tx) readStaleLanesInOneQuery(q *lanes.Queue) error {
	var uids []int
	if !q.AllUsersLanesStale {
		uids = slices.AppendSeq([]int{}, maps.Keys(q.UIDsWithStaleLanes))
	}
	here := slices.Collect(maps.Keys(t.lanes.LocalClosingGateByLaneID))
	return t.engine.sharedDatabase.ReadOpenLanes(t, q.Name, uids, lanes.MaxOpenLanesPerUser+1, here, q.AddOpenLane)
}

// readOpenLanesOfNextUser finds the lowest uid that meets an SQL condition, reads the first lanes of this user in
// which a job may start, and returns the uid. It returns nil if no user meets the condition.
func (t *Tx) readOpenLanesOfNextUser(q *lanes.Queue, uidCondition string, uidArg int) (uid *int) {
	t.forEachStoredLane(func(l rules.Lane) bool {
		if uid != nil && l.UID != *uid {
			return false
		}
		uid = &l.UID
		q.AddOpenLane(l)
		return true
	}, `INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = ? AND `+uidCondition+
		` ORDER BY uid, head_rank, head_seq LIMIT ?`, q.Name, uidArg, lanes.MaxOpenLanesPerUser+1)
	return uid
}
