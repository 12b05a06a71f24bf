package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var ownerTests = []contractTest{
	{name: "the first owner name of a uid is kept", run: firstOwnerNameIsKept},
	{name: "Disown moves a former owner's jobs to a negative uid", run: disownMovesJobs},
	{name: "Disown moves leased jobs when they end or are given back", run: disownMovesLeasedJobsLater},
	{name: "Disown discards batches and keys", run: disownDiscardsBatchesAndIdempotencyKeys},
	{name: "the next owner of a uid can be disowned too", run: nextOwnerCanBeDisowned},
	{name: "a disowned job runs again after an edit assigns a user", run: disownedJobRunsAfterEdit},
	{name: "output files without an attempt are deletable", run: outputsWithoutAttemptAreDeletable},
}

// enqueueAs enqueues a job of the user with the given uid and account name.
func (r *storeTest) enqueueAs(uid int, ownerName string, options ...func(*queue.Job)) queue.Job {
	r.Helper()
	d := newDraft(append([]func(*queue.Job){withUID(uid)}, options...)...)
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{d}, UID: uid,
		OwnerName: ownerName})
	r.must(err)
	return r.getJob(receipt.IDs[0])
}

// ownerNamesByUID returns the names of the current and former job owners, by uid.
func (r *storeTest) ownerNamesByUID() map[int]string {
	r.Helper()
	names, _, err := r.store.Owners(r.Context())
	r.must(err)
	return names
}

// disownJobsUntilDone calls DisownJobs repeatedly, until it has handled all jobs of the present owner of the uid.
func (r *storeTest) disownJobsUntilDone(uid int) {
	r.Helper()
	name := r.ownerNamesByUID()[uid]
	for range 1000 {
		more, err := r.store.DisownJobs(r.Context(), uid, name)
		r.must(err)
		if !more {
			return
		}
	}
	r.Fatal("Disown still has more to do after 1000 calls")
}

func firstOwnerNameIsKept(r *storeTest) {
	checkEqual(r, "owners of an empty store", len(r.ownerNamesByUID()), 0)
	r.enqueueAs(7, "alice")
	r.enqueueAs(7, "bob")
	r.enqueueAs(8, "")
	r.enqueueAs(0, "root")
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: 9,
		OwnerName: "carol", BatchName: "b"})
	r.must(err)
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(), newDraft()}, UID: 10,
		OwnerName: "dave", MaxPendingJobs: 1})
	r.checkErrorCode("an enqueue that exceeds the limit", err, queue.CodeQueueFull)
	checkEqual(r, "owners", r.ownerNamesByUID(), map[int]string{7: "alice", 0: "root", 9: "carol"})
	r.checkStoreUnchanged(func() { r.disownJobsUntilDone(8); r.disownJobsUntilDone(77) })
}

