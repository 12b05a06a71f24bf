package upkeep

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Retention is how long what has ended is kept. A duration of 0 is for ever.
type Retention struct {
	States    map[queue.State]time.Duration
	MaxJobs   int64 // completed and cancelled ones, the newest; 0 is any number
	Events    time.Duration
	MaxEvents int64
	Outputs   int64 // bytes of all outputs; 0 is any number
	// Of is that of a queue of which there are jobs that ended while it had one of its own: as it is now.
	Of func(queue string) store.Retention
}

// retainStep is how many jobs are removed in one transaction: few enough that nobody
// who waits for the disk feels it.
const retainStep = 100

// counted are the states whose jobs MaxJobs bounds; dead ones are kept to be looked
// at.
var counted = []queue.State{queue.Completed, queue.Cancelled}

// retain removes a step of what is kept too long, of each kind, and says whether there
// is more.
func retain(ctx context.Context, s Store, r Retention) (more bool, err error) {
	now := s.Now()
	for state, age := range r.States {
		if age == 0 {
			continue
		}
		n, err := s.Purge(ctx, store.Ended{States: []queue.State{state}, Before: now.Add(-age), Of: &others}, retainStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == retainStep
	}
	kept := int64(0)
	for states, i := s.Counts().States, 0; i < len(counted); i++ {
		kept += states[counted[i]]
	}
	if r.MaxJobs > 0 && kept > r.MaxJobs {
		again, err := atMost(ctx, s, store.Ended{States: counted, Before: now + 1, Of: &others}, r.MaxJobs)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	again, err := retainQueues(ctx, s, &r)
	if more = more || again; err != nil {
		return false, err
	}
	before := queue.Millis(0)
	if r.Events > 0 {
		before = now.Add(-r.Events)
	}
	trimmed, err := s.TrimEvents(ctx, before, r.MaxEvents)
	if err != nil || r.Outputs == 0 {
		return more || trimmed, err
	}
	smaller, err := s.TrimOutputs(ctx, r.Outputs)
	return more || trimmed || smaller, err
}

// others are jobs that ended while their queue had no retention of its own.
var others = ""

// atMost removes a step of jobs while there are more of them than that.
func atMost(ctx context.Context, s Store, of store.Ended, most int64) (more bool, err error) {
	n, err := s.CountEnded(ctx, of)
	if err != nil || n <= most {
		return false, err
	}
	removed, err := s.Purge(ctx, of, int(min(n-most, retainStep)), nil)
	return removed > 0 && int64(removed) < n-most, err
}

// queuesStep is how many queues are listed at a time.
const queuesStep = 100

// retainQueues is retain for the jobs of each queue that has a retention of its own, or had when they ended.
func retainQueues(ctx context.Context, s Store, r *Retention) (more bool, err error) {
	if r.Of == nil {
		return false, nil
	}
	for after := ""; ; {
		names, err := s.Keeping(ctx, after, queuesStep)
		if err != nil || len(names) == 0 {
			return more, err
		}
		for _, name := range names {
			again, err := retainQueue(ctx, s, name, r)
			if more = more || again; err != nil {
				return more, err
			}
		}
		after = names[len(names)-1]
	}
}

// retainQueue is retain for the jobs of one.
func retainQueue(ctx context.Context, s Store, name string, r *Retention) (more bool, err error) {
	own := r.Of(name)
	for _, state := range counted {
		age := r.States[state]
		if own.Age != 0 {
			age = max(0, own.Age)
		}
		if age == 0 {
			continue
		}
		n, err := s.Purge(ctx, store.Ended{States: []queue.State{state}, Before: s.Now().Add(-age), Of: &name}, retainStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == retainStep
	}
	if own.MaxJobs > 0 {
		again, err := atMost(ctx, s, store.Ended{States: counted, Before: s.Now() + 1, Of: &name}, own.MaxJobs)
		if more = more || again; err != nil {
			return more, err
		}
	}
	if own.Output > 0 {
		again, err := s.TrimOutputsOf(ctx, name, own.Output)
		return more || again, err
	}
	return more, nil
}
