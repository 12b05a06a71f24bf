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

// settingsBoundTo returns the table of settings. Each row can read and write the value of its setting in s.
func settingsBoundTo(s *Settings) []Setting { return slices.Concat(jobSettings(s), serviceSettings(s)) }

// jobSettings returns the settings for jobs, workers, limits and retention.
func jobSettings(s *Settings) []Setting {
	return []Setting{
		withAdditionalWord(newSetting("workers", "auto", &s.Workers, parseWorkers, strconv.Itoa), "auto", -1, &s.Workers),
		integerSetting("max_retries", "3", 0, queue.MaxAttempts-1, &s.MaxRetries),
		durationSetting("timeout", "0", 0, &s.JobTimeout),
		floatSetting("backoff_base", "2", math.SmallestNonzeroFloat64, 1e9, &s.BackoffBase),
		choiceSetting("backoff_strategy", "exponential", &s.BackoffStrategy, "exponential", "linear", "fixed"),
		durationSetting("backoff_max", "1h", time.Millisecond, &s.BackoffMax),
		floatSetting("jitter", "0", 0, 1, &s.BackoffJitter),
		durationSetting("job_retry_delay", "60s", 0, &s.JobRetryDelay),

		durationSetting("kill_after", "10s", 0, &s.KillAfter),
		durationSetting("output_grace", "500ms", 0, &s.OutputGrace),
		byteSizeSetting("output_limit", "1MiB", queue.MaxOutputLimitBytes, &s.OutputLimitBytes),
		textOrNoneSetting("job_tmpdir", &s.JobTmpdir, checkAbsolutePath),

		integerSetting("priority", "5", -queue.MaxPriority, queue.MaxPriority, &s.DefaultPriority),
		integerSetting("priority_range", "10", 0, 2*queue.MaxPriority, &s.SubmitterPriorityRange),
		textSetting("shell", defaultShell, &s.Shell, checkShell),
		choiceSetting("on_lost", "retry", &s.OnLost, "retry", "dead", "hold"),
		choiceSetting("scheduling", "aging", &s.SchedulingOrder, "aging", "priority", "fifo"),
		choiceSetting("aging", "time", &s.AgingBasis, "time", "enqueue"),
		durationSetting("aging_interval", "60s", time.Millisecond, &s.AgingInterval),

		durationSetting("worker_heartbeat_interval", "5s", time.Millisecond, &s.HeartbeatInterval),
		durationSetting("worker_timeout", "15s", time.Millisecond, &s.WorkerTimeout),
		integerSetting("max_pending", "0", 0, math.MaxInt32, &s.MaxPending),
		integerSetting("max_pending_per_user", "0", 0, math.MaxInt32, &s.MaxPendingPerUser),
		withAdditionalWord(byteSizeSetting("max_bytes_per_user", "auto", highestByteLimit, &s.MaxBytesPerUser), "auto", -1,
			&s.MaxBytesPerUser),
		integerSetting("max_running_per_user", "0", 0, highestConcurrencyLimit, &s.MaxRunningPerUser),
		integerSetting("max_connections", "1024", 16, highestConcurrencyLimit, &s.MaxConnections),
		integerSetting("max_connections_per_user", "256", 1, highestConcurrencyLimit, &s.MaxConnectionsPerUser),
		durationSetting("stop_timeout", "30s", 0, &s.StopTimeout),
		durationSetting("settle_delay", "5ms", 0, &s.SettleCommitDelay),

		durationOrNeverSetting("retention_completed", "30d", &s.RetentionCompleted),
		durationOrNeverSetting("retention_cancelled", "30d", &s.RetentionCancelled),
		durationOrNeverSetting("retention_dead", "never", &s.RetentionDead),
		integerSetting("retention_max_jobs", "1000000", 0, math.MaxInt32, &s.RetentionMaxJobs),
		durationOrNeverSetting("retention_events", "7d", &s.RetentionEvents),
		byteSizeSetting("retention_output", "10GiB", highestByteLimit, &s.RetentionOutputBytes),
	}
}

