package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var concurrencyTests = []contractTest{
	{name: "calls with a cancelled context change nothing", run: callsWithCancelledContextDoNothing},
	{name: "a closed store returns ErrUnavailable", run: closedStoreIsUnavailable},
	{name: "concurrent enqueues get distinct, rising seqs", run: concurrentEnqueuesGetDistinctSeqs},
	{name: "one of several concurrent enqueues of an id succeeds", run: concurrentSameIDStoresOneJob},
	{name: "concurrent enqueues with the same key store one job", run: concurrentIdempotencyKeyStoresOneJob},
	{name: "concurrent claims never return the same lease", run: concurrentClaimsShareNoLease},
	{name: "one of several concurrent settlements of a lease succeeds", run: onlyOneConcurrentSettlementSucceeds},
	{name: "concurrent use loses no job", run: concurrentStoreUseLosesNoJob},
}

// callAllStoreMethods calls every method of the store that takes a context, with ctx. It returns the errors by method
// name.
func (r *storeTest) callAllStoreMethods(ctx context.Context, seq int64, l queue.Lease) map[string]error {
	failed := map[string]error{}
	try := func(name string, f func() error) { failed[name] = f() }
	try("Enqueue", func() error {
		_, err := r.store.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID})
		return err
	})
	try("Cancel", func() error {
		return r.store.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID})
	})
	try("Retry", func() error { return r.store.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}) })
	try("Remove", func() error {
		return r.store.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID})
	})
	try("Pause", func() error {
		return r.store.RecordJobPause(ctx, store.JobPauseRequest{Lease: l, Paused: true, RequesterUID: testUID})
	})
	try("Exchange", func() error {
		_, err := r.store.ReportAndClaim(ctx, store.LeaseReport{ReleasedLeases: []queue.Lease{l}, MaxJobsToClaim: 1})
		return err
	})
	try("Await", func() error { _, err := r.store.AwaitJobs(ctx, 1); return err })
	try("PreviousSession", func() error { _, err := r.store.PreviousSession(ctx); return err })
	try("NextEpoch", func() error { _, err := r.store.AdvanceEpoch(ctx); return err })
	try("Get", func() error { _, err := r.store.GetJob(ctx, "x"); return err })
	try("GetFull", func() error { _, err := r.store.GetWithEnvAndStdin(ctx, "x"); return err })
	try("ListRefs", func() error { _, err := r.store.ListJobRefs(ctx, store.JobFilter{Limit: 1}); return err })
	try("History", func() error { _, err := r.store.AttemptHistory(ctx, seq, 0, 1); return err })
	try("Attempt", func() error { _, err := r.store.Attempt(ctx, seq, 0); return err })
	try("List", func() error { _, err := r.store.ListJobs(ctx, store.JobFilter{Limit: 1}); return err })
	try("OldestReadySince", func() error { _, err := r.store.OldestReadySince(ctx); return err })
	try("Screen", func() error { _, err := r.store.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: 1}); return err })
	try("Events", func() error { _, err := r.store.Events(ctx, 0, 1); return err })
	try("Settings", func() error { _, err := r.store.Settings(ctx); return err })
	try("SetSetting", func() error { return r.store.SetSetting(ctx, store.Setting{Key: "k", Value: "v"}) })
	try("SetMaxRunningPerUser", func() error { return r.store.SetMaxRunningPerUser(ctx, 3) })
	try("Promote", func() error { _, err := r.store.ApplyDueChanges(ctx); return err })
	try("Owners", func() error { _, _, err := r.store.Owners(ctx); return err })
	try("Disown", func() error { _, err := r.store.DisownJobs(ctx, testUID, "unknown"); return err })
	try("MarkUnownedOutputs", func() error { _, err := r.store.MarkUnownedOutputs(ctx, []string{"9-9"}); return err })
	try("DeletableOutputs", func() error { _, err := r.store.DeletableOutputs(ctx, 1); return err })
	try("ForgetDeletedOutputs", func() error { return r.store.ForgetDeletedOutputs(ctx, []string{"x"}) })
	try("RemovableBytes", func() error { _, err := r.store.RemovableUserBytes(ctx, testUID, 1); return err })
	try("TrimUserData", func() error { _, err := r.store.TrimUserData(ctx, testUID, 0); return err })
	return failed
}

func callsWithCancelledContextDoNothing(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft())
	j := r.claimOne()
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	r.checkStoreUnchanged(func() {
		for name, err := range r.callAllStoreMethods(ctx, j.Seq+1, j.Lease()) {
			if !errors.Is(err, context.Canceled) {
				r.Errorf("%s: got error %v, want %v", name, err, context.Canceled)
			}
		}
	})
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", leased, []queue.Job{j})
}

