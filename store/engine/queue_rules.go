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
	if rule.Weight < 1 || rule.Concurrency < 0 || rule.MaxPendingJobs < 0 {
		return errors.New("weight must be at least 1, and concurrency and max_pending at least 0")
	}
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		t.setQueueRule(t.lanes.FindOrAddQueue(name), rule)
		return t.statementErr
	})
}

// setQueueRule sets the rule of a queue. Afterwards, no queue has an advantage from its earlier turns, and neither
// has any user of this queue.
func (t *Tx) setQueueRule(q *lanes.Queue, rule store.QueueRule) {
	t.requireCacheReload()
	old, weights, lastTurns, fixedTurns := q.Rule, t.lanes.WeightedQueueCount, q.LastTurnByUID, q.LastPermanentTurn
	nextTurns := map[*lanes.Queue]int64{}
	for _, other := range t.lanes.Queues {
		if other.NextTurn != 0 {
			nextTurns[other] = other.NextTurn
			other.NextTurn = 0
		}
	}
	t.OnRollback(func() {
		q.SetRule(old)
		q.LastTurnByUID, q.LastPermanentTurn = lastTurns, fixedTurns
		t.lanes.WeightedQueueCount = weights
		for other, next := range nextTurns {
			other.NextTurn = next
		}
		t.lanes.UpdateQueueReadiness(q)
	})
	t.lastServedQueueTurn = 0
	q.LastTurnByUID, q.LastPermanentTurn = nil, t.claimedJobCount
	t.markUserTurnsChanged(q)
	t.lanes.WeightedQueueCount += int(records.BoolToInt(rule.Weight != 1) - records.BoolToInt(q.Weight != 1))
	q.SetRule(rule)
	t.writeQueueRow(q)
	t.lanes.UpdateQueueReadiness(q)
	t.WakeServiceAt(rule.PausedUntil)
	t.rules.JobsMayBeClaimable = true
}

// resumeDueQueues ends the pause of each queue whose pause has an end time that has passed.
func (t *Tx) resumeDueQueues() (more bool, err error) {
	for _, q := range t.lanes.Queues {
		if until := q.Rule.PausedUntil; until == 0 || until > t.startTime {
			continue
		}
		t.setQueueRule(q, q.Rule.WithoutPause())
		t.recordEvent(queue.EventAudit, nil, queue.EventDetail{Verb: "queue.resume", ActionTarget: q.Name})
	}
	return false, t.statementErr
}

// nextQueueResumeAt returns the earliest end time of a queue's pause, or 0 if no pause has one.
func (t *Tx) nextQueueResumeAt() (next queue.UnixMillis) {
	for _, q := range t.lanes.Queues {
		next = earlierTime(next, q.Rule.PausedUntil)
	}
	return next
}
