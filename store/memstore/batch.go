package memstore

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// batch is a set of jobs that a client enqueues with several requests. Each request adds a frame, which is a
// list of jobs, and the last request commits the batch. A committed batch is kept until all its jobs are in the
// queue.
type batch struct {
	batchNumber           int64 // the value of Receipt.Batch
	uid                   int
	name                  string
	lastFrameAt           queue.UnixMillis // time when the last frame was added
	frames                [][]queue.Job
	userChosenIDCount     int            // number of the batch's jobs whose id the client chose
	seqsWithUserChosenIDs map[int64]bool // seqs of the jobs whose id the client chose
	isCommitted           bool
}

// findOpenBatch returns the user's uncommitted batch with this name, or nil if none exists.
func (s *Store) findOpenBatch(uid int, name string) *batch {
	for _, b := range s.batches {
		if !b.isCommitted && b.uid == uid && b.name == name {
			return b
		}
	}
	return nil
}

func (s *Store) isBatchDiscarded(r store.EnqueueRequest) bool {
	_, found := s.batchDiscardTimes[requestKey{r.UID, r.BatchName}]
	return found
}

func (b *batch) jobCount() (n int64) {
	for _, f := range b.frames {
		n += int64(len(f))
	}
	return n
}

// checkTotalWaitingLimit returns an error if newJobCount more jobs would raise the number of waiting jobs above
// maxWaitingJobs. Jobs of committed batches count as waiting.
func (s *Store) checkTotalWaitingLimit(newJobCount, maxWaitingJobs int64) error {
	for _, j := range s.jobs {
		if j.State.IsWaiting() {
			newJobCount++
		}
	}
	for _, b := range s.batches {
		if b.isCommitted {
			newJobCount += b.jobCount()
		}
	}
	if maxWaitingJobs > 0 && newJobCount > maxWaitingJobs {
		return queue.Errorf(queue.CodeQueueFull, "the queue is full: max_pending is %d", maxWaitingJobs)
	}
	return nil
}

// checkUserWaitingLimit returns an error if newJobCount more jobs would raise the number of the user's waiting jobs
// above maxWaitingJobs. All jobs in batches count as waiting, including those of uncommitted batches.
func (s *Store) checkUserWaitingLimit(uid int, newJobCount, maxWaitingJobs int64) error {
	for _, j := range s.jobs {
		if j.State.IsWaiting() && j.UID == uid {
			newJobCount++
		}
	}
	for _, b := range s.batches {
		if b.uid == uid {
			newJobCount += b.jobCount()
		}
	}
	if maxWaitingJobs > 0 && newJobCount > maxWaitingJobs {
		return queue.Errorf(queue.CodeQueueFull, "the queue is full for this user: max_pending_per_user is %d",
			maxWaitingJobs)
	}
	return nil
}

// StageBatch adds the jobs of one request to a batch, and does not commit the batch.
func (s *Store) StageBatch(ctx context.Context, r store.EnqueueRequest) (receipt store.Receipt, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		receipt, err = s.stageFrame(r, now)
		return err
	})
	return receipt, err
}

// countOpenBatches returns the number of a user's uncommitted batches, and the number of their jobs whose id
// the client chose.
func (s *Store) countOpenBatches(uid int) (batchCount, userChosenIDCount int) {
	for _, b := range s.batches {
		if b.uid == uid && !b.isCommitted {
			batchCount++
			userChosenIDCount += b.userChosenIDCount
		}
	}
	return batchCount, userChosenIDCount
}

// stageFrame adds the drafts of a request to its batch as a frame, inside a transaction.
func (s *Store) stageFrame(r store.EnqueueRequest, now queue.UnixMillis) (store.Receipt, error) {
	b, known := s.findOpenBatch(r.UID, r.BatchName), true
	if b == nil {
		s.begunBatchCount++
		b, known = &batch{batchNumber: s.begunBatchCount, uid: r.UID, name: r.BatchName,
			seqsWithUserChosenIDs: map[int64]bool{}},
			false
	}
	open, openIDs := s.countOpenBatches(r.UID)
	givenIDs := 0
	for i := range r.Drafts {
		if r.Drafts[i].ID != "" {
			givenIDs++
		}
	}
	switch n := len(r.Drafts); {
	case !known && open >= store.MaxStagedBatchesPerUser:
		return store.Receipt{}, store.ErrTooManyStagedBatches
	case !known && s.isBatchDiscarded(r):
		return store.Receipt{}, store.ErrBatchDiscarded
	case n == 0 || n > queue.MaxJobsPerRequest:
		return store.Receipt{}, draftCountError(n)
	case b.jobCount()+int64(n) > store.MaxStagedJobsPerBatch:
		return store.Receipt{}, queue.Errorf(queue.CodeTooLarge, "the batch has more than %d jobs",
			store.MaxStagedJobsPerBatch)
	case openIDs+givenIDs > store.MaxStagedChosenIDs:
		return store.Receipt{}, store.ErrTooManyChosenIDs
	}
	if err := s.checkUserWaitingLimit(r.UID, int64(len(r.Drafts)), r.MaxPendingJobsPerUser); err != nil {
		return store.Receipt{}, err
	}
	if err := s.checkUserByteLimit(r.UID, sumJobBytes(r.Drafts), r.MaxBytesPerUser); err != nil {
		return store.Receipt{}, err
	}
	all := slices.Concat(append(slices.Clone(b.frames), r.Drafts)...)
	if slices.ContainsFunc(r.Drafts, func(j queue.Job) bool { return j.Unique != "" }) {
		return store.Receipt{}, queue.InvalidFieldError("unique",
			"a batch that is sent in several requests cannot contain unique keys")
	}
	if err := s.checkQueueWaitingLimits(countJobsByQueue(all)); err != nil {
		return store.Receipt{}, err
	}
	if err := s.checkNewQueueLimit(r.UID, countJobsByQueue(all)); err != nil {
		return store.Receipt{}, err
	}
	if err := s.checkDependencies(r.Drafts, r.UID, b); err != nil {
		return store.Receipt{}, err
	}
	receipt, err := s.assignIDs(r.Drafts, b)
	if err != nil {
		return store.Receipt{}, err
	}
	receipt.CreatedQueues = s.missingQueueNames(countJobsByQueue(r.Drafts))
	frame := make([]queue.Job, len(r.Drafts))
	for i, draft := range r.Drafts {
		frame[i] = copyJob(withParentSeqs(draft, receipt))
		if draft.ID != "" {
			b.seqsWithUserChosenIDs[receipt.Seqs[i]] = true
		}
		frame[i].ID, frame[i].Seq = receipt.IDs[i], receipt.Seqs[i]
		s.lastSeq = receipt.Seqs[i]
	}
	b.frames, b.userChosenIDCount, b.lastFrameAt = append(b.frames, frame), b.userChosenIDCount+givenIDs, now
	if !known {
		s.batches = append(s.batches, b)
		s.addBatchAuditEvent(b, "begun", now)
	}
	s.saveOwnerName(r)
	return receipt, nil
}

