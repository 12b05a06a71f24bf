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
		integerKey("max_retries", "3", 0, queue.MaxAttempts-1, func(s *Settings) *int64 { return &s.MaxRetries }),
		durationKey("timeout", "0", 0, func(s *Settings) *time.Duration { return &s.Timeout }),
		numberKey("backoff_base", "2", math.SmallestNonzeroFloat64, 1e9,
			func(s *Settings) *float64 { return &s.BackoffBase }),
		choiceKey("backoff_strategy", "exponential", func(s *Settings) *string { return &s.BackoffStrategy },
			"exponential", "linear", "fixed"),
		durationKey("backoff_max", "1h", time.Millisecond, func(s *Settings) *time.Duration { return &s.BackoffMax }),
		numberKey("jitter", "0", 0, 1, func(s *Settings) *float64 { return &s.BackoffJitter }),
		durationKey("job_retry_delay", "60s", 0, func(s *Settings) *time.Duration { return &s.JobRetryDelay }),
	}
}

// attemptKeys returns the settings for the end and the files of an attempt.
func attemptKeys() []Key {
	return []Key{
		durationKey("kill_after", "10s", 0, func(s *Settings) *time.Duration { return &s.KillAfter }),
		durationKey("output_grace", "500ms", 0, func(s *Settings) *time.Duration { return &s.OutputGrace }),
		sizeKey("output_limit", "1MiB", queue.MaxOutputLimit, func(s *Settings) *int64 { return &s.OutputLimit }),
		textOrNoneKey("job_tmpdir", func(s *Settings) *string { return &s.JobTmpdir }, checkAbsolutePath),
	}
}

// orderKeys returns the settings for the defaults of jobs and the order in which they run.
func orderKeys() []Key {
	return []Key{
		integerKey("priority", "5", -queue.MaxPriority, queue.MaxPriority, func(s *Settings) *int64 { return &s.Priority }),
		integerKey("priority_range", "10", 0, 2*queue.MaxPriority, func(s *Settings) *int64 { return &s.PriorityRange }),
		text("shell", defaultShell, func(s *Settings) *string { return &s.Shell }, checkShell),
		choiceKey("on_lost", "retry", func(s *Settings) *string { return &s.OnLost }, "retry", "dead", "hold"),
		choiceKey("scheduling", "aging", func(s *Settings) *string { return &s.Scheduling }, "aging", "priority", "fifo"),
		choiceKey("aging", "time", func(s *Settings) *string { return &s.Aging }, "time", "enqueue"),
		durationKey("aging_interval", "60s", time.Millisecond, func(s *Settings) *time.Duration { return &s.AgingInterval }),
	}
}

// serviceKeys returns the settings for the heartbeats of workers, the bounds of the service and its stop.
func serviceKeys() []Key {
	maxBytes := func(s *Settings) *int64 { return &s.MaxBytesPerUser }
	return []Key{
		durationKey("worker_heartbeat_interval", "5s", time.Millisecond,
			func(s *Settings) *time.Duration { return &s.HeartbeatInterval }),
		durationKey("worker_timeout", "15s", time.Millisecond, func(s *Settings) *time.Duration { return &s.WorkerTimeout }),
		integerKey("max_pending", "0", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPending }),
		integerKey("max_pending_per_user", "0", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPendingPerUser }),
		orWord(sizeKey("max_bytes_per_user", "auto", maxOutputBytes, maxBytes), "auto", -1, maxBytes),
		integerKey("max_running_per_user", "0", 0, maxCount, func(s *Settings) *int { return &s.MaxRunningPerUser }),
		integerKey("max_connections", "1024", 16, maxCount, func(s *Settings) *int { return &s.MaxConnections }),
		integerKey("max_connections_per_user", "256", 1, maxCount,
			func(s *Settings) *int { return &s.MaxConnectionsPerUser }),
		durationKey("stop_timeout", "30s", 0, func(s *Settings) *time.Duration { return &s.StopTimeout }),
		durationKey("settle_delay", "5ms", 0, func(s *Settings) *time.Duration { return &s.SettleDelay }),
	}
}

