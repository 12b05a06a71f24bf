package worker_test

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Each runner receives the time at which the leases lapse, also one that connects later. A pool
// whose leases have lapsed starts nothing until they are prolonged.
func TestLeasesAreProlonged(t *testing.T) {
	s, f, p := begin(t, 1)
	f.settled()
	told, _ := hears[*wire.Prolong](t, f, 1)
	check(t, "told of no end", told.For, time.Duration(0))
	p.Prolong(time.Now().Add(time.Hour))
	told, _ = hears[*wire.Prolong](t, f, 2)
	if told.For <= 59*time.Minute || told.For > time.Hour {
		t.Errorf("the runner may go on for %v", told.For)
	}
	f.breaks()
	hears[*wire.Prolong](t, f, 3)
	f.settled()
	p.Prolong(time.Now().Add(-time.Second))
	told, _ = hears[*wire.Prolong](t, f, 4)
	if told.For <= 0 || told.For > time.Millisecond { // 0 would mean never
		t.Errorf("a runner whose time is over may go on for %v", told.For)
	}
	p.Prolong(time.Time{})
	told, _ = hears[*wire.Prolong](t, f, 5)
	check(t, "for ever again", told.For, time.Duration(0))
	s.put(0)
	until(t, "it runs", func() bool { return len(f.started()) == 1 })
}

// Leases of a lost node are recorded as interrupted, with the node's name. Attempts that had
// started count; those that may have started do not.
func TestLostLeasesAreSettled(t *testing.T) {
	s, _, p := begin(t, 1)
	var got []store.Settlement
	seen := make(chan struct{}, 10)
	s.refuses(func(r store.Report) error {
		if len(r.Ended) > 0 {
			got = append([]store.Settlement(nil), r.Ended...)
			seen <- struct{}{}
		}
		return nil
	})
	job := func(seq int64) queue.Job {
		return queue.Job{Seq: seq, Fence: 7, MaxAttempts: 3, WorkerID: "1/1", PID: 9, StartedAt: 5, State: queue.Processing, Execution: queue.Execution{OnLost: queue.OnLostRetry}}
	}
	p.Lost([]store.LostLease{{Job: job(101), Running: true, From: "far"}, {Job: job(102), From: "far"}})
	from(t, "they are recorded", seen)
	check(t, "settled", len(got), 2)
	for i, e := range got {
		counts := i == 0
		if e.Decision.Reason != queue.ReasonInterrupted || e.Decision.Counts != counts || e.Attempt.Node != "far" || e.Decision.Suspect {
			t.Errorf("%+v of %+v", e.Decision, e.Attempt)
		}
	}
	if got[0].Attempt.StartedAt != 5 || got[0].Attempt.PID != 9 {
		t.Errorf("what had started is %+v", got[0].Attempt)
	}
}
