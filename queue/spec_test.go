package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/queue"
)

// drawOptional draws a pointer that is nil or points to a value of the generator g.
func drawOptional[T any](t *rapid.T, name string, g *rapid.Generator[T]) *T {
	return rapid.Ptr(g, true).Draw(t, name)
}

// drawSpec returns an arbitrary spec that JSON can express.
func drawSpec(t *rapid.T) *queue.Spec {
	text := rapid.StringMatching(`[ -~äß\n"\\]{0,20}`)
	number := rapid.Int64()
	span := rapid.Map(rapid.Int64Range(0, int64(queue.MaxDuration)),
		func(n int64) time.Duration { return time.Duration(n) })
	instant := rapid.Map(rapid.Int64Range(1, 253_402_300_799_999),
		func(n int64) queue.UnixMillis { return queue.UnixMillis(n) })
	words := rapid.SliceOfN(text, 1, 4)
	pairs := rapid.MapOfN(rapid.StringMatching(`[A-Za-z_.]{1,8}`), text, 1, 4)
	codes := rapid.SliceOfN(rapid.IntRange(0, 255), 1, 4)
	s := &queue.Spec{
		ID: drawOptional(t, "id", text), Command: drawOptional(t, "command", text),
		Priority:   drawOptional(t, "priority", number),
		MaxRetries: drawOptional(t, "retries", number), MaxAttempts: drawOptional(t, "attempts", number),
		Timeout: drawOptional(t, "timeout", span), KillAfter: drawOptional(t, "kill", span),
		BackoffBase:     drawOptional(t, "base", rapid.Float64()),
		BackoffStrategy: drawOptional(t, "strategy", text), BackoffMax: drawOptional(t, "max", span),
		BackoffJitter: drawOptional(t, "jitter", rapid.Float64()),
		RunAt:         drawOptional(t, "run_at", instant), Delay: drawOptional(t, "delay", span),
		ExpiresAt: drawOptional(t, "expires", instant),
		Cwd:       drawOptional(t, "cwd", text), Umask: drawOptional(t, "umask", rapid.IntRange(0, 0o777)),
		Shell: drawOptional(t, "shell", text),
		Stdin: drawOptional(t, "stdin", text), OnLost: drawOptional(t, "on_lost", text),
		AllowBackground: drawOptional(t, "background", rapid.Bool()), NoNewPrivileges: drawOptional(t,
			"no_new_privileges", rapid.Bool()),
		TTY:         drawOptional(t, "tty", rapid.Bool()),
		OutputLimit: drawOptional(t, "limit", rapid.Int64Range(0, 1<<50)), StdinFile: drawOptional(t, "stdin file", text),
		IdleTimeout: drawOptional(t, "idle", span),
	}
	if rapid.Bool().Draw(t, "lists") {
		s.Argv, s.Env, s.EnvPass, s.Labels = words.Draw(t, "argv"), pairs.Draw(t, "env"), words.Draw(t, "pass"),
			pairs.Draw(t, "labels")
		s.OkCodes, s.NoRetryCodes, s.DeferCodes = codes.Draw(t, "ok"), codes.Draw(t, "no retry"), codes.Draw(t, "defer")
	}
	return s
}

// A spec that is encoded as JSON and decoded again is unchanged, including every digit of its numbers.
func TestSpecRoundTripsThroughJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawSpec(t)
		raw, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got queue.Spec
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if !reflect.DeepEqual(&got, want) {
			t.Fatalf("%s\n got %+v\nwant %+v", raw, &got, want)
		}
	})
}

// Every spec in JSON can also be written with flags, and has the same meaning.
func TestSpecRoundTripsThroughFlags(t *testing.T) {
	kinds := map[string]queue.FieldKind{}
	for _, f := range queue.SpecFields() {
		kinds[f.Name] = f.Kind
	}
	rapid.Check(t, func(t *rapid.T) {
		want := drawSpec(t)
		var got queue.Spec
		for name, value := range want.GivenFields() {
			for _, flag := range flagValuesOf(kinds[name], value) {
				if err := got.SetFieldText(name, flag); err != nil {
					t.Fatalf("--%s %q: %v", name, flag, err)
				}
			}
		}
		if !reflect.DeepEqual(&got, want) {
			t.Fatalf("got %+v\nwant %+v", &got, want)
		}
	})
}

