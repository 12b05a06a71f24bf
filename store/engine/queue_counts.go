package engine

import (
	"fmt"

	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// This file keeps the counts of queues. Each transaction changes the counts in the writer's memory. It stores
// the changed counts as a list in the row of meta, because every commit writes that row. When the list gets
// long, its entries move to the table queues. A count is therefore the entry in meta, or the row of the queue
// if meta has no entry.

// queueToCount returns the queue with a name. A rollback restores its counts.
func (t *Tx) queueToCount(name string) *lanes.Queue {
	q := t.s.mem.lanes.Queue(name)
	if _, known := t.queues[q]; !known {
		if t.queues == nil {
			t.queues = map[*lanes.Queue]records.QueueCount{}
		}
		t.queues[q] = q.Count()
	}
	return q
}

// keptCounts returns the counts of a queue.
func (t *Tx) keptCounts(name string) records.QueueCount {
	if q := t.s.mem.lanes.Queues[name]; q != nil {
		return q.Count()
	}
	return records.QueueCount{}
}

// CountKept implements rules.Tx.
func (t *Tx) CountKept(j *rules.Job, by int) {
	t.countKept(j.Queue, records.QueueCount{KeptJobs: int64(by), KeptBytes: int64(by) * j.Outputs})
}

// countKept adds to the counts of ended jobs to which a queue's own retention applies.
func (t *Tx) countKept(name string, more records.QueueCount) {
	q, m := t.queueToCount(name), &t.s.mem
	m.keptJobs -= q.KeptJobs
	// The counts may omit a damaged row, so they must not go below 0.
	q.KeptJobs, q.KeptBytes = max(0, q.KeptJobs+more.KeptJobs), max(0, q.KeptBytes+more.KeptBytes)
	m.keptJobs += q.KeptJobs
}

// countWaitingIn adds n to the number of waiting jobs of a queue. uid is the user who enqueued the jobs.
func (t *Tx) countWaitingIn(name string, uid int, n int64) {
	q := t.queueToCount(name)
	if !q.Exists() {
		q.UID = uid
	}
	q.Waiting = max(0, q.Waiting+n)
}

// listQueues updates the list in meta with the counts that the transaction changed, as listUsers does for
// users.
func (t *Tx) listQueues() error {
	m := &t.s.mem
	var changed []string
	for q, old := range t.queues {
		if q.Count() != old {
			changed = append(changed, q.Name)
		}
	}
	return listChanged(&m.listedQueues, &m.queueList, changed,
		func(name string) error { return t.writeQueue(m.lanes.Queue(name)) },
		func(name string) string {
			c := m.lanes.Queue(name).Count()
			return fmt.Sprintf("%s=%d/%d/%d/%d ", name, c.Waiting, c.UID, c.KeptJobs, c.KeptBytes)
		})
}

// writeQueue stores the counts of a queue in its row.
func (t *Tx) writeQueue(q *lanes.Queue) error {
	if !q.HasRow() {
		return t.Exec(`DELETE FROM queues WHERE name = ? AND rule = ''`, q.Name)
	}
	return t.Exec(`INSERT INTO queues (name, waiting, uid, kept, kept_bytes) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid, kept = excluded.kept, kept_bytes = excluded.kept_bytes`,
		q.Name, q.Waiting, int64(q.UID), q.KeptJobs, q.KeptBytes)
}

// countQueues brings the counts that readQueues read up to date with the list in meta, and counts the leases.
func (s *Engine) countQueues() error {
	m := &s.mem
	counts, err := records.ParseQueueCounts(m.queueList)
	for name, c := range counts {
		m.lanes.Queue(name).SetCount(c)
		m.listedQueues = append(m.listedQueues, name)
	}
	for _, q := range m.lanes.Queues {
		m.keptJobs += q.KeptJobs
	}
	m.countLeased()
	return err
}
