package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Cleanup removes jobs, events and outputs that have been kept long enough or that exceed a limit. Each call
// removes a limited number, so that other operations do not wait long.
type Cleanup interface {
	// PurgeEndedJobs removes jobs that match the filter, with their history. It removes at most limit jobs, beginning with
	// those that ended first. It returns the number of removed jobs. removedByUID is the user who requested the removal,
	// or nil if a periodic task of the service removes the jobs.
	PurgeEndedJobs(ctx context.Context, filter EndedJobFilter, limit int, requestedByUID *int) (int, error)
	// QueuesWithOwnRetention lists, by name, the queues with jobs that ended while the queue had its own retention
	// settings. It does not read the jobs.
	QueuesWithOwnRetention(ctx context.Context) ([]OwnRetentionQueue, error)
	// TrimEndedJobs removes jobs in StatesWithRetention until at most maxJobs of them are left, beginning with those that
	// ended first. If queueName is a name, it counts and removes only jobs that ended while that queue had its own
	// retention settings. If queueName is "", it counts and removes jobs of all queues that ended while their queue had no
	// retention settings. One call removes at most limit jobs. more is true if there are more jobs to remove.
	TrimEndedJobs(ctx context.Context, queueName string, maxJobs int64, limit int) (more bool, err error)
	// TrimEvents deletes the events before beforeTime, and the oldest of the other events until at most
	// maxEvents are left. One call deletes a limited number. more is true if there are more events to delete.
	TrimEvents(ctx context.Context, beforeTime queue.UnixMillis, maxEvents int64) (more bool, err error)
	// TrimOutputs removes outputs if all outputs together have more than maxBytes bytes. It begins with the user whose
	// outputs use the most bytes. So a user loses outputs only while no other user's outputs use more bytes. The outputs
	// of one user are removed in the order of TrimUserData. The attempts are kept, but their output size is set to
	// OutputRemovedByRetention. One call removes a limited number of outputs. more is true if there are more outputs to
	// remove.
	TrimOutputs(ctx context.Context, maxBytes int64) (more bool, err error)
	// TrimQueueOutputs removes outputs like TrimOutputs, but only of jobs that ended while the queue had its
	// own retention settings. It begins with the job that ended first.
	TrimQueueOutputs(ctx context.Context, queueName string, maxBytes int64) (more bool, err error)
}

// EndedJobFilter selects jobs that ended in one of States before the time EndedBefore.
type EndedJobFilter struct {
	States      []queue.State
	EndedBefore queue.UnixMillis
	// RetentionQueue, if it is a name, selects the jobs that ended while that queue had its own retention settings. If it
	// is "", it selects the jobs of all queues that ended while their queue had no retention settings. Nil selects all
	// jobs.
	RetentionQueue *string
	// MinKeptJobs is the number of jobs in States that PurgeEndedJobs leaves, at least. Other methods ignore it. It cannot
	// be combined with RetentionQueue.
	MinKeptJobs int64
}

// OwnRetentionQueue is a queue with jobs that ended while the queue had its own retention settings.
type OwnRetentionQueue struct {
	Name          string
	EndedJobCount int64 // number of these jobs that are in one of StatesWithRetention
	OutputBytes   int64 // size of the outputs of these jobs, in bytes
}
