package store

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// QueueRules keeps the rules of queues.
type QueueRules interface {
	// Queues lists the queues that have a rule or unfinished jobs, ordered by name.
	Queues(ctx context.Context) ([]QueueState, error)
	// SetQueue stores the rule of a queue. A queue without a stored rule has QueueRule{Weight: 1}. SetQueue also resets
	// the counts of the jobs that each queue has started. So only later starts decide which queue is next.
	SetQueue(ctx context.Context, name string, rule QueueRule) error
}

// QueueRule contains the limits of a queue, its pause, and its share of the starts. While all weights are 1, jobs of
// all queues start in the order of rank. Otherwise, queues that have a job that could start share the starts in
// proportion to their weights. A queue that has no such job does not save up its share for later.
type QueueRule struct {
	Weight         int   `json:"weight"`                // share of the starts, at least 1
	Concurrency    int   `json:"concurrency,omitempty"` // limit of the queue's leased jobs; 0 means unlimited
	MaxPendingJobs int64 `json:"max_pending,omitempty"` // limit of the queue's waiting jobs; 0 means unlimited
	// JobDefaults contains the default fields of the queue's jobs as JSON. The store does not interpret them.
	JobDefaults string `json:"defaults,omitempty"`
	Paused      bool   `json:"paused,omitempty"` // jobs of the queue are not claimed
	// PausedByUID is the uid of the user who paused the queue, PausedAt the time, and PauseReason the reason that the user
	// gave. ApplyDueChanges ends the pause at PausedUntil; 0 means never.
	PausedByUID int              `json:"paused_by,omitempty"`
	PausedAt    queue.UnixMillis `json:"paused_at,omitempty"`
	PauseReason string           `json:"reason,omitempty"`
	PausedUntil queue.UnixMillis `json:"until,omitempty"`
	Retention   Retention        `json:"keep,omitzero"`
	// RunningJobsPaused reports that the running jobs of the queue were paused with the queue. The store
	// keeps this value, but does not use it.
	RunningJobsPaused bool `json:"frozen,omitempty"`
}

// Retention says how long the completed and cancelled jobs of a queue are kept, and how many. For each field that is 0,
// the settings of the service apply instead.
type Retention struct {
	// MaxAge is the longest time since a job's end. 0 means the service's setting, and -1 no limit.
	MaxAge  time.Duration `json:"age,omitempty"`
	MaxJobs int64         `json:"max_jobs,omitempty"` // number of jobs that are kept; the oldest are removed first
	// MaxOutputBytes is how many bytes of outputs are kept. The oldest outputs are removed first.
	MaxOutputBytes int64 `json:"output,omitempty"`
}

// WithoutPause returns the rule without its pause.
func (r QueueRule) WithoutPause() QueueRule {
	r.Paused, r.PausedByUID, r.PausedAt, r.PauseReason, r.PausedUntil, r.RunningJobsPaused = false, 0, 0, "", 0, false
	return r
}

// DefaultQueueRule is the rule of a queue without a stored rule.
var DefaultQueueRule = QueueRule{Weight: 1}

// QueueState is the current state of a queue.
type QueueState struct {
	Name        string
	Rule        QueueRule
	WaitingJobs int64 // number of waiting jobs
	LeasedJobs  int
	// OldestReadySince is the time since which the job that has waited longest could have started, or 0 if no job can
	// start. To be fast, the store considers only the first jobs of the best lanes. A lane is a list of jobs with the same
	// demands.
	OldestReadySince queue.UnixMillis
}

// MaxQueuesPerUser limits how many queues one user may create by enqueuing jobs. It does not count queues that have
// a rule or no unfinished jobs.
const MaxQueuesPerUser = 1000
