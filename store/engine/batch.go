package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
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
	number      int64
	uid         int
	name        string
	lastFrameAt queue.Millis // time when the last frame was stored
	node        int64        // number of the node that receives the frames
	jobCount    int64        // number of jobs that are not in the queue yet
	// chosenIDCount is how many of these jobCount jobs have an id that the user chose. They are counted since
	// the engine was opened.
	chosenIDCount  int64
	jobBytes       int64            // size in bytes of the jobs that are not in the queue yet
	jobsPerQueue   map[string]int64 // number of jobs by queue, counted since the engine was opened; the map never changes
	isCommitted    bool
	isBeingRemoved bool // the batch is being removed, one frame per transaction
}

// acceptsFrames reports whether a batch accepts frames: it is neither committed nor being removed.
func (b *batch) acceptsFrames() bool { return !b.isCommitted && !b.isBeingRemoved }

// acceptsFramesHere reports whether a batch accepts frames from this node's clients.
func (e *Engine) acceptsFramesHere(b *batch) bool { return b.acceptsFrames() && b.node == e.node }

// StageBatch implements store.Batches. It stores one frame, which is a part of the jobs of a batch.
func (e *Engine) StageBatch(ctx context.Context, r store.Request) (store.Receipt, error) {
	list, err := encodeAllTexts(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	return doWithResult(ctx, e, &op{priorityClass: Normal},
		func(t *Tx) (store.Receipt, error) { return t.stageFrame(r, list) })
}

// setBatch sets the cached data of the batch with this number, and updates the totals of the batch's user. If
// b.number is 0, setBatch removes the batch from the cache.
func (t *Tx) setBatch(batchNumber int64, b batch) {
	t.requireReload()
	m := &t.engine.mem
	old, had := m.batches[batchNumber]
	t.undo = append(t.undo, func() {
		delete(m.batches, batchNumber)
		if had {
			m.batches[batchNumber] = old
		}
	})
	if had {
		t.saveUser(old.uid)
		m.addBatchToTotals(&old, -1)
		delete(m.batches, batchNumber)
	}
	if b.number != 0 {
		t.saveUser(b.uid)
		m.addBatchToTotals(&b, 1)
		m.batches[batchNumber] = b
	}
}

// addBatchToTotals adds the jobs and bytes of a batch to the totals of its user, or subtracts them if sign is -1.
func (m *memory) addBatchToTotals(b *batch, sign int64) {
	if b.isCommitted {
		m.committedJobs += sign * b.jobCount
	}
	m.changeUser(b.uid, func(u *user) {
		u.stagedJobs += sign * b.jobCount
		u.stagedBytes += sign * b.jobBytes
		if !b.isCommitted {
			u.openBatches += int(sign)
			u.chosenIDCount += sign * b.chosenIDCount
		}
	})
}

// firstBatch returns the batch with the lowest number among those that the given function accepts.
func (m *memory) firstBatch(matches func(*batch) bool) (found batch, ok bool) {
	for _, b := range m.batches {
		if matches(&b) && (!ok || b.number < found.number) {
			found, ok = b, true
		}
	}
	return found, ok
}

// findOpenBatch returns the user's batch of that name that still accepts jobs.
func (m *memory) findOpenBatch(uid int, name string) (batch, bool) {
	return m.firstBatch(func(b *batch) bool { return b.acceptsFrames() && b.uid == uid && b.name == name })
}

// stageFrame stores the drafts of a request as the next frame of its batch. If the batch does not exist,
// stageFrame creates it. texts holds the encoded texts of the drafts.
func (t *Tx) stageFrame(r store.Request, texts []records.Texts) (receipt store.Receipt, err error) {
	m := &t.engine.mem
	b, open := m.findOpenBatch(r.UID, r.Batch)
	if !open {
		b = batch{uid: r.UID, name: r.Batch}
		if m.users[r.UID].openBatches >= store.MaxStagedBatches {
			return receipt, store.ErrTooManyBatches
		}
		if t.isDiscarded(r) {
			return receipt, store.ErrBatchDiscarded
		}
	}
	chosenIDs := int64(0)
	for i := range r.Drafts {
		chosenIDs += records.BoolToInt(r.Drafts[i].ID != "")
	}
	if err := t.admitFrame(&r, texts, &b, chosenIDs); err != nil {
		return receipt, err
	}
	b.jobsPerQueue = maps.Clone(b.jobsPerQueue)
	if b.jobsPerQueue == nil {
		b.jobsPerQueue = map[string]int64{}
	}
	for name, n := range rules.CountByQueue(r.Drafts) {
		b.jobsPerQueue[name] += n
	}
	if err := t.admitQueues(r.UID, b.jobsPerQueue); err != nil {
		return receipt, err
	}
	if receipt, err = t.admitDrafts(r.Drafts, r.UID); err != nil {
		return receipt, err
	}
	switch {
	case !open:
		b.node = t.engine.node
		b.number = t.queryInt(`INSERT INTO batches (uid, name, stage, at, node) VALUES (?, ?, 0, ?, ?) RETURNING n`,
			int64(b.uid), b.name, int64(t.startTime), b.node)
		t.auditBatch(&b, "begun", int64(len(r.Drafts)))
	case b.node != t.engine.node: // the client sent earlier frames of this batch to another node
		t.takeBatch(&b)
	}
	t.recordOwner(r.UID, r.Owner)
	if err := t.addFrame(b.number, r.Drafts, texts, &receipt); err != nil {
		return receipt, err
	}
	b.jobCount += int64(len(r.Drafts))
	b.chosenIDCount += chosenIDs
	b.jobBytes += records.TotalSize(r.Drafts, texts)
	b.lastFrameAt = t.startTime
	t.setBatch(b.number, b)
	return receipt, nil
}

// admitFrame returns an error if the jobs of a request may not be added to a batch. chosenIDs is the number
// of these jobs whose ids the user chose.
func (t *Tx) admitFrame(r *store.Request, texts []records.Texts, b *batch, chosenIDs int64) error {
	u := t.engine.mem.users[r.UID]
	switch {
	case len(r.Drafts) == 0 || len(r.Drafts) > queue.MaxJobsPerRequest:
		return draftCountError(len(r.Drafts))
	case b.jobCount+int64(len(r.Drafts)) > store.MaxStagedJobs:
		return queue.Errorf(queue.CodeTooLarge, "the batch has more than %d jobs; send several batches",
			store.MaxStagedJobs)
	case u.chosenIDCount+chosenIDs > store.MaxStagedIDs:
		return store.ErrTooManyIDs
	}
	if err := cmp.Or(rules.AdmitUser(t, r.UID, int64(len(r.Drafts)), r.MaxPendingPerUser),
		rules.AdmitBytes(t, r.UID, records.TotalSize(r.Drafts, texts), r.MaxBytesPerUser)); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Drafts, func(j queue.Job) bool { return j.Unique != "" }) {
		return queue.Invalid("unique", "jobs with unique keys must fit in one request; enqueue at most %d jobs "+
			"at a time, or leave the unique keys out", queue.MaxJobsPerRequest)
	}
	return nil
}

