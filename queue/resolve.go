package queue

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Defaults complete a spec that leaves things open.
type Defaults struct {
	Priority    int64
	MaxRetries  int64
	Timeout     time.Duration
	KillAfter   time.Duration
	Shell       string
	OnLost      OnLost
	OutputLimit int64
}

// Resolve checks a spec and completes it to a draft job. Every fault it finds
// is in the error, an *Error of CodeInvalid.
func Resolve(s *Spec, d Defaults) (Job, error) {
	var wrong faults
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			wrong.add(func() error { return Invalid(field, format, args...) })
		}
	}
	j := Job{
		Queue:    or(s.Queue, DefaultQueue),
		State:    Pending,
		ExitCode: -1,
		Priority: or(s.Priority, d.Priority),
		Delay:    or(s.Delay, 0),
		RunAt:    or(s.RunAt, 0),
		Execution: Execution{
			Command:         or(s.Command, ""),
			Argv:            s.Argv,
			User:            or(s.User, ""),
			Cwd:             or(s.Cwd, ""),
			Umask:           or(s.Umask, 0o022),
			Stdin:           or(s.Stdin, ""),
			StdinFile:       or(s.StdinFile, ""),
			IdleTimeout:     or(s.IdleTimeout, 0),
			Timeout:         or(s.Timeout, d.Timeout),
			KillAfter:       or(s.KillAfter, d.KillAfter),
			OkCodes:         s.OkCodes,
			NoRetryCodes:    s.NoRetryCodes,
			DeferCodes:      s.DeferCodes,
			OnLost:          OnLost(or(s.OnLost, string(d.OnLost))),
			AllowBackground: or(s.AllowBackground, false),
			Labels:          s.Labels,
			OutputLimit:     or(s.OutputLimit, d.OutputLimit),
			Memory:          or(s.Memory, 0),
			CPUs:            or(s.CPUs, 0),
			Tasks:           or(s.Tasks, 0),
			Nice:            or(s.Nice, 0),
			NoFile:          or(s.NoFile, 0),
			NoNewPrivileges: or(s.NoNewPrivileges, false),
			TTY:             or(s.TTY, false),
			MaskSecrets:     or(s.MaskSecrets, false),
			HookLines:       resolveHooks(check, s),
			Backoff:         Backoff{Jitter: s.Jitter},
		},
	}
	j.ExpiresAt, j.Hooks = or(s.ExpiresAt, 0), j.HookLines.Set()
	if s.ID != nil {
		j.ID = *s.ID
		check(ValidID(j.ID), "id", "%q is not an id: 1 to 128 of A-Z a-z 0-9 . _ @ / -, beginning with a letter or digit", Clip(j.ID))
	}

	resolveCommand(check, s, &j, d)
	j.Env = resolveEnv(check, s)
	j.Secrets = resolveSecrets(check, s)

	check(j.Priority >= -MaxPriority && j.Priority <= MaxPriority, "priority", "%d is not between -%d and %d", j.Priority, MaxPriority, MaxPriority)
	j.MaxAttempts = resolveAttempts(check, s, d)
	check(s.Delay == nil || s.RunAt == nil, "delay", "and run_at are both given; give one of them")
	resolveBackoff(check, s, &j)
	check(slices.Contains([]OnLost{OnLostRetry, OnLostDead, OnLostHold}, j.OnLost), "on_lost", "%q is not retry, dead or hold", Clip(string(j.OnLost)))
	check(j.OutputLimit >= 0 && j.OutputLimit <= MaxOutput, "output_limit", "must be between 0 and %s", FormatSize(MaxOutput))
	resolveLimits(check, s, &j)
	check(s.OkCodes == nil || len(s.OkCodes) > 0, "ok_codes", "is empty; a job that can never succeed is refused")
	check(len(s.DeferCodes) <= MaxExitCodes, "defer_codes", "has more than %d entries", MaxExitCodes)
	check(len(s.OkCodes) <= MaxExitCodes, "ok_codes", "has more than %d entries", MaxExitCodes)
	check(len(s.NoRetryCodes) <= MaxExitCodes, "no_retry_codes", "has more than %d entries", MaxExitCodes)
	checkLabels(check, s.Labels)
	check(ValidQueue(j.Queue), "queue", "%q is no name of a queue: 1 to %d of A-Z a-z 0-9 . _ @ / -, beginning with a letter or digit", Clip(j.Queue), MaxQueueName)
	j.Demands = resolveDemands(&wrong, s)
	resolveDependencies(check, s, &j)
	resolveUnique(check, s, &j)
	return j, wrong.err()
}

// checker notes a field that is wrong, unless ok. It is called for each, in order.
type checker = func(ok bool, field, format string, args ...any)

