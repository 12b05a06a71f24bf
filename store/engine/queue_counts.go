package engine

import (
	"encoding/json"
	"fmt"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// This file keeps the counts of queues. Each transaction changes the counts in the writer's memory. It stores
// the changed counts as a list in the row of meta, because every commit writes that row. When the list gets
// long, its entries move to the table queues. A count is therefore the entry in meta, or the row of the queue
// if meta has no entry.

// queueWithSavedCounts returns the queue with a name. It first saves the queue's counts, so that a rollback
// restores them.
func (t *Tx) queueWithSavedCounts(name string) *lanes.Queue {
	q := t.engine.mem.lanes.Queue(name)
	if _, known := t.queueCountsBefore[q]; !known {
		if t.queueCountsBefore == nil {
			t.queueCountsBefore = map[*lanes.Queue]records.QueueCounts{}
		}
		t.queueCountsBefore[q] = q.StoredCounts()
	}
	return q
}

// AdjustRetainedCount implements rules.Counters. It adds an ended job to the counts for its queue's own
// retention, or subtracts it.
func (t *Tx) AdjustRetainedCount(j *rules.Job, sign int) {
	t.adjustRetainedCounts(j.Queue, records.QueueCounts{RetainedJobs: int64(sign),
		RetainedBytes: int64(sign) * j.OutputBytes})
}

// adjustRetainedCounts changes the counts of the ended jobs to which a queue's own retention applies. It adds the
// given numbers, which may be negative.
func (t *Tx) adjustRetainedCounts(name string, countChange records.QueueCounts) {
	q, m := t.queueWithSavedCounts(name), &t.engine.mem
	m.retainedJobs -= q.RetainedJobs
	// A damaged row may not have been counted, so keep the counts from going below 0.
	q.RetainedJobs, q.RetainedBytes = max(0, q.RetainedJobs+countChange.RetainedJobs),
		max(0, q.RetainedBytes+countChange.RetainedBytes)
	m.retainedJobs += q.RetainedJobs
}

// countWaitingIn adds n to the number of waiting jobs of a queue. uid is the user who enqueued the jobs.
func (t *Tx) countWaitingIn(name string, uid int, n int64) {
	q := t.queueWithSavedCounts(name)
	if !q.Exists() {
		q.UID = uid
	}
	q.Waiting = max(0, q.Waiting+n)
}

// updateQueueList updates the list in meta with the counts that the transaction changed, as updateUserList does for
// users.
func (t *Tx) updateQueueList() {
	m := &t.engine.mem
	var changedQueues []string
	for q, old := range t.queueCountsBefore {
		if q.StoredCounts() != old {
			changedQueues = append(changedQueues, q.Name)
		}
	}
	updateList(&m.listedQueues, &m.queueList, changedQueues, func(name string) { t.writeQueue(m.lanes.Queue(name)) },
		func(name string) string {
			c := m.lanes.Queue(name).StoredCounts()
			return fmt.Sprintf("%s=%d/%d/%d/%d ", name, c.Waiting, c.UID, c.RetainedJobs, c.RetainedBytes)
		})
}

// writeQueue stores the counts and the rule of a queue in its row, or deletes the row if it would hold no information.
func (t *Tx) writeQueue(q *lanes.Queue) {
	if !q.HasRow() {
		t.Exec(`DELETE FROM queues WHERE name = ?`, q.Name)
		return
	}
	var ruleJSON []byte
	if q.Rule != store.DefaultQueueRule {
		ruleJSON, _ = json.Marshal(q.Rule) // cannot fail: a rule has only numbers and booleans
	}
	t.Exec(`INSERT INTO queues (name, waiting, uid, kept, kept_bytes, rule) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid, kept = excluded.kept,
		kept_bytes = excluded.kept_bytes, rule = excluded.rule`,
		q.Name, q.Waiting, int64(q.UID), q.RetainedJobs, q.RetainedBytes, string(ruleJSON))
}

// loadQueueCounts replaces the counts from readQueues with the newer counts in the table meta, and counts the
// leases.
func (e *Engine) loadQueueCounts() error {
	m := &e.mem
	counts, err := records.ParseQueueCounts(m.queueList)
	for name, c := range counts {
		m.lanes.Queue(name).SetStoredCounts(c)
		m.listedQueues = append(m.listedQueues, name)
	}
	for _, q := range m.lanes.Queues {
		m.retainedJobs += q.RetainedJobs
	}
	m.recountLeased()
	return err
}
