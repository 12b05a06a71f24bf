package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Cleanup removes jobs, events and outputs that have been kept long enough or that exceed a limit. Each call
// removes a limited number, so that other operations do not wait long.
type Cleanup interface {
	// Purge removes jobs that match the filter, with their history: at most limit jobs, those that ended first.
	// It returns the number of removed jobs. byUID is the user who requested the removal; nil means that
	// a periodic duty removes the jobs.
	Purge(ctx context.Context, filter EndedFilter, limit int, byUID *int) (int, error)
	// OwnRetentionQueues lists, by name, the queues with jobs that ended while the queue had its own retention.
	// It does not read the jobs.
	OwnRetentionQueues(ctx context.Context) ([]OwnRetentionQueue, error)
	// TrimJobs removes jobs in RetentionStates until their number is at most maxJobs. The jobs that ended first are
	// removed first. One call removes at most limit jobs. If queue is a name, TrimJobs considers the jobs that
	// ended while that queue had its own retention. If queue is "", it considers the jobs of all queues that
	// ended while their queue had no separate retention. It reports whether there are more to remove.
	TrimJobs(ctx context.Context, queue string, maxJobs int64, limit int) (more bool, err error)
	// TrimEvents deletes the events that are older than beforeTime. It also deletes the oldest events until their
	// number is at most maxEvents. One call deletes a limited number. It reports whether there are more to delete.
	TrimEvents(ctx context.Context, beforeTime queue.Millis, maxEvents int64) (more bool, err error)
	// TrimOutputs removes a limited number of outputs if all outputs together have more than maxBytes
	// bytes. Users with the most bytes of output lose outputs first, so no user loses any while another has more.
	// The outputs of one user are removed in the order of TrimUserData. The attempts stay, with their output size
	// set to OutputOverRetention. It reports whether there is more to remove.
	TrimOutputs(ctx context.Context, maxBytes int64) (more bool, err error)
	// TrimQueueOutputs does the same as TrimOutputs for the jobs of a queue that ended while the queue had its
	// own retention. It starts with the job that ended first.
	TrimQueueOutputs(ctx context.Context, queue string, maxBytes int64) (more bool, err error)
}

// EndedFilter selects jobs that ended in one of States before the time Cutoff.
type EndedFilter struct {
	States []queue.State
	Cutoff queue.Millis
	// RetentionQueue selects the jobs of one queue that ended while it had its own retention. An empty name selects the
	// jobs of all queues that ended while their queue had no separate retention. Nil selects all jobs.
	RetentionQueue *string
}

// OwnRetentionQueue is a queue with jobs that ended while it had its own retention.
type OwnRetentionQueue struct {
	Name        string
	Jobs        int64 // number of these jobs that are in one of RetentionStates
	OutputBytes int64 // bytes of the outputs of these jobs
}
