package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var verbPromises = []promise{
	{name: "cancel takes effect immediately on a waiting job", check: cancelTakesEffectImmediately},
	{name: "cancel rejects leased and ended jobs", check: cancelRejectsLeasedAndEndedJobs},
	{name: "retry makes an ended or failed job pending again", check: retryMakesJobPending},
	{name: "a retried job is the last one of its priority", check: retriedJobIsLast},
	{name: "retry rejects jobs in other states", check: retryRejectsOtherStates},
	{name: "retry can replace the timeout", check: retryReplacesTimeout},
	{name: "retry removes the expiry of an expired job", check: retryRemovesExpiry},
	{name: "a held job does not run until it is released", check: heldJobRunsOnlyAfterRelease},
	{name: "a held job that is not due stays not due when it is released", check: releasedJobStaysNotDue},
	{name: "a change applies only in the states that it names", check: changeAppliesOnlyInNamedStates},
	{name: "a released job has at least one attempt left", check: releaseLeavesOneAttempt},
	{name: "hold, release and edit reject leased and ended jobs", check: holdAndEditRejectLeasedAndEndedJobs},
	{name: "an edit changes the settings and keeps the waiting time", check: editKeepsWaitingTime},
	{name: "an edit can change when a job is due", check: editChangesDueTime},
	{name: "a rejected edit changes nothing", check: rejectedEditChangesNothing},
	{name: "a change of a reserved job applies when the job is given back", check: changeOfReservedJobApplies},
	{name: "remove deletes a job and its history", check: removeDeletesHistory},
	{name: "remove deletes a long history", check: removeDeletesLongHistory},
	{name: "remove rejects leased jobs", check: removeRejectsLeasedJobs},
	{name: "unknown seqs and ids return ErrNotFound", check: unknownJobsAreNotFound},
	{name: "actions of users are recorded with their uid", check: userActionsAreAudited},
}

// newJobInState returns a new job in state s. It claims the first job in the queue, so call it only
// while no other job is ready.
func (r *rig) newJobInState(s queue.State) queue.Job {
	r.Helper()
	switch s {
	case queue.Pending:
		return r.enqueueOne()
	case queue.Held:
		return r.runJob(outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold))
	case queue.Failed:
		return r.runJob(exitOutcome(3))
	case queue.Processing:
		r.enqueueOne()
		return r.startJob(r.claimOne())
	case queue.Completed:
		return r.runJob(exitOutcome(0))
	case queue.Dead:
		return r.runJob(exitOutcome(3), withMaxAttempts(1))
	case queue.Cancelled:
		return r.runJob(outcomeOfCause(queue.EndKilled))
	}
	panic("storetest: cannot create a job in state " + s.String())
}

// wantWrongState checks that err refuses a request because of the state of job j, and that it
// names the job and the state.
func (r *rig) wantWrongState(subject string, err error, j queue.Job) {
	r.Helper()
	e := r.wantError(subject, err, queue.CodeWrongState, "")
	if !strings.Contains(e.Message, j.ID) || !strings.Contains(e.Message, j.State.String()) {
		r.Errorf("%s: got message %q, want it to name job %s and state %s", subject, e.Message, j.ID, j.State)
	}
}

func cancelTakesEffectImmediately(r *rig) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Pending} {
		j := r.newJobInState(s)
		r.advance(time.Second)
		r.newEvents()
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: 7}))
		want := j
		want.State, want.EndedAt, want.UpdatedAt = queue.Cancelled, r.s.Now(), r.s.Now()
		got := r.getJob(j.ID)
		got.Reason, want.Reason = "", "" // stores may choose different reasons
		checkEqual(r, s.String()+" job after cancel", got, want)
		checkEqual(r, "events", r.newEvents(),
			[]queue.Event{r.event(queue.EventCancelled, want, queue.EventDetail{UID: new(7)})})
		r.checkCounts()
		r.checkUnchanged(func() { r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: 8})) })
	}
	r.advance(time.Hour)
	r.promote()
	checkEqual(r, "jobs claimed after all were cancelled", r.claim(10), nil)
}

