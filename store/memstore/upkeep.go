package memstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

const (
	maxChangesPerPromote = 1000      // maximum number of changes of each kind in one call of Promote
	maxPromoteInterval   = time.Hour // longest time until the next call that Promote returns
)

// Settings lists the stored settings, ordered by key.
func (s *Store) Settings(ctx context.Context) (settings []store.Setting, err error) {
	err = s.read(ctx, func() error {
		for _, key := range slices.Sorted(maps.Keys(s.settings)) {
			settings = append(settings, s.settings[key])
		}
		return nil
	})
	return settings, err
}

// SetSetting stores one setting; an empty value removes it.
func (s *Store) SetSetting(ctx context.Context, setting store.Setting) error {
	return s.update(ctx, func(now queue.Millis) error {
		setting.SetAt = now
		if _, known := s.settings[setting.Key]; !known && setting.Value == "" {
			return nil
		}
		kind := setting.Kind
		if kind == "" {
			kind = queue.EventSettingChanged
		}
		setting.Kind = ""
		s.settings[setting.Key] = setting
		if setting.Value == "" {
			delete(s.settings, setting.Key)
		}
		s.addEvent(&job{}, kind, queue.EventDetail{UID: &setting.UID, Setting: setting.Key, Value: setting.EventValue()}, now)
		return nil
	})
}

// Audit records an action of a user for which no other event exists.
func (s *Store) Audit(ctx context.Context, a store.Audit) error {
	return s.update(ctx, func(now queue.Millis) error {
		var subject job
		subject.Seq, subject.ID = a.JobSeq, a.JobID
		s.addEvent(&subject, queue.EventAudit, queue.EventDetail{UID: &a.UID, ClientPID: a.PID, Verb: a.Verb,
			Target: a.Target},
			now)
		return nil
	})
}

// SetOrder changes the order in which jobs start, and ranks all jobs again immediately.
func (s *Store) SetOrder(ctx context.Context, o queue.Order) error {
	return s.update(ctx, func(queue.Millis) error {
		s.order = o
		for _, j := range s.jobs {
			s.setRank(j, j.AgingSince, j.ArrivalNumber)
		}
		return nil
	})
}

// Rerank does nothing, because SetOrder has already ranked all jobs.
func (s *Store) Rerank(context.Context) (more bool, err error) { return false, nil }

// SetMaxRunningPerUser limits the number of leased jobs of each user to n; 0 means unlimited.
func (s *Store) SetMaxRunningPerUser(ctx context.Context, n int) error {
	return s.update(ctx, func(queue.Millis) error {
		s.maxLeasedPerUser = n
		return nil
	})
}

// SetQueue stores the rule of a queue: its limits, weight and pause.
func (s *Store) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	return s.update(ctx, func(queue.Millis) error {
		s.queueRules[name] = rule
		if rule == store.DefaultQueueRule {
			delete(s.queueRules, name)
		}
		s.nextTurns, s.lastServedTurn = map[string]int64{}, 0
		s.resetTurns(name)
		return nil
	})
}

// endDuePauses ends the pauses of queues whose pause time is over.
func (s *Store) endDuePauses(now queue.Millis) {
	for _, name := range slices.Sorted(maps.Keys(s.queueRules)) {
		if r := s.queueRules[name]; r.PausedUntil != 0 && r.PausedUntil <= now {
			if s.queueRules[name] = r.WithoutPause(); r.WithoutPause() == store.DefaultQueueRule {
				delete(s.queueRules, name)
			}
			s.nextTurns, s.lastServedTurn = map[string]int64{}, 0
			s.resetTurns(name)
			s.addEvent(&job{}, queue.EventAudit, queue.EventDetail{Verb: "queue.resume", Target: name}, now)
		}
	}
}

// SetHooks sets for which events the store creates hook jobs, and how it creates them.
func (s *Store) SetHooks(ctx context.Context, h store.Hooks) error {
	return s.update(ctx, func(queue.Millis) error {
		s.hooks = h
		return nil
	})
}

