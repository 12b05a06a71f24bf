package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// endWithOutput ends an attempt of a leased job with an output of n bytes, and returns the stored job. limit is
// the byte quota of the job's user; 0 means unlimited.
func (r *rig) endWithOutput(j queue.Job, o queue.Outcome, n int, limit int64) queue.Job {
	r.Helper()
	e := r.settlement(j, o)
	e.Attempt.Output = make([]byte, n)
	checkEqual(r, "stale leases", r.exchange(store.Report{Settlements: []store.Settlement{e},
		MaxBytesPerUser: limit}).StaleLeases, nil)
	r.advance(time.Second)
	return r.getJob(j.ID)
}

// failWithOutput ends an attempt of a leased job with a failure and an output of n bytes. It checks that the
// job will be retried. limit is the byte quota of the job's user.
func (r *rig) failWithOutput(j queue.Job, n int, limit int64) queue.Job {
	r.Helper()
	got := r.endWithOutput(j, exitOutcome(1), n, limit)
	r.checkState("a job that will be retried", got, queue.Failed, "")
	return got
}

// claimRetry advances the clock by an hour, so that the failed job is due again, and claims the job.
func (r *rig) claimRetry() queue.Job {
	r.Helper()
	r.advance(time.Hour)
	r.promote()
	return r.claimOne()
}

// outputSizes returns the output sizes of a job's first attempts; attempts is their number.
func (r *rig) outputSizes(j queue.Job, attempts int) (list []int64) {
	r.Helper()
	for n := range attempts {
		list = append(list, r.outputSize(j, n+1))
	}
	return list
}

// outputSize returns the size of the stored output of attempt n of a job.
func (r *rig) outputSize(j queue.Job, n int) int64 {
	r.Helper()
	a, err := r.s.Attempt(r.Context(), j.Seq, n)
	r.must(err)
	return a.OutputBytes
}

// TrimUserData removes the outputs of earlier attempts of a job even if the job has not ended.
func trimUserDataRemovesOlderAttemptOutputs(r *rig) {
	old := r.endWithOutput(r.enqueueAndClaim(1, withMaxAttempts(9)), exitOutcome(0), 500, 0)
	j := r.enqueueAndClaim(1, withMaxAttempts(9))
	for range 3 {
		r.failWithOutput(j, 1000, 0)
		j = r.claimRetry()
	}
	before := r.bytesHeld(1)
	checkEqual(r, "removable bytes", r.removableBytes(1), int64(3500))
	r.trimUser(1, before-1500)
	checkEqual(r, "bytes after trimming", r.bytesHeld(1), before-2000)
	checkEqual(r, "outputs of the running job", r.outputSizes(j, 3),
		[]int64{queue.OutputOverQuota, queue.OutputOverQuota, 1000})
	checkEqual(r, "output of the ended job", r.outputSizes(old, 1), []int64{500})
	j = r.endWithOutput(j, exitOutcome(0), 10, 0)
	checkEqual(r, "bytes of outputs after the last attempt", j.OutputBytes, int64(1010))
	r.trimUser(1, 0)
	checkEqual(r, "removable bytes at the end", r.removableBytes(1), int64(0))
	checkEqual(r, "bytes of outputs at the end", r.getJob(j.ID).OutputBytes, int64(0))
}

// checkPromoteHinted calls action, which must make output files deletable. It checks that the store then
// requests a call of Promote, because only Promote returns these files.
func (r *rig) checkPromoteHinted(subject string, action func()) {
	r.Helper()
	r.promote()
	hinted := func() bool {
		select {
		case <-r.s.PromoteHints():
			return true
		default:
			return false
		}
	}
	for hinted() {
	}
	action()
	if !hinted() {
		r.Errorf("%s: got no hint to delete output files", subject)
	}
}

// enqueueAndClaim enqueues a job of a user and claims it.
func (r *rig) enqueueAndClaim(uid int, set ...func(*queue.Job)) queue.Job {
	r.Helper()
	r.must(r.enqueueLarge(uid, 0, draft(append(set, withUID(uid))...)))
	return r.claimOne()
}

