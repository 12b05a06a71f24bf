package worker

import (
	"cmp"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// QueueLostLeases makes Run record the end of leases of a node that is gone. An attempt that is not known to
// have started is recorded as one that may have started. QueueLostLeases may be called while Run runs.
func (p *Pool) QueueLostLeases(lostLeases []store.LostLease) {
	p.mu.Lock()
	p.lostLeases = append(p.lostLeases, lostLeases...)
	p.mu.Unlock()
	p.wake()
}

// settleLostLeases adds to the pending report how each lease that QueueLostLeases has received ended.
func (l *loop) settleLostLeases() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := queue.MillisOf(time.Now())
	for i := range l.lostLeases {
		j := &l.lostLeases[i].Job
		end := queue.EndPerhapsInterrupted
		a := queue.Attempt{Fence: j.Fence, Node: l.lostLeases[i].NodeName, StartedAt: now, EndedAt: now, ExitCode: -1}
		if l.lostLeases[i].Running {
			end = queue.EndInterrupted
			a.Worker, a.PID, a.StartedAt = j.WorkerID, j.PID, j.StartedAt
		}
		d := queue.Decide(j, queue.Outcome{EndCause: end, ExitCode: -1, WasPaused: j.PausedAt != 0}, l.cfg.Policy())
		d.Error = cmp.Or(d.Error, "the node that ran the job is gone: "+l.lostLeases[i].NodeName)
		l.session.addSettlement(store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d})
	}
	l.lostLeases = nil
}
