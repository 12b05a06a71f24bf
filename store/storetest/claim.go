package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// These rank orders (settings that determine which job starts first) are by priority with ageing by enqueues, by
// priority without ageing, and by arrival.
var (
	enqueueAgingRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues,
		AgingInterval: time.Minute}
	priorityRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingUnit: queue.AgingByTime,
		AgingInterval: time.Minute}
	arrivalRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByArrival, AgingUnit: queue.AgingByTime,
		AgingInterval: time.Minute}
)

var claimTests = []contractTest{
	{name: "a claim reserves a job and raises its fence", run: claimLeasesJobAndRaisesFence},
	{name: "a claim returns at most the requested number of jobs", run: claimReturnsAtMostWantedJobs},
	{name: "jobs with equal ranks start in order of their seqs", run: equalRanksStartBySeq},
	{name: "with ageing by time, a waiting job gains one point per interval", run: jobsAgeByTime},
	{name: "with ageing by enqueues, a waiting job gains one point per enqueued job",
		run: jobsAgeByEnqueue, rankOrder: enqueueAgingRankOrder},
	{name: "with ageing by time, a job gains no points before it is due", run: jobDoesNotAgeBeforeDue},
	{name: "with ageing by enqueues, a job gains no points before it is due",
		run: jobDoesNotAgeByEnqueuesBeforeDue, rankOrder: enqueueAgingRankOrder},
	{name: "with order by priority, waiting gains no points", run: priorityOrderIgnoresWaitingTime,
		rankOrder: priorityRankOrder},
	{name: "with order by arrival, priorities have no effect", run: arrivalOrderIgnoresPriority,
		rankOrder: arrivalRankOrder},
	{name: "a job is not claimed before it is due", run: jobIsNotClaimedBeforeDue},
	{name: "a retry keeps the job's rank", run: retryKeepsRank},
	{name: "a released job gets its old rank back", run: releasedJobGetsOldRank},
	{name: "a claim cancels the expired jobs that it finds", run: claimCancelsExpiredJobs},
	{name: "Promote cancels expired jobs in all waiting states", run: dueChangesCancelExpiredJobs},
	{name: "a leased job does not expire", run: leasedJobDoesNotExpire},
	{name: "Promote is due when a released job expires", run: releasedJobExpires},
	{name: "Promote is due when a job that waits for its retry expires", run: waitingRetryExpires},
}

// A claim leases a job and raises its fence (the number of its lease).
func claimLeasesJobAndRaisesFence(r *storeTest) {
	j := r.enqueueOne()
	r.advanceClock(time.Second)
	r.readNewEvents()
	counts := r.store.Counts()
	claimed := r.claimJobs(1)
	checkEqual(r, "claimed job", claimed, r.expectedClaimedJobs(claimed, j))
	want := claimed[0]
	checkEqual(r, "job as stored", r.getJob(j.ID), want)
	checkEqual(r, "counts", r.store.Counts().JobsByState, counts.JobsByState)
	checkEqual(r, "events of a claim", r.readNewEvents(), nil)
	checkEqual(r, "claimed again", r.claimJobs(1), nil)
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", leased, []queue.Job{want})
	r.advanceAndApplyDueChanges(time.Hour)
	checkEqual(r, "claimed after an hour", r.claimJobs(1), nil)
}

func claimReturnsAtMostWantedJobs(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(), newDraft(), newDraft(), newDraft(), newDraft())
	checkEqual(r, "none", r.claimJobs(0), nil)
	checkEqual(r, "a negative number", r.claimJobs(-1), nil)
	checkEqual(r, "two", seqsOf(r.claimJobs(2)), seqsOf(jobs[:2]))
	checkEqual(r, "more than the queue contains", seqsOf(r.claimJobs(100)), seqsOf(jobs[2:]))
	checkEqual(r, "from an empty queue", r.claimJobs(1), nil)
}

func equalRanksStartBySeq(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withID("z")), newDraft(withID("a")), newDraft(withID("m")), newDraft(),
		newDraft(withID("b")))
	var order []int64
	for range jobs {
		order = append(order, r.claimOne().Seq)
	}
	checkEqual(r, "order of claims", order, seqsOf(jobs))
}

