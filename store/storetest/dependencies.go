package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var dependencyTests = []contractTest{
	{name: "a job is blocked until its parents have completed", run: jobIsBlockedUntilParentsComplete},
	{name: "a job can depend on other drafts of its request", run: draftsOfRequestCanBeParents},
	{name: "dependencies on ended jobs are resolved by the enqueue", run: endedParentResolvesDependencyImmediately},
	{name: "a failed dependency cancels, holds or runs the dependant", run: dependencyFailureActionIsApplied},
	{name: "cancelling a job cancels its dependants", run: cancelCascadesToDependants},
	{name: "removing a parent fails the dependency", run: removedParentFailsDependency},
	{name: "parents of a staged job can be removed", run: parentOfStagedJobMayBeRemoved},
	{name: "drafts of a batch frame can depend on each other", run: stagedJobsCanDependOnEachOther},
	{name: "a job waits for a parent that is still in a frame of a committed batch",
		run: jobWaitsForParentInCommittedBatch},
	{name: "dependencies on unknown jobs and cycles are rejected", run: invalidDependenciesAreRejected},
	{name: "a held job still waits for its parents", run: parentsDoNotReleaseHeldJob},
	{name: "a retried job waits for its unfinished parents", run: retriedJobWaitsForParents},
	{name: "a dependant starts to age when it can run", run: dependantAgesAfterParentsEnd},
	{name: "dependencies can name their parents by id", run: parentsCanBeNamedByID},
	{name: "retrying a parent revives its cancelled dependants", run: retriedParentRevivesDependants},
	{name: "an edit changes a job's dependencies", run: editChangesDependencies},
	{name: "Links returns parents and dependants", run: dependencyLinksAreListed},
	{name: "Parents returns the outcomes and results of a job's parents", run: parentOutcomesAreReturned},
	{name: "a job with many dependants can end in one call", run: manyDependantsAreResolvedInSteps},
}

// withParents returns a function that makes a job depend on the given parents, with the given condition.
func withParents(condition queue.DependencyCondition, parents ...queue.Job) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, p := range parents {
			j.DependsOn = append(j.DependsOn, queue.Dependency{ParentSeq: p.Seq, Condition: condition})
		}
	}
}

// withOnDependencyFailure returns a function that sets what the store does with a job if one of its dependencies fails.
func withOnDependencyFailure(action queue.OnDependencyFailure) func(*queue.Job) {
	return func(j *queue.Job) { j.OnDependencyFailure = action }
}

// checkJobState checks the state of a stored job and the reason for the state.
func (r *storeTest) checkJobState(description string, j queue.Job, wantState queue.State, wantReason queue.Reason) {
	r.Helper()
	if got := r.getJob(j.ID); got.State != wantState || got.Reason != wantReason {
		r.Errorf("%s: job %s is %s %q, want %s %q", description, j.ID, got.State, got.Reason, wantState, wantReason)
	}
}

// Jobs that are sent in one request for a batch can depend on each other.
func stagedJobsCanDependOnEachOther(r *storeTest) {
	stage := func(drafts ...queue.Job) (store.Receipt, error) {
		return r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID, BatchName: "b"})
	}
	dependsOnSecond := func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentDraftNumber: 2, Condition: queue.ParentCompleted}}
	}
	got, err := stage(newDraft(dependsOnSecond), newDraft())
	r.must(err)
	_, err = stage(newDraft(dependsOnSecond), newDraft(dependsOnSecond))
	r.checkError("drafts that depend on each other", err, queue.CodeInvalid, "depends_on")
	_, err = stage(newDraft(withDemands(lockDemand("k", 0))))
	r.checkError("a lock with a limit of 0", err, queue.CodeInvalid, "lock")
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b"})
	r.must(err)
	r.applyBatchUntilDone(committed)
	r.checkJobState("the parent has not ended", r.getJob(got.IDs[0]), queue.Blocked, "")
	r.settleJob(r.claimAndExpect("the parent", r.getJob(got.IDs[1]))[0], exitOutcome(0))
	r.claimAndExpect("the dependant", r.getJob(got.IDs[0]))
}

