package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// batch is a batch whose jobs are not all in the queue yet. The client sends the batch in several requests.
// The jobs of each request are stored together, as one frame. See docs/decisions/0009.
type batch struct {
	number           int64
	uid              int
	name             string
	lastFrameAt      queue.UnixMillis // time when the last frame was stored
	receivingNodeID  int64            // number of the node that receives the frames
	unqueuedJobCount int64            // number of jobs that are not in the queue yet
	// userChosenIDCount is how many of the jobCount jobs have an id that the user chose. It counts only jobs that were
	// added since the engine was opened.
	userChosenIDCount int64
	unqueuedJobBytes  int64 // size in bytes of the jobs that are not in the queue yet
	// number of jobs by queue, counted since the engine was opened; the map never changes
	jobCountByQueue map[string]int64
	isCommitted     bool
	isBeingRemoved  bool // the batch is being removed, one frame per transaction
}

// acceptsFrames reports whether a batch accepts frames, which are further lists of its jobs. A batch accepts none once
// it is committed or being removed.
func (b *batch) acceptsFrames() bool { return !b.isCommitted && !b.isBeingRemoved }

// thisNodeAcceptsFrames reports whether a batch accepts frames (further lists of its jobs) from this node's clients.
func (e *Engine) thisNodeAcceptsFrames(b *batch) bool {
	return b.acceptsFrames() && b.receivingNodeID == e.nodeID
}

