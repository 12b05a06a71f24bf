package config

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// This file contains the table of settings. Its order is the order of the documentation. The descriptions of
// the settings are in descriptions.txt.

// keysOf returns the table of settings. Each row can read and write the value of its setting in s.
func keysOf(s *Settings) []Key { return slices.Concat(jobKeys(s), serviceKeys(s)) }

// jobKeys returns the settings for jobs, workers, limits and retention.
func jobKeys(s *Settings) []Key {
	return []Key{
		acceptWord(newKey("workers", "auto", &s.Workers, parseWorkers, strconv.Itoa), "auto", -1, &s.Workers),
		integerKey("max_retries", "3", 0, queue.MaxAttempts-1, &s.MaxRetries),
		durationKey("timeout", "0", 0, &s.Timeout),
		numberKey("backoff_base", "2", math.SmallestNonzeroFloat64, 1e9, &s.BackoffBase),
		choiceKey("backoff_strategy", "exponential", &s.BackoffStrategy, "exponential", "linear", "fixed"),
		durationKey("backoff_max", "1h", time.Millisecond, &s.BackoffMax),
		numberKey("jitter", "0", 0, 1, &s.BackoffJitter),
		durationKey("job_retry_delay", "60s", 0, &s.JobRetryDelay),

		durationKey("kill_after", "10s", 0, &s.KillAfter),
		durationKey("output_grace", "500ms", 0, &s.OutputGrace),
		sizeKey("output_limit", "1MiB", queue.MaxOutputLimit, &s.OutputLimit),
		textOrNoneKey("job_tmpdir", &s.JobTmpdir, checkAbsolutePath),

		integerKey("priority", "5", -queue.MaxPriority, queue.MaxPriority, &s.Priority),
		integerKey("priority_range", "10", 0, 2*queue.MaxPriority, &s.PriorityRange),
		textKey("shell", defaultShell, &s.Shell, checkShell),
		choiceKey("on_lost", "retry", &s.OnLost, "retry", "dead", "hold"),
		choiceKey("scheduling", "aging", &s.Scheduling, "aging", "priority", "fifo"),
		choiceKey("aging", "time", &s.Aging, "time", "enqueue"),
		durationKey("aging_interval", "60s", time.Millisecond, &s.AgingInterval),

		durationKey("worker_heartbeat_interval", "5s", time.Millisecond, &s.HeartbeatInterval),
		durationKey("worker_timeout", "15s", time.Millisecond, &s.WorkerTimeout),
		integerKey("max_pending", "0", 0, math.MaxInt32, &s.MaxPending),
		integerKey("max_pending_per_user", "0", 0, math.MaxInt32, &s.MaxPendingPerUser),
		acceptWord(sizeKey("max_bytes_per_user", "auto", maxOutputBytes, &s.MaxBytesPerUser), "auto", -1, &s.MaxBytesPerUser),
		integerKey("max_running_per_user", "0", 0, maxConcurrencyLimit, &s.MaxRunningPerUser),
		integerKey("max_connections", "1024", 16, maxConcurrencyLimit, &s.MaxConnections),
		integerKey("max_connections_per_user", "256", 1, maxConcurrencyLimit, &s.MaxConnectionsPerUser),
		durationKey("stop_timeout", "30s", 0, &s.StopTimeout),
		durationKey("settle_delay", "5ms", 0, &s.SettleDelay),

		durationOrNeverKey("retention_completed", "30d", &s.RetentionCompleted),
		durationOrNeverKey("retention_cancelled", "30d", &s.RetentionCancelled),
		durationOrNeverKey("retention_dead", "never", &s.RetentionDead),
		integerKey("retention_max_jobs", "1000000", 0, math.MaxInt32, &s.RetentionMaxJobs),
		durationOrNeverKey("retention_events", "7d", &s.RetentionEvents),
		sizeKey("retention_output", "10GiB", maxOutputBytes, &s.RetentionOutputBytes),
	}
}

