package control

import "context"

// ExplainAPI explains why jobs do not run yet. The methods change nothing.
type ExplainAPI interface {
	// Why returns the reasons why a job is not running.
	Why(ctx context.Context, p WhyParams) (Why, error)
	// Simulate returns the jobs that would start next if workers were free now.
	Simulate(ctx context.Context, p Simulate) (SimulateResult, error)
	// Tree returns all direct and indirect dependencies and dependants of a job.
	Tree(ctx context.Context, p Tree) (TreeView, error)
}

// WhyParams requests the reasons why a job is not running.
type WhyParams struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// Why lists the reasons why a job is not running. Reasons is empty if the job is running, has
// ended, or starts next.
type Why struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Reasons []Reason `json:"reasons"`
	// JobsAhead is the number of jobs that will start before this one; 0 means that it starts next. It
	// is null if the job cannot start yet, or if too many jobs are before it to count them all.
	JobsAhead *int `json:"ahead"`
	// AheadAtLeast is set if there are too many jobs to count them all. At least this number of jobs
	// will start before this one. It is 0 if JobsAhead is set.
	AheadAtLeast int `json:"ahead_at_least,omitempty"`
	// AheadByUser lists the users who own most of the jobs that will start before this one.
	AheadByUser []AheadOfUser `json:"ahead_by_user,omitempty"`
	// Earliest is the earliest possible start time. It is null if the start depends on other jobs.
	Earliest Time `json:"earliest"`
}

// Reason is one reason why a job is not running.
type Reason struct {
	// Kind is dependency, unique, input, held, paused, time, retry, draining, workers, runner,
	// queue, user, lock, rate, resource or node.
	Kind   string `json:"kind"`
	Key    string `json:"key,omitempty"`
	Usage  *int   `json:"used,omitempty"`
	Limit  *int   `json:"most,omitempty"`
	At     Time   `json:"at"`
	Text   string `json:"text"` // explanation for the user
	Advice string `json:"next"` // what the user can do about it
	// Nodes lists the nodes to which the reason applies. It is empty if it applies to all nodes, or
	// if there is only one.
	Nodes []string `json:"nodes,omitempty"`
}

// AheadOfUser describes the jobs of one user that will start before a given job.
type AheadOfUser struct {
	User     string `json:"user"`
	Jobs     int    `json:"jobs"`
	Priority int64  `json:"priority"` // the highest priority among them
	// Text explains to the user how many of these jobs there are, whose they are, and why they
	// start before the given job.
	Text string `json:"text"`
}

// Simulate requests the next jobs to start: 1 to 100 of them; 0 means 20.
type Simulate struct {
	JobCount int `json:"next,omitempty" rule:"simulatedJobs"`
}

// SimulateResult lists jobs in the order in which they would start. Incomplete is true if the
// search reached its limit before it found the requested number of jobs. More jobs may then start
// after the listed ones.
type SimulateResult struct {
	Jobs       []Job `json:"jobs"`
	Incomplete bool  `json:"incomplete"`
}

// MaxSimulatedJobs is the maximum number of jobs in the answer to Simulate.
const MaxSimulatedJobs = 100

func (p *Simulate) isForManyJobs() bool { return true }

// Tree requests the direct and indirect dependencies and dependants of a job.
type Tree struct {
	ID JobID `json:"id" rule:"nonEmpty,required"`
}

// TreeView is a graph of jobs. Its first node is the requested job. It has at most 1,000 nodes;
// More means that some were left out.
type TreeView struct {
	Nodes []TreeNode `json:"nodes"`
	Edges []TreeEdge `json:"edges"`
	More  bool       `json:"more"`
}

// TreeNode is a job. State is "" if the job was removed.
type TreeNode struct {
	ID    string `json:"id"`
	Seq   int64  `json:"seq"`
	State string `json:"state"`
}

// TreeEdge is a dependency: the child waits for the parent to end in the way given by Condition.
type TreeEdge struct {
	Parent int64 `json:"parent"` // seq of the parent
	// Child is the seq of the child.
	Child int64 `json:"child"`
	// Condition is "completed", "dead" or "ended".
	Condition string `json:"how"`
	// Status is "open" while the parent has not ended. After that it is "met" if the parent ended in
	// the way given by Condition, and otherwise "failed".
	Status string `json:"met"`
}
