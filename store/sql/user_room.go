package sql

import (
	"context"
	"math"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// RemovableBytes implements store.Store. It knows the outputs' size without reading them. Each input that it reads
// has more than KeptInput bytes, so need bounds how many it reads.
func (s *engine) RemovableBytes(ctx context.Context, uid int, need int64) (bytes int64, err error) {
	err = s.do(ctx, normal, func(t *tx) error {
		bytes = t.s.mem.users[uid].outputs
		return nil
	})
	if err != nil || bytes >= need {
		return bytes, err
	}
	outputs := bytes
	err = s.reading(ctx, func(r *reader) error {
		bytes = outputs
		return r.query(func(r row) (bool, error) {
			bytes += r.num(0)
			return bytes < need, nil
		}, `SELECT octet_length(i.input) FROM jobs INDEXED BY jobs_inputs CROSS JOIN inputs AS i ON i.seq = jobs.seq
			WHERE uid = ? AND state > 5 AND jobs.input IS NULL AND state <> 7 LIMIT ?`, int64(uid), (need-outputs)/store.KeptInput+1)
	})
	return bytes, err
}

// TrimUser implements store.Store.
func (s *engine) TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error) {
	err = s.doRemoving(ctx, normal, func(t *tx) (err error) {
		more, err = t.trimUser(uid, keep)
		return err
	})
	return more, err
}

// TrimUser implements rules.Tx.
func (t *tx) TrimUser(uid int, keep int64) error {
	if t.trimmed >= trimMost {
		return nil
	}
	if t.foreseenOf(uid) { // the database has an output that is not counted yet
		return errForeseen
	}
	_, err := t.trimUser(uid, keep)
	return err
}

// trimUser removes inputs and outputs of a user's jobs while the user holds more than keep bytes, at most outputStep
// of them. It reports whether there is more to remove.
func (t *tx) trimUser(uid int, keep int64) (more bool, err error) {
	over := func() int64 { return t.s.mem.users[uid].held() - keep }
	last := removable{endedAt: math.MinInt64}
	for left := outputStep; over() > 0; {
		if left <= 0 {
			return true, nil
		}
		list, err := t.removables(uid, last)
		if err != nil || len(list) == 0 {
			return false, err
		}
		for _, last = range list {
			got, err := t.removePart(uid, last, trimming{over: over(), mark: queue.OutputOverQuota, limit: left})
			if err != nil {
				return false, err
			}
			t.trimmed += got.n
			left -= got.n // n is 0 for a job whose input or outputs are missing
			if over() <= 0 || left <= 0 {
				break
			}
		}
	}
	return false, nil
}

// removePart removes a job's input, or as many of its outputs as necessary.
func (t *tx) removePart(uid int, of removable, by trimming) (got trimmed, err error) {
	if of.outputs {
		return t.trim(by, `SELECT seq, n, output_bytes FROM attempts INDEXED BY attempts_output WHERE seq = ? AND output_bytes > 0 ORDER BY n LIMIT ?`, of.seq)
	}
	bytes, err := t.removeInput(uid, of.seq)
	return trimmed{n: int(bit(bytes > 0)), bytes: bytes}, err
}

// removable names data of a user's job that may be removed: the job's outputs if outputs is true, otherwise its
// input.
type removable struct {
	seq, endedAt int64
	outputs      bool
}

// removables lists up to outputStep removable parts of a user's jobs, beginning after the part last. Parts of jobs
// that have not ended come first, then those of ended jobs in the order in which they ended. A job's input comes
// before its outputs.
func (t *tx) removables(uid int, last removable) (list []removable, err error) {
	outputsAfter := last.seq
	if !last.outputs {
		outputsAfter-- // the job's outputs come after its input
	}
	err = t.query(func(r row) (bool, error) {
		list = append(list, removable{r.num(0), r.num(1), r.num(2) != 0})
		return true, nil
	}, `SELECT seq, ended_at, 0 AS part FROM jobs INDEXED BY jobs_inputs WHERE uid = ? AND state > 5 AND input IS NULL AND state <> 7 AND (ended_at, seq) > (?, ?)
		UNION ALL SELECT seq, ended_at, 1 FROM jobs INDEXED BY jobs_user_outputs WHERE uid = ? AND outputs > 0 AND (ended_at, seq) > (?, ?)
		ORDER BY 2, 1, 3 LIMIT ?`, int64(uid), last.endedAt, last.seq, int64(uid), last.endedAt, outputsAfter, int64(outputStep))
	return list, err
}

// removeInput removes the input of a user's job, which must be in the table inputs, and returns its size. inputOf
// wrote the input, so its first and last bytes tell which parts it has.
func (t *tx) removeInput(uid int, seq int64) (bytes int64, err error) {
	parts := queue.InputParts(0)
	err = t.query(func(r row) (bool, error) {
		bytes = r.num(0)
		if r.text(1) == `{"env":` {
			parts |= queue.InputEnv
		}
		if r.text(2) != `]}` {
			parts |= queue.InputStdin
		}
		return false, nil
	}, `SELECT octet_length(input), substr(input, 1, 7), substr(input, length(input) - 1) FROM inputs WHERE seq = ?`, seq)
	if err != nil || bytes == 0 { // bytes is 0 if the database is damaged; doctor reports that
		return 0, err
	}
	t.Holds(uid, -bytes, 0)
	return bytes, t.forgetInput(seq, bytes, parts)
}

// ForgetAttempt implements rules.Tx.
func (t *tx) ForgetAttempt(seq int64) error {
	n, record := int64(0), int64(0)
	err := t.query(func(r row) (bool, error) {
		n, record = r.num(0), r.num(1)+store.AttemptBytes // the next record has been counted as if this one stayed
		return false, nil
	}, `SELECT n, octet_length(error) + coalesce(octet_length(result_error), 0) FROM attempts WHERE seq = ? ORDER BY n LIMIT 1`, seq)
	if err != nil || n == 0 {
		return err
	}
	of := trimming{over: 1, mark: queue.OutputOverQuota, limit: 1}
	if _, err := t.trim(of, `SELECT seq, n, output_bytes FROM attempts WHERE seq = ? AND n = ? AND output_bytes > 0 LIMIT ?`, seq, n); err != nil {
		return err
	}
	if err := t.exec(`DELETE FROM attempts WHERE seq = ? AND n = ?`, seq, n); err != nil {
		return err
	}
	with := *t.Lease(seq)
	with.Job.Stored -= record // ending the lease writes the row
	t.Hold(&with)
	t.Holds(with.Job.UID, -record, 0)
	return nil
}