func jobIsBlockedUntilParentsComplete(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(), newDraft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	r.checkJobState("at first", child, queue.Blocked, "")
	got := r.claimAndExpect("only the parents", parents...)
	r.settleJob(got[0], exitOutcome(0))
	r.claimAndExpect("one parent has ended")
	r.settleJob(got[1], exitOutcome(1)) // the attempt will be retried, so this parent has not ended
	r.checkJobState("the other parent has failed and will be retried", child, queue.Blocked, "")
	r.advanceAndApplyDueChanges(time.Hour)
	r.applyDueChangesUntilDone()
	r.settleJob(r.claimAndExpect("the retried parent", parents[1])[0], exitOutcome(0))
	r.checkJobState("both parents have ended", child, queue.Pending, "")
	r.claimAndExpect("the dependant", child)
	r.checkJobCounts()
}

func draftsOfRequestCanBeParents(r *storeTest) {
	third := func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentDraftNumber: 2, Condition: queue.ParentCompleted},
			{ParentDraftNumber: 3, Condition: queue.ParentCompleted}}
	}
	jobs := r.enqueueAndGet(newDraft(third), newDraft(), newDraft())
	for _, j := range r.claimAndExpect("the parents", jobs[1], jobs[2]) {
		r.settleJob(j, exitOutcome(0))
	}
	r.claimAndExpect("both parents have ended", jobs[0])
}

// If a parent has already ended when a job is enqueued, the dependency is satisfied or failed immediately.
func endedParentResolvesDependencyImmediately(r *storeTest) {
	done := r.runJob(exitOutcome(0))
	dead := r.runJob(exitOutcome(1), withMaxAttempts(1))
	jobs := r.enqueueAndGet(newDraft(withParents(queue.ParentCompleted, done)),
		newDraft(withParents(queue.ParentDead, dead)), newDraft(withParents(queue.ParentEnded, done, dead)),
		newDraft(withParents(queue.ParentCompleted, done, dead)),
		newDraft(withParents(queue.ParentCompleted, dead), withOnDependencyFailure(queue.DependencyFailureHold)),
		newDraft(withParents(queue.ParentCompleted, dead), withOnDependencyFailure(queue.DependencyFailureRun)))
	r.claimAndExpect("the jobs whose dependencies are met", jobs[0], jobs[1], jobs[2], jobs[5])
	r.checkJobState("a job whose dependency failed", jobs[3], queue.Cancelled, queue.ReasonDependency)
	r.checkJobState("a job that is held if its dependency fails", jobs[4], queue.Held, queue.ReasonDependency)
	r.checkJobCounts()
}

