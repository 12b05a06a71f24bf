package sqlite

import (
	"container/heap"
	"context"
	"errors"
	"math"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// queueState is a queue as the writer keeps it.
type queueState struct {
	rules.Queue
	most   int // jobs that may be leased, 0 is any number
	paused bool
	leased int
	lanes  int            // with those that have no job
	open   open           // its plain lanes that are open
	keyed  bool           // it may have open lanes that make demands
	stale  bool           // best and next are not known
	set    bool           // it has a rule of its own
	best   *rules.Lane    // of those, nil if there is none
	next   rules.Position // the head of the second one
	at     int            // among the ready ones, -1 if it is not
}

// readyQueues are queues, the one with the best head first.
type readyQueues []*queueState

// Len implements heap.Interface.
func (q readyQueues) Len() int { return len(q) }

// Less implements heap.Interface.
func (q readyQueues) Less(i, j int) bool { return q[j].Head.After(q[i].Head) }

// Swap implements heap.Interface.
func (q readyQueues) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *readyQueues) Push(x any) {
	l := x.(*queueState)
	l.at = len(*q)
	*q = append(*q, l)
}

// Pop implements heap.Interface.
func (q *readyQueues) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	l.at = -1
	return l
}

// second is the best head but for that of the first one, of a heap.
func second[T any](heap []T, head func(T) rules.Position) rules.Position {
	best := rules.End
	for _, x := range heap[min(1, len(heap)):min(3, len(heap))] { // the children of the root
		if best.After(head(x)) {
			best = head(x)
		}
	}
	return best
}

// state is a queue, made anew if there is none.
func (ls *lanes) state(name string) *queueState {
	q := ls.queues[name]
	if q == nil {
		q = &queueState{Queue: rules.Queue{Name: name, Weight: 1}, at: -1}
		ls.queues[name] = q
	}
	return q
}

// markStale has the best lanes of a queue that make demands looked up again.
func (ls *lanes) markStale(q *queueState) {
	q.keyed, q.best, q.next = true, nil, rules.End
	if !q.stale {
		q.stale = true
		ls.stale = append(ls.stale, q)
	}
	ls.put(q)
}

// put has a queue stand where its head and its room say.
func (ls *lanes) put(q *queueState) {
	q.Room = math.MaxInt
	switch {
	case q.paused:
		q.Room = 0
	case q.most > 0:
		q.Room = max(0, q.most-q.leased)
	}
	q.Head = rules.End
	if len(q.open) > 0 {
		q.Head = q.open[0].Head
	}
	if q.best != nil && q.Head.After(q.best.Head) {
		q.Head = q.best.Head
	}
	switch stands := q.Room > 0 && (len(q.open) > 0 || q.best != nil); {
	case stands && q.at < 0:
		heap.Push(&ls.ready, q)
	case stands:
		heap.Fix(&ls.ready, q.at)
	case q.at >= 0:
		heap.Remove(&ls.ready, q.at)
	}
}

// refresh looks up what is not known of queues.
func (t *tx) refresh() error {
	ls := t.s.mem.lanes
	for len(ls.stale) > 0 {
		q := ls.stale[len(ls.stale)-1]
		q.best, q.next = nil, rules.End
		err := t.query(func(r row) (bool, error) {
			l, err := readLane(r)
			if q.best == nil {
				q.best = &l
				return true, err
			}
			q.next = l.Head
			return false, err
		}, `SELECT `+laneColumns+` FROM lanes INDEXED BY lanes_open WHERE demands <> '' AND shut = 0 AND queue = ? ORDER BY head_rank, head_seq`, q.Name)
		if err != nil {
			return err
		}
		q.stale, q.keyed = false, q.best != nil
		ls.stale = ls.stale[:len(ls.stale)-1]
		ls.put(q)
	}
	return nil
}

// Queues implements rules.Tx.
func (t *tx) Queues(each func(*rules.Queue) bool) error {
	if err := t.refresh(); err != nil {
		return err
	}
	list := t.s.mem.lanes.ready
	if len(list) == 0 || !each(&list[0].Queue) || len(list) == 1 {
		return nil
	}
	next := 1
	if len(list) > 2 && list[1].Head.After(list[2].Head) {
		next = 2
	}
	if !each(&list[next].Queue) {
		return nil
	}
	for i, q := range list {
		if i != 0 && i != next && !each(&q.Queue) {
			return nil
		}
	}
	return nil
}

// Queue implements rules.Tx.
func (t *tx) Queue(name string) *rules.Queue { return &t.s.mem.lanes.state(name).Queue }

// Weighted implements rules.Tx.
func (t *tx) Weighted() bool { return t.s.mem.lanes.weights > 0 }

// Turn implements rules.Tx.
func (t *tx) Turn() int64 { return t.s.mem.turn }

// Serve implements rules.Tx.
func (t *tx) Serve(q *rules.Queue, turn, next int64) {
	l := t.s.mem.lanes.state(q.Name)
	was := l.Pass
	t.undo = append(t.undo, func() { l.Pass = was })
	l.Pass, t.s.mem.turn = next, turn
}

// Best implements rules.Tx.
func (t *tx) Best(of *rules.Queue) (rules.Lane, rules.Position, error) {
	q := t.s.mem.lanes.state(of.Name)
	if len(q.open) == 0 {
		return *q.best, q.next, nil
	}
	l, next := q.open[0], second(q.open, func(l *rules.Lane) rules.Position { return l.Head })
	switch {
	case q.best == nil:
	case l.Head.After(q.best.Head):
		next, l = l.Head, q.best
		if next.After(q.next) {
			next = q.next
		}
	case next.After(q.best.Head):
		next = q.best.Head
	}
	return *l, next, nil
}

// tidyQueues forgets a step of the queues that have no lane, no leased job and no rule, and that a new
// one of their name would be like, if there are many. It does so once the transaction is stored: till
// then something may be undone that knows them.
func (t *tx) tidyQueues() {
	m := &t.s.mem
	if int64(len(m.lanes.queues)) <= t.s.lanesKept {
		return
	}
	t.then = append(t.then, func() {
		looked := 0
		for name, q := range m.lanes.queues { // at random
			if looked++; looked > moveStep {
				return
			}
			if q.lanes == 0 && q.leased == 0 && !q.set && !q.stale && q.at < 0 && q.Pass <= m.turn {
				delete(m.lanes.queues, name)
			}
		}
	})
}

// SetQueue has a queue go by a rule.
func (s *Store) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	if rule.Weight < 1 || rule.Concurrency < 0 {
		return errors.New("sqlite: a queue's weight is at least 1, its concurrency at least 0")
	}
	return s.do(ctx, prompt, func(t *tx) error {
		m := &t.s.mem
		q := m.lanes.state(name)
		was, weights := *q, m.lanes.weights
		t.undo = append(t.undo, func() {
			q.Weight, q.most, q.paused, q.set = was.Weight, was.most, was.paused, was.set
			m.lanes.weights = weights
			m.lanes.put(q)
		})
		passes := map[*queueState]int64{}
		for _, other := range m.lanes.queues {
			passes[other] = other.Pass
			other.Pass = 0
		}
		t.undo = append(t.undo, func() {
			for other, pass := range passes {
				other.Pass = pass
			}
		})
		m.turn = 0
		m.lanes.weights += int(bit(rule.Weight != 1) - bit(q.Weight != 1))
		q.Weight, q.most, q.paused, q.set = rule.Weight, rule.Concurrency, rule.Paused, rule != store.QueueRule{Weight: 1}
		m.lanes.put(q)
		t.rules.Readied = true
		return nil
	})
}
