package engine

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// userLanes holds the best open lanes with demands of one user in a queue.
type userLanes struct {
	open     []*rules.Lane  // in the order of their heads; has at least one
	restFrom rules.Position // lower bound of the heads of the user's open lanes that are not in memory
}

// maxOpenPerUser is the largest number of open lanes of each user that are kept in memory. While a claim
// moves the heads of these lanes, it usually finds the best lane without a query.
const maxOpenPerUser = 4

// secondHead returns the head of the user's second-best lane, or a position that is not after it.
func (u *userLanes) secondHead() rules.Position {
	if len(u.open) > 1 {
		return u.open[1].Head
	}
	return u.restFrom
}

// set records a lane's new head and whether the lane is open.
func (u *userLanes) set(l rules.Lane) {
	u.open = slices.DeleteFunc(slices.Clone(u.open), func(other *rules.Lane) bool { return other.ID == l.ID })
	if l.ClosedBy == rules.Open {
		u.add(l)
	}
}

// add adds an open lane.
func (u *userLanes) add(l rules.Lane) {
	if l.Head.After(u.restFrom) {
		return
	}
	index := slices.IndexFunc(u.open, func(other *rules.Lane) bool { return other.Head.After(l.Head) })
	if index < 0 {
		index = len(u.open)
	}
	if u.open = slices.Insert(u.open, index, &l); len(u.open) > maxOpenPerUser {
		u.restFrom, u.open = u.open[maxOpenPerUser].Head, u.open[:maxOpenPerUser]
	}
}

// Shared implements rules.Tx.
func (t *Tx) Shared(rulesQueue *rules.Queue) bool {
	q := t.s.mem.lanes.state(rulesQueue.Name)
	return len(q.openLanes)+len(q.users) > 1
}

// Contenders implements rules.Tx.
func (t *Tx) Contenders(rulesQueue *rules.Queue, each func(l *rules.Lane, served int64)) {
	q := t.s.mem.lanes.state(rulesQueue.Name)
	for _, l := range q.openLanes {
		if demandLanes, found := q.users[l.UID]; found && l.Head.After(demandLanes.open[0].Head) {
			l = demandLanes.open[0]
		}
		each(l, q.lastTurns[l.UID])
	}
	for uid, demandLanes := range q.users {
		if plain := t.s.mem.lanes.plain[laneName{q.Name, uid}]; plain == nil || plain.HeapIndex < 0 {
			each(demandLanes.open[0], q.lastTurns[uid])
		}
	}
}

// ServeUser implements rules.Tx.
func (t *Tx) ServeUser(rulesQueue *rules.Queue, uid int) rules.Turn {
	q, m := t.s.mem.lanes.state(rulesQueue.Name), &t.s.mem
	m.turnCount++
	turn := rules.Turn{Number: m.turnCount, Previous: q.lastTurns[uid]}
	t.setLastTurn(q, uid, turn.Number)
	if int64(len(q.lastTurns)) > 2*turnsRemembered { // users with older turns go first in any case
		old := m.turnCount - turnsRemembered
		t.afterCommit = append(t.afterCommit, func() {
			maps.DeleteFunc(q.lastTurns, func(_ int,
				at int64) bool {
				return at < old
			})
		})
	}
	return turn
}

// turnsRemembered is the number of the node's last turns whose users are remembered.
const turnsRemembered = 1000

// Unserve implements rules.Tx.
func (t *Tx) Unserve(rulesQueue *rules.Queue, uid int, turn rules.Turn) {
	if q := t.s.mem.lanes.state(rulesQueue.Name); turn.Number > q.fixedTurns {
		t.setLastTurn(q, uid, min(q.lastTurns[uid], turn.Previous))
	}
}

func (t *Tx) setLastTurn(q *queueState, uid int, at int64) {
	old := q.lastTurns[uid]
	if q.lastTurns == nil {
		q.lastTurns = map[int]int64{}
	}
	q.lastTurns[uid] = at
	t.undo = append(t.undo, func() { q.lastTurns[uid] = old })
	t.publishTurns(q)
}