// If a dependency fails, the dependant is cancelled, held or run, depending on its OnDependencyFailure.
func dependencyFailureActionIsApplied(r *storeTest) {
	parent := r.enqueueOne(withMaxAttempts(1))
	jobs := r.enqueueAndGet(newDraft(withParents(queue.ParentCompleted, parent)),
		newDraft(withParents(queue.ParentCompleted, parent), withOnDependencyFailure(queue.DependencyFailureHold)),
		newDraft(withParents(queue.ParentCompleted, parent), withOnDependencyFailure(queue.DependencyFailureRun)),
		newDraft(withParents(queue.ParentDead, parent)), newDraft(withParents(queue.ParentEnded, parent)))
	r.settleJob(r.claimAndExpect("the parent", parent)[0], exitOutcome(1))
	r.checkJobState("by default", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.checkJobState("a job that is held if its dependency fails", jobs[1], queue.Held, queue.ReasonDependency)
	r.claimAndExpect("the others", jobs[2], jobs[3], jobs[4])
	r.checkJobCounts()
}

// Cancelling a job cancels its dependants.
func cancelCascadesToDependants(r *storeTest) {
	first := r.enqueueOne()
	second := r.enqueueOne(withParents(queue.ParentCompleted, first))
	third := r.enqueueOne(withParents(queue.ParentCompleted, second))
	last := r.enqueueOne(withParents(queue.ParentEnded, third))
	r.must(r.applyVerb(first, queue.VerbCancel))
	r.checkJobState("its dependant", second, queue.Cancelled, queue.ReasonDependency)
	r.checkJobState("the dependant of the dependant", third, queue.Cancelled, queue.ReasonDependency)
	r.claimAndExpect("a job that depends only on the end of a cancelled job", last)
}

func removedParentFailsDependency(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(), newDraft())
	jobs := r.enqueueAndGet(newDraft(withParents(queue.ParentEnded, parents[0])),
		newDraft(withParents(queue.ParentCompleted, parents[1])))
	r.must(r.applyVerb(parents[0], queue.VerbRemove))
	r.checkJobState("its parent was removed", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.must(r.applyVerb(jobs[1], queue.VerbRemove)) // removing a job also removes its dependencies
	r.settleJob(r.claimAndExpect("the other parent", parents[1])[0], exitOutcome(0))
	r.checkJobCounts()
}

// A job can be removed even if a job of an uncommitted batch depends on it.
func parentOfStagedJobMayBeRemoved(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(), newDraft())
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{BatchName: "b", UID: testUID, Drafts: []queue.Job{
		newDraft(), newDraft(withParents(queue.ParentCompleted, parents[0])),
		newDraft(withParents(queue.ParentEnded, parents[1]), withOnDependencyFailure(queue.DependencyFailureRun))}})
	r.must(err)
	for _, p := range parents {
		r.must(r.applyVerb(p, queue.VerbRemove))
	}
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{BatchName: "b", UID: testUID})
	r.must(err)
	r.applyBatchUntilDone(committed)
	got := r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 9}).ClaimedJobs
	checkEqual(r, "claimed jobs", len(got), 2)
	checkEqual(r, "cancelled jobs", r.store.Counts().JobsByState[queue.Cancelled], int64(1))
	r.checkJobCounts()
}

// A batch of jobs can be committed but not yet moved into the queue. A job can already wait for a parent in such a
// batch. Until the batch is in the queue, an edit must not add such a job, or a job that waits for it, as a parent of
// another job: the batch's job may itself depend on the edited job.
func jobWaitsForParentInCommittedBatch(r *storeTest) {
	first := r.enqueueOne(withID("first"), withMaxAttempts(1))
	stage := func(set ...func(*queue.Job)) {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(set...)}, UID: testUID,
			BatchName: "b"})
		r.must(err)
	}
	stage()
	stage(withID("parent"), withParentIDs(queue.ParentEnded, "first"))
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b"})
	r.must(err)
	child := r.enqueueOne(withID("child"), withParentIDs(queue.ParentCompleted, "parent"))
	other := r.enqueueOne(withParentIDs(queue.ParentCompleted, "parent"),
		withOnDependencyFailure(queue.DependencyFailureRun))
	check := func(when string) {
		r.Helper()
		r.checkJobState(when, child, queue.Blocked, "")
		r.checkJobState(when, other, queue.Blocked, "")
	}
	check("before the batch is applied")
	for _, parent := range []string{"child", "parent"} {
		err = r.editJob(first, func(j *queue.Job) error {
			j.DependsOn = []queue.Dependency{{ParentID: parent, Condition: queue.ParentEnded}}
			return nil
		})
		r.checkError("an edit that adds the parent "+parent, err, queue.CodeInvalid, "depends_on")
	}
	r.applyBatchUntilDone(committed)
	r.applyDueChangesUntilDone()
	check("after the batch was applied")
	claimed := r.claimJobs(9)
	checkEqual(r, "number of claimed jobs", len(claimed), 2)
	for _, j := range claimed {
		r.settleJob(j, exitOutcome(0))
	}
	r.applyDueChangesUntilDone()
	check("before the parent has ended")
	r.settleJob(r.claimAndExpect("the parent", r.getJob("parent"))[0], exitOutcome(0))
	r.applyDueChangesUntilDone()
	r.claimAndExpect("the jobs that waited for the parent", r.getJob("child"), r.getJob(other.ID))
	r.checkJobCounts()
}