// StageBatch implements store.Batches. It stores one frame, which is a part of the jobs of a batch.
func (e *Engine) StageBatch(ctx context.Context, r store.EnqueueRequest) (store.Receipt, error) {
	list, err := encodeDraftTexts(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	return executeWithResult(ctx, e, NormalClass,
		func(t *Tx) (store.Receipt, error) { return t.stageFrame(r, list) })
}

// cacheBatch sets the cached data of the batch with this number, and updates the totals of the batch's user. If
// b.number is 0, cacheBatch removes the batch from the cache.
func (t *Tx) cacheBatch(batchNumber int64, b batch) {
	t.requireCacheReload()
	restoreOnRollback(t, t.batches, batchNumber)
	if old, found := t.batches[batchNumber]; found {
		t.saveUserCountsForRollback(old.uid)
		t.addBatchToTotals(&old, -1)
		delete(t.batches, batchNumber)
	}
	if b.number != 0 {
		t.saveUserCountsForRollback(b.uid)
		t.addBatchToTotals(&b, 1)
		t.batches[batchNumber] = b
	}
}

// addBatchToTotals adds the jobs and bytes of a batch to the totals of its user, or subtracts them if sign is -1.
func (m *databaseCache) addBatchToTotals(b *batch, sign int64) {
	if b.isCommitted {
		m.unqueuedCommittedJobs += sign * b.unqueuedJobCount
	}
	m.changeUserCounts(b.uid, func(u *userCounts) {
		u.stagedJobs += sign * b.unqueuedJobCount
		u.stagedBytes += sign * b.unqueuedJobBytes
		if !b.isCommitted {
			u.openBatches += int(sign)
			u.userChosenIDCount += sign * b.userChosenIDCount
		}
	})
}

// firstMatchingBatch returns the batch with the lowest number for which matches returns true.
func (m *databaseCache) firstMatchingBatch(matches func(*batch) bool) (found batch, ok bool) {
	for _, b := range m.batches {
		if matches(&b) && (!ok || b.number < found.number) {
			found, ok = b, true
		}
	}
	return found, ok
}

// findOpenBatch returns the user's batch of that name that still accepts jobs.
func (m *databaseCache) findOpenBatch(uid int, name string) (batch, bool) {
	return m.firstMatchingBatch(func(b *batch) bool { return b.acceptsFrames() && b.uid == uid && b.name == name })
}

// stageFrame stores the drafts of a request as the next frame of its batch. If the batch does not exist,
// stageFrame creates it. texts holds the encoded texts of the drafts.
func (t *Tx) stageFrame(r store.EnqueueRequest, texts []records.EncodedTexts) (receipt store.Receipt, err error) {
	b, open := t.findOpenBatch(r.UID, r.BatchName)
	if !open {
		b = batch{uid: r.UID, name: r.BatchName}
		if t.users[r.UID].openBatches >= store.MaxStagedBatchesPerUser {
			return receipt, store.ErrTooManyStagedBatches
		}
		if t.continuesDiscardedBatch(r) {
			return receipt, store.ErrBatchDiscarded
		}
	}
	chosenIDs := int64(0)
	for i := range r.Drafts {
		chosenIDs += records.BoolToInt(r.Drafts[i].ID != "")
	}
	if err := t.checkFrameAllowed(&r, texts, &b, chosenIDs); err != nil {
		return receipt, err
	}
	jobCounts := rules.CountJobsByQueue(r.Drafts)
	for name, n := range b.jobCountByQueue {
		jobCounts[name] += n
	}
	b.jobCountByQueue = jobCounts
	if err := t.checkQueueLimits(r.UID, b.jobCountByQueue); err != nil {
		return receipt, err
	}
	t.stagedBatchNumber = b.number
	receipt, err = t.admitDrafts(r.Drafts, r.UID)
	if t.stagedBatchNumber = 0; err != nil {
		return receipt, err
	}
	switch {
	case !open:
		b.receivingNodeID = t.engine.nodeID
		b.number = t.queryInt(`INSERT INTO batches (uid, name, stage, at, node) VALUES (?, ?, 0, ?, ?) RETURNING n`,
			b.uid, b.name, t.startTime, b.receivingNodeID)
		t.auditBatch(&b, "begun", int64(len(r.Drafts)))
	case b.receivingNodeID != t.engine.nodeID: // the client sent earlier frames of this batch to another node
		t.takeOverBatch(&b)
	}
	t.recordOwnerName(r.UID, r.OwnerName)
	if err := t.addFrame(b.number, r.Drafts, texts, &receipt); err != nil {
		return receipt, err
	}
	b.unqueuedJobCount += int64(len(r.Drafts))
	b.userChosenIDCount += chosenIDs
	b.unqueuedJobBytes += records.StoredSizeOfDrafts(r.Drafts, texts)
	b.lastFrameAt = t.startTime
	t.cacheBatch(b.number, b)
	return receipt, nil
}

// checkFrameAllowed returns an error if the jobs of a request may not be added to a batch. chosenIDs is the number
// of these jobs whose ids the user chose.
func (t *Tx) checkFrameAllowed(r *store.EnqueueRequest, texts []records.EncodedTexts, b *batch,
	userChosenIDCount int64) error {
	u := t.users[r.UID]
	switch {
	case len(r.Drafts) == 0 || len(r.Drafts) > queue.MaxJobsPerRequest:
		return draftCountError(len(r.Drafts))
	case b.unqueuedJobCount+int64(len(r.Drafts)) > store.MaxStagedJobsPerBatch:
		return queue.Errorf(queue.CodeTooLarge, "the batch has more than %d jobs; send several batches",
			store.MaxStagedJobsPerBatch)
	case u.userChosenIDCount+userChosenIDCount > store.MaxStagedChosenIDs:
		return store.ErrTooManyChosenIDs
	}
	if err := cmp.Or(rules.CheckUserWaitingLimit(t, r.UID, int64(len(r.Drafts)), r.MaxPendingJobsPerUser),
		rules.CheckUserByteLimit(t, r.UID, records.StoredSizeOfDrafts(r.Drafts, texts), r.MaxBytesPerUser)); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Drafts, func(j queue.Job) bool { return j.Unique != "" }) {
		return queue.InvalidFieldError("unique", "jobs with unique keys must fit in one request; enqueue at most %d jobs "+
			"at a time, or leave the unique keys out", queue.MaxJobsPerRequest)
	}
	return nil
}

// addFrame stores the drafts of one request as one frame of the batch with this number. It reserves the ids that the
// user chose for these jobs.
func (t *Tx) addFrame(batchNumber int64, drafts []queue.Job, texts []records.EncodedTexts,
	receipt *store.Receipt) (err error) {
	var frame []byte
	for i := range drafts {
		j := &drafts[i]
		f := records.StagedJob{Seq: receipt.Seqs[i], Draft: withParentSeqs(j, receipt.Seqs), ChosenID: j.ID,
			EncodedTexts: texts[i]}
		if frame, err = f.AppendEncoding(frame); err != nil {
			return err
		}
		if f.HasChosenID() {
			t.Exec(`INSERT INTO staged_ids (id, batch, seq) VALUES (?, ?, ?)`, j.ID, batchNumber, receipt.Seqs[i])
		}
	}
	return t.Exec(`INSERT INTO frames (batch, count, first, last, bytes, jobs) VALUES (?, ?, ?, ?, ?, ?)`,
		batchNumber, len(drafts), receipt.Seqs[0], receipt.Seqs[len(drafts)-1],
		records.StoredSizeOfDrafts(drafts, texts), frame)
}

