package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var (
	byEnqueue  = queue.Order{Scheduling: queue.ByAging, Aging: queue.AgingEnqueue, Interval: time.Minute}
	byPriority = queue.Order{Scheduling: queue.ByPriority, Aging: queue.AgingTime, Interval: time.Minute}
	byArrival  = queue.Order{Scheduling: queue.ByArrival, Aging: queue.AgingTime, Interval: time.Minute}
)

var claiming = []promise{
	{name: "a claim reserves a job and raises its fence", keep: claimReserves},
	{name: "a claim takes at most what is wanted", keep: claimWants},
	{name: "equal ranks run in order of seq", keep: claimBySeq},
	{name: "a waiting job earns a point an interval", keep: agingByTime},
	{name: "a waiting job earns a point an enqueue", keep: agingByEnqueue, order: byEnqueue},
	{name: "a sleeping job earns nothing", keep: sleepEarnsNothing},
	{name: "a job earns no enqueues while it sleeps", keep: sleepEarnsNoEnqueues, order: byEnqueue},
	{name: "by priority waiting earns nothing", keep: orderByPriority, order: byPriority},
	{name: "by arrival priority means nothing", keep: orderByArrival, order: byArrival},
	{name: "a job is not claimed before it is due", keep: notBeforeDue},
	{name: "a retry keeps its place", keep: retryKeepsPlace},
	{name: "a released job is back at its old place", keep: releaseGivesBack},
	{name: "a claim cancels what it meets too late", keep: claimCancelsExpired},
	{name: "a promotion cancels whatever waits too long", keep: promoteCancelsExpired},
	{name: "what a worker holds does not expire", keep: leasedNeverExpires},
	{name: "what a worker gives back expires in time", keep: releasedExpires},
	{name: "what is to be retried expires in time", keep: retriedExpires},
}

func claimReserves(r *rig) {
	j := r.one()
	r.advance(time.Second)
	r.news()
	counts := r.s.Counts()
	claimed := r.claim(1)
	same(r, "claimed job", claimed, r.asClaimed(claimed, j))
	want := claimed[0]
	same(r, "job as stored", r.get(j.ID), want)
	same(r, "counts", r.s.Counts().States, counts.States)
	same(r, "events of a claim", r.news(), nil)
	same(r, "claimed again", r.claim(1), nil)
	held, err := r.heldJobs()
	r.must(err)
	same(r, "leased jobs", held, []queue.Job{want})
	r.pass(time.Hour)
	same(r, "claimed after an hour", r.claim(1), nil)
}

func claimWants(r *rig) {
	jobs := r.store(draft(), draft(), draft(), draft(), draft())
	same(r, "none", r.claim(0), nil)
	same(r, "less than none", r.claim(-1), nil)
	same(r, "two", seqs(r.claim(2)), seqs(jobs[:2]))
	same(r, "more than there are", seqs(r.claim(100)), seqs(jobs[2:]))
	same(r, "from an empty queue", r.claim(1), nil)
}

func claimBySeq(r *rig) {
	jobs := r.store(draft(named("z")), draft(named("a")), draft(named("m")), draft(), draft(named("b")))
	var order []int64
	for range jobs {
		order = append(order, r.claimOne().Seq)
	}
	same(r, "order of claims", order, seqs(jobs))
}

// With ageing by time, jobs with (priority, waited minutes) of (2,7), (3,5), (5,3) and (8,0) start in this
// order. The first has 9 points, and the others have 8 each, so these start in order of arrival.
func agingByTime(r *rig) {
	two := r.one(priority(2))
	r.advance(2 * time.Minute)
	three := r.one(priority(3))
	r.advance(2 * time.Minute)
	five := r.one(priority(5))
	r.advance(3 * time.Minute)
	eight := r.one(priority(8))
	r.promote()
	same(r, "order of claims", seqs(r.claim(10)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})

	urgent := r.store(draft(priority(1)), draft(priority(10)), draft(priority(-3)), draft(priority(10)))
	same(r, "order of claims at once", seqs(r.claim(10)), []int64{urgent[1].Seq, urgent[3].Seq, urgent[0].Seq, urgent[2].Seq})

	// Points grow continuously: a millisecond decides.
	old := r.one(priority(4))
	r.advance(time.Minute + time.Millisecond)
	young := r.one(priority(5))
	same(r, "older by more than a point", seqs(r.claim(10)), []int64{old.Seq, young.Seq})
	old = r.one(priority(4))
	r.advance(time.Minute - time.Millisecond)
	young = r.one(priority(5))
	same(r, "older by less than a point", seqs(r.claim(10)), []int64{young.Seq, old.Seq})
}

