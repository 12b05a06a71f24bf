package storetest

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var quotaPromises = []promise{
	{name: "max_pending_per_user limits a user's waiting jobs", check: userPendingLimitApplies},
	{name: "max_pending_per_user counts staged jobs", check: userPendingLimitCountsStagedJobs},
	{name: "max_pending_per_user applies to retries", check: userPendingLimitAppliesToRetries},
	{name: "max_running_per_user limits a user's leased jobs", check: userRunningLimitApplies},
	{name: "jobs that the running limit holds back start in order of rank", check: limitedJobsKeepOrder},
	{name: "jobs that the running limit holds back do not delay other users", check: limitedJobsDelayNoOthers},
	{name: "Await returns when a user is below the running limit again", check: awaitReturnsBelowUserLimit},
	{name: "Await returns when the running limit is raised", check: awaitReturnsWhenLimitIsRaised},
	{name: "lowering the running limit ends no job", check: loweredRunningLimitEndsNoJob},
	{name: "every verb works on a job that the running limit holds back", check: verbsWorkAtRunningLimit},
	{name: "a job that the running limit holds back can expire", check: jobAtRunningLimitCanExpire},
	{name: "the running limit applies to jobs that are newly due", check: runningLimitAppliesToNewlyDueJobs},
	{name: "a new order applies to jobs that the running limit holds back", check: newOrderAppliesAtRunningLimit},
	{name: "many jobs of one user do not delay other users", check: manyJobsOfOneUserDelayNoOther},
	{name: "a random walk with several users claims the expected jobs", check: func(r *rig) { randomUserWalk(r, 1000) }},
	{name: "a random walk with several users and ageing by enqueues claims the expected jobs",
		check: func(r *rig) { randomUserWalk(r, 500) }, order: enqueueAgingOrder},
}

func withUID(uid int) func(*queue.Job) { return func(j *queue.Job) { j.UID = uid } }

// setMaxRunning sets the maximum number of leased jobs of each user.
func (r *rig) setMaxRunning(n int) {
	r.Helper()
	r.must(r.s.SetMaxRunningPerUser(r.Context(), n))
}

func userPendingLimitApplies(r *rig) {
	ask := func(uid, n int, limit int64) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = draft(withUID(uid))
		}
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: uid, MaxPendingPerUser: limit})
		return err
	}
	full := func(subject string, err error) {
		r.Helper()
		r.wantCode(subject, err, queue.CodeQueueFull)
		if !strings.Contains(err.Error(), "max_pending_per_user is 3") {
			r.Errorf("%s: %v does not name the setting and its value", subject, err)
		}
	}
	r.must(ask(2, 9, 0))
	r.claim(9)
	r.checkUnchanged(func() { full("4 jobs with a limit of 3", ask(1, 4, 3)) })
	r.must(ask(1, 3, 3))
	full("one more job", ask(1, 1, 3))
	jobs := r.claim(3)
	r.must(ask(3, 3, 3)) // the jobs of user 1 do not count toward the limit of user 3
	full("a reserved job still waits", ask(1, 1, 3))
	r.settle(jobs[0], exitOutcome(1))
	full("a failed job still waits", ask(1, 1, 3))
	r.startJob(jobs[1])
	r.must(ask(1, 1, 3))
	full("one more job", ask(1, 1, 3))
	r.settle(jobs[2], exitOutcome(0))
	r.must(ask(1, 1, 3))
	waiting := r.getJob(jobs[0].ID)
	r.must(r.change(waiting, queue.VerbHold))
	full("a held job still waits", ask(1, 1, 3))
	r.must(r.change(waiting, queue.VerbCancel))
	r.must(ask(1, 1, 3))
	full("after the place of a cancelled job was used", ask(1, 1, 3))
	r.must(r.change(waiting, queue.VerbRetry))
	r.must(r.change(waiting, queue.VerbRemove))
	full("after removing the job that exceeded the limit", ask(1, 1, 3))
	last := r.listAll(store.Filter{UID: new(1), States: []queue.State{queue.Pending}})[0]
	r.must(r.change(last, queue.VerbRemove))
	r.must(ask(1, 1, 3))
	full("after the place of a removed job was used", ask(1, 1, 3))
	r.must(ask(1, 5, 0))
	r.must(ask(1, 5, -1))
}

