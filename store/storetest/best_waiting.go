package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var leading = []promise{
	{name: "the best waiting job of a user is that of the best rank in all queues", keep: bestOfQueues},
	{name: "a job that waits to be retried counts as waiting", keep: bestIsRetried},
	{name: "a leased job does not count as waiting, and does again once it is given back", keep: bestIsLeased},
	{name: "jobs that cannot start yet do not count as waiting", keep: bestOfLater},
	{name: "the best waiting job earns points by enqueues", order: byEnqueue, keep: bestByEnqueues},
}

// best checks the effective priority of a user's best waiting job.
func (r *rig) best(what string, uid int, want int64) {
	r.Helper()
	got, err := r.s.BestWaiting(r.Context(), uid)
	r.must(err)
	if exact := (store.WaitingPriority{Priority: want, Found: true}); got != exact {
		r.Errorf("%s: got %+v, want %+v", what, got, exact)
	}
}

// noBest checks that a user has no waiting job.
func (r *rig) noBest(what string, uid int) {
	r.Helper()
	if got, err := r.s.BestWaiting(r.Context(), uid); got != (store.WaitingPriority{}) || err != nil {
		r.Errorf("%s: got %+v, error %v; want none", what, got, err)
	}
}

func bestOfQueues(r *rig) {
	r.noBest("an empty store", 1)
	r.jobsOf(2, 3, priority(15))
	r.noBest("jobs of another user", 1)
	r.jobsOf(1, 1, priority(4))
	r.best("one job", 1, 4)
	other := func(j *queue.Job) { j.Queue = "other" }
	locked := r.jobsOf(1, 1, priority(7), other, demands(lock("k", 1)))[0]
	r.jobsOf(1, 1, priority(3), other)
	r.best("three lanes", 1, 7)
	r.advance(4 * time.Minute)
	r.best("four minutes later", 1, 11)
	r.jobsOf(1, 1, priority(10))
	r.best("another one that has not waited", 1, 11)
	r.rule("other", store.QueueRule{Weight: 1, Paused: true})
	r.best("in a paused queue", 1, 11)
	r.must(r.s.Change(r.Context(), locked.Seq, store.Change{Verb: queue.VerbCancel, UID: 1}))
	r.best("once the best one is cancelled", 1, 10)
}

func bestIsRetried(r *rig) {
	r.jobsOf(1, 1, priority(9))
	r.end(r.claimOne(), exit(1))
	r.best("it waits to be retried", 1, 9)
	r.jobsOf(1, 1, priority(6))
	r.best("another one could start now", 1, 9)
	r.pass(5 * time.Second)
	r.best("it is due", 1, 9)
}

func bestIsLeased(r *rig) {
	jobs := r.jobsOf(1, 2, priority(9))
	r.jobsOf(1, 1, priority(6))
	held := r.claim(1)
	r.best("one of two is claimed", 1, 9)
	held = append(held, r.claim(1)...)
	same(r, "claimed", seqs(held), seqs(jobs))
	r.best("both are claimed", 1, 6)
	r.start(held[0])
	r.best("one has started", 1, 6)
	r.release(held[1])
	r.best("the other one is given back", 1, 9)
}

func bestOfLater(r *rig) {
	r.jobsOf(1, 1, priority(9), delay(time.Hour))
	r.noBest("a job that is due later", 1)
	parent := r.jobsOf(2, 1)[0]
	r.jobsOf(1, 1, priority(12), func(j *queue.Job) {
		j.After = []queue.Dependency{{Job: parent.Seq, How: queue.ParentEnded}}
	})
	r.noBest("a blocked job", 1)
	kept := r.jobsOf(1, 1, priority(13))[0]
	r.must(r.s.Change(r.Context(), kept.Seq, store.Change{Verb: queue.VerbHold}))
	r.noBest("a held job", 1)
	r.pass(time.Hour)
	r.best("its time has come", 1, 9)
}

func bestByEnqueues(r *rig) {
	r.jobsOf(1, 1, priority(2))
	r.jobsOf(2, 5)
	r.best("five jobs later", 1, 7)
}
