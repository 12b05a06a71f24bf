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

var userLimitTests = []contractTest{
	{name: "max_pending_per_user limits a user's waiting jobs", run: userPendingLimitApplies},
	{name: "max_pending_per_user counts staged jobs", run: userPendingLimitCountsStagedJobs},
	{name: "max_pending_per_user applies to retries", run: userPendingLimitAppliesToRetries},
	{name: "max_running_per_user limits a user's leased jobs", run: userRunningLimitApplies},
	{name: "jobs that the running limit holds back start in order of rank", run: jobsAtRunningLimitKeepRankOrder},
	{name: "jobs that the running limit holds back do not delay other users", run: runningLimitDelaysNoOtherUsers},
	{name: "Await returns when a user is below the running limit again", run: awaitReturnsJobBelowUserLimit},
	{name: "Await returns when the running limit is raised", run: awaitReturnsWhenUserLimitIsRaised},
	{name: "lowering the running limit ends no job", run: loweredRunningLimitEndsNoJob},
	{name: "every verb works on a job that the running limit holds back", run: verbsWorkAtRunningLimit},
	{name: "a job that the running limit holds back can expire", run: jobAtRunningLimitCanExpire},
	{name: "the running limit applies to jobs that are newly due", run: runningLimitAppliesToNewlyDueJobs},
	{name: "a new order applies to jobs that the running limit holds back", run: newRankOrderAppliesAtRunningLimit},
	{name: "many jobs of one user do not delay other users", run: manyJobsOfOneUserDelayNoOtherUser},
	{name: "a random walk with several users claims the expected jobs",
		run: func(r *storeTest) { randomUserWalk(r, 1000) }},
	{name: "a random walk with several users and ageing by enqueues claims the expected jobs",
		run: func(r *storeTest) { randomUserWalk(r, 500) }, rankOrder: enqueueAgingRankOrder},
}

func withUID(uid int) func(*queue.Job) { return func(j *queue.Job) { j.UID = uid } }

// setMaxRunningPerUser sets the maximum number of leased jobs of each user.
func (r *storeTest) setMaxRunningPerUser(maxRunning int) {
	r.Helper()
	r.must(r.store.SetMaxRunningPerUser(r.Context(), maxRunning))
}

func userPendingLimitApplies(r *storeTest) {
	ask := func(uid, n int, limit int64) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = newDraft(withUID(uid))
		}
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, MaxPendingJobsPerUser: limit})
		return err
	}
	full := func(subject string, err error) {
		r.Helper()
		r.checkErrorCode(subject, err, queue.CodeQueueFull)
		if !strings.Contains(err.Error(), "max_pending_per_user is 3") {
			r.Errorf("%s: %v does not name the setting and its value", subject, err)
		}
	}
	r.must(ask(2, 9, 0))
	r.claimJobs(9)
	r.checkStoreUnchanged(func() { full("4 jobs with a limit of 3", ask(1, 4, 3)) })
	r.must(ask(1, 3, 3))
	full("one more job", ask(1, 1, 3))
	jobs := r.claimJobs(3)
	r.must(ask(3, 3, 3)) // the jobs of user 1 do not count toward the limit of user 3
	full("a reserved job still waits", ask(1, 1, 3))
	r.settleJob(jobs[0], exitOutcome(1))
	full("a failed job still waits", ask(1, 1, 3))
	r.startJob(jobs[1])
	r.must(ask(1, 1, 3))
	full("one more job", ask(1, 1, 3))
	r.settleJob(jobs[2], exitOutcome(0))
	r.must(ask(1, 1, 3))
	waiting := r.getJob(jobs[0].ID)
	r.must(r.applyVerb(waiting, queue.VerbHold))
	full("a held job still waits", ask(1, 1, 3))
	r.must(r.applyVerb(waiting, queue.VerbCancel))
	r.must(ask(1, 1, 3))
	full("after the place of a cancelled job was used", ask(1, 1, 3))
	r.must(r.applyVerb(waiting, queue.VerbRetry))
	r.must(r.applyVerb(waiting, queue.VerbRemove))
	full("after removing the job that exceeded the limit", ask(1, 1, 3))
	last := r.listAllJobs(store.JobFilter{UID: new(1), States: []queue.State{queue.Pending}})[0]
	r.must(r.applyVerb(last, queue.VerbRemove))
	r.must(ask(1, 1, 3))
	full("after the place of a removed job was used", ask(1, 1, 3))
	r.must(ask(1, 5, 0))
	r.must(ask(1, 5, -1))
}