func trimOutputsStartsWithLargestUsers(r *rig) {
	run := func(uid, n int) queue.Job { return r.endWithOutput(r.enqueueAndClaim(uid), exitOutcome(0), n, 0) }
	first := run(1, 100)
	var largestJobs []queue.Job
	for range 120 { // more outputs than the store removes in two steps
		largestJobs = append(largestJobs, run(2, 100))
	}
	second := run(3, 3000)
	outputsOf := func(keep int64) (n [3]int64) {
		r.Helper()
		for more := true; more; {
			var err error
			more, err = r.s.TrimOutputs(r.Context(), keep)
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
	checkEqual(r, "the oldest output was removed", r.outputSizes(largestJobs[50], 1), []int64{queue.OutputOverRetention})
	checkEqual(r, "that user has as much as the next one", outputsOf(6000), [3]int64{100, 2900, 3000})
	checkEqual(r, "the next user loses outputs too", outputsOf(5999), [3]int64{100, 2900, 0})
	checkEqual(r, "users with the smallest outputs lose them last", outputsOf(200), [3]int64{100, 100, 0})
}

func attemptOutputsStayWithinQuota(r *rig) {
	other := r.endWithOutput(r.enqueueAndClaim(2), exitOutcome(0), 9000, 0)
	old := r.endWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 2000, 0)
	j := r.enqueueAndClaim(1, withMaxAttempts(9))
	limit := r.bytesHeld(1) + 1500 + 6*(store.AttemptBytes+16) // enough for one output and the records of all attempts
	for n := range 6 {
		j = r.failWithOutput(j, 1000, limit)
		if used := r.bytesHeld(1); used > limit {
			r.Fatalf("after attempt %d, the user holds %d bytes, and %d are allowed", n+1, used, limit)
		}
		checkEqual(r, "output of the last attempt", r.outputSizes(j, n+1)[n], int64(1000))
		j = r.claimRetry()
	}
	checkEqual(r, "outputs of the attempts", r.outputSizes(j, 3),
		[]int64{queue.OutputOverQuota, queue.OutputOverQuota, queue.OutputOverQuota})
	checkEqual(r, "output of the job that had ended before", r.outputSizes(old, 1), []int64{2000})
	checkEqual(r, "output of another user", r.outputSizes(other, 1), []int64{9000})
	r.checkPromoteHinted("outputs that are removed", func() { j = r.endWithOutput(j, exitOutcome(0), 3400, limit) })
	checkEqual(r, "a job whose output replaces all others", []any{j.State, j.OutputBytes, r.getJob(old.ID).OutputBytes},
		[]any{queue.Completed, int64(3400), int64(0)})
}

// Dependencies count toward the byte quota of the job's user, also in a batch and after an edit.
func quotaCountsDependencyBytes(r *rig) {
	var dependencies []queue.Dependency
	for range 5 {
		dependencies = append(dependencies, queue.Dependency{JobSeq: r.enqueueAndClaim(2).Seq,
			Condition: queue.ParentCompleted})
	}
	bytesWith := func(n int) int64 {
		r.Helper()
		before := r.bytesHeld(1)
		r.must(r.enqueueLarge(1, 0, draft(withUID(1), func(j *queue.Job) { j.DependsOn = dependencies[:n] })))
		return r.bytesHeld(1) - before
	}
	alone, child := bytesWith(0), bytesWith(5)
	checkEqual(r, "bytes of five dependencies", child-alone, int64(5*store.DependencyBytes))
	limit := r.bytesHeld(1) + alone + 4*store.DependencyBytes
	waits := draft(withUID(1), func(j *queue.Job) { j.DependsOn = dependencies })
	r.wantCode("a job with five dependencies and room for four", r.enqueueLarge(1, limit, waits),
		queue.CodeQueueFull)
	last := r.listAll(store.Filter{UID: new(1)})[0]
	edit := func(n int, limit int64) error {
		return r.s.Change(r.Context(), last.Seq, store.Change{Verb: queue.VerbEdit, UID: 1, MaxBytesPerUser: limit,
			Edit: func(j *queue.Job) error {
				j.DependsOn = dependencies[:n]
				return nil
			}})
	}
	before := r.bytesHeld(1)
	r.must(edit(2, 0))
	checkEqual(r, "bytes after an edit to two dependencies", r.bytesHeld(1), before-3*store.DependencyBytes)
	r.wantCode("an edit to five dependencies with room for four", edit(5, before-store.DependencyBytes),
		queue.CodeQueueFull)
	before = r.bytesHeld(1)
	stage := store.Request{Drafts: []queue.Job{waits}, UID: 1, Batch: "b"}
	_, err := r.s.StageBatch(r.Context(), stage)
	r.must(err)
	checkEqual(r, "bytes in a batch", r.bytesHeld(1)-before, child)
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: 1, Batch: "b"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.s.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
	}
	checkEqual(r, "bytes after the commit", r.bytesHeld(1)-before, child)
	for _, j := range r.listAll(store.Filter{UID: new(1)}) {
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 1}))
	}
	checkEqual(r, "bytes after all jobs were removed", r.bytesHeld(1), int64(0))
}

