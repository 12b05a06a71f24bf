package memstore

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// endedJobs returns the ended jobs that match a selection, in the order in which they ended.
func (s *Store) endedJobs(selection store.EndedFilter) (list []*job) {
	for _, j := range s.jobsBySeq() {
		matches := selection.RetentionQueue == nil || *selection.RetentionQueue == "" && !j.OwnRetention || j.OwnRetention &&
			*selection.RetentionQueue == j.Queue
		if j.State.Ended() && slices.Contains(selection.States, j.State) && j.EndedAt < selection.Cutoff && matches {
			list = append(list, j)
		}
	}
	slices.SortStableFunc(list, func(a, b *job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	return list
}

// Purge removes up to limit ended jobs that match the selection, oldest end first.
func (s *Store) Purge(ctx context.Context, selection store.EndedFilter, limit int, by *int) (removed int, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		list := s.endedJobs(selection)
		for _, j := range list[:min(limit, len(list))] {
			s.removeEnded(j, queue.EventDetail{UID: by}, now)
			removed++
		}
		return nil
	})
	return removed, err
}

// CountEnded returns the number of ended jobs that match the selection.
func (s *Store) CountEnded(ctx context.Context, selection store.EndedFilter) (n int64, err error) {
	err = s.read(ctx, func() error {
		n = int64(len(s.endedJobs(selection)))
		return nil
	})
	return n, err
}

// TrimEvents deletes the oldest events: those before a time, and those that exceed a maximum number. It reports
// whether more must be deleted.
func (s *Store) TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error) {
	err = s.update(ctx, func(queue.Millis) error {
		for n := 0; len(s.events) > 0; n++ {
			if s.events[0].Time >= before && int64(len(s.events)) <= keep {
				return nil
			}
			if more = n == maxPromoted; more {
				return nil
			}
			s.events = s.events[1:]
			s.trimmedCount++
		}
		return nil
	})
	return more, err
}

// OwnRetentionQueues lists the queues with jobs that ended while their queue had its own retention.
func (s *Store) OwnRetentionQueues(ctx context.Context) (list []store.OwnRetentionQueue, err error) {
	err = s.read(ctx, func() error {
		for _, j := range s.jobs {
			if !j.OwnRetention {
				continue
			}
			index := slices.IndexFunc(list, func(q store.OwnRetentionQueue) bool { return q.Name == j.Queue })
			if index < 0 {
				index, list = len(list), append(list, store.OwnRetentionQueue{Name: j.Queue})
			}
			list[index].Jobs++
			list[index].OutputBytes += j.OutputBytes
		}
		slices.SortFunc(list, func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	})
	return list, err
}

// TrimJobs removes ended jobs of a queue, oldest end first, until at most the given number of them remains. One
// call removes at most limit jobs. It reports whether more must be removed.
func (s *Store) TrimJobs(ctx context.Context, name string, keep int64, limit int) (more bool, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		list := s.endedJobs(store.EndedFilter{States: store.RetentionStates, Cutoff: math.MaxInt64, RetentionQueue: &name})
		excess := int64(len(list)) - keep
		if excess <= 0 {
			return nil
		}
		for _, j := range list[:min(excess, int64(limit))] {
			s.removeEnded(j, queue.EventDetail{}, now)
		}
		more = excess > int64(limit)
		return nil
	})
	return more, err
}

// removeEnded removes a job that has ended.
func (s *Store) removeEnded(j *job, detail queue.EventDetail, now queue.Millis) {
	s.remove(j)
	j.State = 0
	s.addEvent(j, queue.EventRemoved, detail, now)
}

// TrimOutputs removes outputs until all outputs together have at most the given number of bytes. Each removed
// output belongs to the user whose outputs use most bytes at that moment.
func (s *Store) TrimOutputs(ctx context.Context, keep int64) (more bool, err error) {
	return false, s.update(ctx, func(queue.Millis) error {
		for s.outputBytes() > keep {
			bytesByUser := map[int]int64{}
			for _, j := range s.jobs {
				bytesByUser[j.UID] += j.OutputBytes
			}
			largest := 0
			for uid, n := range bytesByUser {
				if n > bytesByUser[largest] || n == bytesByUser[largest] && uid < largest {
					largest = uid
				}
			}
			if !s.removeFirstOutput(func(j *job) bool { return j.UID == largest }) {
				break
			}
		}
		return nil
	})
}

// TrimQueueOutputs removes outputs of jobs that ended while their queue had its own retention, until these
// outputs together have at most the given number of bytes.
func (s *Store) TrimQueueOutputs(ctx context.Context, name string, keep int64) (more bool, err error) {
	return false, s.update(ctx, func(queue.Millis) error {
		selected := func(j *job) bool { return j.OwnRetention && j.Queue == name }
		outputBytes := func() (n int64) {
			for _, j := range s.jobs {
				if selected(j) {
					n += j.OutputBytes
				}
			}
			return n
		}
		for outputBytes() > keep {
			if !s.removeFirstOutput(selected) {
				break
			}
		}
		return nil
	})
}

// removeFirstOutput removes one output: the first one of the selected jobs, in the order of jobsByEnd. It
// reports whether it found an output.
func (s *Store) removeFirstOutput(selected func(*job) bool) bool {
	for _, j := range s.jobsByEnd() {
		if i := slices.IndexFunc(j.attempts, func(a queue.Attempt) bool { return a.OutputBytes > 0 }); selected(j) && i >= 0 {
			s.removeOutput(j, i, queue.OutputOverRetention)
			return true
		}
	}
	return false
}

// removeOutput removes the output of attempt i of a job. In OutputBytes, it replaces the size of the output by a
// mark such as OutputOverRetention.
func (s *Store) removeOutput(j *job, i int, mark int64) {
	a := &j.attempts[i]
	if a.OutputBytes <= 0 {
		return
	}
	if a.OutputRef != "" {
		s.garbage = append(s.garbage, a.OutputRef)
	}
	j.OutputBytes -= a.OutputBytes
	a.Output, a.OutputRef, a.Result, a.OutputBytes = nil, "", nil, mark
}

// outputBytes returns the number of bytes of all stored outputs.
func (s *Store) outputBytes() (bytes int64) {
	for _, j := range s.jobs {
		for _, a := range j.attempts {
			bytes += max(0, a.OutputBytes)
		}
	}
	return bytes
}