// addFrame stores drafts as one frame of the batch with this number. It reserves the ids that the user chose
// for these jobs.
func (t *Tx) addFrame(batchNumber int64, drafts []queue.Job, texts []records.Texts,
	receipt *store.Receipt) (err error) {
	var frame []byte
	for i := range drafts {
		j := &drafts[i]
		f := records.StagedJob{Seq: receipt.Seqs[i], Draft: withParentSeqs(j, receipt.Seqs), ID: j.ID, Texts: texts[i]}
		if frame, err = f.Append(frame); err != nil {
			return err
		}
		if f.HasChosenID() {
			t.Exec(`INSERT INTO staged_ids (id, batch, seq) VALUES (?, ?, ?)`, j.ID, batchNumber, receipt.Seqs[i])
		}
	}
	return t.Exec(`INSERT INTO frames (batch, count, first, last, bytes, jobs) VALUES (?, ?, ?, ?, ?, ?)`,
		batchNumber, int64(len(drafts)), receipt.Seqs[0], receipt.Seqs[len(drafts)-1],
		records.TotalSize(drafts, texts), frame)
}

// isDiscarded reports whether the request continues a batch that was discarded. Without this check, the
// request would begin a new batch of the same name, which could be committed without the earlier frames.
func (t *Tx) isDiscarded(r store.Request) bool {
	return t.queryInt(`SELECT n FROM batches WHERE uid = ? AND name = ? AND stage = 2 LIMIT 1`, int64(r.UID), r.Batch) != 0
}

