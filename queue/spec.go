package queue

import (
	"cmp"
	_ "embed"
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
	ID                  *string
	Command             *string
	Argv                []string
	Queue               *string
	Priority            *int64
	MaxRetries          *int64
	MaxAttempts         *int64
	Timeout             *time.Duration
	KillAfter           *time.Duration
	BackoffBase         *float64
	BackoffStrategy     *string
	BackoffMax          *time.Duration
	BackoffJitter       *float64
	RunAt               *Millis
	Delay               *time.Duration
	ExpiresAt           *Millis
	Env                 map[string]string
	EnvPass             []string // names of variables; the client replaces them by Env, and Resolve rejects them
	EnvSecret           map[string]string
	MaskSecrets         *bool
	User                *string
	Cwd                 *string
	Umask               *int
	Shell               *string
	Stdin               *string
	StdinFile           *string
	IdleTimeout         *time.Duration
	OkCodes             []int
	NoRetryCodes        []int
	DeferCodes          []int
	OnLost              *string
	AllowBackground     *bool
	Labels              map[string]string
	OutputLimit         *int64
	Memory              *int64
	CPUs                *float64
	Tasks               *int64
	Nice                *int64
	NoFile              *int64
	NoNewPrivileges     *bool
	TTY                 *bool
	Lock                *string           // KEY or KEY:n
	NodeSelector        *string           // node name, or LABEL=VALUE
	RateLimit           *string           // KEY=N/PERIOD, or @KEY for a shared key
	Resources           map[string]string // NAME=n
	DependsOn           []string          // ID or ID:condition
	OnDependencyFailure *string           // what to do if a dependency does not end as required
	Unique              *string
	UniqueFor           *time.Duration
	OnConflict          *string
	OnCompleted         *string
	OnFailed            *string
	OnDead              *string
	OnEnded             *string
}

// FieldKind is the form of a field's value on a command line.
type FieldKind uint8

// The kinds. Lists and maps are repeated flags: each flag adds a list entry, or a map entry NAME=value. The
// kind for exit codes is a list of integers, comma-separated or in repeated flags.
const (
	KindText FieldKind = iota
	KindInteger
	KindNumber
	KindDuration
	KindTime
	KindSize
	KindBool
	KindList
	KindMap
	KindExitCodes
)

// Field is one row of the table of fields.
type Field struct {
	Name  string // name in JSON; the flag has - instead of _
	Alias string // alternative name; "" means none
	Kind  FieldKind
	at    func(s *Spec) any // returns a pointer to the member of the spec that holds the value
}

// usageText has a line NAME: DESCRIPTION for each field.
//
//go:embed fields.txt
var usageText string

// usages is computed at the first use, since most programs do not need it.
var usages = sync.OnceValue(func() map[string]string {
	texts := make(map[string]string, len(fields))
	for line := range strings.Lines(usageText) {
		name, text, _ := strings.Cut(line, ": ")
		texts[name] = strings.TrimSpace(text)
	}
	return texts
})

// Usage returns the description of the field.
func (f *Field) Usage() string { return usages()[f.Name] }

// Fields returns the fields of a spec, in the order of the documentation.
func Fields() []Field { return fields }

