package sqlstore

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Enqueue stores all drafts of a request or none.
func (s *Store) Enqueue(ctx context.Context, r store.Request) (store.Receipt, error) {
	list, err := allTexts(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	var receipt store.Receipt
	err = s.do(ctx, normal, func(t *tx) (err error) {
		receipt, err = t.enqueue(r, list)
		return err
	})
	if err != nil {
		return store.Receipt{}, err
	}
	return receipt, nil
}

// allTexts are the texts of each draft.
func allTexts(drafts []queue.Job) (list []texts, err error) {
	list = make([]texts, len(drafts))
	for i := range drafts {
		if list[i], err = textsOf(drafts[i].Execution); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (t *tx) enqueue(r store.Request, list []texts) (store.Receipt, error) {
	if known, err := t.knownKey(r); known != nil || err != nil {
		return orZero(known), err
	}
	receipt, err := t.enqueueAll(r, list)
	if err != nil {
		return store.Receipt{}, err
	}
	if r.Key != "" {
		ids, err := json.Marshal(receipt)
		if err != nil {
			return store.Receipt{}, err
		}
		if _, err := t.exec(`INSERT INTO keys (uid, key, at, sum, ids) VALUES (?, ?, ?, ?, ?)`,
			int64(r.UID), r.Key, int64(t.now), r.Sum[:], string(ids)); err != nil {
			return store.Receipt{}, err
		}
	}
	return receipt, nil
}

// enqueueAll stores the drafts as jobs, or commits the batch that they are the last
// of.
func (t *tx) enqueueAll(r store.Request, list []texts) (receipt store.Receipt, err error) {
	if r.Batch != "" {
		if _, going := t.s.mem.staged(r.UID, r.Batch); going {
			return t.commitBatch(r, list)
		}
		if err := t.remembered(r); err != nil {
			return receipt, err
		}
	}
	if len(r.Drafts) == 0 || len(r.Drafts) > queue.MaxBatch {
		return receipt, errDrafts(len(r.Drafts))
	}
	if err := t.s.admit(r); err != nil {
		return receipt, err
	}
	receipt = store.Receipt{IDs: make([]string, len(r.Drafts)), Seqs: make([]int64, len(r.Drafts))}
	if err := t.nameAll(r.Drafts, &receipt); err != nil {
		return receipt, err
	}
	if err := t.own(r.UID, r.Owner); err != nil {
		return receipt, err
	}
	for i := range r.Drafts {
		if err := t.insert(&r.Drafts[i], r.UID, receipt.Seqs[i], receipt.IDs[i], &list[i]); err != nil {
			return receipt, err
		}
	}
	return receipt, nil
}

func orZero(r *store.Receipt) store.Receipt {
	if r == nil {
		return store.Receipt{}
	}
	return *r
}

// knownKey is the receipt that the key has got before, or nil.
func (t *tx) knownKey(r store.Request) (known *store.Receipt, err error) {
	if r.Key == "" {
		return nil, nil
	}
	var sum, ids string
	err = t.query(func(r row) (bool, error) {
		sum, ids = r.text(0), r.text(1)
		return false, nil
	}, `SELECT sum, ids FROM keys WHERE uid = ? AND key = ?`, int64(r.UID), r.Key)
	if err != nil || ids == "" {
		return nil, err
	}
	if sum != string(r.Sum[:]) {
		return nil, &queue.Error{Code: queue.CodeExists, Field: "key", Message: "was used for other parameters; use a new key"}
	}
	if err := json.Unmarshal([]byte(ids), &known); err != nil {
		return nil, err
	}
	known.Duplicate = true
	return known, nil
}

func errDrafts(n int) error {
	return queue.Invalid("jobs", "has %d entries; 1 to %d are taken at once", n, queue.MaxBatch)
}

// admit refuses a request that the queue or the disk has no room for.
func (s *Store) admit(r store.Request) error {
	n := int64(len(r.Drafts))
	if err := s.admitWaiting(n, r.MaxPending); err != nil {
		return err
	}
	if err := s.admitUser(r.UID, n, r.MaxPendingUser); err != nil {
		return err
	}
	return s.roomToEnqueue()
}

// admitWaiting refuses n more jobs that would wait. Those of committed batches wait too.
func (s *Store) admitWaiting(n, most int64) error {
	waiting := store.Counts{States: s.mem.counts}.Waiting() + s.mem.committed
	if most > 0 && waiting+n > most {
		return queue.Errorf(queue.CodeFull, "the queue is full: %d jobs wait and max_pending is %d; try again later", waiting, most)
	}
	return nil
}

func (t *tx) insert(j *queue.Job, uid int, seq int64, id string, text *texts) error {
	runAt := j.RunAt
	if runAt == 0 {
		runAt = t.now.Add(j.Delay)
	}
	arrival := t.s.mem.enqueued
	t.s.mem.enqueued++
	since := max(t.now, runAt)
	rank := t.s.mem.order.Rank(j.Priority, since, arrival)
	stands := t.stands(j.UID, runAt, place{rank, seq})
	t.wakeAt(j.ExpiresAt)
	_, err := t.exec(`INSERT INTO jobs (seq, id, queue, uid, state, place, rank, priority, max_attempts,
		created_at, updated_at, run_at, due_at, since, arrival, expires_at, labels, terms, input)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		seq, id, j.Queue, int64(j.UID), int64(queue.Pending), stands, rank,
		j.Priority, int64(j.MaxAttempts), int64(t.now), int64(t.now), int64(runAt), int64(runAt), int64(since), arrival,
		int64(j.ExpiresAt), text.labels, text.terms, text.inline())
	if err == nil && text.inline() == nil {
		_, err = t.exec(`INSERT INTO inputs (seq, input) VALUES (?, ?)`, seq, text.input)
	}
	if err != nil {
		return err
	}
	t.move(seq, j.UID, 0, queue.Pending)
	return t.event(queue.EventEnqueued, seq, id, queue.Pending, uidDetail(uid))
}

// one reads these columns of a job inside the transaction.
func (t *tx) one(seq int64, columns string) (j queue.Job, err error) {
	found := false
	err = t.query(func(r row) (bool, error) {
		found = true
		t.read += int(r.num(width(columns))) // a change has SQLite move all of the row
		j, err = readJob(r, columns)
		return false, err
	}, `SELECT `+columns+`, octet_length(labels) + octet_length(terms) FROM jobs WHERE seq = ?`, seq)
	if err == nil && !found {
		err = queue.Errorf(queue.CodeNotFound, "there is no job with seq %d", seq)
	}
	return j, err
}

// Change carries out a verb on a job.
func (s *Store) Change(ctx context.Context, seq int64, c store.Change) error {
	return s.do(ctx, prompt, func(t *tx) error { return t.change(seq, c) })
}

// needs are the columns of a job that a verb needs: however large a job is, and whatever
// of it is damaged, it can be got rid of.
func needs(verb queue.Verb) string {
	switch verb {
	case queue.VerbCancel, queue.VerbRemove, queue.VerbHold:
		return headColumns
	case queue.VerbEdit:
		return wholeColumns
	}
	return jobColumns
}

func (t *tx) change(seq int64, c store.Change) error {
	if _, leased := t.s.mem.leases[seq]; leased {
		return store.ErrLeased
	}
	j, err := t.one(seq, needs(c.Verb))
	if errors.Is(err, errDamaged) {
		return queue.Errorf(queue.CodeWrongState, "job %s cannot be read; show says why, rm removes it", j.ID)
	}
	if err != nil {
		return err
	}
	to, event, acts, err := c.Act(&j)
	if err != nil || !acts {
		return err
	}
	if to.Waiting() && !j.State.Waiting() {
		if err := t.s.admitWaiting(1, c.MaxPending); err != nil {
			return err
		}
		if err := t.s.admitUser(j.UID, 1, c.MaxPendingUser); err != nil {
			return err
		}
	}
	switch c.Verb {
	case queue.VerbCancel:
		return t.cancel(&j, "", event, uidDetail(c.UID))
	case queue.VerbRemove:
		t.invalidate(j.UID)
		err = t.remove(seq)
	case queue.VerbHold:
		t.invalidate(j.UID)
		_, err = t.exec(`UPDATE jobs SET state = 2, place = 0, reason = '', updated_at = ? WHERE seq = ?`, int64(t.now), seq)
	case queue.VerbRelease:
		err = t.wait(&j, max(t.now, j.DueAt))
	case queue.VerbRetry, queue.VerbRetryDead:
		if c.Timeout != nil {
			j.Timeout = *c.Timeout
			if err := t.writeTexts(&j, false); err != nil {
				return err
			}
		}
		j.Attempts, j.Deferred, j.Refunds, j.Crashes, j.Error, j.ExitCode, j.Signal, j.EndedAt, j.ExpiresAt = 0, 0, 0, 0, "", -1, 0, 0, 0
		err = t.wait(&j, t.now)
	case queue.VerbEdit:
		err = t.edit(&j, c.Edit)
	}
	if err != nil {
		return err
	}
	t.move(seq, j.UID, j.State, to)
	return t.event(event, seq, j.ID, to, uidDetail(c.UID))
}

// wait makes a job pending, with the turn of one that is enqueued at due and at
// least one attempt.
func (t *tx) wait(j *queue.Job, due queue.Millis) error {
	j.DueAt, j.Since, j.Arrival, j.Reason = due, due, t.s.mem.enqueued, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
	return t.rewrite(j, queue.Pending)
}

// edit writes what a person has changed of a waiting job. It keeps its turn
// unless its time was changed.
func (t *tx) edit(j *queue.Job, edit func(*queue.Job) error) error {
	runAt := j.RunAt
	if err := edit(j); err != nil {
		return err
	}
	if j.Delay != 0 {
		j.RunAt = t.now.Add(j.Delay)
	}
	if j.RunAt != runAt {
		j.DueAt, j.Since, j.Arrival = j.RunAt, max(t.now, j.RunAt), t.s.mem.enqueued
	}
	if err := t.writeTexts(j, true); err != nil {
		return err
	}
	return t.rewrite(j, j.State)
}

// writeTexts writes what a job runs by, with what it is given as env and stdin if that
// was read.
func (t *tx) writeTexts(j *queue.Job, whole bool) error {
	text, err := textsOf(j.Execution)
	if err != nil {
		return err
	}
	if !whole {
		_, err := t.exec(`UPDATE jobs SET terms = ? WHERE seq = ?`, text.terms, j.Seq)
		return err
	}
	if _, err := t.exec(`UPDATE jobs SET labels = ?, terms = ?, input = ? WHERE seq = ?`, text.labels, text.terms, text.inline(), j.Seq); err != nil {
		return err
	}
	if text.inline() != nil {
		_, err = t.exec(`DELETE FROM inputs WHERE seq = ?`, j.Seq)
		return err
	}
	_, err = t.exec(`INSERT INTO inputs (seq, input) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET input = excluded.input`, j.Seq, text.input)
	return err
}

// rewrite writes what a change may change of a job, with its new state, but for its
// texts.
func (t *tx) rewrite(j *queue.Job, to queue.State) error {
	rank := t.s.mem.order.Rank(j.Priority, j.Since, j.Arrival)
	t.invalidate(j.UID)
	stands := int64(placeNone)
	if to.Runnable() {
		stands = t.stands(j.UID, j.DueAt, place{rank, j.Seq})
	}
	t.wakeAt(j.ExpiresAt)
	_, err := t.exec(`UPDATE jobs SET state = ?, place = ?, rank = ?, priority = ?, max_attempts = ?, attempts = ?, deferred = ?, refunds = ?, crashes = ?, reason = ?, error = ?, exit_code = ?,
		signal = ?, ended_at = ?, expires_at = ?, run_at = ?, due_at = ?, since = ?, arrival = ?, updated_at = ? WHERE seq = ?`,
		int64(to), stands, rank, j.Priority, int64(j.MaxAttempts), int64(j.Attempts), int64(j.Deferred), int64(j.Refunds), int64(j.Crashes), string(j.Reason), j.Error, j.ExitCode,
		int64(j.Signal), int64(j.EndedAt), int64(j.ExpiresAt), int64(j.RunAt), int64(j.DueAt), int64(j.Since), j.Arrival, int64(t.now), j.Seq)
	return err
}

func (t *tx) cancel(j *queue.Job, why queue.Reason, kind queue.EventKind, detail []byte) error {
	_, err := t.exec(`UPDATE jobs SET state = 8, place = 0, reason = ?, ended_at = ?, updated_at = ? WHERE seq = ?`,
		string(why), int64(t.now), int64(t.now), j.Seq)
	if err != nil {
		return err
	}
	t.invalidate(j.UID)
	t.move(j.Seq, j.UID, j.State, queue.Cancelled)
	return t.event(kind, j.Seq, j.ID, queue.Cancelled, detail)
}
