package queue

import "slices"

// FieldRule is a condition on fields of a job that belong together, or exclude each other. Resolve checks each spec by
// the FieldRules, and the JSON Schema of a job declares the same rules. A field that is null, false, or a map without
// members counts as not given.
//
// An example: {Field: "unique_for", Others: []string{"unique"}, Requires: true, …} refuses {"unique_for": "1h"}, and
// makes {"anyOf": [{"not": {"required": ["unique_for"]}}, {"required": ["unique"]}]}.
type FieldRule struct {
	Field    string // the error names it
	Others   []string
	Requires bool // if Field is given, so must one of Others be; otherwise none of them may
	Message  string
	// same reports whether Field and the other one say the same. Resolve accepts that, because answers show both; a
	// schema cannot express it, and asks for one of them.
	same func(*Spec) bool
}

// FieldRules returns the rules on fields of a job.
func FieldRules() []FieldRule { return fieldRules }

var fieldRules = []FieldRule{
	{"command", []string{"argv"}, false, "differs from argv; give one of them", sameCommand},
	{"shell", []string{"argv"}, false, "works only with command; leave it out with argv", nil},
	{"stdin", []string{"stdin_file"}, false, "cannot be combined with stdin_file; give one of them", nil},
	{"tty", []string{"stdin"}, false, "cannot be combined with stdin; " + terminalReads, nil},
	{"tty", []string{"stdin_file"}, false, "cannot be combined with stdin_file; " + terminalReads, nil},
	{"max_attempts", []string{"max_retries"}, false,
		"differs from max_retries, which does not count the first attempt; give one of them", sameAttempts},
	{"timeout_ms", []string{"timeout"}, false, "differs from timeout; give one of them", nil}, // Decode compares them
	{"delay", []string{"run_at"}, false, "cannot be combined with run_at; give one of them", nil},
	{"unique_for", []string{"unique"}, true, "works only with unique; give both, or leave it out", nil},
	{"on_conflict", []string{"unique"}, true, "works only with unique; give both, or leave it out", nil},
	{"mask_secrets", []string{"env_secret"}, true, "works only with env_secret; give both, or leave it out", nil},
}

// terminalReads is why a job with a terminal has no other standard input.
const terminalReads = "a job with a terminal reads what is typed there, so leave one of them out"

func sameCommand(s *Spec) bool { return *s.Command == CommandText("", s.Argv) }

func sameAttempts(s *Spec) bool { return *s.MaxAttempts == *s.MaxRetries+1 }

// checkRules refuses fields that do not belong together, or lack another one.
func (s *Spec) checkRules(check checker) {
	for i := range fieldRules {
		r := &fieldRules[i]
		if !s.has(r.Field) {
			continue
		}
		with := slices.ContainsFunc(r.Others, s.has)
		check(with == r.Requires || with && r.same != nil && r.same(s), r.Field, "%s", r.Message)
	}
}

// has reports whether a field is given, and is not false or a map without members.
func (s *Spec) has(name string) bool {
	switch v := fieldsByName()[name].get(s).(type) {
	case nil:
		return false
	case bool:
		return v
	case map[string]string:
		return len(v) > 0
	}
	return true
}
