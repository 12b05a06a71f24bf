package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// endJobWithOutput ends an attempt of a leased job with an output of outputBytes bytes, and returns the stored job.
// byteQuota is the byte quota of the job's user; 0 means unlimited.
func (r *storeTest) endJobWithOutput(j queue.Job, o queue.AttemptOutcome, outputBytes int, byteQuota int64) queue.Job {
	r.Helper()
	e := r.newSettlement(j, o)
	e.Attempt.Output = make([]byte, outputBytes)
	checkEqual(r, "stale leases", r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e},
		MaxBytesPerUser: byteQuota}).StaleLeases, nil)
	r.advanceClock(time.Second)
	return r.getJob(j.ID)
}

// failJobWithOutput ends an attempt of a leased job with a failure and an output of outputBytes bytes. It checks that
// the job will be retried. byteQuota is the byte quota of the job's user.
func (r *storeTest) failJobWithOutput(j queue.Job, outputBytes int, byteQuota int64) queue.Job {
	r.Helper()
	got := r.endJobWithOutput(j, exitOutcome(1), outputBytes, byteQuota)
	r.checkJobState("a job that will be retried", got, queue.Failed, "")
	return got
}

// claimRetry advances the clock by an hour, so that the failed job is due again, and claims the job.
func (r *storeTest) claimRetry() queue.Job {
	r.Helper()
	r.advanceClock(time.Hour)
	r.applyDueChangesUntilDone()
	return r.claimOne()
}

// outputSizes returns the sizes of the outputs of a job's first attemptCount attempts.
func (r *storeTest) outputSizes(j queue.Job, attemptCount int) (sizes []int64) {
	r.Helper()
	for n := range attemptCount {
		sizes = append(sizes, r.outputSize(j, n+1))
	}
	return sizes
}

// outputSize returns the size of the stored output of one attempt of a job; attempt numbers start with 1.
func (r *storeTest) outputSize(j queue.Job, attemptNumber int) int64 {
	r.Helper()
	a, err := r.store.Attempt(r.Context(), j.Seq, attemptNumber)
	r.must(err)
	return a.OutputBytes
}

// TrimUserData removes the outputs of earlier attempts of a job even if the job has not ended.
func trimUserDataRemovesOlderAttemptOutputs(r *storeTest) {
	old := r.endJobWithOutput(r.enqueueAndClaim(1, withMaxAttempts(9)), exitOutcome(0), 500, 0)
	j := r.enqueueAndClaim(1, withMaxAttempts(9))
	for range 3 {
		r.failJobWithOutput(j, 1000, 0)
		j = r.claimRetry()
	}
	before := r.countedUserBytes(1)
	checkEqual(r, "removable bytes", r.removableBytes(1), int64(3500))
	r.trimUserData(1, before-1500)
	checkEqual(r, "bytes after trimming", r.countedUserBytes(1), before-2000)
	checkEqual(r, "outputs of the running job", r.outputSizes(j, 3),
		[]int64{queue.OutputRemovedByQuota, queue.OutputRemovedByQuota, 1000})
	checkEqual(r, "output of the ended job", r.outputSizes(old, 1), []int64{500})
	j = r.endJobWithOutput(j, exitOutcome(0), 10, 0)
	checkEqual(r, "bytes of outputs after the last attempt", j.OutputBytes, int64(1010))
	r.trimUserData(1, 0)
	checkEqual(r, "removable bytes at the end", r.removableBytes(1), int64(0))
	checkEqual(r, "bytes of outputs at the end", r.getJob(j.ID).OutputBytes, int64(0))
}

// checkDueChangesRequested calls action, which must make output files deletable. It checks that the store then sends a
// value on DueChangeHints, so that upkeep deletes the files soon.
func (r *storeTest) checkDueChangesRequested(description string, action func()) {
	r.Helper()
	r.applyDueChangesUntilDone()
	hinted := func() bool {
		select {
		case <-r.store.DueChangeHints():
			return true
		default:
			return false
		}
	}
	for hinted() {
	}
	action()
	if !hinted() {
		r.Errorf("%s: got no hint to delete output files", description)
	}
}

