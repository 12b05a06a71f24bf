package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// Audit records a user's action that no other event records.
func (e *Engine) Audit(ctx context.Context, a store.Audit) error {
	return e.Do(ctx, Prompt, func(t *Tx) error {
		return t.recordEvent(queue.EventAudit, &queue.Job{Seq: a.JobSeq, ID: a.JobID},
			queue.EventDetail{UID: &a.UID, ClientPID: a.PID, Verb: a.Verb, Target: a.Target})
	})
}

// Settings returns the stored settings, sorted by key.
func (e *Engine) Settings(ctx context.Context) ([]store.Setting, error) {
	return readWriterMemory(ctx, e, func(t *Tx) ([]store.Setting, error) { return readSettings(t.Conn) })
}

func readSettings(c database.Conn) ([]store.Setting, error) {
	return database.Rows(c, func(r database.Row) store.Setting {
		return store.Setting{Key: r.Text(0), Value: r.Text(1), UID: int(r.Num(2)), SetAt: queue.Millis(r.Num(3))}
	}, `SELECT key, value, uid, at FROM settings ORDER BY key`)
}

// SetSetting stores one setting. An empty value removes the setting.
func (e *Engine) SetSetting(ctx context.Context, setting store.Setting) error {
	return e.Do(ctx, Prompt, func(t *Tx) error {
		if setting.Value != "" {
			t.Exec(
				`INSERT INTO settings VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, uid = excluded.uid, at = excluded.at`,
				setting.Key, setting.Value, int64(setting.UID), int64(t.startTime))
		} else if n, err := t.ExecCount(`DELETE FROM settings WHERE key = ?`, setting.Key); n == 0 {
			return err
		}
		return t.recordEvent(cmp.Or(setting.Kind, queue.EventSettingChanged), nil,
			queue.EventDetail{UID: &setting.UID, Setting: setting.Key, Value: setting.EventValue()})
	})
}

// promoteStep and moveStep limit the work of one call of Promote, so that its transaction is short and other
// callers hardly wait. promoteStep limits the rows that one duty deletes, moveStep the jobs that it changes.
const (
	promoteStep = 1000
	moveStep    = 250
)

// Promote makes due jobs ready, cancels expired jobs and does the other periodic duties of the store. It does
// a bounded part of each duty, and returns how long to wait before the next call.
func (e *Engine) Promote(ctx context.Context) (next time.Duration, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Prompt, mayUseWholeReserve: true},
		func(t *Tx) (next time.Duration, err error) {
			e.space.MaintainReserve()
			unfinished := false
			for _, duty := range []func() (more bool, err error){t.makeDueReady, t.cancelExpired, t.deleteOldKeys, t.tidyRemoved,
				t.tidyBatches, t.tidyOwners, t.recheckDueGates, t.continueRecheck, t.tidyLanes, t.tidyGates, t.tidyQueues,
				t.statistics().Tidy, t.writeEstimatesEachMinute, t.resumeQueues, t.rules.DecideDependants} {
				more, err := duty()
				if err != nil {
					return 0, err
				}
				unfinished = unfinished || more
			}
			if err := t.rules.OpenLanes(); err != nil || unfinished || e.gateRechecks.DirtyGateCount() > 0 {
				return 0, err
			}
			return t.timeUntilDue()
		})
}

// makeDueReady makes due jobs ready, up to moveStep of them.
func (t *Tx) makeDueReady() (more bool, err error) {
	due, _ := t.readJobs(moveStep, `jobs INDEXED BY jobs_timed WHERE place = 2 AND due_at <= ? ORDER BY due_at`,
		int64(t.startTime))
	for i := range due {
		if err := t.rules.MarkDue(&due[i]); err != nil {
			return false, err
		}
	}
	return len(due) == moveStep, t.err
}