func closedStoreIsUnavailable(r *storeTest) {
	j := r.enqueueOne()
	r.must(r.store.Close())
	for name, err := range r.callAllStoreMethods(r.Context(), j.Seq, j.Lease()) {
		if !errors.Is(err, queue.ErrUnavailable) {
			r.Errorf("%s: got error %v, want ErrUnavailable", name, err)
		}
	}
}

// runConcurrently runs f(0) to f(n-1) at the same time and waits until all calls have returned.
func runConcurrently(callCount int, f func(i int)) {
	var goroutines sync.WaitGroup
	begin := make(chan struct{})
	for i := range callCount {
		goroutines.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	goroutines.Wait()
}

func concurrentEnqueuesGetDistinctSeqs(r *storeTest) {
	const enqueuers, requests = 16, 10
	var receipts [enqueuers][]store.Receipt
	runConcurrently(enqueuers, func(i int) {
		for n := range requests {
			own := withID(fmt.Sprintf("e%d.%d", i, n))
			receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(), newDraft(own),
				newDraft()}, UID: i})
			if err != nil {
				r.Errorf("enqueue %d of %d: got error %v, want none", n, i, err)
				return
			}
			receipts[i] = append(receipts[i], receipt)
		}
	})
	ids := map[int64]string{}
	for i := range receipts {
		last := int64(0)
		for _, receipt := range receipts[i] {
			for k, seq := range receipt.Seqs {
				if ids[seq] != "" || seq <= last {
					r.Fatalf("got seq %d after %d, want a higher seq that no other job has", seq, last)
				}
				ids[seq], last = receipt.IDs[k], seq
			}
		}
	}
	jobs := r.listAllJobs(store.JobFilter{})
	checkEqual(r, "jobs stored", len(jobs), enqueuers*requests*3)
	slices.Reverse(jobs)
	for i, j := range jobs {
		checkEqual(r, "id of the receipt", ids[j.Seq], j.ID)
		checkEqual(r, "arrival, in order of seq", j.ArrivalNumber, int64(i)+1)
	}
	checkEqual(r, "events", len(r.readNewEvents()), len(jobs))
	r.checkJobCounts()
}

// If several concurrent requests enqueue a job with the same id, exactly one succeeds.
func concurrentSameIDStoresOneJob(r *storeTest) {
	var successes, rejections atomic.Int32
	runConcurrently(16, func(int) {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(), newDraft(withID("one"))},
			UID: testUID})
		switch {
		case err == nil:
			successes.Add(1)
		case errors.Is(err, queue.ErrExists):
			rejections.Add(1)
		default:
			r.Errorf("got error %v, want none or ErrExists", err)
		}
	})
	checkEqual(r, "won and lost", []int32{successes.Load(), rejections.Load()}, []int32{1, 15})
	checkEqual(r, "jobs stored", len(r.listAllJobs(store.JobFilter{})), 2)
	r.checkJobCounts()
}

// Concurrent enqueues with the same idempotency key store one job.
func concurrentIdempotencyKeyStoresOneJob(r *storeTest) {
	var receipts [16]store.Receipt
	runConcurrently(len(receipts), func(i int) {
		var err error
		receipts[i], err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID,
			IdempotencyKey: "k"})
		if err != nil {
			r.Errorf("got error %v, want none", err)
		}
	})
	first := 0
	for i := range receipts {
		checkEqual(r, "ids", receipts[i].IDs, receipts[0].IDs)
		if !receipts[i].Duplicate {
			first++
		}
	}
	checkEqual(r, "receipts not marked as duplicates", first, 1)
	checkEqual(r, "jobs stored", len(r.listAllJobs(store.JobFilter{})), 1)
}

func concurrentClaimsShareNoLease(r *storeTest) {
	const claimers, jobs = 8, 200
	drafts := make([]queue.Job, jobs)
	for i := range drafts {
		drafts[i] = newDraft(withPriority(int64(i % 10)))
	}
	stored := r.enqueueAndGet(drafts...)
	var claimed [claimers][]queue.Job
	runConcurrently(claimers, func(i int) {
		for {
			done, err := r.store.ReportAndClaim(r.Context(), store.LeaseReport{MaxJobsToClaim: 3})
			if err != nil {
				r.Errorf("claimer %d: got error %v, want none", i, err)
			}
			if len(done.ClaimedJobs) == 0 {
				return
			}
			claimed[i] = append(claimed[i], done.ClaimedJobs...)
		}
	})
	all := slices.Concat(claimed[:]...)
	got := seqsOf(all)
	slices.Sort(got)
	checkEqual(r, "jobs claimed, each once", got, seqsOf(stored))
	for i := range claimed {
		for n := 1; n < len(claimed[i]); n++ {
			if claimed[i][n].Priority > claimed[i][n-1].Priority {
				r.Errorf("claimer %d got priority %d after %d, want the head of the queue", i, claimed[i][n].Priority,
					claimed[i][n-1].Priority)
			}
		}
	}
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leases", sortedLeases(leasesOf(leased)), sortedLeases(leasesOf(all)))
}