// Dependencies on unknown jobs and cycles are rejected.
func invalidDependenciesAreRejected(r *storeTest) {
	ask := func(subject string, drafts ...queue.Job) {
		r.Helper()
		r.checkStoreUnchanged(func() {
			_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID})
			r.checkErrorCode(subject, err, queue.CodeInvalid)
			if err != nil && !strings.Contains(err.Error(), "depends_on") {
				r.Errorf("%s: %v does not name the field", subject, err)
			}
		})
	}
	waitingFor := func(list ...int) queue.Job {
		return newDraft(func(j *queue.Job) {
			for _, n := range list {
				j.DependsOn = append(j.DependsOn, queue.Dependency{ParentDraftNumber: n, Condition: queue.ParentCompleted})
			}
		})
	}
	ask("an unknown job", newDraft(withParents(queue.ParentCompleted, queue.Job{Seq: 99})))
	ask("an unknown draft", waitingFor(2))
	ask("the draft itself", waitingFor(1))
	ask("a cycle", newDraft(), waitingFor(3), waitingFor(4, 1), waitingFor(2))
	ask("too many dependencies", newDraft(func(j *queue.Job) {
		j.DependsOn = make([]queue.Dependency, queue.MaxDependencies+1)
		for i := range j.DependsOn {
			j.DependsOn[i] = queue.Dependency{ParentDraftNumber: 1}
		}
	}))
}

// A user holds a job that has parents. The ends of its parents do not release the job. If a user releases the job
// before its parents have ended, it waits for them.
func parentsDoNotReleaseHeldJob(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(), newDraft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	r.must(r.applyVerb(child, queue.VerbHold))
	got := r.claimAndExpect("the parents", parents...)
	r.settleJob(got[0], exitOutcome(0))
	r.must(r.applyVerb(child, queue.VerbRelease))
	r.checkJobState("one parent is unfinished", child, queue.Blocked, "")
	r.must(r.applyVerb(child, queue.VerbHold))
	r.settleJob(got[1], exitOutcome(0))
	r.checkJobState("all parents have ended", child, queue.Held, "")
	r.must(r.applyVerb(child, queue.VerbRelease))
	r.claimAndExpect("after the release", child)
}

func retriedJobWaitsForParents(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(withMaxAttempts(1)), newDraft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	got := r.claimAndExpect("the parents", parents...)
	r.settleJob(got[0], exitOutcome(1))
	r.checkJobState("one parent is dead", child, queue.Cancelled, queue.ReasonDependency)
	r.must(r.applyVerb(child, queue.VerbRetry))
	r.checkJobState("a user retries it", child, queue.Blocked, "")
	r.settleJob(got[1], exitOutcome(0))
	r.settleJob(r.claimAndExpect("the other parent has ended", child)[0], exitOutcome(0))
	r.must(r.applyVerb(parents[0], queue.VerbRetry))
	r.applyDueChangesUntilDone()
	r.checkJobState("it has completed, and its parent is retried", child, queue.Completed, "")
	r.must(r.applyVerb(child, queue.VerbRetry))
	r.checkJobState("it is retried too", child, queue.Pending, "")
	r.claimAndExpect("parent and dependant, which do not wait for each other", parents[0], child)
	r.checkJobCounts()
}