func agingByEnqueue(r *rig) {
	fill := func(n int) {
		for range n {
			r.one(priority(-1000))
		}
	}
	two := r.one(priority(2))
	fill(1)
	three := r.one(priority(3))
	fill(1)
	five := r.one(priority(5))
	fill(2)
	eight := r.one(priority(8))
	same(r, "arrivals", []int64{two.Arrival, three.Arrival, five.Arrival, eight.Arrival}, []int64{1, 3, 5, 8})
	r.pass(time.Hour) // time earns no points with this order
	same(r, "order of claims", seqs(r.claim(4)), []int64{two.Seq, three.Seq, five.Seq, eight.Seq})
	r.claim(10)

	// Removed jobs still count as enqueued.
	first := r.one(priority(0))
	for range 3 {
		r.must(r.s.Change(r.Context(), r.one().Seq, store.Change{Verb: queue.VerbRemove, UID: asker}))
	}
	second := r.one(priority(3))
	same(r, "order of claims after removals", seqs(r.claim(10)), []int64{first.Seq, second.Seq})
}

func sleepEarnsNothing(r *rig) {
	sleeper := r.one(delay(10 * time.Minute))
	r.advance(5 * time.Minute)
	waiter := r.one()
	r.pass(5 * time.Minute)
	same(r, "order of claims", seqs(r.claim(10)), []int64{waiter.Seq, sleeper.Seq})
}

func sleepEarnsNoEnqueues(r *rig) {
	sleeper := r.one(priority(5), delay(10*time.Minute))
	first, second, third := r.one(priority(5)), r.one(priority(5)), r.one(priority(5))
	r.pass(10 * time.Minute)
	waiter := r.one(priority(6))
	same(r, "arrival of the sleeper", r.get(sleeper.ID).Arrival, 4)
	same(r, "points of the newest job", r.s.Order().Points(waiter.Since, r.s.Now(), waiter.Arrival, r.s.Counts().Enqueued), 0)
	same(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, sleeper.Seq, third.Seq, waiter.Seq})
}

func orderByPriority(r *rig) {
	low := r.one(priority(1))
	r.advance(1000 * time.Hour)
	high := r.one(priority(2))
	same(r, "order of claims", seqs(r.claim(1)), []int64{high.Seq})
	again := r.store(draft(priority(1)), draft(priority(-1)), draft(priority(7)))
	same(r, "order of claims", seqs(r.claim(10)), []int64{again[2].Seq, low.Seq, again[0].Seq, again[1].Seq})
}

func orderByArrival(r *rig) {
	late := r.one(priority(100), delay(2*time.Minute))
	first := r.one(priority(1))
	r.advance(time.Minute)
	second := r.one(priority(100))
	r.pass(time.Minute)
	same(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, late.Seq})
}

func notBeforeDue(r *rig) {
	j := r.one(delay(time.Minute))
	same(r, "claimed at once", r.claim(1), nil)
	r.pass(time.Minute - time.Millisecond)
	same(r, "claimed a millisecond early", r.claim(1), nil)
	r.pass(time.Millisecond)
	j.Arrival = r.s.Counts().Enqueued // it earns no points before it is due
	claimed := r.claim(1)
	same(r, "claimed when due", claimed, r.asClaimed(claimed, j))
	failed := r.end(claimed[0], exit(1))
	same(r, "wait after the first failure", failed.DueAt, r.s.Now()+2000)
	r.pass(2*time.Second - time.Millisecond)
	same(r, "retried a millisecond early", r.claim(1), nil)
	r.pass(time.Millisecond)
	same(r, "retried when due", seqs(r.claim(1)), []int64{j.Seq})
}

func retryKeepsPlace(r *rig) {
	first := r.one()
	r.advance(time.Second)
	second := r.one()
	failed := r.end(r.claimOne(), exit(1))
	same(r, "since and arrival of the failed job", []int64{int64(failed.Since), failed.Arrival}, []int64{int64(first.Since), first.Arrival})
	r.pass(2 * time.Second)
	third := r.one()
	same(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, third.Seq})
}

func releaseGivesBack(r *rig) {
	first := r.one()
	r.advance(time.Second)
	second := r.one()
	r.news()
	claimed := r.claimOne()
	done := r.turn(store.Report{Released: []queue.Lease{claimed.Lease()}})
	same(r, "result", done, store.Grant{})
	first.Fence = claimed.Fence
	same(r, "released job", r.get(first.ID), first)
	same(r, "events", r.news(), nil)
	held, err := r.heldJobs()
	r.must(err)
	same(r, "leased jobs", held, nil)
	both := r.claim(2)
	same(r, "claimed in order", both, r.asClaimed(both, first, second))
	first = both[0]

	// A failed job that is claimed and released does not change, except for its fence.
	failed := r.end(first, exit(1))
	r.pass(2 * time.Second)
	again := r.claimOne()
	r.turn(store.Report{Released: []queue.Lease{again.Lease()}})
	failed.Fence = again.Fence
	same(r, "released failed job", r.get(failed.ID), failed)
	r.counted()
}