func disownMovesJobs(r *storeTest) {
	done := r.enqueueAs(7, "alice")
	r.settleJob(r.claimOne(), exitOutcome(0))
	dead := r.enqueueAs(7, "alice", withMaxAttempts(1))
	r.settleJob(r.claimOne(), exitOutcome(1))
	failed := r.enqueueAs(7, "alice")
	r.settleJob(r.claimOne(), exitOutcome(1))
	held := r.enqueueAs(7, "alice")
	r.must(r.applyVerb(held, queue.VerbHold))
	other := r.enqueueAs(8, "bob")
	ready, sleeping := r.enqueueAs(7, "alice"), r.enqueueAs(7, "alice", withDelay(time.Hour),
		withExpiry(r.store.Now()+2*3_600_000))
	r.advanceClock(time.Second)
	r.readNewEvents()
	before := map[string]queue.Job{}
	for _, j := range []queue.Job{done, dead, failed, held, ready, sleeping} {
		before[j.ID] = r.getJob(j.ID)
	}
	r.disownJobsUntilDone(7)
	var events []queue.Event
	for _, old := range []queue.Job{done, dead, failed, held, ready, sleeping} {
		want := before[old.ID]
		want.UID = -1
		if want.State.IsWaiting() && want.State != queue.Held {
			want.State, want.Reason, want.UpdatedAt = queue.Held, queue.ReasonDisowned, r.store.Now()
			events = append(events, r.expectedEvent(queue.EventHeld, want, queue.EventDetail{Reason: queue.ReasonDisowned}))
		}
		checkEqual(r, "job "+old.ID, r.getJob(old.ID), want)
	}
	checkEqual(r, "events", eventsSortedByJob(r.readNewEvents()), events)
	checkEqual(r, "owners", r.ownerNamesByUID(), map[int]string{-1: "alice", 8: "bob"})
	checkEqual(r, "jobs of the uid", r.listAllJobs(store.JobFilter{UID: new(7)}), nil)
	checkEqual(r, "jobs of the former owner", len(r.listAllJobs(store.JobFilter{UID: new(-1)})), len(before))
	r.checkJobCounts()
	r.checkStoreUnchanged(func() { r.disownJobsUntilDone(7) })
	r.checkStoreUnchanged(func() {
		more, err := r.store.DisownJobs(r.Context(), 8, "alice")
		r.must(err)
		checkEqual(r, "more to do for a uid with another owner", more, false)
	})
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7))}, UID: 7,
		OwnerName: "carol", MaxPendingJobsPerUser: 1})
	r.must(err)
	checkEqual(r, "owners", r.ownerNamesByUID(), map[int]string{-1: "alice", 8: "bob", 7: "carol"})
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{other.Seq,
		r.listAllJobs(store.JobFilter{UID: new(7)})[0].Seq})
	r.advanceAndApplyDueChanges(time.Hour)
	checkEqual(r, "claimed later", r.claimJobs(9), nil)
	r.advanceAndApplyDueChanges(time.Hour)
	checkEqual(r, "state of an expired job of a former owner", r.getJob(sleeping.ID).State, queue.Cancelled)
	for _, j := range []queue.Job{done, dead, failed, held} {
		r.must(r.applyVerb(j, queue.VerbRemove))
	}
	r.checkJobCounts()
}

// DisownJobs does not change a job that is leased during the call. It handles the job when the job's lease ends.
func disownMovesLeasedJobsLater(r *storeTest) {
	drafts := []queue.Job{}
	for range 5 {
		drafts = append(drafts, newDraft(withUID(7)))
	}
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: 7, OwnerName: "alice"})
	r.must(err)
	jobs := r.claimJobs(5)
	r.startJob(jobs[0])
	r.startJob(jobs[1])
	r.checkStoreUnchanged(func() { r.disownJobsUntilDone(7) })
	_, moving, err := r.store.Owners(r.Context())
	r.must(err)
	checkEqual(r, "uids that are being disowned", moving, []int{7})
	job := r.enqueueAs(7, "bob")
	r.advanceClock(time.Second)
	r.readNewEvents()
	ends := []store.Settlement{r.newSettlement(jobs[0], exitOutcome(0)), r.newSettlement(jobs[1], exitOutcome(1)),
		r.newSettlement(jobs[2], outcomeOfCause(queue.EndNeverStarted))}
	done := r.sendLeaseReport(store.LeaseReport{Settlements: ends, ReleasedLeases: []queue.Lease{jobs[3].Lease()},
		MaxJobsToClaim: 9})
	checkEqual(r, "claimed in the same call", seqsOf(done.ClaimedJobs), []int64{job.Seq})
	for i, want := range []queue.State{queue.Completed, queue.Held, queue.Held, queue.Held} {
		got := r.getJob(receipt.IDs[i])
		checkEqual(r, "state and uid of "+got.ID, []any{got.State, got.UID}, []any{want, -1})
	}
	r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: jobs[4].Lease(),
		JobChange: store.JobChange{Verb: queue.VerbCancel, UID: 0}}}})
	got := r.getJob(receipt.IDs[4])
	checkEqual(r, "state and uid of "+got.ID, []any{got.State, got.UID}, []any{queue.Cancelled, -1})
	checkEqual(r, "uid of the next owner's job", r.getJob(job.ID).UID, 7)
	r.checkJobCounts()
	r.applyDueChangesUntilDone()
	_, moving, err = r.store.Owners(r.Context())
	r.must(err)
	checkEqual(r, "uids that are being disowned, later", moving, nil)
	checkEqual(r, "owners", r.ownerNamesByUID(), map[int]string{-1: "alice", 7: "bob"})
	r.settleJob(done.ClaimedJobs[0], exitOutcome(1))
	r.advanceAndApplyDueChanges(2 * time.Second)
	checkEqual(r, "claimed later", seqsOf(r.claimJobs(9)), []int64{job.Seq})
}

