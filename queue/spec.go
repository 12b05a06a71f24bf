package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Spec is a user's request for a job. A nil field was not given. In JSON it has the members that
// the table fields lists; other members are rejected.
// See docs/decisions/0066.
type Spec struct {
	ID              *string
	Command         *string
	Argv            []string
	Queue           *string
	Priority        *int64
	MaxRetries      *int64
	MaxAttempts     *int64
	Timeout         *time.Duration
	KillAfter       *time.Duration
	BackoffBase     *float64
	BackoffStrategy *string
	BackoffMax      *time.Duration
	Jitter          *float64
	RunAt           *Millis
	Delay           *time.Duration
	ExpiresAt       *Millis
	Env             map[string]string
	EnvPass         []string // names of variables; the client replaces them by Env, and Resolve rejects them
	EnvSecret       map[string]string
	MaskSecrets     *bool
	User            *string
	Cwd             *string
	Umask           *int
	Shell           *string
	Stdin           *string
	StdinFile       *string
	IdleTimeout     *time.Duration
	OkCodes         []int
	NoRetryCodes    []int
	DeferCodes      []int
	OnLost          *string
	AllowBackground *bool
	Labels          map[string]string
	OutputLimit     *int64
	Memory          *int64
	CPUs            *float64
	Tasks           *int64
	Nice            *int64
	NoFile          *int64
	NoNewPrivileges *bool
	TTY             *bool
	Lock            *string           // KEY or KEY:n
	NodeSelector    *string           // node name, or LABEL=VALUE
	RateLimit       *string           // KEY=N/PERIOD, or @KEY for a shared key
	Resources       map[string]string // NAME=n
	DependsOn       []string          // ID or ID:condition
	OnDependency    *string           // what to do if a dependency does not end as required
	Unique          *string
	UniqueFor       *time.Duration
	OnConflict      *string
	OnCompleted     *string
	OnFailed        *string
	OnDead          *string
	OnEnded         *string
}

// Kind is the form of a field's value on a command line.
type Kind uint8

// The kinds. Lists and maps are repeated flags: each flag adds a list entry, or a map entry NAME=value. The
// kind for exit codes is a list of integers, comma-separated or in repeated flags.
const (
	KindText Kind = iota
	KindInteger
	KindNumber
	KindDuration
	KindInstant
	KindSize
	KindBool
	KindList
	KindMap
	KindCodes
)

// Field is one row of the table of fields.
type Field struct {
	Name  string // name in JSON; the flag has - instead of _
	Alias string // alternative name; "" means none
	Kind  Kind
	Usage string
	set   func(s *Spec, value json.RawMessage) error
	get   func(s *Spec) any // returns nil if the field is not given
}

// Fields returns the fields of a spec, in the order of the documentation.
func Fields() []Field { return fields }

