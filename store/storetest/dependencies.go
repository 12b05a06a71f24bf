package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var dependencyPromises = []promise{
	{name: "a job is blocked until its parents have completed", check: jobIsBlockedUntilParentsComplete},
	{name: "a job can depend on other drafts of its request", check: draftsOfRequestCanBeParents},
	{name: "dependencies on ended jobs are resolved by the enqueue", check: endedParentDecidesImmediately},
	{name: "a failed dependency cancels, holds or runs the dependant", check: failedDependencyIsHandled},
	{name: "cancelling a job cancels its dependants", check: cancelCascades},
	{name: "removing a parent fails the dependency", check: removedParentFailsDependency},
	{name: "parents of a staged job can be removed", check: stagedParentMayBeRemoved},
	{name: "drafts of a batch frame can depend on each other", check: frameDraftsCanDepend},
	{name: "a job waits for a parent that is still in a frame of a committed batch", check: parentMayBeInCommittedFrame},
	{name: "dependencies on unknown jobs and cycles are rejected", check: invalidDependenciesAreRejected},
	{name: "a held job still waits for its parents", check: heldJobStaysBlocked},
	{name: "a retried job waits for its unfinished parents", check: retriedJobWaitsForParents},
	{name: "a dependant starts to age when it can run", check: dependantAgesFromRelease},
	{name: "dependencies can name their parents by id", check: parentsCanBeNamedByID},
	{name: "retrying a parent revives its cancelled dependants", check: retriedParentRevivesDependants},
	{name: "an edit changes a job's dependencies", check: editChangesDependencies},
	{name: "Links returns parents and dependants", check: linksAreListed},
	{name: "Parents returns the outcomes and results of a job's parents", check: parentsAreReturned},
	{name: "a job with many dependants can end in one call", check: dependantsAreHandledInSteps},
}

// withParents returns a function that makes a job depend on the given parents, with the given condition.
func withParents(condition queue.DependencyCondition, parents ...queue.Job) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, p := range parents {
			j.DependsOn = append(j.DependsOn, queue.Dependency{JobSeq: p.Seq, Condition: condition})
		}
	}
}

// onDependencyFailure returns a function that sets what happens to a job if a dependency fails.
func onDependencyFailure(action queue.OnDependencyFailure) func(*queue.Job) {
	return func(j *queue.Job) { j.OnDependencyFailure = action }
}

// checkState checks the state of a stored job and the reason for the state.
func (r *rig) checkState(subject string, j queue.Job, want queue.State, reason queue.Reason) {
	r.Helper()
	if got := r.getJob(j.ID); got.State != want || got.Reason != reason {
		r.Errorf("%s: job %s is %s %q, want %s %q", subject, j.ID, got.State, got.Reason, want, reason)
	}
}

// Jobs that are sent in one request for a batch can depend on each other.
func frameDraftsCanDepend(r *rig) {
	stage := func(drafts ...queue.Job) (store.Receipt, error) {
		return r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: testUID, Batch: "b"})
	}
	dependsOnSecond := func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{DraftNumber: 2, Condition: queue.ParentCompleted}}
	}
	got, err := stage(draft(dependsOnSecond), draft())
	r.must(err)
	_, err = stage(draft(dependsOnSecond), draft(dependsOnSecond))
	r.wantError("drafts that depend on each other", err, queue.CodeInvalid, "depends_on")
	_, err = stage(draft(withDemands(lockDemand("k", 0))))
	r.wantError("a lock with a limit of 0", err, queue.CodeInvalid, "lock")
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "b"})
	r.must(err)
	r.applyBatch(committed)
	r.checkState("the parent has not ended", r.getJob(got.IDs[0]), queue.Blocked, "")
	r.settle(r.claimExactly("the parent", r.getJob(got.IDs[1]))[0], exitOutcome(0))
	r.claimExactly("the dependant", r.getJob(got.IDs[0]))
}