func resolveCommand(check checker, s *Spec, j *Job, d Defaults) {
	switch {
	case s.Command != nil && s.Argv != nil:
		check(false, "command", "and argv are both given; give one of them")
	case s.Command == nil && s.Argv == nil:
		check(false, "command", "is missing; give a command or an argv")
	case s.Command != nil:
		check(strings.TrimSpace(j.Command) != "", "command", "is empty")
		j.Shell = or(s.Shell, d.Shell)
		check(len(strings.Fields(j.Shell)) > 0, "shell", "is empty; write it like /bin/sh -c")
	default:
		check(len(s.Argv) > 0 && s.Argv[0] != "", "argv", "is empty; its first entry names the program")
		check(s.Shell == nil, "shell", "goes with command, not with argv")
	}
	checkText(check, "command", j.Command, MaxCommand)
	checkText(check, "shell", j.Shell, 4096)
	check(s.User == nil || j.User != "", "user", "is empty; name an account, or leave it out")
	checkText(check, "user", j.User, 256)
	checkText(check, "cwd", j.Cwd, 4096)
	check(j.Cwd == "" || absolute(j.Cwd), "cwd", "%q is not an absolute path", Clip(j.Cwd))
	check(len(j.Stdin) <= MaxStdin, "stdin", "is %d bytes; at most %d are taken", len(j.Stdin), MaxStdin)
	checkText(check, "stdin_file", j.StdinFile, 4096)
	check(j.StdinFile == "" || absolute(j.StdinFile), "stdin_file", "%q is not an absolute path", Clip(j.StdinFile))
	check(s.Stdin == nil || s.StdinFile == nil, "stdin", "and stdin_file are both given; give one of them")
	check(!j.TTY || s.Stdin == nil, "tty", "and stdin are both given; a job with a terminal reads what is typed there: give one of them")
	check(!j.TTY || s.StdinFile == nil, "tty", "and stdin_file are both given; a job with a terminal reads what is typed there: give one of them")
	check(s.EnvPass == nil, "env_pass", "is resolved by the client; send env")
}

func resolveBackoff(check checker, s *Spec, j *Job) {
	check(or(s.BackoffBase, 1) > 0 && or(s.BackoffBase, 1) <= 1e9, "backoff_base", "must be above 0 and at most 1e9")
	j.Backoff.Base = or(s.BackoffBase, 0)
	j.Backoff.Max = or(s.BackoffMax, 0)
	check(s.BackoffMax == nil || *s.BackoffMax > 0, "backoff_max", "must be above 0")
	j.Backoff.Strategy = Strategy(or(s.BackoffStrategy, ""))
	check(s.BackoffStrategy == nil || slices.Contains([]Strategy{Exponential, Linear, Fixed}, j.Backoff.Strategy),
		"backoff_strategy", "%q is not exponential, linear or fixed", Clip(string(j.Backoff.Strategy)))
	check(or(s.Jitter, 0) >= 0 && or(s.Jitter, 0) <= 1, "jitter", "must be between 0 and 1")
}

func resolveLimits(check checker, s *Spec, j *Job) {
	check(s.Memory == nil || j.Memory >= MinMemory && j.Memory <= MaxMemory, "memory", "must be between %s and %s; leave it out for no limit", FormatSize(MinMemory), FormatSize(MaxMemory))
	check(s.CPUs == nil || j.CPUs >= MinCPUs && j.CPUs <= MaxCPUs, "cpus", "must be between %g and %d; leave it out for no limit", MinCPUs, MaxCPUs)
	check(s.Tasks == nil || j.Tasks >= 1 && j.Tasks <= MaxTasks, "tasks", "must be between 1 and %d; leave it out for the default", MaxTasks)
	check(j.Nice >= MinNice && j.Nice <= MaxNice, "nice", "must be between %d and %d", MinNice, MaxNice)
	check(s.NoFile == nil || j.NoFile >= 1 && j.NoFile <= MaxNoFile, "nofile", "must be between 1 and %d; leave it out for the default", MaxNoFile)
}

func resolveUnique(check checker, s *Spec, j *Job) {
	j.Unique, j.UniqueFor = or(s.Unique, ""), or(s.UniqueFor, 0)
	check(s.Unique == nil || ValidID(j.Unique), "unique", "%q is no key: up to 128 letters, digits and . _ @ / -, beginning with a letter or a digit", Clip(j.Unique))
	check(s.UniqueFor == nil || s.Unique != nil, "unique_for", "goes with unique")
	check(s.OnConflict == nil || s.Unique != nil, "on_conflict", "goes with unique")
	at := slices.Index(conflicts, or(s.OnConflict, conflicts[ConflictReturn]))
	check(at >= 0, "on_conflict", "%q is not return, reject or replace", Clip(or(s.OnConflict, "")))
	j.OnConflict = Conflict(max(0, at))
}

