package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// QueueAPI lists queues and changes their settings.
type QueueAPI interface {
	// ListQueues lists the queues that have settings or unfinished jobs.
	ListQueues(ctx context.Context, p QueueListParams) (QueueList, error)
	// ConfigureQueue changes the settings of a queue, which may be new. It returns the queue after the change.
	ConfigureQueue(ctx context.Context, p ConfigureQueueParams) (QueueView, error)
	// PauseQueues prevents the jobs of a queue, or of all queues, from starting, even after a restart of the
	// service. The pause ends with ResumeQueues or at a time in the request.
	PauseQueues(ctx context.Context, p QueuePauseParams) (QueueList, error)
	// ResumeQueues ends the pause of a queue, or of all queues.
	ResumeQueues(ctx context.Context, p QueueResumeParams) (QueueList, error)
	// RemoveQueue deletes the settings of an empty queue.
	RemoveQueue(ctx context.Context, p QueueRemoveParams) (QueueList, error)
}

// QueueView describes a queue in an answer: its state and its settings.
type QueueView struct {
	Queue   string `json:"queue"`
	Running int    `json:"running"`
	Waiting int64  `json:"waiting"`
	// OldestReadySince says since when the longest-waiting runnable job could have started. It is null if no
	// job is runnable.
	OldestReadySince Time `json:"oldest_waiting"`
	// ThroughputPerMinute is the number of attempts of the queue's jobs that ended in the last minute. An attempt that
	// ended on another node than the one that answers counts only if the queue is one of the 32 busiest queues of that
	// other node.
	ThroughputPerMinute int `json:"throughput_per_minute"`
	// Concurrency is the maximum number of running jobs. 0 means unlimited.
	Concurrency int `json:"concurrency"`
	// Weight is the queue's share of job starts, in proportion to the weights of the other queues.
	Weight int `json:"weight"`
	// MaxWaitingJobs is the maximum number of waiting jobs. 0 means unlimited.
	MaxWaitingJobs int64 `json:"max_pending"`
	// JobDefaults holds values for job fields. They apply to jobs of the queue that do not set these fields.
	JobDefaults json.RawMessage `json:"defaults"`
	// Retention is how long completed and cancelled jobs are kept, RetentionMaxJobs the maximum number of them, and
	// RetentionOutputBytes the maximum bytes of their outputs. If one of them is null or 0, the setting of the service
	// applies instead.
	Retention            *RetentionAge `json:"retention"`
	RetentionMaxJobs     int64         `json:"retention_max_jobs"`
	RetentionOutputBytes int64         `json:"retention_output"`
	Paused               bool          `json:"paused"`
	PausedBy             *string       `json:"paused_by"`
	PausedAt             Time          `json:"paused_at"`
	PauseReason          *string       `json:"pause_reason"`
	PausedUntil          Time          `json:"paused_until"`
	RunningJobsFrozen    bool          `json:"frozen"` // the pause has also frozen the jobs that were running
}

// QueueList is a page of at most MaxQueuesPerPage queues, sorted by name. Next is the value of
// QueueListParams.AfterName for the next page; "" on the last page.
type QueueList struct {
	Queues []QueueView `json:"queues"`
	Next   string      `json:"next,omitempty"`
}

// QueueListParams requests the queues whose names sort after AfterName.
type QueueListParams struct {
	AfterName string `json:"after,omitempty" rule:"queue"`
}

// MaxQueuesPerPage is the maximum number of queues in an answer. MaxQueueDefaultsBytes is the maximum size
// of a queue's defaults, in bytes of JSON.
const (
	MaxQueuesPerPage      = 1000
	MaxQueueDefaultsBytes = 2 << 10
)

// ConfigureQueueParams holds the parameters of the method queue.set, which changes the settings of a queue. Fields that
// are nil stay unchanged. JobDefaults is an object of job fields; the value null removes the default of a field.
type ConfigureQueueParams struct {
	Name           string          `json:"name" rule:"queue,required"`
	Concurrency    *int            `json:"concurrency,omitempty" rule:"concurrency"`
	Weight         *int            `json:"weight,omitempty" rule:"weight"` // 1 to 1000
	MaxWaitingJobs *int64          `json:"max_pending,omitempty" rule:"jobCount"`
	JobDefaults    json.RawMessage `json:"default,omitempty" rule:"queueDefaults"`
	// Retention is how long completed and cancelled jobs are kept, RetentionMaxJobs the maximum number of them, and
	// RetentionOutputBytes the maximum bytes of their outputs. If one of them is "default" or 0, the setting of the
	// service applies instead.
	Retention            *RetentionAge `json:"retention,omitempty"`
	RetentionMaxJobs     *int64        `json:"retention_max_jobs,omitempty" rule:"jobCount"`
	RetentionOutputBytes *int64        `json:"retention_output,omitempty" rule:"bytes"`
}

// RetentionAge is how long jobs are kept. In JSON it is a duration (see Duration), "never" (they are never
// removed) or "default". In Go, a negative value means "never", and 0 means "default".
type RetentionAge time.Duration

// MarshalJSON implements json.Marshaler.
func (a RetentionAge) MarshalJSON() ([]byte, error) {
	switch {
	case a == 0:
		return []byte(`"default"`), nil
	case a < 0:
		return []byte(`"never"`), nil
	}
	return Duration(a).MarshalJSON()
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *RetentionAge) UnmarshalJSON(raw []byte) error {
	switch string(raw) {
	case `"default"`:
		*a = 0
		return nil
	case `"never"`:
		*a = -1
		return nil
	}
	err := (*Duration)(a).UnmarshalJSON(raw)
	if err == nil && time.Duration(*a) < time.Second {
		err = fmt.Errorf(`too short; use at least 1s, "never" or "default"`)
	}
	return err
}

// QueuePauseParams holds the parameters of the method queue.pause, which pauses one queue or all queues. No job of a
// paused queue starts before the queue is resumed. PauseUntil and PauseDuration end the pause automatically.
type QueuePauseParams struct {
	Name              string   `json:"name,omitempty" rule:"queue"`
	AllQueues         bool     `json:"all,omitempty"`
	Reason            string   `json:"reason,omitempty" rule:"reason"` // at most 256 bytes
	PauseUntil        Time     `json:"until,omitzero"`
	PauseDuration     Duration `json:"for,omitempty" rule:"positiveDuration"`
	FreezeRunningJobs bool     `json:"freeze,omitempty"` // also freeze running jobs; not with PauseUntil or PauseDuration
}

// QueueResumeParams holds the parameters of the method queue.resume: the name of one queue, or AllQueues.
type QueueResumeParams struct {
	Name      string `json:"name,omitempty" rule:"queue"`
	AllQueues bool   `json:"all,omitempty"`
}

// QueueRemoveParams holds the parameters of the method queue.rm, which removes the settings of a queue.
type QueueRemoveParams struct {
	Name string `json:"name" rule:"queue,required"`
}
