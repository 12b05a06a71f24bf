package sqlstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// batch is a large batch whose jobs are not all in the queue yet: in frames, each
// the JSON of some jobs.
type batch struct {
	n         int64
	uid       int
	name      string
	at        queue.Millis // of its last frame
	jobs      int64        // that are not in the queue yet, as far as this process knows
	committed bool
	dropped   bool       // it is removed, a frame a step
	seqs      [][2]int64 // given to its jobs: first and last of each frame
}

// stagedJob is a job in a frame: its numbers as varints, then its id and the JSON of
// its terms, each after its length.
type stagedJob struct {
	seq       int64
	draft     queue.Job // priority, attempts and times
	id, terms string
}

// named reports whether the id has a row of its own while it is staged: a number of
// the batch is known to be taken without.
func (f *stagedJob) named() bool { return f.id != strconv.FormatInt(f.seq, 10) }

func (f *stagedJob) append(b []byte) []byte {
	j := &f.draft
	for _, n := range []int64{f.seq, j.Priority, int64(j.MaxAttempts), int64(j.RunAt), int64(j.Delay), int64(j.ExpiresAt)} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range []string{f.id, f.terms} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// readFrame reads the jobs of a frame.
func readFrame(b []byte) (jobs []stagedJob, err error) {
	for len(b) > 0 {
		var numbers [6]int64
		for i := range numbers {
			n, size := binary.Varint(b)
			if size <= 0 {
				return nil, errDamaged
			}
			numbers[i], b = n, b[size:]
		}
		var texts [2]string
		for i := range texts {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return nil, errDamaged
			}
			texts[i], b = string(b[size:size+int(n)]), b[size+int(n):]
		}
		jobs = append(jobs, stagedJob{numbers[0], queue.Job{
			Queue: queue.DefaultQueue, Priority: numbers[1], MaxAttempts: int(numbers[2]), RunAt: queue.Millis(numbers[3]),
			Delay: time.Duration(numbers[4]), ExpiresAt: queue.Millis(numbers[5]),
		}, texts[0], texts[1]})
	}
	return jobs, nil
}

