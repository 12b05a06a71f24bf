package engine

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// AbortBatch removes a batch that was not committed.
func (e *Engine) AbortBatch(ctx context.Context, uid int, name string) error {
	var batchNumber int64
	err := e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		b, open := t.findOpenBatch(uid, name)
		if batchNumber = b.number; !open {
			return nil
		}
		t.markBatchForRemoval(b)
		t.auditBatch(&b, "aborted", b.unqueuedJobCount)
		return t.statementErr
	})
	if err != nil || batchNumber == 0 {
		return err
	}
	return e.finishBatchRemoval(ctx, batchNumber) // free the batch's ids before AbortBatch returns
}

// finishBatchRemoval removes a batch that is marked for removal, one frame (the jobs of one request) per transaction.
// If ApplyDueChanges has removed the batch first, a new batch may have the number; finishBatchRemoval does not change
// that batch.
func (e *Engine) finishBatchRemoval(ctx context.Context, batchNumber int64) (err error) {
	for more := true; more && err == nil; {
		err = e.RunAndCommit(ctx, NormalClass, func(t *Tx) error {
			more = t.batches[batchNumber].isBeingRemoved && t.removeNextBatchFrame(batchNumber)
			return t.statementErr
		})
	}
	return err
}

// discardBatch removes a batch whose client may still send jobs. It keeps the batch's name, so that later
// requests of the client are rejected.
func (t *Tx) discardBatch(b batch) {
	t.Exec(`INSERT INTO batches (uid, name, stage, at) VALUES (?, ?, 2, ?)`, b.uid, b.name, t.startTime)
	t.markBatchForRemoval(b)
	t.auditBatch(&b, "forgotten", b.unqueuedJobCount)
}

// markBatchForRemoval marks a batch for removal. removeNextBatchFrame then removes its frames, the jobs of each
// request, one by one.
func (t *Tx) markBatchForRemoval(b batch) {
	t.Exec(`UPDATE batches SET stage = 3 WHERE n = ?`, b.number)
	b.isBeingRemoved, b.unqueuedJobCount, b.unqueuedJobBytes = true, 0, 0
	t.cacheBatch(b.number, b)
	t.WakeServiceAt(t.startTime)
}

// removeNextBatchFrame removes the first frame (the jobs of one request) of a batch and frees the ids of these
// jobs. If no frame is left, it removes the batch. more is true if there is more to remove.
func (t *Tx) removeNextBatchFrame(batchNumber int64) (more bool) {
	f, found := t.firstFrame(batchNumber)
	if !found {
		t.removeEmptyBatch(batchNumber)
		return false
	}
	if !f.allJobsReadable { // some ids of the frame's jobs are unreadable, so free all ids of the batch
		t.Exec(`DELETE FROM staged_ids WHERE batch = ?`, batchNumber)
	}
	t.removeFrame(&f)
	return true
}

// removeEmptyBatch removes a batch that has no more frames (lists of jobs). If a damaged frame was detached from the
// batch, the ids of its jobs could not be read from the frame, so removeEmptyBatch frees all ids of the batch.
func (t *Tx) removeEmptyBatch(batchNumber int64) {
	if detached := t.queryInt(`SELECT n FROM frames WHERE batch = ? LIMIT 1`, -batchNumber); detached != 0 {
		t.Exec(`DELETE FROM staged_ids WHERE batch = ?`, batchNumber)
	}
	t.cacheBatch(batchNumber, batch{})
	t.Exec(`DELETE FROM batches WHERE n = ?`, batchNumber)
}

// cleanUpBatches does one step of the periodic cleanup of batches, which discards a batch if its client has
// stopped sending. more is true if there is more to do.
func (t *Tx) cleanUpBatches() (more bool, err error) {
	t.Exec(`DELETE FROM batches WHERE stage = 2 AND at < ?`, t.startTime.Add(-store.DiscardedBatchNameRetention))
	return t.advanceOneBatch(func(b *batch) bool {
		return t.engine.thisNodeAcceptsFrames(b) && b.lastFrameAt.Add(store.BatchStagingTimeout) < t.startTime
	})
}

// advanceOneBatch does one step of work on batches. It discards a batch for which isAbandoned returns true,
// removes the jobs of one request from a batch that is marked for removal, or moves the jobs of one request
// from a committed batch into the queue. more is true if there is more to do. While the disk is full, it
// moves no jobs; the next upkeep tries again.
func (t *Tx) advanceOneBatch(isAbandoned func(*batch) bool) (more bool, err error) {
	if b, found := t.firstMatchingBatch(isAbandoned); found {
		t.discardBatch(b)
		return true, t.statementErr
	}
	if b, found := t.firstMatchingBatch(func(b *batch) bool { return b.isBeingRemoved }); found {
		t.removeNextBatchFrame(b.number)
		return true, t.statementErr
	}
	b, found := t.firstMatchingBatch(func(b *batch) bool { return b.isCommitted })
	if found {
		_, err = t.enqueueFirstFrame(b)
	}
	if errors.Is(err, queue.ErrNoSpace) {
		return false, nil
	}
	return found, err
}
