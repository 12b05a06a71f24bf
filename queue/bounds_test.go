package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
)

// jsonObject returns a JSON object with n members, which all have the given value.
func jsonObject(n int, value string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":%s`, i, value)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// jsonArray returns a JSON array of n elements, which all have the given value.
func jsonArray(n int, value string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]"
}

// An object may have at most MaxObjectMembers members. EachMember reports a duplicate name even in an object with
// many members.
func TestObjectMemberCountIsBounded(t *testing.T) {
	members := func(raw string) (n int, err error) {
		return n, queue.EachMember([]byte(raw), func(string, json.RawMessage) error { n++; return nil })
	}
	if n, err := members(jsonObject(queue.MaxObjectMembers, "1")); n != queue.MaxObjectMembers || err != nil {
		t.Errorf("at the limit: %d members, %v", n, err)
	}
	if n, err := members(jsonObject(queue.MaxObjectMembers+1, "1")); n != queue.MaxObjectMembers ||
		!errors.Is(err, queue.ErrInvalid) ||
		!strings.Contains(err.Error(), "the maximum is 16384") {
		t.Errorf("one beyond the limit: %d members, %v", n, err)
	}
	for _, n := range []int{1, 15, 16, 17, 1000} {
		twice := strings.TrimSuffix(jsonObject(n, "1"), "}") + fmt.Sprintf(`,"k%d":2}`, n/2)
		var e *queue.Error
		if got, err := members(twice); got != n || !errors.As(err, &e) || e.Field != fmt.Sprintf("k%d", n/2) ||
			!strings.Contains(e.Message, "twice") {
			t.Errorf("%d members, one of them twice: got %d members, %v", n, got, err)
		}
	}
}

// A field accepts its maximum number of entries. With one more entry, parsing fails with an error that names
// the field.
func TestSpecFieldsBoundEntryCount(t *testing.T) {
	for _, c := range []struct {
		field, at, beyond string
	}{
		{"labels", jsonObject(queue.MaxLabels, `""`), jsonObject(queue.MaxLabels+1, `""`)},
		{"ok_codes", jsonArray(queue.MaxExitCodes, "1"), jsonArray(queue.MaxExitCodes+1, "1")},
		{"no_retry_codes", jsonArray(queue.MaxExitCodes, "1"), jsonArray(queue.MaxExitCodes+1, "1")},
		{"defer_codes", jsonArray(queue.MaxExitCodes, "1"), jsonArray(queue.MaxExitCodes+1, "1")},
		{"argv", jsonArray(queue.MaxArgsEnvBytes, `""`), jsonArray(queue.MaxArgsEnvBytes+1, `""`)},
		{"env", jsonObject(queue.MaxObjectMembers, `""`), jsonObject(queue.MaxObjectMembers+1, `""`)},
	} {
		if err := new(queue.Spec).UnmarshalJSON([]byte(`{"` + c.field + `":` + c.at + `}`)); err != nil {
			t.Errorf("%s at its limit: %v", c.field, err)
		}
		var e *queue.Error
		if err := new(queue.Spec).UnmarshalJSON([]byte(`{"` + c.field + `":` + c.beyond + `}`)); !errors.As(err, &e) ||
			e.Field != c.field || !strings.Contains(e.Message, "too many") {
			t.Errorf("%s beyond the limit: got %.200v", c.field, err)
		}
	}
}

// An error lists at most 20 problems, and says if there are more. Only the first unknown name gets a suggestion,
// because the search for a similar name takes long.
func TestListedProblemsAreBounded(t *testing.T) {
	for n, more := range map[int]bool{1: false, 20: false, 21: true, queue.MaxObjectMembers: true} {
		raw := strings.ReplaceAll(jsonObject(n, "1"), `"k`, `"comman`)
		err := new(queue.Spec).UnmarshalJSON([]byte(raw))
		if got := strings.Count(err.Error(), "unknown job field"); got != min(n, 20) {
			t.Errorf("%d faults: the error lists %d", n, got)
		}
		if got := strings.HasSuffix(err.Error(), "; and more errors"); got != more {
			t.Errorf("%d faults: the error mentions more errors: %t", n, got)
		}
		if got := strings.Count(err.Error(), "did you mean"); got != 1 {
			t.Errorf("%d faults: %d names are suggested, want that of the first", n, got)
		}
	}
	env := map[string]string{}
	for i := range 1000 {
		env[fmt.Sprint("a=", i)] = ""
	}
	_, err := queue.ResolveSpec(&queue.Spec{Command: ptr("true"), Env: env}, serviceDefaults)
	if got := strings.Count(err.Error(), "is not a valid variable name"); got != 20 ||
		!strings.HasSuffix(err.Error(), "; and more errors") {
		t.Errorf("1000 invalid variables: the error lists %d", got)
	}
}

