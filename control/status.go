package control

import "context"

// StatusAPI returns overviews of the queue and of the service. The time for a call does not depend on the
// number of jobs.
type StatusAPI interface {
	// Status returns the numbers of jobs and the state of the service.
	Status(ctx context.Context, p NoParams) (Status, error)
	// Screen returns the status and the first jobs of each section of an overview.
	Screen(ctx context.Context, p ScreenParams) (Screen, error)
}

// Status describes the state of the queue and of the service.
type Status struct {
	Jobs    map[string]int64 `json:"jobs"` // number of jobs by state, including zeros
	Workers WorkerSummary    `json:"workers"`
	// OldestReadySince says since when the longest-waiting runnable job has been runnable. It is null if no job
	// is runnable.
	OldestReadySince Time  `json:"oldest_waiting"`
	EnqueuedTotal    int64 `json:"enqueued"` // number of jobs ever enqueued
	// LastEventSeq is the number of the newest event whose effects the other fields include.
	LastEventSeq int64 `json:"last_event"`
	// ThroughputPerMinute is the number of attempts that ended in the last minute on all nodes.
	ThroughputPerMinute int `json:"throughput_per_minute"`
	Storage
	QuotaUse
	SettingsFile string `json:"settings_file"`
	// Service is the kind of the service: own, system or directory. It is "" if no service runs.
	Service string `json:"service"`
	Socket  string `json:"socket"`
	PID     int    `json:"pid"`
	// Node is the name of the service's node. It is "" if only one node uses the queue.
	Node      string `json:"node,omitempty"`
	Version   string `json:"version"`
	StartedAt Time   `json:"started_at"`
	Draining  bool   `json:"draining"`
	// PausedAt is when all jobs were paused, and PausedBy is the user who paused them. Both are null if they
	// are not paused.
	PausedAt Time    `json:"paused_at"`
	PausedBy *string `json:"paused_by"`
	// Reranking is true while the order of waiting jobs is recomputed after a change of settings that affect
	// it.
	Reranking bool `json:"reranking"`
	// StoreError says why the store cannot be read; "" if it can be read. With a StoreError, the other fields
	// hold the last known values.
	StoreError string `json:"away,omitempty"`
	Health     string `json:"health"` // "ok", or "degraded" or "failing" followed by the reason
}

// Storage describes where the queue is stored, and how many bytes it uses. It is part of Status.
type Storage struct {
	StateDir      string `json:"database"`        // state directory of the service
	StoreLocation string `json:"store,omitempty"` // where the queue is stored, if it is not in StateDir
	DatabaseBytes int64  `json:"database_bytes"`
	OutputBytes   int64  `json:"output_bytes"` // size of all stored outputs
}

// QuotaUse says how many of the bytes that max_bytes_per_user allows are used. It is part of Status.
type QuotaUse struct {
	// UserBytes is the number of bytes that the caller's jobs use. MaxBytesPerUser is the maximum; 0 means
	// unlimited.
	UserBytes       int64 `json:"user_bytes"`
	MaxBytesPerUser int64 `json:"max_bytes_per_user"`
	// NearQuota lists other users whose jobs use 90 % of max_bytes_per_user or more: at most 20, the largest
	// first. Only admins get it.
	NearQuota []UserBytes `json:"users_near_quota,omitempty"`
}

// UserBytes holds how many bytes the jobs of one user use.
type UserBytes struct {
	UID   int    `json:"uid"`
	User  string `json:"user"` // name of the user
	Bytes int64  `json:"bytes"`
}

// WorkerSummary counts the workers by state.
type WorkerSummary struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
	Idle  int `json:"idle"`
}

// ScreenParams sets the maximum number of jobs in each section of a Screen: 1 to 100; 0 means 10.
type ScreenParams struct {
	Rows int `json:"rows,omitempty" rule:"screenRows"`
}

// Screen is an overview of the queue: its status and the first jobs of each section. Commands and
// errors are truncated to 1 KiB. A job's labels are left out if they are longer than that in total.
type Screen struct {
	Status  Status      `json:"status"`
	Running []ScreenJob `json:"running"` // oldest first
	// Ready holds the jobs that wait only for a free worker or at a gate, such as a lock. They are in the order
	// in which they start if no gate is full.
	Ready         []Job       `json:"ready"`
	Delayed       []Job       `json:"timed"`  // jobs that wait for their start time, the earliest first
	HeldOrBlocked []Job       `json:"kept"`   // held and blocked jobs, the oldest first
	Dead          []ScreenJob `json:"dead"`   // the most recently ended first
	Paused        []QueueView `json:"paused"` // paused queues with waiting jobs, at most 100
	Done          []Job       `json:"done"`   // completed and cancelled jobs, the latest first
}

// ScreenJob is a job with the last line of its output. For a dead job, LastLine is set only if the job failed
// with an exit code. It is then the last line of standard error or, if that is empty, of standard output.
type ScreenJob struct {
	Job
	LastLine string `json:"last_line"`
}