func userPendingLimitAppliesToRetries(r *rig) {
	jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1)), draft(withUID(2)))
	for _, j := range jobs {
		r.must(r.change(j, queue.VerbCancel))
	}
	retry := func(j queue.Job, limit, userLimit int64) error {
		return r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID, MaxPending: limit,
			MaxPendingPerUser: userLimit})
	}
	r.must(retry(jobs[0], 2, 1))
	r.checkUnchanged(func() {
		r.wantCode("a second job of a user with a limit of one", retry(jobs[1], 3, 1), queue.CodeQueueFull)
	})
	r.must(retry(jobs[2], 2, 1))
	r.checkUnchanged(func() {
		r.wantCode("a third job with a total limit of two", retry(jobs[1], 2, 0), queue.CodeQueueFull)
	})
	hold := store.Change{Verb: queue.VerbHold, UID: testUID, MaxPending: 1, MaxPendingPerUser: 1}
	// The limits on waiting jobs do not apply to this change, because the job was already waiting.
	r.must(r.s.Change(r.Context(), jobs[0].Seq, hold))
}

func userPendingLimitCountsStagedJobs(r *rig) {
	stage := func(uid int, batch string, n int) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = draft(withUID(uid))
		}
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: uid, Batch: batch, MaxPendingPerUser: 4})
		return err
	}
	r.must(stage(1, "a", 3))
	r.wantCode("a second frame", stage(1, "a", 2), queue.CodeQueueFull)
	r.wantCode("a second batch", stage(1, "b", 2), queue.CodeQueueFull)
	r.must(stage(2, "a", 4))
	var receipt store.Receipt
	enqueue := func(uid int, batch string, drafts ...queue.Job) (err error) {
		receipt, err = r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: uid, Batch: batch, MaxPendingPerUser: 4})
		return err
	}
	r.must(enqueue(1, "", draft(withUID(1))))
	r.wantCode("one more job", enqueue(1, "", draft(withUID(1))), queue.CodeQueueFull)
	r.wantCode("one more job in the commit", enqueue(1, "a", draft(withUID(1))), queue.CodeQueueFull)
	r.must(enqueue(1, "a"))
	r.applyBatch(receipt)
	r.wantCode("one more job after the batch was applied", enqueue(1, "", draft(withUID(1))), queue.CodeQueueFull)
	r.must(r.s.AbortBatch(r.Context(), 2, "a"))
	r.must(enqueue(2, "", draft(withUID(2)), draft(withUID(2)), draft(withUID(2)), draft(withUID(2))))
}

func userRunningLimitApplies(r *rig) {
	r.setMaxRunning(2)
	mine := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1)), draft(withUID(1)), draft(withUID(1)))
	// The job of user 2 has a lower priority, so it does not start between the jobs of user 1.
	other := r.enqueueOne(withUID(2), withPriority(4))
	r.newEvents()
	counts := r.s.Counts()
	claimed := r.claim(9)
	checkEqual(r, "claimed", seqs(claimed), []int64{mine[0].Seq, mine[1].Seq, other.Seq})
	checkEqual(r, "claimed again", r.claim(9), nil)
	for _, j := range mine[2:] {
		checkEqual(r, "a job that the running limit holds back", r.getJob(j.ID), j)
	}
	checkEqual(r, "counts", r.s.Counts().States, counts.States)
	checkEqual(r, "events", r.newEvents(), nil)
	r.startJob(claimed[0])
	checkEqual(r, "claimed while the first job runs", r.claim(9), nil)
	r.settle(claimed[0], exitOutcome(0))
	checkEqual(r, "claimed after the first job ended", seqs(r.claim(9)), []int64{mine[2].Seq})
	r.exchange(store.Report{Releases: []queue.Lease{claimed[1].Lease()}})
	checkEqual(r, "claimed after a job was given back", seqs(r.claim(9)), []int64{mine[1].Seq})
	r.settle(claimed[2], exitOutcome(0)) // the end of another user's job does not help user 1
	checkEqual(r, "claimed after another user's job ended", r.claim(9), nil)
	r.checkCounts()
}

