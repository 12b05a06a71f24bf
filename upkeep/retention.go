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
	AgeByState     map[queue.State]time.Duration // how long ended jobs are kept, by state
	MaxJobs        int64                         // how many completed and cancelled jobs to keep; 0 means all
	EventAge       time.Duration                 // how long events are kept
	MaxEvents      int64                         // maximum number of events
	MaxOutputBytes int64                         // maximum number of bytes of all outputs; 0 means unlimited
	// MaxBytesPerUser is the number of bytes that the jobs of one user may use. Above it, outputs, and inputs
	// of ended jobs, are removed. 0 means unlimited.
	MaxBytesPerUser int64
	// QueueRetention returns the current retention of a queue. It is called only for queues with jobs that
	// ended while their queue had its own retention.
	QueueRetention func(queue string) store.Retention
}

// Retainer is the part of the store that removes jobs, events and outputs.
type Retainer interface {
	store.Clock
	store.Cleanup
	// UsersOverBytes returns the users whose jobs hold more bytes than the given number.
	UsersOverBytes(maxBytes int64) []store.UserBytes
	// TrimUserData removes outputs, and inputs of ended jobs, of a user whose jobs hold more bytes than the given
	// number. It returns true if there is more to remove.
	TrimUserData(ctx context.Context, uid int, maxBytes int64) (more bool, err error)
}

// maxRemovedPerStep is the number of jobs that are removed in one transaction. It is small, so that a
// transaction does not delay other operations noticeably.
const maxRemovedPerStep = 100

// applyRetention removes a limited number of jobs, events and outputs that exceed the retention settings. It
// returns true if there is more to remove. The time that a call takes does not grow with the number of stored
// objects.
func applyRetention(ctx context.Context, s Retainer, r Retention) (more bool, err error) {
	for _, step := range []func() (more bool, err error){
		func() (bool, error) {
			return applyQueueRetention(ctx, s, noOwnRetention, store.Retention{MaxJobs: r.MaxJobs}, r.AgeByState)
		},
		func() (bool, error) { return applyOwnRetentions(ctx, s, &r) },
		func() (bool, error) { return trimUsers(ctx, s, r.MaxBytesPerUser) },
		func() (bool, error) {
			before := queue.Millis(0)
			if r.EventAge > 0 {
				before = s.Now().Add(-r.EventAge)
			}
			return s.TrimEvents(ctx, before, r.MaxEvents)
		},
		func() (bool, error) {
			if r.MaxOutputBytes == 0 {
				return false, nil
			}
			return s.TrimOutputs(ctx, r.MaxOutputBytes)
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

// trimUsers removes data of users whose jobs hold more than limitBytes bytes. For each of these users, it removes
// a limited number of outputs, and of inputs of ended jobs. It returns true if there is more to remove.
func trimUsers(ctx context.Context, s Retainer, limitBytes int64) (more bool, err error) {
	if limitBytes == 0 {
		return false, nil
	}
	for _, user := range s.UsersOverBytes(limitBytes) {
		unfinished, err := s.TrimUserData(ctx, user.UID, limitBytes)
		if more = more || unfinished; err != nil {
			return more, err
		}
	}
	return more, err
}

// noOwnRetention selects jobs to which only the general retention applies. When such a job ended, its queue
// had no retention settings.
var noOwnRetention = store.OwnRetentionQueue{Jobs: math.MaxInt64}

// applyOwnRetentions removes jobs that ended while their queue had retention settings. How long such a job is
// kept depends on the settings that its queue has now.
func applyOwnRetentions(ctx context.Context, s Retainer, r *Retention) (more bool, err error) {
	if r.QueueRetention == nil {
		return false, nil
	}
	queues, err := s.OwnRetentionQueues(ctx)
	for i := 0; i < len(queues) && err == nil; i++ {
		own, ages := r.QueueRetention(queues[i].Name), map[queue.State]time.Duration{}
		for _, state := range store.RetentionStates {
			ages[state] = r.AgeByState[state]
			if own.MaxAge != 0 {
				ages[state] = max(0, own.MaxAge)
			}
		}
		var moreToRemove bool
		moreToRemove, err = applyQueueRetention(ctx, s, queues[i], own, ages)
		more = more || moreToRemove
	}
	return more, err
}

// applyQueueRetention removes a limited number of the ended jobs and outputs that q selects and that exceed
// the retention settings. ageByState says for each state how long ended jobs are kept; 0 means forever.
// applyQueueRetention returns true if there is more to remove.
func applyQueueRetention(ctx context.Context, s Retainer, q store.OwnRetentionQueue, retention store.Retention,
	ageByState map[queue.State]time.Duration) (more bool, err error) {
	for state, age := range ageByState {
		if age == 0 {
			continue
		}
		old := store.EndedFilter{States: []queue.State{state}, Cutoff: s.Now().Add(-age), RetentionQueue: &q.Name}
		n, err := s.Purge(ctx, old, maxRemovedPerStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == maxRemovedPerStep
	}
	if retention.MaxJobs > 0 && q.Jobs > retention.MaxJobs {
		unfinished, err := s.TrimJobs(ctx, q.Name, retention.MaxJobs, maxRemovedPerStep)
		if more = more || unfinished; err != nil {
			return more, err
		}
	}
	if retention.MaxOutputBytes > 0 && q.OutputBytes > retention.MaxOutputBytes {
		unfinished, err := s.TrimQueueOutputs(ctx, q.Name, retention.MaxOutputBytes)
		return more || unfinished, err
	}
	return more, nil
}
