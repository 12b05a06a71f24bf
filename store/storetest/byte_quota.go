package storetest

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// byteQuotaTests lists what a store must do to limit the bytes that the jobs of a user may use.
var byteQuotaTests = []contractTest{
	{name: "a job's bytes count for its user until the job is removed", run: jobBytesCountUntilRemoval},
	{name: "jobs that would exceed the user's byte quota are rejected", run: byteQuotaRejectsJobs},
	{name: "TrimUserData removes only outputs of the given user", run: trimUserDataRemovesOutputsOfUser},
	{name: "TrimUserData removes outputs of earlier attempts of unfinished jobs",
		run: trimUserDataRemovesOlderAttemptOutputs},
	{name: "TrimOutputs removes outputs of the users whose outputs are largest", run: trimOutputsStartsWithLargestUsers},
	{name: "outputs of finished attempts never exceed the user's quota", run: attemptOutputsStayWithinQuota},
	{name: "an output that does not fit into the quota is dropped", run: outputOverQuotaIsDropped},
	{name: "a new output replaces up to MaxRemovedTotal older outputs", run: newOutputReplacesOlderOutputs},
	{name: "an output that would replace too many older outputs removes none",
		run: outputNeedingManyRemovalsIsDropped},
	{name: "each attempt of a large report can remove some older outputs", run: settlementsReplaceOlderOutputs},
	{name: "trimming to a negative number of bytes removes all outputs", run: negativeLimitRemovesAllOutputs},
	{name: "dependencies count toward the byte quota, also in a batch and after an edit",
		run: quotaCountsDependencyBytes},
	{name: "attempt records count toward the byte quota", run: byteQuotaCountsAttemptRecords},
	{name: "when the quota is used up, a new attempt record replaces the oldest one",
		run: newAttemptRecordReplacesOldestAtQuota},
	{name: "TrimUserData removes inputs of completed and cancelled jobs, not the jobs", run: trimUserDataRemovesInputs},
	{name: "a job whose input was removed cannot run again", run: jobWithRemovedInputCannotRun},
	{name: "staged jobs count toward the byte quota before the commit", run: quotaCountsStagedBytes},
	{name: "schedules count toward the byte quota", run: quotaCountsScheduleBytes},
	{name: "an occurrence that exceeds the quota fails or is recorded as refused", run: byteQuotaRefusesOccurrence},
	{name: "the bytes of disowned jobs and schedules move with them", run: disownMovesCountedBytes},
}

// countedUserBytes returns the number of bytes that the store counts for the jobs of a user.
func (r *storeTest) countedUserBytes(uid int) int64 {
	r.Helper()
	return r.store.StoredBytesOfUser(uid)
}

// checkCountedBytes checks how many bytes the store counts for some jobs. Each job counts with the bytes of its texts,
// and with store.QuotaBytesPerJob to store.QuotaBytesPerJob + 1024 additional bytes.
func (r *storeTest) checkCountedBytes(description string, countedBytes, textBytes int64, jobCount int) {
	r.Helper()
	if limit := textBytes + int64(jobCount)*(store.QuotaBytesPerJob+1024); countedBytes < textBytes+
		int64(jobCount)*store.QuotaBytesPerJob ||
		countedBytes > limit {
		r.Errorf("%s: the jobs hold %d bytes, want at least %d and at most %d", description, countedBytes,
			textBytes+int64(jobCount)*store.QuotaBytesPerJob, limit)
	}
}

// draftWithInput returns a job to be enqueued for a user, with a standard input of inputBytes bytes.
func draftWithInput(uid, inputBytes int) queue.Job {
	return newDraft(withUID(uid), func(j *queue.Job) { j.Stdin = strings.Repeat("x", inputBytes) })
}

// enqueueWithByteQuota enqueues drafts (new jobs) of a user whose byte quota is byteQuota; 0 means unlimited.
func (r *storeTest) enqueueWithByteQuota(uid int, byteQuota int64, drafts ...queue.Job) error {
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, MaxBytesPerUser: byteQuota})
	return err
}