// commitBatch adds the jobs of the last request to a batch and commits the batch. Later calls of ApplyBatch
// move its jobs into the queue.
func (s *Store) commitBatch(b *batch, r store.EnqueueRequest, now queue.UnixMillis) (receipt store.Receipt, err error) {
	if err := s.checkQueueWaitingLimits(countJobsByQueue(slices.Concat(b.frames...))); err != nil {
		return receipt, err
	}
	if err := s.checkTotalWaitingLimit(b.jobCount()+int64(len(r.Drafts)), r.MaxPendingJobs); err != nil {
		return receipt, err
	}
	if err := s.checkUserWaitingLimit(r.UID, int64(len(r.Drafts)), r.MaxPendingJobsPerUser); err != nil {
		return receipt, err
	}
	if len(r.Drafts) > 0 {
		if receipt, err = s.stageFrame(r, now); err != nil {
			return receipt, err
		}
	}
	b.isCommitted, receipt.Staged, receipt.Batch = true, true, b.batchNumber
	return receipt, nil
}

// uncommittedBatchWithID returns the uncommitted batch that contains a job with this id, or nil.
func (s *Store) uncommittedBatchWithID(id string) *batch {
	for _, b := range s.batches {
		if !b.isCommitted && slices.ContainsFunc(slices.Concat(b.frames...), func(j queue.Job) bool { return j.ID == id }) {
			return b
		}
	}
	return nil
}

// isInCommittedFrame reports whether a job that is not in the queue is in a frame of a committed batch.
func (s *Store) isInCommittedFrame(seq int64) bool {
	return slices.ContainsFunc(s.batches, func(b *batch) bool {
		return b.isCommitted && slices.ContainsFunc(b.frames, func(frame []queue.Job) bool {
			return slices.ContainsFunc(frame, func(j queue.Job) bool { return j.Seq == seq })
		})
	})
}

// addBatchAuditEvent adds an audit event about an action on an uncommitted batch.
func (s *Store) addBatchAuditEvent(b *batch, action string, now queue.UnixMillis) {
	s.addEvent(&job{}, queue.EventAudit, queue.EventDetail{
		CausedByUID: &b.uid, Verb: store.BatchAuditVerb, ActionTarget: store.BatchAuditTarget(b.name, action, b.jobCount()),
	}, now)
}

// AbortBatch discards the user's uncommitted batch with this name.
func (s *Store) AbortBatch(ctx context.Context, uid int, name string) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		if b := s.findOpenBatch(uid, name); b != nil {
			s.addBatchAuditEvent(b, "aborted", now)
			s.removeBatch(b)
		}
		return nil
	})
}

func (s *Store) removeBatch(removed *batch) {
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool { return b == removed })
}

// ApplyBatch moves the next frame (the jobs of one request) of the committed batch with this number into the queue. It
// reports whether it moved a frame.
func (s *Store) ApplyBatch(ctx context.Context, batchNumber int64) (more bool, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		more = s.applyNextFrame(func(b *batch) bool { return b.batchNumber == batchNumber }, now)
		return nil
	})
	return more, err
}

// applyNextFrame moves the next frame (the jobs of one request) of a batch into the queue. The batch is the first
// committed one for which matchesBatch returns true. applied reports whether a frame was moved.
func (s *Store) applyNextFrame(matchesBatch func(*batch) bool, now queue.UnixMillis) (frameApplied bool) {
	index := slices.IndexFunc(s.batches, func(b *batch) bool { return b.isCommitted && matchesBatch(b) })
	if index < 0 {
		return false
	}
	b := s.batches[index]
	if len(b.frames) == 0 {
		s.removeBatch(b)
		return false
	}
	for _, j := range b.frames[0] {
		if b.uid < 0 {
			j.UID = b.uid
		}
		s.insertJob(j, b.uid, now)
	}
	b.frames = b.frames[1:]
	return true
}