// With ageing by time, a job gains one point of priority per minute of waiting. Four jobs have the priorities 2, 3, 5
// and 8 and have waited 7, 5, 3 and 0 minutes. The first job has 9 points and starts first. The other three jobs have 8
// points each and start in order of arrival.
func jobsAgeByTime(r *storeTest) {
	two := r.enqueueOne(withPriority(2))
	r.advanceClock(2 * time.Minute)
	three := r.enqueueOne(withPriority(3))
	r.advanceClock(2 * time.Minute)
	five := r.enqueueOne(withPriority(5))
	r.advanceClock(3 * time.Minute)
	eight := r.enqueueOne(withPriority(8))
	r.applyDueChangesUntilDone()
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})

	urgent := r.enqueueAndGet(newDraft(withPriority(1)), newDraft(withPriority(10)), newDraft(withPriority(-3)),
		newDraft(withPriority(10)))
	checkEqual(r, "order of claims without waiting", seqsOf(r.claimJobs(10)),
		[]int64{urgent[1].Seq, urgent[3].Seq, urgent[0].Seq, urgent[2].Seq})

	// Points increase continuously: if a job has waited one minute and one millisecond, it starts before a job whose
	// priority is one point higher.
	old := r.enqueueOne(withPriority(4))
	r.advanceClock(time.Minute + time.Millisecond)
	young := r.enqueueOne(withPriority(5))
	checkEqual(r, "older by more than a point", seqsOf(r.claimJobs(10)), []int64{old.Seq, young.Seq})
	old = r.enqueueOne(withPriority(4))
	r.advanceClock(time.Minute - time.Millisecond)
	young = r.enqueueOne(withPriority(5))
	checkEqual(r, "older by less than a point", seqsOf(r.claimJobs(10)), []int64{young.Seq, old.Seq})
}

// With ageing by enqueues, a waiting job gains one point per enqueued job.
func jobsAgeByEnqueue(r *storeTest) {
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
	r.advanceAndApplyDueChanges(time.Hour) // ageing by enqueues ignores time
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(4)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})
	r.claimJobs(10)

	// An enqueued job gives a point to each earlier job. The earlier jobs keep these points even if the later job is
	// removed.
	first := r.enqueueOne(withPriority(0))
	for range 3 {
		r.must(r.store.ChangeJob(r.Context(), r.enqueueOne().Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	}
	second := r.enqueueOne(withPriority(3))
	checkEqual(r, "order of claims after removals", seqsOf(r.claimJobs(10)), []int64{first.Seq, second.Seq})
}

// With ageing by time, a job gains no points before it is due.
func jobDoesNotAgeBeforeDue(r *storeTest) {
	sleeper := r.enqueueOne(withDelay(10 * time.Minute))
	r.advanceClock(5 * time.Minute)
	waiter := r.enqueueOne()
	r.advanceAndApplyDueChanges(5 * time.Minute)
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{waiter.Seq, sleeper.Seq})
}

// With ageing by enqueues, a job gains no points before it is due.
func jobDoesNotAgeByEnqueuesBeforeDue(r *storeTest) {
	sleeper := r.enqueueOne(withPriority(5), withDelay(10*time.Minute))
	first, second, third := r.enqueueOne(withPriority(5)), r.enqueueOne(withPriority(5)), r.enqueueOne(withPriority(5))
	r.advanceAndApplyDueChanges(10 * time.Minute)
	waiter := r.enqueueOne(withPriority(6))
	checkEqual(r, "arrival of the sleeper", r.getJob(sleeper.ID).ArrivalNumber, 4)
	checkEqual(r, "points of the newest job", r.store.RankOrder().AgingPoints(waiter.AgingSince, r.store.Now(),
		waiter.ArrivalNumber, r.store.Counts().JobsEverEnqueued), 0)
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)),
		[]int64{first.Seq, second.Seq, sleeper.Seq, third.Seq, waiter.Seq})
}

// A dependant starts to age only when its parents have ended.
func dependantAgesAfterParentsEnd(r *storeTest) {
	parent := r.enqueueOne()
	child := r.enqueueOne(withParents(queue.ParentCompleted, parent))
	later := r.enqueueOne(func(j *queue.Job) { j.Delay = time.Hour }, withParents(queue.ParentCompleted, parent))
	r.advanceAndApplyDueChanges(time.Minute)
	other := r.enqueueOne()
	got := r.claimAndExpect("the parent and another job", parent, other)
	r.advanceAndApplyDueChanges(time.Minute)
	r.settleJob(got[0], exitOutcome(0))
	checkEqual(r, "waiting since", r.getJob(child.ID).AgingSince, r.store.Now())
	checkEqual(r, "due", r.getJob(later.ID).DueAt, r.getJob(later.ID).RunAt)
	r.claimAndExpect("the dependant that is due", child)
	r.advanceAndApplyDueChanges(time.Hour)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("the delayed dependant", later)
}

// If jobs start by priority, they gain no points by waiting.
func priorityOrderIgnoresWaitingTime(r *storeTest) {
	low := r.enqueueOne(withPriority(1))
	r.advanceClock(1000 * time.Hour)
	high := r.enqueueOne(withPriority(2))
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(1)), []int64{high.Seq})
	again := r.enqueueAndGet(newDraft(withPriority(1)), newDraft(withPriority(-1)), newDraft(withPriority(7)))
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{again[2].Seq, low.Seq, again[0].Seq, again[1].Seq})
}

