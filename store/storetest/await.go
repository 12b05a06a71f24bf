package storetest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var awaitTests = []contractTest{
	{name: "Await returns ready jobs immediately", run: awaitReturnsReadyJobs},
	{name: "Await returns when a job is enqueued", run: awaitReturnsEnqueuedJob},
	{name: "Await returns when a job is due", run: awaitReturnsDueJob},
	{name: "Await returns whenever a leased job is runnable again", run: awaitReturnsReleasedJob},
	{name: "Await never returns an expired job", run: awaitReturnsNoExpiredJob},
	{name: "Await returns when its context ends", run: awaitEndsWithContext},
	{name: "a cancelled Await loses no job", run: cancelledAwaitLosesNoJob},
	{name: "Await and Exchange never return the same lease", run: awaitAndClaimShareNoLease},
	{name: "Await returns when the store is closed", run: awaitEndsOnClose},
}

// awaitResult is the result of a call of AwaitJobs.
type awaitResult struct {
	claimedJobs []queue.Job
	err         error
}

// startAwait calls AwaitJobs in a goroutine. AwaitJobs waits for jobs and claims up to maxJobs of them. The returned
// channel receives the result.
func (r *storeTest) startAwait(ctx context.Context, maxJobs int) <-chan awaitResult {
	result := make(chan awaitResult, 1)
	go func() {
		jobs, err := r.store.AwaitJobs(ctx, maxJobs)
		result <- awaitResult{jobs, err}
	}()
	return result
}

// receiveAwaitedJobs waits for the result of a call of AwaitJobs, checks that the call succeeded, and returns the
// claimed jobs.
func (r *storeTest) receiveAwaitedJobs(description string, result <-chan awaitResult) []queue.Job {
	r.Helper()
	got := receive(r, description, result)
	if got.err != nil {
		r.Fatalf("%s: got error %v, want none", description, got.err)
	}
	r.checkAndClearRanks(got.claimedJobs)
	return got.claimedJobs
}

func awaitReturnsReadyJobs(r *storeTest) {
	low, high, middle := r.enqueueOne(withPriority(1)), r.enqueueOne(withPriority(9)), r.enqueueOne(withPriority(5))
	r.readNewEvents()
	first := r.receiveAwaitedJobs("first await", r.startAwait(r.Context(), 2))
	checkEqual(r, "first await", first, r.expectedClaimedJobs(first, high, middle))
	second := r.receiveAwaitedJobs("second await", r.startAwait(r.Context(), 2))
	checkEqual(r, "second await", second, r.expectedClaimedJobs(second, low))
	checkEqual(r, "job as stored", r.getJob(high.ID), first[0])
	checkEqual(r, "events", r.readNewEvents(), nil)
	r.checkJobCounts()
}

func awaitReturnsEnqueuedJob(r *storeTest) {
	for range 20 {
		result := r.startAwait(r.Context(), 2)
		jobs := r.enqueueAndGet(newDraft(), newDraft(), newDraft())
		got := r.receiveAwaitedJobs("await", result)
		checkEqual(r, "awaited", seqsOf(got), seqsOf(jobs[:2]))
		checkEqual(r, "claimed afterwards", seqsOf(r.claimJobs(10)), seqsOf(jobs[2:]))
	}
}

func awaitReturnsDueJob(r *storeTest) {
	j := r.enqueueOne(withDelay(time.Minute))
	result := r.startAwait(r.Context(), 1)
	r.advanceAndApplyDueChanges(time.Minute)
	j.ArrivalNumber = 1
	got := r.receiveAwaitedJobs("await", result)
	checkEqual(r, "awaited", got, r.expectedClaimedJobs(got, j))
}

