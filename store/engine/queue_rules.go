package engine

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
)

// SetQueue implements store.QueueRules. It sets the rule of a queue.
func (e *Engine) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	if rule.Weight < 1 || rule.Concurrency < 0 || rule.MaxPending < 0 {
		return errors.New("weight must be at least 1, and concurrency and max_pending at least 0")
	}
	return e.Do(ctx, Prompt, func(t *Tx) error {
		t.setRule(t.engine.mem.lanes.Queue(name), rule)
		return t.err
	})
}

// setRule sets the rule of a queue. Afterwards, no queue has an advantage from its earlier turns, and neither
// has any user of this queue.
func (t *Tx) setRule(q *lanes.Queue, rule store.QueueRule) {
	m := &t.engine.mem
	t.requireReload()
	old, weights, lastTurns, fixedTurns := q.Rule, m.lanes.Weights, q.LastTurns, q.FixedTurns
	nextTurns, turn := map[*lanes.Queue]int64{}, m.lastServedTurn
	for _, other := range m.lanes.Queues {
		if other.NextTurn != 0 {
			nextTurns[other] = other.NextTurn
			other.NextTurn = 0
		}
	}
	t.undo = append(t.undo, func() {
		q.SetRule(old)
		q.LastTurns, q.FixedTurns = lastTurns, fixedTurns
		m.lanes.Weights, m.lastServedTurn = weights, turn
		for other, next := range nextTurns {
			other.NextTurn = next
		}
		m.lanes.UpdateQueue(q)
	})
	m.lastServedTurn = 0
	q.LastTurns, q.FixedTurns = nil, m.claimCount
	t.publishTurns(q)
	m.lanes.Weights += int(records.BoolToInt(rule.Weight != 1) - records.BoolToInt(q.Weight != 1))
	q.SetRule(rule)
	t.writeQueue(q)
	m.lanes.UpdateQueue(q)
	t.WakeAt(rule.PausedUntil)
	t.rules.MadeJobsReady = true
}

// resumeQueues ends the pause of each queue whose pause has an end time that has passed.
func (t *Tx) resumeQueues() (more bool, err error) {
	for _, q := range t.engine.mem.lanes.Queues {
		if until := q.Rule.PausedUntil; until == 0 || until > t.startTime {
			continue
		}
		t.setRule(q, q.Rule.WithoutPause())
		t.recordEvent(queue.EventAudit, nil, queue.EventDetail{Verb: "queue.resume", Target: q.Name})
	}
	return false, t.err
}

// nextResume returns the earliest end time of a queue's pause, or 0 if no pause has one.
func (t *Tx) nextResume() (next queue.Millis) {
	for _, q := range t.engine.mem.lanes.Queues {
		next = earlierTime(next, q.Rule.PausedUntil)
	}
	return next
}
