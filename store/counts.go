package store

import "github.com/queuectl/queuectl/queue"

// Counts contains totals of the whole queue. Each change updates them, so reading them costs the same however
// many jobs exist.
type Counts struct {
	States        [queue.Cancelled + 1]int64 // number of jobs in each state
	EnqueuedTotal int64                      // number of jobs ever enqueued
	// Reranking reports that Rerank has more to do.
	Reranking bool
	Bytes     int64 // bytes of the database
	Outputs   int64 // bytes of all outputs, in the database and in files
	// UnderOwnRetention is the number of completed and cancelled jobs that ended while their queue had its own retention.
	UnderOwnRetention int64
}

// BoundedStates lists the states in which a retention limits the number of jobs. Dead jobs stay until a user
// handles them.
var BoundedStates = []queue.State{queue.Completed, queue.Cancelled}

// Bounded returns the number of jobs that the retention for all queues limits.
func (c Counts) Bounded() int64 {
	n := -c.UnderOwnRetention
	for _, s := range BoundedStates {
		n += c.States[s]
	}
	return n
}

// Waiting returns the number of jobs that are waiting to run.
func (c Counts) Waiting() int64 {
	return c.States[queue.Blocked] + c.States[queue.Held] + c.States[queue.Pending] + c.States[queue.Failed]
}