// A job's bytes count for its user until the job is removed.
func jobBytesCountUntilRemoval(r *storeTest) {
	checkEqual(r, "bytes before the first job", r.countedUserBytes(1), int64(0))
	r.must(r.enqueueWithByteQuota(1, 0, draftWithInput(1, 10_000), draftWithInput(1, 20_000)))
	before := r.countedUserBytes(1)
	r.checkCountedBytes("two jobs", before, 30_000, 2)
	checkEqual(r, "bytes of another user", r.countedUserBytes(2), int64(0))
	j := r.claimOne()
	e := r.newSettlement(j, exitOutcome(0))
	e.Attempt.Output = make([]byte, 5000)
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	checkEqual(r, "bytes with an output", r.countedUserBytes(1), before+5000)
	second := r.claimOne()
	r.settleJob(second, exitOutcome(0))
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove}))
	r.checkCountedBytes("after removing one of two jobs", r.countedUserBytes(1), 20_000, 1)
	n, err := r.store.PurgeEndedJobs(r.Context(), store.EndedJobFilter{States: []queue.State{queue.Completed},
		EndedBefore: r.store.Now() + 1}, 10,
		nil)
	r.must(err)
	checkEqual(r, "purged", n, 1)
	checkEqual(r, "bytes after all jobs were removed", r.countedUserBytes(1), int64(0))
}

func byteQuotaRejectsJobs(r *storeTest) {
	const limit = 50_000
	full := func(subject string, err error) {
		r.Helper()
		r.checkErrorCode(subject, err, queue.CodeQueueFull)
		var refusal *queue.Error
		if !errors.As(err, &refusal) || refusal.Field != "max_bytes_per_user" ||
			!strings.Contains(refusal.Message, "of 50000 bytes") {
			r.Errorf("%s: %v does not name the setting and how many bytes it allows", subject, err)
		}
	}
	r.must(r.enqueueWithByteQuota(1, limit, draftWithInput(1, 20_000), draftWithInput(1, 20_000)))
	r.checkStoreUnchanged(func() { full("a third job", r.enqueueWithByteQuota(1, limit, draftWithInput(1, 20_000))) })
	// The bytes of user 1 do not count toward the limit of user 2.
	r.must(r.enqueueWithByteQuota(2, limit, draftWithInput(2, 20_000)))
	first := r.claimOne()
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{first.Lease()}})
	grow := func(n int) error {
		return r.store.ChangeJob(r.Context(), first.Seq, store.JobChange{Verb: queue.VerbEdit, UID: 1, MaxBytesPerUser: limit,
			EditJob: func(j *queue.Job) error {
				j.Stdin = strings.Repeat("y", n)
				return nil
			}})
	}
	r.checkStoreUnchanged(func() { full("an edit", grow(60_000)) })
	r.must(grow(100))
	r.checkCountedBytes("after a smaller edit", r.countedUserBytes(1), 20_100, 2)
	r.must(r.enqueueWithByteQuota(1, limit, draftWithInput(1, 20_000)))
	r.must(r.store.ChangeJob(r.Context(), first.Seq, store.JobChange{Verb: queue.VerbCancel, UID: 1}))
	full("ended jobs still count", r.enqueueWithByteQuota(1, limit, draftWithInput(1, 20_000)))
	r.must(r.enqueueWithByteQuota(1, 0, draftWithInput(1, 20_000))) // 0 means unlimited
}

func trimUserDataRemovesOutputsOfUser(r *storeTest) {
	ended := func(uid, bytes int) queue.Job {
		r.must(r.enqueueWithByteQuota(uid, 0, newDraft(withUID(uid))))
		j := r.claimOne()
		e := r.newSettlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, bytes)
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		r.advanceClock(time.Second)
		return j
	}
	other, old, young := ended(2, 9000), ended(1, 4000), ended(1, 3000)
	before := r.countedUserBytes(1)
	checkEqual(r, "removable bytes", r.removableBytes(1), int64(7000))
	overLimit := []store.UserStoredBytes{{UID: 2, StoredBytes: r.countedUserBytes(2)}, {UID: 1, StoredBytes: before}}
	checkEqual(r, "users above the limit", r.store.UsersOverStoredBytes(before), overLimit[:1])
	checkEqual(r, "users above a lower limit, most bytes first", r.store.UsersOverStoredBytes(1000), overLimit)
	r.trimUserData(1, before-1)
	checkEqual(r, "bytes after trimming", r.countedUserBytes(1), before-4000)
	var remaining []int64
	for _, j := range []queue.Job{other, old, young} {
		a, err := r.store.Attempt(r.Context(), j.Seq, 1)
		r.must(err)
		remaining = append(remaining, a.OutputBytes)
	}
	checkEqual(r, "outputs", remaining, []int64{9000, queue.OutputRemovedByQuota, 3000})
}

// removableBytes returns how many bytes of inputs and outputs the store could remove to make room for a user.
func (r *storeTest) removableBytes(uid int) int64 {
	r.Helper()
	n, err := r.store.RemovableUserBytes(r.Context(), uid, math.MaxInt64)
	r.must(err)
	return n
}

