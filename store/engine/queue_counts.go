package engine

import (
	"encoding/json"
	"fmt"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// This file keeps the counts of queues. Each transaction changes the counts in memory. It also stores the
// changed counts as a list in the row of the table meta, because every commit writes that row anyway. When
// the list is long, its entries are moved to the rows of the table queues. So the stored count of a queue is
// its entry in meta or, if meta has no entry for it, the one in its row.

// queueWithSavedCounts returns the queue with a name. It first saves the counts of the queue, so that a
// rollback can restore them.
func (t *Tx) queueWithSavedCounts(name string) *lanes.Queue {
	q := t.lanes.FindOrAddQueue(name)
	if _, known := t.queueCountsBefore[q]; !known {
		if t.queueCountsBefore == nil {
			t.queueCountsBefore = map[*lanes.Queue]records.QueueCounts{}
		}
		t.queueCountsBefore[q] = q.StoredCounts()
	}
	return q
}

// AdjustRetainedCounts implements rules.Counters. If sign is 1, it adds an ended job to the counts of jobs to
// which their queue's own retention settings apply. If sign is -1, it subtracts the job.
func (t *Tx) AdjustRetainedCounts(j *rules.Job, sign int) {
	t.adjustRetainedCounts(j.Queue, int64(sign), int64(sign)*j.OutputBytes)
}

// adjustRetainedCounts changes the counts of the ended jobs to which the queue's own retention settings
// apply. It adds the given numbers, which may be negative.
func (t *Tx) adjustRetainedCounts(queueName string, jobs, outputBytes int64) {
	q := t.queueWithSavedCounts(queueName)
	t.ownRetentionJobCount -= q.RetainedJobs
	// Keep the counts from going below 0, since a job with a damaged row may not have been counted.
	q.RetainedJobs, q.RetainedOutputBytes = max(0, q.RetainedJobs+jobs), max(0, q.RetainedOutputBytes+outputBytes)
	t.ownRetentionJobCount += q.RetainedJobs
}

// addToWaitingCount adds n to the number of waiting jobs of a queue. uid is the user who enqueued the jobs.
func (t *Tx) addToWaitingCount(queueName string, uid int, delta int64) {
	q := t.queueWithSavedCounts(queueName)
	if !q.Exists() {
		q.CreatorUID = uid
	}
	q.WaitingJobs = max(0, q.WaitingJobs+delta)
}

// updateMetaQueueList updates the list in the table meta with the counts of queues that the transaction has
// changed.
func (t *Tx) updateMetaQueueList() {
	var changedQueues []string
	for q, old := range t.queueCountsBefore {
		if q.StoredCounts() != old {
			changedQueues = append(changedQueues, q.Name)
		}
	}
	updateMetaList(&t.metaQueueNames, &t.metaQueuesText, changedQueues,
		func(name string) { t.writeQueueRow(t.lanes.FindOrAddQueue(name)) },
		func(name string) string {
			c := t.lanes.FindOrAddQueue(name).StoredCounts()
			return fmt.Sprintf("%s=%d/%d/%d/%d ", name, c.WaitingJobs, c.CreatorUID, c.RetainedJobs, c.RetainedOutputBytes)
		})
}

// writeQueueRow stores the counts and the rule of a queue in its row. If there is nothing to store, it deletes
// the row.
func (t *Tx) writeQueueRow(q *lanes.Queue) {
	if !q.NeedsDatabaseRow() {
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
		q.Name, q.WaitingJobs, q.CreatorUID, q.RetainedJobs, q.RetainedOutputBytes, string(ruleJSON))
}

// loadQueueCounts replaces the counts that addQueueQueries has read by the newer ones in the table meta, and
// counts the leased jobs of each queue.
func (m *databaseCache) loadQueueCounts() error {
	counts, err := records.ParseQueueCounts(m.metaQueuesText)
	for name, c := range counts {
		m.lanes.FindOrAddQueue(name).SetStoredCounts(c)
		m.metaQueueNames = append(m.metaQueueNames, name)
	}
	for _, q := range m.lanes.Queues {
		m.ownRetentionJobCount += q.RetainedJobs
	}
	m.recountLeasedJobs()
	return err
}
