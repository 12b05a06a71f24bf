package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Settings that determine the order in which jobs start: ageing by enqueues, priority
// without ageing, and arrival.
var (
	enqueueAgingOrder = queue.Order{Scheduling: queue.ByAging, AgingUnit: queue.AgingByEnqueues,
		AgingInterval: time.Minute}
	priorityOrder = queue.Order{Scheduling: queue.ByPriority, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute}
	arrivalOrder  = queue.Order{Scheduling: queue.ByArrival, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute}
)

var claimPromises = []promise{
	{name: "a claim reserves a job and raises its fence", check: claimReserves},
	{name: "a claim returns at most the requested number of jobs", check: claimTakesAtMostWanted},
	{name: "jobs with equal ranks start in order of their seqs", check: equalRanksStartBySeq},
	{name: "with ageing by time, a waiting job gains one point per interval", check: jobsAgeByTime},
	{name: "with ageing by enqueues, a waiting job gains one point per enqueued job",
		check: jobsAgeByEnqueue, order: enqueueAgingOrder},
	{name: "with ageing by time, a job gains no points before it is due", check: noPointsBeforeDue},
	{name: "with ageing by enqueues, a job gains no points before it is due",
		check: noEnqueuePointsBeforeDue, order: enqueueAgingOrder},
	{name: "with order by priority, waiting gains no points", check: priorityOrderIgnoresWaiting, order: priorityOrder},
	{name: "with order by arrival, priorities have no effect", check: arrivalOrderIgnoresPriority, order: arrivalOrder},
	{name: "a job is not claimed before it is due", check: jobIsNotClaimedBeforeDue},
	{name: "a retry keeps the job's rank", check: retryKeepsRank},
	{name: "a released job gets its old rank back", check: releasedJobGetsOldRank},
	{name: "a claim cancels the expired jobs that it finds", check: claimCancelsExpired},
	{name: "Promote cancels expired jobs in all waiting states", check: promoteCancelsExpired},
	{name: "a leased job does not expire", check: leasedJobDoesNotExpire},
	{name: "Promote is due when a released job expires", check: releasedJobExpires},
	{name: "Promote is due when a job that waits for its retry expires", check: waitingRetryExpires},
}

// A claim leases a job and raises its fence (the number of its lease).
func claimReserves(r *rig) {
	j := r.enqueueOne()
	r.advance(time.Second)
	r.newEvents()
	counts := r.s.Counts()
	claimed := r.claim(1)
	checkEqual(r, "claimed job", claimed, r.asClaimed(claimed, j))
	want := claimed[0]
	checkEqual(r, "job as stored", r.getJob(j.ID), want)
	checkEqual(r, "counts", r.s.Counts().States, counts.States)
	checkEqual(r, "events of a claim", r.newEvents(), nil)
	checkEqual(r, "claimed again", r.claim(1), nil)
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", leased, []queue.Job{want})
	r.advanceAndPromote(time.Hour)
	checkEqual(r, "claimed after an hour", r.claim(1), nil)
}

func claimTakesAtMostWanted(r *rig) {
	jobs := r.enqueueAndGet(draft(), draft(), draft(), draft(), draft())
	checkEqual(r, "none", r.claim(0), nil)
	checkEqual(r, "a negative number", r.claim(-1), nil)
	checkEqual(r, "two", seqs(r.claim(2)), seqs(jobs[:2]))
	checkEqual(r, "more than the queue contains", seqs(r.claim(100)), seqs(jobs[2:]))
	checkEqual(r, "from an empty queue", r.claim(1), nil)
}

func equalRanksStartBySeq(r *rig) {
	jobs := r.enqueueAndGet(draft(withID("z")), draft(withID("a")), draft(withID("m")), draft(), draft(withID("b")))
	var order []int64
	for range jobs {
		order = append(order, r.claimOne().Seq)
	}
	checkEqual(r, "order of claims", order, seqs(jobs))
}

