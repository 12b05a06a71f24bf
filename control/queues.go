package control

import (
	"encoding/json"
	"fmt"
	"time"
)

// QueueView is a queue as the wire shows it: how it is, and what it goes by.
type QueueView struct {
	Queue       string          `json:"queue"`
	Running     int             `json:"running"`
	Waiting     int64           `json:"waiting"`
	Oldest      Time            `json:"oldest_waiting"`        // since when the first of those that could start waits
	Throughput  int             `json:"throughput_per_minute"` // how many of its attempts have ended in the last minute; other nodes tell it of their 32 busiest queues
	Concurrency int             `json:"concurrency"`           // jobs of it that may run at once; 0 is any number
	Weight      int             `json:"weight"`                // its share of the starts, beside other queues'
	MaxPending  int64           `json:"max_pending"`           // jobs of it that may wait; 0 is any number
	Defaults    json.RawMessage `json:"defaults"`              // fields of jobs that do not name them
	// Retention is how long its completed and cancelled jobs are kept; null is as the settings say, as 0 of the
	// next ones: how many of them, and bytes of their outputs.
	Retention        *Age    `json:"retention"`
	RetentionMaxJobs int64   `json:"retention_max_jobs"`
	RetentionOutput  int64   `json:"retention_output"`
	Paused           bool    `json:"paused"`
	PausedBy         *string `json:"paused_by"`
	PausedAt         Time    `json:"paused_at"`
	PauseReason      *string `json:"pause_reason"`
	PausedUntil      Time    `json:"paused_until"`
	Frozen           bool    `json:"frozen"` // what ran when it was paused stands still too
}

// QueueList lists queues, by name, at most MaxQueueList. There are others after Next, if that is not
// "".
type QueueList struct {
	Queues []QueueView `json:"queues"`
	Next   string      `json:"next,omitempty"`
}

// Queues asks for those after a name.
type Queues struct {
	After string `json:"after,omitempty"`
}

// MaxQueueList is how many queues one answer has, and MaxQueueDefaults how many bytes of JSON the
// defaults of one may have.
const (
	MaxQueueList     = 1000
	MaxQueueDefaults = 2 << 10
)

// QueueSet says what a queue is to go by; what is nil stays as it is. Default has fields of a job;
// null takes one away.
type QueueSet struct {
	Name        string          `json:"name"`
	Concurrency *int            `json:"concurrency,omitempty"`
	Weight      *int            `json:"weight,omitempty"` // 1 to 1000
	MaxPending  *int64          `json:"max_pending,omitempty"`
	Default     json.RawMessage `json:"default,omitempty"`
	// Retention is how long its completed and cancelled jobs are kept, "default" as the settings say; the next
	// are how many of them, and bytes of their outputs, 0 is as the settings say.
	Retention        *Age   `json:"retention,omitempty"`
	RetentionMaxJobs *int64 `json:"retention_max_jobs,omitempty"`
	RetentionOutput  *int64 `json:"retention_output,omitempty"`
}

// Age is how long something is kept: a duration as Span's, never, or default for what is said elsewhere. 0 is
// the last, and below 0 never.
type Age time.Duration

// MarshalJSON writes the age.
func (a Age) MarshalJSON() ([]byte, error) {
	switch {
	case a == 0:
		return []byte(`"default"`), nil
	case a < 0:
		return []byte(`"never"`), nil
	}
	return Span(a).MarshalJSON()
}

// UnmarshalJSON reads an age.
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

// QueuePause has nothing of a queue start, or of all queues that there are: until it is resumed, or
// until an instant, or for a while.
type QueuePause struct {
	Name   string `json:"name,omitempty"`
	All    bool   `json:"all,omitempty"`
	Reason string `json:"reason,omitempty"` // at most 256 bytes
	Until  Time   `json:"until,omitzero"`
	For    Span   `json:"for,omitempty"`
	Freeze bool   `json:"freeze,omitempty"` // what runs stands still too; not with an end
}