var fields = []Field{
	{"id", "", KindText, "job ID (default: the next number)", setID, get(func(s *Spec) **string { return &s.ID })},
	text("command", "command to run in a shell", func(s *Spec) **string { return &s.Command }),
	{"argv", "", KindList, "program and arguments, run without a shell",
		func(s *Spec, v json.RawMessage) error { return setList(&s.Argv, v) },
		func(s *Spec) any { return nilIfEmpty(s.Argv) }},
	text("queue", "queue of the job, created if new (default: default)", func(s *Spec) **string { return &s.Queue }),
	integer("priority", "number from -1000000 to 1000000; higher starts first",
		func(s *Spec) **int64 { return &s.Priority }),
	integer("max_retries", "maximum number of attempts after the first one",
		func(s *Spec) **int64 { return &s.MaxRetries }),
	integer("max_attempts", "maximum number of attempts in total", func(s *Spec) **int64 { return &s.MaxAttempts }),
	duration("timeout", "stop an attempt after this time; 0 means no limit",
		func(s *Spec) **time.Duration { return &s.Timeout }),
	{"timeout_ms", "", KindInteger, "stop an attempt after this many milliseconds; 0 means no limit", setTimeoutMS,
		func(*Spec) any { return nil }},
	duration("idle_timeout", "stop an attempt after this time without output; 0 means no limit",
		func(s *Spec) **time.Duration { return &s.IdleTimeout }),
	duration("kill_after", "time between SIGTERM and SIGKILL when an attempt is stopped",
		func(s *Spec) **time.Duration { return &s.KillAfter }),
	number("backoff_base", "base of the retry delay: after n failures, base^n seconds (exponential) or "+
		"base*n seconds (linear)", func(s *Spec) **float64 { return &s.BackoffBase }),
	text("backoff_strategy", "how the retry delay grows: exponential, linear or fixed",
		func(s *Spec) **string { return &s.BackoffStrategy }),
	duration("backoff_max", "upper limit of the retry delay", func(s *Spec) **time.Duration { return &s.BackoffMax }),
	number("jitter", "random spread of the retry delay, 0 to 1: with 0.2, it is up to 20 % shorter or longer",
		func(s *Spec) **float64 { return &s.Jitter }),
	instant("run_at", "next_run_at", "earliest time at which the job may start",
		func(s *Spec) **Millis { return &s.RunAt }),
	duration("delay", "delay before the job may start", func(s *Spec) **time.Duration { return &s.Delay }),
	instant("expires_at", "", "cancel the job if it has not started by this time",
		func(s *Spec) **Millis { return &s.ExpiresAt }),
	{"depends_on", "", KindList, "wait until another job has succeeded (ID), failed for good (ID:dead) or ended " +
		"in any way (ID:ended)", func(s *Spec, v json.RawMessage) error { return setNames(&s.DependsOn, v) },
		func(s *Spec) any { return nilIfEmpty(s.DependsOn) }},
	text("on_dependency_failure", "what to do if a dependency can no longer be satisfied: cancel, hold or run",
		func(s *Spec) **string { return &s.OnDependency }),
	text("lock", "run at most one job with this KEY at a time, or N with KEY:N; @KEY is shared by all users",
		func(s *Spec) **string { return &s.Lock }),
	text("rate_limit", "start at most N jobs with this KEY per second (s), minute (m), hour (h) or day (d), such as "+
		"api=5/m; @KEY is shared by all users", func(s *Spec) **string { return &s.RateLimit }),
	text("on", "run the job only on the node with this name; with LABEL=VALUE, on any node with this label",
		func(s *Spec) **string { return &s.NodeSelector }),
	{"resources", "", KindMap, "reserve N units of the resource NAME while the job runs",
		func(s *Spec, v json.RawMessage) error { return setAmounts(&s.Resources, v) },
		func(s *Spec) any { return nilIfEmptyMap(s.Resources) }},
	text("unique", "allow only one unfinished job of yours with this KEY", func(s *Spec) **string { return &s.Unique }),
	duration("unique_for", "how long the unique key stays reserved after the job has ended",
		func(s *Spec) **time.Duration { return &s.UniqueFor }),
	text("on_conflict", "if another job has the same unique key: return (use that job), reject (refuse this one) or "+
		"replace (cancel that job if it is waiting, else refuse)", func(s *Spec) **string { return &s.OnConflict }),
	{"env", "", KindMap, "environment variable for the job",
		func(s *Spec, v json.RawMessage) error { return setMap(&s.Env, v, MaxMembers) },
		func(s *Spec) any { return nilIfEmptyMap(s.Env) }},
	{"env_pass", "", KindList, "variable to copy from your environment; * copies all",
		func(s *Spec, v json.RawMessage) error { return setList(&s.EnvPass, v) },
		func(s *Spec) any { return nilIfEmpty(s.EnvPass) }},
	{"env_secret", "", KindMap, "environment variable whose value is read when the job starts: NAME=/path/to/file or " +
		"NAME=credential:C (a systemd credential)",
		func(s *Spec, v json.RawMessage) error { return setMap(&s.EnvSecret, v, MaxSecrets) },
		func(s *Spec) any { return nilIfEmptyMap(s.EnvSecret) }},
	{"mask_secrets", "", KindBool, "replace env_secret values (4 bytes or longer) with *** in output, result and progress",
		func(s *Spec, v json.RawMessage) error { return setBool(&s.MaskSecrets, v) },
		get(func(s *Spec) **bool { return &s.MaskSecrets })},
	text("user", "account that the job runs as; only admins may choose another account",
		func(s *Spec) **string { return &s.User }),
	text("cwd", "working directory of the job", func(s *Spec) **string { return &s.Cwd }),
	{"umask", "", KindText, "umask of the job in octal, such as 022", setUmask, getUmask},
	text("shell", "shell that runs the command, such as /bin/sh -c or cmd.exe /C",
		func(s *Spec) **string { return &s.Shell }),
	text("stdin", "text to pass to the job on standard input", func(s *Spec) **string { return &s.Stdin }),
	text("stdin_file", "file that the job reads as standard input", func(s *Spec) **string { return &s.StdinFile }),
	{"ok_codes", "", KindCodes, "exit codes that count as success (default: 0)",
		func(s *Spec, v json.RawMessage) error { return setCodes(&s.OkCodes, v) },
		func(s *Spec) any { return nilIfEmpty(s.OkCodes) }},
	{"no_retry_codes", "", KindCodes, "exit codes that make the job dead without a retry",
		func(s *Spec, v json.RawMessage) error { return setCodes(&s.NoRetryCodes, v) },
		func(s *Spec) any { return nilIfEmpty(s.NoRetryCodes) }},
	{"defer_codes", "", KindCodes, "exit codes that postpone the job; the attempt does not count",
		func(s *Spec, v json.RawMessage) error { return setCodes(&s.DeferCodes, v) },
		func(s *Spec) any { return nilIfEmpty(s.DeferCodes) }},
	size("memory", "memory limit for all processes of the job together", func(s *Spec) **int64 { return &s.Memory }),
	number("cpus", "CPU limit in processors, such as 0.5 or 2", func(s *Spec) **float64 { return &s.CPUs }),
	integer("tasks", "maximum number of processes of the job at a time; on Linux, each thread counts too",
		func(s *Spec) **int64 { return &s.Tasks }),
	integer("nice", "CPU priority (nice value), from -20 (highest) to 19 (lowest)",
		func(s *Spec) **int64 { return &s.Nice }),
	integer("nofile", "maximum number of open files per process", func(s *Spec) **int64 { return &s.NoFile }),
	{"no_new_privileges", "", KindBool, "prevent sudo and other setuid programs from working in the job",
		func(s *Spec, v json.RawMessage) error { return setBool(&s.NoNewPrivileges, v) },
		get(func(s *Spec) **bool { return &s.NoNewPrivileges })},
	text("on_lost", "what to do with the job if a crash interrupts it: retry, dead or hold",
		func(s *Spec) **string { return &s.OnLost }),
	text("on_completed", "shell command to run as a new job when this job has succeeded",
		func(s *Spec) **string { return &s.OnCompleted }),
	text("on_failed", "shell command to run as a new job after each failed attempt that will be retried",
		func(s *Spec) **string { return &s.OnFailed }),
	text("on_dead", "shell command to run as a new job when this job has failed for good",
		func(s *Spec) **string { return &s.OnDead }),
	text("on_ended", "shell command to run as a new job when this job has ended: completed, dead or cancelled",
		func(s *Spec) **string { return &s.OnEnded }),
	{"allow_background", "", KindBool, "keep background processes running after the main process has exited",
		func(s *Spec, v json.RawMessage) error { return setBool(&s.AllowBackground, v) },
		get(func(s *Spec) **bool { return &s.AllowBackground })},
	{"labels", "", KindMap, "label by which jobs can be selected",
		func(s *Spec, v json.RawMessage) error { return setMap(&s.Labels, v, MaxLabels) },
		func(s *Spec) any { return nilIfEmptyMap(s.Labels) }},
	{"tty", "", KindBool, "run the job in a terminal; join it with: queuectl attach",
		func(s *Spec, v json.RawMessage) error { return setBool(&s.TTY, v) }, get(func(s *Spec) **bool { return &s.TTY })},
	size("output_limit", "bytes to keep of each output stream, half from its start and half from its end",
		func(s *Spec) **int64 { return &s.OutputLimit }),
}

