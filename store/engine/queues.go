package engine

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// queueState is a queue in the writer's memory.
type queueState struct {
	rules.Queue
	rule   store.QueueRule
	uid    int // the user who enqueued the first of its current jobs
	leased int
	// keptJobs is the number of kept jobs that ended while the queue had its own retention. keptBytes is the
	// total size of their outputs.
	keptJobs, keptBytes int64
	lanes               int          // number of lanes, including those without jobs
	openLanes           openLaneHeap // the queue's open lanes without demands
	mayHaveDemands      bool         // the queue may have open lanes with demands
	inStaleQueues       bool         // the queue is in lanes.staleQueues
	stale               bool         // the fields users, best and secondHead are out of date
	staleUsers          map[int]bool // users whose entries in the field users are out of date
	users               map[int]userLanes
	best                *rules.Lane    // best open lane with demands; nil if none is open
	secondHead          rules.Position // head of the second-best open lane with demands
	// lastTurns holds, for each user, the value of memory.turnCount when a job of the user was last claimed.
	// A turn up to fixedTurns was taken under an earlier rule of the queue, so giving it back has no effect.
	lastTurns  map[int]int64
	fixedTurns int64
	readyIndex int // index in lanes.ready, -1 if the queue is not in it
}

// readyQueues is a heap of queues. The queue with the best head is first.
type readyQueues []*queueState

// Len implements heap.Interface.
func (q readyQueues) Len() int { return len(q) }

// Less implements heap.Interface.
func (q readyQueues) Less(i, j int) bool { return q[j].Head.After(q[i].Head) }

// Swap implements heap.Interface.
func (q readyQueues) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].readyIndex, q[j].readyIndex = i, j
}

// Push implements heap.Interface.
func (q *readyQueues) Push(x any) {
	l := x.(*queueState)
	l.readyIndex = len(*q)
	*q = append(*q, l)
}

// Pop implements heap.Interface.
func (q *readyQueues) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	l.readyIndex = -1
	return l
}

// secondBest returns the second-best head in a heap.
func secondBest[T any](heap []T, head func(T) rules.Position) rules.Position {
	best := rules.EndPosition
	for _, x := range heap[min(1, len(heap)):min(3, len(heap))] { // the second-best element is a child of the root
		if best.After(head(x)) {
			best = head(x)
		}
	}
	return best
}

// state returns the queue with a name, and creates it in memory if necessary.
func (ls *lanes) state(name string) *queueState {
	q := ls.queues[name]
	if q == nil {
		q = &queueState{Queue: rules.Queue{Name: name, Weight: 1}, rule: store.DefaultQueueRule, readyIndex: -1}
		ls.queues[name] = q
	}
	return q
}

// markStale marks all users' open lanes with demands in a queue as stale, so that the next claim reads them again.
func (ls *lanes) markStale(q *queueState) {
	q.users, q.stale = nil, true
	ls.forgetBest(q)
}

// markStaleUser marks one user's open lanes with demands as stale, so that the next claim reads them again.
func (ls *lanes) markStaleUser(q *queueState, uid int) {
	if q.staleUsers == nil {
		q.staleUsers = map[int]bool{}
	}
	q.staleUsers[uid] = true
	ls.forgetBest(q)
}

func (ls *lanes) forgetBest(q *queueState) {
	q.mayHaveDemands, q.best, q.secondHead = true, nil, rules.EndPosition
	if !q.inStaleQueues {
		q.inStaleQueues = true
		ls.staleQueues = append(ls.staleQueues, q)
	}
	ls.updateQueue(q)
}

// updateQueue updates a queue's room and head, and its position among the ready queues.
func (ls *lanes) updateQueue(q *queueState) {
	q.Room = math.MaxInt
	switch {
	case q.rule.Paused:
		q.Room = 0
	case q.rule.Concurrency > 0:
		q.Room = max(0, q.rule.Concurrency-q.leased)
	}
	q.Head = rules.EndPosition
	if len(q.openLanes) > 0 {
		q.Head = q.openLanes[0].Head
	}
	if q.best != nil && q.Head.After(q.best.Head) {
		q.Head = q.best.Head
	}
	switch ready := q.Room > 0 && (len(q.openLanes) > 0 || q.best != nil); {
	case ready && q.readyIndex < 0:
		heap.Push(&ls.ready, q)
	case ready:
		heap.Fix(&ls.ready, q.readyIndex)
	case q.readyIndex >= 0:
		heap.Remove(&ls.ready, q.readyIndex)
	}
}