// trimUserData removes inputs and outputs of a user's jobs. It stops when the jobs use at most maxBytes bytes, or when
// no more inputs and outputs can be removed.
func (r *storeTest) trimUserData(uid int, maxBytes int64) {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.store.TrimUserData(r.Context(), uid, maxBytes)
		r.must(err)
	}
}

// endNewJobInState stores the job j, claims it and ends it so that it gets the given state.
func (r *storeTest) endNewJobInState(j queue.Job, state queue.State) queue.Job {
	r.Helper()
	r.must(r.enqueueWithByteQuota(j.UID, 0, j))
	got := r.claimOne()
	e := r.newSettlement(got, exitOutcome(0))
	e.Decision.NextState = state
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	r.advanceClock(time.Second)
	return r.getJob(got.ID)
}

// TrimUserData removes the inputs of completed and cancelled jobs, and keeps the jobs.
func trimUserDataRemovesInputs(r *storeTest) {
	const kept = store.MaxKeptInputBytes / 2
	env := newDraft(withUID(1), func(j *queue.Job) { j.Env = []string{"A=" + strings.Repeat("x", 8000)} })
	both := draftWithInput(1, 9000)
	both.Env = []string{"A=1"}
	first, second, small := r.endNewJobInState(draftWithInput(1, 7000), queue.Completed),
		r.endNewJobInState(env, queue.Completed),
		r.endNewJobInState(draftWithInput(1, kept), queue.Completed)
	dead := r.endNewJobInState(draftWithInput(1, 6000), queue.Dead)
	r.must(r.enqueueWithByteQuota(1, 0, both))
	cancelled := r.claimOne()
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{cancelled.Lease()}})
	r.must(r.store.ChangeJob(r.Context(), cancelled.Seq, store.JobChange{Verb: queue.VerbCancel, UID: 1}))
	other := r.endNewJobInState(draftWithInput(2, 5000), queue.Completed)
	r.must(r.enqueueWithByteQuota(1, 0, draftWithInput(1, 5000)))
	waiting := r.listAllJobs(store.JobFilter{States: []queue.State{queue.Pending}})[0]
	shows := func(subject string, want map[int64]queue.InputParts) {
		r.Helper()
		got := map[int64]queue.InputParts{}
		for _, j := range r.listAllJobs(store.JobFilter{}) {
			complete := r.getJob(j.ID)
			checkEqual(r, subject+": parts in a list", j.InputRemoved, complete.InputRemoved)
			if j.InputRemoved != 0 {
				got[j.Seq] = j.InputRemoved
				checkEqual(r, subject+": input that was removed", store.JobInputBytes(&complete.ExecutionSettings), 0)
			}
		}
		checkEqual(r, subject, got, want)
	}
	before, others := r.countedUserBytes(1), r.countedUserBytes(2)
	r.trimUserData(1, before)
	shows("removed inputs, if all fit", map[int64]queue.InputParts{})
	r.trimUserData(1, before-1)
	shows("removed inputs, for one byte", map[int64]queue.InputParts{first.Seq: queue.InputStdin})
	if n := before - r.countedUserBytes(1); n < 7000 || n > 7100 {
		r.Errorf("removing an input of 7000 bytes freed %d bytes", n)
	}
	now, removable := r.countedUserBytes(1), r.removableBytes(1)
	r.trimUserData(1, 0)
	checkEqual(r, "bytes that were removable", now-r.countedUserBytes(1), removable)
	checkEqual(r, "bytes that are still removable", r.removableBytes(1), int64(0))
	shows("removed inputs, for all bytes", map[int64]queue.InputParts{
		first.Seq: queue.InputStdin, second.Seq: queue.InputEnv,
		cancelled.Seq: queue.InputEnv | queue.InputStdin})
	for _, j := range []queue.Job{small, dead, waiting, other} {
		if n := store.JobInputBytes(new(r.getJob(j.ID).ExecutionSettings)); n < kept {
			r.Errorf("job %s must keep its input, but only %d bytes are left", j.ID, n)
		}
	}
	checkEqual(r, "bytes of another user", r.countedUserBytes(2), others)
	for _, j := range r.listAllJobs(store.JobFilter{UID: new(1)}) {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 1}))
	}
	checkEqual(r, "bytes after all jobs were removed", r.countedUserBytes(1), int64(0))
}