func cancelRejectsLeasedAndEndedJobs(r *rig) {
	for _, s := range []queue.State{queue.Completed, queue.Dead} {
		j := r.newJobInState(s)
		r.checkUnchanged(func() {
			r.wantWrongState("cancel", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: testUID}), j)
		})
	}
	r.enqueueOne()
	j := r.claimOne()
	r.checkUnchanged(func() {
		r.wantErrLeased("reserved", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: testUID}))
	})
	r.startJob(j)
	r.checkUnchanged(func() {
		r.wantErrLeased("processing", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: testUID}))
	})
}

func retryMakesJobPending(r *rig) {
	for _, s := range []queue.State{queue.Failed, queue.Completed, queue.Dead, queue.Cancelled} {
		j := r.newJobInState(s)
		history, err := r.s.History(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.must(err)
		r.advance(time.Second)
		r.newEvents()
		verb := queue.VerbRetry
		if s == queue.Dead {
			verb = queue.VerbRetryDead
		}
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: verb, UID: 7}))
		now := r.s.Now()
		want := j
		want.State, want.Reason, want.Error, want.ExitCode, want.Signal, want.Attempts = queue.Pending, "", "", -1, 0, 0
		want.DueAt, want.AgingSince, want.UpdatedAt, want.EndedAt, want.ArrivalNumber = now, now, now, 0,
			r.s.Counts().EnqueuedTotal
		got := r.getJob(j.ID)
		checkEqual(r, s.String()+" job after retry", got, want)
		checkEqual(r, "events", r.newEvents(),
			[]queue.Event{r.event(queue.EventRetried, want, queue.EventDetail{UID: new(7)})})
		kept, err := r.s.History(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.must(err)
		checkEqual(r, "history after retry", kept, history)
		r.checkCounts()
		r.checkUnchanged(func() { r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: 7})) })

		claimed := r.claimOne()
		checkEqual(r, "claimed again", claimed, r.asClaimed([]queue.Job{claimed}, want)[0])
		after := r.settle(claimed, exitOutcome(0))
		checkEqual(r, "runs and attempts of the revived job", []int{after.StartedAttempts, after.Attempts},
			[]int{j.StartedAttempts + 1, 1})
	}
}

// A retried job starts after all other waiting jobs of its priority.
func retriedJobIsLast(r *rig) {
	old := r.runJob(exitOutcome(3), withMaxAttempts(1))
	first := r.enqueueOne()
	r.advance(time.Second)
	second := r.enqueueOne()
	r.advance(time.Second)
	r.must(r.s.Change(r.Context(), old.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID}))
	r.advance(time.Second)
	last := r.enqueueOne()
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, old.Seq, last.Seq})
}

func retryRejectsOtherStates(r *rig) {
	for _, c := range []struct {
		state queue.State
		verb  queue.Verb
	}{
		{queue.Held, queue.VerbRetry}, {queue.Held, queue.VerbRetryDead}, {queue.Failed, queue.VerbRetryDead},
		{queue.Completed, queue.VerbRetryDead}, {queue.Cancelled, queue.VerbRetryDead}, {queue.Pending, queue.VerbRetryDead},
	} {
		j := r.newJobInState(c.state)
		r.checkUnchanged(func() {
			r.wantWrongState("retry", r.s.Change(r.Context(), j.Seq, store.Change{Verb: c.verb, UID: testUID}), j)
		})
	}
	j := r.claimOne()
	r.checkUnchanged(func() {
		r.wantErrLeased("reserved", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID}))
	})
	r.startJob(j)
	r.checkUnchanged(func() {
		r.wantErrLeased("processing", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID}))
	})
}