// With ageing by time, a job gains one point of priority per minute of waiting. Four jobs have the priorities
// 2, 3, 5 and 8 and have waited 7, 5, 3 and 0 minutes. The first job has 9 points and starts first. The others
// have 8 points each and start in order of arrival.
func jobsAgeByTime(r *rig) {
	two := r.enqueueOne(withPriority(2))
	r.advance(2 * time.Minute)
	three := r.enqueueOne(withPriority(3))
	r.advance(2 * time.Minute)
	five := r.enqueueOne(withPriority(5))
	r.advance(3 * time.Minute)
	eight := r.enqueueOne(withPriority(8))
	r.promote()
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})

	urgent := r.enqueueAndGet(draft(withPriority(1)), draft(withPriority(10)), draft(withPriority(-3)),
		draft(withPriority(10)))
	checkEqual(r, "order of claims without waiting", seqs(r.claim(10)),
		[]int64{urgent[1].Seq, urgent[3].Seq, urgent[0].Seq, urgent[2].Seq})

	// Points increase continuously: one millisecond of waiting decides which of two jobs starts first.
	old := r.enqueueOne(withPriority(4))
	r.advance(time.Minute + time.Millisecond)
	young := r.enqueueOne(withPriority(5))
	checkEqual(r, "older by more than a point", seqs(r.claim(10)), []int64{old.Seq, young.Seq})
	old = r.enqueueOne(withPriority(4))
	r.advance(time.Minute - time.Millisecond)
	young = r.enqueueOne(withPriority(5))
	checkEqual(r, "older by less than a point", seqs(r.claim(10)), []int64{young.Seq, old.Seq})
}

// With ageing by enqueues, a waiting job gains one point per enqueued job.
func jobsAgeByEnqueue(r *rig) {
	fill := func(n int) {
		for range n {
			r.enqueueOne(withPriority(-1000))
		}
	}
	two := r.enqueueOne(withPriority(2))
	fill(1)
	three := r.enqueueOne(withPriority(3))
	fill(1)
	five := r.enqueueOne(withPriority(5))
	fill(2)
	eight := r.enqueueOne(withPriority(8))
	checkEqual(r, "arrivals", []int64{two.ArrivalNumber, three.ArrivalNumber, five.ArrivalNumber, eight.ArrivalNumber},
		[]int64{1, 3, 5, 8})
	r.advanceAndPromote(time.Hour) // ageing by enqueues ignores time
	checkEqual(r, "order of claims", seqs(r.claim(4)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})
	r.claim(10)

	// An enqueued job gives a point to each earlier job. They keep these points even if the later job is removed.
	first := r.enqueueOne(withPriority(0))
	for range 3 {
		r.must(r.s.Change(r.Context(), r.enqueueOne().Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
	}
	second := r.enqueueOne(withPriority(3))
	checkEqual(r, "order of claims after removals", seqs(r.claim(10)), []int64{first.Seq, second.Seq})
}

// With ageing by time, a job gains no points before it is due.
func noPointsBeforeDue(r *rig) {
	sleeper := r.enqueueOne(withDelay(10 * time.Minute))
	r.advance(5 * time.Minute)
	waiter := r.enqueueOne()
	r.advanceAndPromote(5 * time.Minute)
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{waiter.Seq, sleeper.Seq})
}

// With ageing by enqueues, a job gains no points before it is due.
func noEnqueuePointsBeforeDue(r *rig) {
	sleeper := r.enqueueOne(withPriority(5), withDelay(10*time.Minute))
	first, second, third := r.enqueueOne(withPriority(5)), r.enqueueOne(withPriority(5)), r.enqueueOne(withPriority(5))
	r.advanceAndPromote(10 * time.Minute)
	waiter := r.enqueueOne(withPriority(6))
	checkEqual(r, "arrival of the sleeper", r.getJob(sleeper.ID).ArrivalNumber, 4)
	checkEqual(r, "points of the newest job", r.s.Order().AgingPoints(waiter.AgingSince, r.s.Now(), waiter.ArrivalNumber,
		r.s.Counts().EnqueuedTotal), 0)
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, sleeper.Seq, third.Seq, waiter.Seq})
}

// If jobs start by priority, they gain no points by waiting.
func priorityOrderIgnoresWaiting(r *rig) {
	low := r.enqueueOne(withPriority(1))
	r.advance(1000 * time.Hour)
	high := r.enqueueOne(withPriority(2))
	checkEqual(r, "order of claims", seqs(r.claim(1)), []int64{high.Seq})
	again := r.enqueueAndGet(draft(withPriority(1)), draft(withPriority(-1)), draft(withPriority(7)))
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{again[2].Seq, low.Seq, again[0].Seq, again[1].Seq})
}