// If jobs start in order of arrival, their priorities have no effect.
func arrivalOrderIgnoresPriority(r *storeTest) {
	late := r.enqueueOne(withPriority(100), withDelay(2*time.Minute))
	first := r.enqueueOne(withPriority(1))
	r.advanceClock(time.Minute)
	second := r.enqueueOne(withPriority(100))
	r.advanceAndApplyDueChanges(time.Minute)
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{first.Seq, second.Seq, late.Seq})
}

func jobIsNotClaimedBeforeDue(r *storeTest) {
	j := r.enqueueOne(withDelay(time.Minute))
	checkEqual(r, "claimed before it is due", r.claimJobs(1), nil)
	r.advanceAndApplyDueChanges(time.Minute - time.Millisecond)
	checkEqual(r, "claimed a millisecond early", r.claimJobs(1), nil)
	r.advanceAndApplyDueChanges(time.Millisecond)
	// A job gains no points before it is due. So when it is due, its arrival number is the number of jobs that were
	// enqueued until then.
	j.ArrivalNumber = r.store.Counts().JobsEverEnqueued
	claimed := r.claimJobs(1)
	checkEqual(r, "claimed when due", claimed, r.expectedClaimedJobs(claimed, j))
	failed := r.settleJob(claimed[0], exitOutcome(1))
	checkEqual(r, "wait after the first failure", failed.DueAt, r.store.Now()+2000)
	r.advanceAndApplyDueChanges(2*time.Second - time.Millisecond)
	checkEqual(r, "retried a millisecond early", r.claimJobs(1), nil)
	r.advanceAndApplyDueChanges(time.Millisecond)
	checkEqual(r, "retried when due", seqsOf(r.claimJobs(1)), []int64{j.Seq})
}

func retryKeepsRank(r *storeTest) {
	first := r.enqueueOne()
	r.advanceClock(time.Second)
	second := r.enqueueOne()
	failed := r.settleJob(r.claimOne(), exitOutcome(1))
	checkEqual(r, "since and arrival of the failed job", []int64{int64(failed.AgingSince), failed.ArrivalNumber},
		[]int64{int64(first.AgingSince), first.ArrivalNumber})
	r.advanceAndApplyDueChanges(2 * time.Second)
	third := r.enqueueOne()
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{first.Seq, second.Seq, third.Seq})
}

func releasedJobGetsOldRank(r *storeTest) {
	first := r.enqueueOne()
	r.advanceClock(time.Second)
	second := r.enqueueOne()
	r.readNewEvents()
	claimed := r.claimOne()
	done := r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{claimed.Lease()}})
	checkEqual(r, "result", done, store.ReportAndClaimResult{})
	first.Fence = claimed.Fence
	checkEqual(r, "released job", r.getJob(first.ID), first)
	checkEqual(r, "events", r.readNewEvents(), nil)
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", leased, nil)
	both := r.claimJobs(2)
	checkEqual(r, "claimed in order", both, r.expectedClaimedJobs(both, first, second))
	first = both[0]

	// After a failed job was claimed and given back, only its fence (the number of its lease) has changed.
	failed := r.settleJob(first, exitOutcome(1))
	r.advanceAndApplyDueChanges(2 * time.Second)
	again := r.claimOne()
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{again.Lease()}})
	failed.Fence = again.Fence
	checkEqual(r, "released failed job", r.getJob(failed.ID), failed)
	r.checkJobCounts()
}

// expectedExpiryEvent returns the event that the store must record when job j expires at the current time.
func (r *storeTest) expectedExpiryEvent(j queue.Job) queue.Event {
	return r.expectedEvent(queue.EventExpired, j, queue.EventDetail{Reason: queue.ReasonExpired})
}

// expectedExpiredJob returns job j as it must be after it has expired at the current time.
func (r *storeTest) expectedExpiredJob(j queue.Job) queue.Job {
	j.State, j.Reason, j.EndedAt, j.UpdatedAt = queue.Cancelled, queue.ReasonExpired, r.store.Now(), r.store.Now()
	return j
}

func claimCancelsExpiredJobs(r *storeTest) {
	late := r.enqueueOne(withPriority(9), withExpiry(r.store.Now()+1000))
	next := r.enqueueOne()
	r.readNewEvents()
	r.advanceClock(time.Second)
	checkEqual(r, "claimed", seqsOf(r.claimJobs(1)), []int64{next.Seq})
	late = r.expectedExpiredJob(late)
	checkEqual(r, "expired job", r.getJob(late.ID), late)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedExpiryEvent(late)})
	r.checkJobCounts()
	punctual := r.enqueueOne(withExpiry(r.store.Now() + 1))
	checkEqual(r, "claimed a millisecond before it expires", seqsOf(r.claimJobs(1)), []int64{punctual.Seq})
	gone := r.enqueueOne(withExpiry(r.store.Now()))
	checkEqual(r, "claimed when it expires", r.claimJobs(1), nil)
	checkEqual(r, "job that was expired when it was enqueued", r.getJob(gone.ID), r.expectedExpiredJob(gone))
}

