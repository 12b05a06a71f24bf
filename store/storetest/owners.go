package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var ownerPromises = []promise{
	{name: "the first owner name of a uid is kept", check: firstOwnerNameIsKept},
	{name: "Disown moves a former owner's jobs to a negative uid", check: disownMovesJobs},
	{name: "Disown moves leased jobs when they end or are given back", check: disownMovesLeasedJobsLater},
	{name: "Disown discards batches and keys", check: disownDiscardsBatchesAndKeys},
	{name: "the next owner of a uid can be disowned too", check: nextOwnerCanBeDisowned},
	{name: "a disowned job runs again after an edit assigns a user", check: disownedJobRunsAfterEdit},
	{name: "output files without an attempt are deletable", check: filesWithoutAttemptAreDeletable},
}

// enqueueAs enqueues a job of the user with the given uid and account name.
func (r *rig) enqueueAs(uid int, name string, set ...func(*queue.Job)) queue.Job {
	r.Helper()
	d := draft(append([]func(*queue.Job){withUID(uid)}, set...)...)
	receipt, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{d}, UID: uid, Owner: name})
	r.must(err)
	return r.getJob(receipt.IDs[0])
}

// owners returns the names of the current and former job owners, by uid.
func (r *rig) owners() map[int]string {
	r.Helper()
	names, _, err := r.s.Owners(r.Context())
	r.must(err)
	return names
}

// disown calls Disown repeatedly until all jobs of the uid's current owner are handled.
func (r *rig) disown(uid int) {
	r.Helper()
	name := r.owners()[uid]
	for range 1000 {
		more, err := r.s.Disown(r.Context(), uid, name)
		r.must(err)
		if !more {
			return
		}
	}
	r.Fatal("Disown still has more to do after 1000 calls")
}

func firstOwnerNameIsKept(r *rig) {
	checkEqual(r, "owners of an empty store", len(r.owners()), 0)
	r.enqueueAs(7, "alice")
	r.enqueueAs(7, "bob")
	r.enqueueAs(8, "")
	r.enqueueAs(0, "root")
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: 9, Owner: "carol", Batch: "b"})
	r.must(err)
	_, err = r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(), draft()}, UID: 10, Owner: "dave",
		MaxPending: 1})
	r.wantCode("an enqueue that exceeds the limit", err, queue.CodeQueueFull)
	checkEqual(r, "owners", r.owners(), map[int]string{7: "alice", 0: "root", 9: "carol"})
	r.checkUnchanged(func() { r.disown(8); r.disown(77) })
}

func disownMovesJobs(r *rig) {
	done := r.enqueueAs(7, "alice")
	r.settle(r.claimOne(), exitOutcome(0))
	dead := r.enqueueAs(7, "alice", withMaxAttempts(1))
	r.settle(r.claimOne(), exitOutcome(1))
	failed := r.enqueueAs(7, "alice")
	r.settle(r.claimOne(), exitOutcome(1))
	held := r.enqueueAs(7, "alice")
	r.must(r.change(held, queue.VerbHold))
	other := r.enqueueAs(8, "bob")
	ready, sleeping := r.enqueueAs(7, "alice"), r.enqueueAs(7, "alice", withDelay(time.Hour),
		withExpiry(r.s.Now()+2*3_600_000))
	r.advance(time.Second)
	r.newEvents()
	before := map[string]queue.Job{}
	for _, j := range []queue.Job{done, dead, failed, held, ready, sleeping} {
		before[j.ID] = r.getJob(j.ID)
	}
	r.disown(7)
	var events []queue.Event
	for _, old := range []queue.Job{done, dead, failed, held, ready, sleeping} {
		want := before[old.ID]
		want.UID = -1
		if want.State.Waiting() && want.State != queue.Held {
			want.State, want.Reason, want.UpdatedAt = queue.Held, queue.ReasonDisowned, r.s.Now()
			events = append(events, r.event(queue.EventHeld, want, queue.EventDetail{Reason: queue.ReasonDisowned}))
		}
		checkEqual(r, "job "+old.ID, r.getJob(old.ID), want)
	}
	checkEqual(r, "events", sortedByJob(r.newEvents()), events)
	checkEqual(r, "owners", r.owners(), map[int]string{-1: "alice", 8: "bob"})
	checkEqual(r, "jobs of the uid", r.listAll(store.Filter{UID: new(7)}), nil)
	checkEqual(r, "jobs of the former owner", len(r.listAll(store.Filter{UID: new(-1)})), len(before))
	r.checkCounts()
	r.checkUnchanged(func() { r.disown(7) })
	r.checkUnchanged(func() {
		more, err := r.s.Disown(r.Context(), 8, "alice")
		r.must(err)
		checkEqual(r, "more to do for a uid with another owner", more, false)
	})
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withUID(7))}, UID: 7, Owner: "carol",
		MaxPendingPerUser: 1})
	r.must(err)
	checkEqual(r, "owners", r.owners(), map[int]string{-1: "alice", 8: "bob", 7: "carol"})
	checkEqual(r, "claimed", seqs(r.claim(9)), []int64{other.Seq, r.listAll(store.Filter{UID: new(7)})[0].Seq})
	r.advanceAndPromote(time.Hour)
	checkEqual(r, "claimed later", r.claim(9), nil)
	r.advanceAndPromote(time.Hour)
	checkEqual(r, "state of an expired job of a former owner", r.getJob(sleeping.ID).State, queue.Cancelled)
	for _, j := range []queue.Job{done, dead, failed, held} {
		r.must(r.change(j, queue.VerbRemove))
	}
	r.checkCounts()
}