func jobIsBlockedUntilParentsComplete(r *rig) {
	parents := r.enqueueAndGet(draft(), draft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	r.checkState("at first", child, queue.Blocked, "")
	got := r.claimExactly("only the parents", parents...)
	r.settle(got[0], exitOutcome(0))
	r.claimExactly("one parent has ended")
	r.settle(got[1], exitOutcome(1)) // the attempt will be retried, so this parent has not ended
	r.checkState("the other parent has failed and will be retried", child, queue.Blocked, "")
	r.advanceAndPromote(time.Hour)
	r.promote()
	r.settle(r.claimExactly("the retried parent", parents[1])[0], exitOutcome(0))
	r.checkState("both parents have ended", child, queue.Pending, "")
	r.claimExactly("the dependant", child)
	r.checkCounts()
}

func draftsOfRequestCanBeParents(r *rig) {
	third := func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{DraftNumber: 2, Condition: queue.ParentCompleted},
			{DraftNumber: 3, Condition: queue.ParentCompleted}}
	}
	jobs := r.enqueueAndGet(draft(third), draft(), draft())
	for _, j := range r.claimExactly("the parents", jobs[1], jobs[2]) {
		r.settle(j, exitOutcome(0))
	}
	r.claimExactly("both parents have ended", jobs[0])
}

// If a parent has already ended when a job is enqueued, the dependency is satisfied or failed immediately.
func endedParentDecidesImmediately(r *rig) {
	done := r.runJob(exitOutcome(0))
	dead := r.runJob(exitOutcome(1), withMaxAttempts(1))
	jobs := r.enqueueAndGet(draft(withParents(queue.ParentCompleted, done)), draft(withParents(queue.ParentDead, dead)),
		draft(withParents(queue.ParentEnded, done, dead)),
		draft(withParents(queue.ParentCompleted, done, dead)),
		draft(withParents(queue.ParentCompleted, dead), onDependencyFailure(queue.DependencyFailureHold)),
		draft(withParents(queue.ParentCompleted, dead), onDependencyFailure(queue.DependencyFailureRun)))
	r.claimExactly("the jobs whose dependencies are met", jobs[0], jobs[1], jobs[2], jobs[5])
	r.checkState("a job whose dependency failed", jobs[3], queue.Cancelled, queue.ReasonDependency)
	r.checkState("a job that is held if its dependency fails", jobs[4], queue.Held, queue.ReasonDependency)
	r.checkCounts()
}

// If a dependency fails, the dependant is cancelled, held or run, as its settings say.
func failedDependencyIsHandled(r *rig) {
	parent := r.enqueueOne(withMaxAttempts(1))
	jobs := r.enqueueAndGet(draft(withParents(queue.ParentCompleted, parent)),
		draft(withParents(queue.ParentCompleted, parent), onDependencyFailure(queue.DependencyFailureHold)),
		draft(withParents(queue.ParentCompleted, parent), onDependencyFailure(queue.DependencyFailureRun)),
		draft(withParents(queue.ParentDead, parent)), draft(withParents(queue.ParentEnded, parent)))
	r.settle(r.claimExactly("the parent", parent)[0], exitOutcome(1))
	r.checkState("by default", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.checkState("a job that is held if its dependency fails", jobs[1], queue.Held, queue.ReasonDependency)
	r.claimExactly("the others", jobs[2], jobs[3], jobs[4])
	r.checkCounts()
}

// Cancelling a job cancels its dependants.
func cancelCascades(r *rig) {
	first := r.enqueueOne()
	second := r.enqueueOne(withParents(queue.ParentCompleted, first))
	third := r.enqueueOne(withParents(queue.ParentCompleted, second))
	last := r.enqueueOne(withParents(queue.ParentEnded, third))
	r.must(r.change(first, queue.VerbCancel))
	r.checkState("its dependant", second, queue.Cancelled, queue.ReasonDependency)
	r.checkState("the dependant of the dependant", third, queue.Cancelled, queue.ReasonDependency)
	r.claimExactly("a job that depends only on the end of a cancelled job", last)
}

func removedParentFailsDependency(r *rig) {
	parents := r.enqueueAndGet(draft(), draft())
	jobs := r.enqueueAndGet(draft(withParents(queue.ParentEnded, parents[0])),
		draft(withParents(queue.ParentCompleted, parents[1])))
	r.must(r.change(parents[0], queue.VerbRemove))
	r.checkState("its parent was removed", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.must(r.change(jobs[1], queue.VerbRemove)) // removing a job also removes its dependencies
	r.settle(r.claimExactly("the other parent", parents[1])[0], exitOutcome(0))
	r.checkCounts()
}

// A job can be removed even if a job of an uncommitted batch depends on it.
func stagedParentMayBeRemoved(r *rig) {
	parents := r.enqueueAndGet(draft(), draft())
	_, err := r.s.StageBatch(r.Context(), store.Request{Batch: "b", UID: testUID, Drafts: []queue.Job{
		draft(), draft(withParents(queue.ParentCompleted, parents[0])),
		draft(withParents(queue.ParentEnded, parents[1]), onDependencyFailure(queue.DependencyFailureRun))}})
	r.must(err)
	for _, p := range parents {
		r.must(r.change(p, queue.VerbRemove))
	}
	committed, err := r.s.Enqueue(r.Context(), store.Request{Batch: "b", UID: testUID})
	r.must(err)
	r.applyBatch(committed)
	got := r.exchange(store.Report{WantedJobs: 9}).Jobs
	checkEqual(r, "claimed jobs", len(got), 2)
	checkEqual(r, "cancelled jobs", r.s.Counts().States[queue.Cancelled], int64(1))
	r.checkCounts()
}

// A job waits for a parent that is still in a frame of a committed batch. Until the frame is in the queue, an edit
// must not make another job wait for such a job, because the parent may depend on that other job.
func parentMayBeInCommittedFrame(r *rig) {
	first := r.enqueueOne(withID("first"), withMaxAttempts(1))
	stage := func(set ...func(*queue.Job)) {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(set...)}, UID: testUID, Batch: "b"})
		r.must(err)
	}
	stage()
	stage(withID("parent"), withParentIDs(queue.ParentEnded, "first"))
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "b"})
	r.must(err)
	child := r.enqueueOne(withID("child"), withParentIDs(queue.ParentCompleted, "parent"))
	other := r.enqueueOne(withParentIDs(queue.ParentCompleted, "parent"), onDependencyFailure(queue.DependencyFailureRun))
	check := func(when string) {
		r.Helper()
		r.checkState(when, child, queue.Blocked, "")
		r.checkState(when, other, queue.Blocked, "")
	}
	check("before the batch is applied")
	for _, parent := range []string{"child", "parent"} {
		err = r.edit(first, func(j *queue.Job) error {
			j.DependsOn = []queue.Dependency{{ID: parent, Condition: queue.ParentEnded}}
			return nil
		})
		r.wantError("an edit that adds the parent "+parent, err, queue.CodeInvalid, "depends_on")
	}
	r.applyBatch(committed)
	r.promote()
	check("after the batch was applied")
	claimed := r.claim(9)
	checkEqual(r, "number of claimed jobs", len(claimed), 2)
	for _, j := range claimed {
		r.settle(j, exitOutcome(0))
	}
	r.promote()
	check("before the parent has ended")
	r.settle(r.claimExactly("the parent", r.getJob("parent"))[0], exitOutcome(0))
	r.promote()
	r.claimExactly("the jobs that waited for the parent", r.getJob("child"), r.getJob(other.ID))
	r.checkCounts()
}

