package queue

import (
	"slices"
	"sync"
)

// FieldRule is a rule about fields of a job: either a field requires one of several other fields, or it excludes all of
// them. ResolveSpec checks every spec against these rules, and the JSON Schema of a job contains the same rules. A
// field that is null, false, or an empty map counts as not given.
//
// For example, {Field: "unique_for", OtherFields: []string{"unique"}, RequiresOtherField: true, …} rejects
// {"unique_for": "1h"}. Its schema is {"requireSetA": [{"not": {"required": ["unique_for"]}}, {"required":
// ["unique"]}]}.
type FieldRule struct {
	Field              string // field that the error names
	OtherFields        []string
	RequiresOtherField bool // true: Field requires at least one of OtherFields; false: it excludes all of them
	Message            string
	// areEquivalent reports whether Field and the other field have equivalent values. ResolveSpec then accepts both
	// fields. The reason is that replies of the service contain both, and a client may send them back. A schema cannot
	// express this exception, so the schema accepts only one of the fields.
	areEquivalent func(*Spec) bool
}

// FieldRules returns the rules about combinations of job fields.
func FieldRules() []FieldRule { return fieldRules }

var fieldRules = []FieldRule{
	{"command", []string{"argv"}, false, `differs from field "argv"; use only one of them`, sameCommandAndArgv},
	{"shell", []string{"argv"}, false, `works only with field "command"; argv runs without a shell`, nil},
	{"stdin", []string{"stdin_file"}, false, "cannot be combined with field stdin_file; use only one of them", nil},
	{"tty", []string{"stdin"}, false, `cannot be combined with field "stdin"; ` + terminalInputMessage, nil},
	{"tty", []string{"stdin_file"}, false, "cannot be combined with field stdin_file; " + terminalInputMessage, nil},
	{"max_attempts", []string{"max_retries"}, false,
		"must be one more than field max_retries; use only one of them", sameAttemptsAndRetries},
	// Only the schema uses this row. For a spec, DecodeJSON has already compared the two fields.
	{"timeout_ms", []string{"timeout"}, false, `differs from field "timeout"; use only one of them`, nil},
	{"delay", []string{"run_at"}, false, "cannot be combined with field run_at; use only one of them", nil},
	{"unique_for", []string{"unique"}, true, `works only with field "unique"; use both or neither`, nil},
	{"on_conflict", []string{"unique"}, true, `works only with field "unique"; use both or neither`, nil},
	{"mask_secrets", []string{"env_secret"}, true, "works only with field env_secret; use both or neither", nil},
}

// terminalInputMessage is the message for a job that requests a terminal and also another source of standard
// input.
const terminalInputMessage = "a job with a terminal reads its input from the terminal; use only one of these fields"

func sameCommandAndArgv(s *Spec) bool { return *s.Command == CommandText("", s.Argv) }

func sameAttemptsAndRetries(s *Spec) bool { return *s.MaxAttempts == *s.MaxRetries+1 }

// fieldRuleWithFields is a FieldRule with the fields that it names.
type fieldRuleWithFields struct {
	*FieldRule
	field       *Field
	otherFields []*Field
}

// fieldRulesWithFields finds the fields of each rule only once, because each enqueued job is checked.
var fieldRulesWithFields = sync.OnceValue(func() (rules []fieldRuleWithFields) {
	for i := range fieldRules {
		r := fieldRuleWithFields{FieldRule: &fieldRules[i], field: fieldsByName()[fieldRules[i].Field]}
		for _, name := range r.OtherFields {
			r.otherFields = append(r.otherFields, fieldsByName()[name])
		}
		rules = append(rules, r)
	}
	return rules
})

// checkFieldRules reports the fields of the spec that violate one of the fieldRules.
func (s *Spec) checkFieldRules(check fieldChecker) {
	for _, r := range fieldRulesWithFields() {
		if !s.hasField(r.field) {
			continue
		}
		hasOther := slices.ContainsFunc(r.otherFields, s.hasField)
		check(hasOther == r.RequiresOtherField || hasOther && r.areEquivalent != nil && r.areEquivalent(s),
			r.Field, "%s", r.Message)
	}
}

// hasField reports whether the spec sets a field to a value other than null, false or an empty map.
func (s *Spec) hasField(f *Field) bool {
	switch v := f.jsonValue(s).(type) {
	case nil:
		return false
	case bool:
		return v
	case map[string]string:
		return len(v) > 0
	}
	return true
}
