package engine

import (
	"cmp"
	"errors"
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
	text, err := records.EncodeTexts(draft.ExecutionSettings)
	if err != nil {
		return 0, 0, "", err
	}
	receipt, err := t.assignIDs([]queue.Job{*draft})
	if err != nil {
		return 0, 0, "", err
	}
	if h := &t.hookSettings; draft.UID == h.OwnerUID {
		t.recordOwnerName(draft.UID, h.OwnerName)
	}
	t.draftTexts = append(slices.Clip(t.draftTexts), text)
	return len(t.draftTexts) - 1, receipt.Seqs[0], receipt.IDs[0], t.statementErr
}

// assignIDs assigns a seq and an id to each draft. If any id is taken, it assigns none and returns an error.
func (t *Tx) assignIDs(drafts []queue.Job) (receipt store.Receipt, err error) {
	var nextSeq int64
	if receipt.IDs, receipt.Seqs, nextSeq, err = ids.AssignIDs(drafts, t.NextJobSeq, t.engine.rng,
		t.takenIDs); err == nil {
		t.NextJobSeq = nextSeq
		return receipt, nil
	}
	var taken *queue.Error
	if errors.As(err, &taken) && taken.Code == queue.CodeExists {
		err = t.takenIDError(drafts, taken)
	}
	return receipt, err
}

// takenIDError returns the error for a draft whose id is taken. It is idTakenErr itself, unless a job of a batch that
// is not committed yet has the id.
func (t *Tx) takenIDError(drafts []queue.Job, idTakenErr *queue.Error) error {
	draft := &drafts[max(idTakenErr.BatchIndex, 1)-1]
	holder := t.batches[t.batchNumberOfJobID(draft.ID)]
	switch {
	case t.statementErr != nil:
		return t.statementErr
	case !holder.acceptsFrames() || holder.number == 0 || holder.number == t.stagedBatchNumber:
		return idTakenErr
	case holder.uid != draft.UID:
		return store.StagedIDError(draft.ID, "").WithBatchIndex(idTakenErr.BatchIndex)
	}
	return store.StagedIDError(draft.ID, holder.name).WithBatchIndex(idTakenErr.BatchIndex)
}

// batchNumberOfJobID returns the number of the batch with a job that has this id and is not in the queue yet, or 0.
func (t *Tx) batchNumberOfJobID(id string) int64 {
	if n := t.queryInt(`SELECT batch FROM staged_ids WHERE id = ?`, id); n != 0 {
		return n
	}
	n, err := t.batchNumberOfStagedSeq(reads.SeqOfNumericID(id))
	t.statementErr = cmp.Or(t.statementErr, err)
	return n
}

// batchNumberOfStagedSeq returns the number of the batch with a frame that contains the job with this seq, or 0. Frames
// have disjoint ranges of seqs.
func (t *Tx) batchNumberOfStagedSeq(seq int64) (batchNumber int64, err error) {
	var last, number int64
	_, err = database.ReadFirstRow(t, func(r database.Row) { last, number = r.Int64(0), r.Int64(1) },
		`SELECT last, batch FROM frames INDEXED BY frames_first WHERE batch > 0 AND first <= ? ORDER BY first DESC LIMIT 1`,
		seq)
	if seq > last {
		return 0, err
	}
	return number, err
}

// FindJobSeqByID implements rules.Jobs. It returns the seq of the job with an id, or 0 if no job is found. It finds
// a job of a batch that is not in the queue yet only if the user chose the id. It returns an error if this batch is not
// committed yet, unless the transaction adds jobs to the same batch. It finds a hook of the settings only if the hook
// runs as the given user.
func (t *Tx) FindJobSeqByID(uid int, id string) (jobSeq int64, err error) {
	hidden := false
	t.Query(func(r database.Row) (bool, error) {
		if hidden = r.Int64(1) == 0; !hidden {
			jobSeq = r.Int64(0)
		}
		return hidden, nil
	}, `SELECT seq, CASE WHEN hooks & ? = 0 OR uid = ? THEN 1 ELSE 0 END FROM jobs WHERE `+reads.JobWithIDCondition,
		append([]any{queue.SettingsHookFlag, uid}, reads.JobWithIDArgs(id)...)...)
	if jobSeq == 0 && len(t.batches) > 0 {
		var b batch
		database.ReadFirstRow(t, func(r database.Row) { jobSeq, b = r.Int64(0), t.batches[r.Int64(1)] },
			`SELECT seq, batch FROM staged_ids JOIN batches ON n = batch WHERE id = ? AND uid = ? AND stage < 2`, id,
			uid)
		if jobSeq != 0 && b.acceptsFrames() && b.number != t.stagedBatchNumber {
			return 0, store.StagedParentError(id, b.name)
		}
	}
	if jobSeq == 0 && t.statementErr == nil && !hidden {
		err = reads.CheckJobIsMissing(t.Conn, id)
	}
	return jobSeq, cmp.Or(t.statementErr, err)
}

// IsJobInCommittedFrame implements rules.Jobs. It reports whether a job that is not in the queue is in a frame of a
// committed batch.
func (t *Tx) IsJobInCommittedFrame(jobSeq int64) (bool, error) {
	if _, found := t.firstMatchingBatch(func(b *batch) bool { return b.isCommitted }); !found {
		return false, nil
	}
	batchNumber, err := t.batchNumberOfStagedSeq(jobSeq)
	return t.batches[batchNumber].isCommitted, err
}

// UniqueKeyHolder implements rules.Jobs. It returns the job that has a unique key of a user.
func (t *Tx) UniqueKeyHolder(uid int, uniqueKey string) (holder rules.Job, found bool, err error) {
	for _, ended := range []string{`ended_at = 0`, `ended_at > 0 ORDER BY ended_at DESC`} {
		list, err := t.readJobs(1, `jobs INDEXED BY jobs_unique WHERE unique_key <> '' AND uid = ? AND unique_key = ? AND `+
			ended, uid, uniqueKey)
		if err != nil {
			return holder, false, err
		}
		if len(list) > 0 {
			return list[0], true, nil
		}
	}
	return holder, false, nil
}