// flagValuesOf returns the values of the flags with which a user would set a field.
func flagValuesOf(kind queue.FieldKind, value any) (values []string) {
	switch v := value.(type) {
	case []string:
		return v
	case map[string]string:
		for k, text := range v {
			values = append(values, k+"="+text)
		}
		return values
	case []int:
		return []string{strings.Trim(strings.Join(strings.Fields(fmt.Sprint(v)), ","), "[]")}
	case float64:
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return []string{string(raw)}
	}
	return []string{fmt.Sprint(value)}
}

// Every field can be read from JSON, under both of its names if it has two. A value of the wrong type is
// rejected with an error that names the field.
func TestSpecReadsEveryField(t *testing.T) {
	good := map[string][2]string{
		"id": {`7`, `"7"`}, "command": {`"x"`, `"x"`}, "argv": {`["a","b"]`, `["a","b"]`}, "priority": {`-3`, `-3`},
		"max_retries": {`0`, `0`}, "max_attempts": {`4`, `4`}, "timeout": {`1.5`, `"1.5s"`}, "timeout_ms": {`1500`, ``},
		"kill_after": {`"1m30s"`, `"1m30s"`}, "backoff_base": {`1.5`, `1.5`}, "backoff_strategy": {`"linear"`, `"linear"`},
		"backoff_max": {`3600`, `"1h"`}, "jitter": {`0`, `0`},
		"run_at":      {`"2026-03-01T15:04:05+01:00"`, `"2026-03-01T14:04:05.000Z"`},
		"next_run_at": {`"2026-03-01T15:04:05Z"`, ``}, "delay": {`0`, `"0s"`},
		"expires_at": {`"2026-03-01T15:04:05.1239Z"`, `"2026-03-01T15:04:05.123Z"`},
		"env":        {`{"A":"b"}`, `{"A":"b"}`}, "env_pass": {`["*"]`, `["*"]`}, "env_secret": {`{"S":"/s"}`, `{"S":"/s"}`},
		"mask_secrets": {`true`, `true`}, "cwd": {`"/"`, `"/"`}, "user": {`"alice"`, `"alice"`}, "umask": {`"0077"`, `"077"`},
		"shell": {`"sh"`, `"sh"`}, "stdin": {`""`, `""`}, "stdin_file": {`"/in"`, `"/in"`}, "idle_timeout": {`90`, `"1m30s"`},
		"defer_codes": {`[75]`, `[75]`}, "ok_codes": {`[0,3]`, `[0,3]`}, "no_retry_codes": {`[]`, `[]`},
		"on_lost": {`"dead"`, `"dead"`}, "allow_background": {`true`, `true`}, "no_new_privileges": {`true`, `true`},
		"on_completed": {`"a"`, `"a"`}, "on_failed": {`"b"`, `"b"`}, "on_dead": {`"c"`, `"c"`}, "on_ended": {`""`, `""`},
		"tty": {`true`, `true`}, "labels": {`{"a":"é"}`, `{"a":"é"}`}, "output_limit": {`"64K"`, `65536`},
		"queue": {`"gpu"`, `"gpu"`}, "depends_on": {`[7,"b:dead"]`, `["7","b:dead"]`},
		"on_dependency_failure": {`"hold"`, `"hold"`}, "lock": {`"db:2"`, `"db:2"`},
		"rate_limit": {`"api=10/m"`, `"api=10/m"`}, "on": {`"rack=a"`, `"rack=a"`}, "resources": {`{"gpu":2}`, `{"gpu":"2"}`},
		"unique": {`"k"`, `"k"`}, "unique_for": {`"1h"`, `"1h"`}, "on_conflict": {`"reject"`, `"reject"`},
		"memory": {`"64M"`, `67108864`}, "cpus": {`0.5`, `0.5`}, "tasks": {`7`, `7`}, "nice": {`-5`, `-5`},
		"nofile": {`64`, `64`},
	}
	for _, f := range queue.SpecFields() {
		if _, covered := good[f.Name]; !covered {
			t.Errorf("field %s has no case in this test", f.Name)
		}
	}
	for name, c := range good {
		var s queue.Spec
		if err := json.Unmarshal([]byte(`{"`+name+`":`+c[0]+`}`), &s); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		raw, err := json.Marshal(s.GivenFields()[name])
		if c[1] != "" && (err != nil || string(raw) != c[1]) {
			t.Errorf("%s: %s is encoded as %s, %v, want %s", name, c[0], raw, err, c[1])
		}
		canonical := strings.TrimPrefix(name, "next_")
		for _, wrong := range []string{`[[]]`, `{"x":1}`, `""x`[:2], `"\u0000"`, `1e999`, `false`, `-1.5`} {
			var e *queue.Error
			err := json.Unmarshal([]byte(`{"`+name+`":`+wrong+`}`), &queue.Spec{})
			if err != nil && (!errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != canonical) {
				t.Errorf("%s: %s: got %v, want invalid %s", name, wrong, err, canonical)
			}
			if err == nil && (wrong == `[[]]` || wrong == `{"x":1}` && name != "resources") {
				t.Errorf("field %s accepts %s, want an error", name, wrong)
			}
		}
	}
}