// fields contains no calls, so that the program need not build it at each start.
var fields = []Field{
	{"id", "", KindText, func(s *Spec) any { return &s.ID }},
	{"command", "", KindText, func(s *Spec) any { return &s.Command }},
	{"argv", "", KindList, func(s *Spec) any { return &s.Argv }},
	{"queue", "", KindText, func(s *Spec) any { return &s.Queue }},
	{"priority", "", KindInteger, func(s *Spec) any { return &s.Priority }},
	{"max_retries", "", KindInteger, func(s *Spec) any { return &s.MaxRetries }},
	{"max_attempts", "", KindInteger, func(s *Spec) any { return &s.MaxAttempts }},
	{"timeout", "", KindDuration, func(s *Spec) any { return &s.Timeout }},
	{"timeout_ms", "", KindInteger, func(s *Spec) any { return &s.Timeout }},
	{"idle_timeout", "", KindDuration, func(s *Spec) any { return &s.IdleTimeout }},
	{"kill_after", "", KindDuration, func(s *Spec) any { return &s.KillAfter }},
	{"backoff_base", "", KindNumber, func(s *Spec) any { return &s.BackoffBase }},
	{"backoff_strategy", "", KindText, func(s *Spec) any { return &s.BackoffStrategy }},
	{"backoff_max", "", KindDuration, func(s *Spec) any { return &s.BackoffMax }},
	{"jitter", "", KindNumber, func(s *Spec) any { return &s.BackoffJitter }},
	{"run_at", "next_run_at", KindTime, func(s *Spec) any { return &s.RunAt }},
	{"delay", "", KindDuration, func(s *Spec) any { return &s.Delay }},
	{"expires_at", "", KindTime, func(s *Spec) any { return &s.ExpiresAt }},
	{"depends_on", "", KindList, func(s *Spec) any { return &s.DependsOn }},
	{"on_dependency_failure", "", KindText, func(s *Spec) any { return &s.OnDependencyFailure }},
	{"lock", "", KindText, func(s *Spec) any { return &s.Lock }},
	{"rate_limit", "", KindText, func(s *Spec) any { return &s.RateLimit }},
	{"on", "", KindText, func(s *Spec) any { return &s.NodeSelector }},
	{"resources", "", KindMap, func(s *Spec) any { return &s.Resources }},
	{"unique", "", KindText, func(s *Spec) any { return &s.Unique }},
	{"unique_for", "", KindDuration, func(s *Spec) any { return &s.UniqueFor }},
	{"on_conflict", "", KindText, func(s *Spec) any { return &s.OnConflict }},
	{"env", "", KindMap, func(s *Spec) any { return &s.Env }},
	{"env_pass", "", KindList, func(s *Spec) any { return &s.EnvPass }},
	{"env_secret", "", KindMap, func(s *Spec) any { return &s.EnvSecret }},
	{"mask_secrets", "", KindBool, func(s *Spec) any { return &s.MaskSecrets }},
	{"user", "", KindText, func(s *Spec) any { return &s.User }},
	{"cwd", "", KindText, func(s *Spec) any { return &s.Cwd }},
	{"umask", "", KindText, func(s *Spec) any { return &s.Umask }},
	{"shell", "", KindText, func(s *Spec) any { return &s.Shell }},
	{"stdin", "", KindText, func(s *Spec) any { return &s.Stdin }},
	{"stdin_file", "", KindText, func(s *Spec) any { return &s.StdinFile }},
	{"ok_codes", "", KindExitCodes, func(s *Spec) any { return &s.OkCodes }},
	{"no_retry_codes", "", KindExitCodes, func(s *Spec) any { return &s.NoRetryCodes }},
	{"defer_codes", "", KindExitCodes, func(s *Spec) any { return &s.DeferCodes }},
	{"memory", "", KindSize, func(s *Spec) any { return &s.Memory }},
	{"cpus", "", KindNumber, func(s *Spec) any { return &s.CPUs }},
	{"tasks", "", KindInteger, func(s *Spec) any { return &s.Tasks }},
	{"nice", "", KindInteger, func(s *Spec) any { return &s.Nice }},
	{"nofile", "", KindInteger, func(s *Spec) any { return &s.NoFile }},
	{"no_new_privileges", "", KindBool, func(s *Spec) any { return &s.NoNewPrivileges }},
	{"on_lost", "", KindText, func(s *Spec) any { return &s.OnLost }},
	{"on_completed", "", KindText, func(s *Spec) any { return &s.OnCompleted }},
	{"on_failed", "", KindText, func(s *Spec) any { return &s.OnFailed }},
	{"on_dead", "", KindText, func(s *Spec) any { return &s.OnDead }},
	{"on_ended", "", KindText, func(s *Spec) any { return &s.OnEnded }},
	{"allow_background", "", KindBool, func(s *Spec) any { return &s.AllowBackground }},
	{"labels", "", KindMap, func(s *Spec) any { return &s.Labels }},
	{"tty", "", KindBool, func(s *Spec) any { return &s.TTY }},
	{"output_limit", "", KindSize, func(s *Spec) any { return &s.OutputLimit }},
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
	var wrong errorList
	var given []*Field
	err := EachMember(data, func(name string, value json.RawMessage) error {
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
				return Invalid(name, "unknown job field%s", unknownFieldHint(name))
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
			wrong.add(func() error { return fieldError(f.Name, err) })
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
				return Invalid(fields[i].Name, notUTF8Message, Clip(t))
			}
		}
	}
	return nil
}

const notUTF8Message = "%q is not valid UTF-8; put binary data into a file or a script"

// SetText sets a field from the text of a flag. Each call adds to lists, maps and codes.
func (s *Spec) SetText(name, value string) error {
	f := fieldsByName()[name]
	if f == nil {
		return Invalid(name, "unknown job field%s", unknownFieldHint(name))
	}
	if !utf8.ValidString(value) {
		return Invalid(name, notUTF8Message, Clip(value))
	}
	err := f.setText(s, value)
	return fieldError(f.Name, err)
}

func (f *Field) setText(s *Spec, text string) (err error) {
	var value any = text
	switch f.Kind {
	case KindInteger:
		value, err = ParseInteger(text)
	case KindNumber:
		value, err = ParseNumber(text)
	case KindBool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is not true or false", Clip(text))
		}
		value = text == "true"
	case KindList:
		list, _ := f.get(s).([]string)
		value = append(slices.Clone(list), text)
	case KindMap:
		k, v, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("%q is not NAME=value; write it like A=1", Clip(text))
		}
		m, _ := f.get(s).(map[string]string)
		entries := map[string]string{}
		maps.Copy(entries, m)
		entries[k] = v
		value = entries
	case KindExitCodes:
		list, _ := f.get(s).([]int)
		list = slices.Clone(list)
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if errors.Is(err, strconv.ErrSyntax) {
				return fmt.Errorf("%q is not a list of exit codes; write it like 0,3", Clip(text))
			}
			list = append(list, n)
		}
		value = list
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return f.set(s, raw)
}

func fieldError(name string, err error) error {
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
		return Invalid(name, "unknown job field%s", unknownFieldHint(name))
	}
	return nil
}

// unknownFieldHint returns a hint for an unknown field: the field that was probably meant, or where all fields are
// listed.
func unknownFieldHint(name string) string {
	for _, pair := range [...][2]string{
		{"cmd", "command"}, {"dir", "cwd"}, {"name", "id"}, {"retries", "max_retries"},
		{"after", "depends_on"}, {"at", "run_at"}, {"tags", "labels"},
	} {
		if name == pair[0] {
			return fmt.Sprintf("; did you mean %q?", pair[1])
		}
	}
	return cmp.Or(DidYouMean(name, FieldNames()), "; list all fields with: queuectl enqueue --help --all")
}