// Attempt records count toward the byte quota of the job's user.
func quotaCountsAttemptBytes(r *rig) {
	j := r.enqueueAndClaim(1, withMaxAttempts(4))
	before := r.bytesHeld(1)
	want := before
	for n := range 3 {
		e := r.settlement(j, exitOutcome(1))
		e.Decision.Error = strings.Repeat("e", 100)
		r.exchange(store.Report{Settlements: []store.Settlement{e}})
		if want += 100; n > 0 {
			want += store.AttemptBytes
		}
		checkEqual(r, "bytes after an attempt", r.bytesHeld(1), want)
		j = r.claimRetry()
	}
	r.exchange(store.Report{Releases: []queue.Lease{j.Lease()}})
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbEdit, UID: 1, Edit: func(j *queue.Job) error {
		j.Stdin = strings.Repeat("x", 5000)
		return nil
	}}))
	if got := r.bytesHeld(1); got < want+5000 || got > want+5100 {
		r.Errorf("after an edit that adds 5000 bytes, the user holds %d bytes; before, %d", got, want)
	}
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 1}))
	checkEqual(r, "bytes after the job was removed", r.bytesHeld(1), int64(0))
}

func newRecordReplacesOldestAtQuota(r *rig) {
	j := r.enqueueAndClaim(1, withMaxAttempts(20))
	attempt := func(limit int64, output string) {
		r.Helper()
		e := r.settlement(j, exitOutcome(1))
		e.Attempt.Output = []byte(output)
		r.exchange(store.Report{Settlements: []store.Settlement{e}, MaxBytesPerUser: limit})
		j = r.claimRetry()
	}
	first := r.bytesHeld(1)
	for range store.KeptAttemptRecords {
		attempt(first, "") // the first records of a job are kept even above the limit
	}
	limit := r.bytesHeld(1)
	for n, output := range []string{"printed", "", ""} {
		attempt(limit, output)
		if used := r.bytesHeld(1); used > limit {
			r.Errorf("after attempt %d, the user holds %d bytes, and %d are allowed", store.KeptAttemptRecords+n+1, used, limit)
		}
	}
	list, err := r.s.History(r.Context(), j.Seq, 0, 20)
	r.must(err)
	var kept []int
	for i := range list {
		kept = append(kept, list[i].Number)
	}
	checkEqual(r, "attempts with a record", kept, []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	checkEqual(r, "runs", j.StartedAttempts, 13)
	checkEqual(r, "output without room", r.outputSize(j, 11), int64(queue.OutputOverQuota))
	_, err = r.s.Attempt(r.Context(), j.Seq, 1)
	r.wantCode("an attempt without a record", err, queue.CodeNotFound)
	r.settle(j, exitOutcome(0))
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 1}))
	checkEqual(r, "bytes after the job was removed", r.bytesHeld(1), int64(0))
}

func outputOverQuotaIsDropped(r *rig) {
	j := r.enqueueAndClaim(1)
	old := r.endWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 100, 0)
	r.must(r.enqueueLarge(1, 0, draftWithInput(1, 10_000)))
	limit := r.bytesHeld(1) + 500
	e := r.settlement(j, exitOutcome(0))
	e.Attempt.OutputRef, e.Attempt.OutputBytes = "1-1", 5000
	e.Attempt.Result = []byte(`{}`)
	before := r.bytesHeld(1)
	r.checkPromoteHinted("an output file that is not kept",
		func() { r.exchange(store.Report{Settlements: []store.Settlement{e}, MaxBytesPerUser: limit}) })
	got := r.getJob(j.ID)
	checkEqual(r, "the job", []any{got.State, got.OutputBytes, got.StartedAttempts}, []any{queue.Completed, int64(0), 1})
	checkEqual(r, "bytes that the user holds", r.bytesHeld(1), before)
	a, err := r.s.Attempt(r.Context(), j.Seq, 1)
	r.must(err)
	checkEqual(r, "the attempt", []any{a.OutputBytes, a.OutputRef, len(a.Result), a.ExitCode},
		[]any{int64(queue.OutputOverQuota), "", 0, int64(0)})
	refs, err := r.s.DeletableOutputs(r.Context(), 9)
	r.must(err)
	checkEqual(r, "deletable files", refs, []string{"1-1"})
	checkEqual(r, "an output whose removal would not have made enough room", r.outputSizes(old, 1), []int64{100})
	checkEqual(r, "bytes of all outputs", r.s.Counts().OutputBytes, int64(100))
}

