package storetest

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// bytePromises lists what a store must do to limit the bytes that the jobs of a user may use.
var bytePromises = []promise{
	{name: "a job's bytes count for its user until the job is removed", check: jobBytesCountForUser},
	{name: "jobs that would exceed the user's byte quota are rejected", check: byteQuotaRejectsJobs},
	{name: "TrimUserData removes only outputs of the given user", check: trimUserDataRemovesOutputsOfUser},
	{name: "TrimUserData removes outputs of earlier attempts of unfinished jobs",
		check: trimUserDataRemovesOlderAttemptOutputs},
	{name: "TrimOutputs removes outputs of the users whose outputs are largest", check: trimOutputsStartsWithLargestUsers},
	{name: "outputs of finished attempts never exceed the user's quota", check: attemptOutputsStayWithinQuota},
	{name: "an output that does not fit into the quota is dropped", check: outputOverQuotaIsDropped},
	{name: "a new output replaces up to MaxRemovedTotal older outputs", check: newOutputReplacesOlderOutputs},
	{name: "an output that would replace too many older outputs removes none",
		check: outputReplacesNoneIfTooManyAreNeeded},
	{name: "each attempt of a large report can remove some older outputs", check: settlementsReplaceOlderOutputs},
	{name: "trimming to a negative number of bytes removes all outputs", check: negativeLimitRemovesAllOutputs},
	{name: "dependencies count toward the byte quota, also in a batch and after an edit",
		check: quotaCountsDependencyBytes},
	{name: "attempt records count toward the byte quota", check: quotaCountsAttemptBytes},
	{name: "when the quota is used up, a new attempt record replaces the oldest one",
		check: newRecordReplacesOldestAtQuota},
	{name: "TrimUserData removes inputs of completed and cancelled jobs, not the jobs", check: trimUserDataRemovesInputs},
	{name: "a job whose input was removed cannot run again", check: jobWithRemovedInputCannotRun},
	{name: "staged jobs count toward the byte quota before the commit", check: quotaCountsStagedBytes},
	{name: "schedules count toward the byte quota", check: quotaCountsScheduleBytes},
	{name: "an occurrence that exceeds the quota fails or is recorded as refused", check: byteQuotaRefusesOccurrence},
	{name: "the bytes of disowned jobs and schedules move with them", check: disownMovesBytes},
}

// bytesHeld returns the number of bytes that the store counts for the jobs of a user.
func (r *rig) bytesHeld(uid int) int64 {
	r.Helper()
	return r.s.UserBytes(uid)
}

// checkBytes checks how many bytes the store counts for jobs: the bytes of their texts and, for each job, at
// least store.JobBytes and at most 1,024 more.
func (r *rig) checkBytes(subject string, got, textBytes int64, jobCount int) {
	r.Helper()
	if limit := textBytes + int64(jobCount)*(store.JobBytes+1024); got < textBytes+int64(jobCount)*store.JobBytes ||
		got > limit {
		r.Errorf("%s: the jobs hold %d bytes, want at least %d and at most %d", subject, got,
			textBytes+int64(jobCount)*store.JobBytes, limit)
	}
}

// draftWithInput returns a job to be enqueued for a user, with a standard input of n bytes.
func draftWithInput(uid, n int) queue.Job {
	return draft(withUID(uid), func(j *queue.Job) { j.Stdin = strings.Repeat("x", n) })
}

// enqueueLarge enqueues drafts (new jobs) of a user. limit is the user's byte quota; 0 means unlimited.
func (r *rig) enqueueLarge(uid int, limit int64, drafts ...queue.Job) error {
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: uid, MaxBytesPerUser: limit})
	return err
}