// retentionKeys returns the settings for the time for which data is kept.
func retentionKeys() []Key {
	return []Key{
		durationOrNeverKey("retention_completed", "30d", func(s *Settings) *time.Duration { return &s.RetentionCompleted }),
		durationOrNeverKey("retention_cancelled", "30d", func(s *Settings) *time.Duration { return &s.RetentionCancelled }),
		durationOrNeverKey("retention_dead", "never", func(s *Settings) *time.Duration { return &s.RetentionDead }),
		integerKey("retention_max_jobs", "1000000", 0, math.MaxInt32,
			func(s *Settings) *int64 { return &s.RetentionMaxJobs }),
		durationOrNeverKey("retention_events", "7d", func(s *Settings) *time.Duration { return &s.RetentionEvents }),
		sizeKey("retention_output", "10GiB", maxOutputBytes, func(s *Settings) *int64 { return &s.RetentionOutputBytes }),
	}
}

// reportKeys returns the settings for resources, webhooks and the log.
func reportKeys() []Key {
	return []Key{
		text("resources", noneWord, func(s *Settings) *string { return &s.Resources }, checkResources),
		text("hooks_user", noneWord, func(s *Settings) *string { return &s.HooksUser }, accountName),
		secret(text("webhooks", noneWord, func(s *Settings) *string { return &s.Webhooks }, checkWebhooks)),
		choiceKey("log_level", "info", func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		choiceKey("log_format", "auto", func(s *Settings) *string { return &s.LogFormat }, "auto", "text", "json"),
	}
}

// accountKeys returns the settings for accounts, the control socket and the store.
func accountKeys() []Key {
	return []Key{
		text("run_as", RunAsService, func(s *Settings) *string { return &s.RunAs }, checkRunAs),
		text("socket_mode", "0600", func(s *Settings) *string { return &s.SocketMode }, checkSocketMode),
		text("socket_group", noneWord, func(s *Settings) *string { return &s.SocketGroup }, accountName),
		secret(text("store", StoreSQLite, func(s *Settings) *string { return &s.Store }, parseStore)),
		textOrNoneKey("store_file", func(s *Settings) *string { return &s.StoreFile }, checkStoreFile),
		textOrNoneKey("store_roles", func(s *Settings) *string { return &s.StoreRoles }, checkRoles),
	}
}

// nodeKeys returns the settings of a node that shares the queue with other nodes.
func nodeKeys() []Key {
	return []Key{
		textOrNoneKey("node", func(s *Settings) *string { return &s.Node }, checkNode),
		textOrNoneKey("node_labels", func(s *Settings) *string { return &s.NodeLabels }, checkNodeLabels),
		durationKey("node_lease", "30s", 2*time.Second, func(s *Settings) *time.Duration { return &s.NodeLease }),
		choiceKey("on_partition", "stop", func(s *Settings) *string { return &s.OnPartition }, "stop", "continue"),
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
		namesKey("access.read", noneWord, func(s *Settings) *string { return &s.AccessRead }),
		namesKey("access.submit", autoWord, func(s *Settings) *string { return &s.AccessSubmit }),
		namesKey("access.operate", noneWord, func(s *Settings) *string { return &s.AccessOperate }),
		namesKey("access.admin", autoWord, func(s *Settings) *string { return &s.AccessAdmin }),
	}
}

// tracesKeys returns the settings for the export of traces.
func tracesKeys() []Key {
	return []Key{textOrNoneKey("traces.endpoint", func(s *Settings) *string { return &s.TracesEndpoint },
		checkCollectorURL)}
}

// webKeys returns the settings of the web page.
func webKeys() []Key {
	return []Key{
		textOrNoneKey("web.listen", func(s *Settings) *string { return &s.WebListen }, checkListenAddress),
		choiceKey("web.anonymous", noneWord, func(s *Settings) *string { return &s.WebAnonymous }, noneWord, "read"),
		choiceKey("web.metrics_anonymous", "false", func(s *Settings) *string { return &s.WebMetrics }, "false", "true"),
		text(webHosts, noneWord, func(s *Settings) *string { return &s.WebHosts }, parseWebHosts),
		textOrNoneKey("web.tls_cert", func(s *Settings) *string { return &s.WebTLSCert }, checkAbsolutePath),
		textOrNoneKey("web.tls_key", func(s *Settings) *string { return &s.WebTLSKey }, checkAbsolutePath),
		choiceKey("web.tls", noneWord, func(s *Settings) *string { return &s.WebTLS }, noneWord, "proxy"),
	}
}
