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

var verbTests = []contractTest{
	{name: "cancel takes effect immediately on a waiting job", run: cancelTakesEffectImmediately},
	{name: "cancel rejects leased and ended jobs", run: cancelRejectsLeasedAndEndedJobs},
	{name: "retry makes an ended or failed job pending again", run: retryMakesJobPending},
	{name: "a retried job is the last one of its priority", run: retriedJobStartsLast},
	{name: "retry rejects jobs in other states", run: retryRejectsJobsInOtherStates},
	{name: "retry can replace the timeout", run: retryReplacesTimeout},
	{name: "retry removes the expiry of an expired job", run: retryRemovesExpiry},
	{name: "a held job does not run until it is released", run: heldJobRunsOnlyAfterRelease},
	{name: "a held job that is not due stays not due when it is released", run: releasedJobKeepsStartTime},
	{name: "a change applies only in the states that it names", run: changeAppliesOnlyInAllowedStates},
	{name: "a released job has at least one attempt left", run: releasedJobGetsOneMoreAttempt},
	{name: "hold, release and edit reject leased and ended jobs", run: holdAndEditRejectLeasedAndEndedJobs},
	{name: "an edit changes the settings and keeps the waiting time", run: editKeepsWaitingTime},
	{name: "an edit can change when a job is due", run: editChangesDueTime},
	{name: "a rejected edit changes nothing", run: rejectedEditChangesNothing},
	{name: "a change of a reserved job applies when the job is given back", run: changeOfReservedJobApplies},
	{name: "remove deletes a job and its history", run: removeDeletesHistory},
	{name: "remove deletes a long history", run: removeDeletesLongHistory},
	{name: "remove rejects leased jobs", run: removeRejectsLeasedJobs},
	{name: "unknown seqs and ids return ErrNotFound", run: unknownJobsAreNotFound},
	{name: "actions of users are recorded with their uid", run: userActionsAreAudited},
}

// newJobInState returns a new job in state s. It claims the first job in the queue, so call it only
// while no other job is ready.
func (r *storeTest) newJobInState(state queue.State) queue.Job {
	r.Helper()
	switch state {
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
		return r.runJob(outcomeOfCause(queue.EndCancelled))
	}
	panic("storetest: cannot create a job in state " + state.String())
}

// checkWrongStateError checks that err is the error for a request that the state of job j does not permit, and that the
// error names the job and its state.
func (r *storeTest) checkWrongStateError(description string, err error, j queue.Job) {
	r.Helper()
	e := r.checkError(description, err, queue.CodeWrongState, "")
	if !strings.Contains(e.Message, j.ID) || !strings.Contains(e.Message, j.State.String()) {
		r.Errorf("%s: got message %q, want it to name job %s and state %s", description, e.Message, j.ID, j.State)
	}
}

func cancelTakesEffectImmediately(r *storeTest) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Pending} {
		j := r.newJobInState(s)
		r.advanceClock(time.Second)
		r.readNewEvents()
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: 7}))
		want := j
		want.State, want.EndedAt, want.UpdatedAt = queue.Cancelled, r.store.Now(), r.store.Now()
		got := r.getJob(j.ID)
		got.Reason, want.Reason = "", "" // stores may choose different reasons
		checkEqual(r, s.String()+" job after cancel", got, want)
		checkEqual(r, "events", r.readNewEvents(),
			[]queue.Event{r.expectedEvent(queue.EventCancelled, want, queue.EventDetail{CausedByUID: new(7)})})
		r.checkJobCounts()
		r.checkStoreUnchanged(func() {
			r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: 8}))
		})
	}
	r.advanceClock(time.Hour)
	r.applyDueChangesUntilDone()
	checkEqual(r, "jobs claimed after all were cancelled", r.claimJobs(10), nil)
}

func cancelRejectsLeasedAndEndedJobs(r *storeTest) {
	for _, s := range []queue.State{queue.Completed, queue.Dead} {
		j := r.newJobInState(s)
		r.checkStoreUnchanged(func() {
			r.checkWrongStateError("cancel", r.store.ChangeJob(r.Context(), j.Seq,
				store.JobChange{Verb: queue.VerbCancel, UID: testUID}), j)
		})
	}
	r.enqueueOne()
	j := r.claimOne()
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("reserved", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	})
	r.startJob(j)
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("processing", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	})
}