// When a parent with many dependants ends, the store handles the dependants in several transactions, and calls of
// ApplyDueChanges continue this work. If a user retries the parent in the meantime, a dependant that is enqueued after
// the retry waits for the next end of the parent.
func manyDependantsAreResolvedInSteps(r *storeTest) {
	const dependantCount = 400
	parent := r.enqueueOne()
	drafts := make([]queue.Job, dependantCount)
	for i := range drafts {
		drafts[i] = newDraft(withParents(queue.ParentCompleted, parent))
	}
	r.enqueueAndGet(drafts...)
	r.settleJob(r.claimAndExpect("the parent", parent)[0], exitOutcome(0))
	r.must(r.applyVerb(parent, queue.VerbRetry))
	added := r.enqueueOne(withParents(queue.ParentCompleted, parent))
	for range dependantCount {
		if r.applyDueChangesUntilDone() != 0 {
			break
		}
	}
	checkEqual(r, "waiting jobs", r.store.Counts().JobsByState[queue.Pending], int64(dependantCount+1))
	r.checkJobState("it waits for the end of the new attempt", added, queue.Blocked, "")
}

// withParentIDs returns a function that makes a job depend on the jobs with the given ids.
func withParentIDs(condition queue.DependencyCondition, ids ...string) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, id := range ids {
			j.DependsOn = append(j.DependsOn, queue.Dependency{ParentID: id, Condition: condition})
		}
	}
}

func parentsCanBeNamedByID(r *storeTest) {
	parent := r.enqueueOne(withID("p"))
	hook := r.enqueueOne(withID("h"), withUID(7),
		func(j *queue.Job) { j.HookEvents = queue.HookJobFlag | queue.SettingsHookFlag })
	jobs := r.enqueueAndGet(newDraft(withID("c"), withParentIDs(queue.ParentCompleted, "b", "p")), newDraft(withID("b")))
	r.checkJobState("it waits for both parents", jobs[0], queue.Blocked, "")
	r.checkStoreUnchanged(func() {
		_, err := r.tryEnqueue(withParentIDs(queue.ParentCompleted, "unknown"))
		r.checkError("an unknown id", err, queue.CodeInvalid, "depends_on")
		_, err = r.tryEnqueue(withParentIDs(queue.ParentCompleted, "h"))
		r.checkError("another user's hook from the settings", err, queue.CodeInvalid, "depends_on")
		_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID,
			Drafts: []queue.Job{newDraft(withID("x"), withParentIDs(queue.ParentCompleted, "y")),
				newDraft(withID("y"), withParentIDs(queue.ParentCompleted, "x"))}})
		r.checkError("a cycle", err, queue.CodeInvalid, "depends_on")
	})
	stage := func(drafts ...queue.Job) error {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID, BatchName: "f"})
		return err
	}
	r.must(stage(newDraft(withID("first"))))
	r.must(stage(newDraft(withID("second"), withParentIDs(queue.ParentCompleted, "first"))))
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7),
		withParentIDs(queue.ParentCompleted, "first"))}, UID: 7, BatchName: "f"})
	r.checkError("a staged job of another user", err, queue.CodeInvalid, "depends_on")
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "f"})
	r.must(err)
	r.applyBatchUntilDone(committed)
	got := r.claimAndExpect("the jobs without parents", parent, hook, jobs[1], r.getJob("first"))
	r.settleJob(got[3], exitOutcome(0))
	r.claimAndExpect("the job of the second frame", r.getJob("second"))
}