// enqueueAndClaim enqueues a job of a user and claims it.
func (r *storeTest) enqueueAndClaim(uid int, options ...func(*queue.Job)) queue.Job {
	r.Helper()
	r.must(r.enqueueWithByteQuota(uid, 0, newDraft(append(options, withUID(uid))...)))
	return r.claimOne()
}

func trimOutputsStartsWithLargestUsers(r *storeTest) {
	run := func(uid, n int) queue.Job { return r.endJobWithOutput(r.enqueueAndClaim(uid), exitOutcome(0), n, 0) }
	first := run(1, 100)
	var largestJobs []queue.Job
	for range 120 { // more outputs than the store removes in two transactions
		largestJobs = append(largestJobs, run(2, 100))
	}
	second := run(3, 3000)
	outputsOf := func(keep int64) (n [3]int64) {
		r.Helper()
		for more := true; more; {
			var err error
			more, err = r.store.TrimOutputs(r.Context(), keep)
			r.must(err)
		}
		for _, j := range largestJobs {
			n[1] += r.getJob(j.ID).OutputBytes
		}
		n[0], n[2] = r.getJob(first.ID).OutputBytes, r.getJob(second.ID).OutputBytes
		return n
	}
	checkEqual(r, "all outputs fit", outputsOf(15_100), [3]int64{100, 12_000, 3000})
	checkEqual(r, "the user with the largest outputs loses some", outputsOf(10_050), [3]int64{100, 6900, 3000})
	checkEqual(r, "the oldest output was removed", r.outputSizes(largestJobs[50], 1),
		[]int64{queue.OutputRemovedByRetention})
	checkEqual(r, "that user has as much as the next one", outputsOf(6000), [3]int64{100, 2900, 3000})
	checkEqual(r, "the next user loses outputs too", outputsOf(5999), [3]int64{100, 2900, 0})
	checkEqual(r, "users with the smallest outputs lose them last", outputsOf(200), [3]int64{100, 100, 0})
}

func attemptOutputsStayWithinQuota(r *storeTest) {
	other := r.endJobWithOutput(r.enqueueAndClaim(2), exitOutcome(0), 9000, 0)
	old := r.endJobWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 2000, 0)
	j := r.enqueueAndClaim(1, withMaxAttempts(9))
	// the quota has space for one output and for the records of all attempts
	limit := r.countedUserBytes(1) + 1500 + 6*(store.QuotaBytesPerAttempt+16)
	for n := range 6 {
		j = r.failJobWithOutput(j, 1000, limit)
		if used := r.countedUserBytes(1); used > limit {
			r.Fatalf("after attempt %d, the user holds %d bytes, and %d are allowed", n+1, used, limit)
		}
		checkEqual(r, "output of the last attempt", r.outputSizes(j, n+1)[n], int64(1000))
		j = r.claimRetry()
	}
	checkEqual(r, "outputs of the attempts", r.outputSizes(j, 3),
		[]int64{queue.OutputRemovedByQuota, queue.OutputRemovedByQuota, queue.OutputRemovedByQuota})
	checkEqual(r, "output of the job that had ended before", r.outputSizes(old, 1), []int64{2000})
	checkEqual(r, "output of another user", r.outputSizes(other, 1), []int64{9000})
	r.checkDueChangesRequested("outputs that are removed", func() {
		j = r.endJobWithOutput(j, exitOutcome(0), 3400, limit)
	})
	checkEqual(r, "a job whose output replaces all others", []any{j.State, j.OutputBytes, r.getJob(old.ID).OutputBytes},
		[]any{queue.Completed, int64(3400), int64(0)})
}

