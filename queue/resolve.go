package queue

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// JobDefaults holds the values that a job gets for fields which its spec does not set.
type JobDefaults struct {
	Priority    int64
	MaxRetries  int64
	Timeout     time.Duration
	KillAfter   time.Duration
	Shell       string
	OnLost      OnLost
	OutputLimit int64
}

// ResolveSpec checks a spec and returns the requested job as a draft: a job that is not stored yet. If the spec is
// invalid, the error is an *Error of CodeInvalid, which lists all problems, up to maxListedErrors.
func ResolveSpec(s *Spec, d JobDefaults) (Job, error) {
	var problems errorList
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			problems.add(InvalidFieldError(field, format, args...))
		}
	}
	j := Job{
		ID:          valueOrZero(s.ID),
		Queue:       ValueOr(s.Queue, DefaultQueue),
		State:       Pending,
		ExitCode:    -1,
		Priority:    ValueOr(s.Priority, d.Priority),
		Delay:       valueOrZero(s.Delay),
		RunAt:       valueOrZero(s.RunAt),
		ExpiresAt:   valueOrZero(s.ExpiresAt),
		MaxAttempts: int(ValueOr(s.MaxAttempts, ValueOr(s.MaxRetries, d.MaxRetries)+1)),
		Unique:      valueOrZero(s.Unique),
		UniqueFor:   valueOrZero(s.UniqueFor),
		OnConflict:  ConflictAction(max(0, slices.Index(conflictActionNames, valueOrZero(s.OnConflict)))),
		ExecutionSettings: ExecutionSettings{
			Command:          valueOrZero(s.Command),
			Argv:             s.Argv,
			RunAsUser:        valueOrZero(s.User),
			Cwd:              valueOrZero(s.Cwd),
			Umask:            ValueOr(s.Umask, 0o022),
			Stdin:            valueOrZero(s.Stdin),
			StdinFile:        valueOrZero(s.StdinFile),
			IdleTimeout:      valueOrZero(s.IdleTimeout),
			Timeout:          ValueOr(s.Timeout, d.Timeout),
			KillAfter:        ValueOr(s.KillAfter, d.KillAfter),
			SpecialExitCodes: SpecialExitCodes{s.OkCodes, s.NoRetryCodes, s.DeferCodes},
			OnLost:           OnLost(ValueOr(s.OnLost, string(d.OnLost))),
			AllowBackground:  valueOrZero(s.AllowBackground),
			Labels:           s.Labels,
			OutputLimitBytes: ValueOr(s.OutputLimit, d.OutputLimit),
			ResourceLimits: ResourceLimits{
				MemoryBytes:     valueOrZero(s.Memory),
				CPUs:            valueOrZero(s.CPUs),
				Tasks:           valueOrZero(s.Tasks),
				Nice:            valueOrZero(s.Nice),
				MaxOpenFiles:    valueOrZero(s.NoFile),
				NoNewPrivileges: valueOrZero(s.NoNewPrivileges),
			},
			TTY:         valueOrZero(s.TTY),
			MaskSecrets: valueOrZero(s.MaskSecrets),
			HookCommands: HookCommands{valueOrZero(s.OnCompleted), valueOrZero(s.OnFailed), valueOrZero(s.OnDead),
				valueOrZero(s.OnEnded)},
			Backoff: Backoff{
				BaseSeconds: valueOrZero(s.BackoffBase),
				Strategy:    BackoffStrategy(valueOrZero(s.BackoffStrategy)),
				MaxDelay:    valueOrZero(s.BackoffMax),
				Jitter:      s.BackoffJitter,
			},
		},
	}
	j.HookEvents = j.HookCommands.EventsWithCommand()

	s.checkFields(&problems)
	s.checkFieldRules(check)
	resolveCommand(check, s, &j, d)
	j.Env = resolveEnv(check, s)
	j.SecretReferences = resolveSecrets(check, s)

	checkLabels(check, s.Labels)
	j.Demands = demandsOfSpec(s)
	resolveDependencies(check, s, &j)
	return j, problems.err()
}

// fieldChecker reports a problem with a field if ok is false. The error lists the problems in the order of the calls.
type fieldChecker = func(ok bool, field, format string, args ...any)