// fieldsByName is computed at the first use, since most programs do not need it.
var fieldsByName = sync.OnceValue(func() map[string]*Field {
	m := make(map[string]*Field, len(fields)+4)
	for i := range fields {
		m[fields[i].Name] = &fields[i]
		if fields[i].Alias != "" {
			m[fields[i].Alias] = &fields[i]
		}
	}
	return m
})

// FieldNames returns the names of all fields.
func FieldNames() []string {
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].Name
	}
	return names
}

// UnmarshalJSON reads a spec strictly. Its error contains all problems, up to a limit.
func (s *Spec) UnmarshalJSON(data []byte) error { return s.Decode(data, nil) }

// Decode reads a spec like UnmarshalJSON. It passes members that are not fields to the function other, which
// reports whether it accepts them. If other is nil, no such member is accepted. data must have passed
// CheckJSON.
func (s *Spec) Decode(data []byte, other func(name string, value json.RawMessage) (bool, error)) error {
	*s = Spec{}
	var wrong faults
	var given []*Field
	err := Members(data, func(name string, value json.RawMessage) error {
		f := fieldsByName()[name]
		if f == nil && other != nil {
			took, err := other(name, value)
			if err != nil {
				wrong.add(func() error { return err })
			}
			if took || err != nil {
				return nil
			}
		}
		if f == nil {
			wrong.add(func() error {
				if len(wrong.list) > 0 {
					return Invalid(name, "unknown job field")
				}
				return Invalid(name, "unknown job field%s", nearField(name))
			})
			return nil
		}
		if slices.Contains(given, f) {
			wrong.add(func() error {
				return Invalid(name, "%s and %s are the same field; use only one of them", f.Name, f.Alias)
			})
			return nil
		}
		given = append(given, f)
		if string(value) == "null" {
			return nil
		}
		timeout := s.Timeout
		if err := f.set(s, value); err != nil {
			wrong.add(func() error { return fieldFault(f.Name, err) })
		} else if timeout != nil && *s.Timeout != *timeout {
			wrong.add(func() error { return Invalid(name, "differs from field timeout_ms; use only one of them") })
		}
		return nil
	})
	if err != nil {
		wrong.add(func() error { return err })
	}
	return wrong.err()
}

