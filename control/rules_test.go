package control

import (
	"encoding/json"
	"testing"
)

// If a request lacks a required parameter, or has parameters that exclude each other, the error names a parameter
// that the request sets or could set.
func TestMissingOrExclusiveParameterErrorsNameParameters(t *testing.T) {
	const pick = `ids: no jobs given; set parameter "id", "ids" or "all", or select jobs with "state", "failed", "label", "queue", "batch", "user", "older_than", "id_glob"`
	for _, c := range []struct {
		into    any
		request string
		want    string
	}{
		{&JobSelection{}, `{}`, pick},
		{&JobSelection{}, `{"all":false}`, pick},
		{&JobSelection{}, `{"ids":["a"],"state":"dead"}`, `state: cannot be combined with parameter "ids"; use one of them`},
		{&JobSelection{}, `{"id":"a","all":true}`, `all: cannot be combined with parameter "id"; use one of them`},
		{&DeadJobRetryParams{}, `{}`, `ids: no jobs given; set parameter "id", "ids", "batch" or "all"`},
		{&DeadJobRetryParams{}, `{"ids":["a"],"batch":"b"}`,
			`batch: cannot be combined with parameter "ids"; use one of them`},
		{&QueueResumeParams{}, `{}`, `name: no queue given; set parameter "name", or set parameter "all" to true`},
		{&QueueResumeParams{}, `{"name":"a","all":true}`, `all: cannot be combined with parameter "name"; use one of them`},
		{&QueuePauseParams{}, `{"name":"a","for":"1m","until":"2099-01-01T00:00:00Z"}`,
			`for: cannot be combined with parameter "until"; use one of them`},
		{&SetGateRuleParams{}, `{"key":"@k"}`, `lock: no rule given; set parameter "lock", "rate" or "unset"`},
		{&SetGateRuleParams{}, `{"key":"@k","lock":1,"rate":"1/s"}`,
			`rate: cannot be combined with parameter "lock"; use one of them`},
		{&SetGateRuleParams{}, `{"key":"@k","lock":1,"unset":"lock"}`,
			`unset: cannot be combined with parameter "lock"; use one of them`},
		{&SetGateRuleParams{}, `{"key":"@k","rate":"1/s","unset":"lock"}`,
			`rate: cannot be combined with parameter "unset"; use one of them`},
		{&WorkerStopParams{}, `{"count":1,"all":true}`, `count: cannot be combined with parameter "all"; use one of them`},
		{&DrainParams{}, `{"off":true,"wait":true}`, `wait: cannot be combined with parameter "off"; use one of them`},
		{&EnqueueBatchParams{}, `{"abort":true,"commit":true,"batch":"b"}`,
			`abort: cannot be combined with parameter "commit" or "jobs"; leave them out`},
		{&EnqueueBatchParams{}, `{"batch":"b","jobs":[{"command":"true"}],"key":"k"}`,
			`key: works only with parameter "commit"; give the key only in the last request of a batch`},
		{&EnqueueParams{}, `{"command":"true","next":true,"priority":3}`,
			`next: cannot be combined with field "priority"; use one of them`},
		{&EnqueueBatchParams{}, `{"commit":true,"jobs":[{"command":"true","priority":0}],"next":true}`,
			`next: cannot be combined with field "priority"; use one of them`},
		{&EnqueueBatchParams{}, `{"commit":true,"next":true,"jobs":[{"command":"true"},{"command":"true","priority":3}]}`,
			`entry 2: next: cannot be combined with field "priority"; use one of them`},
	} {
		if err := decodeParams(json.RawMessage(c.request), c.into); err == nil || err.Error() != c.want {
			t.Errorf("%T %s: got %v, want %s", c.into, c.request, err, c.want)
		}
	}
}

// The error for a number or a duration that is out of range contains the range. For a duration, the range is
// written with units, even if the request contained seconds without a unit.
func TestOutOfRangeErrorsNameTheRange(t *testing.T) {
	for _, c := range []struct {
		into    any
		request string
		want    string
	}{
		{&JobSelection{}, `{"older_than":0}`, "older_than: 0s is too short; use a duration above 0s, at most 3650d"},
		{&JobSelection{}, `{"older_than":-1}`, "older_than: cannot be negative; use 0 or more"},
		{&JobSelection{}, `{"older_than":1e400}`, "older_than: too long; the maximum is 3650d (ten years)"},
		{&JobSelection{}, `{"older_than":true}`, `older_than: must be a number of seconds, or text like "90s"`},
		{&ScheduleAddParams{}, `{"name":"s","cron":"@daily","command":"true","jitter":90000}`,
			"jitter: 1d1h is too long; use a duration from 0s to 1d"},
		{&ScheduleAddParams{}, `{"name":"s","cron":"@daily","command":"true","backoff_max":0}`, ""},
		{&JobListParams{}, `{"limit":0}`, "limit: 0 is too small; use a number from 1 to 1000"},
		{&JobListParams{}, `{"limit":99999999999999999999}`,
			"limit: 99999999999999999999 is too large; use a smaller number"},
		{&JobListParams{}, `{"limit":1.5}`, `limit: "1.5" is not a whole number; use digits only, for example 10`},
		{&JobListParams{}, `{"limit":"x"}`, "limit: must be a whole number, not string"},
		{&JobListParams{}, `{"queue":5}`, "queue: must be text, not a number"},
		{&CleanupParams{}, `{"days":1e400}`, "days: 1e400 is too large; use a smaller number"},
		{&EventsParams{}, `{"since":-1}`, "since: -1 is too small; use a number of 0 or more"},
		{&AttachTerminalParams{}, `{"id":"a","base64":"~"}`, "base64: must be text in base64"},
	} {
		err := decodeParams(json.RawMessage(c.request), c.into)
		if got := ""; err != nil {
			if got = err.Error(); got != c.want {
				t.Errorf("%T %s: got %s, want %s", c.into, c.request, got, c.want)
			}
		} else if c.want != "" {
			t.Errorf("%T %s: accepted, want %s", c.into, c.request, c.want)
		}
	}
}
