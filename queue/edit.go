package queue

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"time"
)

// SpecOfJob returns a spec that requests the same job as j. The spec sets every field that affects how the job
// runs. So a new job from this spec does not depend on the current defaults.
func SpecOfJob(j *Job) *Spec {
	retries := int64(j.MaxAttempts) - 1
	onLost := string(j.OnLost)
	s := &Spec{
		ID: &j.ID, Unique: NonZeroPtr(j.Unique), UniqueFor: NonZeroPtr(j.UniqueFor), Lock: FirstDemandText(j, GateLock),
		RateLimit: FirstDemandText(j, GateRate), NodeSelector: FirstDemandText(j, GateNode),
		Resources:  valuesByName(demandTexts(j, GateResource)),
		Priority:   &j.Priority,
		MaxRetries: &retries, Timeout: &j.Timeout, KillAfter: &j.KillAfter,
		Umask: &j.Umask, OkCodes: j.OkCodes, NoRetryCodes: j.NoRetryCodes, DeferCodes: j.DeferCodes,
		IdleTimeout: NonZeroPtr(j.IdleTimeout), StdinFile: NonZeroPtr(j.StdinFile), OnLost: &onLost,
		OutputLimit:   &j.OutputLimitBytes,
		BackoffJitter: j.Backoff.Jitter, BackoffBase: NonZeroPtr(j.Backoff.BaseSeconds),
		BackoffMax:      NonZeroPtr(j.Backoff.MaxDelay),
		BackoffStrategy: NonZeroPtr(string(j.Backoff.Strategy)), Cwd: NonZeroPtr(j.Cwd), Stdin: NonZeroPtr(j.Stdin),
		ExpiresAt: NonZeroPtr(j.ExpiresAt), AllowBackground: NonZeroPtr(j.AllowBackground), Memory: NonZeroPtr(j.MemoryBytes),
		CPUs: NonZeroPtr(j.CPUs), Tasks: NonZeroPtr(j.Tasks), Nice: NonZeroPtr(j.Nice), NoFile: NonZeroPtr(j.MaxOpenFiles),
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
	s.Env, s.EnvSecret = valuesByName(j.Env), valuesByName(j.SecretReferences)
	if j.RunAsUID != nil {
		s.User = &j.RunAsUser
	}
	if len(j.Labels) > 0 {
		s.Labels = maps.Clone(j.Labels)
	}
	return s
}

// valuesByName converts entries of the form NAME=value to a map. It returns nil if there are no entries.
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

// NonZeroPtr returns a pointer to v, or nil if v is the zero value of its type.
func NonZeroPtr[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// mergeJSON sets the field from a JSON value, like setJSON. But if the field is a map, mergeJSON keeps the existing
// entries and adds those of the value. An entry with the value null is removed.
func (f *Field) mergeJSON(s *Spec, value json.RawMessage) error {
	if f.Kind != KindMap {
		return f.setJSON(s, value)
	}
	merged := f.copyOfMap(s)
	err := EachMember(value, func(key string, v json.RawMessage) (err error) {
		delete(merged, key)
		if string(v) != "null" {
			merged[key], err = f.decodeText(v)
		}
		return err
	})
	if err != nil {
		return InvalidFieldError(f.Name, "must be a JSON object with text values, like {\"a\": \"b\"}; null removes an entry")
	}
	f.specMember(s).Set(reflect.ValueOf(merged))
	return nil
}

// exclusiveFields lists, for each field, the fields that cannot be set together with it. Setting the field
// clears them.
var exclusiveFields = map[string][]string{
	"max_retries": {"max_attempts"}, "timeout_ms": {"timeout"}, "stdin": {"stdin_file"}, "stdin_file": {"stdin"},
	"command": {"argv"}, "argv": {"command", "shell"}, "max_attempts": {"max_retries"}, "run_at": {"delay"},
	"delay": {"run_at"},
}

// clearExclusiveFields clears the fields that cannot be set together with the field fieldName. It keeps the fields for
// which isGiven returns true.
func (s *Spec) clearExclusiveFields(fieldName string, isGiven func(name string) bool) {
	for _, other := range exclusiveFields[fieldName] {
		if !isGiven(other) {
			fieldsByName()[other].specMember(s).SetZero()
		}
	}
}

// Override copies each field that overrides sets to s. For a map, it adds the entries to those of s. It clears each
// field of s that cannot be set together with a copied field.
func (s *Spec) Override(overrides *Spec) {
	isGiven := func(name string) bool { return !fieldsByName()[name].specMember(overrides).IsNil() }
	for _, f := range SpecFields() {
		if !isGiven(f.Name) {
			continue
		}
		s.clearExclusiveFields(f.Name, isGiven)
		value := f.specMember(overrides)
		if added, isMap := value.Interface().(map[string]string); isMap {
			merged := f.copyOfMap(s)
			maps.Copy(merged, added)
			value = reflect.ValueOf(merged)
		}
		f.specMember(s).Set(value)
	}
}

// Edit changes a waiting job according to a merge patch (RFC 7386): a JSON object of fields. The value null restores a
// field's default. Maps are merged. Edit does not change under which account the job runs, because the caller does
// that. If Edit returns an error, the job is unchanged.
func (j *Job) Edit(patchJSON json.RawMessage, d JobDefaults) error {
	patch, err := parsePatch(patchJSON)
	if err != nil {
		return err
	}
	s := SpecOfJob(j)
	s.ID = nil
	isPatched := func(name string) bool { return patch[name] != nil }
	for name, value := range patch {
		f := fieldsByName()[name]
		if isJSONNull(value) || f.Kind != KindMap {
			f.specMember(s).SetZero()
		}
		if !isJSONNull(value) {
			s.clearExclusiveFields(name, isPatched)
		}
	}
	if isJSONNull(patch["delay"]) {
		s.RunAt = nil // a stored job has run_at instead of delay, so null for delay clears run_at
	}
	if err := s.setMembers(patchJSON, nil, (*Field).mergeJSON); err != nil {
		return err
	}
	edited, err := ResolveSpec(s, d)
	if err != nil {
		return err
	}
	if edited.MaxAttempts <= j.Attempts {
		return InvalidFieldError("max_retries", "the job has already made %d attempts; use %[1]d or more, or cancel the job",
			j.Attempts)
	}
	depends := isPatched(JointEditFields.RequiredField)
	if isPatched(JointEditFields.Field) && !depends {
		return InvalidFieldError(JointEditFields.Field, "can only be changed together with field %s; set both",
			JointEditFields.RequiredField)
	}
	edited.RunAsUser, edited.RunAsUID = j.RunAsUser, j.RunAsUID
	j.Queue, j.Demands, j.Priority, j.MaxAttempts, j.ExecutionSettings, j.ExpiresAt = edited.Queue, edited.Demands,
		edited.Priority, edited.MaxAttempts, edited.ExecutionSettings, edited.ExpiresAt
	j.Unique, j.UniqueFor, j.HookEvents = edited.Unique, edited.UniqueFor,
		edited.HookEvents|j.HookEvents&(HookJobFlag|SettingsHookFlag)
	if depends {
		j.DependsOn, j.OnDependencyFailure = edited.DependsOn, edited.OnDependencyFailure
		if j.DependsOn == nil {
			j.DependsOn = []Dependency{} // an empty list removes all dependencies; nil would keep them
		}
	}
	j.setDueTime(&edited, s, patch)
	return nil
}

// setDueTime sets the time when the edited job is due. If the patch removes this time, the job is due now.
func (j *Job) setDueTime(edited *Job, patchedSpec *Spec, patch map[string]json.RawMessage) {
	if edited.RunAt != 0 {
		j.RunAt = edited.RunAt
	}
	j.Delay = edited.Delay
	if (isJSONNull(patch["run_at"]) || isJSONNull(patch["delay"])) && edited.RunAt == 0 && edited.Delay == 0 {
		j.Delay = time.Nanosecond // the patch cleared the time, so the job is due now
	}
	if patchedSpec.Delay != nil && *patchedSpec.Delay == 0 {
		j.Delay = time.Nanosecond // an explicit delay of 0 also means due now
	}
}

// UneditableField is the only field that an edit cannot change.
const UneditableField = "id"

// JointEditFields means that an edit which contains Field must also contain RequiredField.
var JointEditFields = struct{ Field, RequiredField string }{"on_dependency_failure", "depends_on"}

// isJSONNull reports whether a field has the value null in a patch. value is nil if the patch does not contain the
// field.
func isJSONNull(value json.RawMessage) bool { return string(value) == "null" }

// parsePatch returns the values of a merge patch by field. It does not check the values.
func parsePatch(patchJSON json.RawMessage) (map[string]json.RawMessage, error) {
	patch := map[string]json.RawMessage{}
	err := EachMember(patchJSON, func(name string, value json.RawMessage) error {
		f := fieldsByName()[name]
		switch {
		case f == nil:
			return CheckFieldName(name)
		case f.Name == UneditableField:
			return InvalidFieldError(name, "the id of a job cannot be changed; enqueue a new job and remove this one")
		}
		patch[f.Name] = value
		return nil
	})
	if err == nil && len(patch) == 0 {
		err = InvalidFieldError("set", "no changes given; give at least one field of the job")
	}
	return patch, err
}
