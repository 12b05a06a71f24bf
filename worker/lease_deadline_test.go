package worker_test

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Each runner receives the time at which the leases lapse, even if the runner connects later. At that time,
// the runner must end its jobs. A pool whose leases have lapsed starts no jobs until the leases are extended.
func TestLeaseDeadlineReachesEveryRunner(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.waitUntilFramesHandled()
	extend, _ := awaitFrame[*wire.ExtendLeases](t, f, 1)
	checkEqual(t, "duration without a deadline", extend.Duration, time.Duration(0))
	p.SetLeaseDeadline(time.Now().Add(time.Hour))
	extend, _ = awaitFrame[*wire.ExtendLeases](t, f, 2)
	if extend.Duration <= 59*time.Minute || extend.Duration > time.Hour {
		t.Errorf("the leases are extended by %v, want about an hour", extend.Duration)
	}
	f.reconnect()
	awaitFrame[*wire.ExtendLeases](t, f, 3)
	f.waitUntilFramesHandled()
	p.SetLeaseDeadline(time.Now().Add(-time.Second))
	extend, _ = awaitFrame[*wire.ExtendLeases](t, f, 4)
	if extend.Duration <= 0 || extend.Duration > time.Millisecond { // 0 would mean that the leases never lapse
		t.Errorf("after the deadline, the leases are extended by %v, want at most 1ms and not 0", extend.Duration)
	}
	p.SetLeaseDeadline(time.Time{})
	extend, _ = awaitFrame[*wire.ExtendLeases](t, f, 5)
	checkEqual(t, "duration after the deadline was removed", extend.Duration, time.Duration(0))
	s.enqueueJobs(0)
	waitUntil(t, "the job has started", func() bool { return len(f.startedJobSeqs()) == 1 })
}

// If a node is lost, the attempts of its leases are recorded as interrupted, with the node's name. An attempt
// that had started counts as one of the job's attempts; an attempt that may not have started does not count.
func TestLostNodesAttemptsAreRecordedAsInterrupted(t *testing.T) {
	s, _, p := startPool(t, 1)
	var got []store.Settlement
	seen := make(chan struct{}, 10)
	s.setReportRefusal(func(r store.LeaseReport) error {
		if len(r.Settlements) > 0 {
			got = append([]store.Settlement(nil), r.Settlements...)
			seen <- struct{}{}
		}
		return nil
	})
	job := func(seq int64) queue.Job {
		return queue.Job{
			Seq: seq, Fence: 7, MaxAttempts: 3, WorkerID: "1/1", PID: 9, StartedAt: 5, State: queue.Processing,
			ExecutionSettings: queue.ExecutionSettings{OnLost: queue.OnLostRetry},
		}
	}
	p.AddLostLeases([]store.LostLease{{Job: job(101), AttemptStarted: true, FormerNodeName: "far"},
		{Job: job(102), FormerNodeName: "far"}})
	receiveEvent(t, "the settlements", seen)
	checkEqual(t, "settled", len(got), 2)
	for i, e := range got {
		counts := i == 0
		if e.Decision.Reason != queue.ReasonInterrupted || e.Decision.CountsTowardMaxAttempts != counts ||
			e.Attempt.Node != "far" || e.Decision.NeedsIsolation {
			t.Errorf("lost lease %d was settled with decision %+v, attempt %+v; want an interrupted attempt on node far",
				i, e.Decision, e.Attempt)
		}
	}
	if got[0].Attempt.StartedAt != 5 || got[0].Attempt.PID != 9 {
		t.Errorf("the attempt that had started is %+v", got[0].Attempt)
	}
}