func retryReplacesTimeout(r *rig) {
	j := r.newJobInState(queue.Dead)
	for _, timeout := range []time.Duration{time.Minute, 0} {
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID, Timeout: &timeout}))
		checkEqual(r, "timeout", r.getJob(j.ID).Timeout, timeout)
		claimed := r.claimOne()
		checkEqual(r, "timeout as claimed", claimed.Timeout, timeout)
		r.settle(claimed, exitOutcome(0))
	}
}

func retryRemovesExpiry(r *rig) {
	j := r.enqueueOne(withExpiry(r.s.Now() + 1000))
	r.advanceAndPromote(time.Second)
	checkEqual(r, "state when expired", r.getJob(j.ID).State, queue.Cancelled)
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: testUID}))
	r.advanceAndPromote(time.Hour)
	got := r.getJob(j.ID)
	checkEqual(r, "state and expiry of the revived job", []any{got.State, got.ExpiresAt, got.Reason},
		[]any{queue.Pending, queue.Millis(0), queue.Reason("")})
	checkEqual(r, "claimed", seqs(r.claim(1)), []int64{j.Seq})
}

// change executes a verb, such as cancel or retry, on a job.
func (r *rig) change(j queue.Job, verb queue.Verb) error {
	return r.s.Change(r.Context(), j.Seq, store.Change{Verb: verb, UID: testUID})
}

func heldJobRunsOnlyAfterRelease(r *rig) {
	for _, s := range []queue.State{queue.Pending, queue.Failed} {
		j := r.newJobInState(s)
		r.newEvents()
		r.must(r.change(j, queue.VerbHold))
		want := j
		want.State, want.Reason, want.UpdatedAt = queue.Held, "", r.s.Now()
		checkEqual(r, s.String()+" job after hold", r.getJob(j.ID), want)
		checkEqual(r, "events", r.newEvents(),
			[]queue.Event{r.event(queue.EventHeld, want, queue.EventDetail{UID: new(testUID)})})
		r.checkUnchanged(func() { r.must(r.change(j, queue.VerbHold)) })
		r.advanceAndPromote(time.Hour)
		checkEqual(r, "claimed while held", r.claim(1), nil)
		r.checkCounts()

		first := r.enqueueOne()
		r.advance(time.Second)
		r.newEvents()
		r.must(r.change(j, queue.VerbRelease))
		now, arrival := r.s.Now(), r.s.Counts().EnqueuedTotal
		want.State, want.UpdatedAt, want.DueAt, want.AgingSince, want.ArrivalNumber = queue.Pending, now, now, now, arrival
		checkEqual(r, s.String()+" job after release", r.getJob(j.ID), want)
		checkEqual(r, "events", r.newEvents(), []queue.Event{r.event(queue.EventReleased, want,
			queue.EventDetail{UID: new(testUID)})})
		r.checkUnchanged(func() { r.must(r.change(j, queue.VerbRelease)) })
		r.checkCounts()
		checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, j.Seq})
	}
}

// If a job with a start time is held and released before that time, it still starts only then.
func releasedJobStaysNotDue(r *rig) {
	j := r.enqueueOne(withDelay(time.Hour))
	r.must(r.change(j, queue.VerbHold))
	r.must(r.change(j, queue.VerbRelease))
	r.advanceAndPromote(time.Hour - time.Second)
	checkEqual(r, "claimed before its time", r.claim(1), nil)
	r.advanceAndPromote(time.Second)
	checkEqual(r, "claimed at its time", seqs(r.claim(1)), []int64{j.Seq})
}

func changeAppliesOnlyInNamedStates(r *rig) {
	j := r.newJobInState(queue.Completed)
	change := store.Change{Verb: queue.VerbRetry, UID: testUID, OnlyStates: []queue.State{queue.Failed, queue.Dead}}
	r.checkUnchanged(func() {
		if err := r.s.Change(r.Context(), j.Seq, change); !errors.Is(err, store.ErrStateChanged) {
			r.Errorf("a job in another state: got %v, want %v", err, store.ErrStateChanged)
		}
	})
	change.OnlyStates = []queue.State{queue.Completed}
	r.must(r.s.Change(r.Context(), j.Seq, change))
	l := r.claimOne()
	lease := l.Lease()
	change.Verb, change.OnlyStates = queue.VerbHold, []queue.State{queue.Failed}
	if err := r.exchange(store.Report{Changes: []store.LeasedChange{{Lease: lease,
		Change: change}}}).RejectedChanges[lease]; !errors.Is(err, store.ErrStateChanged) {
		r.Errorf("a reserved job in another state: got %v, want %v", err, store.ErrStateChanged)
	}
	checkEqual(r, "claimed again", r.claimOne().Seq, j.Seq)
}

