package control

import (
	"encoding/json"
	"fmt"
	"time"
)

// QueueView is a queue in an answer: its state and its settings.
type QueueView struct {
	Queue   string `json:"queue"`
	Running int    `json:"running"`
	Waiting int64  `json:"waiting"`
	// Oldest is the time at which the longest-waiting runnable job was first runnable. It is null if
	// no job is runnable.
	Oldest Time `json:"oldest_waiting"`
	// Throughput is the number of the queue's attempts that ended in the last minute. Attempts on
	// other nodes count only for the 32 busiest queues of each node.
	Throughput int `json:"throughput_per_minute"`
	// Concurrency is the maximum number of running jobs. 0 means unlimited.
	Concurrency int `json:"concurrency"`
	// Weight is the queue's share of the starts, relative to the weights of other queues.
	Weight int `json:"weight"`
	// MaxPending is the maximum number of waiting jobs. 0 means unlimited.
	MaxPending int64 `json:"max_pending"`
	// Defaults holds values for job fields that a job of the queue does not set.
	Defaults json.RawMessage `json:"defaults"`
	// Retention is how long completed and cancelled jobs are kept. RetentionMaxJobs limits their
	// number, and RetentionOutput the bytes of their outputs. null or 0 means the value in the
	// settings.
	Retention        *Age    `json:"retention"`
	RetentionMaxJobs int64   `json:"retention_max_jobs"`
	RetentionOutput  int64   `json:"retention_output"`
	Paused           bool    `json:"paused"`
	PausedBy         *string `json:"paused_by"`
	PausedAt         Time    `json:"paused_at"`
	PauseReason      *string `json:"pause_reason"`
	PausedUntil      Time    `json:"paused_until"`
	Frozen           bool    `json:"frozen"` // jobs that were running at the time of the pause are frozen
}

// QueueList is a page of queues in the order of their names, at most MaxQueueList. Next is the
// value of Queues.After for the next page, "" on the last page.
type QueueList struct {
	Queues []QueueView `json:"queues"`
	Next   string      `json:"next,omitempty"`
}

// Queues requests the queues whose names come after After.
type Queues struct {
	After string `json:"after,omitempty"`
}

// MaxQueueList is the maximum number of queues in an answer. MaxQueueDefaults is the maximum size
// of a queue's defaults, in bytes of JSON.
const (
	MaxQueueList     = 1000
	MaxQueueDefaults = 2 << 10
)

// QueueSet changes the settings of a queue. Fields that are nil stay unchanged. Default is an
// object of job fields; null removes the default of a field.
type QueueSet struct {
	Name        string          `json:"name"`
	Concurrency *int            `json:"concurrency,omitempty"`
	Weight      *int            `json:"weight,omitempty"` // 1 to 1000
	MaxPending  *int64          `json:"max_pending,omitempty"`
	Default     json.RawMessage `json:"default,omitempty"`
	// Retention is how long completed and cancelled jobs are kept; "default" means the value in the
	// settings. RetentionMaxJobs limits their number, and RetentionOutput the bytes of their
	// outputs; 0 means the value in the settings.
	Retention        *Age   `json:"retention,omitempty"`
	RetentionMaxJobs *int64 `json:"retention_max_jobs,omitempty"`
	RetentionOutput  *int64 `json:"retention_output,omitempty"`
}

// Age is how long something is kept. Its JSON is a duration like that of Span, "never" or
// "default". A negative value means never, and 0 means the default.
type Age time.Duration

// MarshalJSON implements json.Marshaler.
func (a Age) MarshalJSON() ([]byte, error) {
	switch {
	case a == 0:
		return []byte(`"default"`), nil
	case a < 0:
		return []byte(`"never"`), nil
	}
	return Span(a).MarshalJSON()
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *Age) UnmarshalJSON(raw []byte) error {
	switch string(raw) {
	case `"default"`:
		*a = 0
		return nil
	case `"never"`:
		*a = -1
		return nil
	}
	err := (*Span)(a).UnmarshalJSON(raw)
	if err == nil && time.Duration(*a) < time.Second {
		err = fmt.Errorf("too short; use at least 1s, never, or default")
	}
	return err
}

