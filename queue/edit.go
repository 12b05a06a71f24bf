package queue

import (
	"encoding/json"
	"maps"
	"strings"
	"time"
)

// SpecOf returns a spec that requests the same job. The spec contains every field that affects how the job
// runs, so that the current defaults have no effect.
func SpecOf(j *Job) *Spec {
	retries := int64(j.MaxAttempts) - 1
	onLost := string(j.OnLost)
	s := &Spec{
		ID: &j.ID, Unique: NonZeroPtr(j.Unique), UniqueFor: NonZeroPtr(j.UniqueFor), Lock: FormatDemand(j, GateLock),
		RateLimit: FormatDemand(j, GateRate), NodeSelector: FormatDemand(j, GateNode), Resources: demandedResources(j),
		Priority:   &j.Priority,
		MaxRetries: &retries, Timeout: &j.Timeout, KillAfter: &j.KillAfter,
		Umask: &j.Umask, OkCodes: j.OkCodes, NoRetryCodes: j.NoRetryCodes, DeferCodes: j.DeferCodes,
		IdleTimeout: NonZeroPtr(j.IdleTimeout), StdinFile: NonZeroPtr(j.StdinFile), OnLost: &onLost,
		OutputLimit:   &j.OutputLimit,
		BackoffJitter: j.Backoff.Jitter, BackoffBase: NonZeroPtr(j.Backoff.Base), BackoffMax: NonZeroPtr(j.Backoff.Max),
		BackoffStrategy: NonZeroPtr(string(j.Backoff.Strategy)), Cwd: NonZeroPtr(j.Cwd), Stdin: NonZeroPtr(j.Stdin),
		ExpiresAt: NonZeroPtr(j.ExpiresAt), AllowBackground: NonZeroPtr(j.AllowBackground), Memory: NonZeroPtr(j.Memory),
		CPUs: NonZeroPtr(j.CPUs), Tasks: NonZeroPtr(j.Tasks), Nice: NonZeroPtr(j.Nice), NoFile: NonZeroPtr(j.NoFile),
		NoNewPrivileges: NonZeroPtr(j.NoNewPrivileges), TTY: NonZeroPtr(j.TTY), MaskSecrets: NonZeroPtr(j.MaskSecrets),
		OnCompleted: NonZeroPtr(j.OnCompleted), OnFailed: NonZeroPtr(j.OnFailed), OnDead: NonZeroPtr(j.OnDead),
		OnEnded: NonZeroPtr(j.OnEnded),
	}
	if j.Queue != DefaultQueue {
		s.Queue = NonZeroPtr(j.Queue)
	}
	if j.RunAt > j.CreatedAt {
		s.RunAt = &j.RunAt
	}
	if j.Command != "" {
		s.Command, s.Shell = &j.Command, &j.Shell
	} else {
		s.Argv = j.Argv
	}
	s.Env, s.EnvSecret = valuesByName(j.Env), valuesByName(j.Secrets)
	if j.AsUID != nil {
		s.User = &j.User
	}
	if len(j.Labels) > 0 {
		s.Labels = maps.Clone(j.Labels)
	}
	return s
}

