package memstore

import (
	"context"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Enqueue stores all drafts of a request or none.
func (s *Store) Enqueue(ctx context.Context, r store.Request) (receipt store.Receipt, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		receipt, err = s.enqueue(r, now)
		return err
	})
	return receipt, err
}

func (s *Store) enqueue(r store.Request, now queue.Millis) (store.Receipt, error) {
	n := len(r.Drafts)
	if n == 0 || n > queue.MaxBatch {
		return store.Receipt{}, queue.Invalid("jobs", "are %d; give 1 to %d", n, queue.MaxBatch)
	}
	k := key{r.UID, r.Key}
	if m, known := s.keys[k]; known && r.Key != "" {
		if m.sum != r.Sum {
			return store.Receipt{}, &queue.Error{Code: queue.CodeExists, Field: "key", Message: "was used for another request; give a new one"}
		}
		return store.Receipt{IDs: slices.Clone(m.receipt.IDs), Seqs: slices.Clone(m.receipt.Seqs), Duplicate: true}, nil
	}
	if r.MaxPending > 0 && s.counts().Waiting()+int64(n) > r.MaxPending {
		return store.Receipt{}, queue.Errorf(queue.CodeFull, "the queue is full: at most %d jobs may wait", r.MaxPending)
	}
	receipt, err := s.name(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	for i, draft := range r.Drafts {
		draft.ID, draft.Seq = receipt.IDs[i], receipt.Seqs[i]
		s.add(draft, r.UID, now)
	}
	if r.Key != "" {
		s.keys[k] = memory{now, r.Sum, store.Receipt{IDs: slices.Clone(receipt.IDs), Seqs: slices.Clone(receipt.Seqs)}}
	}
	return receipt, nil
}

// name finds a seq and an id for each draft without storing any.
func (s *Store) name(drafts []queue.Job) (store.Receipt, error) {
	var r store.Receipt
	taken := map[string]bool{}
	for _, j := range s.jobs {
		taken[j.ID] = true
	}
	seq := s.seq
	for i, draft := range drafts {
		seq++
		id := draft.ID
		if id == "" {
			for taken[strconv.FormatInt(seq, 10)] {
				seq++
			}
			id = strconv.FormatInt(seq, 10)
		}
		if taken[id] {
			return store.Receipt{}, idTaken(id, i, len(drafts))
		}
		taken[id] = true
		r.IDs, r.Seqs = append(r.IDs, id), append(r.Seqs, seq)
	}
	return r, nil
}

func idTaken(id string, i, n int) error {
	e := queue.Errorf(queue.CodeExists, "%s exists already; give another id or none", id)
	e.Field = "id"
	if n > 1 {
		return e.At(i + 1)
	}
	return e
}

// add stores a draft that has its seq and id.
func (s *Store) add(draft queue.Job, uid int, now queue.Millis) {
	j := &job{Job: copyJob(draft)}
	j.State = 0
	j.CreatedAt = now
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.DueAt = j.RunAt
	j.Delay = 0
	s.place(j, max(now, j.RunAt), s.enqueued)
	j.asleep = j.RunAt > now
	s.move(j, queue.Pending, now)
	s.tell(j, queue.EventEnqueued, queue.EventDetail{UID: &uid}, now)
	s.jobs[j.Seq] = j
	s.seq = j.Seq
	s.enqueued++
}

// Cancel ends a waiting job.
func (s *Store) Cancel(ctx context.Context, seq int64, uid int) error {
	return s.update(ctx, func(now queue.Millis) error {
		j, err := s.find(seq)
		switch {
		case err != nil:
			return err
		case j.leased:
			return store.ErrLeased
		case j.State == queue.Cancelled:
			return nil
		case j.State.Ended():
			return wrongState(j)
		}
		s.cancel(j, uid, now)
		return nil
	})
}

func (s *Store) cancel(j *job, uid int, now queue.Millis) {
	s.move(j, queue.Cancelled, now)
	j.Reason = "" // whatever it was, it was of a failure before
	s.tell(j, queue.EventCancelled, queue.EventDetail{UID: &uid}, now)
}

// Retry makes a failed or ended job pending with no attempts used.
func (s *Store) Retry(ctx context.Context, r store.Revival) error {
	return s.update(ctx, func(now queue.Millis) error {
		j, err := s.find(r.Seq)
		switch {
		case err != nil:
			return err
		case j.leased:
			return store.ErrLeased
		case r.DeadOnly && j.State != queue.Dead:
			return wrongState(j)
		case j.State == queue.Pending:
			return nil
		case j.State == queue.Held || j.State == queue.Blocked:
			return wrongState(j)
		}
		s.move(j, queue.Pending, now)
		s.place(j, now, s.enqueued)
		j.asleep = false
		j.DueAt = now
		j.ExpiresAt = 0
		j.Attempts, j.Error, j.Reason, j.ExitCode, j.Signal = 0, "", "", -1, 0
		if r.Timeout != nil {
			j.Timeout = *r.Timeout
		}
		s.tell(j, queue.EventRetried, queue.EventDetail{UID: &r.UID}, now)
		return nil
	})
}

// Remove deletes a job that is not leased, with its history. The event's state
// is 0, which belongs to no stored job.
func (s *Store) Remove(ctx context.Context, seq int64, uid int) error {
	return s.update(ctx, func(now queue.Millis) error {
		j, err := s.find(seq)
		if err != nil {
			return err
		}
		if j.leased {
			return store.ErrLeased
		}
		for _, a := range j.attempts {
			if a.OutputRef != "" {
				s.garbage = append(s.garbage, a.OutputRef)
			}
		}
		delete(s.jobs, seq)
		j.State = 0
		s.tell(j, queue.EventRemoved, queue.EventDetail{UID: &uid}, now)
		for _, w := range s.watches {
			if w.seq == seq {
				hint(w.hint)
			}
		}
		return nil
	})
}

func (s *Store) find(seq int64) (*job, error) {
	if j := s.jobs[seq]; j != nil {
		return j, nil
	}
	return nil, queue.ErrNotFound
}

func wrongState(j *job) error {
	return queue.Errorf(queue.CodeWrongState, "job %s is %s", j.ID, j.State)
}