// Stage keeps one frame of a batch.
func (s *Store) Stage(ctx context.Context, r store.Request) (store.Receipt, error) {
	terms, err := termsOf(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	var receipt store.Receipt
	err = s.do(ctx, false, func(t *tx) (err error) {
		receipt, err = t.stage(r, terms)
		return err
	})
	return receipt, err
}

// staging reports whether a batch takes frames.
func (b batch) staging() bool { return !b.committed && !b.dropped }

// staged is the index of a batch that takes frames, -1 if there is none.
func (t *tx) staged(uid int, name string) int {
	return slices.IndexFunc(t.s.mem.batches, func(b batch) bool { return b.staging() && b.uid == uid && b.name == name })
}

// batchesOf is how many batches of a user there are.
func (t *tx) batchesOf(uid int) (n int) {
	for i := range t.s.mem.batches {
		if t.s.mem.batches[i].uid == uid {
			n++
		}
	}
	return n
}

func (t *tx) stage(r store.Request, terms []string) (receipt store.Receipt, err error) {
	m := &t.s.mem
	at := t.staged(r.UID, r.Batch)
	b := batch{uid: r.UID, name: r.Batch}
	switch {
	case at >= 0:
		b = m.batches[at]
	case t.batchesOf(r.UID) >= store.MaxStagedUser:
		return receipt, store.ErrManyBatches
	case len(m.batches) >= store.MaxStaged:
		return receipt, store.ErrFullOfBatches
	}
	if err := t.remembered(at, r); err != nil {
		return receipt, err
	}
	if b.jobs+int64(len(r.Drafts)) > store.MaxStagedJobs {
		return receipt, queue.Errorf(queue.CodeTooLarge, "the batch has more than %d jobs; send them in several", store.MaxStagedJobs)
	}
	if err := t.s.admit(r); err != nil {
		return receipt, err
	}
	receipt = store.Receipt{IDs: make([]string, len(r.Drafts)), Seqs: make([]int64, len(r.Drafts))}
	if err := t.nameAll(r.Drafts, &receipt); err != nil {
		return store.Receipt{}, err
	}
	if at < 0 {
		if _, err := t.exec(`INSERT INTO batches (uid, name, stage, at) VALUES (?, ?, 0, ?)`, int64(b.uid), b.name, int64(t.now)); err != nil {
			return receipt, err
		}
		if b.n, err = t.number(`SELECT last_insert_rowid()`); err != nil {
			return receipt, err
		}
	}
	var frame []byte
	for i := range r.Drafts {
		j := &r.Drafts[i]
		f := stagedJob{receipt.Seqs[i], *j, receipt.IDs[i], terms[i]}
		frame = f.append(frame)
		if !f.named() {
			continue
		}
		if _, err := t.exec(`INSERT INTO staged_ids (id, batch) VALUES (?, ?)`, j.ID, b.n); err != nil {
			return receipt, err
		}
	}
	if _, err := t.exec(`INSERT INTO frames (batch, jobs) VALUES (?, ?)`, b.n, frame); err != nil {
		return receipt, err
	}
	b.jobs += int64(len(r.Drafts))
	b.at = t.now
	b.seqs = append(slices.Clip(b.seqs), [2]int64{receipt.Seqs[0], receipt.Seqs[len(r.Drafts)-1]})
	m.batches = slices.Clone(m.batches) // the one before stays as it was, for a transaction that is undone
	if at >= 0 {
		m.batches[at] = b
	} else {
		m.batches = append(m.batches, b)
	}
	return receipt, nil
}

// commitBatch makes the frames of a batch, and these drafts, jobs of the queue from
// now on: Finish moves them there.
func (t *tx) commitBatch(r store.Request, terms []string) (receipt store.Receipt, err error) {
	if len(r.Drafts) > 0 {
		if receipt, err = t.stage(r, terms); err != nil {
			return receipt, err
		}
	}
	receipt.Staged = true
	m := &t.s.mem
	at := t.staged(r.UID, r.Batch)
	if _, err := t.exec(`UPDATE batches SET stage = 1, at = ? WHERE n = ?`, int64(t.now), m.batches[at].n); err != nil {
		return receipt, err
	}
	m.batches = slices.Clone(m.batches)
	m.batches[at].committed = true
	return receipt, nil
}

// remembered refuses to begin a batch under the name of one that was forgotten with
// some of its frames: it would be committed without them.
func (t *tx) remembered(at int, r store.Request) error {
	if at >= 0 {
		return nil
	}
	forgotten, err := t.number(`SELECT n FROM batches WHERE uid = ? AND name = ? AND stage = 2 LIMIT 1`, int64(r.UID), r.Batch)
	if forgotten != 0 && err == nil {
		return store.ErrForgotten
	}
	return err
}

// Unstage forgets a batch that was not committed.
func (s *Store) Unstage(ctx context.Context, uid int, name string) error {
	var n int64
	err := s.do(ctx, true, func(t *tx) error {
		n = 0
		at := t.staged(uid, name)
		if at < 0 {
			return nil
		}
		n = t.s.mem.batches[at].n
		return t.drop(at)
	})
	for more := n != 0; more && err == nil; { // its ids are free when this returns
		err = s.do(ctx, false, func(t *tx) (err error) {
			more, err = t.dropStep(n)
			return err
		})
	}
	return err
}

// forget drops a batch whose client may still be sending: its name is kept.
func (t *tx) forget(at int) error {
	n := t.s.mem.batches[at].n
	if _, err := t.exec(`INSERT INTO batches (uid, name, stage, at) SELECT uid, name, 2, ? FROM batches WHERE n = ?`, int64(t.now), n); err != nil {
		return err
	}
	return t.drop(at)
}

// drop has a batch removed: dropStep does it.
func (t *tx) drop(at int) error {
	m := &t.s.mem
	if _, err := t.exec(`UPDATE batches SET stage = 3 WHERE n = ?`, m.batches[at].n); err != nil {
		return err
	}
	m.batches = slices.Clone(m.batches)
	m.batches[at].dropped, m.batches[at].jobs = true, 0
	t.wakeAt(t.now)
	return nil
}

// dropStep removes a frame of a batch, with the ids of its jobs; the batch goes with
// its last one. It reports whether there is more.
func (t *tx) dropStep(n int64) (more bool, err error) {
	frame, jobs, err := t.firstFrame(n)
	if errors.Is(err, errDamaged) { // so its ids cannot be told
		_, err = t.exec(`DELETE FROM staged_ids WHERE batch = ?`, n)
	}
	if err != nil {
		return false, err
	}
	if frame == 0 {
		return false, t.dropEmpty(n)
	}
	return true, t.dropFrame(frame, jobs)
}

// firstFrame reads the first frame of a batch; its number is 0 if there is none.
func (t *tx) firstFrame(batch int64) (frame int64, jobs []stagedJob, err error) {
	text := ""
	err = t.query(func(r row) (bool, error) {
		frame, text = r.num(0), r.text(1)
		return false, nil
	}, `SELECT n, jobs FROM frames WHERE batch = ? ORDER BY n LIMIT 1`, batch)
	if err != nil || frame == 0 {
		return frame, nil, err
	}
	if jobs, err = readFrame([]byte(text)); err != nil {
		err = fmt.Errorf("frame %d of a batch is %w", frame, err)
	}
	return frame, jobs, err
}

// dropFrame removes a frame with the ids of its jobs.
func (t *tx) dropFrame(frame int64, jobs []stagedJob) error {
	for i := range jobs {
		if !jobs[i].named() {
			continue
		}
		if _, err := t.exec(`DELETE FROM staged_ids WHERE id = ?`, jobs[i].id); err != nil {
			return err
		}
	}
	_, err := t.exec(`DELETE FROM frames WHERE n = ?`, frame)
	return err
}

// dropEmpty removes a batch that has no frames.
func (t *tx) dropEmpty(n int64) error {
	m := &t.s.mem
	m.batches = slices.DeleteFunc(slices.Clone(m.batches), func(b batch) bool { return b.n == n })
	_, err := t.exec(`DELETE FROM batches WHERE n = ?`, n)
	return err
}

// Finish moves the next frame of a committed batch into the queue.
func (s *Store) Finish(ctx context.Context) (more bool, err error) {
	err = s.do(ctx, false, func(t *tx) (err error) {
		more, err = t.finish()
		return err
	})
	return more, err
}

func (t *tx) finish() (more bool, err error) {
	m := &t.s.mem
	at := slices.IndexFunc(m.batches, func(b batch) bool { return b.committed })
	if at < 0 {
		return false, nil
	}
	if err := t.s.roomToEnqueue(); err != nil {
		return true, err // the reserve is for what runs
	}
	b := m.batches[at]
	frame, jobs, err := t.firstFrame(b.n)
	if err != nil {
		return false, err
	}
	if frame == 0 {
		err := t.dropEmpty(b.n)
		return slices.ContainsFunc(m.batches, func(b batch) bool { return b.committed }), err
	}
	for i := range jobs {
		f := &jobs[i]
		f.draft.UID = b.uid
		if err := t.insert(&f.draft, b.uid, f.seq, f.id, f.terms); err != nil {
			return false, err
		}
	}
	m.batches = slices.Clone(m.batches)
	m.batches[at].jobs -= int64(len(jobs)) // they are counted now
	return true, t.dropFrame(frame, jobs)
}

// tidyBatches removes a frame of a batch that is dropped, or forgets one whose client
// has gone silent, or moves a frame of one that was committed; it reports whether
// there is more to do.
func (t *tx) tidyBatches() (more bool, err error) {
	if at := slices.IndexFunc(t.s.mem.batches, func(b batch) bool { return b.dropped }); at >= 0 {
		_, err := t.dropStep(t.s.mem.batches[at].n)
		return true, err
	}
	silent := func(b batch) bool { return b.staging() && b.at.Add(store.StageMemory) < t.now }
	if at := slices.IndexFunc(t.s.mem.batches, silent); at >= 0 {
		return true, t.forget(at)
	}
	if _, err := t.exec(`DELETE FROM batches WHERE stage = 2 AND at < ?`, int64(t.now.Add(-store.ForgottenMemory))); err != nil {
		return false, err
	}
	more, err = t.finish()
	if errors.Is(err, queue.ErrNoSpace) {
		return false, nil // at the next look
	}
	return more, err
}

// loadBatches reads which batches there are, and of those that are committed what their
// frames hold: it waits, and its ids are taken, until it is moved.
func (s *Store) loadBatches() error {
	err := s.db.query(func(r row) (bool, error) {
		if stage := r.num(3); stage != 2 {
			s.mem.batches = append(s.mem.batches, batch{n: r.num(0), uid: int(r.num(1)), name: r.text(2), committed: stage == 1, dropped: stage == 3})
		}
		return true, nil
	}, `SELECT n, uid, name, stage FROM batches ORDER BY n`)
	if err != nil {
		return err
	}
	for i := range s.mem.batches {
		b := &s.mem.batches[i]
		if !b.committed {
			continue
		}
		err := s.db.query(func(r row) (bool, error) {
			jobs, _ := readFrame([]byte(r.text(0))) // whoever moves it says that it is damaged
			if n := len(jobs); n > 0 {
				b.jobs += int64(n)
				b.seqs = append(b.seqs, [2]int64{jobs[0].seq, jobs[n-1].seq})
			}
			return true, nil
		}, `SELECT jobs FROM frames WHERE batch = ? ORDER BY n`, b.n)
		if err != nil {
			return err
		}
	}
	return nil
}

// endBatches finishes what was committed before the store was opened, and forgets
// what was not.
func (s *Store) endBatches(ctx context.Context) error {
	for more := true; more; {
		err := s.do(ctx, true, func(t *tx) (err error) {
			if at := slices.IndexFunc(t.s.mem.batches, batch.staging); at >= 0 {
				more = true
				return t.forget(at)
			}
			if at := slices.IndexFunc(t.s.mem.batches, func(b batch) bool { return b.dropped }); at >= 0 {
				more = true
				_, err = t.dropStep(t.s.mem.batches[at].n)
				return err
			}
			more, err = t.finish()
			return err
		})
		if errors.Is(err, queue.ErrNoSpace) {
			return nil // later: what is there can run meanwhile
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// taken reports whether a job of the queue, or of a batch, has an id.
func (t *tx) taken(id string) (bool, error) {
	if len(t.s.mem.batches) == 0 {
		n, err := t.number(`SELECT seq FROM jobs WHERE id = ?`, id)
		return n != 0, err
	}
	if seq, err := strconv.ParseInt(id, 10, 64); err == nil && strconv.FormatInt(seq, 10) == id {
		for i := range t.s.mem.batches {
			for _, span := range t.s.mem.batches[i].seqs {
				if seq >= span[0] && seq <= span[1] {
					return true, nil // it may be the number of a job there
				}
			}
		}
	}
	n, err := t.number(`SELECT seq FROM jobs WHERE id = ? UNION ALL SELECT batch FROM staged_ids WHERE id = ?`, id, id)
	return n != 0, err
}