// A job's bytes count for its user until the job is removed.
func jobBytesCountForUser(r *rig) {
	checkEqual(r, "bytes before the first job", r.bytesHeld(1), int64(0))
	r.must(r.enqueueLarge(1, 0, draftWithInput(1, 10_000), draftWithInput(1, 20_000)))
	before := r.bytesHeld(1)
	r.checkBytes("two jobs", before, 30_000, 2)
	checkEqual(r, "bytes of another user", r.bytesHeld(2), int64(0))
	j := r.claimOne()
	e := r.settlement(j, exitOutcome(0))
	e.Attempt.Output = make([]byte, 5000)
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	checkEqual(r, "bytes with an output", r.bytesHeld(1), before+5000)
	second := r.claimOne()
	r.settle(second, exitOutcome(0))
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove}))
	r.checkBytes("after removing one of two jobs", r.bytesHeld(1), 20_000, 1)
	n, err := r.s.Purge(r.Context(), store.EndedFilter{States: []queue.State{queue.Completed}, Cutoff: r.s.Now() + 1}, 10,
		nil)
	r.must(err)
	checkEqual(r, "purged", n, 1)
	checkEqual(r, "bytes after all jobs were removed", r.bytesHeld(1), int64(0))
}

func byteQuotaRejectsJobs(r *rig) {
	const limit = 50_000
	full := func(subject string, err error) {
		r.Helper()
		r.wantCode(subject, err, queue.CodeQueueFull)
		var refusal *queue.Error
		if !errors.As(err, &refusal) || refusal.Field != "max_bytes_per_user" ||
			!strings.Contains(refusal.Message, "of 50000 bytes") {
			r.Errorf("%s: %v does not name the setting and how many bytes it allows", subject, err)
		}
	}
	r.must(r.enqueueLarge(1, limit, draftWithInput(1, 20_000), draftWithInput(1, 20_000)))
	r.checkUnchanged(func() { full("a third job", r.enqueueLarge(1, limit, draftWithInput(1, 20_000))) })
	// The bytes of user 1 do not count toward the limit of user 2.
	r.must(r.enqueueLarge(2, limit, draftWithInput(2, 20_000)))
	first := r.claimOne()
	r.exchange(store.Report{Releases: []queue.Lease{first.Lease()}})
	grow := func(n int) error {
		return r.s.Change(r.Context(), first.Seq, store.Change{Verb: queue.VerbEdit, UID: 1, MaxBytesPerUser: limit,
			Edit: func(j *queue.Job) error {
				j.Stdin = strings.Repeat("y", n)
				return nil
			}})
	}
	r.checkUnchanged(func() { full("an edit", grow(60_000)) })
	r.must(grow(100))
	r.checkBytes("after a smaller edit", r.bytesHeld(1), 20_100, 2)
	r.must(r.enqueueLarge(1, limit, draftWithInput(1, 20_000)))
	r.must(r.s.Change(r.Context(), first.Seq, store.Change{Verb: queue.VerbCancel, UID: 1}))
	full("ended jobs still count", r.enqueueLarge(1, limit, draftWithInput(1, 20_000)))
	r.must(r.enqueueLarge(1, 0, draftWithInput(1, 20_000))) // 0 means unlimited
}

func trimUserDataRemovesOutputsOfUser(r *rig) {
	ended := func(uid, bytes int) queue.Job {
		r.must(r.enqueueLarge(uid, 0, draft(withUID(uid))))
		j := r.claimOne()
		e := r.settlement(j, exitOutcome(0))
		e.Attempt.Output = make([]byte, bytes)
		r.exchange(store.Report{Settlements: []store.Settlement{e}})
		r.advance(time.Second)
		return j
	}
	other, old, young := ended(2, 9000), ended(1, 4000), ended(1, 3000)
	before := r.bytesHeld(1)
	checkEqual(r, "removable bytes", r.removableBytes(1), int64(7000))
	overLimit := []store.UserBytes{{UID: 2, Bytes: r.bytesHeld(2)}, {UID: 1, Bytes: before}}
	checkEqual(r, "users above the limit", r.s.UsersOverBytes(before), overLimit[:1])
	checkEqual(r, "users above a lower limit, most bytes first", r.s.UsersOverBytes(1000), overLimit)
	r.trimUser(1, before-1)
	checkEqual(r, "bytes after trimming", r.bytesHeld(1), before-4000)
	var remaining []int64
	for _, j := range []queue.Job{other, old, young} {
		a, err := r.s.Attempt(r.Context(), j.Seq, 1)
		r.must(err)
		remaining = append(remaining, a.OutputBytes)
	}
	checkEqual(r, "outputs", remaining, []int64{9000, queue.OutputOverQuota, 3000})
}

// removableBytes returns how many bytes of inputs and outputs the store could remove to make room for a user.
func (r *rig) removableBytes(uid int) int64 {
	r.Helper()
	n, err := r.s.RemovableBytes(r.Context(), uid, math.MaxInt64)
	r.must(err)
	return n
}