// Dependencies count toward the byte quota of the job's user, also in a batch and after an edit.
func quotaCountsDependencyBytes(r *storeTest) {
	var dependencies []queue.Dependency
	for range 5 {
		dependencies = append(dependencies, queue.Dependency{ParentSeq: r.enqueueAndClaim(2).Seq,
			Condition: queue.ParentCompleted})
	}
	bytesWith := func(n int) int64 {
		r.Helper()
		before := r.countedUserBytes(1)
		r.must(r.enqueueWithByteQuota(1, 0, newDraft(withUID(1), func(j *queue.Job) { j.DependsOn = dependencies[:n] })))
		return r.countedUserBytes(1) - before
	}
	alone, child := bytesWith(0), bytesWith(5)
	checkEqual(r, "bytes of five dependencies", child-alone, int64(5*store.QuotaBytesPerDependency))
	limit := r.countedUserBytes(1) + alone + 4*store.QuotaBytesPerDependency
	waits := newDraft(withUID(1), func(j *queue.Job) { j.DependsOn = dependencies })
	r.checkErrorCode("a job with five dependencies and room for four", r.enqueueWithByteQuota(1, limit, waits),
		queue.CodeQueueFull)
	last := r.listAllJobs(store.JobFilter{UID: new(1)})[0]
	edit := func(n int, limit int64) error {
		return r.store.ChangeJob(r.Context(), last.Seq, store.JobChange{Verb: queue.VerbEdit, UID: 1, MaxBytesPerUser: limit,
			EditJob: func(j *queue.Job) error {
				j.DependsOn = dependencies[:n]
				return nil
			}})
	}
	before := r.countedUserBytes(1)
	r.must(edit(2, 0))
	checkEqual(r, "bytes after an edit to two dependencies", r.countedUserBytes(1), before-3*store.QuotaBytesPerDependency)
	r.checkErrorCode("an edit to five dependencies with room for four", edit(5, before-store.QuotaBytesPerDependency),
		queue.CodeQueueFull)
	before = r.countedUserBytes(1)
	stage := store.EnqueueRequest{Drafts: []queue.Job{waits}, UID: 1, BatchName: "b"}
	_, err := r.store.StageBatch(r.Context(), stage)
	r.must(err)
	checkEqual(r, "bytes in a batch", r.countedUserBytes(1)-before, child)
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: 1, BatchName: "b"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.store.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
	}
	checkEqual(r, "bytes after the commit", r.countedUserBytes(1)-before, child)
	for _, j := range r.listAllJobs(store.JobFilter{UID: new(1)}) {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 1}))
	}
	checkEqual(r, "bytes after all jobs were removed", r.countedUserBytes(1), int64(0))
}

// Attempt records count toward the byte quota of the job's user.
func byteQuotaCountsAttemptRecords(r *storeTest) {
	j := r.enqueueAndClaim(1, withMaxAttempts(4))
	before := r.countedUserBytes(1)
	want := before
	for n := range 3 {
		e := r.newSettlement(j, exitOutcome(1))
		e.Decision.Error = strings.Repeat("e", 100)
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		if want += 100; n > 0 {
			want += store.QuotaBytesPerAttempt
		}
		checkEqual(r, "bytes after an attempt", r.countedUserBytes(1), want)
		j = r.claimRetry()
	}
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{j.Lease()}})
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbEdit, UID: 1,
		EditJob: func(j *queue.Job) error {
			j.Stdin = strings.Repeat("x", 5000)
			return nil
		}}))
	if got := r.countedUserBytes(1); got < want+5000 || got > want+5100 {
		r.Errorf("after an edit that adds 5000 bytes, the user holds %d bytes; before, %d", got, want)
	}
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 1}))
	checkEqual(r, "bytes after the job was removed", r.countedUserBytes(1), int64(0))
}

