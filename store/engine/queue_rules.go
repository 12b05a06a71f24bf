package engine

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
)

// SetQueue implements store.Store. It sets the rule of a queue.
func (s *Engine) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	if rule.Weight < 1 || rule.Concurrency < 0 || rule.MaxPending < 0 {
		return errors.New("weight must be at least 1, and concurrency and max_pending at least 0")
	}
	return s.Do(ctx, Prompt, func(t *Tx) error { return t.setRule(t.s.mem.lanes.state(name), rule) })
}

func (t *Tx) setRule(q *queueState, rule store.QueueRule) error {
	m := &t.s.mem
	if err := t.writeRule(q, rule); err != nil {
		return err
	}
	t.requireReload()
	old, weights, served, from := q.rule, m.lanes.weights, q.lastTurns, q.fixedTurns
	passes, turn := map[*queueState]int64{}, m.lastPass
	for _, other := range m.lanes.queues {
		if other.Pass != 0 {
			passes[other] = other.Pass
			other.Pass = 0
		}
	}
	t.undo = append(t.undo, func() {
		q.setRule(old)
		q.lastTurns, q.fixedTurns = served, from
		m.lanes.weights, m.lastPass = weights, turn
		for other, pass := range passes {
			other.Pass = pass
		}
		m.lanes.updateQueue(q)
	})
	m.lastPass = 0
	q.lastTurns, q.fixedTurns = nil, m.turnCount
	t.publishTurns(q)
	m.lanes.weights += int(records.Bit(rule.Weight != 1) - records.Bit(q.Weight != 1))
	q.setRule(rule)
	m.lanes.updateQueue(q)
	t.wakeAt(rule.Until)
	t.rules.Readied = true
	return nil
}

// writeRule writes the row of a queue, or deletes the row if it would hold no information.
func (t *Tx) writeRule(q *queueState, rule store.QueueRule) (err error) {
	var text []byte
	switch {
	case rule != store.DefaultQueueRule:
		if text, err = json.Marshal(rule); err != nil {
			return err
		}
	case q.Waiting == 0 && q.keptJobs == 0 && q.keptBytes == 0:
		return t.Exec(`DELETE FROM queues WHERE name = ?`, q.Name)
	}
	return t.Exec(`INSERT INTO queues (name, waiting, uid, kept, kept_bytes, rule) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid, kept = excluded.kept, kept_bytes = excluded.kept_bytes, rule = excluded.rule`,
		q.Name, q.Waiting, int64(q.uid), q.keptJobs, q.keptBytes, string(text))
}

// resumeQueues ends the pauses that are over, and returns when the next pause ends, 0 if none does.
func (t *Tx) resumeQueues() (next queue.Millis, err error) {
	for _, q := range t.s.mem.lanes.queues {
		switch until := q.rule.Until; {
		case until == 0:
		case until > t.startTime:
			if next == 0 || until < next {
				next = until
			}
		default:
			if err := t.setRule(q, q.rule.Resumed()); err != nil {
				return 0, err
			}
			if err := t.AddEvent(queue.EventAudit, nil, 0, resumedDetail(q)); err != nil {
				return 0, err
			}
		}
	}
	return next, nil
}

// setRule sets the rule of the queue in memory.
func (q *queueState) setRule(rule store.QueueRule) {
	q.rule, q.Weight, q.MaxWaiting, q.OwnRetention = rule, rule.Weight, rule.MaxPending, rule.Keep != store.Retention{}
}

// resumedDetail returns the detail of the event for a queue whose pause ended automatically.
func resumedDetail(q *queueState) []byte {
	// Encoding texts cannot fail.
	detail, _ := json.Marshal(queue.EventDetail{Verb: "queue.resume", Target: q.Name})
	return detail
}
