package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var bestWaitingPromises = []promise{
	{name: "BestWaitingPriority finds the user's best-ranked job in all queues", check: bestWaitingSpansQueues},
	{name: "a job that waits for its retry counts as waiting", check: bestWaitingCountsRetries},
	{name: "a job does not count as waiting while it is leased", check: bestWaitingSkipsLeased},
	{name: "jobs that cannot start yet do not count as waiting", check: bestWaitingSkipsFuture},
	{name: "with ageing by enqueues, the best waiting job gains points", order: enqueueAgingOrder,
		check: bestWaitingGainsEnqueuePoints},
}

// checkBestWaiting checks the result of BestWaitingPriority: the priority, including ageing, of the user's
// best-ranked waiting job.
func (r *rig) checkBestWaiting(subject string, uid int, want int64) {
	r.Helper()
	got, err := r.s.BestWaitingPriority(r.Context(), uid)
	r.must(err)
	if exact := (store.WaitingPriority{Priority: want, Found: true}); got != exact {
		r.Errorf("%s: got %+v, want %+v", subject, got, exact)
	}
}

// checkNothingWaiting checks that BestWaitingPriority finds no waiting job of a user.
func (r *rig) checkNothingWaiting(subject string, uid int) {
	r.Helper()
	if got, err := r.s.BestWaitingPriority(r.Context(), uid); got != (store.WaitingPriority{}) || err != nil {
		r.Errorf("%s: got %+v, error %v; want none", subject, got, err)
	}
}

// BestWaitingPriority finds the user's best-ranked job in all queues.
func bestWaitingSpansQueues(r *rig) {
	r.checkNothingWaiting("an empty store", 1)
	r.enqueueFor(2, 3, withPriority(15))
	r.checkNothingWaiting("jobs of another user", 1)
	r.enqueueFor(1, 1, withPriority(4))
	r.checkBestWaiting("one job", 1, 4)
	other := func(j *queue.Job) { j.Queue = "other" }
	locked := r.enqueueFor(1, 1, withPriority(7), other, withDemands(lockDemand("k", 1)))[0]
	r.enqueueFor(1, 1, withPriority(3), other)
	r.checkBestWaiting("three lanes", 1, 7)
	r.advance(4 * time.Minute)
	r.checkBestWaiting("four minutes later", 1, 11)
	r.enqueueFor(1, 1, withPriority(10))
	r.checkBestWaiting("after a new job was enqueued", 1, 11)
	r.setQueueRule("other", store.QueueRule{Weight: 1, Paused: true})
	r.checkBestWaiting("in a paused queue", 1, 11)
	r.must(r.s.Change(r.Context(), locked.Seq, store.Change{Verb: queue.VerbCancel, UID: 1}))
	r.checkBestWaiting("after the best job was cancelled", 1, 10)
}

// For BestWaitingPriority, a failed job that waits for its retry counts as waiting.
func bestWaitingCountsRetries(r *rig) {
	r.enqueueFor(1, 1, withPriority(9))
	r.settle(r.claimOne(), exitOutcome(1))
	r.checkBestWaiting("the job waits for its retry", 1, 9)
	r.enqueueFor(1, 1, withPriority(6))
	r.checkBestWaiting("a second job could start now", 1, 9)
	r.advanceAndPromote(5 * time.Second)
	r.checkBestWaiting("the retry is due", 1, 9)
}

func bestWaitingSkipsLeased(r *rig) {
	jobs := r.enqueueFor(1, 2, withPriority(9))
	r.enqueueFor(1, 1, withPriority(6))
	leased := r.claim(1)
	r.checkBestWaiting("one of two is claimed", 1, 9)
	leased = append(leased, r.claim(1)...)
	checkEqual(r, "claimed", seqs(leased), seqs(jobs))
	r.checkBestWaiting("both are claimed", 1, 6)
	r.startJob(leased[0])
	r.checkBestWaiting("one of the claimed jobs has started", 1, 6)
	r.release(leased[1])
	r.checkBestWaiting("the other job was given back", 1, 9)
}

// For BestWaitingPriority, jobs that cannot start yet do not count as waiting.
func bestWaitingSkipsFuture(r *rig) {
	r.enqueueFor(1, 1, withPriority(9), withDelay(time.Hour))
	r.checkNothingWaiting("a job that is due later", 1)
	parent := r.enqueueFor(2, 1)[0]
	r.enqueueFor(1, 1, withPriority(12), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{JobSeq: parent.Seq, Condition: queue.ParentEnded}}
	})
	r.checkNothingWaiting("a blocked job", 1)
	waiting := r.enqueueFor(1, 1, withPriority(13))[0]
	r.must(r.s.Change(r.Context(), waiting.Seq, store.Change{Verb: queue.VerbHold}))
	r.checkNothingWaiting("a held job", 1)
	r.advanceAndPromote(time.Hour)
	r.checkBestWaiting("the job is due", 1, 9)
}

// With ageing by enqueues, a waiting job gains points for each job that is enqueued later.
func bestWaitingGainsEnqueuePoints(r *rig) {
	r.enqueueFor(1, 1, withPriority(2))
	r.enqueueFor(2, 5)
	r.checkBestWaiting("five jobs later", 1, 7)
}