// QueuePause prevents jobs of one queue, or of all queues, from starting: until the queue is
// resumed, until a given time, or for a given duration.
type QueuePause struct {
	Name   string `json:"name,omitempty"`
	All    bool   `json:"all,omitempty"`
	Reason string `json:"reason,omitempty"` // at most 256 bytes
	Until  Time   `json:"until,omitzero"`
	For    Span   `json:"for,omitempty"`
	Freeze bool   `json:"freeze,omitempty"` // also freeze running jobs; not with Until or For
}

// QueueName selects one queue, or all queues.
type QueueName struct {
	Name string `json:"name,omitempty"`
	All  bool   `json:"all,omitempty"`
}

// QueueRemove removes the settings of a queue.
type QueueRemove struct {
	Name string `json:"name"`
}

// Tree requests the direct and indirect dependencies and dependants of a job.
type Tree struct {
	ID Name `json:"id"`
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

// TreeEdge is a dependency: the child waits for the parent to end in the way given by How.
type TreeEdge struct {
	Parent int64 `json:"parent"` // seq of the parent
	// Child is the seq of the child.
	Child int64 `json:"child"`
	// How is "completed", "dead" or "ended".
	How string `json:"how"`
	// Met is "open" while the parent has not ended. After that it is "met" if the parent ended in
	// the way given by How, and otherwise "failed".
	Met string `json:"met"`
}

// WhyParams requests the reasons why a job is not running.
type WhyParams struct {
	ID Name `json:"id"`
}

// Why lists the reasons why a job is not running. Reasons is empty if the job is running, has
// ended, or starts next.
type Why struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Reasons []Reason `json:"reasons"`
	// Ahead is the number of jobs that will start before this one; 0 means that it starts next. It
	// is null if the job cannot start yet, or if too many jobs are before it to count them all.
	Ahead *int `json:"ahead"`
	// AheadAtLeast is set if there are too many jobs to count them all. At least this number of
	// jobs will start before this one. It is 0 if Ahead is set.
	AheadAtLeast int `json:"ahead_at_least,omitempty"`
	// AheadByUser lists the users who own most of the jobs that will start before this one.
	AheadByUser []AheadOfUser `json:"ahead_by_user,omitempty"`
	// Earliest is the earliest possible start time. It is null if that depends on other jobs.
	Earliest Time `json:"earliest"`
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

// Reason is one reason why a job is not running.
type Reason struct {
	// Kind is dependency, unique, input, held, paused, time, retry, draining, workers, runner,
	// queue, user, lock, rate, resource or node.
	Kind string `json:"kind"`
	Key  string `json:"key,omitempty"`
	Used *int   `json:"used,omitempty"`
	Most *int   `json:"most,omitempty"`
	At   Time   `json:"at"`
	Text string `json:"text"` // explanation for the user
	Next string `json:"next"` // what the user can do about it
	// Nodes lists the nodes to which the reason applies. It is empty if it applies to all nodes, or
	// if there is only one.
	Nodes []string `json:"nodes,omitempty"`
}

// Simulate requests the next jobs to start: 1 to 100 of them; 0 means 20.
type Simulate struct {
	Next int `json:"next,omitempty"`
}

// Simulated lists jobs in the order in which they would start. Incomplete is true if the search
// reached its limit before it found the requested number of jobs. More jobs may then start after
// the listed ones.
type Simulated struct {
	Jobs       []Job `json:"jobs"`
	Incomplete bool  `json:"incomplete"`
}

func (p *Simulate) isForManyJobs() bool { return true }

// MaxSimulated is the maximum number of jobs in the answer to Simulate.
const MaxSimulated = 100

// NewQueue is a queue that had no unfinished jobs before this request. Near is the existing queue
// with the most similar name, since the new name may be a typing error. It is "" if no name is
// similar.
type NewQueue struct {
	Queue string `json:"queue"`
	Near  string `json:"near,omitempty"`
}
