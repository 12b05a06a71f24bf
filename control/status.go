package control

import "context"

// StatusAPI returns overviews of the queue and of the service. The cost of a call does not depend
// on the number of jobs.
type StatusAPI interface {
	// Status returns totals and the state of the service.
	Status(ctx context.Context, p NoParams) (Status, error)
	// Screen returns the status and the first jobs of each section.
	Screen(ctx context.Context, p ScreenParams) (Screen, error)
}

// Status describes the state of the queue and of the service.
type Status struct {
	Jobs    map[string]int64 `json:"jobs"` // number of jobs by state, including zeros
	Workers WorkerSummary    `json:"workers"`
	// OldestReadySince is the time at which the longest-waiting runnable job was first runnable. It is null if
	// no job is runnable.
	OldestReadySince Time  `json:"oldest_waiting"`
	EnqueuedTotal    int64 `json:"enqueued"` // number of jobs that were ever enqueued
	// LastEventSeq is the number of the newest event whose effects are included in the other fields.
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
	// Node is the node of the service. It is "" unless several nodes share the queue.
	Node      string `json:"node,omitempty"`
	Version   string `json:"version"`
	StartedAt Time   `json:"started_at"`
	Draining  bool   `json:"draining"`
	// PausedAt is when the whole queue was paused, and PausedBy is the user who did it. Both are
	// null if it is not paused.
	PausedAt Time    `json:"paused_at"`
	PausedBy *string `json:"paused_by"`
	// Reranking is true while the priorities of waiting jobs are recomputed after a change of the
	// settings for the order.
	Reranking bool `json:"reranking"`
	// StoreError is the reason why the store cannot be read, "" if it can be read. While StoreError is set, the
	// other fields hold the last known values.
	StoreError string `json:"away,omitempty"`
	Health     string `json:"health"` // "ok", or "degraded" or "failing" followed by the reason
}

// Storage describes where the queue is stored, and how many bytes it uses. It is part of Status.
type Storage struct {
	StateDir      string `json:"database"`        // state directory of the service
	StoreLocation string `json:"store,omitempty"` // where the queue is stored, if not in StateDir
	DatabaseBytes int64  `json:"database_bytes"`
	OutputBytes   int64  `json:"output_bytes"` // size of all stored outputs
}

// QuotaUse describes how much of the setting max_bytes_per_user is used. It is part of Status.
type QuotaUse struct {
	// UserBytes is how many bytes the caller's jobs use, and MaxBytesPerUser how many they may use; 0
	// means unlimited.
	UserBytes       int64 `json:"user_bytes"`
	MaxBytesPerUser int64 `json:"max_bytes_per_user"`
	// NearQuota is for admins only. It lists the other users whose jobs use 90 % of
	// max_bytes_per_user or more, at most 20, the largest first.
	NearQuota []UserBytes `json:"users_near_quota,omitempty"`
}

// UserBytes holds how many bytes the jobs of one user use.
type UserBytes struct {
	UID   int    `json:"uid"`
	User  string `json:"user"` // name of the user
	Bytes int64  `json:"bytes"`
}

// WorkerSummary counts workers.
type WorkerSummary struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
	Idle  int `json:"idle"`
}

// ScreenParams sets the number of jobs in each section of the screen: 1 to 100; 0 means 10.
type ScreenParams struct {
	Rows int `json:"rows,omitempty" rule:"screenRows"`
}

// Screen is an overview of the queue: its status and the first jobs of each section. Commands and
// errors are truncated to 1 KiB. A job's labels are left out if they are longer than that in total.
type Screen struct {
	Status  Status      `json:"status"`
	Running []ScreenJob `json:"running"` // oldest first
	// Ready holds the jobs that wait only for a worker or a gate, in the order in which they start
	// if no gate is full.
	Ready         []Job       `json:"ready"`
	Delayed       []Job       `json:"timed"`  // jobs that wait for their start time, the earliest first
	HeldOrBlocked []Job       `json:"kept"`   // held and blocked jobs, the oldest first
	Dead          []ScreenJob `json:"dead"`   // the most recently ended first
	Paused        []QueueView `json:"paused"` // paused queues with waiting jobs, at most 100
	Done          []Job       `json:"done"`   // completed and cancelled jobs, the most recently ended first
}

// ScreenJob is a job with the last line of its output. For a dead job, LastLine is set only if the
// job failed with an exit code. It is the last line of standard error or, if standard error is
// empty, of standard output.
type ScreenJob struct {
	Job
	LastLine string `json:"last_line"`
}
