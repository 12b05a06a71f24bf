package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// TrimUserData implements store.Quotas. It removes inputs and outputs of a user's jobs until the user's data
// has at most maxBytes bytes. One call removes a limited number; more is true if there is more to remove.
func (e *Engine) TrimUserData(ctx context.Context, uid int, maxBytes int64) (more bool, err error) {
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		list, enough := t.removableParts(uid, t.engine.mem.users[uid].totalBytes()-maxBytes, maxOutputsPerStep)
		t.removeParts(uid, list)
		return !enough && len(list) == maxOutputsPerStep, t.err
	})
}

// TrimUserData implements rules.History. It removes inputs and outputs of a user's jobs within this
// transaction, to bring the user's data to maxBytes bytes or less.
func (t *Tx) TrimUserData(uid int, maxBytes int64) error {
	if t.hasUnconfirmedPrewrite(uid) { // an attempt was written early and is not counted yet
		return errPrewrite
	}
	needed, limit := t.engine.mem.users[uid].totalBytes()-maxBytes, store.RemovalLimit(t.examinedCount)
	list, enough := t.removableParts(uid, needed, store.MaxRemovedEach) // usually a few parts suffice
	if !enough && len(list) == store.MaxRemovedEach && limit > len(list) {
		list, enough = t.removableParts(uid, needed, limit)
	}
	if t.examinedCount += len(list); enough {
		t.removeParts(uid, list)
	}
	return t.err
}

// removablePart is a part of a user's job that can be removed: the output of an attempt, or the input.
type removablePart struct {
	seq     int64
	attempt int64 // number of the attempt; 0 for the input
	bytes   int64
	endedAt int64 // when the job ended; 0 if it has not ended
}

// removableParts lists parts of a user's jobs that can be removed, until they add up to neededBytes or there
// are limit of them. isEnough reports whether they add up to neededBytes. Parts of jobs that have not ended
// come first, then those of ended jobs, in the order in which the jobs ended. A job's input comes before its
// outputs. Each of the two queries reads at most limit rows, in the order of an index.
func (t *Tx) removableParts(uid int, neededBytes int64, limit int) (parts []removablePart, isEnough bool) {
	if neededBytes <= 0 {
		return nil, true
	}
	read := func(query string) {
		missing := neededBytes
		t.Query(func(r database.Row) (bool, error) {
			parts = append(parts, removablePart{seq: r.Num(0), attempt: r.Num(1), bytes: r.Num(2), endedAt: r.Num(3)})
			missing -= r.Num(2)
			return missing > 0, nil
		}, query, int64(uid), int64(limit))
	}
	read(`SELECT jobs.seq, 0, octet_length(i.input), ended_at
		FROM jobs INDEXED BY jobs_inputs CROSS JOIN inputs AS i ON i.seq = jobs.seq
		WHERE uid = ? AND state > 5 AND jobs.input IS NULL AND state <> 7 ORDER BY ended_at, jobs.seq LIMIT ?`)
	read(`SELECT jobs.seq, n, output_bytes, jobs.ended_at
		FROM jobs INDEXED BY jobs_user_outputs
		CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
		WHERE uid = ? AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at, jobs.seq, n LIMIT ?`)
	slices.SortFunc(parts, func(a, b removablePart) int {
		return cmp.Or(cmp.Compare(a.endedAt, b.endedAt), cmp.Compare(a.seq, b.seq), cmp.Compare(a.attempt, b.attempt))
	})
	parts = parts[:min(len(parts), limit)]
	for i := range parts {
		if neededBytes -= parts[i].bytes; neededBytes <= 0 {
			return parts[:i+1], true
		}
	}
	return parts, false
}

func (t *Tx) removeParts(uid int, parts []removablePart) {
	for _, part := range parts {
		if part.attempt == 0 {
			t.removeInput(uid, part)
		} else {
			t.removeOutputPart(part, queue.OutputOverQuota)
		}
	}
}

// removeInput removes the input of a user's job. In its stored form, an input with an environment begins with
// {"env": and one that contains only an environment also ends with ]}; see records.EncodeInput.
func (t *Tx) removeInput(uid int, part removablePart) {
	parts := queue.InputParts(0)
	database.FirstRow(t, func(r database.Row) {
		if r.Text(0) == `{"env":` {
			parts |= queue.InputEnv
		}
		if r.Text(1) != `]}` {
			parts |= queue.InputStdin
		}
	}, `SELECT substr(input, 1, 7), substr(input, length(input) - 1) FROM inputs WHERE seq = ?`, part.seq)
	t.AddUserBytes(uid, -part.bytes, 0)
	t.removeStoredInput(part.seq, part.bytes, parts)
}

// DeleteOldestAttempt implements rules.History. It deletes the oldest attempt record of a leased job.
func (t *Tx) DeleteOldestAttempt(seq int64) error {
	n, record := int64(0), int64(0)
	database.FirstRow(t, func(r database.Row) {
		// Subtract the size of the deleted record. The caller counts the size of the new one.
		n, record = r.Num(0), r.Num(1)+store.AttemptBytes
	}, `SELECT n, octet_length(error) + coalesce(octet_length(result_error), 0) FROM attempts
		WHERE seq = ? ORDER BY n LIMIT 1`, seq)
	if n == 0 {
		return t.err
	}
	t.trimOutputs(1, 1, queue.OutputOverQuota, `SELECT seq, n, output_bytes FROM attempts
		WHERE seq = ? AND n = ? AND output_bytes > 0 LIMIT ?`, seq, n)
	t.Exec(`DELETE FROM attempts WHERE seq = ? AND n = ?`, seq, n)
	changed := *t.Lease(seq)
	changed.Job.StoredBytes -= record // the job's row is written later, when the lease ends
	t.PutLease(&changed)
	t.AddUserBytes(changed.Job.UID, -record, 0)
	return t.err
}
