package config

import (
	"math"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// This file is the table of settings, in the order of the documentation.

func keys() []Key {
	return slices.Concat(retryKeys(), attemptKeys(), orderKeys(), serviceKeys(), retentionKeys(), reportKeys(),
		accountKeys(), nodeKeys(), hookKeys(), accessKeys(), tracesKeys(), webKeys())
}

// retryKeys returns the settings for the number of workers and the retries of failed attempts.
func retryKeys() []Key {
	return []Key{
		{"workers", "auto", "number of jobs that run at the same time; auto means one per CPU, 0 means none", false,
			setWorkers, getWorkers, nil},
		integer("max_retries", "3", "how many times a failed job is retried after its first attempt; 0 means never; "+
			"default_max_tries also counts the first attempt", 0,
			queue.MaxAttempts-1, func(s *Settings) *int64 { return &s.MaxRetries }),
		duration("timeout", "0", "how long an attempt of a job may run before it is ended and counts as "+
			"failed; 0 means no limit", 0, func(s *Settings) *time.Duration { return &s.Timeout }),
		number("backoff_base", "2", "base of the formula for the wait before a retry, in seconds; see the "+
			"setting backoff_strategy", math.SmallestNonzeroFloat64, 1e9, func(s *Settings) *float64 { return &s.BackoffBase }),
		choice("backoff_strategy", "exponential", "how to compute the wait before retry number n: exponential "+
			"(backoff_base^n seconds), linear (backoff_base*n seconds) or fixed (the setting job_retry_delay)",
			func(s *Settings) *string { return &s.BackoffStrategy }, "exponential", "linear", "fixed"),
		duration("backoff_max", "1h", "longest wait before a retry", time.Millisecond,
			func(s *Settings) *time.Duration { return &s.BackoffMax }),
		number("jitter", "0", "random variation of the wait before a retry: 0 means none, 0.2 means up to "+
			"20% shorter or longer", 0, 1, func(s *Settings) *float64 { return &s.Jitter }),
		duration("job_retry_delay", "60s", "wait before a retry if the setting backoff_strategy is fixed, and after an "+
			"exit code listed in the job's field defer_codes", 0, func(s *Settings) *time.Duration { return &s.JobRetryDelay }),
	}
}

// attemptKeys returns the settings for the end and the files of an attempt.
func attemptKeys() []Key {
	return []Key{
		duration("kill_after", "10s", "time between SIGTERM and SIGKILL when a job is ended; 0 sends SIGKILL immediately", 0,
			func(s *Settings) *time.Duration { return &s.KillAfter }),
		duration("output_grace", "500ms", "how long the remaining processes of a job may run after its "+
			"main process has ended", 0, func(s *Settings) *time.Duration { return &s.OutputGrace }),
		size("output_limit", "1MiB", "bytes of output to keep for each attempt, separately for stdout and stderr: half "+
			"from the start, half from the end; 0 keeps no output", queue.MaxOutput,
			func(s *Settings) *int64 { return &s.OutputLimit }),
		textOrNone("job_tmpdir", "absolute path of the directory in which each job gets its private directory (the job "+
			"finds the path in QUEUECTL_TMPDIR); only the service's account may have write access to it; none means "+
			"runner/jobs in the state directory; "+
			"runners that run as root use the setting job_tmpdir in runner.conf instead; "+fileOnlyNote+"; "+nextStartNote,
			func(s *Settings) *string { return &s.JobTmpdir }, wholePath),
	}
}

// orderKeys returns the settings for the defaults of jobs and the order in which they run.
func orderKeys() []Key {
	return []Key{
		integer("priority", "5", "priority of jobs that set none; jobs with a higher priority run first", -queue.MaxPriority,
			queue.MaxPriority, func(s *Settings) *int64 { return &s.Priority }),
		integer("priority_range", "10", "how far a user may set the priority of a job above or below the default "+
			"of the job's queue; "+
			"users with the right \"operate\" may set any priority", 0, 2*queue.MaxPriority,
			func(s *Settings) *int64 { return &s.PriorityRange }),
		{"shell", shell, "shell that runs the commands of jobs; the default is cmd.exe /C on Windows, otherwise /bin/sh -c",
			false, setShell, func(s *Settings) string { return s.Shell }, nil},
		choice("on_lost", "retry", "what to do with a running job after a crash of its runner or machine: "+
			"retry, dead or hold", func(s *Settings) *string { return &s.OnLost }, "retry", "dead", "hold"),
		choice("scheduling", "aging", "order of waiting jobs: priority, aging (priority that grows while a job waits) or "+
			"fifo (first in, first out)", func(s *Settings) *string { return &s.Scheduling }, "aging", "priority", "fifo"),
		choice("aging", "time", "when a waiting job gains a point of priority: time (once per interval of the setting "+
			"aging_interval) or enqueue (whenever another job is enqueued)", func(s *Settings) *string { return &s.Aging },
			"time", "enqueue"),
		duration("aging_interval", "60s", "waiting time that is worth one point of priority", time.Millisecond,
			func(s *Settings) *time.Duration { return &s.AgingInterval }),
	}
}

// serviceKeys returns the settings for the heartbeats of workers, the bounds of the service and its stop.
func serviceKeys() []Key {
	return []Key{
		duration("worker_heartbeat_interval", "5s",
			"how long the service waits for a heartbeat of a worker before it asks for one", time.Millisecond,
			func(s *Settings) *time.Duration { return &s.HeartbeatInterval }),
		duration("worker_timeout", "15s", "time without a heartbeat after which \"queuectl worker list\" "+
			"shows a worker as stale", time.Millisecond, func(s *Settings) *time.Duration { return &s.WorkerTimeout }),
		integer("max_pending", "0", "largest number of waiting jobs in all queues together; enqueue rejects more; "+
			"0 means unlimited", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPending }),
		integer("max_pending_per_user", "0", "largest number of waiting jobs of one user; enqueue rejects "+
			"more; 0 means unlimited", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.MaxPendingUser }),
		sizeOrAuto("max_bytes_per_user", "disk space for the inputs and kept outputs of one user's jobs; auto means a "+
			"fifth of the disk, but at most 10GiB; 0 means unlimited", func(s *Settings) *int64 { return &s.MaxBytesUser }),
		integer("max_running_per_user", "0", "largest number of jobs of one user that run at the same "+
			"time; 0 means unlimited", 0, maxCount, func(s *Settings) *int { return &s.MaxRunningUser }),
		integer("max_connections", "1024", "largest number of open connections to the service", 16, maxCount,
			func(s *Settings) *int { return &s.MaxConnections }),
		integer("max_connections_per_user", "256", "largest number of open connections of one user", 1, maxCount,
			func(s *Settings) *int { return &s.MaxConnectionsUser }),
		duration("stop_timeout", "30s", "time that running jobs get to finish when the service stops; 0 "+
			"ends them immediately", 0, func(s *Settings) *time.Duration { return &s.StopTimeout }),
		duration("settle_delay", "5ms", "how long the service collects results before it stores them in one commit (up to "+
			"four times as long for many short jobs); 0 stores each result immediately", 0,
			func(s *Settings) *time.Duration { return &s.SettleDelay }),
	}
}

