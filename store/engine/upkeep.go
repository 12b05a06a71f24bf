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

// RecordAudit records a user's action that no other event records.
func (e *Engine) RecordAudit(ctx context.Context, a store.AuditRecord) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		return t.recordEvent(queue.EventAudit, &queue.Job{Seq: a.JobSeq, ID: a.JobID},
			queue.EventDetail{CausedByUID: &a.UID, CausedByUser: a.UserName, ClientPID: a.PID, Verb: a.Verb,
				ActionTarget: a.Target})
	})
}

// Settings returns the stored settings, sorted by key.
func (e *Engine) Settings(ctx context.Context) ([]store.Setting, error) {
	return readWriterMemory(ctx, e, func(t *Tx) ([]store.Setting, error) { return readSettings(t.Conn) })
}

func readSettings(c database.Conn) ([]store.Setting, error) {
	return database.ReadRows(c, func(r database.Row) store.Setting {
		return store.Setting{Key: r.Text(0), Value: r.Text(1), SetByUID: int(r.Int64(2)), SetAt: queue.UnixMillis(r.Int64(3))}
	}, `SELECT key, value, uid, at FROM settings ORDER BY key`)
}

// SetSetting stores one setting. An empty value removes the setting.
func (e *Engine) SetSetting(ctx context.Context, setting store.Setting) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		if setting.Value != "" {
			t.Exec(
				`INSERT INTO settings VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, uid = excluded.uid, at = excluded.at`,
				setting.Key, setting.Value, setting.SetByUID, t.startTime)
		} else if n, err := t.ExecRowsAffected(`DELETE FROM settings WHERE key = ?`, setting.Key); n == 0 {
			return err
		}
		return t.recordEvent(cmp.Or(setting.EventKind, queue.EventSettingChanged), nil,
			queue.EventDetail{CausedByUID: &setting.SetByUID, SettingName: setting.Key, SettingValue: setting.EventValue()})
	})
}

// maxDeletedRowsPerStep and maxChangedJobsPerStep limit the work of one call of ApplyDueChanges, so that its
// transaction is short and other callers hardly wait. maxDeletedRowsPerStep limits the rows that one duty deletes,
// maxChangedJobsPerStep the jobs that it changes.
const (
	maxDeletedRowsPerStep = 1000
	maxChangedJobsPerStep = 250
)

// ApplyDueChanges makes due jobs ready, cancels expired jobs and does the other periodic duties of the store. It does
// a bounded part of each duty, and returns how long to wait before the next call.
func (e *Engine) ApplyDueChanges(ctx context.Context) (untilNext time.Duration, err error) {
	return doOpWithResult(ctx, e, &queuedOperation{priorityClass: PromptClass, mayUseWholeDiskReserve: true},
		func(t *Tx) (next time.Duration, err error) {
			e.diskSpace.MaintainDiskReserve()
			unfinished := false
			for _, duty := range []func() (more bool, err error){t.makeDueJobsReady, t.cancelExpiredJobs,
				t.deleteOldIdempotencyKeys, t.continueJobRemovals,
				t.cleanUpBatches, t.continueDisownments, t.recheckDueGates, t.continueGateRecheck, t.removeEmptyLanes,
				t.removeUnneededGates, t.removeUnneededQueues,
				t.statisticsWriter().RollUpAndDeleteOld, t.writeEstimatesEachMinute, t.resumeDueQueues,
				t.rules.ResolveChangedDependencies} {
				more, err := duty()
				if err != nil {
					return 0, err
				}
				unfinished = unfinished || more
			}
			if err := t.rules.OpenLanes(); err != nil || unfinished || e.gateRecheckState.DirtyGateCount() > 0 {
				return 0, err
			}
			return t.timeUntilNextWork()
		})
}

// makeDueJobsReady makes due jobs ready, up to maxChangedJobsPerStep of them.
func (t *Tx) makeDueJobsReady() (more bool, err error) {
	due, _ := t.readJobs(maxChangedJobsPerStep,
		`jobs INDEXED BY jobs_timed WHERE place = 2 AND due_at <= ? ORDER BY due_at`,
		t.startTime)
	for i := range due {
		if err := t.rules.AddDueJobToLane(&due[i]); err != nil {
			return false, err
		}
	}
	return len(due) == maxChangedJobsPerStep, t.statementErr
}