// Jobs that the running limit holds back are claimed in order of rank, not in order of arrival.
func limitedJobsKeepOrder(r *rig) {
	r.setMaxRunning(1)
	first := r.enqueueOne(withUID(1), withPriority(9))
	checkEqual(r, "the first job", seqs(r.claim(1)), []int64{first.Seq})
	low, high, middle := r.enqueueOne(withUID(1), withPriority(1)), r.enqueueOne(withUID(1), withPriority(8)),
		r.enqueueOne(withUID(1), withPriority(5))
	checkEqual(r, "claimed without room", r.claim(9), nil)
	highest := r.enqueueOne(withUID(1), withPriority(9))
	last := first
	for _, want := range []queue.Job{highest, high, middle, low} {
		r.settle(r.getJob(last.ID), exitOutcome(0))
		checkEqual(r, "claimed", seqs(r.claim(9)), []int64{want.Seq})
		last = want
	}
	r.settle(r.getJob(last.ID), exitOutcome(0))

	// Of the first two jobs of user 5, the better-ranked one starts first, although it is newer.
	low, high = r.enqueueOne(withUID(5), withPriority(1)), r.enqueueOne(withUID(5), withPriority(8))
	checkEqual(r, "the better-ranked job", seqs(r.claim(9)), []int64{high.Seq})
	r.settle(r.getJob(high.ID), exitOutcome(0))
	checkEqual(r, "the lower-ranked job", seqs(r.claim(9)), []int64{low.Seq})
	r.settle(r.getJob(low.ID), exitOutcome(0))

	// User 1 had no waiting jobs during the last claims. Only one of these new jobs can start.
	jobs := r.enqueueAndGet(draft(withUID(1), withPriority(1)), draft(withUID(1), withPriority(2)),
		draft(withUID(1), withPriority(3)), draft(withUID(1), withPriority(2)))
	checkEqual(r, "the best-ranked job", seqs(r.claim(9)), []int64{jobs[2].Seq})
	r.settle(r.getJob(jobs[2].ID), exitOutcome(0))
	best := r.enqueueOne(withUID(1), withPriority(3))
	checkEqual(r, "the best of the jobs held back and enqueued since", seqs(r.claim(9)), []int64{best.Seq})
	r.setMaxRunning(3)
	checkEqual(r, "two of the other jobs", seqs(r.claim(9)), []int64{jobs[1].Seq, jobs[3].Seq})
	r.setMaxRunning(0)
	checkEqual(r, "the last job", seqs(r.claim(9)), []int64{jobs[0].Seq})
}

// If a user is below the running limit, the user's jobs start as if no limit existed.
func limitedJobsDelayNoOthers(r *rig) {
	r.setMaxRunning(1)
	a := r.enqueueAndGet(draft(withUID(1), withPriority(9)), draft(withUID(1), withPriority(7)),
		draft(withUID(1), withPriority(4)))
	b := r.enqueueAndGet(draft(withUID(2), withPriority(8)), draft(withUID(2), withPriority(6)),
		draft(withUID(2), withPriority(5)))
	checkEqual(r, "the best job of each user", seqs(r.claim(9)), []int64{a[0].Seq, b[0].Seq})
	end := func(jobs ...queue.Job) {
		var report store.Report
		for _, j := range jobs {
			report.Settlements = append(report.Settlements, r.settlement(r.getJob(j.ID), exitOutcome(0)))
		}
		r.exchange(report)
	}
	end(a[0], b[0])
	checkEqual(r, "one worker", seqs(r.claim(1)), []int64{a[1].Seq})
	c := r.enqueueOne(withUID(3), withPriority(6))
	// User 3 is next in turn, although job c was enqueued after b[1].
	checkEqual(r, "another single worker", seqs(r.claim(1)), []int64{c.Seq})
	checkEqual(r, "more workers", seqs(r.claim(9)), []int64{b[1].Seq})
	end(b[1], a[1])
	checkEqual(r, "the remaining jobs", seqs(r.claim(9)), []int64{b[2].Seq, a[2].Seq})
}