// QueueName names a queue, or all.
type QueueName struct {
	Name string `json:"name,omitempty"`
	All  bool   `json:"all,omitempty"`
}

// QueueRemove names the queue whose settings are removed.
type QueueRemove struct {
	Name string `json:"name"`
}

// Tree is a job with those that it waits for and those that wait for it, in both directions.
type Tree struct {
	ID Name `json:"id"`
}

// TreeView has nodes, that of the job first, and the edges between them. There may be more than the
// 1,000 that are told.
type TreeView struct {
	Nodes []TreeNode `json:"nodes"`
	Edges []TreeEdge `json:"edges"`
	More  bool       `json:"more"`
}

// TreeNode is a job. One that was removed has no state.
type TreeNode struct {
	ID    string `json:"id"`
	Seq   int64  `json:"seq"`
	State string `json:"state"`
}

// TreeEdge says that a job waits for another one to end so.
type TreeEdge struct {
	Parent int64  `json:"parent"` // by seq
	Child  int64  `json:"child"`
	How    string `json:"how"` // completed, dead or ended
	Met    string `json:"met"` // open, met or failed
}

// WhyParams asks why a job does not run.
type WhyParams struct {
	ID Name `json:"id"`
}

// Why says why a job does not run now. There is no reason for one that runs or has ended, nor for one
// that is next.
type Why struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Reasons []Reason `json:"reasons"`
	// Ahead is how many jobs will start before this one; 0 means that it is next. It is null if the job cannot start
	// yet, or if too many jobs are before it to count them all.
	Ahead *int `json:"ahead"`
	// AheadAtLeast is how many jobs before this one were counted, if there may be more. It is 0 if Ahead is set.
	AheadAtLeast int `json:"ahead_at_least,omitempty"`
	// AheadByUser lists the users who own most of the jobs that will start before this one.
	AheadByUser []AheadOfUser `json:"ahead_by_user,omitempty"`
	// Earliest is when it could start at the earliest, null if that hangs on others.
	Earliest Time `json:"earliest"`
}

// AheadOfUser describes the jobs of one user that will start before a given job.
type AheadOfUser struct {
	User     string `json:"user"`
	Jobs     int    `json:"jobs"`
	Priority int64  `json:"priority"` // the highest priority among them
	Text     string `json:"text"`     // for people: how many, of which user, and why they start before it
}

// Reason is one thing that keeps a job from running, and what would end it.
type Reason struct {
	// Kind is dependency, unique, input, held, paused, time, retry, draining, workers, runner, queue, user, lock, rate,
	// resource or node.
	Kind string `json:"kind"`
	Key  string `json:"key,omitempty"`
	Used *int   `json:"used,omitempty"`
	Most *int   `json:"most,omitempty"`
	At   Time   `json:"at"`
	Text string `json:"text"` // for people
	Next string `json:"next"` // what to do about it, for people
	// Nodes are the machines that it is true of, if they share the queue and it is not of all.
	Nodes []string `json:"nodes,omitempty"`
}

// Simulate asks for the next jobs: 1 to 100 of them, 20 if Next is 0.
type Simulate struct {
	Next int `json:"next,omitempty"`
}

// Simulated lists jobs in the order in which they would start. Incomplete is true if the search reached its limit before
// it found the requested number of jobs. More jobs may then start after the listed ones.
type Simulated struct {
	Jobs       []Job `json:"jobs"`
	Incomplete bool  `json:"incomplete"`
}

func (p *Simulate) many() bool { return true }

// MaxSimulated is how many jobs are simulated at most.
const MaxSimulated = 100

// NewQueue is a queue in which nothing else waits or runs than a request's jobs, and the known one whose name is like it.
type NewQueue struct {
	Queue string `json:"queue"`
	Near  string `json:"near,omitempty"`
}
