package control

import "context"

// ExplainAPI explains why jobs are not running and when they will. The methods change nothing.
type ExplainAPI interface {
	// Why returns the reasons why a job is not running.
	Why(ctx context.Context, p WhyParams) (Why, error)
	// Simulate returns the jobs that would start next if workers were free now.
	Simulate(ctx context.Context, p Simulate) (SimulateResult, error)
	// Tree returns the jobs that a job depends on and those that depend on it, directly or indirectly.
	Tree(ctx context.Context, p Tree) (TreeView, error)
}

// WhyParams requests the reasons why a job is not running.
type WhyParams struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// Why lists the reasons why a job is not running. Reasons is empty if the job is running, has ended, or can
// start.
type Why struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Reasons []Reason `json:"reasons"`
	// JobsAhead is the number of jobs that will start before this one; 0 means that it starts next. It
	// is null if the job cannot start yet, or if too many jobs are before it to count them all.
	JobsAhead *int `json:"ahead"`
	// AheadAtLeast is set instead of JobsAhead if too many jobs are ahead to count them all. At least this
	// number of jobs will start before this one.
	AheadAtLeast int `json:"ahead_at_least,omitempty"`
	// AheadByUser lists the users with the most jobs that will start before this one.
	AheadByUser []AheadOfUser `json:"ahead_by_user,omitempty"`
	// Earliest is the earliest possible start time. It is null if the start depends on other jobs.
	Earliest Time `json:"earliest"`
}

// Reason is one reason why a job is not running.
type Reason struct {
	// Kind is dependency, unique, input, held, paused, time, retry, draining, workers, runner,
	// queue, user, lock, rate, resource or node.
	Kind   string `json:"kind"`
	Key    string `json:"key,omitempty"`  // cause, such as the key of a lock or the id of a job
	Usage  *int   `json:"used,omitempty"` // how much of Limit is used now
	Limit  *int   `json:"most,omitempty"` // limit that the job must wait for
	EndsAt Time   `json:"at"`             // when the reason ends, if known
	Text   string `json:"text"`           // explanation for the user
	Advice string `json:"next"`           // what the user can do about it
	// Nodes lists the nodes to which the reason applies. It is empty if the reason applies to all nodes, or if
	// there is only one node.
	Nodes []string `json:"nodes,omitempty"`
}

// AheadOfUser describes the jobs of one user that will start before a given job.
type AheadOfUser struct {
	User     string `json:"user"`
	Jobs     int    `json:"jobs"`
	Priority int64  `json:"priority"` // the highest priority of these jobs
	// Text informs the user how many of these jobs there are, and why they start before the given job.
	Text string `json:"text"`
}

// Simulate requests a list of the jobs that start next. JobCount is their number, 1 to 100; 0 means 20.
type Simulate struct {
	JobCount int `json:"next,omitempty" rule:"simulatedJobs"`
}

// SimulateResult lists jobs in the order in which they would start. Incomplete is true if the search stopped at
// its limit before it found the requested number of jobs. Further jobs may then start after the listed ones.
type SimulateResult struct {
	Jobs       []Job `json:"jobs"`
	Incomplete bool  `json:"incomplete"`
}

// MaxSimulatedJobs is the maximum number of jobs in a SimulateResult.
const MaxSimulatedJobs = 100

func (p *Simulate) isForManyJobs() bool { return true }

// Tree requests the jobs that a job depends on and those that depend on it, directly or indirectly.
type Tree struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// TreeView is a graph of jobs. Its first node is the requested job. It has at most 1,000 nodes. More is true if
// some jobs were left out.
type TreeView struct {
	Nodes []TreeNode `json:"nodes"`
	Edges []TreeEdge `json:"edges"`
	More  bool       `json:"more"`
}

// TreeNode is a job in a TreeView. State is "" if the job was removed.
type TreeNode struct {
	ID    string `json:"id"`
	Seq   int64  `json:"seq"`
	State string `json:"state"`
}

// TreeEdge is a dependency: the child waits until the parent has ended as Condition requires.
type TreeEdge struct {
	Parent int64 `json:"parent"` // number of the parent job
	// Child is the number of the child job.
	Child int64 `json:"child"`
	// Condition is "completed", "dead" or "ended".
	Condition string `json:"how"`
	// Status is "open" while the parent has not ended. Afterwards it is "met" if the parent has ended as Condition
	// requires, and "failed" if not.
	Status string `json:"met"`
}