// continuesDiscardedBatch reports whether the request continues a batch that was discarded. Without this check, the
// request would begin a new batch of the same name, which could be committed without the earlier frames.
func (t *Tx) continuesDiscardedBatch(r store.EnqueueRequest) bool {
	return t.queryInt(`SELECT n FROM batches WHERE uid = ? AND name = ? AND stage = 2 LIMIT 1`, r.UID,
		r.BatchName) != 0
}

// auditBatch records an event about an uncommitted batch. The jobs of such a batch are not in the queue, so they have
// no events.
func (t *Tx) auditBatch(b *batch, action string, jobCount int64) {
	target := store.BatchAuditTarget(b.name, action, jobCount)
	t.recordEvent(queue.EventAudit, nil, queue.EventDetail{CausedByUID: &b.uid, Verb: store.BatchAuditVerb,
		ActionTarget: target})
}

// commitBatch commits a batch. If r contains drafts, they are the last jobs of the batch. From now on, the jobs of the
// batch count as jobs of the queue, and ApplyBatch moves them into the queue.
func (t *Tx) commitBatch(r store.EnqueueRequest, texts []records.EncodedTexts) (receipt store.Receipt, err error) {
	b, _ := t.findOpenBatch(r.UID, r.BatchName)
	if err := cmp.Or(t.checkQueueLimits(r.UID, b.jobCountByQueue),
		rules.CheckTotalWaitingLimit(t, b.unqueuedJobCount+int64(len(r.Drafts)), r.MaxPendingJobs)); err != nil {
		return receipt, err
	}
	if len(r.Drafts) > 0 {
		if receipt, err = t.stageFrame(r, texts); err != nil {
			return receipt, err
		}
		b = t.batches[b.number]
	} else if err := rules.CheckUserWaitingLimit(t, r.UID, 0, r.MaxPendingJobsPerUser); err != nil {
		return receipt, err
	}
	t.Exec(`UPDATE batches SET stage = 1, at = ? WHERE n = ?`, t.startTime, b.number)
	b.isCommitted = true
	t.cacheBatch(b.number, b)
	receipt.Staged, receipt.Batch = true, b.number
	return receipt, t.statementErr
}

// ApplyBatch moves the next frame (the jobs of one request) of a committed batch into the queue. more reports
// whether there may be more frames.
func (e *Engine) ApplyBatch(ctx context.Context, batchNumber int64) (more bool, err error) {
	return executeWithResult(ctx, e, NormalClass, func(t *Tx) (more bool, err error) {
		if b := t.batches[batchNumber]; b.isCommitted {
			return t.enqueueFirstFrame(b)
		}
		return false, nil
	})
}

// enqueueFirstFrame moves the first frame (the jobs of one request) of a batch into the queue. It reports
// whether there may be more frames.
func (t *Tx) enqueueFirstFrame(b batch) (more bool, err error) {
	if err := t.engine.diskSpace.CheckDiskSpace(); err != nil {
		return true, err // do not fill the disk, because its reserve is for running jobs
	}
	f, found := t.firstFrame(b.number)
	if !found {
		t.removeEmptyBatch(b.number)
		return false, t.statementErr
	}
	t.draftTexts = make([]records.EncodedTexts, len(f.stagedJobs))
	for i := range f.stagedJobs {
		j := &f.stagedJobs[i]
		j.Draft.UID = b.uid
		t.draftTexts[i] = j.EncodedTexts
		if err := t.rules.InsertJob(&j.Draft, i, b.uid, j.Seq, cmp.Or(j.ChosenID, strconv.FormatInt(j.Seq, 10))); err != nil {
			return false, err
		}
		if b.uid < 0 { // the batch's owner lost the uid after the batch was committed
			stored, err := t.Job(j.Seq, rules.ReadScopeSummary)
			if err == nil {
				err = t.rules.DisownJob(&stored, b.uid)
			}
			if err != nil {
				return false, err
			}
		}
	}
	b.unqueuedJobCount -= f.jobCount // the frame's jobs are counted as jobs of the queue now
	b.unqueuedJobBytes -= f.jobBytes
	t.cacheBatch(b.number, b)
	if f.allJobsReadable {
		t.removeFrame(&f)
	} else {
		t.detachDamagedFrame(&b, &f)
	}
	return true, t.statementErr
}

