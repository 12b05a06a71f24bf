package queue_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/queue"
)

// A verb changes the state of a job only as the state table allows, and does not change a running job. If a job's state
// does not allow the verb, the error names the state.
func TestVerbsFollowStateTable(t *testing.T) {
	for verb, takes := range map[queue.Verb]string{
		queue.VerbCancel: "blocked held pending failed", queue.VerbRetry: "failed completed dead cancelled",
		queue.VerbRetryDead: "dead", queue.VerbHold: "blocked pending failed", queue.VerbRelease: "held",
		queue.VerbEdit:   "blocked held pending failed",
		queue.VerbRemove: "blocked held pending failed completed dead cancelled",
	} {
		for _, s := range queue.States() {
			j := queue.Job{ID: "x", State: s}
			to, event, acts, err := verb.EffectOn(&j)
			switch {
			case acts != strings.Contains(takes, s.String()):
				t.Errorf("%s of a %s job acts: %t", verb, s, acts)
			case acts && (err != nil || event == "" || to != 0 && to != s && !s.CanChangeTo(to)):
				t.Errorf("%s of a %s job: to %s, event %q, %v", verb, s, to, event, err)
			case s == queue.Processing && !errors.Is(err, queue.ErrWrongState):
				t.Errorf("%s of a running job: %v", verb, err)
			case err != nil && (!errors.Is(err, queue.ErrWrongState) ||
				!strings.Contains(err.Error(), "job x is "+s.String()+"; ")):
				t.Errorf("%s of a %s job: %v", verb, s, err)
			}
		}
		if len(verb.StatesWithEffect()) != len(strings.Fields(takes)) {
			t.Errorf("%s acts in the states %v, want %s", verb, verb.StatesWithEffect(), takes)
		}
	}
}

// If a job's state does not allow a verb, the error contains the command to use instead, with the job's id.
func TestVerbErrorNamesCommandToUse(t *testing.T) {
	for _, c := range []struct {
		verb  queue.Verb
		state queue.State
		want  string
	}{
		{queue.VerbRetry, queue.Held, "only failed, completed, dead and cancelled jobs can be retried; " +
			"release it with: queuectl release x"},
		{queue.VerbRetry, queue.Blocked, "only failed, completed, dead and cancelled jobs can be retried; " +
			"see which jobs it waits for with: queuectl why x"},
		{queue.VerbRetryDead, queue.Completed, "only dead jobs are in the dead-letter queue; put it back in the queue " +
			"with: queuectl retry x"},
		{queue.VerbRetryDead, queue.Pending, "only dead jobs are in the dead-letter queue"},
		{queue.VerbRelease, queue.Dead, "only held jobs can be released; put it back in the queue with: queuectl retry x"},
		{queue.VerbEdit, queue.Cancelled, "only waiting jobs can be changed; put it back in the queue " +
			"with: queuectl retry x"},
		{queue.VerbEdit, queue.Processing, "only waiting jobs can be changed"},
		{queue.VerbRemove, queue.Processing, "only jobs that are not running can be removed; cancel it first " +
			"with: queuectl cancel x"},
	} {
		_, _, _, err := c.verb.EffectOn(&queue.Job{ID: "x", State: c.state})
		if want := "job x is " + c.state.String() + "; " + c.want; err == nil || err.Error() != want {
			t.Errorf("%s of a %s job: got %v, want %s", c.verb, c.state, err, want)
		}
	}
}

