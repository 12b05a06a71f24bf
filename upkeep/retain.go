package upkeep

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Retention says how long ended jobs, events and outputs are kept. A duration of 0 means forever.
type Retention struct {
	States    map[queue.State]time.Duration
	MaxJobs   int64 // number of completed and cancelled jobs to keep, newest first; 0 means unlimited
	Events    time.Duration
	MaxEvents int64
	Outputs   int64 // maximum number of bytes of all outputs; 0 means unlimited
	// UserBytes is the number of bytes that the jobs of one user may hold. If they hold more,
	// outputs and the inputs of ended jobs are removed. 0 means unlimited.
	UserBytes int64
	// QueueRetention returns the current retention of a queue. It is called only for queues that
	// have jobs which ended under a retention of the queue.
	QueueRetention func(queue string) store.Retention
}

// Retainer is the part of the store that removes objects whose retention time has passed.
type Retainer interface {
	store.Clock
	store.Cleanup
	UsersOver(keep int64) []store.UserBytes
	TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error)
}

// retainStep is the number of jobs that are removed in one transaction. It is so small that a step
// does not delay other operations noticeably.
const retainStep = 100

// retain removes a limited number of objects of each kind that were kept too long. It reports
// whether more can be removed. The number of objects that it reads does not depend on how many are
// stored.
func retain(ctx context.Context, s Retainer, r Retention) (more bool, err error) {
	now := s.Now()
	for state, age := range r.States {
		if age == 0 {
			continue
		}
		old := store.EndedFilter{States: []queue.State{state}, Cutoff: now.Add(-age), RetentionQueue: &noOwnRetention}
		n, err := s.Purge(ctx, old, retainStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == retainStep
	}
	if r.MaxJobs > 0 {
		unfinished, err := s.TrimJobs(ctx, noOwnRetention, r.MaxJobs, retainStep)
		if err != nil {
			return false, err
		}
		more = more || unfinished
	}
	unfinished, err := retainQueues(ctx, s, &r)
	if more = more || unfinished; err != nil {
		return false, err
	}
	unfinished, err = retainUsers(ctx, s, r.UserBytes)
	if more = more || unfinished; err != nil {
		return false, err
	}
	before := queue.Millis(0)
	if r.Events > 0 {
		before = now.Add(-r.Events)
	}
	moreEvents, err := s.TrimEvents(ctx, before, r.MaxEvents)
	if err != nil || r.Outputs == 0 {
		return more || moreEvents, err
	}
	moreOutputs, err := s.TrimOutputs(ctx, r.Outputs)
	return more || moreEvents || moreOutputs, err
}

// retainUsers removes data of users whose jobs hold more than limit bytes. From each such user, it
// removes a limited number of outputs and of inputs of ended jobs.
func retainUsers(ctx context.Context, s Retainer, limit int64) (more bool, err error) {
	if limit == 0 {
		return false, nil
	}
	for _, user := range s.UsersOver(limit) {
		unfinished, err := s.TrimUser(ctx, user.UID, limit)
		if more = more || unfinished; err != nil {
			return more, err
		}
	}
	return more, err
}

// noOwnRetention selects, in all queues, the jobs that ended while their queue had no retention.
var noOwnRetention = ""

// retainQueues removes jobs that ended while their queue had its own retention. It applies the
// current retention of the queue.
func retainQueues(ctx context.Context, s Retainer, r *Retention) (more bool, err error) {
	if r.QueueRetention == nil {
		return false, nil
	}
	queues, err := s.Keeping(ctx)
	for i := 0; i < len(queues) && err == nil; i++ {
		var unfinished bool
		unfinished, err = retainQueue(ctx, s, queues[i], r)
		more = more || unfinished
	}
	return more, err
}

// retainQueue is retainQueues for a single queue.
func retainQueue(ctx context.Context, s Retainer, q store.OwnRetentionQueue, r *Retention) (more bool, err error) {
	settings := r.QueueRetention(q.Name)
	for _, state := range store.BoundedStates {
		age := r.States[state]
		if settings.Age != 0 {
			age = max(0, settings.Age)
		}
		if age == 0 {
			continue
		}
		old := store.EndedFilter{States: []queue.State{state}, Cutoff: s.Now().Add(-age), RetentionQueue: &q.Name}
		n, err := s.Purge(ctx, old, retainStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == retainStep
	}
	if settings.MaxJobs > 0 && q.Jobs > settings.MaxJobs {
		unfinished, err := s.TrimJobs(ctx, q.Name, settings.MaxJobs, retainStep)
		if more = more || unfinished; err != nil {
			return more, err
		}
	}
	if settings.Output > 0 && q.Outputs > settings.Output {
		unfinished, err := s.TrimOutputsOf(ctx, q.Name, settings.Output)
		return more || unfinished, err
	}
	return more, nil
}
