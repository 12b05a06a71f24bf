package worker

import (
	"cmp"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// This file keeps prefetched jobs in the order of their queue. The promise: when a worker is free,
// the runner starts the best-ranked job of the queue that can start and needs no gate. The only
// exception is a job that could not start yet at the time of the last claim. Three rules keep the
// promise:
//
//   1. The jobs of a queue that wait in the runner are sorted by place, in whatever order they
//      arrive. A place is the rank of a job. If fairness lets the job's user go first, it is the
//      rank of the job that this job goes before (store/rules/user_turns.go).
//   2. Jobs are recalled from the last place to the first. Any job that the runner starts before it
//      receives the last Drop is then the best of those left.
//   3. During a recall the pool claims nothing and sends no job that was claimed before. The next
//      claim is part of the transaction that records the return of the jobs, so these jobs take
//      part in it.
//
// An example: the only worker runs job 17, which turns out to be long, and jobs 18, 19 and 20 wait
// in the runner. After recallAfter the pool sends Drop 20, Drop 19, Drop 18. Job 17 ends after the
// first Drop, so the runner starts job 18 and answers that it dropped 20 and 19 but not 18. Without
// rule 2 it could have started job 19 first. Without rule 3 the end of job 17 would have claimed
// job 21, which would have started before 19.
//
// The rules do not cover separate runners of suspects, of users whose starts hang, and unresponsive
// runners. If the rules covered them, other jobs would have to wait for these runners.

// recallLocked takes back the selected jobs that runners have not started. The jobs of a claim that is
// in progress go back to the queue too, even if recallLocked finds no other job.
func (p *Pool) recallLocked(selects func(*lease) bool) {
	p.recallCount++
	p.dropUnstartedLocked(selects)
}

// dropUnstartedLocked sends a Drop for each selected job that has not started.
func (p *Pool) dropUnstartedLocked(selects func(*lease) bool) {
	list := p.leases.selectLocked(func(h *lease) bool {
		isSent := h.phase == phaseSent && h.conn != nil
		return (isSent || h.phase == phaseReadingDeps || h.phase == phaseAwaitingRunner) && selects(h)
	})
	slices.SortFunc(list, func(a, b *lease) int {
		return cmp.Or(queuePosition(&b.job).Compare(queuePosition(&a.job)), cmp.Compare(b.claimNumber, a.claimNumber))
	})
	drops := map[*runnerConn][]wire.Frame{}
	for _, h := range list {
		if h.phase.neverSent() {
			h.advanceLocked(eventWithdrawn)
			p.wake() // Run returns the job
			continue
		}
		h.advanceLocked(eventRecallSent)
		drops[h.conn] = append(drops[h.conn], &wire.Drop{Lease: h.wireLease()})
	}
	for conn, frames := range drops {
		conn.Send(frames...)
	}
}

// queuePosition returns the place of a claimed job in the order of starts.
func queuePosition(j *queue.Job) wire.QueuePosition {
	return wire.QueuePosition{Rank: j.StartPosition.Rank, Seq: j.StartPosition.Seq,
		StartsBefore: j.StartPosition.Seq != j.Seq}
}

// recallingLocked reports whether a recall is in progress: the current runner has not answered all
// Drops, or Run has not yet returned a job that no runner has.
func (s *leases) recallingLocked() bool {
	return s.anyLocked(func(h *lease) bool {
		return h.phase == phaseWithdrawn || h.phase == phaseRecalling && h.conn.state == connCurrent
	})
}

// returnClaimed returns claimed jobs that were not sent to a runner.
func (l *loop) returnClaimed(jobs []queue.Job) {
	for i := range jobs {
		l.session.pendingReport.Releases = append(l.session.pendingReport.Releases, jobs[i].Lease())
	}
	l.wake()
}