// drawValidSpec returns an arbitrary spec that ResolveSpec accepts.
func drawValidSpec(t *rapid.T) *queue.Spec {
	texts := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,8}`), rapid.StringMatching(`[ -~]{0,12}`), 0, queue.MaxLabels)
	s := map[string]any{}
	setSometimes := func(name string, v any) {
		if rapid.Bool().Draw(t, name) {
			s[name] = v
		}
	}
	if rapid.Bool().Draw(t, "shell") {
		s["command"] = "true"
		setSometimes("shell", "/bin/bash -c")
	} else {
		s["argv"] = []string{"echo", "a b"}
	}
	setSometimes("priority", rapid.Int64Range(-9, 9).Draw(t, "priority value"))
	setSometimes("max_attempts", rapid.IntRange(1, 9).Draw(t, "attempts value"))
	setSometimes("timeout", "90s")
	setSometimes("kill_after", "2s")
	setSometimes("backoff_base", 1.5)
	setSometimes("backoff_strategy", "linear")
	setSometimes("backoff_max", "1h")
	setSometimes("jitter", 0.0)
	setSometimes("expires_at", "2099-01-01T00:00:00Z")
	setSometimes("env", texts.Draw(t, "env value"))
	setSometimes("cwd", "/tmp")
	setSometimes("umask", "077")
	if rapid.Bool().Draw(t, "file") {
		s["stdin_file"] = "/in"
	} else {
		setSometimes("stdin", "text")
	}
	setSometimes("idle_timeout", "1m")
	setSometimes("defer_codes", []int{75})
	setSometimes("ok_codes", []int{0, 3})
	setSometimes("no_retry_codes", []int{4})
	setSometimes("on_lost", "hold")
	setSometimes("allow_background", true)
	setSometimes("labels", texts.Draw(t, "labels value"))
	setSometimes("output_limit", "1K")
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var spec queue.Spec
	if err := spec.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return &spec
}

// A job from the spec that SpecOfJob returns equals the original job, whatever the current defaults are. An edit
// starts from this spec, so it changes only the fields that it names.
func TestSpecOfJobRequestsSameJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, err := queue.ResolveSpec(drawValidSpec(t), serviceDefaults)
		if err != nil {
			t.Fatal(err)
		}
		j.ID = "x"
		other := queue.JobDefaults{Priority: 7, MaxRetries: 1, Timeout: time.Hour, KillAfter: time.Second,
			Shell:  "/bin/other",
			OnLost: queue.OnLostDead, OutputLimit: 5}
		again, err := queue.ResolveSpec(queue.SpecOfJob(&j), other)
		if err != nil || !reflect.DeepEqual(emptyFieldsToNil(again), emptyFieldsToNil(j)) {
			t.Fatalf("%v\ngot  %+v\nwant %+v", err, again, j)
		}
		edited := j
		if err := edited.Edit(json.RawMessage(`{"priority": 8}`), other); err != nil {
			t.Fatal(err)
		}
		want := j
		want.Priority = 8
		if !reflect.DeepEqual(emptyFieldsToNil(edited), emptyFieldsToNil(want)) {
			t.Fatalf("after the edit\ngot  %+v\nwant %+v", edited, want)
		}
	})
}

// emptyFieldsToNil replaces empty maps and lists in a job by nil.
func emptyFieldsToNil(j queue.Job) queue.Job {
	if len(j.Env) == 0 {
		j.Env = nil
	}
	if len(j.Labels) == 0 {
		j.Labels = nil
	}
	return j
}

// An edit is a merge patch: null restores the default of a field, and the entries of a map are added to the existing
// entries. If an edit sets a field, it clears the fields that cannot be set together with this field. An error names
// the field that caused it.
func TestEditAppliesMergePatch(t *testing.T) {
	base := func() queue.Job {
		j, err := queue.ResolveSpec(
			parseSpec(t, `{"command":"a","timeout":5,"labels":{"a":"1","b":"2"},"env":{"X":"1"},"stdin_file":"/in"}`),
			serviceDefaults)
		if err != nil {
			t.Fatal(err)
		}
		j.ID, j.Attempts, j.RunAsUser = "x", 1, "me"
		return j
	}
	for set, check := range map[string]func(j queue.Job) bool{
		`{"timeout":null}`:    func(j queue.Job) bool { return j.Timeout == 0 },
		`{"timeout_ms":1500}`: func(j queue.Job) bool { return j.Timeout == 1500*time.Millisecond },
		`{"labels":{"a":null,"c":"3"}}`: func(j queue.Job) bool {
			return reflect.DeepEqual(j.Labels,
				map[string]string{"b": "2", "c": "3"})
		},
		`{"labels":null,"env":{"Y":"2"}}`: func(j queue.Job) bool {
			return j.Labels == nil &&
				reflect.DeepEqual(j.Env, []string{"X=1", "Y=2"})
		},
		`{"argv":["b"]}`: func(j queue.Job) bool {
			return j.Command == "" && j.Shell == "" &&
				j.Argv[0] == "b"
		},
		`{"stdin":null}`:                          func(j queue.Job) bool { return j.StdinFile == "/in" },
		`{"stdin_file":null,"stdin":"x"}`:         func(j queue.Job) bool { return j.StdinFile == "" && j.Stdin == "x" },
		`{"timeout_ms":null}`:                     func(j queue.Job) bool { return j.Timeout == 0 },
		`{"run_at":null}`:                         func(j queue.Job) bool { return j.Delay == time.Nanosecond },
		`{"max_attempts":2}`:                      func(j queue.Job) bool { return j.MaxAttempts == 2 },
		`{"delay":"1m"}`:                          func(j queue.Job) bool { return j.Delay == time.Minute },
		`{"next_run_at":"2099-01-01T00:00:00Z"}`:  func(j queue.Job) bool { return j.RunAt.Time().Year() == 2099 },
		`{"expires_at":"2099-01-01T00:00:00.5Z"}`: func(j queue.Job) bool { return j.ExpiresAt.Time().Year() == 2099 },
	} {
		j := base()
		if err := j.Edit(json.RawMessage(set), serviceDefaults); err != nil || !check(j) || j.RunAsUser != "me" ||
			j.ID != "x" {
			t.Errorf("edit %s: error %v, the job is %+v", set, err, j)
		}
	}
	for set, field := range map[string]string{
		`{"id":"y"}`: "id", `{"priorty":1}`: "priorty", `{"priority":"x"}`: "priority", `{"max_retries":0}`: "max_retries",
		`{"command":null}`: "command", `{}`: "set", `{"labels":3}`: "labels", `{"labels":{"a":3}}`: "labels",
		`{"ok_codes":[]}`: "ok_codes",
	} {
		j := base()
		var e *queue.Error
		if err := j.Edit(json.RawMessage(set), serviceDefaults); !errors.As(err, &e) || e.Code != queue.CodeInvalid ||
			e.Field != field {
			t.Errorf("%s: %v, want field %s", set, err, field)
		}
		if !reflect.DeepEqual(j, base()) {
			t.Errorf("%s: rejected, but the job has changed: %+v", set, j)
		}
	}
}

func parseSpec(t *testing.T, specJSON string) *queue.Spec {
	t.Helper()
	var s queue.Spec
	if err := s.UnmarshalJSON([]byte(specJSON)); err != nil {
		t.Fatal(err)
	}
	return &s
}