// expiry returns the event of a job that has just expired.
func (r *rig) expiry(j queue.Job) queue.Event {
	return r.event(queue.EventExpired, j, queue.EventDetail{Reason: queue.ReasonExpired})
}

// expiredJob returns j as it is after it has expired now.
func (r *rig) expiredJob(j queue.Job) queue.Job {
	j.State, j.Reason, j.EndedAt, j.UpdatedAt = queue.Cancelled, queue.ReasonExpired, r.s.Now(), r.s.Now()
	return j
}

func claimCancelsExpired(r *rig) {
	late := r.one(priority(9), expires(r.s.Now()+1000))
	next := r.one()
	r.news()
	r.advance(time.Second)
	same(r, "claimed", seqs(r.claim(1)), []int64{next.Seq})
	late = r.expiredJob(late)
	same(r, "expired job", r.get(late.ID), late)
	same(r, "events", r.news(), []queue.Event{r.expiry(late)})
	r.counted()
	punctual := r.one(expires(r.s.Now() + 1))
	same(r, "claimed a millisecond before it expires", seqs(r.claim(1)), []int64{punctual.Seq})
	gone := r.one(expires(r.s.Now()))
	same(r, "claimed when it expires", r.claim(1), nil)
	same(r, "expired at once", r.get(gone.ID), r.expiredJob(gone))
}

func promoteCancelsExpired(r *rig) {
	at := r.s.Now() + 1000
	failed := r.run(exit(3), expires(at))
	held := r.run(ended(queue.Lost), onLost(queue.OnLostHold), expires(at))
	pending := r.one(expires(at))
	sleeping := r.one(expires(at), delay(time.Hour))
	later := r.one(expires(at+1), delay(time.Hour))
	r.news()
	r.pass(time.Second)
	var want []queue.Event
	for _, j := range []queue.Job{failed, held, pending, sleeping} {
		same(r, "expired job", r.get(j.ID), r.expiredJob(j))
		want = append(want, r.expiry(r.expiredJob(j)))
	}
	same(r, "job that expires later", r.get(later.ID), later)
	same(r, "events, in any order", sortedByJob(r.news()), want)
	same(r, "claimed", r.claim(10), nil)
	r.counted()
}

func leasedNeverExpires(r *rig) {
	at := r.s.Now() + 1000
	r.store(draft(expires(at)), draft(expires(at)), draft(expires(at)))
	jobs := r.claim(3)
	r.pass(time.Minute)
	same(r, "reserved job", r.get(jobs[0].ID), jobs[0])
	running := r.start(jobs[0])
	r.pass(time.Minute)
	same(r, "running job", r.get(running.ID), running)
	same(r, "state after success", r.end(running, exit(0)).State, queue.Completed)

	r.turn(store.Report{Released: []queue.Lease{jobs[1].Lease()}})
	failed := r.end(jobs[2], exit(1))
	same(r, "state after failure", failed.State, queue.Failed)
	r.promote()
	same(r, "released job", r.get(jobs[1].ID), r.expiredJob(jobs[1]))
	same(r, "failed job", r.get(failed.ID), r.expiredJob(failed))
}

func releasedExpires(r *rig) {
	r.one(expires(r.s.Now().Add(10 * time.Second)))
	j := r.claimOne()
	r.wakes(10*time.Second, func() { r.turn(store.Report{Released: []queue.Lease{j.Lease()}}) })
}

func retriedExpires(r *rig) {
	r.one(expires(r.s.Now().Add(500 * time.Millisecond)))
	j := r.claimOne()
	r.wakes(500*time.Millisecond, func() {
		if failed := r.end(j, exit(1)); failed.DueAt <= failed.ExpiresAt {
			r.Errorf("it is due at %v, before it expires", failed.DueAt)
		}
	})
}

// wakes checks that Promote must be called within the given time after do: either the last Promote announced
// it, or DueSooner sends a hint.
func (r *rig) wakes(within time.Duration, do func()) {
	r.Helper()
	said := r.promote()
	for told := true; told; {
		select {
		case <-r.s.DueSooner():
		default:
			told = false
		}
	}
	do()
	select {
	case <-r.s.DueSooner():
		said = r.promote()
	default:
	}
	if said > within {
		r.Errorf("it is to be looked at in %v, want %v at most", said, within)
	}
}