// If a parent is retried, the dependants that were cancelled because the parent had failed wait for it again.
func retriedParentRevivesDependants(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(withMaxAttempts(1)), newDraft(withMaxAttempts(1)))
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents[0]))
	grand := r.enqueueOne(withParents(queue.ParentCompleted, child), withDelay(time.Hour))
	both := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	got := r.claimAndExpect("the parents", parents...)
	r.settleJob(got[0], exitOutcome(1))
	r.settleJob(got[1], exitOutcome(1))
	for _, j := range []queue.Job{child, grand, both} {
		r.checkJobState("its parent is dead", j, queue.Cancelled, queue.ReasonDependency)
	}
	alone := store.JobChange{Verb: queue.VerbRetry, KeepDependantsCancelled: true}
	r.must(r.store.ChangeJob(r.Context(), parents[0].Seq, alone))
	r.checkJobState("the parent was retried with KeepDependants", child, queue.Cancelled, queue.ReasonDependency)
	r.settleJob(r.claimAndExpect("the retried parent", parents[0])[0], exitOutcome(1))
	r.must(r.applyVerb(parents[0], queue.VerbRetry))
	r.applyDueChangesUntilDone()
	r.checkJobState("the parent was retried", child, queue.Blocked, "")
	r.checkJobState("the dependant of the dependant", grand, queue.Blocked, "")
	r.checkJobState("a job that depends on another dead parent too", both, queue.Cancelled, queue.ReasonDependency)
	r.settleJob(r.claimAndExpect("the parent that was retried again", parents[0])[0], exitOutcome(0))
	r.applyDueChangesUntilDone()
	r.settleJob(r.claimAndExpect("the dependant", child)[0], exitOutcome(0))
	r.must(r.applyVerb(parents[1], queue.VerbRetry))
	r.applyDueChangesUntilDone()
	r.checkJobState("the other parent was retried", both, queue.Blocked, "")
	r.settleJob(r.claimAndExpect("the other parent", parents[1])[0], exitOutcome(0))
	r.applyDueChangesUntilDone()
	r.claimAndExpect("both parents have ended", both)
	r.checkJobCounts()
}

func editChangesDependencies(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(withID("a")), newDraft(withID("b")), newDraft(withID("done")))
	got := r.claimAndExpect("all", parents...)
	r.settleJob(got[2], exitOutcome(0))
	child := r.enqueueOne(withID("c"), withDelay(time.Hour))
	to := func(j queue.Job, list ...queue.Dependency) error {
		return r.editJob(j, func(j *queue.Job) error { j.DependsOn = append([]queue.Dependency{}, list...); return nil })
	}
	completed := func(ids ...string) (list []queue.Dependency) {
		for _, id := range ids {
			list = append(list, queue.Dependency{ParentID: id, Condition: queue.ParentCompleted})
		}
		return list
	}
	r.must(to(child, completed("a", "done")...))
	r.checkJobState("an unfinished parent", child, queue.Blocked, "")
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("the job itself", to(child, completed("c")...), queue.CodeInvalid)
		r.checkErrorCode("an unknown job", to(child, completed("zzz")...), queue.CodeInvalid)
		r.checkErrorCode("a dependency that can no longer be met",
			to(child, queue.Dependency{ParentID: "done", Condition: queue.ParentDead}), queue.CodeInvalid)
	})
	grand := r.enqueueOne(withID("g"), withParentIDs(queue.ParentCompleted, "c"))
	r.checkStoreUnchanged(func() { r.checkErrorCode("a cycle", to(child, completed("g")...), queue.CodeInvalid) })
	r.must(r.editJob(grand, func(j *queue.Job) error { j.Priority = 9; return nil }))
	r.checkJobState("an edit of another field", grand, queue.Blocked, "")
	r.must(to(child, completed("b")...))
	r.settleJob(got[0], exitOutcome(1))
	r.checkJobState("the dependency was replaced", child, queue.Blocked, "")
	r.must(to(child))
	r.checkJobState("the dependencies were removed", child, queue.Pending, "")
	r.settleJob(got[1], exitOutcome(0))
	r.checkJobCounts()
}