// deleteOldKeys deletes up to promoteStep idempotency keys that are older than IdempotencyKeyRetention. Keys
// are stored in the order of their age, so the age of the first one shows whether any must be deleted. It deletes
// none while a disownment moves keys, because new keys may get the row numbers of deleted ones.
func (t *Tx) deleteOldKeys() (more bool, err error) {
	if t.engine.mem.movesKeys() {
		return false, nil
	}
	before := int64(t.startTime.Add(-store.IdempotencyKeyRetention))
	oldest := t.queryInt(`SELECT at FROM keys ORDER BY n LIMIT 1`)
	if oldest == 0 || oldest >= before {
		return false, t.err
	}
	n, err := t.ExecCount(`DELETE FROM keys WHERE n IN (SELECT n FROM keys ORDER BY n LIMIT ?) AND at < ?`,
		int64(promoteStep), before)
	return n == promoteStep, err
}

// cancelExpired cancels jobs that have not started before their expiry time, up to moveStep of them.
func (t *Tx) cancelExpired() (more bool, err error) {
	list, err := t.readJobs(moveStep+len(t.engine.mem.leases), `jobs INDEXED BY jobs_expiry
		WHERE expires_at > 0 AND state < 5 AND expires_at <= ? ORDER BY expires_at`, int64(t.startTime))
	list = slices.DeleteFunc(list, func(j rules.Job) bool { return t.engine.mem.leases[j.Seq] != nil })
	list = list[:min(len(list), moveStep)]
	for i := range list {
		if t.rules.HookBytes >= rules.MaxHookBytes {
			return true, nil // more jobs may have expired
		}
		if err := t.rules.Expire(&list[i]); err != nil {
			return false, err
		}
	}
	return len(list) == moveStep, err
}

// timeUntilDue returns how long to wait until the next periodic work is due, at most an hour.
func (t *Tx) timeUntilDue() (time.Duration, error) {
	timer := t.queryInt(`SELECT due_at FROM jobs INDEXED BY jobs_timed WHERE place = 2 ORDER BY due_at LIMIT 1`)
	due := earlierTime(t.nextResume(), queue.Millis(timer))
	t.Query(func(r database.Row) (bool, error) {
		_, leased := t.engine.mem.leases[r.Num(1)]
		if !leased {
			due = earlierTime(due, queue.Millis(r.Num(0)))
		}
		return leased, nil
	}, `SELECT expires_at, seq FROM jobs INDEXED BY jobs_expiry WHERE expires_at > 0 AND state < 5
		ORDER BY expires_at LIMIT ?`, int64(1+len(t.engine.mem.leases)))
	opens, err := t.NextDue()
	if err != nil {
		return 0, err
	}
	due = earlierTime(due, queue.Millis(opens))
	t.engine.mem.nextTimerAt = due
	if due == 0 {
		return time.Hour, nil
	}
	return min(time.Hour, max(time.Millisecond, time.Duration(due-t.startTime)*time.Millisecond)), nil
}

// DeletableOutputs lists output files that no attempt refers to. It lists none while a copy of the database
// is being made, because the copy may refer to them.
func (e *Engine) DeletableOutputs(ctx context.Context, limit int) (refs []string, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Prompt}, func(t *Tx) (refs []string, err error) {
		// A copy begins between two transactions, so it cannot begin during this one.
		if e.copyInProgress.Load() {
			return nil, nil
		}
		if e.shared != nil && e.node != 0 {
			return e.shared.OwnDeletableOutputs(t, limit)
		}
		return database.Rows(t, database.TextOf, `SELECT ref FROM garbage ORDER BY ref LIMIT ?`, int64(limit))
	})
}

// ForgetDeletedOutputs removes deleted output files from the table garbage, which lists the files to delete.
func (e *Engine) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	o := newRemoval(Prompt)
	o.run = func(t *Tx) error {
		for _, ref := range refs {
			t.Exec(`DELETE FROM garbage WHERE ref = ?`, ref)
		}
		return t.err
	}
	return e.doOp(ctx, o)
}
