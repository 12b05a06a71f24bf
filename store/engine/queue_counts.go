package engine

import (
	"fmt"

	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// This file keeps the counts of queues. Each transaction changes the counts in the writer's memory. It stores
// the changed counts as a list in the row of meta, because every commit writes that row. When the list gets
// long, its entries move to the table queues. A count is therefore the entry in meta, or the row of the queue
// if meta has no entry.

func (q *queueState) count() records.QueueCount {
	return records.QueueCount{Waiting: q.Waiting, UID: q.uid, KeptJobs: q.keptJobs, KeptBytes: q.keptBytes}
}

func (q *queueState) setCount(c records.QueueCount) {
	q.Waiting, q.uid, q.keptJobs, q.keptBytes = c.Waiting, c.UID, c.KeptJobs, c.KeptBytes
}

// queueToCount returns the queue with a name. A rollback restores its counts.
func (t *Tx) queueToCount(name string) *queueState {
	q := t.s.mem.lanes.state(name)
	if _, known := t.queues[q]; !known {
		if t.queues == nil {
			t.queues = map[*queueState]records.QueueCount{}
		}
		t.queues[q] = q.count()
	}
	return q
}

// keptCounts returns the counts of a queue.
func (t *Tx) keptCounts(name string) records.QueueCount {
	if q := t.s.mem.lanes.queues[name]; q != nil {
		return q.count()
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
	m.keptJobs -= q.keptJobs
	// The counts may omit a damaged row, so they must not go below 0.
	q.keptJobs, q.keptBytes = max(0, q.keptJobs+more.KeptJobs), max(0, q.keptBytes+more.KeptBytes)
	m.keptJobs += q.keptJobs
}

// countWaitingIn adds n to the number of waiting jobs of a queue. uid is the user who enqueued the jobs.
func (t *Tx) countWaitingIn(name string, uid int, n int64) {
	q := t.queueToCount(name)
	if !q.exists() {
		q.uid = uid
	}
	q.Waiting = max(0, q.Waiting+n)
}

// listQueues updates the list in meta with the counts that the transaction changed, as listUsers does for
// users.
func (t *Tx) listQueues() (err error) {
	m := &t.s.mem
	var changed []string
	for q, old := range t.queues {
		if q.count() != old {
			changed = append(changed, q.Name)
		}
	}
	if changed == nil {
		return nil
	}
	m.listedQueues, err = listChanged(m.listedQueues, changed, func(name string) error {
		return t.writeQueue(m.lanes.state(name))
	})
	var list []byte
	for _, name := range m.listedQueues {
		c := m.lanes.state(name).count()
		list = fmt.Appendf(list, "%s=%d/%d/%d/%d ", name, c.Waiting, c.UID, c.KeptJobs, c.KeptBytes)
	}
	m.queueList = string(list)
	return err
}

// writeQueue stores the counts of a queue in its row.
func (t *Tx) writeQueue(q *queueState) error {
	if !q.hasRow() {
		return t.Exec(`DELETE FROM queues WHERE name = ? AND rule = ''`, q.Name)
	}
	return t.Exec(`INSERT INTO queues (name, waiting, uid, kept, kept_bytes) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid, kept = excluded.kept, kept_bytes = excluded.kept_bytes`,
		q.Name, q.Waiting, int64(q.uid), q.keptJobs, q.keptBytes)
}

// countQueues brings the counts that readQueues read up to date with the list in meta, and counts the leases.
func (s *Engine) countQueues() error {
	m := &s.mem
	counts, err := records.ParseQueueCounts(m.queueList)
	for name, c := range counts {
		m.lanes.state(name).setCount(c)
		m.listedQueues = append(m.listedQueues, name)
	}
	for _, q := range m.lanes.queues {
		m.keptJobs += q.keptJobs
	}
	m.countLeased()
	return err
}
