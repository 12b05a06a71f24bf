package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var bestWaitingPriorityTests = []contractTest{
	{name: "BestWaitingPriority finds the user's best-ranked job in all queues", run: bestWaitingPrioritySpansQueues},
	{name: "a job that waits for its retry counts as waiting", run: bestWaitingPriorityCountsRetries},
	{name: "a job does not count as waiting while it is leased", run: bestWaitingPrioritySkipsLeasedJobs},
	{name: "jobs that cannot start yet do not count as waiting", run: bestWaitingPrioritySkipsFutureJobs},
	{name: "with ageing by enqueues, the best waiting job gains points", rankOrder: enqueueAgingRankOrder,
		run: bestWaitingPriorityAgesByEnqueues},
}

// checkBestWaitingPriority checks the result of BestWaitingPriority for a user: the priority of the user's best-ranked
// waiting job, including the points that the job has gained by waiting.
func (r *storeTest) checkBestWaitingPriority(description string, uid int, wantPriority int64) {
	r.Helper()
	got, err := r.store.BestWaitingPriority(r.Context(), uid)
	r.must(err)
	if exact := (store.WaitingPriority{Priority: wantPriority, JobFound: true}); got != exact {
		r.Errorf("%s: got %+v, want %+v", description, got, exact)
	}
}

// checkNoWaitingJob checks that BestWaitingPriority finds no waiting job of a user.
func (r *storeTest) checkNoWaitingJob(description string, uid int) {
	r.Helper()
	if got, err := r.store.BestWaitingPriority(r.Context(), uid); got != (store.WaitingPriority{}) || err != nil {
		r.Errorf("%s: got %+v, error %v; want none", description, got, err)
	}
}

// BestWaitingPriority finds the user's best-ranked job in all queues.
func bestWaitingPrioritySpansQueues(r *storeTest) {
	r.checkNoWaitingJob("an empty store", 1)
	r.enqueueUserJobs(2, 3, withPriority(15))
	r.checkNoWaitingJob("jobs of another user", 1)
	r.enqueueUserJobs(1, 1, withPriority(4))
	r.checkBestWaitingPriority("one job", 1, 4)
	other := func(j *queue.Job) { j.Queue = "other" }
	locked := r.enqueueUserJobs(1, 1, withPriority(7), other, withDemands(lockDemand("k", 1)))[0]
	r.enqueueUserJobs(1, 1, withPriority(3), other)
	r.checkBestWaitingPriority("three lanes", 1, 7)
	r.advanceClock(4 * time.Minute)
	r.checkBestWaitingPriority("four minutes later", 1, 11)
	r.enqueueUserJobs(1, 1, withPriority(10))
	r.checkBestWaitingPriority("after a new job was enqueued", 1, 11)
	r.setQueueRule("other", store.QueueRule{Weight: 1, Paused: true})
	r.checkBestWaitingPriority("in a paused queue", 1, 11)
	r.must(r.store.ChangeJob(r.Context(), locked.Seq, store.JobChange{Verb: queue.VerbCancel, UID: 1}))
	r.checkBestWaitingPriority("after the best job was cancelled", 1, 10)
}

// For BestWaitingPriority, a failed job that waits for its retry counts as waiting.
func bestWaitingPriorityCountsRetries(r *storeTest) {
	r.enqueueUserJobs(1, 1, withPriority(9))
	r.settleJob(r.claimOne(), exitOutcome(1))
	r.checkBestWaitingPriority("the job waits for its retry", 1, 9)
	r.enqueueUserJobs(1, 1, withPriority(6))
	r.checkBestWaitingPriority("a second job could start now", 1, 9)
	r.advanceAndApplyDueChanges(5 * time.Second)
	r.checkBestWaitingPriority("the retry is due", 1, 9)
}

func bestWaitingPrioritySkipsLeasedJobs(r *storeTest) {
	jobs := r.enqueueUserJobs(1, 2, withPriority(9))
	r.enqueueUserJobs(1, 1, withPriority(6))
	leased := r.claimJobs(1)
	r.checkBestWaitingPriority("one of two is claimed", 1, 9)
	leased = append(leased, r.claimJobs(1)...)
	checkEqual(r, "claimed", seqsOf(leased), seqsOf(jobs))
	r.checkBestWaitingPriority("both are claimed", 1, 6)
	r.startJob(leased[0])
	r.checkBestWaitingPriority("one of the claimed jobs has started", 1, 6)
	r.releaseClaimedJobs(leased[1])
	r.checkBestWaitingPriority("the other job was given back", 1, 9)
}

// For BestWaitingPriority, jobs whose start time is in the future do not count as waiting.
func bestWaitingPrioritySkipsFutureJobs(r *storeTest) {
	r.enqueueUserJobs(1, 1, withPriority(9), withDelay(time.Hour))
	r.checkNoWaitingJob("a job that is due later", 1)
	parent := r.enqueueUserJobs(2, 1)[0]
	r.enqueueUserJobs(1, 1, withPriority(12), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentSeq: parent.Seq, Condition: queue.ParentEnded}}
	})
	r.checkNoWaitingJob("a blocked job", 1)
	waiting := r.enqueueUserJobs(1, 1, withPriority(13))[0]
	r.must(r.store.ChangeJob(r.Context(), waiting.Seq, store.JobChange{Verb: queue.VerbHold}))
	r.checkNoWaitingJob("a held job", 1)
	r.advanceAndApplyDueChanges(time.Hour)
	r.checkBestWaitingPriority("the job is due", 1, 9)
}

// With ageing by enqueues, a waiting job gains a point of priority for each job that is enqueued later.
func bestWaitingPriorityAgesByEnqueues(r *storeTest) {
	r.enqueueUserJobs(1, 1, withPriority(2))
	r.enqueueUserJobs(2, 5)
	r.checkBestWaitingPriority("five jobs later", 1, 7)
}