// Dependencies on unknown jobs and cycles are rejected.
func invalidDependenciesAreRejected(r *rig) {
	ask := func(subject string, drafts ...queue.Job) {
		r.Helper()
		r.checkUnchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: testUID})
			r.wantCode(subject, err, queue.CodeInvalid)
			if err != nil && !strings.Contains(err.Error(), "depends_on") {
				r.Errorf("%s: %v does not name the field", subject, err)
			}
		})
	}
	waitingFor := func(list ...int) queue.Job {
		return draft(func(j *queue.Job) {
			for _, n := range list {
				j.DependsOn = append(j.DependsOn, queue.Dependency{DraftNumber: n, Condition: queue.ParentCompleted})
			}
		})
	}
	ask("an unknown job", draft(withParents(queue.ParentCompleted, queue.Job{Seq: 99})))
	ask("an unknown draft", waitingFor(2))
	ask("the draft itself", waitingFor(1))
	ask("a cycle", draft(), waitingFor(3), waitingFor(4, 1), waitingFor(2))
	ask("too many dependencies", draft(func(j *queue.Job) {
		j.DependsOn = make([]queue.Dependency, queue.MaxDependencies+1)
		for i := range j.DependsOn {
			j.DependsOn[i] = queue.Dependency{DraftNumber: 1}
		}
	}))
}