func releaseLeavesOneAttempt(r *rig) {
	j := r.runJob(outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold), withMaxAttempts(1))
	checkEqual(r, "attempts when held", r.getJob(j.ID).Attempts, 1)
	r.must(r.change(j, queue.VerbRelease))
	checkEqual(r, "attempts after release", r.getJob(j.ID).Attempts, 0)
	after := r.settle(r.claimOne(), exitOutcome(1))
	checkEqual(r, "state and attempts after its last failure", []int{int(after.State), after.Attempts},
		[]int{int(queue.Dead), 1})
}

func holdAndEditRejectLeasedAndEndedJobs(r *rig) {
	for _, s := range []queue.State{queue.Completed, queue.Dead, queue.Cancelled} {
		j := r.newJobInState(s)
		for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbRelease, queue.VerbEdit} {
			r.checkUnchanged(func() { r.wantWrongState(string(verb), r.change(j, verb), j) })
		}
	}
	r.enqueueOne()
	j := r.claimOne()
	for range 2 {
		for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbRelease, queue.VerbEdit} {
			r.checkUnchanged(func() { r.wantErrLeased("leased", r.change(j, verb)) })
		}
		r.startJob(j)
	}
}

// edit executes VerbEdit on a job. The callback changes the job.
func (r *rig) edit(j queue.Job, edit func(*queue.Job) error) error {
	return r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbEdit, UID: testUID, Edit: edit})
}

func editKeepsWaitingTime(r *rig) {
	j := r.enqueueOne()
	r.advance(time.Second)
	other := r.enqueueOne()
	r.newEvents()
	r.must(r.edit(other, func(j *queue.Job) error {
		j.Priority, j.MaxAttempts, j.Command, j.Timeout = j.Priority+1, 9, "echo edited", time.Minute
		return nil
	}))
	want := other
	want.Priority, want.MaxAttempts, want.Command, want.Timeout, want.UpdatedAt = other.Priority+1, 9, "echo edited",
		time.Minute, r.s.Now()
	checkEqual(r, "edited job", r.getJob(other.ID), want)
	checkEqual(r, "events", r.newEvents(),
		[]queue.Event{r.event(queue.EventEdited, want, queue.EventDetail{UID: new(testUID)})})
	r.must(r.edit(j, func(j *queue.Job) error { j.Timeout = time.Second; return nil }))
	checkEqual(r, "order of claims", seqs(r.claim(10)), []int64{other.Seq, j.Seq})
	held := r.newJobInState(queue.Held)
	r.must(r.edit(held, func(j *queue.Job) error { j.Priority = 9; return nil }))
	checkEqual(r, "state of an edited held job", r.getJob(held.ID).State, queue.Held)
	checkEqual(r, "claimed", r.claim(10), nil)
}

func editChangesDueTime(r *rig) {
	j := r.enqueueOne()
	r.must(r.edit(j, func(j *queue.Job) error { j.Delay = time.Minute; return nil }))
	at := r.s.Now().Add(time.Minute)
	got := r.getJob(j.ID)
	checkEqual(r, "times", []queue.Millis{got.RunAt, got.DueAt, got.AgingSince}, []queue.Millis{at, at, at})
	checkEqual(r, "claimed before its time", r.claim(1), nil)
	now := r.s.Now()
	r.must(r.edit(j, func(j *queue.Job) error { j.RunAt = now.Add(time.Second); return nil }))
	r.must(r.edit(j, func(j *queue.Job) error { j.ExpiresAt = now.Add(time.Hour); return nil }))
	r.advanceAndPromote(time.Second)
	claimed := r.claimOne()
	checkEqual(r, "claimed at its time", claimed.Seq, j.Seq)
	r.settle(claimed, exitOutcome(1))
	now = r.s.Now()
	r.must(r.edit(j, func(j *queue.Job) error { j.ExpiresAt = now + 1; return nil }))
	r.advanceAndPromote(time.Second)
	checkEqual(r, "state after its new expiry", r.getJob(j.ID).State, queue.Cancelled)
}