func dueChangesCancelExpiredJobs(r *storeTest) {
	at := r.store.Now() + 1000
	failed := r.runJob(exitOutcome(3), withExpiry(at))
	held := r.runJob(outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold), withExpiry(at))
	pending := r.enqueueOne(withExpiry(at))
	sleeping := r.enqueueOne(withExpiry(at), withDelay(time.Hour))
	later := r.enqueueOne(withExpiry(at+1), withDelay(time.Hour))
	r.readNewEvents()
	r.advanceAndApplyDueChanges(time.Second)
	var want []queue.Event
	for _, j := range []queue.Job{failed, held, pending, sleeping} {
		checkEqual(r, "expired job", r.getJob(j.ID), r.expectedExpiredJob(j))
		want = append(want, r.expectedExpiryEvent(r.expectedExpiredJob(j)))
	}
	checkEqual(r, "job that expires later", r.getJob(later.ID), later)
	checkEqual(r, "events, in any order", eventsSortedByJob(r.readNewEvents()), want)
	checkEqual(r, "claimed", r.claimJobs(10), nil)
	r.checkJobCounts()
}

func leasedJobDoesNotExpire(r *storeTest) {
	at := r.store.Now() + 1000
	r.enqueueAndGet(newDraft(withExpiry(at)), newDraft(withExpiry(at)), newDraft(withExpiry(at)))
	jobs := r.claimJobs(3)
	r.advanceAndApplyDueChanges(time.Minute)
	checkEqual(r, "reserved job", r.getJob(jobs[0].ID), jobs[0])
	running := r.startJob(jobs[0])
	r.advanceAndApplyDueChanges(time.Minute)
	checkEqual(r, "running job", r.getJob(running.ID), running)
	checkEqual(r, "state after success", r.settleJob(running, exitOutcome(0)).State, queue.Completed)

	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{jobs[1].Lease()}})
	failed := r.settleJob(jobs[2], exitOutcome(1))
	checkEqual(r, "state after failure", failed.State, queue.Failed)
	r.applyDueChangesUntilDone()
	checkEqual(r, "released job", r.getJob(jobs[1].ID), r.expectedExpiredJob(jobs[1]))
	checkEqual(r, "failed job", r.getJob(failed.ID), r.expectedExpiredJob(failed))
}

func releasedJobExpires(r *storeTest) {
	r.enqueueOne(withExpiry(r.store.Now().Add(10 * time.Second)))
	j := r.claimOne()
	r.checkDueChangesRequestedWithin(10*time.Second,
		func() { r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}}) })
}

// A failed job can expire while it waits for its retry. ApplyDueChanges must be called at that time, and the store says
// so in advance.
func waitingRetryExpires(r *storeTest) {
	r.enqueueOne(withExpiry(r.store.Now().Add(500 * time.Millisecond)))
	j := r.claimOne()
	r.checkDueChangesRequestedWithin(500*time.Millisecond, func() {
		if failed := r.settleJob(j, exitOutcome(1)); failed.DueAt <= failed.ExpiresAt {
			r.Errorf("the retry is due at %v, want it after the expiry", failed.DueAt)
		}
	})
}

func retryRemovesExpiry(r *storeTest) {
	j := r.enqueueOne(withExpiry(r.store.Now() + 1000))
	r.advanceAndApplyDueChanges(time.Second)
	checkEqual(r, "state when expired", r.getJob(j.ID).State, queue.Cancelled)
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	r.advanceAndApplyDueChanges(time.Hour)
	got := r.getJob(j.ID)
	checkEqual(r, "state and expiry of the revived job", []any{got.State, got.ExpiresAt, got.Reason},
		[]any{queue.Pending, queue.UnixMillis(0), queue.Reason("")})
	checkEqual(r, "claimed", seqsOf(r.claimJobs(1)), []int64{j.Seq})
}

// checkDueChangesRequestedWithin performs an action. Then it checks that the store requests a call of ApplyDueChanges
// within maxDelay: by the duration that ApplyDueChanges last returned, or by a value on DueChangeHints.
func (r *storeTest) checkDueChangesRequestedWithin(maxDelay time.Duration, action func()) {
	r.Helper()
	said := r.applyDueChangesUntilDone()
	for hinted := true; hinted; {
		select {
		case <-r.store.DueChangeHints():
		default:
			hinted = false
		}
	}
	action()
	select {
	case <-r.store.DueChangeHints():
		said = r.applyDueChangesUntilDone()
	default:
	}
	if said > maxDelay {
		r.Errorf("the next Promote is due in %v, want %v at most", said, maxDelay)
	}
}