// DependencyLinks returns parents and dependants.
func dependencyLinksAreListed(r *storeTest) {
	parents := r.enqueueAndGet(newDraft(withID("a")), newDraft(withID("b")), newDraft(withID("gone")))
	child := r.enqueueOne(withID("c"), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentID: "a", Condition: queue.ParentCompleted},
			{ParentID: "b", Condition: queue.ParentEnded}, {ParentID: "gone", Condition: queue.ParentDead}}
		j.OnDependencyFailure = queue.DependencyFailureRun
	})
	checkEqual(r, "dependencies of the job", r.getJob("c").DependsOn, []queue.Dependency{
		{ParentID: "a", ParentSeq: parents[0].Seq, Condition: queue.ParentCompleted},
		{ParentID: "b", ParentSeq: parents[1].Seq, Condition: queue.ParentEnded},
		{ParentID: "gone", ParentSeq: parents[2].Seq, Condition: queue.ParentDead}})
	r.must(r.applyVerb(parents[2], queue.VerbRemove))
	r.settleJob(r.claimAndExpect("the parents", parents[0], parents[1])[0], exitOutcome(0))
	parentLinks, childLinks, err := r.store.DependencyLinks(r.Context(), child.Seq, 9)
	r.must(err)
	checkEqual(r, "parents", parentLinks, []store.DependencyLink{
		{LinkedJobSeq: parents[1].Seq, LinkedJobID: "b", LinkedJobState: queue.Pending, Condition: queue.ParentEnded},
		{LinkedJobSeq: parents[0].Seq, LinkedJobID: "a", LinkedJobState: queue.Completed, Condition: queue.ParentCompleted,
			Status: store.Satisfied},
		{LinkedJobSeq: parents[2].Seq, Condition: queue.ParentDead, Status: store.Satisfied}})
	checkEqual(r, "dependants", childLinks, nil)
	parentLinks, childLinks, err = r.store.DependencyLinks(r.Context(), parents[1].Seq, 9)
	r.must(err)
	checkEqual(r, "parents of a job without dependencies", parentLinks, nil)
	checkEqual(r, "its dependant", childLinks, []store.DependencyLink{{LinkedJobSeq: child.Seq, LinkedJobID: "c",
		LinkedJobState: queue.Blocked, Condition: queue.ParentEnded}})
	_, _, err = r.store.DependencyLinks(r.Context(), 99, 9)
	r.checkErrorCode("links of an unknown job", err, queue.CodeNotFound)
	parentLinks, _, err = r.store.DependencyLinks(r.Context(), child.Seq, 1)
	r.must(err)
	checkEqual(r, "number of links with a limit of one", len(parentLinks), 1)
}

// Parents returns the outcomes and results of a job's parents.
func parentOutcomesAreReturned(r *storeTest) {
	first := r.enqueueOne(withID("a"), withMaxAttempts(1))
	e := r.newSettlement(r.claimOne(), exitOutcome(0))
	e.Attempt.Result = []byte(`{"x":1}`)
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	second := r.enqueueOne(withID("b"), withMaxAttempts(1), func(j *queue.Job) { j.UID = 7 })
	r.settleJob(r.claimOne(), exitOutcome(3))
	gone := r.enqueueOne(withID("c"))
	child := r.enqueueOne(withParents(queue.ParentEnded, second, first, gone))
	r.must(r.applyVerb(r.getJob("c"), queue.VerbCancel))
	r.must(r.applyVerb(r.getJob("c"), queue.VerbRemove))
	if got := r.getJob(child.ID); got.ParentCount != 3 {
		r.Errorf("the job has %d parents, want 3", got.ParentCount)
	}
	got, err := r.store.ParentJobs(r.Context(), child.Seq)
	r.must(err)
	checkEqual(r, "parents", got, []store.ParentJob{{ID: "b", UID: 7, State: queue.Dead, ExitCode: 3},
		{ID: "a", UID: testUID, State: queue.Completed, ResultJSON: []byte(`{"x":1}`)}})
	got, err = r.store.ParentJobs(r.Context(), first.Seq)
	r.must(err)
	checkEqual(r, "parents of a job without dependencies", got, nil)
	if _, err := r.store.ParentJobs(r.Context(), 99); !errors.Is(err, queue.ErrNotFound) {
		r.Errorf("got error %v, want %v", err, queue.ErrNotFound)
	}
}
