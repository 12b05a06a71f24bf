package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// TrimUserData implements store.Quotas. It removes inputs and outputs of a user's jobs until the user's data has at
// most maxBytes bytes. One call removes at most maxRemovedOutputsPerStep of them; more is true if another call is
// needed.
func (e *Engine) TrimUserData(ctx context.Context, uid int, maxBytes int64) (more bool, err error) {
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass), func(t *Tx) (more bool, err error) {
		list, enough := t.removableParts(uid, t.users[uid].totalBytes()-maxBytes, maxRemovedOutputsPerStep)
		t.removeParts(uid, list)
		return !enough && len(list) == maxRemovedOutputsPerStep, t.statementErr
	})
}

// TrimUserData implements rules.History. It removes inputs and outputs of a user's jobs within this
// transaction, to bring the user's data to maxBytes bytes or less.
func (t *Tx) TrimUserData(uid int, maxBytes int64) error {
	if t.hasUnconfirmedPrewrite(uid) { // an attempt was written early and is not counted yet
		return errPrewriteMismatch
	}
	needed, limit := t.users[uid].totalBytes()-maxBytes, store.QuotaRemovalLimit(t.examinedTrimParts)
	list, enough := t.removableParts(uid, needed, store.MaxRemovalsPerAttempt) // usually a few parts suffice
	if !enough && len(list) == store.MaxRemovalsPerAttempt && limit > len(list) {
		list, enough = t.removableParts(uid, needed, limit)
	}
	if t.examinedTrimParts += len(list); enough {
		t.removeParts(uid, list)
	}
	return t.statementErr
}

// removableJobPart is a part of a user's job that can be removed: the output of an attempt, or the input.
type removableJobPart struct {
	jobSeq        int64
	attemptNumber int64 // number of the attempt; 0 for the input
	partBytes     int64
	jobEndedAt    int64 // when the job ended; 0 if it has not ended
}

// removableParts lists parts of a user's jobs that can be removed, until the parts add up to neededBytes or there are
// limit parts. isEnough reports whether the parts add up to neededBytes. Parts of jobs that have not ended come first,
// then those of ended jobs, in the order in which the jobs ended. A job's input comes before its outputs. Each of the
// two queries reads at most limit rows, in the order of an index.
func (t *Tx) removableParts(uid int, neededBytes int64, limit int) (parts []removableJobPart, isEnough bool) {
	if neededBytes <= 0 {
		return nil, true
	}
	read := func(query string) {
		missing := neededBytes
		t.Query(func(r database.Row) (bool, error) {
			parts = append(parts, removableJobPart{jobSeq: r.Int64(0), attemptNumber: r.Int64(1), partBytes: r.Int64(2),
				jobEndedAt: r.Int64(3)})
			missing -= r.Int64(2)
			return missing > 0, nil
		}, query, uid, limit)
	}
	read(`SELECT jobs.seq, 0, octet_length(i.input), ended_at
		FROM jobs INDEXED BY jobs_inputs CROSS JOIN inputs AS i ON i.seq = jobs.seq
		WHERE uid = ? AND state > 5 AND jobs.input IS NULL AND state <> 7 ORDER BY ended_at, jobs.seq LIMIT ?`)
	read(`SELECT jobs.seq, n, output_bytes, jobs.ended_at
		FROM jobs INDEXED BY jobs_user_outputs
		CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
		WHERE uid = ? AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at, jobs.seq, n LIMIT ?`)
	slices.SortFunc(parts, func(a, b removableJobPart) int {
		return cmp.Or(cmp.Compare(a.jobEndedAt, b.jobEndedAt), cmp.Compare(a.jobSeq, b.jobSeq),
			cmp.Compare(a.attemptNumber, b.attemptNumber))
	})
	parts = parts[:min(len(parts), limit)]
	for i := range parts {
		if neededBytes -= parts[i].partBytes; neededBytes <= 0 {
			return parts[:i+1], true
		}
	}
	return parts, false
}

func (t *Tx) removeParts(uid int, parts []removableJobPart) {
	for _, part := range parts {
		if part.attemptNumber == 0 {
			t.removeInput(uid, part)
		} else {
			t.removeAttemptOutput(part, queue.OutputRemovedByQuota)
		}
	}
}

// removeInput removes the input of a user's job. In its stored form, an input with an environment begins with
// {"env": and one that contains only an environment also ends with ]}; see records.EncodeInput.
func (t *Tx) removeInput(uid int, part removableJobPart) {
	parts := queue.InputParts(0)
	database.ReadFirstRow(t, func(r database.Row) {
		if r.Text(0) == `{"env":` {
			parts |= queue.InputEnv
		}
		if r.Text(1) != `]}` {
			parts |= queue.InputStdin
		}
	}, `SELECT substr(input, 1, 7), substr(input, length(input) - 1) FROM inputs WHERE seq = ?`, part.jobSeq)
	t.AdjustUserBytes(uid, -part.partBytes, 0)
	t.removeStoredInput(part.jobSeq, part.partBytes, parts)
}

// DeleteOldestAttempt implements rules.History. It deletes the oldest attempt record of a leased job.
func (t *Tx) DeleteOldestAttempt(jobSeq int64) error {
	n, record := int64(0), int64(0)
	database.ReadFirstRow(t, func(r database.Row) {
		// Subtract the size of the deleted record. The caller counts the size of the new one.
		n, record = r.Int64(0), r.Int64(1)+store.QuotaBytesPerAttempt
	}, `SELECT n, octet_length(error) + coalesce(octet_length(result_error), 0) FROM attempts
		WHERE seq = ? ORDER BY n LIMIT 1`, jobSeq)
	if n == 0 {
		return t.statementErr
	}
	t.trimOutputs(1, 1, queue.OutputRemovedByQuota, `SELECT seq, n, output_bytes FROM attempts
		WHERE seq = ? AND n = ? AND output_bytes > 0 LIMIT ?`, jobSeq, n)
	t.Exec(`DELETE FROM attempts WHERE seq = ? AND n = ?`, jobSeq, n)
	changed := *t.Lease(jobSeq)
	changed.Job.StoredBytes -= record // the job's row is written later, when the lease ends
	t.PutLease(&changed)
	t.AdjustUserBytes(changed.Job.UID, -record, 0)
	return t.statementErr
}