// retentionKeys returns the settings for the time for which data is kept.
func retentionKeys() []Key {
	return []Key{
		forever("retention_completed", "30d", "age at which completed jobs are removed, or never",
			func(s *Settings) *time.Duration { return &s.RetentionCompleted }),
		forever("retention_cancelled", "30d", "age at which cancelled jobs are removed, or never",
			func(s *Settings) *time.Duration { return &s.RetentionCancelled }),
		forever("retention_dead", "never", "age at which dead jobs are removed, or never",
			func(s *Settings) *time.Duration { return &s.RetentionDead }),
		integer("retention_max_jobs", "1000000", "largest number of completed and cancelled jobs that are kept; older ones "+
			"are removed; 0 means unlimited", 0, math.MaxInt32, func(s *Settings) *int64 { return &s.RetentionMaxJobs }),
		forever("retention_events", "7d", "age at which events are removed, or never; in any case, only the newest "+
			"million events are kept", func(s *Settings) *time.Duration { return &s.RetentionEvents }),
		size("retention_output", "10GiB", "disk space for the outputs of all jobs; above it, the users with the most "+
			"output lose their oldest outputs; 0 means unlimited", maxKept,
			func(s *Settings) *int64 { return &s.RetentionOutput }),
	}
}

// reportKeys returns the settings for resources, webhooks and the log.
func reportKeys() []Key {
	return []Key{
		{"resources", none, "limited resources, such as GPUs, that jobs reserve: NAME=COUNT or NAME=[ID,ID], separated by " +
			"spaces; add >VARIABLE to give each job the IDs of its units in that environment variable, like " +
			"gpu=[0,1]>CUDA_VISIBLE_DEVICES; in the settings file, use tables like [resources.gpu]", false, setResources,
			func(s *Settings) string { return s.Resources }, nil},
		{"hooks_user", none, "account that runs the hooks and webhooks in the settings if the setting run_as is " +
			"\"submitter\"; none means the service's own account", false, setHooksUser,
			func(s *Settings) string { return s.HooksUser }, nil},
		{"webhooks", none, "HTTP requests that report job outcomes, as JSON: {\"NAME\": {\"url\": \"https://…\", " +
			"\"secret_file\": \"/PATH\", \"events\": [\"dead\"], \"queues\": [\"NAME\"]}}; events are completed, failed " +
			"(an attempt that will be retried), dead, and the default, ended (completed, dead or cancelled); in the settings " +
			"file, use tables like [webhooks.NAME]", true, setWebhooks,
			func(s *Settings) string { return s.Webhooks }, nil},
		choice("log_level", "info", "lowest level of the messages to log: debug, info, warn or error",
			func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		choice("log_format", "auto", "format of the log: text, json or auto (the journal's format under systemd, text on a "+
			"terminal and in a log file, otherwise json)", func(s *Settings) *string { return &s.LogFormat }, "auto", "text",
			"json"),
	}
}

// accountKeys returns the settings for accounts, the control socket and the store.
func accountKeys() []Key {
	return []Key{
		{"run_as", RunAsService, "account that jobs run as: service (the service's own), submitter (the user who enqueued " +
			"the job; not on Windows) or fixed:USER (always USER); on Windows, USER must be the service's own account, and " +
			"unlike service, fixed:USER lets the group queuectl enqueue jobs (see access.submit); the system service on " +
			"Windows uses fixed:USER by default; " +
			nextStartNote, false, setRunAs,
			func(s *Settings) string { return s.RunAs }, nil},
		{"socket_mode", "0600", "permissions of the control socket, in octal: 0600 admits only its owner, " +
			"0660 also its group; " + nextStartNote, false, setSocketMode, func(s *Settings) string { return s.SocketMode },
			nil},
		{"socket_group", none, "group of the control socket; none means the service's own group; " + nextStartNote, false,
			setSocketGroup, func(s *Settings) string { return s.SocketGroup }, nil},
		storeKey(),
		storeFileKey(),
		textOrNone("store_roles", "PostgreSQL roles that may call queuectl.enqueue in their transactions, each with the "+
			"user who owns the jobs of that role, like app=alice web=bob", func(s *Settings) *string { return &s.StoreRoles },
			checkRoles),
	}
}

// tracesKeys returns the settings for the export of traces.
func tracesKeys() []Key {
	return []Key{
		textOrNone("traces.endpoint", "URL of an OpenTelemetry collector that receives a span for each attempt by OTLP "+
			"over HTTP, like http://127.0.0.1:4318; none means no traces",
			func(s *Settings) *string { return &s.TracesEndpoint }, collectorURL),
	}
}
