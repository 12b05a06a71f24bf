package queue_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// What a spec says of gates and parents becomes what the store is asked for, and reads again as a
// person wrote it.
func TestResolveOfGatesAndParents(t *testing.T) {
	j, err := queue.Resolve(&queue.Spec{
		Command: p("true"), Queue: p("gpu"), Lock: p("db:2"), RateLimit: p("@api=10/h"), Resources: map[string]string{"ram": "3", "gpu": "1"},
		DependsOn: []string{"a", "b:dead", "c:ended"}, OnDependency: p("hold"), Unique: p("k"), UniqueFor: p(time.Hour), OnConflict: p("replace"),
	}, defaults)
	if err != nil {
		t.Fatal(err)
	}
	if want := []queue.Demand{{queue.GateLock, "db", 2, 0}, {queue.GateRate, "@api", 10, time.Hour}, {queue.GateResource, "gpu", 1, 0}, {queue.GateResource, "ram", 3, 0}}; !reflect.DeepEqual(j.Demands, want) || queue.CheckDemands(want) != nil {
		t.Errorf("got %v, want %v", j.Demands, want)
	}
	if want := []queue.Dependency{{ID: "a", How: queue.ParentCompleted}, {ID: "b", How: queue.ParentDead}, {ID: "c", How: queue.ParentEnded}}; !reflect.DeepEqual(j.After, want) || j.OtherwiseDo != queue.OtherwiseHold {
		t.Errorf("got %v, otherwise %v", j.After, j.OtherwiseDo)
	}
	if j.Queue != "gpu" || j.Unique != "k" || j.UniqueFor != time.Hour || j.OnConflict != queue.ConflictReplace {
		t.Errorf("got queue %q, key %q for %v, conflict %v", j.Queue, j.Unique, j.UniqueFor, j.OnConflict)
	}
	s := queue.SpecOf(&j)
	if *s.Queue != "gpu" || *s.Lock != "db:2" || *s.RateLimit != "@api=10/h" || !reflect.DeepEqual(s.Resources, map[string]string{"ram": "3", "gpu": "1"}) {
		t.Errorf("it reads again as %v", s.Given())
	}
}

// A rate without a key is for the command alone.
func TestRateOfACommand(t *testing.T) {
	keyOf := func(command, rate string) queue.Demand {
		j, err := queue.Resolve(&queue.Spec{Command: &command, RateLimit: &rate}, defaults)
		if err != nil {
			t.Fatal(err)
		}
		return j.Demands[0]
	}
	one, same, other := keyOf("a", "10/m"), keyOf("a", "10/m"), keyOf("b", "10/m")
	if one != same || one.Key == other.Key || one.N != 10 || one.Per != time.Minute {
		t.Errorf("got %v, %v, %v", one, same, other)
	}
}