// DisownJobs discards the uncommitted batches and idempotency keys of the former owner of the uid.
func disownDiscardsBatchesAndIdempotencyKeys(r *storeTest) {
	stage := func(batch string, set ...func(*queue.Job)) store.Receipt {
		receipt, err := r.store.StageBatch(r.Context(),
			store.EnqueueRequest{Drafts: []queue.Job{newDraft(append(set, withUID(7))...)}, UID: 7, OwnerName: "alice",
				BatchName: batch})
		r.must(err)
		return receipt
	}
	stage("open", withID("open"))
	committed := stage("committed").IDs[0]
	first, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: 7, BatchName: "committed"})
	r.must(err)
	ask := store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7))}, UID: 7, OwnerName: "alice", IdempotencyKey: "k",
		RequestChecksum: [32]byte{1}}
	_, err = r.store.Enqueue(r.Context(), ask)
	r.must(err)
	r.disownJobsUntilDone(7)
	r.applyBatchUntilDone(first)
	r.applyDueChangesUntilDone()
	got := r.getJob(committed)
	checkEqual(r, "a job of a committed batch", []any{got.State, got.UID, got.Reason},
		[]any{queue.Held, -1, queue.ReasonDisowned})
	r.enqueueAs(8, "eve", withID("open"))
	ask.OwnerName, ask.RequestChecksum = "bob", [32]byte{2}
	receipt, err := r.store.Enqueue(r.Context(), ask)
	r.must(err)
	checkEqual(r, "duplicate, with a key of the former owner", receipt.Duplicate, false)
	stage("open")
	last, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: 7, BatchName: "open", MaxPendingJobsPerUser: 9})
	r.must(err)
	r.applyBatchUntilDone(last)
	r.checkJobCounts()
	checkEqual(r, "claimed", len(r.claimJobs(9)), 3)
}

// A uid can belong to several accounts, one after another. DisownJobs handles the jobs of each former owner.
func nextOwnerCanBeDisowned(r *storeTest) {
	for n, name := range []string{"alice", "bob", "carol"} {
		j := r.enqueueAs(7, name)
		r.disownJobsUntilDone(7)
		checkEqual(r, "uid of the former owner", r.getJob(j.ID).UID, -1-n)
	}
	checkEqual(r, "owners", r.ownerNamesByUID(), map[int]string{-1: "alice", -2: "bob", -3: "carol"})
	j := r.enqueueAs(7, "dave")
	checkEqual(r, "claimed", seqsOf(r.claimJobs(9)), []int64{j.Seq})
}