// The error for an unknown field suggests the most similar known field. A field that is given twice is rejected, in any
// order and under each of its names.
func TestSpecRejectsUnknownAndDuplicateFields(t *testing.T) {
	for _, c := range []struct{ json, field, says string }{
		{`{"comand":"x"}`, "comand", `"command"`},
		{`{"max-retries":1}`, "max-retries", `"max_retries"`},
		{`{"Command":"x"}`, "Command", "unknown job field"},
		{`{"zzz":1}`, "zzz", "unknown job field"},
		{`{"command":"a","command":"b"}`, "command", "twice"},
		{`{"run_at":"2026-03-01T15:04:05Z","next_run_at":"2026-03-01T15:04:05Z"}`, "next_run_at",
			"run_at and next_run_at are the same field"},
		{`{"timeout":"9s","timeout_ms":5000}`, "timeout_ms", `differs from field "timeout";`},
		{`{"timeout_ms":5000,"timeout":"9s"}`, "timeout", "differs from field timeout_ms;"},
		{`{"id":1.5}`, "id", "text or a whole number"},
		{`{"ok_codes":[-1]}`, "ok_codes", "exit codes"},
		{`{"ok_codes":[4294967296]}`, "ok_codes", "exit codes"},
		{`{"umask":"1000"}`, "umask", "octal"},
		{`{"umask":18}`, "umask", "octal"},
		{`{"timeout":-1}`, "timeout", "negative"},
		{`{"timeout":315360001}`, "timeout", "ten years"},
		{`{"timeout_ms":-1}`, "timeout", "negative"},
		{`{"run_at":"1969-12-31T23:59:59Z"}`, "run_at", "1970"},
		{`{"run_at":"10000-01-01T00:00:00Z"}`, "run_at", "RFC 3339"},
		{`{"run_at":"2026-03-01"}`, "run_at", "RFC 3339"},
	} {
		var e *queue.Error
		err := json.Unmarshal([]byte(c.json), &queue.Spec{})
		if !errors.As(err, &e) || e.Code != queue.CodeInvalid ||
			!strings.HasPrefix(e.Field, strings.TrimSuffix(c.field, "_ms")) || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: got %v, want invalid %s: …%s…", c.json, err, c.field, c.says)
		}
	}
	for _, same := range []string{`{"timeout":"5s","timeout_ms":5000}`, `{"timeout_ms":5000,"timeout":5}`} {
		var s queue.Spec
		if err := json.Unmarshal([]byte(same), &s); err != nil || s.Timeout == nil || *s.Timeout != 5*time.Second {
			t.Errorf("%s: got %v, %v, want 5s", same, s.Timeout, err)
		}
	}
}

// An id may be given as a JSON integer with any number of digits. The id is then the text of these digits.
func TestSpecTakesIntegersAsIDs(t *testing.T) {
	for _, text := range []string{"0", "42", "9223372036854775807", "9223372036854775808",
		"123456789012345678901234567890"} {
		var s queue.Spec
		if err := json.Unmarshal([]byte(`{"id":`+text+`}`), &s); err != nil || s.ID == nil || *s.ID != text {
			t.Errorf("%s: got %v, want it as text", text, err)
		}
	}
}