// resolveCommand sets the job's shell, and reports a spec that has neither command nor argv.
func resolveCommand(check fieldChecker, s *Spec, j *Job, d JobDefaults) {
	if s.Argv == nil {
		check(s.Command != nil, "command", "no command given; example: queuectl enqueue 'make all'")
		j.Shell = ValueOr(s.Shell, d.Shell)
	} else {
		j.Command = "" // replies of the service contain both command and argv, so ignore command
	}
	check(s.EnvPass == nil, "env_pass", `cannot be used here; give the variables with their values in field "env"`)
}

// resolveEnv returns the spec's environment variables as NAME=value, sorted. It reports variables that are too
// long.
func resolveEnv(check fieldChecker, s *Spec) []string {
	env := make([]string, 0, len(s.Env))
	total := 0
	for name, value := range s.Env {
		// checkMapEntry reports a name or a value that is too long by itself. This condition finds pairs that are too long
		// only together.
		if size := len(name) + 1 + len(value); max(len(name), len(value)) <= MaxCommandBytes && size > MaxCommandBytes {
			check(false, "env", nameAndValueTooLongMessage, ClipForMessage(name), size, MaxCommandBytes)
		}
		env = append(env, name+"="+value)
		total += len(name) + len(value) + 2
	}
	slices.Sort(env)
	for _, a := range s.Argv {
		total += len(a) + 1
	}
	check(total <= MaxArgsEnvBytes, "env",
		`fields "env" and "argv" are too long together (%d bytes); the maximum is %d bytes`,
		total, MaxArgsEnvBytes)
	return env
}

// queuectlVariables lists the environment variables that queuectl sets for every attempt.
var queuectlVariables = []string{"QUEUECTL_JOB_ID", "QUEUECTL_ATTEMPT", "QUEUECTL_QUEUE", "QUEUECTL_WORKER",
	"QUEUECTL_SOCKET",
	"QUEUECTL_TMPDIR", "QUEUECTL_RESULT", "QUEUECTL_PROGRESS", "QUEUECTL_DEPS", AttemptCookieVariable}

// TraceparentVariable and TracestateVariable are the names of two environment variables of jobs. They contain the trace
// to which a job belongs, in the format of the W3C Trace Context headers. The client copies these variables from its
// own environment.
const (
	TraceparentVariable = "TRACEPARENT"
	TracestateVariable  = "TRACESTATE"
)

// WithoutTraceVariables returns the spec without the two environment variables of its trace. Two requests that differ
// only in their traces request the same job, so they are compared without the traces.
func (s *Spec) WithoutTraceVariables() *Spec {
	if s.Env[TraceparentVariable] == "" && s.Env[TracestateVariable] == "" {
		return s
	}
	other := *s
	other.Env = maps.Clone(s.Env)
	delete(other.Env, TraceparentVariable)
	if delete(other.Env, TracestateVariable); len(other.Env) == 0 {
		other.Env = nil
	}
	return &other
}

// AttemptCookieVariable is the name of an environment variable that marks every process of an attempt. Each attempt has
// a different value. The runner searches all processes for this value, to find processes of the attempt that have left
// its session.
const AttemptCookieVariable = "QUEUECTL_COOKIE"

// nameAndValueTooLongMessage is the error message for a name and a value that together exceed a limit.
const nameAndValueTooLongMessage = "%q is too long (%d bytes with its value); the maximum is %d bytes"

// checkLabels reports each label whose name and value are too long together.
func checkLabels(check fieldChecker, labels map[string]string) {
	for k, v := range labels {
		size := len(k) + len(v)
		// checkMapEntry reports a name or a value that is too long by itself. This check finds pairs that are too long only
		// together.
		check(size <= MaxLabelBytes || max(len(k), len(v)) > MaxLabelBytes, "labels", nameAndValueTooLongMessage,
			ClipForMessage(k), size,
			MaxLabelBytes)
	}
}

// ValidID reports whether id is a valid job id.
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

// isAbsolutePath reports whether path is an absolute path, in the form of Unix or of Windows.
func isAbsolutePath(path string) bool {
	if len(path) < 3 || path[1] != ':' || path[2] != '\\' && path[2] != '/' {
		return strings.HasPrefix(path, "/")
	}
	drive := path[0] | 0x20 // drive letter, in lower case
	return path[0] == '/' || drive >= 'a' && drive <= 'z'
}

// valueOrZero returns *p, or the zero value if p is nil.
func valueOrZero[T any](p *T) (value T) { return ValueOr(p, value) }

// ValueOr returns *p, or the second argument if p is nil.
func ValueOr[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
