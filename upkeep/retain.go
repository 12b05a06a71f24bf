package upkeep

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Retention is how long what has ended is kept. A duration of 0 is for ever.
type Retention struct {
	States    map[queue.State]time.Duration
	MaxJobs   int64 // completed and cancelled ones, the newest; 0 is any number
	Events    time.Duration
	MaxEvents int64
	Outputs   int64 // bytes of all outputs; 0 is any number
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
		n, err := s.Purge(ctx, []queue.State{state}, now.Add(-age), retainStep, nil)
		if err != nil {
			return false, err
		}
		more = more || n == retainStep
	}
	kept := int64(0)
	for states, i := s.Counts().States, 0; i < len(counted); i++ {
		kept += states[counted[i]]
	}
	if over := kept - r.MaxJobs; r.MaxJobs > 0 && over > 0 {
		n, err := s.Purge(ctx, counted, now+1, int(min(over, retainStep)), nil)
		if err != nil {
			return false, err
		}
		more = more || int64(n) < over && n > 0
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