// valuesByName returns entries of the form NAME=value as a map, or nil without entries.
func valuesByName(entries []string) map[string]string {
	if len(entries) == 0 {
		return nil
	}
	values := make(map[string]string, len(entries))
	for _, e := range entries {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	return values
}

// NonZeroPtr returns a pointer to v, or nil if v is its type's zero value.
func NonZeroPtr[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// replaceFields sets fields to new values; nil removes a field. If a new value excludes other fields, these are
// removed too, unless values contains them.
func replaceFields(fields, values map[string]any) {
	for name, value := range values {
		for _, other := range excludedFields[name] {
			if _, excluded := values[other]; !excluded && value != nil {
				delete(fields, other)
			}
		}
		delete(fields, name)
		if value != nil {
			fields[name] = value
		}
	}
}

// detachUnchangedValues removes large values that the patch does not change from fields, so that they need not
// be encoded and decoded. The returned function sets them in a spec.
func detachUnchangedValues(fields, patch map[string]any) func(*Spec) {
	take := func(name string) any {
		value := fields[name]
		if _, patched := patch[name]; patched {
			return nil
		}
		delete(fields, name)
		return value
	}
	argv, _ := take("argv").([]string)
	env, _ := take("env").(map[string]string)
	stdin, hasStdin := take("stdin").(string)
	return func(s *Spec) {
		if argv != nil {
			s.Argv = argv
		}
		if env != nil {
			s.Env = env
		}
		if hasStdin {
			s.Stdin = &stdin
		}
	}
}

// mergeMap returns the map previous with the entries of value added. A null entry removes the entry.
func (f *Field) mergeMap(previous any, value json.RawMessage) (map[string]string, error) {
	entries, _ := previous.(map[string]string)
	merged := map[string]string{}
	maps.Copy(merged, entries)
	err := EachMember(value, func(key string, v json.RawMessage) error {
		delete(merged, key)
		if string(v) == "null" {
			return nil
		}
		text, err := f.readText(v)
		merged[key] = text
		return err
	})
	if err != nil {
		return nil, Invalid(f.Name, "must be a JSON object with text values, like {\"a\": \"b\"}; null removes an entry")
	}
	return merged, nil
}

// excludedFields lists for each field the other fields that it excludes. When the field is
// given, it replaces them.
var excludedFields = map[string][]string{
	"max_retries": {"max_attempts"}, "timeout_ms": {"timeout"}, "stdin": {"stdin_file"}, "stdin_file": {"stdin"},
	"command": {"argv"}, "argv": {"command", "shell"}, "max_attempts": {"max_retries"}, "run_at": {"delay"},
	"delay": {"run_at"},
}

// Override sets the fields that flags gives. They replace the fields of s with the same name, and the fields that
// they exclude. Maps are merged.
func (s *Spec) Override(flags *Spec) {
	merged, given := s.GivenFields(), flags.GivenFields()
	for name, value := range given {
		current, ok := merged[name].(map[string]string)
		if added, isMap := value.(map[string]string); ok && isMap {
			combined := maps.Clone(current)
			maps.Copy(combined, added)
			given[name] = combined
		}
	}
	replaceFields(merged, given)
	raw, err := json.Marshal(merged)
	if err == nil {
		err = s.UnmarshalJSON(raw)
	}
	if err != nil {
		panic("queue: cannot merge two valid job definitions: " + err.Error()) // both specs were valid
	}
}

// Edit changes a waiting job according to a merge patch (RFC 7386). The parameter set is a JSON
// object of fields. The value null restores a field's default, and maps are merged. Edit does not
// change the account that the job runs as; only a caller that knows the accounts can change it. If
// Edit returns an error, the job is unchanged.
func (j *Job) Edit(set json.RawMessage, d Defaults) error {
	fields := SpecOf(j).GivenFields()
	delete(fields, "id")
	patch, err := readPatch(set, fields)
	if err != nil {
		return err
	}
	if delay, given := patch["delay"]; given && delay == nil && patch["run_at"] == nil {
		delete(fields, "run_at") // delay null removes run_at, since a stored job has no delay
	}
	replaceFields(fields, patch)
	restoreLarge := detachUnchangedValues(fields, patch)
	if _, timeout := patch["timeout_ms"]; timeout && patch["timeout_ms"] == nil {
		delete(fields, "timeout")
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	var s Spec
	if err := s.UnmarshalJSON(raw); err != nil {
		return err
	}
	restoreLarge(&s)
	edited, err := Resolve(&s, d)
	if err != nil {
		return err
	}
	if edited.MaxAttempts <= j.Attempts {
		return Invalid("max_retries", "the job has already made %d attempts; use %[1]d or more, or cancel the job",
			j.Attempts)
	}
	_, depends := patch[JointEditFields.With]
	if _, alone := patch[JointEditFields.Field]; alone && !depends {
		return Invalid(JointEditFields.Field, "can only be changed together with field %s; set both", JointEditFields.With)
	}
	edited.User, edited.AsUID = j.User, j.AsUID
	j.Queue, j.Demands, j.Priority, j.MaxAttempts, j.Execution, j.ExpiresAt = edited.Queue, edited.Demands,
		edited.Priority, edited.MaxAttempts, edited.Execution, edited.ExpiresAt
	j.Unique, j.UniqueFor, j.HookEvents = edited.Unique, edited.UniqueFor,
		edited.HookEvents|j.HookEvents&(IsHook|HookFromSettings)
	if depends {
		j.DependsOn, j.OnDependencyFailure = edited.DependsOn, edited.OnDependencyFailure
		if j.DependsOn == nil {
			j.DependsOn = []Dependency{} // empty, because nil would leave the dependencies unchanged
		}
	}
	j.setDueTime(&edited, &s, patch)
	return nil
}

// setDueTime sets the time when an edited job is due. If the patch removes that time, the job is due
// now.
func (j *Job) setDueTime(edited *Job, given *Spec, patch map[string]any) {
	if edited.RunAt != 0 {
		j.RunAt = edited.RunAt
	}
	j.Delay = edited.Delay
	for _, name := range []string{"run_at", "delay"} {
		if value, cleared := patch[name]; cleared && value == nil && edited.RunAt == 0 && edited.Delay == 0 {
			j.Delay = time.Nanosecond // the patch removed the time, so the job is due now
		}
	}
	if given.Delay != nil && *given.Delay == 0 {
		j.Delay = time.Nanosecond // a delay of 0 means that the job is due now
	}
}

// UneditableField is the only field that an edit cannot change.
const UneditableField = "id"

// JointEditFields names a field that an edit may contain only together with the field With.
var JointEditFields = struct{ Field, With string }{"on_dependency_failure", "depends_on"}

// readPatch returns the fields that an edit sets. It merges maps in the edit into the job's maps.
func readPatch(set json.RawMessage, fields map[string]any) (patch map[string]any, err error) {
	patch = map[string]any{}
	given := map[string]bool{} // for fields with two names: whether the field was already given
	err = EachMember(set, func(name string, value json.RawMessage) error {
		f := fieldsByName()[name]
		switch {
		case f == nil:
			return Invalid(name, "unknown job field%s", unknownFieldHint(name))
		case f.Name == UneditableField:
			return Invalid(name, "the id of a job cannot be changed; enqueue a new job and remove this one")
		case given[f.Name]:
			return Invalid(name, "%s and %s are the same field; use only one of them", f.Name, f.Alias)
		}
		given[f.Name] = f.Alias != ""
		switch {
		case string(value) == "null":
			patch[f.Name] = nil
		case f.Kind == KindMap:
			merged, err := f.mergeMap(fields[f.Name], value)
			patch[f.Name] = merged
			return err
		default:
			patch[f.Name] = value
		}
		return nil
	})
	if err == nil && len(patch) == 0 {
		err = Invalid("set", "no changes given; give at least one field of the job")
	}
	return patch, err
}