// serviceKeys returns the settings for resources, webhooks, the log, accounts, the store, other nodes, hooks, rights,
// traces and the web page.
func serviceKeys(s *Settings) []Key {
	return []Key{
		textKey("resources", noneWord, &s.Resources, checkResources),
		parsedOrNoneKey("hooks_user", &s.HooksUser, parseAccountName),
		visibleToAdmins(textKey("webhooks", noneWord, &s.Webhooks, checkWebhooks)),
		choiceKey("log_level", "info", &s.LogLevel, "debug", "info", "warn", "error"),
		choiceKey("log_format", "auto", &s.LogFormat, "auto", "text", "json"),

		textKey("run_as", RunAsService, &s.RunAs, checkRunAs),
		textKey("socket_mode", "0600", &s.SocketMode, checkSocketMode),
		parsedOrNoneKey("socket_group", &s.SocketGroup, parseAccountName),
		visibleToAdmins(textKey("store", StoreSQLite, &s.Store, parseStore)),
		textOrNoneKey("store_file", &s.StoreFile, checkStoreFile),
		textOrNoneKey("store_roles", &s.StoreRoles, checkRoles),

		textOrNoneKey("node", &s.Node, checkNode),
		textOrNoneKey("node_labels", &s.NodeLabels, checkNodeLabels),
		durationKey("node_lease", "30s", 2*time.Second, &s.NodeLease),
		choiceKey("on_partition", "stop", &s.OnPartition, "stop", "continue"),

		hookKey("hooks.on_completed", &s.Hooks.OnCompleted),
		hookKey("hooks.on_failed", &s.Hooks.OnFailed),
		hookKey("hooks.on_dead", &s.Hooks.OnDead),
		hookKey("hooks.on_ended", &s.Hooks.OnEnded),

		accountNamesKey("access.read", noneWord, &s.AccessRead),
		accountNamesKey("access.submit", autoWord, &s.AccessSubmit),
		accountNamesKey("access.operate", noneWord, &s.AccessOperate),
		accountNamesKey("access.admin", autoWord, &s.AccessAdmin),

		textOrNoneKey("traces.endpoint", &s.TracesEndpoint, checkCollectorURL),

		textOrNoneKey("web.listen", &s.WebListen, checkListenAddress),
		choiceKey("web.anonymous", noneWord, &s.WebAnonymous, noneWord, "read"),
		choiceKey("web.metrics_anonymous", "false", &s.WebMetrics, "false", "true"),
		parsedOrNoneKey(webHostsKey, &s.WebHosts, parseWebHosts),
		textOrNoneKey("web.tls_cert", &s.WebTLSCert, checkAbsolutePath),
		textOrNoneKey("web.tls_key", &s.WebTLSKey, checkAbsolutePath),
		choiceKey("web.tls", noneWord, &s.WebTLS, noneWord, "proxy"),
	}
}

// settingsNeedingRestart lists the settings whose changes take effect only when the service restarts.
var settingsNeedingRestart = []string{"run_as", "socket_mode", "socket_group", "store", "store_file",
	"node", "node_lease",
	"job_tmpdir"}

// NeedsRestart reports whether a change of the setting takes effect only when the service restarts.
func (k *Key) NeedsRestart() bool { return slices.Contains(settingsNeedingRestart, k.Name) }

// KeepUntilRestart restores the old values of the settings that take effect only at a restart. PendingRestart
// then returns the new values, which take effect later. Origin returns the origin of the restored value.
func (c *Config) KeepUntilRestart(old *Config) {
	c.pendingSettings = nil
	oldKeys := keysOf(&old.Settings)
	for i, k := range keysOf(&c.Settings) {
		if !k.NeedsRestart() {
			continue
		}
		value, current := k.get(), oldKeys[i].get()
		if value != current {
			c.pendingSettings = append(c.pendingSettings, PendingSetting{k.Name, value, old.Origin(k.Name)})
		}
		if err := k.set(current); err != nil {
			panic("config: cannot restore " + k.Name + ": " + err.Error())
		}
	}
}

// perNodeSettings lists settings that differ between the nodes that share a queue, or that say where the queue
// is. Therefore they cannot be stored in the queue.
var perNodeSettings = []string{"store", "store_file", "node", "node_labels", "node_lease", "job_tmpdir"}

// IsPerNode reports whether the setting is one of perNodeSettings, which cannot be stored in the queue.
func (k *Key) IsPerNode() bool { return slices.Contains(perNodeSettings, k.Name) }