// serviceSettings returns the settings for resources, webhooks, the log, accounts, the store, other nodes, hooks,
// rights, traces and the web page.
func serviceSettings(s *Settings) []Setting {
	return []Setting{
		textSetting("resources", noneWord, &s.Resources, checkResources),
		parsedOrNoneSetting("hooks_user", &s.HooksUser, parseAccountName),
		visibleOnlyToAdmins(textSetting("webhooks", noneWord, &s.Webhooks, checkWebhooks)),
		choiceSetting("log_level", "info", &s.LogLevel, "debug", "info", "warn", "error"),
		choiceSetting("log_format", "auto", &s.LogFormat, "auto", "text", "json"),

		textSetting("run_as", RunAsService, &s.RunAs, checkRunAs),
		textSetting("socket_mode", "0600", &s.SocketMode, checkSocketMode),
		parsedOrNoneSetting("socket_group", &s.SocketGroup, parseAccountName),
		visibleOnlyToAdmins(textSetting("store", StoreSQLite, &s.Store, parseStoreSetting)),
		textOrNoneSetting("store_file", &s.StoreFile, checkStoreFileSetting),
		textOrNoneSetting("store_roles", &s.StoreRoleUsers, checkStoreRoles),

		textOrNoneSetting("node", &s.NodeName, checkNodeName),
		textOrNoneSetting("node_labels", &s.NodeLabels, checkNodeLabels),
		durationSetting("node_lease", "30s", 2*time.Second, &s.NodeLease),
		choiceSetting("on_partition", "stop", &s.OnPartition, "stop", "continue"),

		hookSetting("hooks.on_completed", &s.Hooks.OnCompleted),
		hookSetting("hooks.on_failed", &s.Hooks.OnFailed),
		hookSetting("hooks.on_dead", &s.Hooks.OnDead),
		hookSetting("hooks.on_ended", &s.Hooks.OnEnded),

		accountListSetting("access.read", noneWord, &s.AccountsWithRead),
		accountListSetting("access.submit", autoWord, &s.AccountsWithSubmit),
		accountListSetting("access.operate", noneWord, &s.AccountsWithOperate),
		accountListSetting("access.admin", autoWord, &s.AccountsWithAdmin),

		textOrNoneSetting("traces.endpoint", &s.TracesEndpoint, checkCollectorURL),

		textOrNoneSetting("web.listen", &s.WebListen, checkListenAddress),
		choiceSetting("web.anonymous", noneWord, &s.AnonymousWebRight, noneWord, "read"),
		choiceSetting("web.metrics_anonymous", "false", &s.AnonymousWebMetrics, "false", "true"),
		parsedOrNoneSetting(webHostsSettingName, &s.WebHosts, parseWebHosts),
		textOrNoneSetting("web.tls_cert", &s.WebTLSCert, checkAbsolutePath),
		textOrNoneSetting("web.tls_key", &s.WebTLSKey, checkAbsolutePath),
		choiceSetting("web.tls", noneWord, &s.WebTLSMode, noneWord, "proxy"),
	}
}

// settingsNeedingRestart lists the settings whose changes take effect only when the service restarts.
var settingsNeedingRestart = []string{"run_as", "socket_mode", "socket_group", "store", "store_file",
	"node", "node_lease",
	"job_tmpdir"}

// NeedsRestart reports whether a change of the setting takes effect only when the service restarts.
func (k *Setting) NeedsRestart() bool { return slices.Contains(settingsNeedingRestart, k.Name) }

// KeepRestartOnlySettings restores the values from runningConfig for the settings that take effect only at a restart.
// Afterwards, SettingsPendingRestart returns the new values of these settings, and OriginInEffect returns the origins
// of the restored values.
func (c *Config) KeepRestartOnlySettings(runningConfig *Config) {
	c.pendingSettings = nil
	oldKeys := settingsBoundTo(&runningConfig.Settings)
	for i, k := range settingsBoundTo(&c.Settings) {
		if !k.NeedsRestart() {
			continue
		}
		value, current := k.getAsText(), oldKeys[i].getAsText()
		if value != current {
			c.pendingSettings = append(c.pendingSettings, PendingSetting{k.Name, value, runningConfig.OriginInEffect(k.Name)})
		}
		if err := k.setFromText(current); err != nil {
			panic("config: cannot restore " + k.Name + ": " + err.Error())
		}
	}
}

// perNodeSettings lists the settings that cannot be stored in the queue. They differ between the nodes that share the
// queue, or they say where the queue is.
var perNodeSettings = []string{"store", "store_file", "node", "node_labels", "node_lease", "job_tmpdir"}

// IsPerNode reports whether the setting is one of perNodeSettings, which cannot be stored in the queue.
func (k *Setting) IsPerNode() bool { return slices.Contains(perNodeSettings, k.Name) }