// addBatchQueries adds the statements that read all batches, with the number and size of their jobs that are not in the
// queue yet.
func (m *databaseCache) addBatchQueries(queries *database.QueryBatch) {
	queries.AddForEachRow(func(r database.Row) {
		if stage := r.Int64(3); stage != 2 {
			m.batches[r.Int64(0)] = batch{number: r.Int64(0), uid: int(r.Int64(1)), name: r.Text(2), receivingNodeID: r.Int64(4),
				isCommitted:    stage == 1,
				isBeingRemoved: stage == 3}
		}
	}, `SELECT n, uid, name, stage, node FROM batches`)
	queries.AddForEachRow(func(r database.Row) {
		if b, there := m.batches[r.Int64(0)]; there && !b.isBeingRemoved {
			b.unqueuedJobCount, b.unqueuedJobBytes = r.Int64(1), r.Int64(2)
			m.batches[b.number] = b
		}
	}, `SELECT batch, sum(count), sum(bytes) FROM frames INDEXED BY frames_batch WHERE batch > 0 GROUP BY batch`)
}

// finishStoredBatches moves the batches that were committed before the engine was opened into the queue, and
// discards uncommitted ones. If the disk is full, it stops without an error.
func (e *Engine) finishStoredBatches(ctx context.Context) error {
	for {
		more, err := executeWithResult(ctx, e, PromptClass, func(t *Tx) (more bool, err error) {
			return t.advanceOneBatch(e.thisNodeAcceptsFrames)
		})
		if errors.Is(err, queue.ErrNoSpace) { // a statement or the commit has filled the disk
			return nil // the periodic upkeep continues later; until then, the jobs in the queue can run
		}
		if err != nil || !more {
			return err
		}
	}
}

// userChosenIDsSQL returns a query for the ids of jobs that meet a condition on the column id; ColumnInWordsSQL returns
// such conditions. The query leaves out jobs whose id is their number (seq).
func userChosenIDsSQL(idCondition string) string {
	return `SELECT id FROM jobs INDEXED BY jobs_id WHERE ` + idCondition + ` AND id <> CAST(seq AS TEXT)`
}

// takenIDs reports which of the ids already belong to jobs: in the queue, in a batch, or submitted with the
// SQL function.
func (t *Tx) takenIDs(ids []string) (map[string]bool, error) {
	taken := map[string]bool{}
	if len(ids) == 0 {
		return taken, nil
	}
	condition, list := `id = ?`, strings.Join(ids, " ")
	if len(ids) > 1 {
		condition = t.ColumnInWordsSQL("id")
	}
	query, args := userChosenIDsSQL(condition), append(make([]any, 0, 5), list)
	var earlierSeqs []int64 // ids that are the seq of a job created earlier
	for _, id := range ids {
		if n := reads.SeqOfNumericID(id); n > 0 && n < t.NextJobSeq {
			earlierSeqs = append(earlierSeqs, n)
		}
	}
	if len(earlierSeqs) > 0 {
		query, args = query+` UNION ALL SELECT id FROM jobs WHERE `+t.ColumnInNumbersSQL("seq")+` AND id = CAST(seq AS TEXT)`,
			append(args, database.JoinNumbers(slices.Values(earlierSeqs)))
	}
	if len(t.batches) > 0 {
		query, args = query+` UNION ALL SELECT id FROM staged_ids WHERE `+condition, append(args, list)
	}
	if t.engine.sharedDatabase != nil {
		query, args = query+` UNION ALL SELECT id FROM submissions WHERE `+condition+` AND refused IS NULL AND n <> ?`,
			append(args, list, t.submissionNumber)
	}
	database.ForEachRow(t, func(r database.Row) { taken[r.Text(0)] = true }, query, args...)
	if len(t.batches) == 0 {
		return taken, t.statementErr
	}
	for _, id := range ids {
		seq := reads.SeqOfNumericID(id)
		if seq == 0 || taken[id] || seq >= t.NextJobSeq {
			continue
		}
		batchNumber, _ := t.batchNumberOfStagedSeq(seq) // the id may be the number of a job in a batch
		taken[id] = batchNumber != 0
	}
	return taken, t.statementErr
}