// runManyWithOutput runs n jobs of a user, each with an output of 100 bytes.
func (r *rig) runManyWithOutput(uid, n int) {
	r.Helper()
	var ended []store.Settlement
	for _, j := range r.enqueueAndClaimMany(uid, n) {
		e := r.settlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, 100)
		ended = append(ended, e)
	}
	r.exchange(store.Report{Settlements: ended})
	r.advance(time.Second)
}

// enqueueAndClaimMany enqueues n jobs of a user and claims them.
func (r *rig) enqueueAndClaimMany(uid, n int) []queue.Job {
	r.Helper()
	r.must(r.enqueueLarge(uid, 0, slices.Repeat([]queue.Job{draft(withUID(uid))}, n)...))
	jobs := r.exchange(store.Report{WantedJobs: n}).Jobs
	checkEqual(r, "claimed jobs", len(jobs), n)
	return jobs
}

// To make room for a new output, the store removes up to store.MaxRemovedTotal older outputs of the user.
func newOutputReplacesOlderOutputs(r *rig) {
	for uid, n := range map[int]int{1: 1, 2: 60, 3: store.MaxRemovedTotal} {
		r.runManyWithOutput(uid, n+1)
		j := r.enqueueAndClaim(uid)
		limit := r.bytesHeld(uid)
		j = r.endWithOutput(j, exitOutcome(0), 100*n, limit)
		checkEqual(r, "output that replaces others", j.OutputBytes, int64(100*n))
		checkEqual(r, "bytes that the user holds", r.bytesHeld(uid), limit)
		checkEqual(r, "bytes of all outputs", r.removableBytes(uid), int64(100*n+100))
	}
}

// If too many older outputs would have to be removed for a new output, the new output is not stored, and
// no older one is removed.
func outputReplacesNoneIfTooManyAreNeeded(r *rig) {
	const n = store.MaxRemovedTotal + 1
	r.runManyWithOutput(1, n)
	j := r.enqueueAndClaim(1)
	limit := r.bytesHeld(1)
	j = r.endWithOutput(j, exitOutcome(0), 100*n, limit)
	checkEqual(r, "size of an output that needs too many others removed", r.outputSizes(j, 1),
		[]int64{queue.OutputOverQuota})
	checkEqual(r, "bytes of the other outputs", r.removableBytes(1), int64(100*n))
	j = r.endWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 100*n, r.bytesHeld(1)+100)
	checkEqual(r, "output that replaces one less", j.OutputBytes, int64(100*n))
}

// If one report contains the ends of many attempts, each output can replace some older outputs.
func settlementsReplaceOlderOutputs(r *rig) {
	needs := []int{store.MaxRemovedTotal, store.MaxRemovedEach, store.MaxRemovedEach + 1, store.MaxRemovedEach}
	r.runManyWithOutput(1, store.MaxRemovedTotal+3*store.MaxRemovedEach)
	var ended []store.Settlement
	for i, j := range r.enqueueAndClaimMany(1, len(needs)) {
		e := r.settlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, 100*needs[i])
		ended = append(ended, e)
	}
	limit := r.bytesHeld(1)
	r.exchange(store.Report{Settlements: ended, MaxBytesPerUser: limit})
	var sizes []int64
	for _, e := range ended {
		a, err := r.s.Attempt(r.Context(), e.Seq, 1)
		r.must(err)
		sizes = append(sizes, a.OutputBytes)
	}
	const sharedBytes, bytesPerAttempt = 100 * store.MaxRemovedTotal, 100 * store.MaxRemovedEach
	want := []int64{sharedBytes, bytesPerAttempt, queue.OutputOverQuota, bytesPerAttempt}
	checkEqual(r, "outputs of the attempts", sizes, want)
	checkEqual(r, "bytes that the user holds", r.bytesHeld(1), limit)
}

func negativeLimitRemovesAllOutputs(r *rig) {
	r.must(r.s.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	r.endWithOutput(r.enqueueAndClaim(1, func(j *queue.Job) { j.Queue = "own" }), exitOutcome(0), 100, 0)
	r.endWithOutput(r.enqueueAndClaim(2), exitOutcome(0), 100, 0)
	for _, trim := range []func() (bool, error){
		func() (bool, error) { return r.s.TrimQueueOutputs(r.Context(), "own", -1) },
		func() (bool, error) { return r.s.TrimOutputs(r.Context(), -1) },
	} {
		for more := true; more; {
			var err error
			more, err = trim()
			r.must(err)
		}
	}
	checkEqual(r, "bytes of all outputs", r.s.Counts().OutputBytes, int64(0))
}