func awaitReturnsBelowUserLimit(r *rig) {
	for _, c := range []struct {
		name     string
		makeRoom func(claimed queue.Job)
		want     int // how many of the two jobs are then claimed
	}{
		{"an end", func(j queue.Job) { r.settle(j, exitOutcome(0)) }, 1},
		{"a failure", func(j queue.Job) { r.settle(j, exitOutcome(1)) }, 1},
		{"a release", func(j queue.Job) { r.exchange(store.Report{Releases: []queue.Lease{j.Lease()}}) }, 0},
		{"a hold", func(j queue.Job) {
			r.exchange(store.Report{Changes: []store.LeasedChange{{Lease: j.Lease(),
				Change: store.Change{Verb: queue.VerbHold, UID: testUID}}}})
		}, 1},
	} {
		r.setMaxRunning(1)
		jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1)))
		claimed := r.claimOne()
		result := r.await(r.Context(), 2)
		checkEqual(r, "claimed while the other job is leased", r.claim(1), nil)
		c.makeRoom(claimed)
		got := r.awaitedJobs(c.name, result)
		checkEqual(r, c.name+": awaited", seqs(got), []int64{jobs[c.want].Seq})
		r.setMaxRunning(0)
		r.settle(got[0], exitOutcome(0))
		for _, j := range jobs {
			r.must(r.change(j, queue.VerbRemove))
		}
	}
}

func awaitReturnsWhenLimitIsRaised(r *rig) {
	for _, n := range []int{2, 0} {
		r.setMaxRunning(1)
		jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1)))
		r.claim(1)
		result := r.await(r.Context(), 2)
		r.setMaxRunning(1)
		checkEqual(r, "claimed at the same limit", r.claim(1), nil)
		r.setMaxRunning(n)
		checkEqual(r, "awaited", seqs(r.awaitedJobs("another limit", result)), seqs(jobs[1:]))
		r.setMaxRunning(0)
		for _, j := range jobs {
			r.settle(r.getJob(j.ID), exitOutcome(0))
		}
	}
}

func loweredRunningLimitEndsNoJob(r *rig) {
	r.setMaxRunning(3)
	jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1)), draft(withUID(1)), draft(withUID(1)), draft(withUID(1)))
	claimed := r.claim(9)
	checkEqual(r, "claimed", seqs(claimed), seqs(jobs[:3]))
	r.setMaxRunning(1)
	for i := range 2 {
		r.startJob(claimed[i])
		r.settle(r.getJob(claimed[i].ID), exitOutcome(0))
		checkEqual(r, "claimed while more jobs run than allowed", r.claim(9), nil)
	}
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased", seqs(leased), []int64{jobs[2].Seq})
	r.settle(claimed[2], exitOutcome(0))
	checkEqual(r, "claimed when all have ended", seqs(r.claim(9)), []int64{jobs[3].Seq})
}

func verbsWorkAtRunningLimit(r *rig) {
	r.setMaxRunning(1)
	jobs := r.enqueueAndGet(draft(withUID(1), withPriority(9)), draft(withUID(1), withPriority(1)),
		draft(withUID(1), withPriority(2)), draft(withUID(1), withPriority(3)),
		draft(withUID(1), withPriority(4)), draft(withUID(1), withPriority(5)), draft(withUID(1), withPriority(6)))
	checkEqual(r, "claimed", seqs(r.claim(9)), seqs(jobs[:1]))
	cancelled, held, removed, lowered, raised, late := jobs[6], jobs[5], jobs[4], jobs[3], jobs[1], jobs[2]
	edit := func(j queue.Job, changeJob func(*queue.Job)) {
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbEdit, UID: testUID,
			Edit: func(j *queue.Job) error { changeJob(j); return nil }}))
	}
	r.must(r.change(cancelled, queue.VerbCancel))
	checkEqual(r, "state of the cancelled job", r.getJob(cancelled.ID).State, queue.Cancelled)
	r.must(r.change(held, queue.VerbHold))
	r.must(r.change(removed, queue.VerbRemove))
	edit(lowered, withPriority(0))
	edit(raised, withPriority(8))
	edit(late, withDelay(time.Minute))
	checkEqual(r, "claimed after the changes", r.claim(9), nil)
	last := jobs[0]
	next := func(subject string, want queue.Job) {
		r.Helper()
		r.settle(r.getJob(last.ID), exitOutcome(0))
		checkEqual(r, subject, seqs(r.claim(9)), []int64{want.Seq})
		last = want
	}
	next("the job with a raised priority", raised)
	next("the job with a lowered priority", lowered)
	r.must(r.change(held, queue.VerbRelease))
	r.must(r.change(cancelled, queue.VerbRetry))
	checkEqual(r, "claimed without room", r.claim(9), nil)
	next("the retried job", cancelled)
	next("the released job", held)
	r.advanceAndPromote(time.Minute)
	checkEqual(r, "claimed when due, without room", r.claim(9), nil)
	next("the delayed job", late)
	r.settle(r.getJob(late.ID), exitOutcome(0))
	checkEqual(r, "claimed at the end", r.claim(9), nil)
	r.checkCounts()
}