func resolveAttempts(check checker, s *Spec, d Defaults) int {
	attempts := d.MaxRetries + 1
	if s.MaxRetries != nil {
		attempts = *s.MaxRetries + 1
		check(*s.MaxRetries >= 0 && *s.MaxRetries < MaxAttempts, "max_retries", "%d is not between 0 and %d", *s.MaxRetries, MaxAttempts-1)
	}
	if s.MaxAttempts != nil {
		check(*s.MaxAttempts >= 1 && *s.MaxAttempts <= MaxAttempts, "max_attempts", "%d is not between 1 and %d", *s.MaxAttempts, MaxAttempts)
		check(s.MaxRetries == nil || attempts == *s.MaxAttempts, "max_attempts", "%d differs from max_retries %d, which is %d attempts; give one of them", *s.MaxAttempts, or(s.MaxRetries, 0), attempts)
		attempts = *s.MaxAttempts
	}
	return int(attempts)
}

func resolveEnv(check checker, s *Spec) []string {
	env := make([]string, 0, len(s.Env))
	total := 0
	for name, value := range s.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			check(false, "env", "%q is not a name of a variable", Clip(name))
		}
		if slices.Contains(ownVariables, name) {
			check(false, "env", "%s is set by queuectl itself", name)
		}
		checkText(check, "env", value, MaxCommand-len(name)-1)
		env = append(env, name+"="+value)
		total += len(name) + len(value) + 2
	}
	slices.Sort(env)
	for _, a := range s.Argv {
		checkText(check, "argv", a, MaxCommand)
		total += len(a) + 1
	}
	check(total <= MaxArgsEnv, "env", "and argv hold %d bytes together; at most %d are taken", total, MaxArgsEnv)
	return env
}

// ownVariables are those that queuectl sets for every attempt.
var ownVariables = []string{"QUEUECTL_JOB_ID", "QUEUECTL_ATTEMPT", "QUEUECTL_QUEUE", "QUEUECTL_WORKER", "QUEUECTL_SOCKET",
	"QUEUECTL_TMPDIR", "QUEUECTL_RESULT", "QUEUECTL_PROGRESS", "QUEUECTL_DEPS", CookieName}

// Traceparent and Tracestate are the variables that name a trace which a job belongs to, as W3C Trace Context has its
// headers. Our client passes on those of its caller.
const (
	Traceparent = "TRACEPARENT"
	Tracestate  = "TRACESTATE"
)

// WithoutTrace is a spec that belongs to no trace: with whatever trace it comes, what it asks for is the same.
func (s *Spec) WithoutTrace() *Spec {
	if s.Env[Traceparent] == "" && s.Env[Tracestate] == "" {
		return s
	}
	other := *s
	other.Env = maps.Clone(s.Env)
	delete(other.Env, Traceparent)
	if delete(other.Env, Tracestate); len(other.Env) == 0 {
		other.Env = nil
	}
	return &other
}

// CookieName is the variable that marks every process of an attempt, so that
// those which left its session are found. Its value belongs to one attempt of
// one runner for ever.
const CookieName = "QUEUECTL_COOKIE"

func checkLabels(check checker, labels map[string]string) {
	check(len(labels) <= MaxLabels, "labels", "has %d entries; at most %d are taken", len(labels), MaxLabels)
	for k, v := range labels {
		check(k != "", "labels", "one has no name; write it NAME=value")
		check(len(k)+len(v) <= MaxLabel, "labels", "%q is longer than %d bytes", Clip(k), MaxLabel)
		check(!strings.ContainsRune(k+v, 0), "labels", "must not hold a NUL")
	}
}

func checkText(check checker, field, value string, limit int) {
	if len(value) <= limit && strings.IndexByte(value, 0) < 0 {
		return // as nearly always: what follows would allocate
	}
	check(!strings.ContainsRune(value, 0), field, "must not hold a NUL")
	check(len(value) <= limit, field, "is %d bytes; at most %d are taken", len(value), limit)
}

// ValidID reports whether id may name a job.
func ValidID(id string) bool {
	for i := range len(id) {
		c := id[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || !strings.ContainsRune("._@/-", rune(c))) {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 128
}

func absolute(path string) bool {
	return strings.HasPrefix(path, "/") || len(path) > 2 && path[1] == ':' && (path[2] == '\\' || path[2] == '/')
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// Title is what the job runs, for people: its command, or its argv joined by
// spaces.
func (t *Execution) Title() string {
	if t.Command != "" {
		return t.Command
	}
	return strings.Join(t.Argv, " ")
}