// AwaitJobs also waits for a leased job to be available again. It returns the job for each of the possible reasons,
// such as a release or a retry.
func awaitReturnsReleasedJob(r *storeTest) {
	release := func(j queue.Job) { r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}}) }
	for _, c := range []struct {
		name         string
		makeRunnable func(claimed queue.Job)
	}{
		{"a release", release},
		{"an end whose retry is due immediately", func(j queue.Job) { r.settleJob(j, outcomeOfCause(queue.EndRunnerLost)) }},
		{"a refund", func(j queue.Job) { r.settleJob(j, outcomeOfCause(queue.EndNeverStarted)) }},
		{"a revival", func(j queue.Job) {
			r.settleJob(j, exitOutcome(0))
			r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
		}},
		{"a retry that is due", func(j queue.Job) {
			r.settleJob(j, exitOutcome(1))
			r.advanceAndApplyDueChanges(2 * time.Second)
		}},
	} {
		r.enqueueOne()
		claimed := r.claimOne()
		result := r.startAwait(r.Context(), 1)
		c.makeRunnable(claimed)
		got := r.receiveAwaitedJobs(c.name, result)
		want := r.getJob(claimed.ID)
		checkEqual(r, c.name+": awaited", got, []queue.Job{want})
		checkEqual(r, c.name+": has a new fence", want.Fence > claimed.Fence, true)
		r.settleJob(want, exitOutcome(0))
	}
}

func awaitReturnsNoExpiredJob(r *storeTest) {
	expiring := r.enqueueOne(withExpiry(r.store.Now() + 1))
	r.advanceClock(time.Millisecond)
	result := r.startAwait(r.Context(), 5)
	fresh := r.enqueueOne()
	checkEqual(r, "awaited", seqsOf(r.receiveAwaitedJobs("await", result)), []int64{fresh.Seq})
	r.applyDueChangesUntilDone()
	checkEqual(r, "expired job", r.getJob(expiring.ID), r.expectedExpiredJob(expiring))
}

func awaitEndsWithContext(r *storeTest) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Millisecond)
	defer cancel()
	got := receive(r, "await until a deadline", r.startAwait(ctx, 1))
	if !errors.Is(got.err, context.DeadlineExceeded) || got.claimedJobs != nil {
		r.Errorf("got %d jobs and error %v, want none and %v", len(got.claimedJobs), got.err, context.DeadlineExceeded)
	}
	j := r.enqueueOne()
	got = receive(r, "await after the deadline", r.startAwait(ctx, 1))
	if !errors.Is(got.err, context.DeadlineExceeded) || got.claimedJobs != nil {
		r.Errorf("got %d jobs and error %v, want none and %v", len(got.claimedJobs), got.err, context.DeadlineExceeded)
	}
	checkEqual(r, "claimed later", seqsOf(r.claimJobs(1)), []int64{j.Seq})
}

// If a call of AwaitJobs is cancelled while a job is enqueued, either the call returns the job, or the job is not
// leased. No job is leased without being returned to a caller.
func cancelledAwaitLosesNoJob(r *storeTest) {
	for i := range 100 {
		ctx, cancel := context.WithCancel(r.Context())
		result := r.startAwait(ctx, 1)
		for range i % 10 {
			runtime.Gosched() // in some iterations, this lets AwaitJobs begin to wait before the cancellation
		}
		var goroutines sync.WaitGroup
		goroutines.Go(cancel)
		j := r.enqueueOne()
		goroutines.Wait()
		got := receive(r, "await", result)
		leased, err := r.leasedJobs()
		r.must(err)
		checkEqual(r, "leased jobs, compared with those that Await returned", leasesOf(leased), leasesOf(got.claimedJobs))
		if (got.err == nil) == (len(got.claimedJobs) == 0) || got.err != nil && !errors.Is(got.err, context.Canceled) {
			r.Fatalf("got %d jobs and error %v, want either a job or an error", len(got.claimedJobs), got.err)
		}
		claimed := append(got.claimedJobs, r.claimJobs(1)...)
		checkEqual(r, "the job, awaited or claimed", seqsOf(claimed), []int64{j.Seq})
		r.settleJob(claimed[0], exitOutcome(0))
	}
}

