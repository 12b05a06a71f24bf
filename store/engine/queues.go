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

// EachReadyQueue implements rules.Queues. It passes the queues in which a job can start to the callback, beginning
// with the queue that is served next.
func (t *Tx) EachReadyQueue(visit func(*rules.Queue) bool) error {
	if err := t.refreshStaleQueues(); err != nil {
		return err
	}
	t.lanes.EachReadyQueue(visit)
	return nil
}

// Queue implements rules.Queues. It returns the state of a queue.
func (t *Tx) Queue(name string) *rules.Queue {
	return &t.lanes.FindOrAddQueue(name).Queue
}

// QueueWaitReason implements rules.Queues. It says why no more jobs of a queue can start: the queue is paused
// or has too many running jobs.
func (t *Tx) QueueWaitReason(name string) store.WaitReason {
	q := t.lanes.FindOrAddQueue(name)
	return store.WaitReason{GateKeyOrQueueName: name, UsedUnits: q.LeasedJobs, MaxUnits: q.Rule.Concurrency,
		NeededUnits: 1, QueuePaused: q.Rule.Paused}
}

// waitReasonJobsPerTx is the number of jobs for which one transaction computes why they wait. Between two such
// transactions, other callers can commit.
const waitReasonJobsPerTx = 100

// WaitReasons implements store.Forecast. It waits for transactions, because only a transaction may use the
// numbers of used units of locks, rates and resources, which are kept in memory.
func (e *Engine) WaitReasons(ctx context.Context, seqs []int64) (map[int64][]store.WaitReason, error) {
	all := map[int64][]store.WaitReason{}
	for step := range slices.Chunk(seqs, waitReasonJobsPerTx) {
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

// QueueWeightsDiffer implements rules.Queues. It reports whether any queue has a weight other than 1.
func (t *Tx) QueueWeightsDiffer() bool { return t.lanes.WeightedQueueCount > 0 }

// LastServedQueueTurn implements rules.Queues. It returns the turn number of the queue from which a job was claimed
// last.
func (t *Tx) LastServedQueueTurn() int64 { return t.lastServedQueueTurn }

// RecordQueueTurn implements rules.Queues. It records that a job was claimed from a queue in the turn with this number,
// and sets the number of the queue's next turn.
func (t *Tx) RecordQueueTurn(q *rules.Queue, usedTurn, nextTurn int64) {
	l := t.lanes.FindOrAddQueue(q.Name)
	old := l.NextTurn
	t.OnRollback(func() { l.NextTurn = old })
	l.NextTurn, t.lastServedQueueTurn = nextTurn, usedTurn
}

// BestLane implements rules.Lanes. It considers the lanes of a queue in which a job can start. It returns the lane
// whose first job is best, and the position of the first job of the second-best lane. (A lane holds the waiting jobs of
// one queue and user that need the same locks and other limits.)
func (t *Tx) BestLane(q *rules.Queue) (rules.Lane, rules.Position, error) {
	l, next := t.lanes.FindOrAddQueue(q.Name).BestLane()
	return l, next, nil
}

// removeUnneededQueues removes queues from memory if memory holds many: it removes the queues without waiting jobs,
// leased jobs and a rule. This loses no information, because a queue that is created again under the same name has the
// same state. The queues are removed only after the commit, because a rollback may need them. One call checks at most
// maxChangedJobsPerStep queues.
func (t *Tx) removeUnneededQueues() (more bool, err error) {
	if int64(len(t.lanes.Queues)) <= t.engine.maxEmptyLanes {
		return false, nil
	}
	t.OnCommitted(func() {
		scanned := 0
		for name, q := range t.lanes.Queues { // in random order, so that later calls check other queues
			if scanned++; scanned > maxChangedJobsPerStep {
				return
			}
			if q.IsEvictable() && q.NextTurn <= t.lastServedQueueTurn {
				delete(t.lanes.Queues, name)
				t.engine.UpdatePublishedState(func(state *reads.ReaderState) { delete(state.LastTurnsByQueue, name) })
			}
		}
	})
	return false, nil
}

// Queues implements store.QueueRules. It lists the existing queues. For each, it says since when the queue's
// oldest ready job has been waiting.
func (e *Engine) Queues(ctx context.Context) (states []store.QueueState, err error) {
	known := func(*Tx) (list []store.QueueState, err error) {
		for _, q := range e.cache.lanes.Queues {
			if q.Exists() {
				list = append(list, store.QueueState{Name: q.Name, Rule: q.Rule, WaitingJobs: q.WaitingJobs,
					LeasedJobs: q.LeasedJobs})
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
	return states, e.FillOldestReadySince(ctx, states)
}

// checkQueueLimits returns an error if new jobs exceed the maximum number of waiting jobs of a queue, or if their
// user would create too many queues. jobsPerQueue is the number of new jobs by queue.
func (t *Tx) checkQueueLimits(uid int, newJobsByQueue map[string]int64) error {
	if err := rules.CheckQueueWaitingLimits(t, newJobsByQueue); err != nil {
		return err
	}
	begun := len(t.namesOfNewQueues(newJobsByQueue))
	if begun == 0 {
		return nil
	}
	for _, q := range t.lanes.Queues {
		if q.CreatorUID == uid && q.Rule == store.DefaultQueueRule && q.Exists() {
			begun++
		}
	}
	if begun > store.MaxQueuesPerUser {
		return queue.Errorf(queue.CodeQueueFull,
			"you already have jobs in %d queues, the maximum per user; use a queue that "+
				"has jobs of yours, or a queue that has settings", store.MaxQueuesPerUser)
	}
	return nil
}

// namesOfNewQueues returns the names in newJobsByQueue for which no queue exists yet, sorted.
func (t *Tx) namesOfNewQueues(newJobsByQueue map[string]int64) (names []string) {
	for name := range newJobsByQueue {
		if q := t.lanes.Queues[name]; q == nil || !q.Exists() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// addQueueQueries reads the queues' counts and rules.
func (m *databaseCache) addQueueQueries(queries *database.QueryBatch) {
	queries.Add(func(r database.Row) (bool, error) {
		q := m.lanes.FindOrAddQueue(r.Text(0))
		q.SetStoredCounts(records.QueueCounts{WaitingJobs: r.Int64(1), CreatorUID: int(r.Int64(2)), RetainedJobs: r.Int64(3),
			RetainedOutputBytes: r.Int64(4)})
		rule := store.DefaultQueueRule
		if text := r.BytesView(5); len(text) > 0 {
			if err := json.Unmarshal(text, &rule); err != nil || rule.Weight < 1 {
				return false, database.DamageError(fmt.Sprintf(`the table "queues" has invalid settings for queue %s: %s`, q.Name,
					queue.ClipForMessage(string(text))))
			}
		}
		m.lanes.WeightedQueueCount += int(records.BoolToInt(rule.Weight != 1))
		q.SetRule(rule)
		return true, nil
	}, `SELECT name, waiting, uid, kept, kept_bytes, rule FROM queues`)
}