// auditBatch records an event about an uncommitted batch. The jobs of such a batch have no events yet.
func (t *Tx) auditBatch(b *batch, action string, jobs int64) {
	target := store.BatchAuditTarget(b.name, action, jobs)
	t.recordEvent(queue.EventAudit, nil, queue.EventDetail{UID: &b.uid, Verb: store.BatchAuditVerb, Target: target})
}

// commitBatch commits a batch. If r contains drafts, they are its last frame. From now on, the jobs of the
// batch count as jobs of the queue, and ApplyBatch moves them there.
func (t *Tx) commitBatch(r store.Request, texts []records.Texts) (receipt store.Receipt, err error) {
	m := &t.engine.mem
	b, _ := m.findOpenBatch(r.UID, r.Batch)
	if err := cmp.Or(t.admitQueues(r.UID, b.jobsPerQueue),
		rules.AdmitAll(t, b.jobCount+int64(len(r.Drafts)), r.MaxPending)); err != nil {
		return receipt, err
	}
	if len(r.Drafts) > 0 {
		if receipt, err = t.stageFrame(r, texts); err != nil {
			return receipt, err
		}
		b = m.batches[b.number]
	} else if err := rules.AdmitUser(t, r.UID, 0, r.MaxPendingPerUser); err != nil {
		return receipt, err
	}
	t.Exec(`UPDATE batches SET stage = 1, at = ? WHERE n = ?`, int64(t.startTime), b.number)
	b.isCommitted = true
	t.setBatch(b.number, b)
	receipt.Staged, receipt.Batch = true, b.number
	return receipt, t.err
}

// ApplyBatch moves the next frame (the jobs of one request) of a committed batch into the queue. more reports
// whether there may be more frames.
func (e *Engine) ApplyBatch(ctx context.Context, batchNumber int64) (more bool, err error) {
	return doWithResult(ctx, e, &op{priorityClass: Normal}, func(t *Tx) (more bool, err error) {
		if b := e.mem.batches[batchNumber]; b.isCommitted {
			return t.enqueueFirstFrame(b)
		}
		return false, nil
	})
}

// enqueueFirstFrame moves the first frame (the jobs of one request) of a batch into the queue. It reports
// whether there may be more frames.
func (t *Tx) enqueueFirstFrame(b batch) (more bool, err error) {
	if err := t.engine.space.CheckSpace(); err != nil {
		return true, err // do not fill the disk, because its reserve is for running jobs
	}
	f, found := t.firstFrame(b.number)
	if !found {
		t.removeEmptyBatch(b.number)
		return false, t.err
	}
	t.drafts = make([]records.Texts, len(f.jobs))
	for i := range f.jobs {
		j := &f.jobs[i]
		j.Draft.UID = b.uid
		t.drafts[i] = j.Texts
		if err := t.rules.Insert(&j.Draft, i, b.uid, j.Seq, cmp.Or(j.ID, strconv.FormatInt(j.Seq, 10))); err != nil {
			return false, err
		}
		if b.uid < 0 { // the batch's owner lost the uid after the batch was committed
			stored, err := t.Job(j.Seq, rules.ReadSummary)
			if err == nil {
				err = t.rules.Disown(&stored, b.uid)
			}
			if err != nil {
				return false, err
			}
		}
	}
	b.jobCount -= f.jobCount // the frame's jobs are counted as jobs of the queue now
	b.jobBytes -= f.jobBytes
	t.setBatch(b.number, b)
	if f.allJobsReadable {
		t.dropFrame(&f)
	} else {
		t.detachFrame(&b, &f)
	}
	return true, t.err
}