// refresh reads the open lanes of the queues in lanes.staleQueues again.
func (t *Tx) refresh() error {
	ls := t.s.mem.lanes
	for len(ls.staleQueues) > 0 {
		q := ls.staleQueues[len(ls.staleQueues)-1]
		if q.stale || len(q.staleUsers) > 0 {
			if err := t.findUsers(q); err != nil {
				return err
			}
		}
		q.best, q.secondHead = nil, rules.EndPosition
		for _, lanes := range q.users {
			switch best := lanes.open[0]; {
			case q.best == nil:
				q.best, q.secondHead = best, lanes.secondHead()
			case q.best.Head.After(best.Head):
				q.best, q.secondHead = best, earlier(q.best.Head, lanes.secondHead())
			default:
				q.secondHead = earlier(q.secondHead, best.Head)
			}
		}
		q.mayHaveDemands, q.inStaleQueues = q.best != nil, false
		ls.staleQueues = ls.staleQueues[:len(ls.staleQueues)-1]
		ls.updateQueue(q)
	}
	return nil
}

// Queues implements rules.Tx.
func (t *Tx) Queues(each func(*rules.Queue) bool) error {
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
func (t *Tx) Queue(name string) *rules.Queue { return &t.s.mem.lanes.state(name).Queue }

// QueueObstacle implements rules.Tx.
func (t *Tx) QueueObstacle(name string) store.Obstacle {
	q := t.s.mem.lanes.state(name)
	return store.Obstacle{Key: name, Usage: q.leased, Limit: q.rule.Concurrency, Need: 1, Paused: q.rule.Paused}
}

// obstacleStep is the number of jobs whose obstacles one transaction reads. Other callers can commit between
// the transactions.
const obstacleStep = 100

// Obstacles implements store.Forecast. It asks the writer, because only the writer's memory holds how much of
// each gate is in use.
func (s *Engine) Obstacles(ctx context.Context, seqs []int64) (map[int64][]store.Obstacle, error) {
	all := map[int64][]store.Obstacle{}
	for step := range slices.Chunk(seqs, obstacleStep) {
		found, err := readInWriter(ctx, s, func(t *Tx) (map[int64][]store.Obstacle, error) {
			found := map[int64][]store.Obstacle{}
			for _, seq := range step {
				list, err := t.rules.Obstacles(seq)
				if err != nil && !errors.Is(err, queue.ErrNotFound) {
					return nil, err
				}
				if len(list) > 0 {
					found[seq] = list
				}
			}
			return found, nil
		})
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// Weighted implements rules.Tx.
func (t *Tx) Weighted() bool { return t.s.mem.lanes.weights > 0 }

// Turn implements rules.Tx.
func (t *Tx) Turn() int64 { return t.s.mem.lastPass }

// Serve implements rules.Tx.
func (t *Tx) Serve(q *rules.Queue, turn, next int64) {
	l := t.s.mem.lanes.state(q.Name)
	old := l.Pass
	t.undo = append(t.undo, func() { l.Pass = old })
	l.Pass, t.s.mem.lastPass = next, turn
}

// Best implements rules.Tx.
func (t *Tx) Best(rulesQueue *rules.Queue) (rules.Lane, rules.Position, error) {
	q := t.s.mem.lanes.state(rulesQueue.Name)
	if len(q.openLanes) == 0 {
		return *q.best, q.secondHead, nil
	}
	l, next := q.openLanes[0], secondBest(q.openLanes, func(l *rules.Lane) rules.Position { return l.Head })
	switch {
	case q.best == nil:
	case l.Head.After(q.best.Head):
		next, l = l.Head, q.best
		if next.After(q.secondHead) {
			next = q.secondHead
		}
	case next.After(q.best.Head):
		next = q.best.Head
	}
	return *l, next, nil
}

// tidyQueues removes queues without lanes, leased jobs and rule from memory, if there are many queues. No
// information is lost, since a queue that is created again under the name is equal. The queues are removed
// after the commit, because a rollback may need them. One call checks at most moveStep queues.
func (t *Tx) tidyQueues() {
	m := &t.s.mem
	if int64(len(m.lanes.queues)) <= t.s.lanesKept {
		return
	}
	t.afterCommit = append(t.afterCommit, func() {
		scanned := 0
		for name, q := range m.lanes.queues { // in random order
			if scanned++; scanned > moveStep {
				return
			}
			if q.lanes == 0 && !q.hasRow() && !q.inStaleQueues && q.readyIndex < 0 && q.Pass <= m.lastPass {
				delete(m.lanes.queues, name)
				t.s.mu.Lock()
				delete(t.s.publishedTurns, name)
				t.s.mu.Unlock()
			}
		}
	})
}

// exists reports whether the queue exists for users: it has a rule, or jobs that have not ended.
func (q *queueState) exists() bool {
	return q.rule != store.DefaultQueueRule || q.Waiting > 0 || q.leased > 0
}

// hasRow reports whether the queue needs a row: it exists, or its own retention still applies to ended jobs.
func (q *queueState) hasRow() bool { return q.exists() || q.keptJobs > 0 || q.keptBytes > 0 }

// Queues lists the queues that exist, with the age of their oldest ready jobs.
func (s *Engine) Queues(ctx context.Context) (list []store.QueueState, err error) {
	known := func(*Tx) (list []store.QueueState, err error) {
		for _, q := range s.mem.lanes.queues {
			if q.exists() {
				list = append(list, store.QueueState{Name: q.Name, Rule: q.rule, Waiting: q.Waiting, Leased: q.leased})
			}
		}
		return list, nil
	}
	if s.readOnly { // no writer exists in read-only mode, so read without it
		list, err = known(nil)
	} else {
		list, err = readInWriter(ctx, s, known)
	}
	slices.SortFunc(list, func(a, b store.QueueState) int { return strings.Compare(a.Name, b.Name) })
	if err != nil {
		return nil, err
	}
	return list, s.Read(ctx, func(r *reads.Reader) error {
		left := reads.MaxScreenLanes
		for i := range list {
			if left <= 0 {
				return nil
			}
			n, err := oldestOf(r, &list[i], left)
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	})
}

// oldestOf reads since when the first job of each of the queue's lanes is ready, and sets q.Oldest to the
// earliest of these times. It reads up to limit lanes and returns how many it read.
func oldestOf(r *reads.Reader, q *store.QueueState, limit int) (n int, err error) {
	var lanes []int64
	err = r.Query(func(r database.Row) (bool, error) {
		lanes = append(lanes, r.Num(0))
		return len(lanes) < limit, nil
	}, `SELECT id FROM lanes INDEXED BY lanes_name WHERE queue = ? LIMIT ?`, q.Name, int64(limit))
	q.Oldest = 0
	for _, id := range lanes {
		if err != nil {
			break
		}
		var since int64
		since, err = r.Number(
			`SELECT since FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = ? ORDER BY rank, seq LIMIT 1`, id)
		if at := queue.Millis(since); at != 0 && (q.Oldest == 0 || at < q.Oldest) {
			q.Oldest = at
		}
	}
	return len(lanes), err
}

// admitQueues returns an error if the jobs exceed the limit of a queue, or if the user would have jobs in too
// many queues without settings.
func (t *Tx) admitQueues(uid int, perQueue map[string]int64) error {
	if err := rules.AdmitQueues(t, perQueue); err != nil {
		return err
	}
	begun := len(t.newQueues(perQueue))
	if begun == 0 {
		return nil
	}
	for _, q := range t.s.mem.lanes.queues {
		if q.uid == uid && q.rule == store.DefaultQueueRule && q.exists() {
			begun++
		}
	}
	if begun > store.MaxQueues {
		return queue.Errorf(queue.CodeFull, "you already have jobs in %d queues, the maximum per user; use a queue that "+
			"has jobs of yours, or a queue that has settings", store.MaxQueues)
	}
	return nil
}

// newQueues returns the names of those queues that do not exist yet, sorted.
func (t *Tx) newQueues(perQueue map[string]int64) (names []string) {
	for name := range perQueue {
		if q := t.s.mem.lanes.queues[name]; q == nil || !q.exists() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readQueues reads the queues' counts and rules.
func (s *Engine) readQueues(all *database.Batch) {
	m := &s.mem
	all.Add(func(r database.Row) (bool, error) {
		q := m.lanes.state(r.Text(0))
		q.setCount(records.QueueCount{Waiting: r.Num(1), UID: int(r.Num(2)), KeptJobs: r.Num(3), KeptBytes: r.Num(4)})
		rule := store.DefaultQueueRule
		if text := r.View(5); len(text) > 0 {
			if err := json.Unmarshal(text, &rule); err != nil || rule.Weight < 1 {
				return false, database.Damage(fmt.Sprintf(`the table "queues" has invalid settings for queue %s: %s`, q.Name,
					queue.Clip(string(text))))
			}
		}
		m.lanes.weights += int(records.Bit(rule.Weight != 1))
		q.setRule(rule)
		return true, nil
	}, `SELECT name, waiting, uid, kept, kept_bytes, rule FROM queues`)
}