func retryMakesJobPending(r *storeTest) {
	for _, s := range []queue.State{queue.Failed, queue.Completed, queue.Dead, queue.Cancelled} {
		j := r.newJobInState(s)
		history, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.must(err)
		r.advanceClock(time.Second)
		r.readNewEvents()
		verb := queue.VerbRetry
		if s == queue.Dead {
			verb = queue.VerbRetryDead
		}
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: verb, UID: 7}))
		now := r.store.Now()
		want := j
		want.State, want.Reason, want.Error, want.ExitCode, want.Signal, want.Attempts = queue.Pending, "", "", -1, 0, 0
		want.DueAt, want.AgingSince, want.UpdatedAt, want.EndedAt, want.ArrivalNumber = now, now, now, 0,
			r.store.Counts().JobsEverEnqueued
		got := r.getJob(j.ID)
		checkEqual(r, s.String()+" job after retry", got, want)
		checkEqual(r, "events", r.readNewEvents(),
			[]queue.Event{r.expectedEvent(queue.EventRetried, want, queue.EventDetail{CausedByUID: new(7)})})
		kept, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.must(err)
		checkEqual(r, "history after retry", kept, history)
		r.checkJobCounts()
		r.checkStoreUnchanged(func() {
			r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: 7}))
		})

		claimed := r.claimOne()
		checkEqual(r, "claimed again", claimed, r.expectedClaimedJobs([]queue.Job{claimed}, want)[0])
		after := r.settleJob(claimed, exitOutcome(0))
		checkEqual(r, "runs and attempts of the revived job", []int{after.StartedAttempts, after.Attempts},
			[]int{j.StartedAttempts + 1, 1})
	}
}

// A retried job starts after all other waiting jobs of its priority.
func retriedJobStartsLast(r *storeTest) {
	old := r.runJob(exitOutcome(3), withMaxAttempts(1))
	first := r.enqueueOne()
	r.advanceClock(time.Second)
	second := r.enqueueOne()
	r.advanceClock(time.Second)
	r.must(r.store.ChangeJob(r.Context(), old.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	r.advanceClock(time.Second)
	last := r.enqueueOne()
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{first.Seq, second.Seq, old.Seq, last.Seq})
}

func retryRejectsJobsInOtherStates(r *storeTest) {
	for _, c := range []struct {
		state queue.State
		verb  queue.Verb
	}{
		{queue.Held, queue.VerbRetry}, {queue.Held, queue.VerbRetryDead}, {queue.Failed, queue.VerbRetryDead},
		{queue.Completed, queue.VerbRetryDead}, {queue.Cancelled, queue.VerbRetryDead}, {queue.Pending, queue.VerbRetryDead},
	} {
		j := r.newJobInState(c.state)
		r.checkStoreUnchanged(func() {
			r.checkWrongStateError("retry", r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: c.verb, UID: testUID}),
				j)
		})
	}
	j := r.claimOne()
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("reserved", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	})
	r.startJob(j)
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("processing", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	})
}

func retryReplacesTimeout(r *storeTest) {
	j := r.newJobInState(queue.Dead)
	for _, timeout := range []time.Duration{time.Minute, 0} {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID,
			NewTimeout: &timeout}))
		checkEqual(r, "timeout", r.getJob(j.ID).Timeout, timeout)
		claimed := r.claimOne()
		checkEqual(r, "timeout as claimed", claimed.Timeout, timeout)
		r.settleJob(claimed, exitOutcome(0))
	}
}

// applyVerb executes a verb, such as cancel or retry, on a job.
func (r *storeTest) applyVerb(j queue.Job, verb queue.Verb) error {
	return r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: verb, UID: testUID})
}

func heldJobRunsOnlyAfterRelease(r *storeTest) {
	for _, s := range []queue.State{queue.Pending, queue.Failed} {
		j := r.newJobInState(s)
		r.readNewEvents()
		r.must(r.applyVerb(j, queue.VerbHold))
		want := j
		want.State, want.Reason, want.UpdatedAt = queue.Held, "", r.store.Now()
		checkEqual(r, s.String()+" job after hold", r.getJob(j.ID), want)
		checkEqual(r, "events", r.readNewEvents(),
			[]queue.Event{r.expectedEvent(queue.EventHeld, want, queue.EventDetail{CausedByUID: new(testUID)})})
		r.checkStoreUnchanged(func() { r.must(r.applyVerb(j, queue.VerbHold)) })
		r.advanceAndApplyDueChanges(time.Hour)
		checkEqual(r, "claimed while held", r.claimJobs(1), nil)
		r.checkJobCounts()

		first := r.enqueueOne()
		r.advanceClock(time.Second)
		r.readNewEvents()
		r.must(r.applyVerb(j, queue.VerbRelease))
		now, arrival := r.store.Now(), r.store.Counts().JobsEverEnqueued
		want.State, want.UpdatedAt, want.DueAt, want.AgingSince, want.ArrivalNumber = queue.Pending, now, now, now, arrival
		checkEqual(r, s.String()+" job after release", r.getJob(j.ID), want)
		checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventReleased, want,
			queue.EventDetail{CausedByUID: new(testUID)})})
		r.checkStoreUnchanged(func() { r.must(r.applyVerb(j, queue.VerbRelease)) })
		r.checkJobCounts()
		checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{first.Seq, j.Seq})
	}
}