// A field that is null counts as not given.
func TestSpecTakesNullAsNotGiven(t *testing.T) {
	for _, name := range queue.FieldNames() {
		var s queue.Spec
		if err := json.Unmarshal([]byte(`{"`+name+`":null}`), &s); err != nil || !reflect.DeepEqual(s, queue.Spec{}) {
			t.Errorf("%s: got %+v, %v, want nothing given", name, s, err)
		}
	}
}

// Parsing does not panic for any JSON. If parsing accepts a spec, encoding and decoding do not change the spec.
// ResolveSpec then accepts the spec, or rejects it with CodeInvalid.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{`{"command":"x"}`, `{"id":7,"argv":["a"],"timeout":"1h"}`,
		`{"timeout_ms":1,"env":{"A":"b"}}`, `{"umask":"022","labels":{}}`, `[]`, `{"a":1,"a":2}`, `{"\ud800":"\udfff"}`,
		`{"run_at":"2026-03-01T15:04:05Z","ok_codes":[]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var s, again queue.Spec
		if queue.CheckJSON(raw) != nil || s.DecodeJSON(raw, nil) != nil {
			return
		}
		written, err := json.Marshal(&s)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%s was encoded as %s: %v", raw, written, err)
		}
		if fmt.Sprint(s.GivenFields()) != fmt.Sprint(again.GivenFields()) {
			t.Fatalf("%s was encoded as %s", raw, written)
		}
		if _, err := queue.ResolveSpec(&s, serviceDefaults); err != nil && !errors.Is(err, queue.ErrInvalid) {
			t.Fatalf("%s: got %v, want invalid", raw, err)
		}
	})
}

// An edit changes only the fields that it names. SpecOfJob must set every field of Execution. Otherwise an edit would
// reset the fields that SpecOfJob does not set.
func TestEditKeepsOtherFields(t *testing.T) {
	defaults := queue.JobDefaults{Shell: "/bin/sh -c", OnLost: queue.OnLostRetry, KillAfter: time.Second,
		OutputLimit: 1 << 20}
	common := `"env":{"A":"b"},"cwd":"/","umask":"077","timeout":1,"idle_timeout":2,"kill_after":3,"backoff_base":4,"backoff_strategy":"linear",
		"backoff_max":5,"jitter":0.5,"ok_codes":[3],"no_retry_codes":[4],"defer_codes":[5],"on_lost":"hold","allow_background":true,"no_new_privileges":true,"labels":{"l":"m"},
		"output_limit":6,"memory":"64M","cpus":2,"tasks":7,"nice":8,"nofile":9,"env_secret":{"S":"/s"},"mask_secrets":true,
		"on_completed":"a","on_failed":"b","on_dead":"c","on_ended":"d"`
	seen := map[string]bool{"RunAsUser": true, "RunAsUID": true} // the caller of Edit sets these two
	for _, raw := range []string{`{"command":"x","shell":"y -c","stdin":"z",` + common + `}`,
		`{"argv":["x"],"stdin_file":"/z",` + common + `}`, `{"argv":["x"],"tty":true,` + common + `}`} {
		var s queue.Spec
		err := json.Unmarshal([]byte(raw), &s)
		if err != nil {
			t.Fatal(err)
		}
		j, err := queue.ResolveSpec(&s, defaults)
		if err != nil {
			t.Fatal(err)
		}
		before := j.ExecutionSettings
		if err := j.Edit(json.RawMessage(`{"priority":9}`), defaults); err != nil || j.Priority != 9 {
			t.Fatalf("after the edit the priority is %d, error %v; want 9", j.Priority, err)
		}
		if !reflect.DeepEqual(j.ExecutionSettings, before) {
			t.Errorf("the settings were %+v, and are %+v after an edit of the priority", before, j.ExecutionSettings)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeOf(before)) {
			if !reflect.ValueOf(before).FieldByIndex(field.Index).IsZero() {
				seen[field.Name] = true
			}
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[queue.ExecutionSettings]()) {
		if !seen[field.Name] {
			t.Errorf("field %s has no value in this test", field.Name)
		}
	}
}