func userPendingLimitAppliesToRetries(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1)), newDraft(withUID(2)))
	for _, j := range jobs {
		r.must(r.applyVerb(j, queue.VerbCancel))
	}
	retry := func(j queue.Job, limit, userLimit int64) error {
		return r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID,
			MaxPendingJobs: limit, MaxPendingJobsPerUser: userLimit})
	}
	r.must(retry(jobs[0], 2, 1))
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("a second job of a user with a limit of one", retry(jobs[1], 3, 1), queue.CodeQueueFull)
	})
	r.must(retry(jobs[2], 2, 1))
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("a third job with a total limit of two", retry(jobs[1], 2, 0), queue.CodeQueueFull)
	})
	hold := store.JobChange{Verb: queue.VerbHold, UID: testUID, MaxPendingJobs: 1, MaxPendingJobsPerUser: 1}
	// The limits on waiting jobs do not apply to a hold, because the job was already waiting.
	r.must(r.store.ChangeJob(r.Context(), jobs[0].Seq, hold))
}

func userPendingLimitCountsStagedJobs(r *storeTest) {
	stage := func(uid int, batch string, n int) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = newDraft(withUID(uid))
		}
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, BatchName: batch,
			MaxPendingJobsPerUser: 4})
		return err
	}
	r.must(stage(1, "a", 3))
	r.checkErrorCode("a second frame", stage(1, "a", 2), queue.CodeQueueFull)
	r.checkErrorCode("a second batch", stage(1, "b", 2), queue.CodeQueueFull)
	r.must(stage(2, "a", 4))
	var receipt store.Receipt
	enqueue := func(uid int, batch string, drafts ...queue.Job) (err error) {
		receipt, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, BatchName: batch,
			MaxPendingJobsPerUser: 4})
		return err
	}
	r.must(enqueue(1, "", newDraft(withUID(1))))
	r.checkErrorCode("one more job", enqueue(1, "", newDraft(withUID(1))), queue.CodeQueueFull)
	r.checkErrorCode("one more job in the commit", enqueue(1, "a", newDraft(withUID(1))), queue.CodeQueueFull)
	r.must(enqueue(1, "a"))
	r.applyBatchUntilDone(receipt)
	r.checkErrorCode("one more job after the batch was applied", enqueue(1, "", newDraft(withUID(1))), queue.CodeQueueFull)
	r.must(r.store.AbortBatch(r.Context(), 2, "a"))
	r.must(enqueue(2, "", newDraft(withUID(2)), newDraft(withUID(2)), newDraft(withUID(2)), newDraft(withUID(2))))
}

func userRunningLimitApplies(r *storeTest) {
	r.setMaxRunningPerUser(2)
	mine := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1)), newDraft(withUID(1)), newDraft(withUID(1)))
	// The job of user 2 has a lower priority, so it does not start between the jobs of user 1.
	other := r.enqueueOne(withUID(2), withPriority(4))
	r.readNewEvents()
	counts := r.store.Counts()
	claimed := r.claimJobs(9)
	checkEqual(r, "claimed", seqsOf(claimed), []int64{mine[0].Seq, mine[1].Seq, other.Seq})
	checkEqual(r, "claimed again", r.claimJobs(9), nil)
	for _, j := range mine[2:] {
		checkEqual(r, "a job that the running limit holds back", r.getJob(j.ID), j)
	}
	checkEqual(r, "counts", r.store.Counts().JobsByState, counts.JobsByState)
	checkEqual(r, "events", r.readNewEvents(), nil)
	r.startJob(claimed[0])
	checkEqual(r, "claimed while the first job runs", r.claimJobs(9), nil)
	r.settleJob(claimed[0], exitOutcome(0))
	checkEqual(r, "claimed after the first job ended", seqsOf(r.claimJobs(9)), []int64{mine[2].Seq})
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{claimed[1].Lease()}})
	checkEqual(r, "claimed after a job was given back", seqsOf(r.claimJobs(9)), []int64{mine[1].Seq})
	r.settleJob(claimed[2], exitOutcome(0)) // the end of another user's job does not let another job of user 1 start
	checkEqual(r, "claimed after another user's job ended", r.claimJobs(9), nil)
	r.checkJobCounts()
}