func awaitAndClaimShareNoLease(r *storeTest) {
	for range 50 {
		result := r.startAwait(r.Context(), 1)
		r.enqueueAndGet(newDraft(), newDraft())
		claimed := append(r.claimJobs(1), r.receiveAwaitedJobs("await", result)...)
		checkEqual(r, "jobs of both calls", len(claimed), 2)
		if claimed[0].Seq == claimed[1].Seq {
			r.Fatalf("job %d was claimed twice", claimed[0].Seq)
		}
		for _, j := range claimed {
			r.settleJob(j, exitOutcome(0))
		}
	}
}

func awaitEndsOnClose(r *storeTest) {
	result := r.startAwait(r.Context(), 1)
	for range 1000 {
		runtime.Gosched() // in most cases, this gives AwaitJobs enough time to begin waiting
	}
	r.must(r.store.Close())
	got := receive(r, "await", result)
	if !errors.Is(got.err, queue.ErrUnavailable) || got.claimedJobs != nil {
		r.Errorf("got %d jobs and error %v, want none and ErrUnavailable", len(got.claimedJobs), got.err)
	}
}

func awaitReturnsJobBelowUserLimit(r *storeTest) {
	for _, c := range []struct {
		name     string
		makeRoom func(claimed queue.Job)
		want     int // number of the two jobs that the waiting call must claim after makeRoom
	}{
		{"an end", func(j queue.Job) { r.settleJob(j, exitOutcome(0)) }, 1},
		{"a failure", func(j queue.Job) { r.settleJob(j, exitOutcome(1)) }, 1},
		{"a release", func(j queue.Job) { r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}}) },
			0},
		{"a hold", func(j queue.Job) {
			r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: j.Lease(),
				JobChange: store.JobChange{Verb: queue.VerbHold, UID: testUID}}}})
		}, 1},
	} {
		r.setMaxRunningPerUser(1)
		jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1)))
		claimed := r.claimOne()
		result := r.startAwait(r.Context(), 2)
		checkEqual(r, "claimed while the other job is leased", r.claimJobs(1), nil)
		c.makeRoom(claimed)
		got := r.receiveAwaitedJobs(c.name, result)
		checkEqual(r, c.name+": awaited", seqsOf(got), []int64{jobs[c.want].Seq})
		r.setMaxRunningPerUser(0)
		r.settleJob(got[0], exitOutcome(0))
		for _, j := range jobs {
			r.must(r.applyVerb(j, queue.VerbRemove))
		}
	}
}

func awaitReturnsWhenUserLimitIsRaised(r *storeTest) {
	for _, n := range []int{2, 0} {
		r.setMaxRunningPerUser(1)
		jobs := r.enqueueAndGet(newDraft(withUID(1)), newDraft(withUID(1)))
		r.claimJobs(1)
		result := r.startAwait(r.Context(), 2)
		r.setMaxRunningPerUser(1)
		checkEqual(r, "claimed at the same limit", r.claimJobs(1), nil)
		r.setMaxRunningPerUser(n)
		checkEqual(r, "awaited", seqsOf(r.receiveAwaitedJobs("another limit", result)), seqsOf(jobs[1:]))
		r.setMaxRunningPerUser(0)
		for _, j := range jobs {
			r.settleJob(r.getJob(j.ID), exitOutcome(0))
		}
	}
}

func reportAndClaimReturnsReleasedJobs(r *storeTest) {
	r.enqueueOne()
	j := r.claimOne()
	done := r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}, MaxJobsToClaim: 1})
	checkEqual(r, "released and claimed in one call", done,
		store.ReportAndClaimResult{ClaimedJobs: r.expectedClaimedJobs(done.ClaimedJobs, j)})
	j = done.ClaimedJobs[0]
	e := r.newSettlement(j, outcomeOfCause(queue.EndRunnerLost)) // after a lost attempt, the retry is due immediately
	want := r.expectedJobAfterSettle(j, e)
	done = r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}, MaxJobsToClaim: 1})
	checkEqual(r, "failed and claimed in one call", done,
		store.ReportAndClaimResult{ClaimedJobs: r.expectedClaimedJobs(done.ClaimedJobs, want)})
	checkEqual(r, "job", r.getJob(j.ID), done.ClaimedJobs[0])
	r.checkJobCounts()
}
