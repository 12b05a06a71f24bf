package engine

import (
	"cmp"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/ids"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// RegisterDraft implements rules.Jobs. It assigns a seq and an id to a draft.
func (t *Tx) RegisterDraft(draft *queue.Job) (draftNumber int, seq int64, id string, err error) {
	text, err := records.EncodeTexts(draft.Execution)
	if err != nil {
		return 0, 0, "", err
	}
	receipt, err := t.assignIDs([]queue.Job{*draft})
	if err != nil {
		return 0, 0, "", err
	}
	if h := &t.engine.memory.hookSettings; draft.UID == h.OwnerUID {
		t.recordOwnerName(draft.UID, h.OwnerName)
	}
	t.draftTexts = append(slices.Clip(t.draftTexts), text)
	return len(t.draftTexts) - 1, receipt.Seqs[0], receipt.IDs[0], t.statementErr
}

// assignIDs assigns a seq and an id to each draft. If any id is taken, it assigns none and returns an error.
func (t *Tx) assignIDs(drafts []queue.Job) (r store.Receipt, err error) {
	var nextSeq int64
	if r.IDs, r.Seqs, nextSeq, err = ids.AssignIDs(drafts, t.engine.memory.nextJobSeq, t.engine.rng,
		t.takenIDs); err == nil {
		t.engine.memory.nextJobSeq = nextSeq
	}
	return r, err
}

// FindByID implements rules.Jobs. It returns the seq of the job with an id, or 0 if no job is found. It finds
// a job of a batch that is not in the queue yet only if the user chose the id. It finds a hook of the
// settings only if the hook runs as the given user.
func (t *Tx) FindByID(uid int, id string) (seq int64, err error) {
	hidden := false
	t.Query(func(r database.Row) (bool, error) {
		if hidden = r.Int64(1) == 0; !hidden {
			seq = r.Int64(0)
		}
		return hidden, nil
	}, `SELECT seq, CASE WHEN hooks & ? = 0 OR uid = ? THEN 1 ELSE 0 END FROM jobs WHERE `+reads.JobWithIDCondition,
		append([]any{int64(queue.HookFromSettings), int64(uid)}, reads.JobWithIDArgs(id)...)...)
	if seq == 0 && len(t.engine.memory.batches) > 0 {
		seq = t.queryInt(
			`SELECT seq FROM staged_ids JOIN batches ON n = batch WHERE id = ? AND uid = ? AND stage < 2`, id,
			int64(uid))
	}
	if seq == 0 && t.statementErr == nil && !hidden {
		err = reads.CheckJobIsMissing(t.Conn, id)
	}
	return seq, cmp.Or(t.statementErr, err)
}

// IsInCommittedFrame implements rules.Jobs. It reports whether a job that is not in the queue is in a frame (the jobs
// of one request) of a committed batch. Frames have disjoint ranges of seqs.
func (t *Tx) IsInCommittedFrame(seq int64) (bool, error) {
	m := &t.engine.memory
	if _, found := m.firstBatch(func(b *batch) bool { return b.isCommitted }); !found {
		return false, nil
	}
	var last, batchNumber int64
	_, err := database.ReadFirstRow(t, func(r database.Row) { last, batchNumber = r.Int64(0), r.Int64(1) },
		`SELECT last, batch FROM frames INDEXED BY frames_first WHERE batch > 0 AND first <= ? ORDER BY first DESC LIMIT 1`,
		seq)
	return seq <= last && m.batches[batchNumber].isCommitted, err
}

// UniqueKeyHolder implements rules.Jobs. It returns the job that has a unique key of a user.
func (t *Tx) UniqueKeyHolder(uid int, key string) (j rules.Job, found bool, err error) {
	for _, ended := range []string{`ended_at = 0`, `ended_at > 0 ORDER BY ended_at DESC`} {
		list, err := t.readJobs(1, `jobs INDEXED BY jobs_unique WHERE unique_key <> '' AND uid = ? AND unique_key = ? AND `+
			ended, int64(uid), key)
		if err != nil {
			return j, false, err
		}
		if len(list) > 0 {
			return list[0], true, nil
		}
	}
	return j, false, nil
}
