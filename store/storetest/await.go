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

var awaitPromises = []promise{
	{name: "Await returns ready jobs immediately", check: awaitReturnsReadyJobs},
	{name: "Await returns when a job is enqueued", check: awaitReturnsEnqueuedJob},
	{name: "Await returns when a job is due", check: awaitReturnsDueJob},
	{name: "Await returns whenever a leased job is runnable again", check: awaitReturnsReleasedJob},
	{name: "Await never returns an expired job", check: awaitReturnsNoExpiredJob},
	{name: "Await returns when its context ends", check: awaitEndsWithContext},
	{name: "a cancelled Await loses no job", check: awaitLosesNoJob},
	{name: "Await and Exchange never return the same lease", check: awaitAndExchangeShareNoLease},
	{name: "Await returns when the store is closed", check: awaitEndsOnClose},
}

// awaitResult is the result of a call of Await.
type awaitResult struct {
	jobs []queue.Job
	err  error
}

// await calls Store.Await in a goroutine. Await waits for jobs and claims up to want of them. The returned
// channel receives the result.
func (r *rig) await(ctx context.Context, want int) <-chan awaitResult {
	result := make(chan awaitResult, 1)
	go func() {
		jobs, err := r.s.Await(ctx, want)
		result <- awaitResult{jobs, err}
	}()
	return result
}

// awaitedJobs waits for the result of an Await call, which must succeed, and returns the claimed jobs.
func (r *rig) awaitedJobs(subject string, result <-chan awaitResult) []queue.Job {
	r.Helper()
	got := receive(r, subject, result)
	if got.err != nil {
		r.Fatalf("%s: got error %v, want none", subject, got.err)
	}
	r.checkRanks(got.jobs)
	return got.jobs
}

func awaitReturnsReadyJobs(r *rig) {
	low, high, middle := r.enqueueOne(withPriority(1)), r.enqueueOne(withPriority(9)), r.enqueueOne(withPriority(5))
	r.newEvents()
	first := r.awaitedJobs("first await", r.await(r.Context(), 2))
	checkEqual(r, "first await", first, r.asClaimed(first, high, middle))
	second := r.awaitedJobs("second await", r.await(r.Context(), 2))
	checkEqual(r, "second await", second, r.asClaimed(second, low))
	checkEqual(r, "job as stored", r.getJob(high.ID), first[0])
	checkEqual(r, "events", r.newEvents(), nil)
	r.checkCounts()
}

func awaitReturnsEnqueuedJob(r *rig) {
	for range 20 {
		result := r.await(r.Context(), 2)
		jobs := r.enqueueAndGet(draft(), draft(), draft())
		got := r.awaitedJobs("await", result)
		checkEqual(r, "awaited", seqs(got), seqs(jobs[:2]))
		checkEqual(r, "claimed afterwards", seqs(r.claim(10)), seqs(jobs[2:]))
	}
}

func awaitReturnsDueJob(r *rig) {
	j := r.enqueueOne(withDelay(time.Minute))
	result := r.await(r.Context(), 1)
	r.advanceAndPromote(time.Minute)
	j.ArrivalNumber = 1
	got := r.awaitedJobs("await", result)
	checkEqual(r, "awaited", got, r.asClaimed(got, j))
}

// While Await waits, it returns a job once the job can run again, for whatever reason.
func awaitReturnsReleasedJob(r *rig) {
	release := func(j queue.Job) { r.exchange(store.Report{Releases: []queue.Lease{j.Lease()}}) }
	for _, c := range []struct {
		name         string
		makeRunnable func(claimed queue.Job)
	}{
		{"a release", release},
		{"an end whose retry is due immediately", func(j queue.Job) { r.settle(j, outcomeOfCause(queue.EndRunnerLost)) }},
		{"a refund", func(j queue.Job) { r.settle(j, outcomeOfCause(queue.EndNeverStarted)) }},
		{"a revival", func(j queue.Job) {
			r.settle(j, exitOutcome(0))
			r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID}))
		}},
		{"a retry that is due", func(j queue.Job) {
			r.settle(j, exitOutcome(1))
			r.advanceAndPromote(2 * time.Second)
		}},
	} {
		r.enqueueOne()
		claimed := r.claimOne()
		result := r.await(r.Context(), 1)
		c.makeRunnable(claimed)
		got := r.awaitedJobs(c.name, result)
		want := r.getJob(claimed.ID)
		checkEqual(r, c.name+": awaited", got, []queue.Job{want})
		checkEqual(r, c.name+": has a new fence", want.Fence > claimed.Fence, true)
		r.settle(want, exitOutcome(0))
	}
}

