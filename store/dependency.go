package store

import "github.com/queuectl/queuectl/queue"

// DependencyLink describes a dependency of a job. The job at the other end of the dependency is called the other job:
// it is a parent or a dependant. The dependency may already be resolved.
type DependencyLink struct {
	LinkedJobSeq   int64       // number of the job at the other end
	LinkedJobID    string      // "" if the job at the other end was removed
	LinkedJobState queue.State // 0 if the job at the other end was removed
	Condition      queue.DependencyCondition
	Status         DependencyStatus
}

// ParentJob is the current state of a parent that a job has waited for.
type ParentJob struct {
	ID         string
	UID        int
	State      queue.State
	ExitCode   int64  // exit code of the last attempt; -1 means none
	ResultJSON []byte // JSON result of the last attempt, nil if none
}

// DependencyStatus is the status of a dependency.
type DependencyStatus uint8

// The values of DependencyStatus.
const (
	Unresolved DependencyStatus = iota // the parent has not ended
	Satisfied                          // the parent ended as required, or the child runs whatever happens to the parent
	Broken                             // the parent did not end as required
)

// MaxLoadedDependencies is the maximum number of parents in the field DependsOnRefs of a job that is read from the
// store.
const MaxLoadedDependencies = 8