func newAttemptRecordReplacesOldestAtQuota(r *storeTest) {
	j := r.enqueueAndClaim(1, withMaxAttempts(20))
	attempt := func(limit int64, output string) {
		r.Helper()
		e := r.newSettlement(j, exitOutcome(1))
		e.Attempt.Output = []byte(output)
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}, MaxBytesPerUser: limit})
		j = r.claimRetry()
	}
	first := r.countedUserBytes(1)
	for range store.MinKeptAttemptRecords {
		attempt(first, "") // the records of a job's first attempts are kept even above the quota
	}
	limit := r.countedUserBytes(1)
	for n, output := range []string{"printed", "", ""} {
		attempt(limit, output)
		if used := r.countedUserBytes(1); used > limit {
			r.Errorf("after attempt %d, the user holds %d bytes, and %d are allowed", store.MinKeptAttemptRecords+n+1, used,
				limit)
		}
	}
	list, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, 20)
	r.must(err)
	var kept []int
	for i := range list {
		kept = append(kept, list[i].Number)
	}
	checkEqual(r, "attempts with a record", kept, []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	checkEqual(r, "runs", j.StartedAttempts, 13)
	checkEqual(r, "output without room", r.outputSize(j, 11), int64(queue.OutputRemovedByQuota))
	_, err = r.store.Attempt(r.Context(), j.Seq, 1)
	r.checkErrorCode("an attempt without a record", err, queue.CodeNotFound)
	r.settleJob(j, exitOutcome(0))
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 1}))
	checkEqual(r, "bytes after the job was removed", r.countedUserBytes(1), int64(0))
}

func outputOverQuotaIsDropped(r *storeTest) {
	j := r.enqueueAndClaim(1)
	old := r.endJobWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 100, 0)
	r.must(r.enqueueWithByteQuota(1, 0, draftWithInput(1, 10_000)))
	limit := r.countedUserBytes(1) + 500
	e := r.newSettlement(j, exitOutcome(0))
	e.Attempt.OutputFileRef, e.Attempt.OutputBytes = "1-1", 5000
	e.Attempt.Result = []byte(`{}`)
	before := r.countedUserBytes(1)
	r.checkDueChangesRequested("an output file that is not kept",
		func() {
			r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}, MaxBytesPerUser: limit})
		})
	got := r.getJob(j.ID)
	checkEqual(r, "the job", []any{got.State, got.OutputBytes, got.StartedAttempts}, []any{queue.Completed, int64(0), 1})
	checkEqual(r, "bytes that the user holds", r.countedUserBytes(1), before)
	a, err := r.store.Attempt(r.Context(), j.Seq, 1)
	r.must(err)
	checkEqual(r, "the attempt", []any{a.OutputBytes, a.OutputFileRef, len(a.Result), a.ExitCode},
		[]any{int64(queue.OutputRemovedByQuota), "", 0, int64(0)})
	refs, err := r.store.DeletableOutputs(r.Context(), 9)
	r.must(err)
	checkEqual(r, "deletable files", refs, []string{"1-1"})
	checkEqual(r, "an output whose removal would not have made enough room", r.outputSizes(old, 1), []int64{100})
	checkEqual(r, "bytes of all outputs", r.store.Counts().OutputBytes, int64(100))
}

// runJobsWithOutput runs n jobs of a user, each with an output of 100 bytes.
func (r *storeTest) runJobsWithOutput(uid, jobCount int) {
	r.Helper()
	var ended []store.Settlement
	for _, j := range r.enqueueAndClaimJobs(uid, jobCount) {
		e := r.newSettlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, 100)
		ended = append(ended, e)
	}
	r.sendLeaseReport(store.LeaseReport{Settlements: ended})
	r.advanceClock(time.Second)
}

// enqueueAndClaimJobs enqueues n jobs of a user and claims them.
func (r *storeTest) enqueueAndClaimJobs(uid, jobCount int) []queue.Job {
	r.Helper()
	r.must(r.enqueueWithByteQuota(uid, 0, slices.Repeat([]queue.Job{newDraft(withUID(uid))}, jobCount)...))
	jobs := r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: jobCount}).ClaimedJobs
	checkEqual(r, "claimed jobs", len(jobs), jobCount)
	return jobs
}