func disownedJobRunsAfterEdit(r *storeTest) {
	waits, dead := r.enqueueAs(7, "alice"), r.enqueueAs(7, "alice", withMaxAttempts(1), withPriority(9))
	r.settleJob(r.claimOne(), exitOutcome(1))
	r.disownJobsUntilDone(7)
	for verb, j := range map[queue.Verb]queue.Job{queue.VerbRelease: waits, queue.VerbRetry: dead,
		queue.VerbRetryDead: dead} {
		r.checkStoreUnchanged(func() {
			e := r.checkError(string(verb), r.applyVerb(j, verb), queue.CodeWrongState, "")
			if want := fmt.Sprintf(`queuectl edit %s '{"user":"NAME"}'`, j.ID); e.Message[len(e.Message)-len(want):] != want {
				r.Errorf("%s: got message %q, want it to end with %q", verb, e.Message, want)
			}
		})
	}
	r.must(r.editJob(waits, func(j *queue.Job) error { j.RunAsUser, j.RunAsUID = "bob", new(8); return nil }))
	r.must(r.applyVerb(waits, queue.VerbRelease))
	claimed := r.claimOne()
	checkEqual(r, "seq, uid and AsUID of the claimed job", []any{claimed.Seq, claimed.UID, *claimed.RunAsUID},
		[]any{waits.Seq, -1, 8})
	r.must(r.applyVerb(dead, queue.VerbRemove))
	r.checkJobCounts()
}

func outputsWithoutAttemptAreDeletable(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft(), newDraft(), newDraft())
	jobs := r.claimJobs(4)
	name := func(j queue.Job) string { return fmt.Sprintf("%d-%d", j.Seq, j.Fence) }
	kept, inline, removed, leased := jobs[0], jobs[1], jobs[2], jobs[3]
	large := func(j queue.Job) store.Settlement {
		e := r.newSettlement(j, exitOutcome(0))
		e.Attempt.OutputFileRef, e.Attempt.OutputBytes = name(j), 1<<20
		return e
	}
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{large(kept), r.newSettlement(inline,
		exitOutcome(0)),
		large(removed)}})
	r.must(r.applyVerb(removed, queue.VerbRemove))
	unknown, stale := "99-1", fmt.Sprintf("%d-%d", leased.Seq, leased.Fence+1)
	ask := []string{name(kept), unknown, name(inline), name(removed), name(leased), stale, unknown, "", "x", "1-", "-1",
		"1-2-3", "../../etc/passwd", "01-1"}
	unowned := func(refs []string, want ...string) {
		r.Helper()
		got, err := r.store.MarkUnownedOutputs(r.Context(), refs)
		r.must(err)
		checkEqual(r, "unowned", got, want)
	}
	unowned(nil)
	unowned(ask, unknown, name(inline), stale)
	unowned(ask) // this reports nothing, because the first call has already marked the files as deletable
	garbage, err := r.store.DeletableOutputs(r.Context(), 9)
	r.must(err)
	slices.Sort(garbage)
	want := []string{unknown, name(inline), stale, name(removed)}
	slices.Sort(want)
	checkEqual(r, "deletable files", garbage, want)
	r.must(r.store.ForgetDeletedOutputs(r.Context(), garbage))
	unowned([]string{stale}, stale)
	many := make([]string, 1200)
	for i := range many {
		many[i] = fmt.Sprintf("%d-7", 1000+i)
	}
	unowned(many, many...)
}

func disownPausesSchedules(r *storeTest) {
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID,
		OwnerName: "ann"})
	r.must(err)
	s := r.putSchedule("nightly")
	r.putSchedule("other", func(s *store.Schedule) { s.OwnerUID = 7 })
	for more := true; more; {
		more, err = r.store.DisownJobs(context.WithoutCancel(r.Context()), testUID, "ann")
		r.must(err)
	}
	got, _ := r.getSchedule("nightly")
	if got.OwnerUID >= 0 || got.PausedAt == 0 || got.NextDueAt != 0 ||
		got.PauseOrDamageNote != store.DisownedScheduleNote {
		r.Errorf("got schedule %+v", got)
	}
	r.advanceClock(time.Minute)
	f := occurrencesAt(s, s.NextOccurrenceAt)
	checkEqual(r, "an occurrence of a former owner's schedule", r.runOccurrences(f), store.OccurrenceResult{})
	f.RequestedByUID = new(int)
	checkEqual(r, "an occurrence that a user requests", r.runOccurrences(f), store.OccurrenceResult{})
	checkEqual(r, "an occurrence of another user's schedule", r.runNextOccurrence("other").Records[0].Outcome,
		store.OccurrenceEnqueued)
}