// Jobs that the running limit holds back are claimed in order of rank, not in order of arrival.
func jobsAtRunningLimitKeepRankOrder(r *storeTest) {
	r.setMaxRunningPerUser(1)
	first := r.enqueueOne(withUID(1), withPriority(9))
	checkEqual(r, "the first job", seqsOf(r.claimJobs(1)), []int64{first.Seq})
	low, high, middle := r.enqueueOne(withUID(1), withPriority(1)), r.enqueueOne(withUID(1), withPriority(8)),
		r.enqueueOne(withUID(1), withPriority(5))
	checkEqual(r, "claimed without room", r.claimJobs(9), nil)
	highest := r.enqueueOne(withUID(1), withPriority(9))
	last := first
	for _, want := range []queue.Job{highest, high, middle, low} {
		r.settleJob(r.getJob(last.ID), exitOutcome(0))
		checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{want.Seq})
		last = want
	}
	r.settleJob(r.getJob(last.ID), exitOutcome(0))

	// Of these first two jobs of user 5, the newer one has the better rank and starts first.
	low, high = r.enqueueOne(withUID(5), withPriority(1)), r.enqueueOne(withUID(5), withPriority(8))
	checkEqual(r, "the better-ranked job", seqsOf(r.claimJobs(9)), []int64{high.Seq})
	r.settleJob(r.getJob(high.ID), exitOutcome(0))
	checkEqual(r, "the lower-ranked job", seqsOf(r.claimJobs(9)), []int64{low.Seq})
	r.settleJob(r.getJob(low.ID), exitOutcome(0))

	// User 1 had no waiting jobs during the last claims. Only one of these new jobs can start, because of the limit: the
	// job with the best rank.
	jobs := r.enqueueAndGet(newDraft(withUID(1), withPriority(1)), newDraft(withUID(1), withPriority(2)),
		newDraft(withUID(1), withPriority(3)), newDraft(withUID(1), withPriority(2)))
	checkEqual(r, "the best-ranked job", seqsOf(r.claimJobs(9)), []int64{jobs[2].Seq})
	r.settleJob(r.getJob(jobs[2].ID), exitOutcome(0))
	best := r.enqueueOne(withUID(1), withPriority(3))
	checkEqual(r, "the best of the jobs held back and enqueued since", seqsOf(r.claimJobs(9)), []int64{best.Seq})
	r.setMaxRunningPerUser(3)
	checkEqual(r, "two of the other jobs", seqsOf(r.claimJobs(9)), []int64{jobs[1].Seq, jobs[3].Seq})
	r.setMaxRunningPerUser(0)
	checkEqual(r, "the last job", seqsOf(r.claimJobs(9)), []int64{jobs[0].Seq})
}

