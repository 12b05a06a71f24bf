package store

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// QueueRules keeps the rules of queues.
type QueueRules interface {
	// Queues lists, by name, the queues that have a rule or jobs that have not ended.
	Queues(ctx context.Context) ([]QueueState, error)
	// SetQueue stores the rule of a queue. A queue without a stored rule has QueueRule{Weight: 1}. SetQueue also
	// resets the counts of how many jobs each queue has started. Earlier starts then no longer affect which queue
	// starts the next job.
	SetQueue(ctx context.Context, name string, rule QueueRule) error
}

// QueueRule says how jobs of a queue start relative to those of other queues. While all weights are 1, jobs
// of all queues start in order of rank. If the weights differ, the queues share the starts in proportion to
// their weights. Only queues with a job that could start take part. A queue without one does not save up
// starts for later.
type QueueRule struct {
	Weight      int   `json:"weight"`                // share of the starts, at least 1
	Concurrency int   `json:"concurrency,omitempty"` // limit of the queue's leased jobs; 0 means unlimited
	MaxPending  int64 `json:"max_pending,omitempty"` // limit of the queue's waiting jobs; 0 means unlimited
	// JobDefaults contains the default fields of the queue's jobs as JSON. The store does not interpret them.
	JobDefaults string `json:"defaults,omitempty"`
	Paused      bool   `json:"paused,omitempty"` // jobs of the queue are not claimed
	// PausedBy is the uid of the user who paused the queue, PausedAt the time, and PauseReason the user's
	// reason. Promote ends the pause at PausedUntil; 0 means never.
	PausedBy    int          `json:"paused_by,omitempty"`
	PausedAt    queue.Millis `json:"paused_at,omitempty"`
	PauseReason string       `json:"reason,omitempty"`
	PausedUntil queue.Millis `json:"until,omitempty"`
	Retention   Retention    `json:"keep,omitzero"`
	// RunningJobsPaused reports that the queue's running jobs were paused too. The store does not interpret it.
	RunningJobsPaused bool `json:"frozen,omitempty"`
}

// Retention says how long a queue's completed and cancelled jobs are kept. For a field that is 0, the general
// settings apply.
type Retention struct {
	MaxAge  time.Duration `json:"age,omitempty"`      // longest time since a job's end, or Forever
	MaxJobs int64         `json:"max_jobs,omitempty"` // number of jobs kept; the oldest are removed first
	// MaxOutputBytes is how many bytes of outputs are kept. The oldest outputs are removed first.
	MaxOutputBytes int64 `json:"output,omitempty"`
}

// Forever as Retention.MaxAge means that jobs are kept without a time limit.
const Forever = -1

// WithoutPause returns the rule without its pause.
func (r QueueRule) WithoutPause() QueueRule {
	r.Paused, r.PausedBy, r.PausedAt, r.PauseReason, r.PausedUntil, r.RunningJobsPaused = false, 0, 0, "", 0, false
	return r
}

// DefaultQueueRule is the rule of a queue without a stored rule.
var DefaultQueueRule = QueueRule{Weight: 1}

// QueueState is the current state of a queue.
type QueueState struct {
	Name    string
	Rule    QueueRule
	Waiting int64 // number of waiting jobs
	Leased  int
	// OldestReadySince is the time since which the oldest job that could start has waited, or 0 if none could
	// start. Only the first jobs of the best lanes are considered.
	OldestReadySince queue.Millis
}

// MaxQueues limits how many queues one user may create by enqueuing jobs. Queues with a rule, or without
// unfinished jobs, do not count.
const MaxQueues = 1000
