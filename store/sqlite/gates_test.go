package sqlite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

func needing(list ...queue.Demand) func(*queue.Job) {
	return func(j *queue.Job) { j.Demands = list }
}

// promote has all duties done that are due.
func promote(t *testing.T, s *Store) {
	t.Helper()
	for next := time.Duration(0); next == 0; {
		var err error
		if next, err = s.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func change(t *testing.T, s *Store, seq int64, c store.Change) {
	t.Helper()
	if err := s.Change(t.Context(), seq, c); err != nil {
		t.Fatal(err)
	}
}

// What a key was told holds as long as a job names it, wherever that stands; then the gate goes,
// that of a rate once no start is in its period.
func TestGateIsKeptAsLongAsItIsNamed(t *testing.T) {
	s := openStore(t, t.TempDir())
	s.lanesKept = 0
	clock := queue.Millis(1_000_000)
	s.now = func() queue.Millis { return clock }
	lock := func(n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, Key: "k", N: n} }
	later := put(t, s, 1, 1, needing(lock(2)), func(j *queue.Job) { j.Delay = time.Hour })[0]
	held := put(t, s, 1, 1, needing(lock(2)))[0]
	change(t, s, held, store.Change{Verb: queue.VerbHold})
	rate := queue.Demand{Kind: queue.GateRate, Key: "r", N: 2, Per: time.Minute}
	put(t, s, 1, 1, needing(rate))
	_, jobs := claimed(t, s, store.Report{Want: 1})
	claimed(t, s, store.Report{Started: []store.Started{{Lease: jobs[0].Lease(), At: clock}}})
	claimed(t, s, store.Report{Ended: []store.Settlement{done(&jobs[0])}})
	claimed(t, s, store.Report{Want: 1}) // which finds the lane empty
	there := func(when, key string, want int64) {
		t.Helper()
		promote(t, s)
		if got := number(t, s, fmt.Sprintf(`SELECT count(*) FROM gates WHERE key = '%s'`, key)); got != want {
			t.Errorf("%s: %d gates of %q, want %d", when, got, key, want)
		}
		sound(t, s, when)
	}
	there("while two jobs name it", "k", 1)
	there("with a start in its period", "r", 1)
	change(t, s, held, store.Change{Verb: queue.VerbCancel})
	there("while one is timed", "k", 1)
	other := []queue.Demand{{Kind: queue.GateLock, Key: "other", N: 1}}
	change(t, s, later, store.Change{Verb: queue.VerbEdit, Edit: func(j *queue.Job) error { j.Demands = other; return nil }})
	there("once none does", "k", 0)
	there("as that names another one", "other", 1)
	change(t, s, later, store.Change{Verb: queue.VerbRemove})
	there("once that is gone", "other", 0)
	clock += queue.Millis(time.Minute.Milliseconds())
	there("at the end of the period", "r", 1)
	clock += 2
	there("after it", "r", 0)
	change(t, s, held, store.Change{Verb: queue.VerbRetry})
	there("as one comes back", "k", 1)
}

// A job that waits for one which was lost with a damaged part of its batch does not wait for ever.
func TestParentLostWithItsFrame(t *testing.T) {
	s := openStore(t, t.TempDir())
	child := draft(func(j *queue.Job) {
		j.After, j.OtherwiseDo = []queue.Dependency{{Draft: 1, How: queue.ParentCompleted}}, queue.OtherwiseHold
	})
	staged, err := s.StageBatch(t.Context(), store.Request{Batch: "b", Drafts: []queue.Job{draft(), child}})
	if err != nil {
		t.Fatal(err)
	}
	harm(t, s, `UPDATE frames SET jobs = CAST(substr(jobs, 1, 4) || x'ff' || substr(jobs, 6) AS BLOB)`)
	committed, err := s.Enqueue(t.Context(), store.Request{Batch: "b"})
	if err != nil {
		t.Fatal(err)
	}
	finish(t, s, committed)
	promote(t, s)
	j, err := s.Get(t.Context(), staged.IDs[1])
	if err != nil || j.State != queue.Held || j.Reason != queue.ReasonDependency {
		t.Errorf("the job is %s, %q, error %v", j.State, j.Reason, err)
	}
}

// A job that has waited for many is removed in steps.
func TestManyEdgesAreRemovedInSteps(t *testing.T) {
	s := openStore(t, t.TempDir())
	const parents = 3000
	var after []queue.Dependency
	for range parents / 1000 {
		for _, seq := range put(t, s, 1, 1000) {
			after = append(after, queue.Dependency{Job: seq, How: queue.ParentCompleted})
		}
	}
	children := put(t, s, 1, 2, func(j *queue.Job) { j.After = after })
	most := counted(t, s)
	most() // of all that was before
	for _, seq := range children {
		change(t, s, seq, store.Change{Verb: queue.VerbRemove})
	}
	promote(t, s)
	if rows, _ := most(); rows > removeMost+100 {
		t.Errorf("one transaction changed %d rows", rows)
	}
	if n := number(t, s, `SELECT count(*) FROM edges`); n != 0 {
		t.Errorf("%d edges are left", n)
	}
	sound(t, s, "at the end")
}

// Verify tells of gates, heads and dependencies that are not as the jobs say, and a restore counts
// them anew.
func TestVerifyHoldsGatesAgainstJobs(t *testing.T) {
	for harmful, want := range map[string]string{
		`UPDATE gates SET jobs = 7`:  `are counted at the gate "k"`,
		`UPDATE gates SET lanes = 7`: `are counted at the gate "k"`,
		`DELETE FROM gates`:          "which is not there",
		`UPDATE lanes SET head_seq = 1000, head_rank = 9223372036854775807`: "before the head of their lane",
		`UPDATE lanes SET shut = 1000`:                                      "a gate that is not there",
		`DELETE FROM jobs WHERE seq = 2`:                                    "wait for one that is gone",
	} {
		s := openStore(t, t.TempDir())
		put(t, s, 1, 2, needing(queue.Demand{Kind: queue.GateLock, Key: "k", N: 1}))
		put(t, s, 1, 1, func(j *queue.Job) { j.After = []queue.Dependency{{Job: 2, How: queue.ParentCompleted}} })
		sound(t, s, "before")
		harm(t, s, harmful)
		found := fmt.Sprint(wrong(t, s))
		if !strings.Contains(found, want) {
			t.Errorf("after %s verify finds %s, want %q", harmful, found, want)
		}
	}
}