// deleteOldIdempotencyKeys deletes up to maxDeletedRowsPerStep idempotency keys that are older than
// IdempotencyKeyRetention. Keys are stored in the order of their age, so the age of the first one shows whether any
// must be deleted. It deletes none while keys are moved to the former owner of a uid, because new keys may get the row
// numbers of deleted ones.
func (t *Tx) deleteOldIdempotencyKeys() (more bool, err error) {
	if t.hasUnfinishedDisownment() {
		return false, nil
	}
	before := int64(t.startTime.Add(-store.IdempotencyKeyRetention))
	oldest := t.queryInt(`SELECT at FROM keys ORDER BY n LIMIT 1`)
	if oldest == 0 || oldest >= before {
		return false, t.statementErr
	}
	n, err := t.ExecRowsAffected(`DELETE FROM keys WHERE n IN (SELECT n FROM keys ORDER BY n LIMIT ?) AND at < ?`,
		maxDeletedRowsPerStep, before)
	return n == maxDeletedRowsPerStep, err
}

// cancelExpiredJobs cancels jobs that have not started before their expiry time, up to maxChangedJobsPerStep of them.
func (t *Tx) cancelExpiredJobs() (more bool, err error) {
	list, err := t.readJobs(maxChangedJobsPerStep+len(t.leases), `jobs INDEXED BY jobs_expiry
		WHERE expires_at > 0 AND state < 5 AND expires_at <= ? ORDER BY expires_at`, t.startTime)
	list = slices.DeleteFunc(list, func(j rules.Job) bool { return t.leases[j.Seq] != nil })
	list = list[:min(len(list), maxChangedJobsPerStep)]
	for i := range list {
		if t.rules.HookBytesUsed >= rules.MaxHookBytesPerStep {
			return true, nil // more jobs may have expired
		}
		if err := t.rules.CancelExpiredJob(&list[i]); err != nil {
			return false, err
		}
	}
	return len(list) == maxChangedJobsPerStep, err
}

// timeUntilNextWork returns how long to wait until the next periodic work is due, at most an hour.
func (t *Tx) timeUntilNextWork() (time.Duration, error) {
	timer := t.queryInt(`SELECT due_at FROM jobs INDEXED BY jobs_timed WHERE place = 2 ORDER BY due_at LIMIT 1`)
	due := earlierTime(t.nextQueueResumeAt(), queue.UnixMillis(timer))
	t.Query(func(r database.Row) (bool, error) {
		_, leased := t.leases[r.Int64(1)]
		if !leased {
			due = earlierTime(due, queue.UnixMillis(r.Int64(0)))
		}
		return leased, nil
	}, `SELECT expires_at, seq FROM jobs INDEXED BY jobs_expiry WHERE expires_at > 0 AND state < 5
		ORDER BY expires_at LIMIT ?`, 1+len(t.leases))
	opens, err := t.NextGateRecheckTime()
	if err != nil {
		return 0, err
	}
	due = earlierTime(due, queue.UnixMillis(opens))
	t.nextTimerAt = due
	if due == 0 {
		return time.Hour, nil
	}
	return min(time.Hour, max(time.Millisecond, time.Duration(due-t.startTime)*time.Millisecond)), nil
}

// DeletableOutputs lists output files that no attempt refers to. It lists none while a copy of the database
// is being made, because the copy may refer to them.
func (e *Engine) DeletableOutputs(ctx context.Context, limit int) (refs []string, err error) {
	return executeWithResult(ctx, e, PromptClass, func(t *Tx) (refs []string, err error) {
		// A copy begins between two transactions, so it cannot begin during this one.
		if e.databaseCopyInProgress.Load() {
			return nil, nil
		}
		if e.sharedDatabase != nil && e.nodeID != 0 {
			return e.sharedDatabase.DeletableOutputsOfThisNode(t, limit)
		}
		return database.ReadRows(t, database.FirstColumnText, `SELECT ref FROM garbage ORDER BY ref LIMIT ?`, limit)
	})
}

// ForgetDeletedOutputs removes deleted output files from the table garbage, which lists the files to delete.
func (e *Engine) ForgetDeletedOutputs(ctx context.Context, refs []string) error {
	o := newRemovalOperation(PromptClass)
	o.run = func(t *Tx) error {
		for _, ref := range refs {
			t.Exec(`DELETE FROM garbage WHERE ref = ?`, ref)
		}
		return t.statementErr
	}
	return e.executeOperation(ctx, o)
}