func jobWithRemovedInputCannotRun(r *storeTest) {
	refused := func(subject string, j queue.Job, field string) {
		r.Helper()
		r.checkStoreUnchanged(func() {
			err := r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: 1})
			r.checkErrorCode(subject, err, queue.CodeWrongState)
			var e *queue.Error
			if !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Message, "enqueue") {
				r.Errorf("%s: %v does not name %s and the next step", subject, err, field)
			}
		})
	}
	env := newDraft(withUID(1), func(j *queue.Job) { j.Env = []string{"A=" + strings.Repeat("x", 8000)} })
	ran, withEnv := r.endNewJobInState(draftWithInput(1, 7000), queue.Completed), r.endNewJobInState(env, queue.Completed)
	parent := r.endNewJobInState(newDraft(withUID(1)), queue.Dead)
	child := draftWithInput(1, 7000)
	child.DependsOn = []queue.Dependency{{ParentSeq: parent.Seq, Condition: queue.ParentCompleted}}
	r.must(r.enqueueWithByteQuota(1, 0, child))
	cancelled := r.listAllJobs(store.JobFilter{States: []queue.State{queue.Cancelled}})[0]
	dead := r.endNewJobInState(draftWithInput(1, 6000), queue.Dead)
	r.trimUserData(1, 0)
	refused("a job without its standard input", ran, "stdin")
	refused("a job without its environment", withEnv, "env")
	r.must(r.store.ChangeJob(r.Context(), dead.Seq, store.JobChange{Verb: queue.VerbRetry, UID: 1}))
	checkEqual(r, "standard input of a retried dead job", len(r.getJob(dead.ID).Stdin), 6000)
	r.must(r.store.ChangeJob(r.Context(), parent.Seq, store.JobChange{Verb: queue.VerbRetry, UID: 1}))
	r.applyDueChangesUntilDone()
	r.checkJobState("a dependant without its input", cancelled, queue.Cancelled, queue.ReasonDependency)
}

// Jobs of a batch count toward the byte quota even before the batch is committed.
func quotaCountsStagedBytes(r *storeTest) {
	stage := func(limit int64) error {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{draftWithInput(1, 20_000)}, UID: 1,
			BatchName: "b", MaxBytesPerUser: limit})
		return err
	}
	r.endNewJobInState(draftWithInput(2, 7000), queue.Completed)
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{draftWithInput(2, 20_000)}, UID: 2,
		BatchName: "b"})
	r.must(err)
	before := r.countedUserBytes(2)
	r.trimUserData(2, before-1)
	checkEqual(r, "TrimUserData counts staged bytes", r.countedUserBytes(2) < before-7000, true)
	r.must(stage(30_000))
	r.checkCountedBytes("staged", r.countedUserBytes(1), 20_000, 1)
	old := r.endNewJobInState(draftWithInput(1, 5000), queue.Completed)
	r.trimUserData(1, r.countedUserBytes(1)-1)
	checkEqual(r, "the input of an ended job is removed for the batch", r.getJob(old.ID).InputRemoved, queue.InputStdin)
	r.must(r.store.ChangeJob(r.Context(), old.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 1}))
	r.checkErrorCode("one more staged job", stage(30_000), queue.CodeQueueFull)
	r.checkErrorCode("one more job in the queue", r.enqueueWithByteQuota(1, 30_000, draftWithInput(1, 20_000)),
		queue.CodeQueueFull)
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: 1, BatchName: "b"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.store.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
	}
	r.checkCountedBytes("committed", r.countedUserBytes(1), 20_000, 1)
	r.must(stage(0))
	r.must(r.store.AbortBatch(r.Context(), 1, "b"))
}

// withScheduleInput returns a function that gives the jobs of a schedule a standard input of inputBytes bytes. The
// stored schedule grows by the same number of bytes.
func withScheduleInput(uid, inputBytes int) func(*store.Schedule) {
	return func(s *store.Schedule) {
		s.OwnerUID, s.JobDraft = uid, draftWithInput(uid, inputBytes)
		s.SpecJSON = `{"command":"true","stdin":"` + strings.Repeat("x", inputBytes) + `"}`
	}
}