// readBatches adds the statements that read all batches, with the number and size of the jobs in their frames.
func (e *Engine) readBatches(queries *database.QueryBatch) {
	m := &e.mem
	queries.AddEach(func(r database.Row) {
		if stage := r.Num(3); stage != 2 {
			m.batches[r.Num(0)] = batch{number: r.Num(0), uid: int(r.Num(1)), name: r.Text(2), node: r.Num(4),
				isCommitted:    stage == 1,
				isBeingRemoved: stage == 3}
		}
	}, `SELECT n, uid, name, stage, node FROM batches`)
	queries.AddEach(func(r database.Row) {
		if b, there := m.batches[r.Num(0)]; there && !b.isBeingRemoved {
			b.jobCount, b.jobBytes = r.Num(1), r.Num(2)
			m.batches[b.number] = b
		}
	}, `SELECT batch, sum(count), sum(bytes) FROM frames INDEXED BY frames_batch WHERE batch > 0 GROUP BY batch`)
}

// finishBatches moves the batches that were committed before the engine was opened into the queue, and
// discards uncommitted ones. If the disk is full, it stops without an error.
func (e *Engine) finishBatches(ctx context.Context) error {
	for {
		more, err := doWithResult(ctx, e, &op{priorityClass: Prompt}, func(t *Tx) (more bool, err error) {
			return t.continueBatches(e.acceptsFramesHere)
		})
		if errors.Is(err, queue.ErrNoSpace) { // a statement or the commit has filled the disk
			return nil // the periodic upkeep continues later; until then, the jobs in the queue can run
		}
		if err != nil || !more {
			return err
		}
	}
}

// chosenIDsSQL returns a query for the ids of jobs that meet a condition, such as the result of InWordsSQL.
// It leaves out jobs whose id is their number.
func chosenIDsSQL(condition string) string {
	return `SELECT id FROM jobs INDEXED BY jobs_id WHERE ` + condition + ` AND id <> CAST(seq AS TEXT)`
}

// takenIDs reports which of the ids already belong to jobs: in the queue, in a batch, or submitted with the
// SQL function.
func (t *Tx) takenIDs(ids []string) (map[string]bool, error) {
	m := &t.engine.mem
	taken := map[string]bool{}
	if len(ids) == 0 {
		return taken, nil
	}
	condition, list := `id = ?`, strings.Join(ids, " ")
	if len(ids) > 1 {
		condition = t.InWordsSQL("id")
	}
	query, args := chosenIDsSQL(condition), append(make([]any, 0, 5), list)
	var earlierSeqs []int64 // ids that are the seq of a job created earlier
	for _, id := range ids {
		if n := reads.NumberOfID(id); n > 0 && n < m.nextSeq {
			earlierSeqs = append(earlierSeqs, n)
		}
	}
	if len(earlierSeqs) > 0 {
		query, args = query+` UNION ALL SELECT id FROM jobs WHERE `+t.InNumbersSQL("seq")+` AND id = CAST(seq AS TEXT)`,
			append(args, database.JoinNumbers(slices.Values(earlierSeqs)))
	}
	if len(m.batches) > 0 {
		query, args = query+` UNION ALL SELECT id FROM staged_ids WHERE `+condition, append(args, list)
	}
	if t.engine.shared != nil {
		query, args = query+` UNION ALL SELECT id FROM submissions WHERE `+condition+` AND refused IS NULL AND n <> ?`,
			append(args, list, t.submission)
	}
	database.EachRow(t, func(r database.Row) { taken[r.Text(0)] = true }, query, args...)
	if len(m.batches) == 0 {
		return taken, t.err
	}
	for _, id := range ids {
		seq := reads.NumberOfID(id)
		if seq == 0 || taken[id] || seq >= m.nextSeq {
			continue
		}
		// The id may be the number of a job in a batch. No two frames of batches contain the same number.
		taken[id] = seq <= t.queryInt(
			`SELECT last FROM frames INDEXED BY frames_first WHERE batch > 0 AND first <= ? ORDER BY first DESC LIMIT 1`, seq)
	}
	return taken, t.err
}
