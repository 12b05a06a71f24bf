package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// ended lists the jobs that have ended in these states before an instant, those that
// ended first before the others.
func (s *Store) ended(states []queue.State, before queue.Millis) (list []*job) {
	for _, j := range s.all() {
		if j.State.Ended() && slices.Contains(states, j.State) && j.EndedAt < before {
			list = append(list, j)
		}
	}
	slices.SortStableFunc(list, func(a, b *job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	return list
}

// Purge removes jobs that have ended before an instant.
func (s *Store) Purge(ctx context.Context, states []queue.State, before queue.Millis, limit int, uid *int) (removed int, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		list := s.ended(states, before)
		for _, j := range list[:min(limit, len(list))] {
			s.remove(j)
			j.State = 0
			s.tell(j, queue.EventRemoved, queue.EventDetail{UID: uid}, now)
			removed++
		}
		return nil
	})
	return removed, err
}

// CountEnded is how many jobs have ended in these states before an instant.
func (s *Store) CountEnded(ctx context.Context, states []queue.State, before queue.Millis) (n int64, err error) {
	err = s.read(ctx, func() error {
		n = int64(len(s.ended(states, before)))
		return nil
	})
	return n, err
}

// TrimEvents forgets the oldest events.
func (s *Store) TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error) {
	err = s.update(ctx, func(queue.Millis) error {
		for n := 0; len(s.events) > 0; n++ {
			if s.events[0].At >= before && int64(len(s.events)) <= keep {
				return nil
			}
			if more = n == maxPromoted; more {
				return nil
			}
			s.events = s.events[1:]
			s.trimmed++
		}
		return nil
	})
	return more, err
}

// TrimOutputs removes the oldest outputs while all take more than keep bytes.
func (s *Store) TrimOutputs(ctx context.Context, keep int64) (more bool, err error) {
	err = s.update(ctx, func(queue.Millis) error {
		for s.outputs() > keep {
			var oldest *queue.Attempt
			for _, j := range s.all() {
				for i := range j.attempts {
					if a := &j.attempts[i]; a.OutputBytes > 0 && (oldest == nil || a.EndedAt < oldest.EndedAt) {
						oldest = a
					}
				}
			}
			if oldest.OutputRef != "" {
				s.garbage = append(s.garbage, oldest.OutputRef)
			}
			oldest.Output, oldest.OutputRef, oldest.Result, oldest.OutputBytes = nil, "", nil, queue.OutputForgotten
		}
		return nil
	})
	return false, err
}

// outputs is how many bytes all outputs take.
func (s *Store) outputs() (bytes int64) {
	for _, j := range s.jobs {
		for _, a := range j.attempts {
			bytes += max(0, a.OutputBytes)
		}
	}
	return bytes
}
