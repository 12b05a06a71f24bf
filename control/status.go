package control

import "context"

// StatusAPI returns overviews of the queue and of the service. The time that a call takes does not depend on
// the number of jobs.
type StatusAPI interface {
	// Status returns the numbers of jobs and the state of the service.
	Status(ctx context.Context, p NoParams) (Status, error)
	// ReadOverviewScreen returns the status and the first jobs of each section of an overview.
	ReadOverviewScreen(ctx context.Context, p OverviewScreenParams) (OverviewScreen, error)
}

// Status describes the state of the queue and of the service.
type Status struct {
	Jobs    map[string]int64 `json:"jobs"` // number of jobs by state, including zeros
	Workers WorkerSummary    `json:"workers"`
	// OldestReadySince says since when the longest-waiting runnable job could have started. It is null if no
	// job is runnable.
	OldestReadySince Time  `json:"oldest_waiting"`
	JobsEverEnqueued int64 `json:"enqueued"` // number of jobs ever enqueued
	// LastEventSeq is the number of the newest event that was stored when the service read the other fields.
	LastEventSeq int64 `json:"last_event"`
	// ThroughputPerMinute is the number of attempts that ended in the last minute, on all nodes together.
	ThroughputPerMinute int `json:"throughput_per_minute"`
	Storage
	QuotaUse
	SettingsFile string `json:"settings_file"`
	// ServiceKind is the kind of the service: own, system or directory. It is "" if no service runs.
	ServiceKind string `json:"service"`
	SocketPath  string `json:"socket"`
	PID         int    `json:"pid"`
	// Node is the name of the service's node. It is "" if only one node uses the queue.
	Node      string `json:"node,omitempty"`
	Version   string `json:"version"`
	StartedAt Time   `json:"started_at"`
	Draining  bool   `json:"draining"`
	// PausedAt is when a user paused all jobs, and PausedBy is the name of that user. Both are null if no user
	// has done so, or if the pause has ended.
	PausedAt Time    `json:"paused_at"`
	PausedBy *string `json:"paused_by"`
	// PausedQueues lists the names of the paused queues, sorted: at most the first MaxListedPausedQueues.
	PausedQueues []string `json:"paused_queues,omitempty"`
	// RerankingInProgress is true while the service recomputes the order of the waiting jobs, after a change of a setting
	// that affects the order.
	RerankingInProgress bool `json:"reranking"`
	// StoreError says why the service cannot read the store; "" if it can. If StoreError is set, the other fields contain
	// the last known values.
	StoreError string `json:"away,omitempty"`
	Health     string `json:"health"` // ok; or degraded or failing, followed by the reason
}

// MaxListedPausedQueues is the maximum number of paused queues that a status lists.
const MaxListedPausedQueues = 20

// Storage describes where the queue is stored, and how many bytes it uses. It is part of Status.
type Storage struct {
	StateDir      string `json:"database"`        // state directory of the service
	StoreLocation string `json:"store,omitempty"` // where the queue is stored; "" if it is in StateDir
	DatabaseBytes int64  `json:"database_bytes"`
	OutputBytes   int64  `json:"output_bytes"` // size of all stored outputs
}

// QuotaUse says how much of the setting max_bytes_per_user is used. It is part of Status.
type QuotaUse struct {
	// CallerStoredBytes is the number of bytes that the caller's jobs use. MaxBytesPerUser is the maximum for each
	// user; 0 means unlimited.
	CallerStoredBytes int64 `json:"user_bytes"`
	MaxBytesPerUser   int64 `json:"max_bytes_per_user"`
	// UsersNearQuota lists other users whose jobs use 90 % of max_bytes_per_user or more: at most 20 users, the
	// largest first. It is empty unless the caller is an admin.
	UsersNearQuota []UserBytes `json:"users_near_quota,omitempty"`
}

// UserBytes holds how many bytes the jobs of one user use.
type UserBytes struct {
	UID         int    `json:"uid"`
	User        string `json:"user"` // name of the user
	StoredBytes int64  `json:"bytes"`
}

// WorkerSummary counts the workers by state.
type WorkerSummary struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
	Idle  int `json:"idle"`
}

// OverviewScreenParams requests an OverviewScreen. JobsPerSection is the maximum number of jobs in each section, 1 to
// 100; 0 means 10.
type OverviewScreenParams struct {
	JobsPerSection int `json:"rows,omitempty" rule:"screenRows"`
}

// OverviewScreen is an overview of the queue: its status and the first jobs of each section. Commands and errors are
// truncated to 1 KiB. If the labels of a job are longer than 1 KiB in total, they are left out.
type OverviewScreen struct {
	Status  Status        `json:"status"`
	Running []OverviewJob `json:"running"` // oldest first
	// Ready holds the jobs that wait only for a free worker or for a limit, such as a lock. They are in the
	// order in which they would start if no limit delayed them.
	Ready         []Job         `json:"ready"`
	Delayed       []Job         `json:"timed"`  // jobs that wait for their start time, the earliest first
	HeldOrBlocked []Job         `json:"kept"`   // held and blocked jobs, the oldest first
	Dead          []OverviewJob `json:"dead"`   // the most recently ended first
	Paused        []QueueView   `json:"paused"` // paused queues with waiting jobs, at most 100
	Done          []Job         `json:"done"`   // completed and cancelled jobs, the latest first
}

// OverviewJob is a job with the last line of its output. For a dead job, LastLine is set only if the command ended with
// an exit code. In that case it is the last line of standard error or, if standard error is empty, of standard output.
type OverviewJob struct {
	Job
	LastLine string `json:"last_line"`
}
