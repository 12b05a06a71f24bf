package sql

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/store/rules"
)

// userLanes are the open lanes of a user that make demands.
type userLanes struct {
	best *rules.Lane
	next rules.Position // the head of the second one
}

// Shared implements rules.Tx.
func (t *tx) Shared(of *rules.Queue) bool {
	q := t.s.mem.lanes.state(of.Name)
	return len(q.open)+len(q.users) > 1
}

// Contenders implements rules.Tx.
func (t *tx) Contenders(of *rules.Queue, each func(l *rules.Lane, served int64)) {
	q := t.s.mem.lanes.state(of.Name)
	for _, l := range q.open {
		if own, keyed := q.users[l.UID]; keyed && l.Head.After(own.best.Head) {
			l = own.best
		}
		each(l, q.served[l.UID])
	}
	for uid, own := range q.users {
		if plain := t.s.mem.lanes.plain[laneName{q.Name, uid}]; plain == nil || plain.HeapIndex < 0 {
			each(own.best, q.served[uid])
		}
	}
}

// ServeUser implements rules.Tx.
func (t *tx) ServeUser(of *rules.Queue, uid int) rules.Turn {
	q, m := t.s.mem.lanes.state(of.Name), &t.s.mem
	m.served++
	turn := rules.Turn{At: m.served, Before: q.served[uid]}
	t.setServed(q, uid, turn.At)
	if int64(len(q.served)) > 2*servedKept { // a user with an older turn goes first in any case
		old := m.served - servedKept
		t.then = append(t.then, func() { maps.DeleteFunc(q.served, func(_ int, at int64) bool { return at < old }) })
	}
	return turn
}

// servedKept is the number of the node's last turns for which it is known whose they were.
const servedKept = 1000

// Unserve implements rules.Tx.
func (t *tx) Unserve(of *rules.Queue, uid int, turn rules.Turn) {
	if q := t.s.mem.lanes.state(of.Name); turn.At > q.servedFrom {
		t.setServed(q, uid, min(q.served[uid], turn.Before))
	}
}

func (t *tx) setServed(q *queueState, uid int, at int64) {
	was := q.served[uid]
	if q.served == nil {
		q.served = map[int]int64{}
	}
	q.served[uid] = at
	t.undo = append(t.undo, func() { q.served[uid] = was })
	t.showServed(q)
}

// showServed makes the turns of a queue visible to readers once the transaction is stored.
func (t *tx) showServed(q *queueState) {
	if slices.Contains(t.servedIn, q) {
		return
	}
	t.servedIn = append(t.servedIn, q)
	t.then = append(t.then, func() {
		served := maps.Clone(q.served)
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.s.servedSeen[q.Name] = served
	})
}

// before returns the better one of two positions.
func before(a, b rules.Position) rules.Position {
	if a.After(b) {
		return b
	}
	return a
}

// findUsers looks up the users with open lanes that make demands in a queue, one user after the other.
func (t *tx) findUsers(q *queueState) error {
	q.users = map[int]userLanes{}
	for last := math.MinInt; ; {
		uid, of, err := t.openLanes(q, `uid > ?`, last)
		if err != nil {
			return err
		}
		if uid == nil {
			break
		}
		if last = *uid; of.best != nil {
			q.users[last] = of
		}
	}
	q.stale = false
	clear(q.staleUsers)
	return nil
}

// openLanes reads the two best open lanes that make demands, of the first user that meets a condition. uid is nil if none
// does.
func (t *tx) openLanes(q *queueState, condition string, than int) (uid *int, of userLanes, err error) {
	here := t.s.mem.lanes.here
	of.next = rules.End
	err = t.query(func(r row) (bool, error) {
		l, err := readLane(r)
		if uid != nil && l.UID != *uid {
			return false, err
		}
		uid = &l.UID
		switch {
		case here[l.ID] != 0:
		case of.best == nil:
			of.best = &l
		default:
			of.next = l.Head
			return false, err
		}
		return true, err
	}, `SELECT `+laneColumns+` FROM lanes INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = ? AND `+condition+` ORDER BY uid, head_rank, head_seq LIMIT ?`, q.Name, int64(than), int64(2+len(here)))
	return uid, of, err
}
