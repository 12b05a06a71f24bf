package config

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// This file is the table of settings, in the order of the documentation. Their descriptions are in
// descriptions.txt.

func keys() []Key {
	return slices.Concat(retryKeys(), attemptKeys(), orderKeys(), serviceKeys(), retentionKeys(), reportKeys(),
		accountKeys(), nodeKeys(), hookKeys(), accessKeys(), tracesKeys(), webKeys())
}

// retryKeys returns the settings for the number of workers and the retries of failed attempts.
func retryKeys() []Key {
	workers := func(s *Settings) *int { return &s.Workers }
	return []Key{
		orWord(setting("workers", "auto", workers, parseWorkers, strconv.Itoa), "auto", -1, workers),
		integer("max_retries", "3", 0, queue.MaxAttempts-1, func(s *Settings) *int64 { return &s.MaxRetries }),
		duration("timeout", "0", 0, func(s *Settings) *time.Duration { return &s.Timeout }),
		number("backoff_base", "2", math.SmallestNonzeroFloat64, 1e9, func(s *Settings) *float64 { return &s.BackoffBase }),
		choice("backoff_strategy", "exponential", func(s *Settings) *string { return &s.BackoffStrategy },
			"exponential", "linear", "fixed"),
		duration("backoff_max", "1h", time.Millisecond, func(s *Settings) *time.Duration { return &s.BackoffMax }),
		number("jitter", "0", 0, 1, func(s *Settings) *float64 { return &s.Jitter }),
		duration("job_retry_delay", "60s", 0, func(s *Settings) *time.Duration { return &s.JobRetryDelay }),
	}
}

// attemptKeys returns the settings for the end and the files of an attempt.
func attemptKeys() []Key {
	return []Key{
		duration("kill_after", "10s", 0, func(s *Settings) *time.Duration { return &s.KillAfter }),
		duration("output_grace", "500ms", 0, func(s *Settings) *time.Duration { return &s.OutputGrace }),
		size("output_limit", "1MiB", queue.MaxOutput, func(s *Settings) *int64 { return &s.OutputLimit }),
		textOrNone("job_tmpdir", func(s *Settings) *string { return &s.JobTmpdir }, wholePath),
	}
}

// orderKeys returns the settings for the defaults of jobs and the order in which they run.
func orderKeys() []Key {
	return []Key{
		integer("priority", "5", -queue.MaxPriority, queue.MaxPriority, func(s *Settings) *int64 { return &s.Priority }),
		integer("priority_range", "10", 0, 2*queue.MaxPriority, func(s *Settings) *int64 { return &s.PriorityRange }),
		text("shell", shell, func(s *Settings) *string { return &s.Shell }, checkShell),
		choice("on_lost", "retry", func(s *Settings) *string { return &s.OnLost }, "retry", "dead", "hold"),
		choice("scheduling", "aging", func(s *Settings) *string { return &s.Scheduling }, "aging", "priority", "fifo"),
		choice("aging", "time", func(s *Settings) *string { return &s.Aging }, "time", "enqueue"),
		duration("aging_interval", "60s", time.Millisecond, func(s *Settings) *time.Duration { return &s.AgingInterval }),
	}
}

// serviceKeys returns the settings for the heartbeats of workers, the bounds of the service and its stop.
func serviceKeys() []Key {
	maxBytes := func(s *Settings) *int64 { return &s.MaxBytesUser }
	return []Key{
		duration("worker_heartbeat_interval", "5s", time.Millisecond,
			func(s *Settings) *time.Duration { return &s.HeartbeatInterval }),
		duration("worker_timeout", "15s", time.Millisecond, func(s *Settings) *time.Duration { return &s.WorkerTimeout }),
		integer("max_pending", "0", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPending }),
		integer("max_pending_per_user", "0", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPendingUser }),
		orWord(size("max_bytes_per_user", "auto", maxKept, maxBytes), "auto", -1, maxBytes),
		integer("max_running_per_user", "0", 0, maxCount, func(s *Settings) *int { return &s.MaxRunningUser }),
		integer("max_connections", "1024", 16, maxCount, func(s *Settings) *int { return &s.MaxConnections }),
		integer("max_connections_per_user", "256", 1, maxCount, func(s *Settings) *int { return &s.MaxConnectionsUser }),
		duration("stop_timeout", "30s", 0, func(s *Settings) *time.Duration { return &s.StopTimeout }),
		duration("settle_delay", "5ms", 0, func(s *Settings) *time.Duration { return &s.SettleDelay }),
	}
}