// If a job is leased while Disown is called, Disown handles it only when it ends or is given back.
func disownMovesLeasedJobsLater(r *rig) {
	drafts := []queue.Job{}
	for range 5 {
		drafts = append(drafts, draft(withUID(7)))
	}
	receipt, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: 7, Owner: "alice"})
	r.must(err)
	jobs := r.claim(5)
	r.startJob(jobs[0])
	r.startJob(jobs[1])
	r.checkUnchanged(func() { r.disown(7) })
	_, moving, err := r.s.Owners(r.Context())
	r.must(err)
	checkEqual(r, "uids that are being disowned", moving, []int{7})
	job := r.enqueueAs(7, "bob")
	r.advance(time.Second)
	r.newEvents()
	ends := []store.Settlement{r.settlement(jobs[0], exitOutcome(0)), r.settlement(jobs[1], exitOutcome(1)),
		r.settlement(jobs[2], outcomeOfCause(queue.EndNeverStarted))}
	done := r.exchange(store.Report{Settlements: ends, Releases: []queue.Lease{jobs[3].Lease()}, WantedJobs: 9})
	checkEqual(r, "claimed in the same call", seqs(done.Jobs), []int64{job.Seq})
	for i, want := range []queue.State{queue.Completed, queue.Held, queue.Held, queue.Held} {
		got := r.getJob(receipt.IDs[i])
		checkEqual(r, "state and uid of "+got.ID, []any{got.State, got.UID}, []any{want, -1})
	}
	r.exchange(store.Report{Changes: []store.LeasedChange{{Lease: jobs[4].Lease(),
		Change: store.Change{Verb: queue.VerbCancel, UID: 0}}}})
	got := r.getJob(receipt.IDs[4])
	checkEqual(r, "state and uid of "+got.ID, []any{got.State, got.UID}, []any{queue.Cancelled, -1})
	checkEqual(r, "uid of the next owner's job", r.getJob(job.ID).UID, 7)
	r.checkCounts()
	r.promote()
	_, moving, err = r.s.Owners(r.Context())
	r.must(err)
	checkEqual(r, "uids that are being disowned, later", moving, nil)
	checkEqual(r, "owners", r.owners(), map[int]string{-1: "alice", 7: "bob"})
	r.settle(done.Jobs[0], exitOutcome(1))
	r.advanceAndPromote(2 * time.Second)
	checkEqual(r, "claimed later", seqs(r.claim(9)), []int64{job.Seq})
}

// Disown discards the former owner's uncommitted batches and idempotency keys.
func disownDiscardsBatchesAndKeys(r *rig) {
	stage := func(batch string, set ...func(*queue.Job)) store.Receipt {
		receipt, err := r.s.StageBatch(r.Context(),
			store.Request{Drafts: []queue.Job{draft(append(set, withUID(7))...)}, UID: 7, Owner: "alice", Batch: batch})
		r.must(err)
		return receipt
	}
	stage("open", withID("open"))
	committed := stage("committed").IDs[0]
	first, err := r.s.Enqueue(r.Context(), store.Request{UID: 7, Batch: "committed"})
	r.must(err)
	ask := store.Request{Drafts: []queue.Job{draft(withUID(7))}, UID: 7, Owner: "alice", IdempotencyKey: "k",
		Checksum: [32]byte{1}}
	_, err = r.s.Enqueue(r.Context(), ask)
	r.must(err)
	r.disown(7)
	r.applyBatch(first)
	r.promote()
	got := r.getJob(committed)
	checkEqual(r, "a job of a committed batch", []any{got.State, got.UID, got.Reason},
		[]any{queue.Held, -1, queue.ReasonDisowned})
	r.enqueueAs(8, "eve", withID("open"))
	ask.Owner, ask.Checksum = "bob", [32]byte{2}
	receipt, err := r.s.Enqueue(r.Context(), ask)
	r.must(err)
	checkEqual(r, "duplicate, with a key of the former owner", receipt.Duplicate, false)
	stage("open")
	last, err := r.s.Enqueue(r.Context(), store.Request{UID: 7, Batch: "open", MaxPendingPerUser: 9})
	r.must(err)
	r.applyBatch(last)
	r.checkCounts()
	checkEqual(r, "claimed", len(r.claim(9)), 3)
}

