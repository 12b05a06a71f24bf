package worker

import (
	"log/slog"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store/memstore"
)

// The row of a job may still contain the start time, worker and pid of the previous attempt. If a lost attempt is not
// known to have started, the attempt is recorded without these values. If the lost attempt has started, it is recorded
// with its own values.
func TestLostAttemptIsRecordedWithoutPreviousAttemptsValues(t *testing.T) {
	p := New(memstore.New(queue.RankPolicy{}),
		Config{RetryPolicy: func() queue.RetryPolicy { return queue.RetryPolicy{} }},
		1)
	j := queue.Job{Seq: 1, Fence: 5, State: queue.Failed, StartedAt: 1000, WorkerID: "old", PID: 77}
	h := newLease(&j, 1, phaseSent, slog.New(slog.DiscardHandler))
	unknown := p.lostSettlementLocked(h, nil, queue.EndRunnerLostMaybeStarted, "").Attempt
	if unknown.StartedAt != unknown.EndedAt || unknown.EndedAt < 2000 || unknown.Worker != "" || unknown.PID != 0 {
		t.Errorf("an attempt that may have started: %+v", unknown)
	}
	h.markStartedLocked()
	h.attempt = startedAttempt{"new", 88, 3000}
	started := p.lostSettlementLocked(h, nil, queue.EndRunnerLost, "").Attempt
	if started.StartedAt != 3000 || started.Worker != "new" || started.PID != 88 {
		t.Errorf("a started attempt: %+v", started)
	}
	recorded := p.lostSettlementLocked(h, &wire.Attempt{TableSlot: 3, PID: 99, StartedAtMillis: 4000}, queue.EndRunnerLost,
		"dir/5").Attempt
	if recorded.StartedAt != 4000 || recorded.PID != 99 || recorded.Worker == "new" {
		t.Errorf("an attempt that its runner has recorded: %+v", recorded)
	}
}
