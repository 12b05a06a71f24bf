package queue

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Spec is a user's request for a job. A field that is nil is not set. In JSON, each member has the name in the field's
// tag. Unknown members are rejected. The documentation lists the fields in this order. See docs/decisions/0066.
type Spec struct {
	ID                  *string           `field:"id"`
	Command             *string           `field:"command"`
	Argv                []string          `field:"argv"`
	Queue               *string           `field:"queue"`
	Priority            *int64            `field:"priority"`
	MaxRetries          *int64            `field:"max_retries"`
	MaxAttempts         *int64            `field:"max_attempts"`
	Timeout             *time.Duration    `field:"timeout"`
	IdleTimeout         *time.Duration    `field:"idle_timeout"`
	KillAfter           *time.Duration    `field:"kill_after"`
	BackoffBase         *float64          `field:"backoff_base"`
	BackoffStrategy     *string           `field:"backoff_strategy"`
	BackoffMax          *time.Duration    `field:"backoff_max"`
	BackoffJitter       *float64          `field:"jitter"`
	RunAt               *UnixMillis       `field:"run_at" alias:"next_run_at"`
	Delay               *time.Duration    `field:"delay"`
	ExpiresAt           *UnixMillis       `field:"expires_at"`
	DependsOn           []string          `field:"depends_on"`            // ID or ID:condition
	OnDependencyFailure *string           `field:"on_dependency_failure"` // cancel, hold or run
	Lock                *string           `field:"lock"`                  // KEY or KEY:n
	RateLimit           *string           `field:"rate_limit"`            // KEY=N/PERIOD, or @KEY for a shared key
	NodeSelector        *string           `field:"on"`                    // node name, or LABEL=VALUE
	Resources           map[string]string `field:"resources"`             // NAME=n
	Unique              *string           `field:"unique"`
	UniqueFor           *time.Duration    `field:"unique_for"`
	OnConflict          *string           `field:"on_conflict"`
	Env                 map[string]string `field:"env"`
	// EnvPass contains names of variables. The client must replace EnvPass by entries of Env, so ResolveSpec rejects
	// EnvPass.
	EnvPass         []string          `field:"env_pass"`
	EnvSecret       map[string]string `field:"env_secret"`
	MaskSecrets     *bool             `field:"mask_secrets"`
	User            *string           `field:"user"`
	Cwd             *string           `field:"cwd"`
	Umask           *int              `field:"umask"`
	Shell           *string           `field:"shell"`
	Stdin           *string           `field:"stdin"`
	StdinFile       *string           `field:"stdin_file"`
	OkCodes         []int             `field:"ok_codes"`
	NoRetryCodes    []int             `field:"no_retry_codes"`
	DeferCodes      []int             `field:"defer_codes"`
	Memory          *int64            `field:"memory" kind:"size"`
	CPUs            *float64          `field:"cpus"`
	Tasks           *int64            `field:"tasks"`
	Nice            *int64            `field:"nice"`
	NoFile          *int64            `field:"nofile"`
	NoNewPrivileges *bool             `field:"no_new_privileges"`
	OnLost          *string           `field:"on_lost"`
	OnCompleted     *string           `field:"on_completed"`
	OnFailed        *string           `field:"on_failed"`
	OnDead          *string           `field:"on_dead"`
	OnEnded         *string           `field:"on_ended"`
	AllowBackground *bool             `field:"allow_background"`
	Labels          map[string]string `field:"labels"`
	TTY             *bool             `field:"tty"`
	OutputLimit     *int64            `field:"output_limit" kind:"size"`
}

// FieldKind says in which form a value of a field is written on a command line.
type FieldKind uint8

// These are the kinds. If the value is a list or a map, a flag may be repeated: each flag adds one entry. An entry of a
// map has the form NAME=value. Exit codes are integers, separated by commas or in repeated flags.
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

// Field is one row of the table of job fields. It describes one member of Spec.
type Field struct {
	Name            string // name in JSON; the flag has - instead of _
	Alias           string // alternative name; "" means none
	Kind            FieldKind
	specMemberIndex int         // index of the member of Spec that holds the value
	constraint      *Constraint // accepted values; nil means all values of the kind
}

