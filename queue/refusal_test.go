package queue

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The error for an invalid JSON value says what is wrong and what to use instead. It contains no error text of
// Go's libraries. For a number beyond the range of its type, it says that the number is too large.
func TestInvalidJSONValueErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct{ field, value, want string }{
		{"priority", `1000001`, "1000001 is too large; use a number from -1000000 to 1000000"},
		{"priority", `99999999999999999999`, "99999999999999999999 is too large; use a smaller number"},
		{"priority", `-99999999999999999999`, "-99999999999999999999 is too small; use a larger number"},
		{"priority", `1.5`, `"1.5" is not a whole number; use digits only, for example 10`},
		{"priority", `"5"`, `must be a whole number, without quotes`},
		{"max_attempts", `0`, "0 is too small; use a number from 1 to 1000000"},
		{"jitter", `2`, "2 is too large; use a number from 0 to 1"},
		{"jitter", `1e400`, "1e400 is too large; use a smaller number"},
		{"backoff_base", `0`, "0 is too small; use a number above 0, at most 1000000000"},
		{"backoff_max", `0`, "0s is too short; use a duration above 0s, at most 3650d"},
		{"backoff_max", `"0s"`, "0s is too short; use a duration above 0s, at most 3650d"},
		{"timeout", `1e400`, "too long; the maximum is 3650d (ten years)"},
		{"timeout", `315360001`, "too long; the maximum is 3650d (ten years)"},
		{"timeout", `"3651d"`, "too long; the maximum is 3650d (ten years)"},
		{"timeout", `-1`, "cannot be negative; use 0 or more"},
		{"timeout", `"-1"`, "cannot be negative; use 0 or more"},
		{"timeout", `"-5s"`, "cannot be negative; use 0 or more"},
		{"timeout", `true`, `must be a number of seconds, or text like "90s"`},
		{"timeout", `"NaN"`, `"NaN" is not a duration; write it like 90s, 1h30m or 7d`},
		{"timeout", `"Inf"`, `"Inf" is not a duration; write it like 90s, 1h30m or 7d`},
		{"timeout", `"0x10"`, `"0x10" is not a duration; write it like 90s, 1h30m or 7d`},
		{"timeout_ms", `99999999999999999999`, "99999999999999999999 is too large; use a smaller number"},
		{"memory", `1`, `1 is too small; use a size from 1MiB to 1PiB, or leave out field "memory" for no limit`},
		{"memory", `"-1"`, "cannot be negative; use 0 or more"},
		{"memory", `"2PiB"`, "too large; the maximum is 1PiB"},
		{"memory", `"nan"`, `"nan" is not a size; write it like 4096, 64K or 1MiB`},
		{"memory", `"0x10"`, `"0x10" is not a size; write it like 4096, 64K or 1MiB`},
		{"unique_for", `"1h"`, `works only with field "unique"; use both or neither`},
		{"on_conflict", `"reject"`, `works only with field "unique"; use both or neither`},
	} {
		raw, _ := json.Marshal(map[string]any{"command": "true", c.field: json.RawMessage(c.value)})
		var s Spec
		err := s.UnmarshalJSON(raw)
		if err == nil {
			_, err = ResolveSpec(&s, JobDefaults{Shell: "sh", OnLost: OnLostRetry})
		}
		if want := c.field + ": " + c.want; err == nil || err.Error() != want {
			t.Errorf("%s %s: got %v, want %s", c.field, c.value, err, want)
		}
	}
}

// An invalid value of a command-line flag causes the same error as the same value in JSON.
func TestInvalidFlagErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct{ field, value, want string }{
		{"priority", "high", `priority: "high" is not a whole number; use digits only, for example 10`},
		{"priority", "1.5", `priority: "1.5" is not a whole number; use digits only, for example 10`},
		{"priority", "99999999999999999999", "priority: 99999999999999999999 is too large; use a smaller number"},
		{"jitter", "NaN", `jitter: "NaN" is not a number; write it like 0.5`},
		{"jitter", "1e400", "jitter: 1e400 is too large; use a smaller number"},
		{"ok_codes", "0,x", `ok_codes: "0,x" is not a list of exit codes; write it like 0,3`},
		{"ok_codes", "99999999999999999999", fmt.Sprint("ok_codes: must be a list of exit codes; use numbers from 0 to ",
			int64(maxExitCode))},
		{"env", "x", `env: "x" is not NAME=value`},
	} {
		var s Spec
		if err := s.SetFieldText(c.field, c.value); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %s", c.field, c.value, err, c.want)
		}
	}
}

// Some names that other tools use for a field are unknown here, such as cmd. The error suggests the field with
// the same meaning, even if another field has a more similar name.
func TestUnknownFieldErrorSuggestsSynonym(t *testing.T) {
	for name, want := range map[string]string{"cmd": "command", "dir": "cwd", "name": "id", "comand": "command"} {
		var s Spec
		err := s.DecodeJSON([]byte(`{"`+name+`":"x"}`), nil)
		if want := fmt.Sprintf("%s: unknown job field; did you mean %q?", name, want); err == nil || err.Error() != want {
			t.Errorf("unknown field %s: got %v, want %s", name, err, want)
		}
	}
}

// If a spec sets two fields that exclude each other, the error is about the first one, names the second one,
// and says what to do.
func TestExclusiveFieldErrorsSayWhatToDo(t *testing.T) {
	for job, want := range map[string]string{
		`{"command":"cat","tty":true,"stdin":"x"}`: `tty: cannot be combined with field "stdin"; a job with a terminal reads its input from the terminal; use only one of these fields`,
		`{"command":"cat","tty":true,"stdin_file":"/x"}`: "tty: cannot be combined with field stdin_file; a " +
			"job with a terminal reads its input from the terminal; use only one of these fields",
		`{"command":"cat","stdin":"x","stdin_file":"C:/x"}`: "stdin: cannot be combined with field stdin_file; " +
			"use only one of them",
		`{"command":"cat","delay":1,"run_at":"2099-01-01T00:00:00Z"}`: "delay: cannot be combined with field run_at; " +
			"use only one of them",
		`{"argv":["cat"],"shell":"sh"}`: `shell: works only with field "command"; argv runs without a shell`,
	} {
		var s Spec
		err := s.UnmarshalJSON([]byte(job))
		if err == nil {
			_, err = ResolveSpec(&s, JobDefaults{Shell: "sh", OnLost: OnLostRetry})
		}
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", job, err, want)
		}
	}
}
