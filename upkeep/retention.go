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
	MaxAgeByState               map[queue.State]time.Duration // how long ended jobs are kept, by state
	MaxCompletedOrCancelledJobs int64                         // how many completed and cancelled jobs to keep; 0 means all
	MaxEventAge                 time.Duration                 // how long events are kept
	MaxEvents                   int64                         // maximum number of events
	MaxOutputBytes              int64                         // maximum number of bytes of all outputs; 0 means unlimited
	// MaxBytesPerUser is the number of bytes that the jobs of one user may use. If a user's jobs use more, outputs of
	// these jobs and inputs of the ended ones are removed. 0 means unlimited.
	MaxBytesPerUser int64
	// RetentionOfQueue returns the current retention of a queue. It is called only for queues with jobs that
	// ended while their queue had its own retention.
	RetentionOfQueue func(queue string) store.Retention
}

// maxRemovedJobsPerStep is the number of jobs that are removed in one transaction. It is small, so that a
// transaction does not delay other operations noticeably.
const maxRemovedJobsPerStep = 100

// applyRetention removes a limited number of jobs, events and outputs that exceed the retention settings. It
// returns true if there is more to remove. The time that a call takes does not grow with the number of stored
// objects.
func applyRetention(ctx context.Context, s store.Store, retention Retention) (hasMore bool, err error) {
	for _, step := range []func() (more bool, err error){
		func() (bool, error) {
			return applyQueueRetention(ctx, s, generalRetentionQueue,
				store.Retention{MaxJobs: retention.MaxCompletedOrCancelledJobs}, retention.MaxAgeByState)
		},
		func() (bool, error) { return applyAllQueueRetentions(ctx, s, &retention) },
		func() (bool, error) { return trimUsersOverLimit(ctx, s, retention.MaxBytesPerUser) },
		func() (bool, error) {
			before := queue.UnixMillis(0)
			if retention.MaxEventAge > 0 {
				before = s.Now().Add(-retention.MaxEventAge)
			}
			return s.TrimEvents(ctx, before, retention.MaxEvents)
		},
		func() (bool, error) {
			if retention.MaxOutputBytes == 0 {
				return false, nil
			}
			return s.TrimOutputs(ctx, retention.MaxOutputBytes)
		},
	} {
		unfinished, err := step()
		if err != nil {
			return false, err
		}
		hasMore = hasMore || unfinished
	}
	return hasMore, nil
}

// trimUsersOverLimit removes data of users whose jobs hold more than maxBytesPerUser bytes. For each of these users, it
// removes a limited number of outputs and of ended jobs' inputs. It returns true if there is more to remove.
func trimUsersOverLimit(ctx context.Context, s store.Store, maxBytesPerUser int64) (hasMore bool, err error) {
	if maxBytesPerUser == 0 {
		return false, nil
	}
	for _, user := range s.UsersOverStoredBytes(maxBytesPerUser) {
		unfinished, err := s.TrimUserData(ctx, user.UID, maxBytesPerUser)
		if hasMore = hasMore || unfinished; err != nil {
			return hasMore, err
		}
	}
	return hasMore, err
}

// generalRetentionQueue selects the ended jobs to which only the general retention applies: those whose queue had
// no retention settings when they ended.
var generalRetentionQueue = store.OwnRetentionQueue{EndedJobCount: math.MaxInt64}

// applyAllQueueRetentions removes jobs that ended while their queue had retention settings. How long such a job is
// kept depends on the settings that its queue has now.
func applyAllQueueRetentions(ctx context.Context, s store.Store, r *Retention) (hasMore bool, err error) {
	if r.RetentionOfQueue == nil {
		return false, nil
	}
	queues, err := s.QueuesWithOwnRetention(ctx)
	for i := 0; i < len(queues) && err == nil; i++ {
		own, ages := r.RetentionOfQueue(queues[i].Name), map[queue.State]time.Duration{}
		for _, state := range store.StatesWithRetention {
			ages[state] = r.MaxAgeByState[state]
			if own.MaxAge != 0 {
				ages[state] = max(0, own.MaxAge)
			}
		}
		var moreToRemove bool
		moreToRemove, err = applyQueueRetention(ctx, s, queues[i], own, ages)
		hasMore = hasMore || moreToRemove
	}
	return hasMore, err
}

// applyQueueRetention removes a limited number of the ended jobs and outputs that q selects and that exceed
// the retention settings. maxAgeByState says for each state how long ended jobs are kept; 0 means forever.
// applyQueueRetention returns true if there is more to remove.
func applyQueueRetention(ctx context.Context, s store.Store, q store.OwnRetentionQueue, retention store.Retention,
	maxAgeByState map[queue.State]time.Duration) (hasMore bool, err error) {
	for state, age := range maxAgeByState {
		if age == 0 {
			continue
		}
		old := store.EndedJobFilter{States: []queue.State{state}, EndedBefore: s.Now().Add(-age), RetentionQueue: &q.Name}
		n, err := s.PurgeEndedJobs(ctx, old, maxRemovedJobsPerStep, nil)
		if err != nil {
			return false, err
		}
		hasMore = hasMore || n == maxRemovedJobsPerStep
	}
	if retention.MaxJobs > 0 && q.EndedJobCount > retention.MaxJobs {
		unfinished, err := s.TrimEndedJobs(ctx, q.Name, retention.MaxJobs, maxRemovedJobsPerStep)
		if hasMore = hasMore || unfinished; err != nil {
			return hasMore, err
		}
	}
	if retention.MaxOutputBytes > 0 && q.OutputBytes > retention.MaxOutputBytes {
		unfinished, err := s.TrimQueueOutputs(ctx, q.Name, retention.MaxOutputBytes)
		return hasMore || unfinished, err
	}
	return hasMore, nil
}