// If a job with a start time is held and released before that time, it still starts only then.
func releasedJobKeepsStartTime(r *storeTest) {
	j := r.enqueueOne(withDelay(time.Hour))
	r.must(r.applyVerb(j, queue.VerbHold))
	r.must(r.applyVerb(j, queue.VerbRelease))
	r.advanceAndApplyDueChanges(time.Hour - time.Second)
	checkEqual(r, "claimed before its time", r.claimJobs(1), nil)
	r.advanceAndApplyDueChanges(time.Second)
	checkEqual(r, "claimed at its time", seqsOf(r.claimJobs(1)), []int64{j.Seq})
}

func changeAppliesOnlyInAllowedStates(r *storeTest) {
	j := r.newJobInState(queue.Completed)
	change := store.JobChange{Verb: queue.VerbRetry, UID: testUID, AllowedStates: []queue.State{queue.Failed, queue.Dead}}
	r.checkStoreUnchanged(func() {
		if err := r.store.ChangeJob(r.Context(), j.Seq, change); !errors.Is(err, store.ErrJobStateChanged) {
			r.Errorf("a job in another state: got %v, want %v", err, store.ErrJobStateChanged)
		}
	})
	change.AllowedStates = []queue.State{queue.Completed}
	r.must(r.store.ChangeJob(r.Context(), j.Seq, change))
	l := r.claimOne()
	lease := l.Lease()
	change.Verb, change.AllowedStates = queue.VerbHold, []queue.State{queue.Failed}
	if err := r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: lease,
		JobChange: change}}}).RejectedChanges[lease]; !errors.Is(err, store.ErrJobStateChanged) {
		r.Errorf("a reserved job in another state: got %v, want %v", err, store.ErrJobStateChanged)
	}
	checkEqual(r, "claimed again", r.claimOne().Seq, j.Seq)
}

func releasedJobGetsOneMoreAttempt(r *storeTest) {
	j := r.runJob(outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold), withMaxAttempts(1))
	checkEqual(r, "attempts when held", r.getJob(j.ID).Attempts, 1)
	r.must(r.applyVerb(j, queue.VerbRelease))
	checkEqual(r, "attempts after release", r.getJob(j.ID).Attempts, 0)
	after := r.settleJob(r.claimOne(), exitOutcome(1))
	checkEqual(r, "state and attempts after its last failure", []int{int(after.State), after.Attempts},
		[]int{int(queue.Dead), 1})
}

func holdAndEditRejectLeasedAndEndedJobs(r *storeTest) {
	for _, s := range []queue.State{queue.Completed, queue.Dead, queue.Cancelled} {
		j := r.newJobInState(s)
		for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbRelease, queue.VerbEdit} {
			r.checkStoreUnchanged(func() { r.checkWrongStateError(string(verb), r.applyVerb(j, verb), j) })
		}
	}
	r.enqueueOne()
	j := r.claimOne()
	for range 2 {
		for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbRelease, queue.VerbEdit} {
			r.checkStoreUnchanged(func() { r.checkErrLeased("leased", r.applyVerb(j, verb)) })
		}
		r.startJob(j)
	}
}

// editJob executes VerbEdit on a job. The callback changes the job.
func (r *storeTest) editJob(j queue.Job, changeJob func(*queue.Job) error) error {
	return r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbEdit, UID: testUID, EditJob: changeJob})
}

func editKeepsWaitingTime(r *storeTest) {
	j := r.enqueueOne()
	r.advanceClock(time.Second)
	other := r.enqueueOne()
	r.readNewEvents()
	r.must(r.editJob(other, func(j *queue.Job) error {
		j.Priority, j.MaxAttempts, j.Command, j.Timeout = j.Priority+1, 9, "echo edited", time.Minute
		return nil
	}))
	want := other
	want.Priority, want.MaxAttempts, want.Command, want.Timeout, want.UpdatedAt = other.Priority+1, 9, "echo edited",
		time.Minute, r.store.Now()
	checkEqual(r, "edited job", r.getJob(other.ID), want)
	checkEqual(r, "events", r.readNewEvents(),
		[]queue.Event{r.expectedEvent(queue.EventEdited, want, queue.EventDetail{CausedByUID: new(testUID)})})
	r.must(r.editJob(j, func(j *queue.Job) error { j.Timeout = time.Second; return nil }))
	checkEqual(r, "order of claims", seqsOf(r.claimJobs(10)), []int64{other.Seq, j.Seq})
	held := r.newJobInState(queue.Held)
	r.must(r.editJob(held, func(j *queue.Job) error { j.Priority = 9; return nil }))
	checkEqual(r, "state of an edited held job", r.getJob(held.ID).State, queue.Held)
	checkEqual(r, "claimed", r.claimJobs(10), nil)
}

