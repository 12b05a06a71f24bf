package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Events reads the events of the queue, in the order of their numbers, and notifies callers of new events and
// of changed jobs.
type Events interface {
	// Events lists up to limit events after a sequence number. The changes that the returned events report
	// are already included in Counts.
	Events(ctx context.Context, after int64, limit int) ([]queue.Event, error)
	// LastEvent returns the number of the newest event, or 0 if there was none. The returned channel is
	// closed when a newer event is stored.
	LastEvent() (last int64, newer <-chan struct{})
	// Watch sends hints about changes of some jobs until the watch is stopped.
	Watch(seqs []int64) *JobWatch
}
