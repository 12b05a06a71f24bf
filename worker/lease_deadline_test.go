package worker_test

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Each runner receives the time at which the leases lapse, even if it connects later. A pool whose
// leases have lapsed starts nothing until they are prolonged.
func TestProlongReachesEveryRunner(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.sync()
	prolong, _ := awaitFrame[*wire.ExtendLeases](t, f, 1)
	check(t, "told of no end", prolong.Duration, time.Duration(0))
	p.SetLeaseDeadline(time.Now().Add(time.Hour))
	prolong, _ = awaitFrame[*wire.ExtendLeases](t, f, 2)
	if prolong.Duration <= 59*time.Minute || prolong.Duration > time.Hour {
		t.Errorf("the runner may go on for %v", prolong.Duration)
	}
	f.reconnect()
	awaitFrame[*wire.ExtendLeases](t, f, 3)
	f.sync()
	p.SetLeaseDeadline(time.Now().Add(-time.Second))
	prolong, _ = awaitFrame[*wire.ExtendLeases](t, f, 4)
	if prolong.Duration <= 0 || prolong.Duration > time.Millisecond { // 0 would mean never
		t.Errorf("a runner whose time is over may go on for %v", prolong.Duration)
	}
	p.SetLeaseDeadline(time.Time{})
	prolong, _ = awaitFrame[*wire.ExtendLeases](t, f, 5)
	check(t, "for ever again", prolong.Duration, time.Duration(0))
	s.enqueue(0)
	waitUntil(t, "it runs", func() bool { return len(f.startedJobs()) == 1 })
}

// Leases of a lost node are recorded as interrupted, with the node's name. An attempt that had
// started counts as one of the job's attempts; one that only may have started does not.
func TestLostLeasesAreInterrupted(t *testing.T) {
	s, _, p := startPool(t, 1)
	var got []store.Settlement
	seen := make(chan struct{}, 10)
	s.setRefuse(func(r store.Report) error {
		if len(r.Ended) > 0 {
			got = append([]store.Settlement(nil), r.Ended...)
			seen <- struct{}{}
		}
		return nil
	})
	job := func(seq int64) queue.Job {
		return queue.Job{
			Seq: seq, Fence: 7, MaxAttempts: 3, WorkerID: "1/1", PID: 9, StartedAt: 5, State: queue.Processing,
			Execution: queue.Execution{OnLost: queue.OnLostRetry},
		}
	}
	p.SettleLost([]store.LostLease{{Job: job(101), Running: true, NodeName: "far"}, {Job: job(102), NodeName: "far"}})
	receive(t, "they are recorded", seen)
	check(t, "settled", len(got), 2)
	for i, e := range got {
		counts := i == 0
		if e.Decision.Reason != queue.ReasonInterrupted || e.Decision.UsesAttempt != counts ||
			e.Attempt.Node != "far" || e.Decision.Suspect {
			t.Errorf("%+v of %+v", e.Decision, e.Attempt)
		}
	}
	if got[0].Attempt.StartedAt != 5 || got[0].Attempt.PID != 9 {
		t.Errorf("what had started is %+v", got[0].Attempt)
	}
}