func editChangesDueTime(r *storeTest) {
	j := r.enqueueOne()
	r.must(r.editJob(j, func(j *queue.Job) error { j.Delay = time.Minute; return nil }))
	at := r.store.Now().Add(time.Minute)
	got := r.getJob(j.ID)
	checkEqual(r, "times", []queue.UnixMillis{got.RunAt, got.DueAt, got.AgingSince}, []queue.UnixMillis{at, at, at})
	checkEqual(r, "claimed before its time", r.claimJobs(1), nil)
	now := r.store.Now()
	r.must(r.editJob(j, func(j *queue.Job) error { j.RunAt = now.Add(time.Second); return nil }))
	r.must(r.editJob(j, func(j *queue.Job) error { j.ExpiresAt = now.Add(time.Hour); return nil }))
	r.advanceAndApplyDueChanges(time.Second)
	claimed := r.claimOne()
	checkEqual(r, "claimed at its time", claimed.Seq, j.Seq)
	r.settleJob(claimed, exitOutcome(1))
	now = r.store.Now()
	r.must(r.editJob(j, func(j *queue.Job) error { j.ExpiresAt = now + 1; return nil }))
	r.advanceAndApplyDueChanges(time.Second)
	checkEqual(r, "state after its new expiry", r.getJob(j.ID).State, queue.Cancelled)
}

func rejectedEditChangesNothing(r *storeTest) {
	j := r.enqueueOne()
	r.checkStoreUnchanged(func() {
		err := r.editJob(j, func(j *queue.Job) error {
			j.Priority, j.Labels = 9, map[string]string{"a": "b"}
			return queue.InvalidFieldError("priority", "no")
		})
		r.checkError("edit", err, queue.CodeInvalid, "priority")
	})
}

// A change of a claimed job that has not started applies when the job is given back.
func changeOfReservedJobApplies(r *storeTest) {
	changeReserved := func(change store.JobChange) (queue.Job, error) {
		r.enqueueOne()
		j := r.claimOne()
		l := j.Lease()
		grant := r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: l,
			JobChange: change}}})
		checkEqual(r, string(change.Verb)+": stale leases", grant.StaleLeases, nil)
		r.checkJobCounts()
		leased, err := r.leasedJobs()
		r.must(err)
		checkEqual(r, "leased", leased, nil)
		return j, grant.RejectedChanges[l]
	}
	j, err := changeReserved(store.JobChange{Verb: queue.VerbHold, UID: testUID})
	r.must(err)
	checkEqual(r, "state", r.getJob(j.ID).State, queue.Held)
	j, err = changeReserved(store.JobChange{Verb: queue.VerbRemove, UID: testUID})
	r.must(err)
	_, err = r.store.GetJob(r.Context(), j.ID)
	r.checkErrorCode("get of a removed job", err, queue.CodeNotFound)
	j, err = changeReserved(store.JobChange{Verb: queue.VerbEdit, UID: testUID,
		EditJob: func(j *queue.Job) error { j.Priority = 9; return nil }})
	r.must(err)
	checkEqual(r, "priority", r.getJob(j.ID).Priority, 9)
	claimed := r.claimOne()
	checkEqual(r, "claimed again", claimed.Seq, j.Seq)
	r.settleJob(claimed, exitOutcome(0))
	j, err = changeReserved(store.JobChange{Verb: queue.VerbRetryDead, UID: testUID})
	r.checkWrongStateError("a change that the state does not allow", err, j)
	checkEqual(r, "claimed after the rejection", seqsOf(r.claimJobs(10)), []int64{j.Seq})
}