// MarshalJSON writes the given fields.
func (s *Spec) MarshalJSON() ([]byte, error) { return json.Marshal(s.GivenFields()) }

// GivenFields returns the given fields as a map from field name to JSON value.
func (s *Spec) GivenFields() map[string]any {
	m := make(map[string]any)
	for i := range fields {
		if v := fields[i].get(s); v != nil {
			m[fields[i].Name] = v
		}
	}
	return m
}

// CheckText returns an error if a text of the spec is not valid UTF-8. JSON cannot contain such a
// text and would silently replace it.
func (s *Spec) CheckText() error {
	for i := range fields {
		var texts []string
		switch v := fields[i].get(s).(type) {
		case string:
			texts = []string{v}
		case []string:
			texts = v
		case map[string]string:
			for k, text := range v {
				texts = append(texts, k+"="+text)
			}
		}
		for _, t := range texts {
			if !utf8.ValidString(t) {
				return Invalid(fields[i].Name, notUTF8, Clip(t))
			}
		}
	}
	return nil
}

const notUTF8 = "%q is not valid UTF-8; put binary data into a file or a script"

// SetText sets a field from the text of a flag. Each call adds to lists, maps and codes.
func (s *Spec) SetText(name, value string) error {
	f := fieldsByName()[name]
	if f == nil {
		return Invalid(name, "unknown job field%s", nearField(name))
	}
	if !utf8.ValidString(value) {
		return Invalid(name, notUTF8, Clip(value))
	}
	err := f.setText(s, value)
	return fieldFault(f.Name, err)
}

func (f *Field) setText(s *Spec, value string) error {
	quoteWord, err := json.Marshal(value)
	if err != nil {
		return err
	}
	switch f.Kind {
	case KindInteger:
		n, err := ReadInteger(value)
		if err != nil {
			return err
		}
		return setAny(f, s, n)
	case KindNumber:
		n, err := ReadNumber(value)
		if err != nil {
			return err
		}
		return setAny(f, s, n)
	case KindBool:
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is not true or false", Clip(value))
		}
		return f.set(s, json.RawMessage(value))
	case KindList:
		list, _ := f.get(s).([]string)
		return setAny(f, s, append(slices.Clone(list), value))
	case KindMap:
		k, v, found := strings.Cut(value, "=")
		if !found {
			return fmt.Errorf("%q is not NAME=value; write it like A=1", Clip(value))
		}
		m, _ := f.get(s).(map[string]string)
		m = maps.Clone(m)
		if m == nil {
			m = map[string]string{}
		}
		m[k] = v
		return setAny(f, s, m)
	case KindCodes:
		list, _ := f.get(s).([]int)
		list = slices.Clone(list)
		for part := range strings.SplitSeq(value, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if errors.Is(err, strconv.ErrSyntax) {
				return fmt.Errorf("%q is not a list of exit codes; write it like 0,3", Clip(value))
			}
			list = append(list, n)
		}
		return setAny(f, s, list)
	}
	return f.set(s, quoteWord)
}

func setAny(f *Field, s *Spec, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.set(s, raw)
}

func fieldFault(name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Field != "" {
		return e
	}
	return Invalid(name, "%s", err)
}

// CheckField returns an error if a job has no field with this name.
func CheckField(name string) error {
	if fieldsByName()[name] == nil {
		return Invalid(name, "unknown job field%s", nearField(name))
	}
	return nil
}

// nearField returns a hint for an unknown field: the field that was probably meant, or where all fields are
// listed.
func nearField(name string) string {
	for _, pair := range [...][2]string{
		{"cmd", "command"}, {"dir", "cwd"}, {"name", "id"}, {"retries", "max_retries"},
		{"after", "depends_on"}, {"at", "run_at"}, {"tags", "labels"},
	} {
		if name == pair[0] {
			return fmt.Sprintf("; did you mean %q?", pair[1])
		}
	}
	return cmp.Or(Nearest(name, FieldNames()), "; list all fields with: queuectl enqueue --help --all")
}