// After a uid has got a new owner, this owner can be disowned too.
func nextOwnerCanBeDisowned(r *rig) {
	for n, name := range []string{"alice", "bob", "carol"} {
		j := r.enqueueAs(7, name)
		r.disown(7)
		checkEqual(r, "uid of the former owner", r.getJob(j.ID).UID, -1-n)
	}
	checkEqual(r, "owners", r.owners(), map[int]string{-1: "alice", -2: "bob", -3: "carol"})
	j := r.enqueueAs(7, "dave")
	checkEqual(r, "claimed", seqs(r.claim(9)), []int64{j.Seq})
}

func disownedJobRunsAfterEdit(r *rig) {
	waits, dead := r.enqueueAs(7, "alice"), r.enqueueAs(7, "alice", withMaxAttempts(1), withPriority(9))
	r.settle(r.claimOne(), exitOutcome(1))
	r.disown(7)
	for verb, j := range map[queue.Verb]queue.Job{queue.VerbRelease: waits, queue.VerbRetry: dead,
		queue.VerbRetryDead: dead} {
		r.checkUnchanged(func() {
			e := r.wantError(string(verb), r.change(j, verb), queue.CodeWrongState, "")
			if want := fmt.Sprintf(`queuectl edit %s '{"user":"NAME"}'`, j.ID); e.Message[len(e.Message)-len(want):] != want {
				r.Errorf("%s: got message %q, want it to end with %q", verb, e.Message, want)
			}
		})
	}
	r.must(r.edit(waits, func(j *queue.Job) error { j.User, j.AsUID = "bob", new(8); return nil }))
	r.must(r.change(waits, queue.VerbRelease))
	claimed := r.claimOne()
	checkEqual(r, "seq, uid and AsUID of the claimed job", []any{claimed.Seq, claimed.UID, *claimed.AsUID},
		[]any{waits.Seq, -1, 8})
	r.must(r.change(dead, queue.VerbRemove))
	r.checkCounts()
}

func filesWithoutAttemptAreDeletable(r *rig) {
	r.enqueueAndGet(draft(), draft(), draft(), draft())
	jobs := r.claim(4)
	name := func(j queue.Job) string { return fmt.Sprintf("%d-%d", j.Seq, j.Fence) }
	kept, inline, removed, leased := jobs[0], jobs[1], jobs[2], jobs[3]
	large := func(j queue.Job) store.Settlement {
		e := r.settlement(j, exitOutcome(0))
		e.Attempt.OutputRef, e.Attempt.OutputBytes = name(j), 1<<20
		return e
	}
	r.exchange(store.Report{Settlements: []store.Settlement{large(kept), r.settlement(inline, exitOutcome(0)),
		large(removed)}})
	r.must(r.change(removed, queue.VerbRemove))
	unknown, stale := "99-1", fmt.Sprintf("%d-%d", leased.Seq, leased.Fence+1)
	ask := []string{name(kept), unknown, name(inline), name(removed), name(leased), stale, unknown, "", "x", "1-", "-1",
		"1-2-3", "../../etc/passwd", "01-1"}
	unowned := func(refs []string, want ...string) {
		r.Helper()
		got, err := r.s.MarkUnownedOutputs(r.Context(), refs)
		r.must(err)
		checkEqual(r, "unowned", got, want)
	}
	unowned(nil)
	unowned(ask, unknown, name(inline), stale)
	unowned(ask) // this reports nothing, because the first call has already marked the files as deletable
	garbage, err := r.s.DeletableOutputs(r.Context(), 9)
	r.must(err)
	slices.Sort(garbage)
	want := []string{unknown, name(inline), stale, name(removed)}
	slices.Sort(want)
	checkEqual(r, "deletable files", garbage, want)
	r.must(r.s.ForgetDeletedOutputs(r.Context(), garbage))
	unowned([]string{stale}, stale)
	many := make([]string, 1200)
	for i := range many {
		many[i] = fmt.Sprintf("%d-7", 1000+i)
	}
	unowned(many, many...)
}

func disownPausesSchedules(r *rig) {
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: testUID, Owner: "ann"})
	r.must(err)
	s := r.putSchedule("nightly")
	r.putSchedule("other", func(s *store.Schedule) { s.UID = 7 })
	for more := true; more; {
		more, err = r.s.Disown(context.WithoutCancel(r.Context()), testUID, "ann")
		r.must(err)
	}
	got, _ := r.getSchedule("nightly")
	if got.UID >= 0 || got.PausedAt == 0 || got.DueAt != 0 || got.Note != store.DisownedNote {
		r.Errorf("got schedule %+v", got)
	}
	r.advance(time.Minute)
	f := occurrencesAt(s, s.NextAt)
	checkEqual(r, "an occurrence of a former owner's schedule", r.runOccurrences(f), store.OccurrenceResult{})
	f.RequestedBy = new(int)
	checkEqual(r, "an occurrence that a user requests", r.runOccurrences(f), store.OccurrenceResult{})
	checkEqual(r, "an occurrence of another user's schedule", r.runNextOccurrence("other").Records[0].Outcome,
		store.OutcomeEnqueued)
}
