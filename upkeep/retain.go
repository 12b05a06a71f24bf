package upkeep

import (
	"context"
	"math"
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
	for _, step := range []func() (more bool, err error){
		func() (bool, error) {
			return retainQueue(ctx, s, noOwnRetention, store.Retention{MaxJobs: r.MaxJobs}, r.States)
		},
		func() (bool, error) { return retainQueues(ctx, s, &r) },
		func() (bool, error) { return retainUsers(ctx, s, r.UserBytes) },
		func() (bool, error) {
			before := queue.Millis(0)
			if r.Events > 0 {
				before = s.Now().Add(-r.Events)
			}
			return s.TrimEvents(ctx, before, r.MaxEvents)
		},
		func() (bool, error) {
			if r.Outputs == 0 {
				return false, nil
			}
			return s.TrimOutputs(ctx, r.Outputs)
		},
	} {
		unfinished, err := step()
		if err != nil {
			return false, err
		}
		more = more || unfinished
	}
	return more, nil
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

// noOwnRetention stands for the jobs of all queues that ended while their queue had no retention.
var noOwnRetention = store.OwnRetentionQueue{Jobs: math.MaxInt64}

// retainQueues removes jobs that ended while their queue had its own retention. It applies the
// current retention of the queue.
func retainQueues(ctx context.Context, s Retainer, r *Retention) (more bool, err error) {
	if r.QueueRetention == nil {
		return false, nil
	}
	queues, err := s.Keeping(ctx)
	for i := 0; i < len(queues) && err == nil; i++ {
		own, ages := r.QueueRetention(queues[i].Name), map[queue.State]time.Duration{}
		for _, state := range store.BoundedStates {
			ages[state] = r.States[state]
			if own.Age != 0 {
				ages[state] = max(0, own.Age)
			}
		}
		var unfinished bool
		unfinished, err = retainQueue(ctx, s, queues[i], own, ages)
		more = more || unfinished
	}
	return more, err
}

// retainQueue removes jobs of one queue. The map ages says, for each state in which the time is limited, how long
// ended jobs are kept; 0 means forever.
func retainQueue(ctx context.Context, s Retainer, q store.OwnRetentionQueue, keep store.Retention,
	ages map[queue.State]time.Duration) (more bool, err error) {
	for state, age := range ages {
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
	if keep.MaxJobs > 0 && q.Jobs > keep.MaxJobs {
		unfinished, err := s.TrimJobs(ctx, q.Name, keep.MaxJobs, retainStep)
		if more = more || unfinished; err != nil {
			return more, err
		}
	}
	if keep.Output > 0 && q.Outputs > keep.Output {
		unfinished, err := s.TrimOutputsOf(ctx, q.Name, keep.Output)
		return more || unfinished, err
	}
	return more, nil
}