// trimUser removes inputs and outputs of a user's jobs. It stops when the jobs use at most keepBytes bytes, or
// when no more can be removed.
func (r *rig) trimUser(uid int, keepBytes int64) {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.s.TrimUserData(r.Context(), uid, keepBytes)
		r.must(err)
	}
}

// storeEndedJob stores the job j, claims it and ends it so that it gets the given state.
func (r *rig) storeEndedJob(j queue.Job, state queue.State) queue.Job {
	r.Helper()
	r.must(r.enqueueLarge(j.UID, 0, j))
	got := r.claimOne()
	e := r.settlement(got, exitOutcome(0))
	e.Decision.State = state
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	r.advance(time.Second)
	return r.getJob(got.ID)
}

// TrimUserData removes the inputs of completed and cancelled jobs, and keeps the jobs.
func trimUserDataRemovesInputs(r *rig) {
	const kept = store.MaxKeptInputBytes / 2
	env := draft(withUID(1), func(j *queue.Job) { j.Env = []string{"A=" + strings.Repeat("x", 8000)} })
	both := draftWithInput(1, 9000)
	both.Env = []string{"A=1"}
	first, second, small := r.storeEndedJob(draftWithInput(1, 7000), queue.Completed),
		r.storeEndedJob(env, queue.Completed),
		r.storeEndedJob(draftWithInput(1, kept), queue.Completed)
	dead := r.storeEndedJob(draftWithInput(1, 6000), queue.Dead)
	r.must(r.enqueueLarge(1, 0, both))
	cancelled := r.claimOne()
	r.exchange(store.Report{Releases: []queue.Lease{cancelled.Lease()}})
	r.must(r.s.Change(r.Context(), cancelled.Seq, store.Change{Verb: queue.VerbCancel, UID: 1}))
	other := r.storeEndedJob(draftWithInput(2, 5000), queue.Completed)
	r.must(r.enqueueLarge(1, 0, draftWithInput(1, 5000)))
	waiting := r.listAll(store.Filter{States: []queue.State{queue.Pending}})[0]
	shows := func(subject string, want map[int64]queue.InputParts) {
		r.Helper()
		got := map[int64]queue.InputParts{}
		for _, j := range r.listAll(store.Filter{}) {
			complete := r.getJob(j.ID)
			checkEqual(r, subject+": parts in a list", j.InputRemoved, complete.InputRemoved)
			if j.InputRemoved != 0 {
				got[j.Seq] = j.InputRemoved
				checkEqual(r, subject+": input that was removed", store.InputSize(&complete.Execution), 0)
			}
		}
		checkEqual(r, subject, got, want)
	}
	before, others := r.bytesHeld(1), r.bytesHeld(2)
	r.trimUser(1, before)
	shows("removed inputs, if all fit", map[int64]queue.InputParts{})
	r.trimUser(1, before-1)
	shows("removed inputs, for one byte", map[int64]queue.InputParts{first.Seq: queue.InputStdin})
	if n := before - r.bytesHeld(1); n < 7000 || n > 7100 {
		r.Errorf("removing an input of 7000 bytes freed %d bytes", n)
	}
	now, removable := r.bytesHeld(1), r.removableBytes(1)
	r.trimUser(1, 0)
	checkEqual(r, "bytes that were removable", now-r.bytesHeld(1), removable)
	checkEqual(r, "bytes that are still removable", r.removableBytes(1), int64(0))
	shows("removed inputs, for all bytes", map[int64]queue.InputParts{
		first.Seq: queue.InputStdin, second.Seq: queue.InputEnv,
		cancelled.Seq: queue.InputEnv | queue.InputStdin})
	for _, j := range []queue.Job{small, dead, waiting, other} {
		if n := store.InputSize(new(r.getJob(j.ID).Execution)); n < kept {
			r.Errorf("job %s must keep its input, but only %d bytes are left", j.ID, n)
		}
	}
	checkEqual(r, "bytes of another user", r.bytesHeld(2), others)
	for _, j := range r.listAll(store.Filter{UID: new(1)}) {
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 1}))
	}
	checkEqual(r, "bytes after all jobs were removed", r.bytesHeld(1), int64(0))
}