// SpecFields returns the table of job fields, in the order of the documentation. The table is built at the first use,
// because most programs do not need it. The rows timeout and timeout_ms of the table both belong to the member Timeout
// of Spec.
var SpecFields = sync.OnceValue(func() (fieldTable []Field) {
	kinds := map[reflect.Type]FieldKind{
		reflect.TypeFor[*string]():           KindText,
		reflect.TypeFor[*int]():              KindText, // umask, an octal number
		reflect.TypeFor[*int64]():            KindInteger,
		reflect.TypeFor[*float64]():          KindNumber,
		reflect.TypeFor[*time.Duration]():    KindDuration,
		reflect.TypeFor[*UnixMillis]():       KindTime,
		reflect.TypeFor[*bool]():             KindBool,
		reflect.TypeFor[[]string]():          KindList,
		reflect.TypeFor[map[string]string](): KindMap,
		reflect.TypeFor[[]int]():             KindExitCodes,
	}
	add := func(name, alias string, kind FieldKind, member int) {
		fieldTable = append(fieldTable, Field{name, alias, kind, member, FieldConstraint(name)})
	}
	spec := reflect.TypeFor[Spec]()
	for i := range spec.NumField() {
		m := spec.Field(i)
		kind := kinds[m.Type]
		if m.Tag.Get("kind") == "size" {
			kind = KindSize
		}
		name := m.Tag.Get("field")
		add(name, m.Tag.Get("alias"), kind, i)
		if name == "timeout" {
			add("timeout_ms", "", KindInteger, i)
		}
	}
	return fieldTable
})

// fieldUsageText describes each field in a line NAME: DESCRIPTION.
//
//go:embed fields.txt
var fieldUsageText string

// usageByField returns the descriptions of the fields, by field name. The map is built at the first use, because most
// programs do not need it.
var usageByField = sync.OnceValue(func() map[string]string {
	texts := make(map[string]string, len(SpecFields()))
	for line := range strings.Lines(fieldUsageText) {
		name, text, _ := strings.Cut(line, ": ")
		texts[name] = strings.TrimSpace(text)
	}
	return texts
})

// Usage returns the description of the field.
func (f *Field) Usage() string { return usageByField()[f.Name] }

// fieldsByName returns the fields by name and by alias.
var fieldsByName = sync.OnceValue(func() map[string]*Field {
	m := map[string]*Field{}
	for i, f := range SpecFields() {
		m[f.Name] = &SpecFields()[i]
		if f.Alias != "" {
			m[f.Alias] = &SpecFields()[i]
		}
	}
	return m
})

// FieldNames returns the names of all fields.
func FieldNames() (names []string) {
	for _, f := range SpecFields() {
		names = append(names, f.Name)
	}
	return names
}

// UnmarshalJSON implements json.Unmarshaler. It rejects unknown members. Its error contains all problems, up to
// a limit.
func (s *Spec) UnmarshalJSON(data []byte) error { return s.DecodeJSON(data, nil) }

// DecodeJSON reads a spec like UnmarshalJSON, but passes members that are not fields to handleUnknown. It rejects
// such a member if handleUnknown returns false or is nil. CheckJSON must have accepted data.
func (s *Spec) DecodeJSON(data []byte, handleUnknown func(name string, value json.RawMessage) (bool, error)) error {
	*s = Spec{}
	return s.setMembers(data, handleUnknown, (*Field).setJSON)
}

