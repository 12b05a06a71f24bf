package worker

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store/memstore"
)

// A lost attempt that may have started is recorded without the values that the job's row still has
// from its last attempt. A lost attempt that has started is recorded with the values known of it.
func TestLostAttemptsAreTheirOwn(t *testing.T) {
	p := New(memstore.New(queue.Order{}), Config{Policy: func() queue.Policy { return queue.Policy{} }}, 1)
	h := &leaseState{job: queue.Job{Seq: 1, Fence: 5, State: queue.Failed, StartedAt: 1000, WorkerID: "old", PID: 77}}
	perhaps := p.lostSettlement(h, nil, queue.PerhapsLost, "").Attempt
	if perhaps.StartedAt != perhaps.EndedAt || perhaps.EndedAt < 2000 || perhaps.Worker != "" || perhaps.PID != 0 {
		t.Errorf("one that may have begun: %+v", perhaps)
	}
	h.running, h.workerID, h.pid, h.startedAt = true, "new", 88, 3000
	begun := p.lostSettlement(h, nil, queue.Lost, "").Attempt
	if begun.StartedAt != 3000 || begun.Worker != "new" || begun.PID != 88 {
		t.Errorf("one that began: %+v", begun)
	}
	noted := p.lostSettlement(h, &wire.Attempt{Slot: 3, PID: 99, StartedAt: 4000}, queue.Lost, "dir/5").Attempt
	if noted.StartedAt != 4000 || noted.PID != 99 || noted.Worker == "new" {
		t.Errorf("one that its runner has noted: %+v", noted)
	}
}
