package control

import "context"

// ExplainAPI explains why jobs are not running and when they will start. The methods change nothing.
type ExplainAPI interface {
	// ExplainWaiting returns the reasons why a job is not running.
	ExplainWaiting(ctx context.Context, p ExplainWaitingParams) (WaitingExplanation, error)
	// SimulateNextStarts returns the jobs that would start next if workers were free now.
	SimulateNextStarts(ctx context.Context, p SimulateParams) (SimulateResult, error)
	// ReadDependencyTree returns the jobs that a job depends on, and the jobs that depend on it, directly or indirectly.
	ReadDependencyTree(ctx context.Context, p DependencyTreeParams) (DependencyTree, error)
}

// ExplainWaitingParams requests the reasons why a job is not running.
type ExplainWaitingParams struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// WaitingExplanation lists the reasons why a job is not running. Reasons is empty if the job has no obstacle: it is
// running, has ended, or waits only for a free worker.
type WaitingExplanation struct {
	ID      string       `json:"id"`
	State   string       `json:"state"`
	Reasons []WaitReason `json:"reasons"`
	// JobsAhead is the number of jobs that will start before this one; 0 means that this job starts next. It is
	// null if the job cannot start yet, or if the jobs ahead are too many to count.
	JobsAhead *int `json:"ahead"`
	// MinJobsAhead is set instead of JobsAhead if the jobs ahead are too many to count. At least this many jobs
	// will start before this one.
	MinJobsAhead int `json:"ahead_at_least,omitempty"`
	// JobsAheadByUser lists the users with the most jobs ahead of this one.
	JobsAheadByUser []UserJobsAhead `json:"ahead_by_user,omitempty"`
	// Earliest is the earliest possible start time. It is null if the start depends on other jobs.
	Earliest Time `json:"earliest"`
}

// WaitReason is one reason why a job is not running.
type WaitReason struct {
	// Kind is dependency, unique, input, held, paused, time, retry, draining, workers, runner,
	// queue, user, lock, rate, resource or node.
	Kind       string `json:"kind"`
	CauseKey   string `json:"key,omitempty"`  // cause, such as the key of a lock or the id of a job
	LimitUsage *int   `json:"used,omitempty"` // how much of Limit is in use now
	Limit      *int   `json:"most,omitempty"` // the limit that keeps the job from starting
	EndsAt     Time   `json:"at"`             // when the reason ends, if that is known
	Text       string `json:"text"`           // explanation for the user
	Advice     string `json:"next"`           // what the user can do about it
	// Nodes lists the nodes to which the reason applies. It is empty if the reason applies to all nodes.
	Nodes []string `json:"nodes,omitempty"`
}

// UserJobsAhead describes the jobs of one user that will start before the job in question.
type UserJobsAhead struct {
	User            string `json:"user"`
	Jobs            int    `json:"jobs"`
	HighestPriority int64  `json:"priority"` // the highest priority of these jobs
	// Text explains to the user the number of these jobs, and why they start before the job in question.
	Text string `json:"text"`
}

// SimulateParams requests a list of the jobs that will start next. MaxJobs is the length of the list, 1 to 100; 0
// means 20.
type SimulateParams struct {
	MaxJobs int `json:"next,omitempty" rule:"simulatedJobs"`
}

// SimulateResult lists jobs in the order in which they would start. MayBeIncomplete means that the search reached its
// limit before it found MaxJobs jobs, so more jobs may follow.
type SimulateResult struct {
	Jobs            []Job `json:"jobs"`
	MayBeIncomplete bool  `json:"incomplete"`
}

// MaxSimulatedJobs is the maximum number of jobs in a SimulateResult.
const MaxSimulatedJobs = 100

// DependencyTreeParams requests the jobs that a job depends on, and the jobs that depend on it, directly or indirectly.
type DependencyTreeParams struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// DependencyTree is a graph of jobs, with at most 1,000 jobs. Jobs begins with the requested job. More means that
// some jobs were left out.
type DependencyTree struct {
	Jobs         []DependencyTreeJob `json:"nodes"`
	Dependencies []JobDependency     `json:"edges"`
	More         bool                `json:"more"`
}

// DependencyTreeJob is a job in a DependencyTree. State is "" if the job no longer exists.
type DependencyTreeJob struct {
	ID    string `json:"id"`
	Seq   int64  `json:"seq"`
	State string `json:"state"`
}

// JobDependency is a dependency between two jobs: the child waits until the parent has ended. Condition says how the
// parent must end.
type JobDependency struct {
	ParentSeq int64 `json:"parent"` // number of the parent job
	// ChildSeq is the number of the child job.
	ChildSeq int64 `json:"child"`
	// Condition is "completed", "dead" or "ended".
	Condition string `json:"how"`
	// Status is "open" until the parent has ended. Then it is "met" if the parent has ended as Condition requires, and
	// "failed" if not.
	Status string `json:"met"`
}