// While a user is below the limit on running jobs, the user's jobs start as if there were no limit.
func runningLimitDelaysNoOtherUsers(r *storeTest) {
	r.setMaxRunningPerUser(1)
	a := r.enqueueAndGet(newDraft(withUID(1), withPriority(9)), newDraft(withUID(1), withPriority(7)),
		newDraft(withUID(1), withPriority(4)))
	b := r.enqueueAndGet(newDraft(withUID(2), withPriority(8)), newDraft(withUID(2), withPriority(6)),
		newDraft(withUID(2), withPriority(5)))
	checkEqual(r, "the best job of each user", seqsOf(r.claimJobs(9)), []int64{a[0].Seq, b[0].Seq})
	end := func(jobs ...queue.Job) {
		var report store.LeaseReport
		for _, j := range jobs {
			report.Settlements = append(report.Settlements, r.newSettlement(r.getJob(j.ID), exitOutcome(0)))
		}
		r.sendLeaseReport(report)
	}
	end(a[0], b[0])
	checkEqual(r, "one worker", seqsOf(r.claimJobs(1)), []int64{a[1].Seq})
	c := r.enqueueOne(withUID(3), withPriority(6))
	// User 3 is next in turn, so its job c starts before b[1], which was enqueued earlier.
	checkEqual(r, "another single worker", seqsOf(r.claimJobs(1)), []int64{c.Seq})
	checkEqual(r, "more workers", seqsOf(r.claimJobs(9)), []int64{b[1].Seq})
	end(b[1], a[1])
	checkEqual(r, "the remaining jobs", seqsOf(r.claimJobs(9)), []int64{b[2].Seq, a[2].Seq})
}

func loweredRunningLimitEndsNoJob(r *storeTest) {
	r.setMaxRunningPerUser(3)
	jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1)), newDraft(withUID(1)), newDraft(withUID(1)),
		newDraft(withUID(1)))
	claimed := r.claimJobs(9)
	checkEqual(r, "claimed", seqsOf(claimed), seqsOf(jobs[:3]))
	r.setMaxRunningPerUser(1)
	for i := range 2 {
		r.startJob(claimed[i])
		r.settleJob(r.getJob(claimed[i].ID), exitOutcome(0))
		checkEqual(r, "claimed while more jobs run than allowed", r.claimJobs(9), nil)
	}
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased", seqsOf(leased), []int64{jobs[2].Seq})
	r.settleJob(claimed[2], exitOutcome(0))
	checkEqual(r, "claimed when all have ended", seqsOf(r.claimJobs(9)), []int64{jobs[3].Seq})
}

func verbsWorkAtRunningLimit(r *storeTest) {
	r.setMaxRunningPerUser(1)
	jobs := r.enqueueAndGet(newDraft(withUID(1), withPriority(9)), newDraft(withUID(1), withPriority(1)),
		newDraft(withUID(1), withPriority(2)), newDraft(withUID(1), withPriority(3)),
		newDraft(withUID(1), withPriority(4)), newDraft(withUID(1), withPriority(5)), newDraft(withUID(1), withPriority(6)))
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), seqsOf(jobs[:1]))
	cancelled, held, removed, lowered, raised, late := jobs[6], jobs[5], jobs[4], jobs[3], jobs[1], jobs[2]
	edit := func(j queue.Job, changeJob func(*queue.Job)) {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbEdit, UID: testUID,
			EditJob: func(j *queue.Job) error { changeJob(j); return nil }}))
	}
	r.must(r.applyVerb(cancelled, queue.VerbCancel))
	checkEqual(r, "state of the cancelled job", r.getJob(cancelled.ID).State, queue.Cancelled)
	r.must(r.applyVerb(held, queue.VerbHold))
	r.must(r.applyVerb(removed, queue.VerbRemove))
	edit(lowered, withPriority(0))
	edit(raised, withPriority(8))
	edit(late, withDelay(time.Minute))
	checkEqual(r, "claimed after the changes", r.claimJobs(9), nil)
	last := jobs[0]
	next := func(subject string, want queue.Job) {
		r.Helper()
		r.settleJob(r.getJob(last.ID), exitOutcome(0))
		checkEqual(r, subject, seqsOf(r.claimJobs(9)), []int64{want.Seq})
		last = want
	}
	next("the job with a raised priority", raised)
	next("the job with a lowered priority", lowered)
	r.must(r.applyVerb(held, queue.VerbRelease))
	r.must(r.applyVerb(cancelled, queue.VerbRetry))
	checkEqual(r, "claimed without room", r.claimJobs(9), nil)
	next("the retried job", cancelled)
	next("the released job", held)
	r.advanceAndApplyDueChanges(time.Minute)
	checkEqual(r, "claimed when due, without room", r.claimJobs(9), nil)
	next("the delayed job", late)
	r.settleJob(r.getJob(late.ID), exitOutcome(0))
	checkEqual(r, "claimed at the end", r.claimJobs(9), nil)
	r.checkJobCounts()
}

