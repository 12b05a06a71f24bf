package worker

import (
	"cmp"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// Prefetched jobs wait in the runner until a worker is free. This file makes them start in the order of their queue.
// Its promise concerns the jobs of a queue that can start and need no gate (no lock, quota or other limited thing): a
// free worker starts the first of these jobs in rank order. The only exception is a job that could not start yet at the
// time of the last claim. Three rules keep this promise:
//
//   1. The runner sorts the waiting jobs of a queue by position, regardless of the order in which they
//      arrive. The position of a job is normally its rank. If fairness between users lets the job start
//      before a job that ranks better, it is the rank of that job (store/rules/user_turns.go).
//   2. A recall takes jobs back from the runner, from the last position to the first, with one DropStart frame
//      for each job. If the runner starts a job before it has received the last DropStart, this job is the first
//      of those that are left.
//   3. During a recall, the pool claims no jobs, and sends no job that it claimed before. The transaction
//      that records the return of the jobs also makes the next claim, so the claim can choose among these
//      jobs.
//
// An example: the only worker runs job 17, which takes long, and jobs 18, 19 and 20 wait in the runner. After
// unstartedRecallDelay, the pool sends DropStart 20, 19 and 18. Job 17 ends after the first DropStart, so the runner
// starts job 18. It answers that it has dropped 20 and 19 but not 18. Without rule 2, the runner could have started job
// 19 before job 18. Without rule 3, the pool would have claimed job 21 at the end of job 17, and job 21 would have
// started before job 19.
//
// The rules do not apply to separate runners (isolation.go) and unresponsive runners. If they did, other jobs would
// have to wait for these runners.

// recallJobsLocked takes back those of the jobs that matches selects and that runners have not started. If a
// claim is in progress, its jobs also return to the queue, even if matches selects no job.
func (p *Pool) recallJobsLocked(matches func(*lease) bool) {
	p.recallCount++
	p.dropUnstartedJobsLocked(matches)
}

// dropUnstartedJobsLocked takes back each of the selected jobs that has not started. It sends a DropStart frame, which
// asks the runner to give the job back. If no runner has received the job yet, no frame is needed.
func (p *Pool) dropUnstartedJobsLocked(matches func(*lease) bool) {
	list := p.leases.selectLeasesLocked(func(h *lease) bool {
		isSent := h.phase == phaseSent && h.runnerConn != nil
		return (isSent || h.phase == phaseReadingDependencies || h.phase == phaseAwaitingRunner) && matches(h)
	})
	slices.SortFunc(list, func(a, b *lease) int {
		return cmp.Or(queuePosition(&b.job).Compare(queuePosition(&a.job)), cmp.Compare(b.claimNumber, a.claimNumber))
	})
	drops := map[*runnerConn][]wire.Frame{}
	for _, h := range list {
		if h.phase.wasNeverSent() {
			h.advancePhaseLocked(eventWithdrawn)
			p.wakeLoop() // makes Run return the job to the queue
			continue
		}
		h.advancePhaseLocked(eventRecallSent)
		drops[h.runnerConn] = append(drops[h.runnerConn], &wire.DropStart{Lease: h.wireLease()})
	}
	for conn, frames := range drops {
		conn.Send(frames...)
	}
}

// queuePosition returns the position of a claimed job. The runner sorts the waiting jobs of a queue by this
// position.
func queuePosition(j *queue.Job) wire.QueuePosition {
	return wire.QueuePosition{Rank: j.StartPosition.Rank, Seq: j.StartPosition.Seq,
		IsJustBeforeJob: j.StartPosition.Seq != j.Seq}
}

// isRecallInProgressLocked reports whether a recall (the taking back of jobs) is in progress. This is the case if the
// runner for new jobs has not answered all DropStart frames, or if Run must still return a job that no runner has
// received.
func (s *leases) isRecallInProgressLocked() bool {
	return s.anyLeaseMatchesLocked(func(h *lease) bool {
		return h.phase == phaseWithdrawn || h.phase == phaseRecalling && h.runnerConn.state == connCurrent
	})
}

// returnClaimedJobs returns claimed jobs to the queue. The jobs must not have been sent to a runner.
func (l *poolLoop) returnClaimedJobs(jobs []queue.Job) {
	report := &l.storeSession.pendingReport
	for i := range jobs {
		report.ReleasedLeases = append(report.ReleasedLeases, jobs[i].Lease())
	}
	l.wakeLoop()
}