// The end of its parents does not release a held job. If a user releases it earlier, it waits for its
// parents.
func heldJobStaysBlocked(r *rig) {
	parents := r.enqueueAndGet(draft(), draft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	r.must(r.change(child, queue.VerbHold))
	got := r.claimExactly("the parents", parents...)
	r.settle(got[0], exitOutcome(0))
	r.must(r.change(child, queue.VerbRelease))
	r.checkState("one parent is unfinished", child, queue.Blocked, "")
	r.must(r.change(child, queue.VerbHold))
	r.settle(got[1], exitOutcome(0))
	r.checkState("all parents have ended", child, queue.Held, "")
	r.must(r.change(child, queue.VerbRelease))
	r.claimExactly("after the release", child)
}

func retriedJobWaitsForParents(r *rig) {
	parents := r.enqueueAndGet(draft(withMaxAttempts(1)), draft())
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	got := r.claimExactly("the parents", parents...)
	r.settle(got[0], exitOutcome(1))
	r.checkState("one parent is dead", child, queue.Cancelled, queue.ReasonDependency)
	r.must(r.change(child, queue.VerbRetry))
	r.checkState("a user retries it", child, queue.Blocked, "")
	r.settle(got[1], exitOutcome(0))
	r.settle(r.claimExactly("the other parent has ended", child)[0], exitOutcome(0))
	r.must(r.change(parents[0], queue.VerbRetry))
	r.promote()
	r.checkState("it has completed, and its parent is retried", child, queue.Completed, "")
	r.must(r.change(child, queue.VerbRetry))
	r.checkState("it is retried too", child, queue.Pending, "")
	r.claimExactly("parent and dependant, which do not wait for each other", parents[0], child)
	r.checkCounts()
}

// A dependant starts to age only when its parents have ended.
func dependantAgesFromRelease(r *rig) {
	parent := r.enqueueOne()
	child := r.enqueueOne(withParents(queue.ParentCompleted, parent))
	later := r.enqueueOne(func(j *queue.Job) { j.Delay = time.Hour }, withParents(queue.ParentCompleted, parent))
	r.advanceAndPromote(time.Minute)
	other := r.enqueueOne()
	got := r.claimExactly("the parent and another job", parent, other)
	r.advanceAndPromote(time.Minute)
	r.settle(got[0], exitOutcome(0))
	checkEqual(r, "waiting since", r.getJob(child.ID).AgingSince, r.s.Now())
	checkEqual(r, "due", r.getJob(later.ID).DueAt, r.getJob(later.ID).RunAt)
	r.claimExactly("the dependant that is due", child)
	r.advanceAndPromote(time.Hour)
	r.promote()
	r.claimExactly("the delayed dependant", later)
}

// When a parent with many dependants ends, the store handles the dependants in several steps.
// Promote continues these steps. If a user retries the parent in between, a dependant that is enqueued
// later waits for the new end.
func dependantsAreHandledInSteps(r *rig) {
	const dependantCount = 400
	parent := r.enqueueOne()
	drafts := make([]queue.Job, dependantCount)
	for i := range drafts {
		drafts[i] = draft(withParents(queue.ParentCompleted, parent))
	}
	r.enqueueAndGet(drafts...)
	r.settle(r.claimExactly("the parent", parent)[0], exitOutcome(0))
	r.must(r.change(parent, queue.VerbRetry))
	added := r.enqueueOne(withParents(queue.ParentCompleted, parent))
	for range dependantCount {
		if r.promote() != 0 {
			break
		}
	}
	checkEqual(r, "waiting jobs", r.s.Counts().States[queue.Pending], int64(dependantCount+1))
	r.checkState("it waits for the end of the new attempt", added, queue.Blocked, "")
}

// withParentIDs returns a function that makes a job depend on the jobs with the given ids.
func withParentIDs(condition queue.DependencyCondition, ids ...string) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, id := range ids {
			j.DependsOn = append(j.DependsOn, queue.Dependency{ID: id, Condition: condition})
		}
	}
}

func parentsCanBeNamedByID(r *rig) {
	parent := r.enqueueOne(withID("p"))
	hook := r.enqueueOne(withID("h"), withUID(7),
		func(j *queue.Job) { j.HookEvents = queue.IsHook | queue.HookFromSettings })
	jobs := r.enqueueAndGet(draft(withID("c"), withParentIDs(queue.ParentCompleted, "b", "p")), draft(withID("b")))
	r.checkState("it waits for both parents", jobs[0], queue.Blocked, "")
	r.checkUnchanged(func() {
		_, err := r.tryEnqueue(withParentIDs(queue.ParentCompleted, "unknown"))
		r.wantError("an unknown id", err, queue.CodeInvalid, "depends_on")
		_, err = r.tryEnqueue(withParentIDs(queue.ParentCompleted, "h"))
		r.wantError("another user's hook from the settings", err, queue.CodeInvalid, "depends_on")
		_, err = r.s.Enqueue(r.Context(), store.Request{UID: testUID,
			Drafts: []queue.Job{draft(withID("x"), withParentIDs(queue.ParentCompleted, "y")),
				draft(withID("y"), withParentIDs(queue.ParentCompleted, "x"))}})
		r.wantError("a cycle", err, queue.CodeInvalid, "depends_on")
	})
	stage := func(drafts ...queue.Job) error {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: testUID, Batch: "f"})
		return err
	}
	r.must(stage(draft(withID("first"))))
	r.must(stage(draft(withID("second"), withParentIDs(queue.ParentCompleted, "first"))))
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(withUID(7),
		withParentIDs(queue.ParentCompleted, "first"))}, UID: 7, Batch: "f"})
	r.wantError("a staged job of another user", err, queue.CodeInvalid, "depends_on")
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "f"})
	r.must(err)
	r.applyBatch(committed)
	got := r.claimExactly("the jobs without parents", parent, hook, jobs[1], r.getJob("first"))
	r.settle(got[3], exitOutcome(0))
	r.claimExactly("the job of the second frame", r.getJob("second"))
}

