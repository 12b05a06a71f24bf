package queue_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ResolveSpec converts the locks, rates, resources and dependencies in a spec to the fields of a job. SpecOfJob
// converts these fields back.
func TestResolveConvertsDemandsAndDependencies(t *testing.T) {
	j, err := queue.ResolveSpec(&queue.Spec{
		Command: ptr("true"), Queue: ptr("gpu"), Lock: ptr("db:2"), RateLimit: ptr("@api=10/h"),
		Resources: map[string]string{"ram": "3", "gpu": "1"},
		DependsOn: []string{"a", "b:dead",
			"c:ended"}, OnDependencyFailure: ptr("hold"), Unique: ptr("k"), UniqueFor: ptr(time.Hour),
		OnConflict: ptr("replace"),
	}, serviceDefaults)
	if err != nil {
		t.Fatal(err)
	}
	if want := []queue.Demand{{queue.GateLock, "db", 2, 0}, {queue.GateRate, "@api", 10, time.Hour},
		{queue.GateResource, "gpu", 1, 0}, {queue.GateResource, "ram", 3, 0}}; !reflect.DeepEqual(j.Demands, want) ||
		queue.CheckDemands(want) != nil {
		t.Errorf("the demands are %v, want %v", j.Demands, want)
	}
	if want := []queue.Dependency{{ParentID: "a", Condition: queue.ParentCompleted},
		{ParentID: "b", Condition: queue.ParentDead},
		{ParentID: "c", Condition: queue.ParentEnded}}; !reflect.DeepEqual(j.DependsOn, want) ||
		j.OnDependencyFailure != queue.DependencyFailureHold {
		t.Errorf("the dependencies are %v, on failure %v", j.DependsOn, j.OnDependencyFailure)
	}
	if j.Queue != "gpu" || j.Unique != "k" || j.UniqueFor != time.Hour || j.OnConflict != queue.ConflictReplaceExisting {
		t.Errorf("got queue %q, key %q for %v, conflict %v", j.Queue, j.Unique, j.UniqueFor, j.OnConflict)
	}
	s := queue.SpecOfJob(&j)
	if *s.Queue != "gpu" || *s.Lock != "db:2" || *s.RateLimit != "@api=10/h" ||
		!reflect.DeepEqual(s.Resources, map[string]string{"ram": "3", "gpu": "1"}) {
		t.Errorf("SpecOf returned the fields %v", s.GivenFields())
	}
}

// A rate limits the starts of all jobs with the same key, so a rate without a key is rejected. The message shows how to
// write a rate.
func TestRateLimitNeedsKey(t *testing.T) {
	for text, want := range map[string]string{
		"1/s":  `the rate "1/s" has no key; write it like api=1/s`,
		"10/m": `the rate "10/m" has no key; write it like api=10/m`,
		"10":   `the rate "10" has no key; write it like api=10/m`,
		"10/w": `"10/w" is not a rate; write KEY=N/PERIOD`,
		"/s":   `"/s" is not a rate; write KEY=N/PERIOD`,
		"0/s":  `"0/s" is not a rate; write KEY=N/PERIOD`,
		"=1/s": `"" is not a valid key`,
	} {
		_, err := queue.ResolveSpec(&queue.Spec{Command: ptr("true"), RateLimit: &text}, serviceDefaults)
		if e, ok := errors.AsType[*queue.Error](err); !ok || e.Field != "rate_limit" || !strings.HasPrefix(e.Message, want) {
			t.Errorf("rate_limit %q: got %v, want %s", text, err, want)
		}
	}
	var s queue.Spec
	if err := s.DecodeJSON([]byte(`{"command":"true","rate_limit":10}`), nil); err == nil ||
		!strings.Contains(err.Error(), "must be text") {
		t.Errorf("rate_limit 10: got error %v, want an error", err)
	}
}
