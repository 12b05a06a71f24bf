package memstore

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// endedJobs returns the ended jobs that match a filter, in the order in which they ended.
func (s *Store) endedJobs(filter store.EndedJobFilter) (matchingJobs []*job) {
	for _, j := range s.jobsBySeq() {
		matches := filter.RetentionQueue == nil || *filter.RetentionQueue == "" && !j.UsesQueueRetention ||
			j.UsesQueueRetention &&
				*filter.RetentionQueue == j.Queue
		if j.State.HasEnded() && slices.Contains(filter.States, j.State) && j.EndedAt < filter.EndedBefore && matches {
			matchingJobs = append(matchingJobs, j)
		}
	}
	slices.SortStableFunc(matchingJobs, func(a, b *job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	return matchingJobs
}

// PurgeEndedJobs removes up to limit ended jobs that match the filter, oldest end first.
func (s *Store) PurgeEndedJobs(
	ctx context.Context, filter store.EndedJobFilter, limit int, requestedByUID *int,
) (removedJobs int, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		list := s.endedJobs(filter)
		limit := min(limit, len(list))
		if filter.MinKeptJobs > 0 {
			removable := -int(filter.MinKeptJobs)
			for _, j := range s.jobs {
				if slices.Contains(filter.States, j.State) {
					removable++
				}
			}
			limit = max(0, min(limit, removable))
		}
		for _, j := range list[:limit] {
			s.removeEndedJob(j, queue.EventDetail{CausedByUID: requestedByUID}, now)
			removedJobs++
		}
		return nil
	})
	return removedJobs, err
}

// CountEndedJobs returns the number of ended jobs that match the filter.
func (s *Store) CountEndedJobs(ctx context.Context, filter store.EndedJobFilter) (n int64, err error) {
	err = s.runReadTx(ctx, func() error {
		n = int64(len(s.endedJobs(filter)))
		return nil
	})
	return n, err
}

// TrimEvents deletes events before beforeTime, and the oldest ones until at most maxEvents remain. more
// reports whether another call must delete more.
func (s *Store) TrimEvents(ctx context.Context, beforeTime queue.UnixMillis, maxEvents int64) (more bool, err error) {
	err = s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		for n := 0; len(s.events) > 0; n++ {
			if s.events[0].Time >= beforeTime && int64(len(s.events)) <= maxEvents {
				return nil
			}
			if more = n == maxDueChangesPerCall; more {
				return nil
			}
			s.events = s.events[1:]
			s.trimmedEventCount++
		}
		return nil
	})
	return more, err
}

// QueuesWithOwnRetention lists the queues that have jobs to which the queue's own retention applies.
func (s *Store) QueuesWithOwnRetention(ctx context.Context) (queues []store.OwnRetentionQueue, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, j := range s.jobs {
			if !j.UsesQueueRetention {
				continue
			}
			index := slices.IndexFunc(queues, func(q store.OwnRetentionQueue) bool { return q.Name == j.Queue })
			if index < 0 {
				index, queues = len(queues), append(queues, store.OwnRetentionQueue{Name: j.Queue})
			}
			queues[index].EndedJobCount++
			queues[index].OutputBytes += j.OutputBytes
		}
		slices.SortFunc(queues, func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	})
	return queues, err
}

// TrimEndedJobs removes ended jobs of a queue, oldest end first, until at most maxJobs remain. One call removes at most
// maxRemovals jobs; more reports whether another call must remove more.
func (s *Store) TrimEndedJobs(ctx context.Context, queueName string, maxJobs int64, maxRemovals int) (more bool,
	err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		list := s.endedJobs(store.EndedJobFilter{States: store.StatesWithRetention, EndedBefore: math.MaxInt64,
			RetentionQueue: &queueName})
		excess := int64(len(list)) - maxJobs
		if excess <= 0 {
			return nil
		}
		for _, j := range list[:min(excess, int64(maxRemovals))] {
			s.removeEndedJob(j, queue.EventDetail{}, now)
		}
		more = excess > int64(maxRemovals)
		return nil
	})
	return more, err
}

func (s *Store) removeEndedJob(j *job, detail queue.EventDetail, now queue.UnixMillis) {
	s.removeJob(j)
	j.State = 0
	s.addEvent(j, queue.EventRemoved, detail, now)
}

// TrimOutputs removes outputs until all outputs together have at most maxBytes. In each step it removes an
// output of the user whose outputs use most bytes.
func (s *Store) TrimOutputs(ctx context.Context, maxBytes int64) (more bool, err error) {
	return false, s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		for s.totalOutputBytes() > maxBytes {
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
			if !s.removeOldestOutput(func(j *job) bool { return j.UID == largest }) {
				break
			}
		}
		return nil
	})
}

// TrimQueueOutputs removes outputs of a queue's jobs to which its own retention applies, until these outputs
// together have at most maxBytes.
func (s *Store) TrimQueueOutputs(ctx context.Context, queueName string, maxBytes int64) (more bool, err error) {
	return false, s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		selected := func(j *job) bool { return j.UsesQueueRetention && j.Queue == queueName }
		outputBytes := func() (n int64) {
			for _, j := range s.jobs {
				if selected(j) {
					n += j.OutputBytes
				}
			}
			return n
		}
		for outputBytes() > maxBytes {
			if !s.removeOldestOutput(selected) {
				break
			}
		}
		return nil
	})
}

// removeOldestOutput removes the first output of the selected jobs, in the order in which the jobs ended. It
// reports whether it found an output.
func (s *Store) removeOldestOutput(isSelected func(*job) bool) bool {
	for _, j := range s.jobsByEndTime() {
		if i := slices.IndexFunc(j.attempts, func(a queue.Attempt) bool {
			return a.OutputBytes > 0
		}); isSelected(j) && i >= 0 {
			s.removeOutput(j, i, queue.OutputRemovedByRetention)
			return true
		}
	}
	return false
}

// removeOutput removes the output of one attempt of a job. The attempt's field OutputBytes, the size of the output,
// gets the value removalReason, for example OutputRemovedByRetention.
func (s *Store) removeOutput(j *job, attemptIndex int, removalReason int64) {
	a := &j.attempts[attemptIndex]
	if a.OutputBytes <= 0 {
		return
	}
	if a.OutputFileRef != "" {
		s.deletableOutputs = append(s.deletableOutputs, a.OutputFileRef)
	}
	j.OutputBytes -= a.OutputBytes
	a.Output, a.OutputFileRef, a.Result, a.OutputBytes = nil, "", nil, removalReason
}

// totalOutputBytes returns the number of bytes of all stored outputs.
func (s *Store) totalOutputBytes() (total int64) {
	for _, j := range s.jobs {
		for _, a := range j.attempts {
			total += max(0, a.OutputBytes)
		}
	}
	return total
}