// An error repeats only a short part of a long invalid value. The error is valid UTF-8.
func TestErrorsClipInvalidValues(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1<<20), strings.Repeat("é", 1<<19), strings.Repeat(`\u0001`, 1<<17),
		strings.Repeat("7", 1<<20), "1" + strings.Repeat("0", 1<<20) + "s"} {
		for _, f := range queue.SpecFields() {
			for _, value := range []string{`"` + text + `"`, `{"` + text + `":1}`, `["` + text + `",1]`} {
				var s queue.Spec
				err := s.UnmarshalJSON([]byte(`{"` + f.Name + `":` + value + `}`))
				if err == nil {
					_, err = queue.ResolveSpec(&s, serviceDefaults)
				}
				if err != nil && (len(err.Error()) > 1024 || !utf8.ValidString(err.Error())) {
					t.Errorf("%s: %.20s…: an error of %d bytes: %.200q", f.Name, value, len(err.Error()), err)
				}
			}
		}
		err := new(queue.Spec).UnmarshalJSON([]byte(`{"` + text + `":1}`))
		if len(err.Error()) > 1024 || !utf8.ValidString(err.Error()) {
			t.Errorf("a field %.20s…: an error of %d bytes", text, len(err.Error()))
		}
		if _, err := queue.ParseStates(text); len(err.Error()) > 1024 {
			t.Errorf("a state %.20s…: an error of %d bytes", text, len(err.Error()))
		}
	}
}

// A clipped text takes at most 80 bytes in JSON and ends with a whole character.
func TestClippedTextIsBounded(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "short": "short", strings.Repeat("x", 80): strings.Repeat("x", 80),
		strings.Repeat("x", 81): strings.Repeat("x", 80) + "…",
		strings.Repeat("é", 40): strings.Repeat("é", 40), strings.Repeat("é", 41): strings.Repeat("é", 40) + "…",
		strings.Repeat("\x01", 13): strings.Repeat("\x01", 13), strings.Repeat("\x01", 14): strings.Repeat("\x01", 13) + "…",
		strings.Repeat(`"`, 41): strings.Repeat(`"`, 40) + "…", strings.Repeat("<", 14): strings.Repeat("<", 13) + "…",
		strings.Repeat("\u2028", 14): strings.Repeat("\u2028", 13) + "…",
		strings.Repeat("\xff", 14):   strings.Repeat("\xff", 13) + "…",
	} {
		got := queue.ClipForMessage(text)
		raw, err := json.Marshal(strings.TrimSuffix(got, "…"))
		if got != want || err != nil || len(raw) > 82 {
			t.Errorf("%.20q: got %q (%d bytes in JSON), want %q", text, got, len(raw), want)
		}
	}
}

// An edit neither encodes nor decodes a large value of a field that it does not change.
func TestEditDoesNotEncodeUnchangedValues(t *testing.T) {
	large := &queue.Spec{Command: ptr("true"), Stdin: ptr(strings.Repeat("\x01", queue.MaxStdinBytes)),
		Env: map[string]string{}}
	for i := range 3 {
		large.Env[fmt.Sprint("V", i)] = strings.Repeat("\x01", 128_000)
	}
	j, err := queue.ResolveSpec(large, serviceDefaults)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	old := j
	if err := j.Edit(json.RawMessage(`{"priority":9}`), serviceDefaults); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("the edit allocated %d bytes", n)
	}
	if old.Priority = 9; !reflect.DeepEqual(j.ExecutionSettings, old.ExecutionSettings) || j.Priority != 9 {
		t.Errorf("the job has changed: %.200v", j)
	}
	argv := queue.Job{MaxAttempts: 1, ExecutionSettings: queue.ExecutionSettings{Argv: []string{"a", "b"},
		OnLost: queue.OnLostRetry,
		Env:    []string{"A=1"}, Stdin: "x"}}
	for set, want := range map[string]queue.ExecutionSettings{
		`{"command":"c"}`:                {Command: "c", Env: []string{"A=1"}, Stdin: "x"},
		`{"argv":["c"]}`:                 {Argv: []string{"c"}, Env: []string{"A=1"}, Stdin: "x"},
		`{"env":{"B":"2"}}`:              {Argv: []string{"a", "b"}, Env: []string{"A=1", "B=2"}, Stdin: "x"},
		`{"env":null,"stdin":null}`:      {Argv: []string{"a", "b"}, Env: []string{}},
		`{"stdin_file":"/f"}`:            {Argv: []string{"a", "b"}, Env: []string{"A=1"}, StdinFile: "/f"},
		`{"priority":1,"env":{"A":"3"}}`: {Argv: []string{"a", "b"}, Env: []string{"A=3"}, Stdin: "x"},
	} {
		j := argv
		if err := j.Edit(json.RawMessage(set), serviceDefaults); err != nil {
			t.Errorf("%s: %v", set, err)
		}
		got := queue.ExecutionSettings{Command: j.Command, Argv: j.Argv, Env: j.Env, Stdin: j.Stdin, StdinFile: j.StdinFile}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", set, got, want)
		}
	}
}