func rejectedEditChangesNothing(r *rig) {
	j := r.enqueueOne()
	r.checkUnchanged(func() {
		err := r.edit(j, func(j *queue.Job) error {
			j.Priority, j.Labels = 9, map[string]string{"a": "b"}
			return queue.Invalid("priority", "no")
		})
		r.wantError("edit", err, queue.CodeInvalid, "priority")
	})
}

// A change of a claimed job that has not started applies when the job is given back.
func changeOfReservedJobApplies(r *rig) {
	changeReserved := func(change store.Change) (queue.Job, error) {
		r.enqueueOne()
		j := r.claimOne()
		l := j.Lease()
		grant := r.exchange(store.Report{Changes: []store.LeasedChange{{Lease: l, Change: change}}})
		checkEqual(r, string(change.Verb)+": stale leases", grant.StaleLeases, nil)
		r.checkCounts()
		leased, err := r.leasedJobs()
		r.must(err)
		checkEqual(r, "leased", leased, nil)
		return j, grant.RejectedChanges[l]
	}
	j, err := changeReserved(store.Change{Verb: queue.VerbHold, UID: testUID})
	r.must(err)
	checkEqual(r, "state", r.getJob(j.ID).State, queue.Held)
	j, err = changeReserved(store.Change{Verb: queue.VerbRemove, UID: testUID})
	r.must(err)
	_, err = r.s.Get(r.Context(), j.ID)
	r.wantCode("get of a removed job", err, queue.CodeNotFound)
	j, err = changeReserved(store.Change{Verb: queue.VerbEdit, UID: testUID,
		Edit: func(j *queue.Job) error { j.Priority = 9; return nil }})
	r.must(err)
	checkEqual(r, "priority", r.getJob(j.ID).Priority, 9)
	claimed := r.claimOne()
	checkEqual(r, "claimed again", claimed.Seq, j.Seq)
	r.settle(claimed, exitOutcome(0))
	j, err = changeReserved(store.Change{Verb: queue.VerbRetryDead, UID: testUID})
	r.wantWrongState("a change that the state does not allow", err, j)
	checkEqual(r, "claimed after the rejection", seqs(r.claim(10)), []int64{j.Seq})
}

func removeDeletesHistory(r *rig) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Completed, queue.Dead, queue.Cancelled,
		queue.Pending} {
		j := r.newJobInState(s)
		r.newEvents()
		enqueued := r.s.Counts().EnqueuedTotal
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 7}))
		gone := j
		gone.State = 0 // events about removed jobs have no state
		checkEqual(r, "events", r.newEvents(),
			[]queue.Event{r.event(queue.EventRemoved, gone, queue.EventDetail{UID: new(7)})})
		checkEqual(r, "jobs ever enqueued", r.s.Counts().EnqueuedTotal, enqueued)
		_, err := r.s.Get(r.Context(), j.ID)
		r.wantCode("get of a removed job", err, queue.CodeNotFound)
		_, err = r.s.History(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.wantCode("history of a removed job", err, queue.CodeNotFound)
		_, err = r.s.Attempt(r.Context(), j.Seq, 0)
		r.wantCode("attempt of a removed job", err, queue.CodeNotFound)
		r.wantCode("second remove", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 7}),
			queue.CodeNotFound)
		r.checkCounts()
	}
	checkEqual(r, "list", r.listAll(store.Filter{}), nil)
	r.advanceAndPromote(time.Hour)
	checkEqual(r, "claims", r.claim(10), nil)
}

