package engine

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// AbortBatch removes a batch that was not committed.
func (e *Engine) AbortBatch(ctx context.Context, uid int, name string) error {
	var n int64
	err := e.Do(ctx, Prompt, func(t *Tx) error {
		b, open := t.s.mem.openBatch(uid, name)
		if n = b.number; !open {
			return nil
		}
		if err := t.auditBatch(&b, "aborted", b.jobs); err != nil {
			return err
		}
		return t.markBatchRemoved(b)
	})
	for more := n != 0; more && err == nil; { // the batch's ids must be free when AbortBatch returns
		err = e.Do(ctx, Normal, func(t *Tx) (err error) {
			more, err = t.removeNextFrame(n)
			return err
		})
	}
	return err
}

// discardBatch drops a batch whose client may still be sending. The batch's name is kept, so that later frames
// are rejected.
func (t *Tx) discardBatch(b batch) error {
	if err := t.Exec(`INSERT INTO batches (uid, name, stage, at) VALUES (?, ?, 2, ?)`, int64(b.uid), b.name,
		int64(t.startTime)); err != nil {
		return err
	}
	if err := t.auditBatch(&b, "forgotten", b.jobs); err != nil {
		return err
	}
	return t.markBatchRemoved(b)
}

// markBatchRemoved marks a batch as removed; removeNextFrame removes its frames.
func (t *Tx) markBatchRemoved(b batch) error {
	if err := t.Exec(`UPDATE batches SET stage = 3 WHERE n = ?`, b.number); err != nil {
		return err
	}
	b.removing, b.jobs, b.bytes = true, 0, 0
	t.setBatch(b.number, b)
	t.WakeAt(t.startTime)
	return nil
}

// removeNextFrame removes the first frame of a batch and the ids of the frame's jobs. If no frame is left, it
// removes the batch. It reports whether there is more to remove.
func (t *Tx) removeNextFrame(n int64) (more bool, err error) {
	f, found, err := t.firstFrame(n)
	if err != nil {
		return false, err
	}
	if !found {
		return false, t.removeEmptyBatch(n)
	}
	if !f.complete { // some of the frame's ids are unreadable
		if err = t.Exec(`DELETE FROM staged_ids WHERE batch = ?`, n); err != nil {
			return false, err
		}
	}
	return true, t.dropFrame(&f)
}

// removeEmptyBatch removes a batch that has no frames. If a damaged frame was detached from the batch, it also
// removes the ids that could not be read from that frame.
func (t *Tx) removeEmptyBatch(n int64) error {
	detached, err := t.QueryNumber(`SELECT n FROM frames WHERE batch = ? LIMIT 1`, -n)
	if err == nil && detached != 0 {
		err = t.Exec(`DELETE FROM staged_ids WHERE batch = ?`, n)
	}
	if err != nil {
		return err
	}
	t.setBatch(n, batch{})
	return t.Exec(`DELETE FROM batches WHERE n = ?`, n)
}

// tidyBatches does one step of upkeep. It forgets the batches whose clients have stopped sending. It reports whether
// there is more to do.
func (t *Tx) tidyBatches() (more bool, err error) {
	if err := t.Exec(`DELETE FROM batches WHERE stage = 2 AND at < ?`,
		int64(t.startTime.Add(-store.DiscardedNameRetention))); err != nil {
		return false, err
	}
	return t.continueBatches(func(b *batch) bool {
		return t.s.acceptsFramesHere(b) && b.lastFrameAt.Add(store.StagingTimeout) < t.startTime
	})
}

// continueBatches forgets a batch that is abandoned, removes a frame of a dropped batch, or moves a frame of a
// committed batch into the queue. It reports whether there is more to do. While the disk is full, it moves no frame:
// the jobs that are in the queue can run, and the next upkeep tries again.
func (t *Tx) continueBatches(abandoned func(*batch) bool) (more bool, err error) {
	m := &t.s.mem
	if b, found := m.firstBatch(abandoned); found {
		return true, t.discardBatch(b)
	}
	if b, found := m.firstBatch(func(b *batch) bool { return b.removing }); found {
		_, err := t.removeNextFrame(b.number)
		return true, err
	}
	b, found := m.firstBatch(func(b *batch) bool { return b.committed })
	if found {
		_, err = t.enqueueFirstFrame(b)
	}
	if errors.Is(err, queue.ErrNoSpace) {
		return false, nil
	}
	return found, err
}
