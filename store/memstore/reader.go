package memstore

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Get reads one job by id.
func (s *Store) Get(ctx context.Context, id string) (found queue.Job, err error) {
	err = s.read(ctx, func() error {
		for _, j := range s.jobs {
			if j.ID == id {
				found = copyJob(j.Job)
				return nil
			}
		}
		return queue.ErrNotFound
	})
	return found, err
}

// History lists a job's attempts from first to last, without output.
func (s *Store) History(ctx context.Context, seq int64) (attempts []queue.Attempt, err error) {
	err = s.read(ctx, func() error {
		j, err := s.find(seq)
		if err != nil {
			return err
		}
		attempts = slices.Clone(j.attempts)
		for i := range attempts {
			attempts[i].Output, attempts[i].OutputRef = nil, ""
		}
		return nil
	})
	return attempts, err
}

// Attempt reads one attempt with its output; n = 0 is the last one.
func (s *Store) Attempt(ctx context.Context, seq int64, n int) (found queue.Attempt, err error) {
	err = s.read(ctx, func() error {
		j, err := s.find(seq)
		if err != nil {
			return err
		}
		if n == 0 {
			n = len(j.attempts)
		}
		if n < 1 || n > len(j.attempts) {
			return queue.ErrNotFound
		}
		found = j.attempts[n-1]
		found.Output = slices.Clone(found.Output)
		return nil
	})
	return found, err
}

// List reads a page of jobs, newest first.
func (s *Store) List(ctx context.Context, f store.Filter) (page store.Page, err error) {
	if f.Limit < 1 || f.Limit > store.MaxPage {
		return page, queue.Invalid("limit", "%d is not between 1 and %d", f.Limit, store.MaxPage)
	}
	err = s.read(ctx, func() error {
		for _, j := range slices.Backward(s.all()) {
			if !matches(f, j) {
				continue
			}
			if len(page.Jobs) == f.Limit {
				page.Next = page.Jobs[f.Limit-1].Seq
				return nil
			}
			page.Jobs = append(page.Jobs, copyJob(j.Job))
		}
		return nil
	})
	return page, err
}

func matches(f store.Filter, j *job) bool {
	for name, value := range f.Labels {
		if has, found := j.Labels[name]; !found || has != value {
			return false
		}
	}
	return (len(f.States) == 0 || slices.Contains(f.States, j.State)) &&
		(f.UID == nil || *f.UID == j.UID) &&
		(f.Match == nil || f.Match(&j.Job)) &&
		j.CreatedAt >= f.Since &&
		(f.Before == 0 || j.Seq < f.Before)
}

// Counts is how many jobs are in each state, and how many were ever enqueued.
func (s *Store) Counts() store.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts()
}

func (s *Store) counts() store.Counts {
	c := store.Counts{Enqueued: s.enqueued, Outputs: s.outputs()}
	for _, j := range s.jobs {
		c.States[j.State]++
	}
	return c
}

// Oldest is when the job that waits longest became runnable, 0 if none waits.
func (s *Store) Oldest(ctx context.Context) (oldest queue.Millis, err error) {
	err = s.read(ctx, func() error {
		now := s.now()
		for _, j := range s.jobs {
			if j.State.Runnable() && j.DueAt <= now && (oldest == 0 || j.Since < oldest) {
				oldest = j.Since
			}
		}
		return nil
	})
	return oldest, err
}

// Events lists up to limit events after a sequence number.
func (s *Store) Events(ctx context.Context, after int64, limit int) (events []queue.Event, err error) {
	err = s.read(ctx, func() error {
		for _, e := range s.events {
			if e.Seq > after && len(events) < limit {
				events = append(events, e)
			}
		}
		return nil
	})
	return events, err
}

// News is the number of the newest event.
func (s *Store) News() (last int64, newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil {
		s.newer = make(chan struct{})
	}
	return s.trimmed + int64(len(s.events)), s.newer
}

// Watch hints that a job has changed.
func (s *Store) Watch(seq int64) (changed <-chan struct{}, stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := watch{seq, make(chan struct{}, 1)}
	s.watches = append(s.watches, w)
	return w.hint, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watches = slices.DeleteFunc(s.watches, func(other watch) bool { return other.hint == w.hint })
	}
}