// retentionKeys returns the settings for the time for which data is kept.
func retentionKeys() []Key {
	return []Key{
		forever("retention_completed", "30d", func(s *Settings) *time.Duration { return &s.RetentionCompleted }),
		forever("retention_cancelled", "30d", func(s *Settings) *time.Duration { return &s.RetentionCancelled }),
		forever("retention_dead", "never", func(s *Settings) *time.Duration { return &s.RetentionDead }),
		integer("retention_max_jobs", "1000000", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.RetentionMaxJobs }),
		forever("retention_events", "7d", func(s *Settings) *time.Duration { return &s.RetentionEvents }),
		size("retention_output", "10GiB", maxKept, func(s *Settings) *int64 { return &s.RetentionOutput }),
	}
}

// reportKeys returns the settings for resources, webhooks and the log.
func reportKeys() []Key {
	return []Key{
		text("resources", none, func(s *Settings) *string { return &s.Resources }, checkResources),
		text("hooks_user", none, func(s *Settings) *string { return &s.HooksUser }, accountName),
		secret(text("webhooks", none, func(s *Settings) *string { return &s.Webhooks }, checkWebhooks)),
		choice("log_level", "info", func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		choice("log_format", "auto", func(s *Settings) *string { return &s.LogFormat }, "auto", "text", "json"),
	}
}

// accountKeys returns the settings for accounts, the control socket and the store.
func accountKeys() []Key {
	return []Key{
		text("run_as", RunAsService, func(s *Settings) *string { return &s.RunAs }, checkRunAs),
		text("socket_mode", "0600", func(s *Settings) *string { return &s.SocketMode }, checkSocketMode),
		text("socket_group", none, func(s *Settings) *string { return &s.SocketGroup }, accountName),
		secret(text("store", StoreSQLite, func(s *Settings) *string { return &s.Store }, parseStore)),
		textOrNone("store_file", func(s *Settings) *string { return &s.StoreFile }, checkStoreFile),
		textOrNone("store_roles", func(s *Settings) *string { return &s.StoreRoles }, checkRoles),
	}
}

// nodeKeys returns the settings of a node that shares the queue with other nodes.
func nodeKeys() []Key {
	return []Key{
		textOrNone("node", func(s *Settings) *string { return &s.Node }, checkNode),
		textOrNone("node_labels", func(s *Settings) *string { return &s.NodeLabels }, checkNodeLabels),
		duration("node_lease", "30s", 2*time.Second, func(s *Settings) *time.Duration { return &s.NodeLease }),
		choice("on_partition", "stop", func(s *Settings) *string { return &s.OnPartition }, "stop", "continue"),
	}
}

// hookKeys returns the settings for the commands that run when an attempt has ended.
func hookKeys() []Key {
	return []Key{
		hookKey("hooks.on_completed", func(s *Settings) *string { return &s.Hooks.OnCompleted }),
		hookKey("hooks.on_failed", func(s *Settings) *string { return &s.Hooks.OnFailed }),
		hookKey("hooks.on_dead", func(s *Settings) *string { return &s.Hooks.OnDead }),
		hookKey("hooks.on_ended", func(s *Settings) *string { return &s.Hooks.OnEnded }),
	}
}

// accessKeys returns the settings for the rights of users.
func accessKeys() []Key {
	return []Key{
		names("access.read", none, func(s *Settings) *string { return &s.AccessRead }),
		names("access.submit", auto, func(s *Settings) *string { return &s.AccessSubmit }),
		names("access.operate", none, func(s *Settings) *string { return &s.AccessOperate }),
		names("access.admin", auto, func(s *Settings) *string { return &s.AccessAdmin }),
	}
}

// tracesKeys returns the settings for the export of traces.
func tracesKeys() []Key {
	return []Key{textOrNone("traces.endpoint", func(s *Settings) *string { return &s.TracesEndpoint }, collectorURL)}
}

// webKeys returns the settings of the web page.
func webKeys() []Key {
	return []Key{
		textOrNone("web.listen", func(s *Settings) *string { return &s.WebListen }, whereToListen),
		choice("web.anonymous", none, func(s *Settings) *string { return &s.WebAnonymous }, none, "read"),
		choice("web.metrics_anonymous", "false", func(s *Settings) *string { return &s.WebMetrics }, "false", "true"),
		text(webHosts, none, func(s *Settings) *string { return &s.WebHosts }, parseWebHosts),
		textOrNone("web.tls_cert", func(s *Settings) *string { return &s.WebTLSCert }, wholePath),
		textOrNone("web.tls_key", func(s *Settings) *string { return &s.WebTLSKey }, wholePath),
		choice("web.tls", none, func(s *Settings) *string { return &s.WebTLS }, none, "proxy"),
	}
}