// If several concurrent calls settle the same lease, exactly one succeeds.
func onlyOneConcurrentSettlementSucceeds(r *storeTest) {
	r.enqueueOne()
	j := r.claimOne()
	e := r.newSettlement(j, exitOutcome(0))
	var staleCount atomic.Int32
	runConcurrently(8, func(int) {
		done, err := r.store.ReportAndClaim(r.Context(), store.LeaseReport{Settlements: []store.Settlement{e}})
		if err != nil {
			r.Errorf("got error %v, want none", err)
		}
		staleCount.Add(int32(len(done.StaleLeases)))
	})
	checkEqual(r, "stale settlements of 8", staleCount.Load(), 7)
	checkEqual(r, "job", r.getJob(j.ID), r.expectedJobAfterSettle(j, e))
}

// Several goroutines enqueue, run, await and cancel jobs at the same time. Each job ends exactly once.
func concurrentStoreUseLosesNoJob(r *storeTest) {
	const enqueuers, workers, jobs = 4, 4, 200
	var finished, cancelled atomic.Int64
	ctx, cancel := context.WithTimeout(r.Context(), maxReceiveWait)
	defer cancel()
	settle := func(claimed []queue.Job, want int) []queue.Job {
		var report store.LeaseReport
		report.MaxJobsToClaim = want
		for _, j := range claimed {
			report.Settlements = append(report.Settlements, r.newSettlement(j, exitOutcome(0)))
		}
		done, err := r.store.ReportAndClaim(context.WithoutCancel(ctx), report)
		if err != nil || len(done.StaleLeases) > 0 {
			r.Errorf("got error %v and %d stale leases, want neither", err, len(done.StaleLeases))
		}
		finished.Add(int64(len(claimed)))
		return done.ClaimedJobs
	}
	awaits, stop := context.WithCancel(ctx)
	var awaiter sync.WaitGroup
	awaiter.Go(func() {
		for awaits.Err() == nil {
			claimed, err := r.store.AwaitJobs(awaits, 2)
			if err != nil && !errors.Is(err, awaits.Err()) {
				r.Errorf("await: got error %v, want none", err)
				return
			}
			settle(claimed, 0)
		}
	})
	runConcurrently(enqueuers+workers+1, func(i int) {
		switch {
		case i < enqueuers:
			for range jobs / enqueuers {
				if _, err := r.store.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID}); err != nil {
					r.Errorf("enqueue: got error %v, want none", err)
				}
			}
		case i < enqueuers+workers:
			var claimed []queue.Job
			for finished.Load()+cancelled.Load() < jobs && ctx.Err() == nil {
				claimed = settle(claimed, 2)
			}
		default:
			for seq := int64(1); seq <= jobs && ctx.Err() == nil; seq += 7 {
				if r.store.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}) == nil {
					cancelled.Add(1)
				}
			}
		}
	})
	stop()
	awaiter.Wait()
	r.must(ctx.Err())
	checkEqual(r, "jobs completed and cancelled by the test", finished.Load()+cancelled.Load(), int64(jobs))
	counts := r.store.Counts()
	checkEqual(r, "jobs completed and cancelled by the counts",
		[]int64{counts.JobsByState[queue.Completed], counts.JobsByState[queue.Cancelled]},
		[]int64{finished.Load(), cancelled.Load()})
	ends := map[int64]int{}
	for _, e := range r.readNewEvents() {
		if e.Kind == queue.EventEnded || e.Kind == queue.EventCancelled {
			ends[e.JobSeq]++
		}
	}
	for _, j := range r.listAllJobs(store.JobFilter{}) {
		checkEqual(r, "ends of job "+j.ID, ends[j.Seq], 1)
	}
	r.checkJobCounts()
	r.advanceAndApplyDueChanges(time.Hour)
	checkEqual(r, "claimed afterwards", r.claimJobs(1), nil)
}