// publishTurns makes the turns of a queue visible to readers once the transaction is stored.
func (t *Tx) publishTurns(q *queueState) {
	if slices.Contains(t.changedTurns, q) {
		return
	}
	t.changedTurns = append(t.changedTurns, q)
	t.afterCommit = append(t.afterCommit, func() {
		served := maps.Clone(q.lastTurns)
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.s.publishedTurns[q.Name] = served
	})
}

// earlier returns the better one of two positions.
func earlier(a, b rules.Position) rules.Position {
	if a.After(b) {
		return b
	}
	return a
}

// findUsers reads the open lanes with demands of a queue. It reads the lanes of all users if q.stale is set,
// and else only the lanes of the users in q.staleUsers.
func (t *Tx) findUsers(q *queueState) error {
	if q.stale || q.users == nil {
		q.users = map[int]userLanes{}
	}
	for uid := range q.staleUsers {
		delete(q.users, uid)
	}
	if err := t.openLanes(q); err != nil {
		return err
	}
	q.stale = false
	clear(q.staleUsers)
	return nil
}

// openLanes reads the lanes for findUsers. It uses one query for each user, or a single query where each
// query takes a round trip.
func (t *Tx) openLanes(q *queueState) error {
	if t.remote() {
		return t.openLanesOfUsers(q)
	}
	if !q.stale {
		for uid := range q.staleUsers {
			if _, err := t.nextOpenLanes(q, `uid = ?`, uid); err != nil {
				return err
			}
		}
		return nil
	}
	for last := math.MinInt; ; {
		uid, err := t.nextOpenLanes(q, `uid > ?`, last)
		if err != nil || uid == nil {
			return err
		}
		last = *uid
	}
}

// openLanesOfUsers reads the open lanes of all the users in one query, where openLanes needs one query for
// each user. It leaves out lanes that are closed only for this node.
func (t *Tx) openLanesOfUsers(q *queueState) error {
	var uids []int
	if !q.stale {
		uids = slices.AppendSeq([]int{}, maps.Keys(q.staleUsers))
	}
	here := slices.Collect(maps.Keys(t.s.mem.lanes.closedHere))
	return t.s.shared.OpenLanes(t, q.Name, uids, maxOpenPerUser+1, here, q.addOpen)
}

// nextOpenLanes reads the open lanes of the first user that meets a condition, and returns that user. It
// returns nil if no user meets it.
func (t *Tx) nextOpenLanes(q *queueState, condition string, uidArg int) (uid *int, err error) {
	err = t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if err != nil || uid != nil && l.UID != *uid {
			return false, err
		}
		uid = &l.UID
		q.addOpen(l)
		return true, nil
	}, `SELECT `+records.LaneColumns+` FROM lanes INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = ? AND `+
		condition+` ORDER BY uid, head_rank, head_seq LIMIT ?`, q.Name, int64(uidArg), int64(maxOpenPerUser+1))
	return uid, err
}

// addOpen adds a lane that was read from the database as open.
func (q *queueState) addOpen(l rules.Lane) {
	lanesOfUser := q.openOf(l.UID)
	lanesOfUser.add(l)
	q.users[l.UID] = lanesOfUser
}

// openOf returns a user's open lanes with demands.
func (q *queueState) openOf(uid int) userLanes {
	if lanesOfUser, known := q.users[uid]; known {
		return lanesOfUser
	}
	return userLanes{restFrom: rules.EndPosition}
}

// setOpen updates the user's open lanes in memory when a lane with demands changes. It marks them to be read
// again only if none is left in memory.
func (ls *lanes) setOpen(q *queueState, l rules.Lane) {
	if q.stale || q.staleUsers[l.UID] {
		ls.markStaleUser(q, l.UID)
		return
	}
	lanesOfUser := q.openOf(l.UID)
	switch lanesOfUser.set(l); {
	case len(lanesOfUser.open) > 0:
		if q.users == nil {
			q.users = map[int]userLanes{}
		}
		q.users[l.UID] = lanesOfUser
	case lanesOfUser.restFrom != rules.EndPosition: // other open lanes exist in the database
		ls.markStaleUser(q, l.UID)
		return
	default:
		delete(q.users, l.UID)
	}
	ls.forgetBest(q)
}
