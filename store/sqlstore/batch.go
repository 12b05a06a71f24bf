package sqlstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
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

// stagedJob is a job in a frame: the length and the checksum of what follows, then its
// numbers as varints, then its id and texts, each after its length.
type stagedJob struct {
	seq   int64
	draft queue.Job // priority, attempts and times
	id    string
	texts
}

// named reports whether the id has a row of its own while it is staged: a number of
// the batch is known to be taken without.
func (f *stagedJob) named() bool { return f.id != strconv.FormatInt(f.seq, 10) }

// castagnoli is what processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *stagedJob) append(b []byte) []byte {
	j := &f.draft
	var body []byte
	for _, n := range []int64{f.seq, j.Priority, int64(j.MaxAttempts), int64(j.RunAt), int64(j.Delay), int64(j.ExpiresAt)} {
		body = binary.AppendVarint(body, n)
	}
	for _, text := range []string{f.id, f.labels, f.terms, f.input} {
		body = append(binary.AppendUvarint(body, uint64(len(text))), text...)
	}
	b = binary.AppendUvarint(b, uint64(len(body)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	return append(b, body...)
}

// readFrame reads the jobs of a frame: all that can be read. It is whole if nothing was
// left out.
func readFrame(b []byte) (jobs []stagedJob, whole bool) {
	whole = true
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || len(b)-size < 4 || n > uint64(len(b)-size-4) {
			return jobs, false
		}
		sum, body := binary.LittleEndian.Uint32(b[size:]), b[size+4:][:n]
		b = b[size+4+int(n):]
		f, ok := readStaged(body)
		if !ok || crc32.Checksum(body, castagnoli) != sum {
			whole = false
			continue
		}
		jobs = append(jobs, f)
	}
	return jobs, whole
}

func readStaged(b []byte) (f stagedJob, ok bool) {
	var numbers [6]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return f, false
		}
		numbers[i], b = n, b[size:]
	}
	var list [4]string
	for i := range list {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return f, false
		}
		list[i], b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	return stagedJob{numbers[0], queue.Job{
		Queue: queue.DefaultQueue, Priority: numbers[1], MaxAttempts: int(numbers[2]), RunAt: queue.Millis(numbers[3]),
		Delay: time.Duration(numbers[4]), ExpiresAt: queue.Millis(numbers[5]),
	}, list[0], texts{list[1], list[2], list[3]}}, len(b) == 0
}

// Stage keeps one frame of a batch.
func (s *Store) Stage(ctx context.Context, r store.Request) (store.Receipt, error) {
	list, err := allTexts(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	var receipt store.Receipt
	err = s.do(ctx, normal, func(t *tx) (err error) {
		receipt, err = t.stage(r, list)
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

func (t *tx) stage(r store.Request, list []texts) (receipt store.Receipt, err error) {
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
	if err := t.own(r.UID, r.Owner); err != nil {
		return receipt, err
	}
	var frame []byte
	for i := range r.Drafts {
		j := &r.Drafts[i]
		f := stagedJob{receipt.Seqs[i], *j, receipt.IDs[i], list[i]}
		frame = f.append(frame)
		if !f.named() {
			continue
		}
		if _, err := t.exec(`INSERT INTO staged_ids (id, batch) VALUES (?, ?)`, j.ID, b.n); err != nil {
			return receipt, err
		}
	}
	first, last := receipt.Seqs[0], receipt.Seqs[len(r.Drafts)-1]
	if _, err := t.exec(`INSERT INTO frames (batch, count, first, last, jobs) VALUES (?, ?, ?, ?, ?)`, b.n, int64(len(r.Drafts)), first, last, frame); err != nil {
		return receipt, err
	}
	b.jobs += int64(len(r.Drafts))
	b.at = t.now
	b.seqs = append(slices.Clip(b.seqs), [2]int64{first, last})
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
func (t *tx) commitBatch(r store.Request, list []texts) (receipt store.Receipt, err error) {
	if len(r.Drafts) > 0 {
		if receipt, err = t.stage(r, list); err != nil {
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
	err := s.do(ctx, prompt, func(t *tx) error {
		n = 0
		at := t.staged(uid, name)
		if at < 0 {
			return nil
		}
		n = t.s.mem.batches[at].n
		return t.drop(at)
	})
	for more := n != 0; more && err == nil; { // its ids are free when this returns
		err = s.do(ctx, normal, func(t *tx) (err error) {
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
	jobs, whole := readFrame([]byte(text))
	if !whole {
		err = fmt.Errorf("frame %d of a batch is %w", frame, errDamaged)
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
	err = s.do(ctx, normal, func(t *tx) (err error) {
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
		if err := t.insert(&f.draft, b.uid, f.seq, f.id, &f.texts); err != nil {
			return false, err
		}
		if b.uid < 0 { // its owner was disowned meanwhile
			if err := t.disown(&disowning{former: b.uid, uid: b.uid}, f.seq, f.id, queue.Pending); err != nil {
				return false, err
			}
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
			b.jobs += r.num(0)
			b.seqs = append(b.seqs, [2]int64{r.num(1), r.num(2)})
			return true, nil
		}, `SELECT count, first, last FROM frames WHERE batch = ? ORDER BY n`, b.n)
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
		err := s.do(ctx, prompt, func(t *tx) (err error) {
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
