package engine

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/rules"
)

// HasSeveralUsers implements rules.UserTurns. It reports whether several users may have open lanes in a queue.
func (t *Tx) HasSeveralUsers(q *rules.Queue) bool {
	return t.engine.mem.lanes.Queue(q.Name).HasSeveralUsers()
}

// EachContender implements rules.UserTurns. It passes the best open lane of every user in a queue to the
// callback.
func (t *Tx) EachContender(q *rules.Queue, visit func(l *rules.Lane, lastTurn int64)) {
	ls := t.engine.mem.lanes
	ls.Contenders(ls.Queue(q.Name), visit)
}

// RecordUserTurn implements rules.UserTurns. It records that a claim took a job of a user, and returns the turn.
func (t *Tx) RecordUserTurn(rulesQueue *rules.Queue, uid int) rules.UserTurn {
	q, m := t.engine.mem.lanes.Queue(rulesQueue.Name), &t.engine.mem
	m.claimCount++
	turn := rules.UserTurn{Number: m.claimCount, Previous: q.LastTurns[uid]}
	t.setLastTurn(q, uid, turn.Number)
	if int64(len(q.LastTurns)) > 2*maxRememberedTurns { // forget older turns: a user without a turn goes first anyway
		old := m.claimCount - maxRememberedTurns
		t.afterCommit = append(t.afterCommit, func() {
			maps.DeleteFunc(q.LastTurns, func(_ int, turnNumber int64) bool { return turnNumber < old })
		})
	}
	return turn
}

// maxRememberedTurns is the number of the node's last turns whose users are remembered.
const maxRememberedTurns = 1000

// UndoUserTurn implements rules.UserTurns. It undoes a turn that RecordUserTurn has recorded.
func (t *Tx) UndoUserTurn(rulesQueue *rules.Queue, uid int, turn rules.UserTurn) {
	if q := t.engine.mem.lanes.Queue(rulesQueue.Name); turn.Number > q.FixedTurns {
		t.setLastTurn(q, uid, min(q.LastTurns[uid], turn.Previous))
	}
}

// setLastTurn sets the number of a user's last turn in a queue.
func (t *Tx) setLastTurn(q *lanes.Queue, uid int, turnNumber int64) {
	old := q.LastTurns[uid]
	if q.LastTurns == nil {
		q.LastTurns = map[int]int64{}
	}
	q.LastTurns[uid] = turnNumber
	t.undo = append(t.undo, func() { q.LastTurns[uid] = old })
	t.publishTurns(q)
}

// publishTurns makes the turns of a queue visible to readers once the transaction is stored.
func (t *Tx) publishTurns(q *lanes.Queue) {
	if !slices.Contains(t.changedTurns, q) {
		t.changedTurns = append(t.changedTurns, q)
	}
}

// refreshStaleQueues reads the open lanes of queues whose lanes in memory are out of date.
func (t *Tx) refreshStaleQueues() error { return t.engine.mem.lanes.Refresh(t.readStaleLanes) }

// readStaleLanes reads the stale open lanes with demands of a queue. It uses one query for each user. On a server,
// where each query takes a round trip, it uses a single query.
func (t *Tx) readStaleLanes(q *lanes.Queue) error {
	if t.isRemote() {
		return t.readStaleLanesInOneQuery(q)
	}
	if !q.Stale {
		for uid := range q.StaleUsers {
			t.readNextOpenLanes(q, `uid = ?`, uid)
		}
		return t.err
	}
	for last := new(math.MinInt); last != nil; {
		last = t.readNextOpenLanes(q, `uid > ?`, *last)
	}
	return t.err
}

// readStaleLanesInOneQuery does the same as readStaleLanes in a single query for all users. It leaves out lanes
// that are closed only for this node.
func (t *Tx) readStaleLanesInOneQuery(q *lanes.Queue) error {
	var uids []int
	if !q.Stale {
		uids = slices.AppendSeq([]int{}, maps.Keys(q.StaleUsers))
	}
	here := slices.Collect(maps.Keys(t.engine.mem.lanes.ClosedHere))
	return t.engine.shared.ReadOpenLanes(t, q.Name, uids, lanes.MaxOpenPerUser+1, here, q.AddOpen)
}

// readNextOpenLanes reads the first open lanes of the lowest uid that meets a condition, and returns that uid. It
// returns nil if no user meets it.
func (t *Tx) readNextOpenLanes(q *lanes.Queue, condition string, uidArg int) (uid *int) {
	t.eachLane(func(l rules.Lane) bool {
		if uid != nil && l.UID != *uid {
			return false
		}
		uid = &l.UID
		q.AddOpen(l)
		return true
	}, `INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = ? AND `+condition+
		` ORDER BY uid, head_rank, head_seq LIMIT ?`, q.Name, int64(uidArg), int64(lanes.MaxOpenPerUser+1))
	return uid
}