// SetNode sets the node on which the store runs.
func (s *Store) SetNode(ctx context.Context, node store.Node) error {
	return s.update(ctx, func(queue.Millis) error {
		s.node = node.Clone()
		return nil
	})
}

// Promote does the periodic work: it ends pauses, cancels expired jobs, deletes old idempotency keys,
// discards batches that were not committed in time, and moves jobs of committed batches into the queue. next
// is the time until the next call. Due jobs need no work, because claims compare due times with the clock.
func (s *Store) Promote(ctx context.Context) (next time.Duration, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		s.endDuePauses(now)
		cancelled, forgotten, more := 0, 0, false
		for _, j := range s.jobsBySeq() {
			switch {
			case !j.isExpired(now):
			case cancelled == maxChangesPerPromote:
				more = true
			default:
				s.cancelExpired(j, now)
				cancelled++
			}
		}
		for k, m := range s.storedReceipts {
			switch {
			case now <= m.storedAt.Add(store.IdempotencyKeyRetention):
			case forgotten == maxChangesPerPromote:
				more = true
			default:
				delete(s.storedReceipts, k)
				forgotten++
			}
		}
		for _, b := range slices.Clone(s.batches) {
			if !b.isCommitted && b.lastFrameAt.Add(store.StagingTimeout) < now {
				s.discardTimes[requestKey{b.uid, b.name}] = now
				s.auditBatch(b, "forgotten", now)
				s.dropBatch(b)
			}
		}
		maps.DeleteFunc(s.discardTimes, func(_ requestKey, at queue.Millis) bool {
			return at < now.Add(-store.DiscardedNameRetention)
		})
		s.applyNextFrame(func(*batch) bool { return true }, now)
		more = more || slices.ContainsFunc(s.batches, func(b *batch) bool { return b.isCommitted })
		next = maxPromoteInterval
		if at, found := s.earliestDue(now); found {
			next = min(next, time.Duration(at-now)*time.Millisecond)
		}
		if more {
			next = 0
		}
		s.nextDueAt = now.Add(next)
		return nil
	})
	return next, err
}

// earliestDue returns the next time at which a job is due or expires, a pause ends, or a rate allows another
// start.
func (s *Store) earliestDue(now queue.Millis) (next queue.Millis, found bool) {
	consider := func(at queue.Millis) {
		if !found || at < next {
			next, found = at, true
		}
	}
	for _, j := range s.jobs {
		if j.isLeased {
			continue
		}
		if j.State.Runnable() && j.DueAt > now {
			consider(j.DueAt)
		}
		if j.State.Waiting() && j.ExpiresAt != 0 {
			consider(max(now, j.ExpiresAt))
		}
	}
	for _, r := range s.queueRules {
		if r.PausedUntil != 0 {
			consider(max(now, r.PausedUntil))
		}
	}
	if at := s.nextRateOpening(now); at != 0 {
		consider(at)
	}
	return next, found
}

// PromoteHints returns a channel that receives a hint if Promote must be called earlier than its last call
// returned.
func (s *Store) PromoteHints() <-chan struct{} { return s.promoteHints }

// DeletableOutputs lists up to limit output files that the caller must delete, because their attempts were
// removed.
func (s *Store) DeletableOutputs(ctx context.Context, limit int) (refs []string, err error) {
	err = s.read(ctx, func() error {
		refs = slices.Clone(s.garbage[:min(limit, len(s.garbage))])
		return nil
	})
	return refs, err
}

// ForgetDeletedOutputs removes refs, which the caller has deleted, from the list of files marked for deletion.
func (s *Store) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	return s.update(ctx, func(queue.Millis) error {
		s.garbage = slices.DeleteFunc(s.garbage, func(ref string) bool { return slices.Contains(refs, ref) })
		return nil
	})
}