func awaitReturnsNoExpiredJob(r *rig) {
	expiring := r.enqueueOne(withExpiry(r.s.Now() + 1))
	r.advance(time.Millisecond)
	result := r.await(r.Context(), 5)
	fresh := r.enqueueOne()
	checkEqual(r, "awaited", seqs(r.awaitedJobs("await", result)), []int64{fresh.Seq})
	r.promote()
	checkEqual(r, "expired job", r.getJob(expiring.ID), r.expiredJob(expiring))
}

func awaitEndsWithContext(r *rig) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Millisecond)
	defer cancel()
	got := receive(r, "await until a deadline", r.await(ctx, 1))
	if !errors.Is(got.err, context.DeadlineExceeded) || got.jobs != nil {
		r.Errorf("got %d jobs and error %v, want none and %v", len(got.jobs), got.err, context.DeadlineExceeded)
	}
	j := r.enqueueOne()
	got = receive(r, "await after the deadline", r.await(ctx, 1))
	if !errors.Is(got.err, context.DeadlineExceeded) || got.jobs != nil {
		r.Errorf("got %d jobs and error %v, want none and %v", len(got.jobs), got.err, context.DeadlineExceeded)
	}
	checkEqual(r, "claimed later", seqs(r.claim(1)), []int64{j.Seq})
}

// If an Await is cancelled while a job is enqueued, either Await returns the job, or the job is not leased. No
// job is leased without being returned to the caller.
func awaitLosesNoJob(r *rig) {
	for i := range 100 {
		ctx, cancel := context.WithCancel(r.Context())
		result := r.await(ctx, 1)
		for range i % 10 {
			runtime.Gosched() // in some rounds, this lets Await begin to wait before the cancellation
		}
		var goroutines sync.WaitGroup
		goroutines.Go(cancel)
		j := r.enqueueOne()
		goroutines.Wait()
		got := receive(r, "await", result)
		leased, err := r.leasedJobs()
		r.must(err)
		checkEqual(r, "leased jobs, compared with those that Await returned", leases(leased), leases(got.jobs))
		if (got.err == nil) == (len(got.jobs) == 0) || got.err != nil && !errors.Is(got.err, context.Canceled) {
			r.Fatalf("got %d jobs and error %v, want either a job or an error", len(got.jobs), got.err)
		}
		claimed := append(got.jobs, r.claim(1)...)
		checkEqual(r, "the job, awaited or claimed", seqs(claimed), []int64{j.Seq})
		r.settle(claimed[0], exitOutcome(0))
	}
}

func awaitAndExchangeShareNoLease(r *rig) {
	for range 50 {
		result := r.await(r.Context(), 1)
		r.enqueueAndGet(draft(), draft())
		claimed := append(r.claim(1), r.awaitedJobs("await", result)...)
		checkEqual(r, "jobs of both calls", len(claimed), 2)
		if claimed[0].Seq == claimed[1].Seq {
			r.Fatalf("job %d was claimed twice", claimed[0].Seq)
		}
		for _, j := range claimed {
			r.settle(j, exitOutcome(0))
		}
	}
}

func awaitEndsOnClose(r *rig) {
	result := r.await(r.Context(), 1)
	for range 1000 {
		runtime.Gosched() // in most cases, this gives Await enough time to begin waiting
	}
	r.must(r.s.Close())
	got := receive(r, "await", result)
	if !errors.Is(got.err, queue.ErrUnavailable) || got.jobs != nil {
		r.Errorf("got %d jobs and error %v, want none and ErrUnavailable", len(got.jobs), got.err)
	}
}
