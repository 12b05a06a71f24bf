package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Queues implements rules.Queues. It passes the queues in which a job can start to the callback, beginning
// with the queue that is served next.
func (t *Tx) Queues(visit func(*rules.Queue) bool) error {
	if err := t.refreshStaleQueues(); err != nil {
		return err
	}
	t.engine.mem.lanes.EachReady(visit)
	return nil
}

// Queue implements rules.Queues. It returns the state of a queue.
func (t *Tx) Queue(name string) *rules.Queue { return &t.engine.mem.lanes.Queue(name).Queue }

// QueueWaitReason implements rules.Queues. It says why no more jobs of a queue can start: the queue is paused
// or has too many running jobs.
func (t *Tx) QueueWaitReason(name string) store.WaitReason {
	q := t.engine.mem.lanes.Queue(name)
	return store.WaitReason{Key: name, Usage: q.Leased, Limit: q.Rule.Concurrency, NeededUnits: 1, Paused: q.Rule.Paused}
}

// waitReasonStep is the number of jobs for which one transaction computes why they wait. Between two such
// transactions, other callers can commit.
const waitReasonStep = 100

// WaitReasons implements store.Forecast. It waits for transactions, because only a transaction may use the
// numbers of used units of locks, rates and resources, which are kept in memory.
func (e *Engine) WaitReasons(ctx context.Context, seqs []int64) (map[int64][]store.WaitReason, error) {
	all := map[int64][]store.WaitReason{}
	for step := range slices.Chunk(seqs, waitReasonStep) {
		found, err := readWriterMemory(ctx, e, func(t *Tx) (map[int64][]store.WaitReason, error) {
			found := map[int64][]store.WaitReason{}
			for _, seq := range step {
				list, err := t.rules.WaitReasons(seq)
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

// WeightsDiffer implements rules.Queues. It reports whether any queue has a weight other than 1.
func (t *Tx) WeightsDiffer() bool { return t.engine.mem.lanes.Weights > 0 }

// LastServedTurn implements rules.Queues. It returns the turn number of the queue that was served last.
func (t *Tx) LastServedTurn() int64 { return t.engine.mem.lastServedTurn }

// RecordQueueTurn implements rules.Queues. It records that a queue was served in a turn, and sets its next turn.
func (t *Tx) RecordQueueTurn(q *rules.Queue, turn, nextTurn int64) {
	l := t.engine.mem.lanes.Queue(q.Name)
	old := l.NextTurn
	t.undo = append(t.undo, func() { l.NextTurn = old })
	l.NextTurn, t.engine.mem.lastServedTurn = nextTurn, turn
}

// BestLane implements rules.Lanes. It considers the lanes of a queue in which a job can start. It returns the
// lane whose first job is best, and the position of the first job of the second-best lane. (A lane holds the
// waiting jobs of one queue and user with the same demands.)
func (t *Tx) BestLane(q *rules.Queue) (rules.Lane, rules.Position, error) {
	l, next := t.engine.mem.lanes.Queue(q.Name).BestLane()
	return l, next, nil
}

// tidyQueues removes queues from memory if there are many: those without waiting jobs, leased jobs and a
// rule. This loses no information, because a queue that is created again under the same name has the same
// state. They are removed only after the commit, because a rollback may need them. One call checks at most
// moveStep queues.
func (t *Tx) tidyQueues() (more bool, err error) {
	m := &t.engine.mem
	if int64(len(m.lanes.Queues)) <= t.engine.maxEmptyLanes {
		return false, nil
	}
	t.afterCommit = append(t.afterCommit, func() {
		scanned := 0
		for name, q := range m.lanes.Queues { // in random order, so that later calls check other queues
			if scanned++; scanned > moveStep {
				return
			}
			if q.IsIdle() && q.NextTurn <= m.lastServedTurn {
				delete(m.lanes.Queues, name)
				t.engine.Publish(func(state *reads.State) { delete(state.LastTurns, name) })
			}
		}
	})
	return false, nil
}

// Queues implements store.QueueRules. It lists the existing queues. For each, it says since when the queue's
// oldest ready job has been waiting.
func (e *Engine) Queues(ctx context.Context) (states []store.QueueState, err error) {
	known := func(*Tx) (list []store.QueueState, err error) {
		for _, q := range e.mem.lanes.Queues {
			if q.Exists() {
				list = append(list, store.QueueState{Name: q.Name, Rule: q.Rule, Waiting: q.Waiting, Leased: q.Leased})
			}
		}
		return list, nil
	}
	if e.readOnly { // a read-only engine executes no transactions
		states, err = known(nil)
	} else {
		states, err = readWriterMemory(ctx, e, known)
	}
	slices.SortFunc(states, func(a, b store.QueueState) int { return strings.Compare(a.Name, b.Name) })
	if err != nil {
		return nil, err
	}
	return states, e.ReadOldest(ctx, states)
}

// admitQueues returns an error if new jobs exceed the maximum number of waiting jobs of a queue, or if their
// user would create too many queues. jobsPerQueue is the number of new jobs by queue.
func (t *Tx) admitQueues(uid int, jobsPerQueue map[string]int64) error {
	if err := rules.AdmitQueues(t, jobsPerQueue); err != nil {
		return err
	}
	begun := len(t.newQueues(jobsPerQueue))
	if begun == 0 {
		return nil
	}
	for _, q := range t.engine.mem.lanes.Queues {
		if q.UID == uid && q.Rule == store.DefaultQueueRule && q.Exists() {
			begun++
		}
	}
	if begun > store.MaxQueues {
		return queue.Errorf(queue.CodeQueueFull,
			"you already have jobs in %d queues, the maximum per user; use a queue that "+
				"has jobs of yours, or a queue that has settings", store.MaxQueues)
	}
	return nil
}

// newQueues returns the names in jobsPerQueue for which no queue exists yet, sorted.
func (t *Tx) newQueues(jobsPerQueue map[string]int64) (names []string) {
	for name := range jobsPerQueue {
		if q := t.engine.mem.lanes.Queues[name]; q == nil || !q.Exists() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readQueues reads the queues' counts and rules.
func (e *Engine) readQueues(queries *database.QueryBatch) {
	m := &e.mem
	queries.Add(func(r database.Row) (bool, error) {
		q := m.lanes.Queue(r.Text(0))
		q.SetStoredCounts(records.QueueCounts{Waiting: r.Num(1), UID: int(r.Num(2)), RetainedJobs: r.Num(3),
			RetainedBytes: r.Num(4)})
		rule := store.DefaultQueueRule
		if text := r.View(5); len(text) > 0 {
			if err := json.Unmarshal(text, &rule); err != nil || rule.Weight < 1 {
				return false, database.DamageError(fmt.Sprintf(`the table "queues" has invalid settings for queue %s: %s`, q.Name,
					queue.Clip(string(text))))
			}
		}
		m.lanes.Weights += int(records.BoolToInt(rule.Weight != 1))
		q.SetRule(rule)
		return true, nil
	}, `SELECT name, waiting, uid, kept, kept_bytes, rule FROM queues`)
}