// If a parent is retried, the dependants that were cancelled because it failed wait for it again.
func retriedParentRevivesDependants(r *rig) {
	parents := r.enqueueAndGet(draft(withMaxAttempts(1)), draft(withMaxAttempts(1)))
	child := r.enqueueOne(withParents(queue.ParentCompleted, parents[0]))
	grand := r.enqueueOne(withParents(queue.ParentCompleted, child), withDelay(time.Hour))
	both := r.enqueueOne(withParents(queue.ParentCompleted, parents...))
	got := r.claimExactly("the parents", parents...)
	r.settle(got[0], exitOutcome(1))
	r.settle(got[1], exitOutcome(1))
	for _, j := range []queue.Job{child, grand, both} {
		r.checkState("its parent is dead", j, queue.Cancelled, queue.ReasonDependency)
	}
	alone := store.Change{Verb: queue.VerbRetry, KeepDependants: true}
	r.must(r.s.Change(r.Context(), parents[0].Seq, alone))
	r.checkState("the parent was retried with KeepDependants", child, queue.Cancelled, queue.ReasonDependency)
	r.settle(r.claimExactly("the retried parent", parents[0])[0], exitOutcome(1))
	r.must(r.change(parents[0], queue.VerbRetry))
	r.promote()
	r.checkState("the parent was retried", child, queue.Blocked, "")
	r.checkState("the dependant of the dependant", grand, queue.Blocked, "")
	r.checkState("a job that depends on another dead parent too", both, queue.Cancelled, queue.ReasonDependency)
	r.settle(r.claimExactly("the parent that was retried again", parents[0])[0], exitOutcome(0))
	r.promote()
	r.settle(r.claimExactly("the dependant", child)[0], exitOutcome(0))
	r.must(r.change(parents[1], queue.VerbRetry))
	r.promote()
	r.checkState("the other parent was retried", both, queue.Blocked, "")
	r.settle(r.claimExactly("the other parent", parents[1])[0], exitOutcome(0))
	r.promote()
	r.claimExactly("both parents have ended", both)
	r.checkCounts()
}

func editChangesDependencies(r *rig) {
	parents := r.enqueueAndGet(draft(withID("a")), draft(withID("b")), draft(withID("done")))
	got := r.claimExactly("all", parents...)
	r.settle(got[2], exitOutcome(0))
	child := r.enqueueOne(withID("c"), withDelay(time.Hour))
	to := func(j queue.Job, list ...queue.Dependency) error {
		return r.edit(j, func(j *queue.Job) error { j.DependsOn = append([]queue.Dependency{}, list...); return nil })
	}
	completed := func(ids ...string) (list []queue.Dependency) {
		for _, id := range ids {
			list = append(list, queue.Dependency{ID: id, Condition: queue.ParentCompleted})
		}
		return list
	}
	r.must(to(child, completed("a", "done")...))
	r.checkState("an unfinished parent", child, queue.Blocked, "")
	r.checkUnchanged(func() {
		r.wantCode("the job itself", to(child, completed("c")...), queue.CodeInvalid)
		r.wantCode("an unknown job", to(child, completed("zzz")...), queue.CodeInvalid)
		r.wantCode("a dependency that can no longer be met",
			to(child, queue.Dependency{ID: "done", Condition: queue.ParentDead}), queue.CodeInvalid)
	})
	grand := r.enqueueOne(withID("g"), withParentIDs(queue.ParentCompleted, "c"))
	r.checkUnchanged(func() { r.wantCode("a cycle", to(child, completed("g")...), queue.CodeInvalid) })
	r.must(r.edit(grand, func(j *queue.Job) error { j.Priority = 9; return nil }))
	r.checkState("an edit of another field", grand, queue.Blocked, "")
	r.must(to(child, completed("b")...))
	r.settle(got[0], exitOutcome(1))
	r.checkState("the dependency was replaced", child, queue.Blocked, "")
	r.must(to(child))
	r.checkState("the dependencies were removed", child, queue.Pending, "")
	r.settle(got[1], exitOutcome(0))
	r.checkCounts()
}