// Stored schedules count toward the byte quota of their owner.
func quotaCountsScheduleBytes(r *storeTest) {
	const limit = 50_000
	put := func(p store.SchedulePutRequest) (store.Schedule, error) {
		p.MaxBytesPerUser = limit
		return r.store.PutSchedule(r.Context(), p)
	}
	first := r.putSchedule("first", withScheduleInput(1, 10_000))
	r.checkCountedBytes("a schedule", r.countedUserBytes(1), 20_000, 1)
	checkEqual(r, "users above the limit", r.store.UsersOverStoredBytes(1000),
		[]store.UserStoredBytes{{UID: 1, StoredBytes: r.countedUserBytes(1)}})
	more := first
	more.Name = "more"
	withScheduleInput(1, 20_000)(&more)
	r.checkStoreUnchanged(func() {
		_, err := put(store.SchedulePutRequest{Schedule: more})
		r.checkErrorCode("a schedule beyond the limit", err, queue.CodeQueueFull)
		r.checkErrorCode("a job beyond the limit", r.enqueueWithByteQuota(1, limit, draftWithInput(1, 30_000)),
			queue.CodeQueueFull)
	})
	checkEqual(r, "bytes after the rejections", r.store.StoredBytesOfUser(2), int64(0))
	grown := first
	withScheduleInput(1, 20_000)(&grown)
	grown, err := put(store.SchedulePutRequest{Schedule: grown, ReplacedGeneration: first.Generation})
	r.must(err)
	r.checkCountedBytes("bytes after an edit to a larger schedule", r.countedUserBytes(1), 40_000, 1)
	larger := grown
	withScheduleInput(1, 30_000)(&larger)
	_, err = put(store.SchedulePutRequest{Schedule: larger, ReplacedGeneration: grown.Generation})
	r.checkErrorCode("an edit beyond the limit", err, queue.CodeQueueFull)
	other := grown
	withScheduleInput(2, 20_000)(&other)
	other, err = put(store.SchedulePutRequest{Schedule: other, ReplacedGeneration: grown.Generation, RequestedByUID: 2})
	r.must(err)
	checkEqual(r, "bytes of the user whose schedule another user replaced", r.countedUserBytes(1), int64(0))
	r.checkCountedBytes("bytes of the other user", r.countedUserBytes(2), 40_000, 1)
	r.must(r.store.RemoveSchedule(r.Context(), "first", other.Generation, 2))
	checkEqual(r, "bytes after the schedule was removed", r.countedUserBytes(2), int64(0))
}

func disownMovesCountedBytes(r *storeTest) {
	j := r.enqueueAs(7, "alice", func(j *queue.Job) { j.Stdin = strings.Repeat("x", 10_000) })
	r.putSchedule("nightly", withScheduleInput(7, 10_000))
	before := r.countedUserBytes(7)
	r.checkCountedBytes("a job and a schedule", before, 30_000, 2)
	r.disownJobsUntilDone(7)
	for next := time.Duration(0); next == 0; {
		var err error
		next, err = r.store.ApplyDueChanges(r.Context())
		r.must(err)
	}
	checkEqual(r, "bytes of the uid", r.countedUserBytes(7), int64(0))
	checkEqual(r, "bytes of the former owner", r.countedUserBytes(r.getJob(j.ID).UID), before)
}

// An occurrence of a schedule whose job would exceed the byte quota is recorded as refused. If FailIfOverQuota is
// set, the call fails instead.
func byteQuotaRefusesOccurrence(r *storeTest) {
	hourly := r.putSchedule("hourly", withScheduleInput(1, 10_000))
	f := store.OccurrenceRequest{
		ScheduleName: hourly.Name, Generation: hourly.Generation, ExpectedLastOccurrenceAt: hourly.LastOccurrenceAt,
		ExpectedLastBootID:  hourly.LastBootID,
		NewLastOccurrenceAt: r.store.Now(), NewLastBootID: hourly.LastBootID,
		OccurrencesToRun: []queue.UnixMillis{r.store.Now()},
		CandidateJobID:   func(queue.UnixMillis, int) string { return "hourly-1" },
		MaxBytesPerUser:  r.countedUserBytes(1) + 1000, FailIfOverQuota: true,
	}
	r.checkStoreUnchanged(func() {
		_, err := r.store.RunOccurrences(r.Context(), f)
		var quotaErr *store.QuotaError
		if !errors.As(err, &quotaErr) || quotaErr.UsedBytes != r.countedUserBytes(1) ||
			quotaErr.LimitBytes != f.MaxBytesPerUser ||
			quotaErr.NeededBytes < 10_000 {
			r.Errorf("an occurrence above the quota: %+v, want an error with the bytes that it needs", err)
		}
	})
	f.FailIfOverQuota = false
	fired, err := r.store.RunOccurrences(r.Context(), f)
	r.must(err)
	checkEqual(r, "outcome without the option", fired.Records[0].Outcome, store.OccurrenceRefused)
}