func jobAtRunningLimitCanExpire(r *rig) {
	r.setMaxRunning(1)
	jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1), withExpiry(r.s.Now()+1000)),
		draft(withUID(1), withExpiry(r.s.Now()+1000)), draft(withUID(1)))
	r.claim(9)
	r.advanceAndPromote(time.Second)
	for _, j := range jobs[1:3] {
		checkEqual(r, "expired job", r.getJob(j.ID), r.expiredJob(j))
	}
	r.settle(r.getJob(jobs[0].ID), exitOutcome(0))
	checkEqual(r, "claimed", seqs(r.claim(9)), []int64{jobs[3].Seq})
	r.settle(r.getJob(jobs[3].ID), exitOutcome(0))

	// A claim cancels expired jobs. They do not count toward the user's limit of running jobs.
	r.setMaxRunning(0)
	late, next := r.enqueueOne(withUID(1), withExpiry(r.s.Now()), withPriority(9)), r.enqueueOne(withUID(1))
	r.setMaxRunning(1)
	checkEqual(r, "claimed after an expired job", seqs(r.claim(9)), []int64{next.Seq})
	checkEqual(r, "expired job", r.getJob(late.ID), r.expiredJob(late))
	r.checkCounts()
}

func runningLimitAppliesToNewlyDueJobs(r *rig) {
	r.setMaxRunning(1)
	jobs := r.enqueueAndGet(draft(withUID(1)), draft(withUID(1), withDelay(time.Second)),
		draft(withUID(1), withDelay(time.Second), withPriority(6)))
	r.claim(9)
	r.advanceAndPromote(time.Second)
	checkEqual(r, "claimed when due", r.claim(9), nil)
	checkEqual(r, "nothing else is due", r.promote(), time.Hour)
	failed := r.settle(r.getJob(jobs[0].ID), exitOutcome(1))
	checkEqual(r, "claimed", seqs(r.claim(9)), []int64{jobs[2].Seq})
	r.advanceAndPromote(time.Duration(failed.DueAt-r.s.Now()) * time.Millisecond)
	checkEqual(r, "claimed when a retry is due", r.claim(9), nil)
	r.settle(r.getJob(jobs[2].ID), exitOutcome(0))
	checkEqual(r, "claimed", seqs(r.claim(9)), []int64{jobs[0].Seq})
}

func newOrderAppliesAtRunningLimit(r *rig) {
	r.setMaxRunning(1)
	jobs := r.enqueueAndGet(draft(withUID(1), withPriority(9)))
	r.claim(1)
	for p := range int64(4) {
		jobs = append(jobs, r.enqueueOne(withUID(1), withPriority(p)))
		r.advance(2 * time.Minute)
	}
	checkEqual(r, "claimed without room", r.claim(9), nil)
	next := func(endingJob, nextJob queue.Job) {
		r.Helper()
		r.settle(r.getJob(endingJob.ID), exitOutcome(0))
		checkEqual(r, "claimed", seqs(r.claim(9)), []int64{nextJob.Seq})
	}
	next(jobs[0], jobs[1])
	r.must(r.s.SetOrder(r.Context(), priorityOrder))
	r.rerank()
	next(jobs[1], jobs[4])
	next(jobs[4], jobs[3])
}

// rerank computes the ranks of all jobs again, after the scheduling settings have changed.
func (r *rig) rerank() {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.s.Rerank(r.Context())
		r.must(err)
	}
}

