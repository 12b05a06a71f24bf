package queue

import "sync"

// FieldRule is a rule about two fields of a job: one field either requires or excludes the other one. ResolveSpec
// checks every spec against these rules, and the JSON Schema of a job contains the same rules. A field that is null,
// false, or an empty map counts as not given.
//
// For example, {Field: "unique_for", OtherField: "unique", RequiresOtherField: true, …} rejects {"unique_for": "1h"}.
// Its schema is {"anyOf": [{"not": {"required": ["unique_for"]}}, {"required": ["unique"]}]}.
type FieldRule struct {
	Field              string // field that the error names
	OtherField         string
	RequiresOtherField bool // true: Field requires OtherField; false: it excludes OtherField
	Message            string
	// areEquivalent reports whether Field and OtherField have equivalent values. ResolveSpec then accepts both
	// fields. The reason is that replies of the service contain both, and a client may send them back. A schema cannot
	// express this exception, so the schema accepts only one of the fields.
	areEquivalent func(*Spec) bool
}

// FieldRules lists the rules about combinations of job fields.
var FieldRules = []FieldRule{
	{"command", "argv", false, `differs from field "argv"; use only one of them`, sameCommandAndArgv},
	{"shell", "argv", false, `works only with field "command"; argv runs without a shell`, nil},
	{"stdin", "stdin_file", false, "cannot be combined with field stdin_file; use only one of them", nil},
	{"tty", "stdin", false, `cannot be combined with field "stdin"; ` + terminalInputMessage, nil},
	{"tty", "stdin_file", false, "cannot be combined with field stdin_file; " + terminalInputMessage, nil},
	{"max_attempts", "max_retries", false,
		"must be one more than field max_retries; use only one of them", sameAttemptsAndRetries},
	// Only the schema uses this row. For a spec, DecodeJSON has already compared the two fields.
	{"timeout_ms", "timeout", false, `differs from field "timeout"; use only one of them`, nil},
	{"delay", "run_at", false, "cannot be combined with field run_at; use only one of them", nil},
	{"unique_for", "unique", true, `works only with field "unique"; use both or neither`, nil},
	{"on_conflict", "unique", true, `works only with field "unique"; use both or neither`, nil},
	{"mask_secrets", "env_secret", true, "works only with field env_secret; use both or neither", nil},
}

// terminalInputMessage is the message for a job that requests a terminal and also another source of standard
// input.
const terminalInputMessage = "a job with a terminal reads its input from the terminal; use only one of these fields"

func sameCommandAndArgv(s *Spec) bool { return *s.Command == CommandText("", s.Argv) }

func sameAttemptsAndRetries(s *Spec) bool { return *s.MaxAttempts == *s.MaxRetries+1 }

// fieldRuleWithFields is a FieldRule with the two fields that it names.
type fieldRuleWithFields struct {
	*FieldRule
	field, otherField *Field
}

// fieldRulesWithFields finds the fields of each rule only once, because each enqueued job is checked.
var fieldRulesWithFields = sync.OnceValue(func() (rules []fieldRuleWithFields) {
	for i := range FieldRules {
		r := &FieldRules[i]
		rules = append(rules, fieldRuleWithFields{r, fieldsByName()[r.Field], fieldsByName()[r.OtherField]})
	}
	return rules
})

// checkFieldRules reports the fields of the spec that violate one of the FieldRules.
func (s *Spec) checkFieldRules(check fieldChecker) {
	for _, r := range fieldRulesWithFields() {
		if !s.hasField(r.field) {
			continue
		}
		hasOther := s.hasField(r.otherField)
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