// If a job has more attempts than one transaction can delete, removing it still deletes all of them.
func removeDeletesLongHistory(r *rig) {
	const attemptCount = 450
	j := r.enqueueOne(withMaxAttempts(2 * attemptCount))
	var refs []string
	for n := range attemptCount {
		e := r.settlement(r.claimOne(), outcomeOfCause(queue.EndStopped))
		switch n % 100 {
		case 1:
			e.Attempt.Output = []byte("12345")
		case 2:
			e.Attempt.OutputRef, e.Attempt.OutputBytes = fmt.Sprintf("%d-%d", j.Seq, n), 1000
			refs = append(refs, e.Attempt.OutputRef)
		}
		r.exchange(store.Report{Settlements: []store.Settlement{e}})
	}
	r.must(r.change(j, queue.VerbHold))
	other := r.runJob(exitOutcome(0))
	checkEqual(r, "bytes of all outputs", r.s.Counts().OutputBytes, 5*1005)
	r.must(r.change(j, queue.VerbRemove))
	r.must(r.change(other, queue.VerbRemove))
	_, err := r.s.History(r.Context(), j.Seq, 0, 9)
	r.wantCode("history of a removed job", err, queue.CodeNotFound)
	for _, n := range []int{0, 2, attemptCount} {
		_, err := r.s.Attempt(r.Context(), j.Seq, n)
		r.wantCode("attempt of a removed job", err, queue.CodeNotFound)
	}
	r.enqueueOne(withID(j.ID))
	r.promote()
	checkEqual(r, "bytes of all outputs after the removal", r.s.Counts().OutputBytes, 0)
	deletable, err := r.s.DeletableOutputs(r.Context(), 100)
	r.must(err)
	slices.Sort(deletable)
	slices.Sort(refs)
	checkEqual(r, "deletable files", deletable, refs)
	r.checkCounts()
}

func removeRejectsLeasedJobs(r *rig) {
	r.enqueueOne()
	j := r.claimOne()
	r.checkUnchanged(func() {
		r.wantErrLeased("reserved", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
	})
	r.startJob(j)
	r.checkUnchanged(func() {
		r.wantErrLeased("processing", r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
	})
	r.settle(j, exitOutcome(1))
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
}

func unknownJobsAreNotFound(r *rig) {
	j := r.enqueueOne()
	r.checkUnchanged(func() {
		for _, seq := range []int64{j.Seq + 1, 0, -1, 1 << 62} {
			_, history := r.s.History(r.Context(), seq, 0, store.MaxPageRows)
			_, attempt := r.s.Attempt(r.Context(), seq, 0)
			for what, err := range map[string]error{
				"cancel":  r.s.Change(r.Context(), seq, store.Change{Verb: queue.VerbCancel, UID: testUID}),
				"retry":   r.s.Change(r.Context(), seq, store.Change{Verb: queue.VerbRetry, UID: testUID}),
				"remove":  r.s.Change(r.Context(), seq, store.Change{Verb: queue.VerbRemove, UID: testUID}),
				"history": history,
				"attempt": attempt,
			} {
				r.wantCode(fmt.Sprintf("%s of seq %d", what, seq), err, queue.CodeNotFound)
			}
		}
		for _, id := range slices.Concat([]string{"", "x", "0", "-1", "01", "99999999999999999999"},
			[]string{" " + j.ID, "0" + j.ID, "+" + j.ID}) {
			_, err := r.s.Get(r.Context(), id)
			r.wantCode(fmt.Sprintf("get of %q", id), err, queue.CodeNotFound)
		}
		for _, n := range []int{0, 1, -1} {
			_, err := r.s.Attempt(r.Context(), j.Seq, n)
			r.wantCode(fmt.Sprintf("attempt %d of a job that never ran", n), err, queue.CodeNotFound)
		}
	})
}