// One claim may check only some of the jobs that a limit holds back. Await continues until it finds a job.
func manyJobsOfOneUserDelayNoOther(r *rig) {
	const jobCount = 3000
	drafts := make([]queue.Job, jobCount)
	for i := range drafts {
		drafts[i] = draft(withUID(1), withPriority(6))
	}
	receipt := r.enqueue(1, drafts...)
	other := r.enqueueOne(withUID(2))
	r.setMaxRunning(2)
	claimed := r.awaitedJobs("first Await", r.await(r.Context(), 2))
	checkEqual(r, "jobs of the first user", seqs(claimed), receipt.Seqs[:2])
	checkEqual(r, "the second user's job", seqs(r.awaitedJobs("second Await", r.await(r.Context(), 2))),
		[]int64{other.Seq})
	result := r.await(r.Context(), 2)
	r.enqueue(1, drafts...)
	again := r.enqueueOne(withUID(2))
	checkEqual(r, "the second user's job after more jobs of the first", seqs(r.awaitedJobs("Await", result)),
		[]int64{again.Seq})
	r.setMaxRunning(0)
	checkEqual(r, "without the limit", seqs(r.awaitedJobs("without the limit", r.await(r.Context(), 500))),
		receipt.Seqs[2:502])
}

// randomUserWalk performs random operations on the jobs of several users. It checks that each claim returns the
// jobs that a scan of all jobs predicts, and that no user exceeds the limit on running jobs.
func randomUserWalk(r *rig, steps int) {
	rng := rand.New(rand.NewPCG(5, 8))
	n, leased := 0, map[int64]queue.Job{}
	turns := servedTurns{lastClaims: map[int]int{}, previousClaims: map[int64]int{}}
	some := func() (queue.Job, bool) {
		if len(leased) == 0 {
			return queue.Job{}, false
		}
		seqs := slices.Sorted(maps.Keys(leased))
		return leased[seqs[rng.IntN(len(seqs))]], true
	}
	for step := range walkSteps(steps) {
		switch rng.IntN(13) {
		case 0, 1, 2:
			user := withUID(step/50 + rng.IntN(3))
			for range 1 + rng.IntN(4) {
				r.enqueueOne(user, withPriority(int64(rng.IntN(9))),
					withDelay(time.Duration(rng.IntN(2)*rng.IntN(2000))*time.Millisecond))
			}
		case 3, 4, 5:
			want := rng.IntN(4)
			expect := r.expectedClaim(n, want, leased, turns)
			got := r.claim(want)
			checkEqual(r, "claimed", seqs(got), expect)
			for _, j := range got {
				leased[j.Seq] = j
				turns.noteServed(&j)
			}
		case 6, 7:
			if j, ok := some(); ok {
				r.settle(j, exitOutcome(int64(rng.IntN(2))))
				delete(leased, j.Seq)
			}
		case 8:
			if j, ok := some(); ok {
				r.exchange(store.Report{Releases: []queue.Lease{j.Lease()}})
				delete(leased, j.Seq)
				turns.noteGivenBack(&j)
			}
		case 9:
			jobs := r.listAll(store.Filter{})
			if len(jobs) == 0 {
				continue
			}
			j := jobs[rng.IntN(len(jobs))]
			verb := []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRelease, queue.VerbRetry, queue.VerbRemove,
				queue.VerbEdit}[rng.IntN(6)]
			p := int64(rng.IntN(9))
			err := r.s.Change(r.Context(), j.Seq, store.Change{Verb: verb, UID: testUID,
				Edit: func(j *queue.Job) error { j.Priority = p; return nil }})
			if err != nil && !errors.Is(err, queue.ErrWrongState) && !errors.Is(err, store.ErrLeased) {
				r.must(err)
			}
		case 10:
			n = rng.IntN(4)
			r.setMaxRunning(n)
		case 11:
			r.order = []queue.Order{r.order, defaultOrder, priorityOrder, enqueueAgingOrder}[rng.IntN(4)]
			r.must(r.s.SetOrder(r.Context(), r.order))
			r.rerank()
		default:
			r.advanceAndPromote(time.Duration(rng.IntN(3000)) * time.Millisecond)
		}
		if r.Failed() {
			r.FailNow()
		}
	}
	r.checkCounts()
}

// servedTurns records which users the claims in one queue have served, to predict whose turn it is.
type servedTurns struct {
	claims         int           // number of jobs that noteServed has recorded
	lastClaims     map[int]int   // by uid, the value of claims when a job of the user was last claimed
	previousClaims map[int64]int // by job, the value in lastClaims before the job was claimed
}