func jobWithRemovedInputCannotRun(r *rig) {
	refused := func(subject string, j queue.Job, field string) {
		r.Helper()
		r.checkUnchanged(func() {
			err := r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: 1})
			r.wantCode(subject, err, queue.CodeWrongState)
			var e *queue.Error
			if !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Message, "enqueue") {
				r.Errorf("%s: %v does not name %s and the next step", subject, err, field)
			}
		})
	}
	env := draft(withUID(1), func(j *queue.Job) { j.Env = []string{"A=" + strings.Repeat("x", 8000)} })
	ran, withEnv := r.storeEndedJob(draftWithInput(1, 7000), queue.Completed), r.storeEndedJob(env, queue.Completed)
	parent := r.storeEndedJob(draft(withUID(1)), queue.Dead)
	child := draftWithInput(1, 7000)
	child.DependsOn = []queue.Dependency{{JobSeq: parent.Seq, Condition: queue.ParentCompleted}}
	r.must(r.enqueueLarge(1, 0, child))
	cancelled := r.listAll(store.Filter{States: []queue.State{queue.Cancelled}})[0]
	dead := r.storeEndedJob(draftWithInput(1, 6000), queue.Dead)
	r.trimUser(1, 0)
	refused("a job without its standard input", ran, "stdin")
	refused("a job without its environment", withEnv, "env")
	r.must(r.s.Change(r.Context(), dead.Seq, store.Change{Verb: queue.VerbRetry, UID: 1}))
	checkEqual(r, "standard input of a retried dead job", len(r.getJob(dead.ID).Stdin), 6000)
	r.must(r.s.Change(r.Context(), parent.Seq, store.Change{Verb: queue.VerbRetry, UID: 1}))
	r.promote()
	r.checkState("a dependant without its input", cancelled, queue.Cancelled, queue.ReasonDependency)
}

// Jobs of a batch count toward the byte quota even before the batch is committed.
func quotaCountsStagedBytes(r *rig) {
	stage := func(limit int64) error {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draftWithInput(1, 20_000)}, UID: 1,
			Batch: "b", MaxBytesPerUser: limit})
		return err
	}
	r.storeEndedJob(draftWithInput(2, 7000), queue.Completed)
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draftWithInput(2, 20_000)}, UID: 2,
		Batch: "b"})
	r.must(err)
	before := r.bytesHeld(2)
	r.trimUser(2, before-1)
	checkEqual(r, "TrimUserData counts staged bytes", r.bytesHeld(2) < before-7000, true)
	r.must(stage(30_000))
	r.checkBytes("staged", r.bytesHeld(1), 20_000, 1)
	old := r.storeEndedJob(draftWithInput(1, 5000), queue.Completed)
	r.trimUser(1, r.bytesHeld(1)-1)
	checkEqual(r, "the input of an ended job is removed for the batch", r.getJob(old.ID).InputRemoved, queue.InputStdin)
	r.must(r.s.Change(r.Context(), old.Seq, store.Change{Verb: queue.VerbRemove, UID: 1}))
	r.wantCode("one more staged job", stage(30_000), queue.CodeQueueFull)
	r.wantCode("one more job in the queue", r.enqueueLarge(1, 30_000, draftWithInput(1, 20_000)), queue.CodeQueueFull)
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: 1, Batch: "b"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.s.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
	}
	r.checkBytes("committed", r.bytesHeld(1), 20_000, 1)
	r.must(stage(0))
	r.must(r.s.AbortBatch(r.Context(), 1, "b"))
}

// withScheduleInput returns a function that gives the jobs of a schedule a standard input of n bytes. The
// stored schedule grows by n bytes as well.
func withScheduleInput(uid, n int) func(*store.Schedule) {
	return func(s *store.Schedule) {
		s.UID, s.Draft = uid, draftWithInput(uid, n)
		s.Spec = `{"command":"true","stdin":"` + strings.Repeat("x", n) + `"}`
	}
}

