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
	maxDueChangesPerCall  = 1000      // maximum number of changes of each kind in one call of ApplyDueChanges
	maxDueChangesInterval = time.Hour // longest time until the next call that ApplyDueChanges returns
)

// Settings lists the stored settings, ordered by key.
func (s *Store) Settings(ctx context.Context) (settings []store.Setting, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, key := range slices.Sorted(maps.Keys(s.settings)) {
			settings = append(settings, s.settings[key])
		}
		return nil
	})
	return settings, err
}

// SetSetting stores one setting; an empty value removes it.
func (s *Store) SetSetting(ctx context.Context, setting store.Setting) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		setting.SetAt = now
		if _, known := s.settings[setting.Key]; !known && setting.Value == "" {
			return nil
		}
		kind := setting.EventKind
		if kind == "" {
			kind = queue.EventSettingChanged
		}
		setting.EventKind = ""
		s.settings[setting.Key] = setting
		if setting.Value == "" {
			delete(s.settings, setting.Key)
		}
		s.addEvent(&job{}, kind, queue.EventDetail{CausedByUID: &setting.SetByUID, SettingName: setting.Key,
			SettingValue: setting.EventValue()}, now)
		return nil
	})
}

// RecordAudit records an action of a user for which no other event exists.
func (s *Store) RecordAudit(ctx context.Context, a store.AuditRecord) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		var subject job
		subject.Seq, subject.ID = a.JobSeq, a.JobID
		s.addEvent(&subject, queue.EventAudit, queue.EventDetail{CausedByUID: &a.UID, CausedByUser: a.UserName,
			ClientPID: a.PID, Verb: a.Verb, ActionTarget: a.Target}, now)
		return nil
	})
}

// SetRankOrder changes the order in which jobs start, and ranks all jobs again immediately.
func (s *Store) SetRankOrder(ctx context.Context, o queue.RankPolicy) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.order = o
		for _, j := range s.jobs {
			s.setRank(j, j.AgingSince, j.ArrivalNumber)
		}
		return nil
	})
}

// RerankWaitingJobs does nothing, because SetRankOrder has already ranked all jobs.
func (s *Store) RerankWaitingJobs(context.Context) (more bool, err error) { return false, nil }

// SetMaxRunningPerUser limits the number of leased jobs of each user; 0 means unlimited.
func (s *Store) SetMaxRunningPerUser(ctx context.Context, maxJobs int) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.maxLeasedPerUser = maxJobs
		return nil
	})
}

// SetQueue stores the rule of a queue: its limits, weight and pause.
func (s *Store) SetQueue(ctx context.Context, name string, rule store.QueueRule) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.queueRules[name] = rule
		if rule == store.DefaultQueueRule {
			delete(s.queueRules, name)
		}
		s.nextQueueTurns, s.lastServedQueueTurn = map[string]int64{}, 0
		s.resetUserTurns(name)
		return nil
	})
}

// endDueQueuePauses ends the pauses of queues whose pause time is over.
func (s *Store) endDueQueuePauses(now queue.UnixMillis) {
	for _, name := range slices.Sorted(maps.Keys(s.queueRules)) {
		if r := s.queueRules[name]; r.PausedUntil != 0 && r.PausedUntil <= now {
			if s.queueRules[name] = r.WithoutPause(); r.WithoutPause() == store.DefaultQueueRule {
				delete(s.queueRules, name)
			}
			s.nextQueueTurns, s.lastServedQueueTurn = map[string]int64{}, 0
			s.resetUserTurns(name)
			s.addEvent(&job{}, queue.EventAudit, queue.EventDetail{Verb: "queue.resume", ActionTarget: name}, now)
		}
	}
}

// SetHooks sets for which events the store creates hook jobs, and how it creates them.
func (s *Store) SetHooks(ctx context.Context, h store.HookSettings) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.hookSettings = h
		return nil
	})
}