// If jobs start in order of arrival, their priorities have no effect.
func arrivalOrderIgnoresPriority(r *rig) {
	late := r.enqueueOne(withPriority(100), withDelay(2*time.Minute))
	first := r.enqueueOne(withPriority(1))
	r.advance(time.Minute)
	second := r.enqueueOne(withPriority(100))
	r.advanceAndPromote(time.Minute)
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, late.Seq})
}

func jobIsNotClaimedBeforeDue(r *rig) {
	j := r.enqueueOne(withDelay(time.Minute))
	checkEqual(r, "claimed before it is due", r.claim(1), nil)
	r.advanceAndPromote(time.Minute - time.Millisecond)
	checkEqual(r, "claimed a millisecond early", r.claim(1), nil)
	r.advanceAndPromote(time.Millisecond)
	// A job gains no points before it is due, so its arrival number is the number of jobs
	// enqueued up to that time.
	j.ArrivalNumber = r.s.Counts().EnqueuedTotal
	claimed := r.claim(1)
	checkEqual(r, "claimed when due", claimed, r.asClaimed(claimed, j))
	failed := r.settle(claimed[0], exitOutcome(1))
	checkEqual(r, "wait after the first failure", failed.DueAt, r.s.Now()+2000)
	r.advanceAndPromote(2*time.Second - time.Millisecond)
	checkEqual(r, "retried a millisecond early", r.claim(1), nil)
	r.advanceAndPromote(time.Millisecond)
	checkEqual(r, "retried when due", seqs(r.claim(1)), []int64{j.Seq})
}

func retryKeepsRank(r *rig) {
	first := r.enqueueOne()
	r.advance(time.Second)
	second := r.enqueueOne()
	failed := r.settle(r.claimOne(), exitOutcome(1))
	checkEqual(r, "since and arrival of the failed job", []int64{int64(failed.AgingSince), failed.ArrivalNumber},
		[]int64{int64(first.AgingSince), first.ArrivalNumber})
	r.advanceAndPromote(2 * time.Second)
	third := r.enqueueOne()
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, third.Seq})
}

func releasedJobGetsOldRank(r *rig) {
	first := r.enqueueOne()
	r.advance(time.Second)
	second := r.enqueueOne()
	r.newEvents()
	claimed := r.claimOne()
	done := r.exchange(store.Report{Releases: []queue.Lease{claimed.Lease()}})
	checkEqual(r, "result", done, store.Grant{})
	first.Fence = claimed.Fence
	checkEqual(r, "released job", r.getJob(first.ID), first)
	checkEqual(r, "events", r.newEvents(), nil)
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", leased, nil)
	both := r.claim(2)
	checkEqual(r, "claimed in order", both, r.asClaimed(both, first, second))
	first = both[0]

	// A failed job that is claimed and given back only differs in its fence (the number of its lease).
	failed := r.settle(first, exitOutcome(1))
	r.advanceAndPromote(2 * time.Second)
	again := r.claimOne()
	r.exchange(store.Report{Releases: []queue.Lease{again.Lease()}})
	failed.Fence = again.Fence
	checkEqual(r, "released failed job", r.getJob(failed.ID), failed)
	r.checkCounts()
}

// expiredEvent returns the event that the store must record when job j expires at the current time.
func (r *rig) expiredEvent(j queue.Job) queue.Event {
	return r.event(queue.EventExpired, j, queue.EventDetail{Reason: queue.ReasonExpired})
}

// expiredJob returns job j as it must be after it has expired at the current time.
func (r *rig) expiredJob(j queue.Job) queue.Job {
	j.State, j.Reason, j.EndedAt, j.UpdatedAt = queue.Cancelled, queue.ReasonExpired, r.s.Now(), r.s.Now()
	return j
}

