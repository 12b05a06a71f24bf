package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Enqueue stores either all drafts of a request or none.
func (e *Engine) Enqueue(ctx context.Context, r store.EnqueueRequest) (store.Receipt, error) {
	texts, err := encodeDraftTexts(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	return executeWithResult(ctx, e, NormalClass,
		func(t *Tx) (store.Receipt, error) { return t.enqueue(r, texts) })
}

// encodeDraftTexts encodes the texts of each draft: its labels, settings and input.
func encodeDraftTexts(drafts []queue.Job) (texts []records.EncodedTexts, err error) {
	texts = make([]records.EncodedTexts, len(drafts))
	for i := range drafts {
		if texts[i], err = records.EncodeTexts(drafts[i].ExecutionSettings); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// enqueue implements Enqueue in a transaction. It gets the encoded texts of the drafts.
func (t *Tx) enqueue(r store.EnqueueRequest, texts []records.EncodedTexts) (store.Receipt, error) {
	if r.SubmissionNumber != 0 && t.submissionNumber == 0 {
		return t.engine.sharedDatabase.EnqueueSubmission(t, &r, func() (store.Receipt, error) {
			t.submissionNumber = r.SubmissionNumber
			defer func() { t.submissionNumber = 0 }()
			return t.enqueue(r, texts)
		})
	}
	receipt, err := t.receiptForIdempotencyKey(r)
	if err != nil || receipt.Duplicate {
		return receipt, err
	}
	if receipt, err = t.enqueueDrafts(r, texts); err != nil {
		return receipt, err
	}
	if r.IdempotencyKey != "" {
		ids, err := json.Marshal(receipt)
		if err != nil {
			return receipt, err
		}
		t.Exec(`INSERT INTO keys (uid, key, at, sum, ids) VALUES (?, ?, ?, ?, ?)`,
			r.UID, r.IdempotencyKey, t.startTime, r.RequestChecksum[:], string(ids))
	}
	return receipt, t.statementErr
}

// enqueueDrafts stores the drafts as jobs. If the request names a batch that is not committed yet, it commits
// the batch with these drafts as its last jobs.
func (t *Tx) enqueueDrafts(r store.EnqueueRequest, texts []records.EncodedTexts) (receipt store.Receipt, err error) {
	if r.BatchName != "" {
		if _, open := t.findOpenBatch(r.UID, r.BatchName); open {
			return t.commitBatch(r, texts)
		}
		if t.continuesDiscardedBatch(r) {
			return receipt, store.ErrBatchDiscarded
		}
	}
	if len(r.Drafts) == 0 || len(r.Drafts) > queue.MaxJobsPerRequest {
		return receipt, draftCountError(len(r.Drafts))
	}
	if err := cmp.Or(
		rules.CheckWaitingLimits(t, r.UID, int64(len(r.Drafts)), r.MaxPendingJobs, r.MaxPendingJobsPerUser),
		rules.CheckUserByteLimit(t, r.UID, records.StoredSizeOfDrafts(r.Drafts, texts), r.MaxBytesPerUser),
		t.checkQueueLimits(r.UID, rules.CountJobsByQueue(r.Drafts))); err != nil {
		return receipt, err
	}
	if receipt, err = t.admitDrafts(r.Drafts, r.UID); err != nil {
		return receipt, err
	}
	t.recordOwnerName(r.UID, r.OwnerName)
	insert := func() error { return t.insertDrafts(r, texts, receipt) }
	if len(r.Drafts) > 1 && slices.ContainsFunc(r.Drafts,
		func(j queue.Job) bool { return j.Unique != "" && j.OnConflict == queue.ConflictReplaceExisting }) {
		return receipt, t.WithSavepoint(insert) // if insertDrafts fails, the replaced jobs are restored
	}
	return receipt, insert()
}

// insertDrafts stores the drafts as jobs, except those whose unique key another job already has.
func (t *Tx) insertDrafts(r store.EnqueueRequest, texts []records.EncodedTexts, receipt store.Receipt) error {
	t.draftTexts = texts
	replaced, before := 0, t.rules.HookBytesUsed
	for i := range r.Drafts {
		draft := withParentSeqs(&r.Drafts[i], receipt.Seqs)
		if receipt.IsExisting != nil && receipt.IsExisting[i] {
			continue
		}
		gone, err := t.rules.CancelReplacedJob(&draft)
		if gone {
			replaced++
		}
		if err == nil {
			err = rules.CheckReplacedHookBytes(replaced, t.rules.HookBytesUsed-before)
		}
		if err == nil {
			err = t.rules.InsertJob(&draft, i, r.UID, receipt.Seqs[i], receipt.IDs[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admitDrafts checks that the drafts may be stored and that there is space for them. It returns a receipt with
// the seqs and ids that it assigns to the drafts, and with the queues that they create.
func (t *Tx) admitDrafts(drafts []queue.Job, uid int) (receipt store.Receipt, err error) {
	if err := t.engine.diskSpace.CheckDiskSpace(); err != nil {
		return receipt, err
	}
	if err := t.rules.CheckDraftDependencies(drafts, uid); err != nil {
		return receipt, err
	}
	instead, err := t.rules.CheckUniqueKeys(drafts)
	if err != nil {
		return receipt, err
	}
	receipt, err = t.assignIDs(drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	receipt.CreatedQueues = t.namesOfNewQueues(rules.CountJobsByQueue(drafts))
	for i, other := range instead {
		if receipt.IsExisting == nil {
			receipt.IsExisting = make([]bool, len(drafts))
		}
		if receipt.IsExisting[i] = true; other.ExistingJob != nil {
			receipt.IDs[i], receipt.Seqs[i] = other.ExistingJob.ID, other.ExistingJob.Seq
		} else {
			receipt.IDs[i], receipt.Seqs[i] = receipt.IDs[other.DraftIndex], receipt.Seqs[other.DraftIndex]
		}
	}
	return receipt, nil
}

// withParentSeqs returns a copy of a draft whose dependencies refer to jobs by number (seq). draftSeqs holds the
// numbers of the jobs of the request.
func withParentSeqs(draft *queue.Job, draftSeqs []int64) queue.Job {
	j := *draft
	if len(j.DependsOn) > 0 {
		j.DependsOn = slices.Clone(j.DependsOn)
	}
	for i := range j.DependsOn {
		if d := &j.DependsOn[i]; d.ParentDraftNumber != 0 {
			d.ParentSeq = draftSeqs[d.ParentDraftNumber-1]
		}
	}
	return j
}

// receiptForIdempotencyKey returns the receipt of an earlier request with the same idempotency key, marked as a
// duplicate. If there was none, it returns an empty receipt.
func (t *Tx) receiptForIdempotencyKey(r store.EnqueueRequest) (receipt store.Receipt, err error) {
	if r.IdempotencyKey == "" {
		return receipt, nil
	}
	t.moveKeyToFormerOwner(r.UID, r.IdempotencyKey)
	var checksum, receiptJSON string
	found, err := database.ReadFirstRow(t, func(r database.Row) { checksum, receiptJSON = r.Text(0), r.Text(1) },
		`SELECT sum, ids FROM keys WHERE uid = ? AND key = ?`, r.UID, r.IdempotencyKey)
	if !found {
		return receipt, err
	}
	if checksum != string(r.RequestChecksum[:]) {
		return receipt, &queue.Error{Code: queue.CodeExists, Field: "key",
			Message: "the key was already used for a request with other parameters; use a new key"}
	}
	err = json.Unmarshal([]byte(receiptJSON), &receipt)
	receipt.Duplicate = err == nil
	return receipt, err
}

func draftCountError(draftCount int) error {
	return queue.InvalidFieldError("jobs", "%d jobs given; a request may have 1 to %d", draftCount,
		queue.MaxJobsPerRequest)
}

// ChangeJob implements store.Queue. It applies a user's verb, such as cancel, to a job.
func (e *Engine) ChangeJob(ctx context.Context, seq int64, c store.JobChange) error {
	return e.executeOperation(ctx, &queuedOperation{run: func(t *Tx) error { return t.rules.ChangeJob(seq, c) },
		priorityClass: PromptClass,
		// Even if the disk is full, users must be able to end or remove the job that fills it.
		mayUseWholeDiskReserve: c.Verb == queue.VerbRemove || c.Verb == queue.VerbCancel})
}

// RecordJobPause records that a running job was paused or resumed.
func (e *Engine) RecordJobPause(ctx context.Context, p store.JobPauseRequest) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error { return t.rules.RecordPause(p) })
}