func removeDeletesHistory(r *storeTest) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Completed, queue.Dead, queue.Cancelled,
		queue.Pending} {
		j := r.newJobInState(s)
		r.readNewEvents()
		enqueued := r.store.Counts().JobsEverEnqueued
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: 7}))
		gone := j
		gone.State = 0 // events about removed jobs have no state
		checkEqual(r, "events", r.readNewEvents(),
			[]queue.Event{r.expectedEvent(queue.EventRemoved, gone, queue.EventDetail{CausedByUID: new(7)})})
		checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, enqueued)
		_, err := r.store.GetJob(r.Context(), j.ID)
		r.checkErrorCode("get of a removed job", err, queue.CodeNotFound)
		_, err = r.store.AttemptHistory(r.Context(), j.Seq, 0, store.MaxPageRows)
		r.checkErrorCode("history of a removed job", err, queue.CodeNotFound)
		_, err = r.store.Attempt(r.Context(), j.Seq, 0)
		r.checkErrorCode("attempt of a removed job", err, queue.CodeNotFound)
		r.checkErrorCode("second remove", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbRemove, UID: 7}),
			queue.CodeNotFound)
		r.checkJobCounts()
	}
	checkEqual(r, "list", r.listAllJobs(store.JobFilter{}), nil)
	r.advanceAndApplyDueChanges(time.Hour)
	checkEqual(r, "claims", r.claimJobs(10), nil)
}

// If a job has more attempts than one transaction can delete, removing it still deletes all of them.
func removeDeletesLongHistory(r *storeTest) {
	const attemptCount = 450
	j := r.enqueueOne(withMaxAttempts(2 * attemptCount))
	var refs []string
	for n := range attemptCount {
		e := r.newSettlement(r.claimOne(), outcomeOfCause(queue.EndStopped))
		switch n % 100 {
		case 1:
			e.Attempt.Output = []byte("12345")
		case 2:
			e.Attempt.OutputFileRef, e.Attempt.OutputBytes = fmt.Sprintf("%d-%d", j.Seq, n), 1000
			refs = append(refs, e.Attempt.OutputFileRef)
		}
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	}
	r.must(r.applyVerb(j, queue.VerbHold))
	other := r.runJob(exitOutcome(0))
	checkEqual(r, "bytes of all outputs", r.store.Counts().OutputBytes, 5*1005)
	r.must(r.applyVerb(j, queue.VerbRemove))
	r.must(r.applyVerb(other, queue.VerbRemove))
	_, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, 9)
	r.checkErrorCode("history of a removed job", err, queue.CodeNotFound)
	for _, n := range []int{0, 2, attemptCount} {
		_, err := r.store.Attempt(r.Context(), j.Seq, n)
		r.checkErrorCode("attempt of a removed job", err, queue.CodeNotFound)
	}
	r.enqueueOne(withID(j.ID))
	r.applyDueChangesUntilDone()
	checkEqual(r, "bytes of all outputs after the removal", r.store.Counts().OutputBytes, 0)
	deletable, err := r.store.DeletableOutputs(r.Context(), 100)
	r.must(err)
	slices.Sort(deletable)
	slices.Sort(refs)
	checkEqual(r, "deletable files", deletable, refs)
	r.checkJobCounts()
}

func removeRejectsLeasedJobs(r *storeTest) {
	r.enqueueOne()
	j := r.claimOne()
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("reserved", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	})
	r.startJob(j)
	r.checkStoreUnchanged(func() {
		r.checkErrLeased("processing", r.store.ChangeJob(r.Context(), j.Seq,
			store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	})
	r.settleJob(j, exitOutcome(1))
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
}

func unknownJobsAreNotFound(r *storeTest) {
	j := r.enqueueOne()
	r.checkStoreUnchanged(func() {
		for _, seq := range []int64{j.Seq + 1, 0, -1, 1 << 62} {
			_, history := r.store.AttemptHistory(r.Context(), seq, 0, store.MaxPageRows)
			_, attempt := r.store.Attempt(r.Context(), seq, 0)
			for what, err := range map[string]error{
				"cancel":  r.store.ChangeJob(r.Context(), seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}),
				"retry":   r.store.ChangeJob(r.Context(), seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}),
				"remove":  r.store.ChangeJob(r.Context(), seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}),
				"history": history,
				"attempt": attempt,
			} {
				r.checkErrorCode(fmt.Sprintf("%s of seq %d", what, seq), err, queue.CodeNotFound)
			}
		}
		for _, id := range slices.Concat([]string{"", "x", "0", "-1", "01", "99999999999999999999"},
			[]string{" " + j.ID, "0" + j.ID, "+" + j.ID}) {
			_, err := r.store.GetJob(r.Context(), id)
			r.checkErrorCode(fmt.Sprintf("get of %q", id), err, queue.CodeNotFound)
		}
		for _, n := range []int{0, 1, -1} {
			_, err := r.store.Attempt(r.Context(), j.Seq, n)
			r.checkErrorCode(fmt.Sprintf("attempt %d of a job that never ran", n), err, queue.CodeNotFound)
		}
	})
}