// SetThisNodeProperties sets the properties of the node on which the store runs.
func (s *Store) SetThisNodeProperties(ctx context.Context, node store.Node) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.node = node.Clone()
		return nil
	})
}

// ApplyDueChanges does the periodic work: it ends pauses, cancels expired jobs, deletes old idempotency keys, discards
// batches that were not committed in time, and moves jobs of committed batches into the queue. untilNext is the time
// until the next call. Due jobs need no work, because claims compare due times with the clock.
func (s *Store) ApplyDueChanges(ctx context.Context) (untilNext time.Duration, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		s.endDueQueuePauses(now)
		cancelled, forgotten, more := 0, 0, false
		for _, j := range s.jobsBySeq() {
			switch {
			case !j.isExpired(now):
			case cancelled == maxDueChangesPerCall:
				more = true
			default:
				s.cancelExpiredJob(j, now)
				cancelled++
			}
		}
		for k, m := range s.storedReceipts {
			switch {
			case now <= m.storedAt.Add(store.IdempotencyKeyRetention):
			case forgotten == maxDueChangesPerCall:
				more = true
			default:
				delete(s.storedReceipts, k)
				forgotten++
			}
		}
		for _, b := range slices.Clone(s.batches) {
			if !b.isCommitted && b.lastFrameAt.Add(store.BatchStagingTimeout) < now {
				s.batchDiscardTimes[requestKey{b.uid, b.name}] = now
				s.addBatchAuditEvent(b, "forgotten", now)
				s.removeBatch(b)
			}
		}
		maps.DeleteFunc(s.batchDiscardTimes, func(_ requestKey, at queue.UnixMillis) bool {
			return at < now.Add(-store.DiscardedBatchNameRetention)
		})
		s.applyNextFrame(func(*batch) bool { return true }, now)
		more = more || slices.ContainsFunc(s.batches, func(b *batch) bool { return b.isCommitted })
		untilNext = maxDueChangesInterval
		if at, found := s.nextDueChangeTime(now); found {
			untilNext = min(untilNext, time.Duration(at-now)*time.Millisecond)
		}
		if more {
			untilNext = 0
		}
		s.nextDueAt = now.Add(untilNext)
		return nil
	})
	return untilNext, err
}

// nextDueChangeTime returns the next time at which a job is due or expires, a pause ends, or a rate allows another
// start.
func (s *Store) nextDueChangeTime(now queue.UnixMillis) (nextTime queue.UnixMillis, found bool) {
	consider := func(at queue.UnixMillis) {
		if !found || at < nextTime {
			nextTime, found = at, true
		}
	}
	for _, j := range s.jobs {
		if j.isLeased {
			continue
		}
		if j.State.IsRunnable() && j.DueAt > now {
			consider(j.DueAt)
		}
		if j.State.IsWaiting() && j.ExpiresAt != 0 {
			consider(max(now, j.ExpiresAt))
		}
	}
	for _, r := range s.queueRules {
		if r.PausedUntil != 0 {
			consider(max(now, r.PausedUntil))
		}
	}
	if at := s.nextRateOpeningTime(now); at != 0 {
		consider(at)
	}
	return nextTime, found
}

// DueChangeHints returns a channel that receives a hint if ApplyDueChanges must be called earlier than its last call
// has announced.
func (s *Store) DueChangeHints() <-chan struct{} { return s.dueChangeHints }

// DeletableOutputs lists up to limit output files that the caller must delete, because their attempts were
// removed.
func (s *Store) DeletableOutputs(ctx context.Context, limit int) (refs []string, err error) {
	err = s.runReadTx(ctx, func() error {
		refs = slices.Clone(s.deletableOutputs[:min(limit, len(s.deletableOutputs))])
		return nil
	})
	return refs, err
}

// ForgetDeletedOutputs removes refs, which the caller has deleted, from the list of files marked for deletion.
func (s *Store) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	return s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.deletableOutputs = slices.DeleteFunc(s.deletableOutputs,
			func(ref string) bool { return slices.Contains(refs, ref) })
		return nil
	})
}
