package memstore

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// batch is a large batch whose jobs are not all in the queue yet.
type batch struct {
	uid       int
	name      string
	at        queue.Millis // of its last frame
	frames    [][]queue.Job
	committed bool
}

// staged is the batch of a user that takes frames, nil if there is none.
func (s *Store) staged(uid int, name string) *batch {
	for _, b := range s.batches {
		if !b.committed && b.uid == uid && b.name == name {
			return b
		}
	}
	return nil
}

func (s *Store) forgotten(r store.Request) bool {
	_, was := s.forgot[key{r.UID, r.Batch}]
	return was
}

func (b *batch) jobs() (n int64) {
	for _, f := range b.frames {
		n += int64(len(f))
	}
	return n
}

// waiting is how many jobs wait, in the queue and in batches, of all and of one user.
func (s *Store) waiting(uid int) (all, own int64) {
	count := func(of int, n int64) {
		all += n
		if of == uid {
			own += n
		}
	}
	for _, j := range s.jobs {
		if j.State.Waiting() {
			count(j.UID, 1)
		}
	}
	for _, b := range s.batches {
		count(b.uid, b.jobs())
	}
	return all, own
}

// admit refuses n more jobs of a user that the queue has no room for.
func (s *Store) admit(uid int, n, most, mostUser int64) error {
	all, own := s.waiting(uid)
	if most > 0 && all+n > most {
		return queue.Errorf(queue.CodeFull, "the queue is full: max_pending is %d", most)
	}
	if mostUser > 0 && own+n > mostUser {
		return queue.Errorf(queue.CodeFull, "the queue is full for this user: max_pending_per_user is %d", mostUser)
	}
	return nil
}

// Stage keeps one frame of a batch.
func (s *Store) Stage(ctx context.Context, r store.Request) (receipt store.Receipt, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		receipt, err = s.stage(r, now)
		return err
	})
	return receipt, err
}

// batchesOf is how many batches of a user there are.
func (s *Store) batchesOf(uid int) (n int) {
	for _, b := range s.batches {
		if b.uid == uid {
			n++
		}
	}
	return n
}

func (s *Store) stage(r store.Request, now queue.Millis) (store.Receipt, error) {
	b, known := s.staged(r.UID, r.Batch), true
	if b == nil {
		b, known = &batch{uid: r.UID, name: r.Batch}, false
	}
	switch n := b.jobs() + int64(len(r.Drafts)); {
	case !known && s.forgotten(r):
		return store.Receipt{}, store.ErrForgotten
	case !known && s.batchesOf(r.UID) >= store.MaxStagedUser:
		return store.Receipt{}, store.ErrManyBatches
	case !known && len(s.batches) >= store.MaxStaged:
		return store.Receipt{}, store.ErrFullOfBatches
	case n > store.MaxStagedJobs:
		return store.Receipt{}, queue.Errorf(queue.CodeTooLarge, "the batch has more than %d jobs", store.MaxStagedJobs)
	}
	if err := s.admit(r.UID, int64(len(r.Drafts)), r.MaxPending, r.MaxPendingUser); err != nil {
		return store.Receipt{}, err
	}
	receipt, err := s.name(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	frame := make([]queue.Job, len(r.Drafts))
	for i, draft := range r.Drafts {
		frame[i] = copyJob(draft)
		frame[i].ID, frame[i].Seq = receipt.IDs[i], receipt.Seqs[i]
		s.seq = receipt.Seqs[i]
	}
	b.frames, b.at = append(b.frames, frame), now
	if !known {
		s.batches = append(s.batches, b)
	}
	s.own(r)
	return receipt, nil
}

// commit makes a batch and its last frame jobs of the queue.
func (s *Store) commit(b *batch, r store.Request, now queue.Millis) (receipt store.Receipt, err error) {
	if len(r.Drafts) > 0 {
		if receipt, err = s.stage(r, now); err != nil {
			return receipt, err
		}
	}
	b.committed, receipt.Staged = true, true
	return receipt, nil
}

// Unstage forgets a batch that was not committed.
func (s *Store) Unstage(ctx context.Context, uid int, name string) error {
	return s.update(ctx, func(queue.Millis) error {
		s.drop(s.staged(uid, name))
		return nil
	})
}

func (s *Store) drop(gone *batch) {
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool { return b == gone })
}

// Finish moves the next frame of a committed batch into the queue.
func (s *Store) Finish(ctx context.Context) (more bool, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		more = s.finish(now)
		return nil
	})
	return more, err
}

func (s *Store) finish(now queue.Millis) (more bool) {
	for _, b := range s.batches {
		switch {
		case !b.committed:
		case len(b.frames) == 0:
			s.drop(b)
			return s.finish(now)
		default:
			for _, j := range b.frames[0] {
				if b.uid < 0 {
					j.UID = b.uid
				}
				s.add(j, b.uid, now)
			}
			b.frames = b.frames[1:]
			return true
		}
	}
	return false
}