func jobAtRunningLimitCanExpire(r *storeTest) {
	r.setMaxRunningPerUser(1)
	jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1), withExpiry(r.store.Now()+1000)),
		newDraft(withUID(1), withExpiry(r.store.Now()+1000)), newDraft(withUID(1)))
	r.claimJobs(9)
	r.advanceAndApplyDueChanges(time.Second)
	for _, j := range jobs[1:3] {
		checkEqual(r, "expired job", r.getJob(j.ID), r.expectedExpiredJob(j))
	}
	r.settleJob(r.getJob(jobs[0].ID), exitOutcome(0))
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{jobs[3].Seq})
	r.settleJob(r.getJob(jobs[3].ID), exitOutcome(0))

	// A claim cancels expired jobs. The expired jobs do not count toward their user's limit on running jobs.
	r.setMaxRunningPerUser(0)
	late, next := r.enqueueOne(withUID(1), withExpiry(r.store.Now()), withPriority(9)), r.enqueueOne(withUID(1))
	r.setMaxRunningPerUser(1)
	checkEqual(r, "claimed after an expired job", seqsOf(r.claimJobs(9)), []int64{next.Seq})
	checkEqual(r, "expired job", r.getJob(late.ID), r.expectedExpiredJob(late))
	r.checkJobCounts()
}

func runningLimitAppliesToNewlyDueJobs(r *storeTest) {
	r.setMaxRunningPerUser(1)
	jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1), withDelay(time.Second)),
		newDraft(withUID(1), withDelay(time.Second), withPriority(6)))
	r.claimJobs(9)
	r.advanceAndApplyDueChanges(time.Second)
	checkEqual(r, "claimed when due", r.claimJobs(9), nil)
	checkEqual(r, "nothing else is due", r.applyDueChangesUntilDone(), time.Hour)
	failed := r.settleJob(r.getJob(jobs[0].ID), exitOutcome(1))
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{jobs[2].Seq})
	r.advanceAndApplyDueChanges(time.Duration(failed.DueAt-r.store.Now()) * time.Millisecond)
	checkEqual(r, "claimed when a retry is due", r.claimJobs(9), nil)
	r.settleJob(r.getJob(jobs[2].ID), exitOutcome(0))
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{jobs[0].Seq})
}

func newRankOrderAppliesAtRunningLimit(r *storeTest) {
	r.setMaxRunningPerUser(1)
	jobs := r.enqueueAndGet(newDraft(withUID(1), withPriority(9)))
	r.claimJobs(1)
	for p := range int64(4) {
		jobs = append(jobs, r.enqueueOne(withUID(1), withPriority(p)))
		r.advanceClock(2 * time.Minute)
	}
	checkEqual(r, "claimed without room", r.claimJobs(9), nil)
	next := func(endingJob, nextJob queue.Job) {
		r.Helper()
		r.settleJob(r.getJob(endingJob.ID), exitOutcome(0))
		checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{nextJob.Seq})
	}
	next(jobs[0], jobs[1])
	r.must(r.store.SetRankOrder(r.Context(), priorityRankOrder))
	r.rerankAllJobs()
	next(jobs[1], jobs[4])
	next(jobs[4], jobs[3])
}

// rerankAllJobs computes the ranks of all jobs again, after the scheduling settings have changed.
func (r *storeTest) rerankAllJobs() {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.store.RerankWaitingJobs(r.Context())
		r.must(err)
	}
}