func claimCancelsExpired(r *rig) {
	late := r.enqueueOne(withPriority(9), withExpiry(r.s.Now()+1000))
	next := r.enqueueOne()
	r.newEvents()
	r.advance(time.Second)
	checkEqual(r, "claimed", seqs(r.claim(1)), []int64{next.Seq})
	late = r.expiredJob(late)
	checkEqual(r, "expired job", r.getJob(late.ID), late)
	checkEqual(r, "events", r.newEvents(), []queue.Event{r.expiredEvent(late)})
	r.checkCounts()
	punctual := r.enqueueOne(withExpiry(r.s.Now() + 1))
	checkEqual(r, "claimed a millisecond before it expires", seqs(r.claim(1)), []int64{punctual.Seq})
	gone := r.enqueueOne(withExpiry(r.s.Now()))
	checkEqual(r, "claimed when it expires", r.claim(1), nil)
	checkEqual(r, "job that was expired when it was enqueued", r.getJob(gone.ID), r.expiredJob(gone))
}

func promoteCancelsExpired(r *rig) {
	at := r.s.Now() + 1000
	failed := r.runJob(exitOutcome(3), withExpiry(at))
	held := r.runJob(outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold), withExpiry(at))
	pending := r.enqueueOne(withExpiry(at))
	sleeping := r.enqueueOne(withExpiry(at), withDelay(time.Hour))
	later := r.enqueueOne(withExpiry(at+1), withDelay(time.Hour))
	r.newEvents()
	r.advanceAndPromote(time.Second)
	var want []queue.Event
	for _, j := range []queue.Job{failed, held, pending, sleeping} {
		checkEqual(r, "expired job", r.getJob(j.ID), r.expiredJob(j))
		want = append(want, r.expiredEvent(r.expiredJob(j)))
	}
	checkEqual(r, "job that expires later", r.getJob(later.ID), later)
	checkEqual(r, "events, in any order", sortedByJob(r.newEvents()), want)
	checkEqual(r, "claimed", r.claim(10), nil)
	r.checkCounts()
}

func leasedJobDoesNotExpire(r *rig) {
	at := r.s.Now() + 1000
	r.enqueueAndGet(draft(withExpiry(at)), draft(withExpiry(at)), draft(withExpiry(at)))
	jobs := r.claim(3)
	r.advanceAndPromote(time.Minute)
	checkEqual(r, "reserved job", r.getJob(jobs[0].ID), jobs[0])
	running := r.startJob(jobs[0])
	r.advanceAndPromote(time.Minute)
	checkEqual(r, "running job", r.getJob(running.ID), running)
	checkEqual(r, "state after success", r.settle(running, exitOutcome(0)).State, queue.Completed)

	r.exchange(store.Report{Releases: []queue.Lease{jobs[1].Lease()}})
	failed := r.settle(jobs[2], exitOutcome(1))
	checkEqual(r, "state after failure", failed.State, queue.Failed)
	r.promote()
	checkEqual(r, "released job", r.getJob(jobs[1].ID), r.expiredJob(jobs[1]))
	checkEqual(r, "failed job", r.getJob(failed.ID), r.expiredJob(failed))
}

func releasedJobExpires(r *rig) {
	r.enqueueOne(withExpiry(r.s.Now().Add(10 * time.Second)))
	j := r.claimOne()
	r.checkDueWithin(10*time.Second, func() { r.exchange(store.Report{Releases: []queue.Lease{j.Lease()}}) })
}

// A failed job can expire while it waits for its retry. The store requests a call of Promote for that time.
func waitingRetryExpires(r *rig) {
	r.enqueueOne(withExpiry(r.s.Now().Add(500 * time.Millisecond)))
	j := r.claimOne()
	r.checkDueWithin(500*time.Millisecond, func() {
		if failed := r.settle(j, exitOutcome(1)); failed.DueAt <= failed.ExpiresAt {
			r.Errorf("the retry is due at %v, want it after the expiry", failed.DueAt)
		}
	})
}

// checkDueWithin performs an action. It then checks that the store requests a call of Promote within maxDelay,
// by the result of the last Promote or by a value on PromoteHints.
func (r *rig) checkDueWithin(maxDelay time.Duration, action func()) {
	r.Helper()
	said := r.promote()
	for hinted := true; hinted; {
		select {
		case <-r.s.PromoteHints():
		default:
			hinted = false
		}
	}
	action()
	select {
	case <-r.s.PromoteHints():
		said = r.promote()
	default:
	}
	if said > maxDelay {
		r.Errorf("the next Promote is due in %v, want %v at most", said, maxDelay)
	}
}
