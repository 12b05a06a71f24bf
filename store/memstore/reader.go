package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Get reads one job by id, but for its Env and Stdin.
func (s *Store) Get(ctx context.Context, id string) (queue.Job, error) {
	j, err := s.Whole(ctx, id)
	return shown(j), err
}

// Whole reads all of one job by id.
func (s *Store) Whole(ctx context.Context, id string) (found queue.Job, err error) {
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

// shown is a job without what may be large.
func shown(j queue.Job) queue.Job {
	j.Env, j.Stdin = nil, ""
	return j
}

// History reads a page of a job's attempts, without output.
func (s *Store) History(ctx context.Context, seq int64, before, limit int) (attempts []queue.Attempt, err error) {
	if err := checkLimit(limit); err != nil {
		return nil, err
	}
	err = s.read(ctx, func() error {
		j, err := s.find(seq)
		if err != nil {
			return err
		}
		bytes := 0
		for _, a := range slices.Backward(j.attempts) {
			if before > 0 && a.N >= before {
				continue
			}
			bytes += store.AttemptSize(&a)
			if len(attempts) == limit || len(attempts) > 0 && bytes > store.MaxHistoryBytes {
				break
			}
			a.Output, a.OutputRef, a.Result = nil, "", nil
			attempts = append(attempts, a)
		}
		slices.Reverse(attempts)
		return nil
	})
	return attempts, err
}

func checkLimit(limit int) error {
	if limit < 1 || limit > store.MaxPage {
		return queue.Invalid("limit", "%d is not between 1 and %d", limit, store.MaxPage)
	}
	return nil
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
		found.Output, found.Result = slices.Clone(found.Output), slices.Clone(found.Result)
		return nil
	})
	return found, err
}

// List reads a page of jobs, newest first.
func (s *Store) List(ctx context.Context, f store.Filter) (page store.Page, err error) {
	err = s.selected(ctx, f, func(list []*job) {
		bytes := 0
		for _, j := range list {
			bytes += store.TextSize(&j.Job)
			if len(page.Jobs) == f.Limit || len(page.Jobs) > 0 && bytes > store.MaxPageBytes {
				page.Next = page.Jobs[len(page.Jobs)-1].Seq
				return
			}
			page.Jobs = append(page.Jobs, shown(copyJob(j.Job)))
		}
	})
	return page, err
}

// Select reads a page of what names the jobs that a filter selects.
func (s *Store) Select(ctx context.Context, f store.Filter) (selected store.Selected, err error) {
	err = s.selected(ctx, f, func(list []*job) {
		for _, j := range list {
			if len(selected.Refs) == f.Limit {
				selected.Next = selected.Refs[f.Limit-1].Seq
				return
			}
			selected.Refs = append(selected.Refs, store.Ref{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID})
		}
	})
	return selected, err
}

// selected hands over all that a filter selects, newest first.
func (s *Store) selected(ctx context.Context, f store.Filter, take func([]*job)) error {
	if err := checkLimit(f.Limit); err != nil {
		return err
	}
	glob, err := queue.Glob(cmp.Or(f.Glob, "*"))
	if err != nil {
		return err
	}
	return s.read(ctx, func() error {
		var list []*job
		for _, j := range slices.Backward(s.all()) {
			if matches(f, j) && glob(j.ID) {
				list = append(list, j)
			}
		}
		take(list)
		return nil
	})
}

func matches(f store.Filter, j *job) bool {
	for name, value := range f.Labels {
		if has, found := j.Labels[name]; !found || has != value {
			return false
		}
	}
	return (len(f.States) == 0 || slices.Contains(f.States, j.State)) &&
		(f.UID == nil || *f.UID == j.UID) &&
		(f.Older == 0 || cmp.Or(j.EndedAt, j.CreatedAt) < f.Older) &&
		cmp.Or(j.EndedAt, j.CreatedAt) >= f.Since &&
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

// Screen reads the jobs of each part.
func (s *Store) Screen(ctx context.Context, f store.ScreenFilter) (screen store.Screen, err error) {
	if f.Rows < 1 || f.Rows > store.MaxScreen {
		return screen, queue.Invalid("rows", "%d is not between 1 and %d", f.Rows, store.MaxScreen)
	}
	err = s.read(ctx, func() error {
		now := s.now()
		part := func(in func(j *job) bool, order func(a, b *job) int) (list []queue.Job) {
			var all []*job
			for _, j := range s.all() {
				if in(j) {
					all = append(all, j)
				}
			}
			slices.SortStableFunc(all, order)
			bytes := 0
			for _, j := range all[:min(len(all), f.Rows)] {
				one := shown(copyJob(j.Job))
				if f.Submitter != nil && one.UID != *f.Submitter {
					one.Execution = queue.Execution{Labels: one.Labels}
				}
				if bytes += store.TextSize(&one); bytes > store.MaxPartBytes && len(list) > 0 {
					break
				}
				list = append(list, one)
			}
			return list
		}
		age := func(a, b *job) int { return cmp.Compare(a.Seq, b.Seq) }
		lastEnded := func(a, b *job) int { return cmp.Or(cmp.Compare(b.EndedAt, a.EndedAt), cmp.Compare(b.Seq, a.Seq)) }
		is := func(states ...queue.State) func(j *job) bool {
			return func(j *job) bool { return slices.Contains(states, j.State) }
		}
		screen = store.Screen{
			Running: part(is(queue.Processing), age),
			Ready: part(func(j *job) bool { return j.State.Runnable() && j.DueAt <= now }, func(a, b *job) int {
				return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Seq, b.Seq))
			}),
			Timed: part(func(j *job) bool { return j.State.Runnable() && j.DueAt > now }, func(a, b *job) int {
				return cmp.Or(cmp.Compare(a.DueAt, b.DueAt), cmp.Compare(a.Seq, b.Seq))
			}),
			Kept: part(is(queue.Held, queue.Blocked), age),
			Dead: part(is(queue.Dead), lastEnded),
			Done: part(is(queue.Completed, queue.Cancelled), lastEnded),
		}
		return nil
	})
	return screen, err
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

// LastEvent is the number of the newest event.
func (s *Store) LastEvent() (last int64, newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil {
		s.newer = make(chan struct{})
	}
	return s.trimmed + int64(len(s.events)), s.newer
}

// Watch hints at changes of some jobs.
func (s *Store) Watch(seqs []int64) *store.Watching { return s.watchers.Watch(seqs) }