// DependencyLinks returns parents and dependants.
func linksAreListed(r *rig) {
	parents := r.enqueueAndGet(draft(withID("a")), draft(withID("b")), draft(withID("gone")))
	child := r.enqueueOne(withID("c"), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ID: "a", Condition: queue.ParentCompleted}, {ID: "b", Condition: queue.ParentEnded},
			{ID: "gone", Condition: queue.ParentDead}}
		j.OnDependencyFailure = queue.DependencyFailureRun
	})
	checkEqual(r, "dependencies of the job", r.getJob("c").DependsOn, []queue.Dependency{
		{ID: "a", JobSeq: parents[0].Seq, Condition: queue.ParentCompleted},
		{ID: "b", JobSeq: parents[1].Seq, Condition: queue.ParentEnded},
		{ID: "gone", JobSeq: parents[2].Seq, Condition: queue.ParentDead}})
	r.must(r.change(parents[2], queue.VerbRemove))
	r.settle(r.claimExactly("the parents", parents[0], parents[1])[0], exitOutcome(0))
	parentLinks, childLinks, err := r.s.DependencyLinks(r.Context(), child.Seq, 9)
	r.must(err)
	checkEqual(r, "parents", parentLinks, []store.DependencyLink{
		{Seq: parents[1].Seq, ID: "b", State: queue.Pending, Condition: queue.ParentEnded},
		{Seq: parents[0].Seq, ID: "a", State: queue.Completed, Condition: queue.ParentCompleted, Status: store.Satisfied},
		{Seq: parents[2].Seq, Condition: queue.ParentDead, Status: store.Satisfied}})
	checkEqual(r, "dependants", childLinks, nil)
	parentLinks, childLinks, err = r.s.DependencyLinks(r.Context(), parents[1].Seq, 9)
	r.must(err)
	checkEqual(r, "parents of a job without dependencies", parentLinks, nil)
	checkEqual(r, "its dependant", childLinks, []store.DependencyLink{{Seq: child.Seq, ID: "c", State: queue.Blocked,
		Condition: queue.ParentEnded}})
	_, _, err = r.s.DependencyLinks(r.Context(), 99, 9)
	r.wantCode("links of an unknown job", err, queue.CodeNotFound)
	parentLinks, _, err = r.s.DependencyLinks(r.Context(), child.Seq, 1)
	r.must(err)
	checkEqual(r, "number of links with a limit of one", len(parentLinks), 1)
}

// Parents returns the outcomes and results of a job's parents.
func parentsAreReturned(r *rig) {
	first := r.enqueueOne(withID("a"), withMaxAttempts(1))
	e := r.settlement(r.claimOne(), exitOutcome(0))
	e.Attempt.Result = []byte(`{"x":1}`)
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	second := r.enqueueOne(withID("b"), withMaxAttempts(1), func(j *queue.Job) { j.UID = 7 })
	r.settle(r.claimOne(), exitOutcome(3))
	gone := r.enqueueOne(withID("c"))
	child := r.enqueueOne(withParents(queue.ParentEnded, second, first, gone))
	r.must(r.change(r.getJob("c"), queue.VerbCancel))
	r.must(r.change(r.getJob("c"), queue.VerbRemove))
	if got := r.getJob(child.ID); got.ParentCount != 3 {
		r.Errorf("the job has %d parents, want 3", got.ParentCount)
	}
	got, err := r.s.Parents(r.Context(), child.Seq)
	r.must(err)
	checkEqual(r, "parents", got, []store.Parent{{ID: "b", UID: 7, State: queue.Dead, ExitCode: 3},
		{ID: "a", UID: testUID, State: queue.Completed, Result: []byte(`{"x":1}`)}})
	got, err = r.s.Parents(r.Context(), first.Seq)
	r.must(err)
	checkEqual(r, "parents of a job without dependencies", got, nil)
	if _, err := r.s.Parents(r.Context(), 99); !errors.Is(err, queue.ErrNotFound) {
		r.Errorf("got error %v, want %v", err, queue.ErrNotFound)
	}
}