// Stored schedules count toward the byte quota of their owner.
func quotaCountsScheduleBytes(r *rig) {
	const limit = 50_000
	put := func(p store.SchedulePut) (store.Schedule, error) {
		p.MaxBytesPerUser = limit
		return r.s.PutSchedule(r.Context(), p)
	}
	first := r.putSchedule("first", withScheduleInput(1, 10_000))
	r.checkBytes("a schedule", r.bytesHeld(1), 20_000, 1)
	checkEqual(r, "users above the limit", r.s.UsersOverBytes(1000), []store.UserBytes{{UID: 1, Bytes: r.bytesHeld(1)}})
	more := first
	more.Name = "more"
	withScheduleInput(1, 20_000)(&more)
	r.checkUnchanged(func() {
		_, err := put(store.SchedulePut{Schedule: more})
		r.wantCode("a schedule beyond the limit", err, queue.CodeQueueFull)
		r.wantCode("a job beyond the limit", r.enqueueLarge(1, limit, draftWithInput(1, 30_000)), queue.CodeQueueFull)
	})
	checkEqual(r, "bytes after the rejections", r.s.UserBytes(2), int64(0))
	grown := first
	withScheduleInput(1, 20_000)(&grown)
	grown, err := put(store.SchedulePut{Schedule: grown, ReplacedGeneration: first.Generation})
	r.must(err)
	r.checkBytes("bytes after an edit to a larger schedule", r.bytesHeld(1), 40_000, 1)
	larger := grown
	withScheduleInput(1, 30_000)(&larger)
	_, err = put(store.SchedulePut{Schedule: larger, ReplacedGeneration: grown.Generation})
	r.wantCode("an edit beyond the limit", err, queue.CodeQueueFull)
	other := grown
	withScheduleInput(2, 20_000)(&other)
	other, err = put(store.SchedulePut{Schedule: other, ReplacedGeneration: grown.Generation, RequestedBy: 2})
	r.must(err)
	checkEqual(r, "bytes of the user whose schedule another user replaced", r.bytesHeld(1), int64(0))
	r.checkBytes("bytes of the other user", r.bytesHeld(2), 40_000, 1)
	r.must(r.s.RemoveSchedule(r.Context(), "first", other.Generation, 2))
	checkEqual(r, "bytes after the schedule was removed", r.bytesHeld(2), int64(0))
}

func disownMovesBytes(r *rig) {
	j := r.enqueueAs(7, "alice", func(j *queue.Job) { j.Stdin = strings.Repeat("x", 10_000) })
	r.putSchedule("nightly", withScheduleInput(7, 10_000))
	before := r.bytesHeld(7)
	r.checkBytes("a job and a schedule", before, 30_000, 2)
	r.disown(7)
	for next := time.Duration(0); next == 0; {
		var err error
		next, err = r.s.Promote(r.Context())
		r.must(err)
	}
	checkEqual(r, "bytes of the uid", r.bytesHeld(7), int64(0))
	checkEqual(r, "bytes of the former owner", r.bytesHeld(r.getJob(j.ID).UID), before)
}

// An occurrence of a schedule whose job would exceed the byte quota is recorded as refused. If FailOverQuota is
// set, the call fails instead.
func byteQuotaRefusesOccurrence(r *rig) {
	hourly := r.putSchedule("hourly", withScheduleInput(1, 10_000))
	f := store.OccurrenceRequest{
		Name: hourly.Name, Generation: hourly.Generation, ExpectedLastAt: hourly.LastAt, ExpectedBootID: hourly.BootID,
		LastAt: r.s.Now(), NextBootID: hourly.BootID,
		Occurrences:     []queue.Millis{r.s.Now()},
		CandidateID:     func(queue.Millis, int) string { return "hourly-1" },
		MaxBytesPerUser: r.bytesHeld(1) + 1000, FailOverQuota: true,
	}
	r.checkUnchanged(func() {
		_, err := r.s.RunOccurrences(r.Context(), f)
		var quotaErr *store.QuotaError
		if !errors.As(err, &quotaErr) || quotaErr.UsedBytes != r.bytesHeld(1) || quotaErr.LimitBytes != f.MaxBytesPerUser ||
			quotaErr.NeededBytes < 10_000 {
			r.Errorf("an occurrence above the quota: %+v, want an error with the bytes that it needs", err)
		}
	})
	f.FailOverQuota = false
	fired, err := r.s.RunOccurrences(r.Context(), f)
	r.must(err)
	checkEqual(r, "outcome without the option", fired.Records[0].Outcome, store.OutcomeRefused)
}