// To make room for a new output, the store removes up to store.MaxRemovalsPerTransaction older outputs of the user.
func newOutputReplacesOlderOutputs(r *storeTest) {
	for uid, n := range map[int]int{1: 1, 2: 60, 3: store.MaxRemovalsPerTransaction} {
		r.runJobsWithOutput(uid, n+1)
		j := r.enqueueAndClaim(uid)
		limit := r.countedUserBytes(uid)
		j = r.endJobWithOutput(j, exitOutcome(0), 100*n, limit)
		checkEqual(r, "output that replaces others", j.OutputBytes, int64(100*n))
		checkEqual(r, "bytes that the user holds", r.countedUserBytes(uid), limit)
		checkEqual(r, "bytes of all outputs", r.removableBytes(uid), int64(100*n+100))
	}
}

// A new output may require that more than store.MaxRemovalsPerTransaction older outputs are removed. Then the new
// output is not stored, and no older output is removed.
func outputNeedingManyRemovalsIsDropped(r *storeTest) {
	const n = store.MaxRemovalsPerTransaction + 1
	r.runJobsWithOutput(1, n)
	j := r.enqueueAndClaim(1)
	limit := r.countedUserBytes(1)
	j = r.endJobWithOutput(j, exitOutcome(0), 100*n, limit)
	checkEqual(r, "size of an output that needs too many others removed", r.outputSizes(j, 1),
		[]int64{queue.OutputRemovedByQuota})
	checkEqual(r, "bytes of the other outputs", r.removableBytes(1), int64(100*n))
	j = r.endJobWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 100*n, r.countedUserBytes(1)+100)
	checkEqual(r, "output that replaces one less", j.OutputBytes, int64(100*n))
}

// One report can contain the ends of many attempts. Their outputs together can replace up to
// store.MaxRemovalsPerTransaction older outputs. After that, each further output can replace up to
// store.MaxRemovalsPerAttempt older ones.
func settlementsReplaceOlderOutputs(r *storeTest) {
	needs := []int{store.MaxRemovalsPerTransaction, store.MaxRemovalsPerAttempt, store.MaxRemovalsPerAttempt + 1,
		store.MaxRemovalsPerAttempt}
	r.runJobsWithOutput(1, store.MaxRemovalsPerTransaction+3*store.MaxRemovalsPerAttempt)
	var ended []store.Settlement
	for i, j := range r.enqueueAndClaimJobs(1, len(needs)) {
		e := r.newSettlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, 100*needs[i])
		ended = append(ended, e)
	}
	limit := r.countedUserBytes(1)
	r.sendLeaseReport(store.LeaseReport{Settlements: ended, MaxBytesPerUser: limit})
	var sizes []int64
	for _, e := range ended {
		a, err := r.store.Attempt(r.Context(), e.Seq, 1)
		r.must(err)
		sizes = append(sizes, a.OutputBytes)
	}
	const sharedBytes, bytesPerAttempt = 100 * store.MaxRemovalsPerTransaction, 100 * store.MaxRemovalsPerAttempt
	want := []int64{sharedBytes, bytesPerAttempt, queue.OutputRemovedByQuota, bytesPerAttempt}
	checkEqual(r, "outputs of the attempts", sizes, want)
	checkEqual(r, "bytes that the user holds", r.countedUserBytes(1), limit)
}

func negativeLimitRemovesAllOutputs(r *storeTest) {
	r.must(r.store.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	r.endJobWithOutput(r.enqueueAndClaim(1, func(j *queue.Job) { j.Queue = "own" }), exitOutcome(0), 100, 0)
	r.endJobWithOutput(r.enqueueAndClaim(2), exitOutcome(0), 100, 0)
	for _, trim := range []func() (bool, error){
		func() (bool, error) { return r.store.TrimQueueOutputs(r.Context(), "own", -1) },
		func() (bool, error) { return r.store.TrimOutputs(r.Context(), -1) },
	} {
		for more := true; more; {
			var err error
			more, err = trim()
			r.must(err)
		}
	}
	checkEqual(r, "bytes of all outputs", r.store.Counts().OutputBytes, int64(0))
}
