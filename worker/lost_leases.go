package worker

import (
	"cmp"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// AddLostLeases makes Run record the end of leases that belonged to a lost node. An attempt that is not known to have
// started is recorded as one that may have started. AddLostLeases may be called while Run runs.
func (p *Pool) AddLostLeases(lostLeases []store.LostLease) {
	p.mu.Lock()
	p.lostLeases = append(p.lostLeases, lostLeases...)
	p.mu.Unlock()
	p.wakeLoop()
}

// settleLostLeases adds to the pending report how each lease that AddLostLeases has received ended.
func (l *poolLoop) settleLostLeases() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := queue.UnixMillisOf(time.Now())
	for i := range l.lostLeases {
		j := &l.lostLeases[i].Job
		end := queue.EndInterruptedMaybeStarted
		a := queue.Attempt{Fence: j.Fence, Node: l.lostLeases[i].FormerNodeName, StartedAt: now, EndedAt: now, ExitCode: -1}
		if l.lostLeases[i].AttemptStarted {
			end = queue.EndInterrupted
			a.Worker, a.PID, a.StartedAt = j.WorkerID, j.PID, j.StartedAt
		}
		d := queue.DecideAfterAttempt(j, queue.AttemptOutcome{EndCause: end, ExitCode: -1, WasPausedAtEnd: j.PausedAt != 0},
			l.cfg.RetryPolicy())
		d.Error = cmp.Or(d.Error, "the node that ran the job is gone: "+l.lostLeases[i].FormerNodeName)
		l.storeSession.addSettlement(store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d})
	}
	l.lostLeases = nil
}
