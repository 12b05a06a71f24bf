package store

import "github.com/queuectl/queuectl/queue"

// Link is a job at the other end of a dependency, past or present.
type Link struct {
	Seq   int64       // number of the job at the other end
	ID    string      // "" if the job at the other end was removed
	State queue.State // 0 if the job at the other end was removed
	How   queue.ParentEnd
	Met   Met
}

// Parent is the current state of a job that another job has waited for.
type Parent struct {
	ID       string
	UID      int
	State    queue.State
	ExitCode int64  // -1 means none
	Result   []byte // JSON result of the last attempt, nil if none
}

// Met is the status of a dependency.
type Met uint8

// The values of Met.
const (
	Open   Met = iota // the parent has not ended
	Well              // the parent ended as required, or the child runs whatever happens to the parent
	Failed            // the parent did not end as required
)

// MaxAfter limits the parents that a job read from the store has in After.
const MaxAfter = 8