// One claim checks only a limited number of jobs that a limit prevents from starting. AwaitJobs repeats the claim until
// it finds a job that can start.
func manyJobsOfOneUserDelayNoOtherUser(r *storeTest) {
	const jobCount = 3000
	drafts := make([]queue.Job, jobCount)
	for i := range drafts {
		drafts[i] = newDraft(withUID(1), withPriority(6))
	}
	receipt := r.enqueueJobs(1, drafts...)
	other := r.enqueueOne(withUID(2))
	r.setMaxRunningPerUser(2)
	claimed := r.receiveAwaitedJobs("first Await", r.startAwait(r.Context(), 2))
	checkEqual(r, "jobs of the first user", seqsOf(claimed), receipt.Seqs[:2])
	checkEqual(r, "the second user's job", seqsOf(r.receiveAwaitedJobs("second Await", r.startAwait(r.Context(), 2))),
		[]int64{other.Seq})
	result := r.startAwait(r.Context(), 2)
	r.enqueueJobs(1, drafts...)
	again := r.enqueueOne(withUID(2))
	checkEqual(r, "the second user's job after more jobs of the first", seqsOf(r.receiveAwaitedJobs("Await", result)),
		[]int64{again.Seq})
	r.setMaxRunningPerUser(0)
	checkEqual(r, "without the limit", seqsOf(r.receiveAwaitedJobs("without the limit", r.startAwait(r.Context(), 500))),
		receipt.Seqs[2:502])
}

// randomUserWalk performs random operations on the jobs of several users. It checks that each claim returns the
// jobs that a scan of all jobs predicts, and that no user exceeds the limit on running jobs.
func randomUserWalk(r *storeTest, steps int) {
	rng := rand.New(rand.NewPCG(5, 8))
	n, leased := 0, map[int64]queue.Job{}
	turns := servedTurns{lastClaimNumberByUID: map[int]int{}, previousClaimNumberBySeq: map[int64]int{}}
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
			expect := r.expectedClaimSeqs(n, want, leased, turns)
			got := r.claimJobs(want)
			checkEqual(r, "claimed", seqsOf(got), expect)
			for _, j := range got {
				leased[j.Seq] = j
				turns.recordClaimedTurn(&j)
			}
		case 6, 7:
			if j, ok := some(); ok {
				r.settleJob(j, exitOutcome(int64(rng.IntN(2))))
				delete(leased, j.Seq)
			}
		case 8:
			if j, ok := some(); ok {
				r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}})
				delete(leased, j.Seq)
				turns.undoReleasedTurn(&j)
			}
		case 9:
			jobs := r.listAllJobs(store.JobFilter{})
			if len(jobs) == 0 {
				continue
			}
			j := jobs[rng.IntN(len(jobs))]
			verb := []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRelease, queue.VerbRetry, queue.VerbRemove,
				queue.VerbEdit}[rng.IntN(6)]
			p := int64(rng.IntN(9))
			err := r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: verb, UID: testUID,
				EditJob: func(j *queue.Job) error { j.Priority = p; return nil }})
			if err != nil && !errors.Is(err, queue.ErrWrongState) && !errors.Is(err, store.ErrJobLeased) {
				r.must(err)
			}
		case 10:
			n = rng.IntN(4)
			r.setMaxRunningPerUser(n)
		case 11:
			r.rankOrder = []queue.RankPolicy{r.rankOrder, defaultRankOrder, priorityRankOrder,
				enqueueAgingRankOrder}[rng.IntN(4)]
			r.must(r.store.SetRankOrder(r.Context(), r.rankOrder))
			r.rerankAllJobs()
		default:
			r.advanceAndApplyDueChanges(time.Duration(rng.IntN(3000)) * time.Millisecond)
		}
		if r.Failed() {
			r.FailNow()
		}
	}
	r.checkJobCounts()
}

// servedTurns records in what order the claims in one queue have served users, to predict which user is next in turn.
type servedTurns struct {
	claimCount               int           // number of jobs that recordClaimedTurn has recorded
	lastClaimNumberByUID     map[int]int   // by uid, the value of claimCount when a job of the user was last claimed
	previousClaimNumberBySeq map[int64]int // by job, the value in lastClaimNumberByUID before the job was claimed
}