// setMembers calls setField for each member of a JSON object that is a field and not null. It passes members that are
// not fields to handleUnknown (see DecodeJSON).
func (s *Spec) setMembers(data []byte, handleUnknown func(name string, value json.RawMessage) (bool, error),
	setField func(f *Field, s *Spec, value json.RawMessage) error) error {
	var problems errorList
	var givenFields []*Field
	err := EachMember(data, func(name string, value json.RawMessage) error {
		f := fieldsByName()[name]
		if f == nil && handleUnknown != nil {
			took, err := handleUnknown(name, value)
			problems.add(err)
			if took || err != nil {
				return nil
			}
		}
		timeout := s.Timeout
		switch {
		case f == nil && len(problems.problems) > 0:
			problems.add(InvalidFieldError(name, "unknown job field"))
		case f == nil:
			problems.add(CheckFieldName(name)) // only the first error suggests a field, because the search takes long
		case slices.Contains(givenFields, f):
			problems.add(InvalidFieldError(name, "%s and %s are the same field; use only one of them", f.Name, f.Alias))
		case !isJSONNull(value):
			if err := setField(f, s, value); err != nil {
				problems.add(asFieldError(f.Name, err))
			} else if timeout != nil && *s.Timeout != *timeout {
				problems.add(InvalidFieldError(name, "differs from field timeout_ms; use only one of them"))
			}
		}
		givenFields = append(givenFields, f)
		return nil
	})
	problems.add(err)
	return problems.err()
}

// MarshalJSON implements json.Marshaler. It writes the fields that are set.
func (s *Spec) MarshalJSON() ([]byte, error) { return json.Marshal(s.GivenFields()) }

// GivenFields returns the fields that are set, as a map from field name to JSON value.
func (s *Spec) GivenFields() map[string]any {
	m := make(map[string]any)
	for _, f := range SpecFields() {
		if v := f.jsonValue(s); v != nil {
			m[f.Name] = v
		}
	}
	return m
}

// CheckUTF8 returns an error if a text in the spec is not valid UTF-8. Package json would silently replace the
// invalid bytes.
func (s *Spec) CheckUTF8() error {
	for _, f := range SpecFields() {
		var texts []string
		switch v := f.jsonValue(s).(type) {
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
				return InvalidFieldError(f.Name, notUTF8Message, ClipForMessage(t))
			}
		}
	}
	return nil
}

const notUTF8Message = "%q is not valid UTF-8; put binary data into a file or a script"

// SetFieldText sets a field from the value of a command-line flag. If the field is a list, a map or exit codes, each
// call adds entries to the field.
func (s *Spec) SetFieldText(fieldName, value string) error {
	f := fieldsByName()[fieldName]
	if f == nil {
		return CheckFieldName(fieldName)
	}
	if !utf8.ValidString(value) {
		return InvalidFieldError(fieldName, notUTF8Message, ClipForMessage(value))
	}
	err := f.setText(s, value)
	return asFieldError(f.Name, err)
}

// setText sets the field from the value of a command-line flag. See Spec.SetFieldText.
func (f *Field) setText(s *Spec, text string) (err error) {
	var value any = text
	switch f.Kind {
	case KindInteger:
		value, err = ParseInteger(text)
	case KindNumber:
		value, err = ParseNumber(text)
	case KindBool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is not true or false", ClipForMessage(text))
		}
		value = text == "true"
	case KindList:
		list, _ := f.jsonValue(s).([]string)
		value = append(slices.Clone(list), text)
	case KindMap:
		k, v, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("%q is not NAME=value; write it like A=1", ClipForMessage(text))
		}
		entries := f.copyOfMap(s)
		entries[k] = v
		value = entries
	case KindExitCodes:
		list, _ := f.jsonValue(s).([]int)
		list = slices.Clone(list)
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if errors.Is(err, strconv.ErrSyntax) {
				return fmt.Errorf("%q is not a list of exit codes; write it like 0,3", ClipForMessage(text))
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
	return f.setJSON(s, raw)
}

// asFieldError returns err as an Error about the field, unless err already is an Error about a field.
func asFieldError(name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Field != "" {
		return e
	}
	return InvalidFieldError(name, "%s", err)
}

// CheckFieldName returns an error if a job has no field with this name.
func CheckFieldName(name string) error {
	if fieldsByName()[name] == nil {
		return InvalidFieldError(name, "unknown job field%s", unknownFieldHint(name))
	}
	return nil
}

// unknownFieldHint returns the end of the error message for an unknown field: the field that the user probably meant
// or, if none is similar, where all fields are listed.
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
