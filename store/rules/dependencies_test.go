package rules

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// draftDependingOn returns a draft that depends on a job.
func draftDependingOn(id, parentID string, condition queue.DependencyCondition) queue.Job {
	return queue.Job{ID: id, DependsOn: []queue.Dependency{{ParentID: parentID, Condition: condition}}}
}

// endParentByOutcome are the ways in which a parent can end in these tests.
var endParentByOutcome = map[string]func(*fixture){
	"completed": func(f *fixture) { f.claimAndReportEnd("parent", queue.Completed) },
	"dead":      func(f *fixture) { f.claimAndReportEnd("parent", queue.Dead) },
	"cancelled": func(f *fixture) { f.mustApplyVerb(queue.VerbCancel, "parent") },
	"removed":   func(f *fixture) { f.mustApplyVerb(queue.VerbRemove, "parent") },
	"failed":    func(f *fixture) { f.claimAndReportEnd("parent", queue.Failed) }, // will be retried, so it has not ended
}

// The end of a parent decides whether its dependant runs, is held or is cancelled.
func TestParentEndSetsDependantState(t *testing.T) {
	cases := []struct {
		how  queue.DependencyCondition
		do   queue.OnDependencyFailure
		end  string
		want string
	}{
		{queue.ParentCompleted, queue.DependencyFailureCancel, "failed", "blocked"},
		{queue.ParentCompleted, queue.DependencyFailureCancel, "completed", "pending"},
		{queue.ParentCompleted, queue.DependencyFailureCancel, "dead", "cancelled"},
		{queue.ParentCompleted, queue.DependencyFailureCancel, "cancelled", "cancelled"},
		{queue.ParentCompleted, queue.DependencyFailureCancel, "removed", "cancelled"},
		{queue.ParentCompleted, queue.DependencyFailureHold, "dead", "held"},
		{queue.ParentCompleted, queue.DependencyFailureHold, "removed", "held"},
		{queue.ParentCompleted, queue.DependencyFailureRun, "dead", "pending"},
		{queue.ParentCompleted, queue.DependencyFailureRun, "removed", "pending"},
		{queue.ParentDead, queue.DependencyFailureCancel, "dead", "pending"},
		{queue.ParentDead, queue.DependencyFailureCancel, "completed", "cancelled"},
		{queue.ParentDead, queue.DependencyFailureCancel, "cancelled", "cancelled"},
		{queue.ParentEnded, queue.DependencyFailureCancel, "completed", "pending"},
		{queue.ParentEnded, queue.DependencyFailureCancel, "dead", "pending"},
		{queue.ParentEnded, queue.DependencyFailureCancel, "cancelled", "pending"},
		{queue.ParentEnded, queue.DependencyFailureCancel, "removed", "cancelled"},
		{queue.ParentEnded, queue.DependencyFailureCancel, "failed", "blocked"},
	}
	how := []string{queue.ParentCompleted: "completed", queue.ParentDead: "dead", queue.ParentEnded: "ended"}
	do := []string{queue.DependencyFailureCancel: "cancel", queue.DependencyFailureHold: "hold",
		queue.DependencyFailureRun: "run"}
	for _, c := range cases {
		name := fmt.Sprintf("requires %s, else %s, parent %s", how[c.how], do[c.do], c.end)
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			child := draftDependingOn("child", "parent", c.how)
			child.OnDependencyFailure = c.do
			f.mustEnqueue(queue.Job{ID: "parent"})
			f.mustEnqueue(child)
			f.wantStates("child", "blocked")
			endParentByOutcome[c.end](f)
			f.wantStates("child", c.want)
		})
	}
}

// A job that is enqueued after its parent has ended immediately gets the state that it would have after
// waiting.
func TestEndedParentSetsNewJobState(t *testing.T) {
	cases := map[string]struct {
		how  queue.DependencyCondition
		do   queue.OnDependencyFailure
		end  string
		want string
	}{
		"satisfied":          {queue.ParentCompleted, queue.DependencyFailureCancel, "completed", "pending"},
		"broken, cancel":     {queue.ParentCompleted, queue.DependencyFailureCancel, "dead", "cancelled"},
		"broken, hold":       {queue.ParentCompleted, queue.DependencyFailureHold, "dead", "held"},
		"broken, run":        {queue.ParentCompleted, queue.DependencyFailureRun, "dead", "pending"},
		"parent is retrying": {queue.ParentCompleted, queue.DependencyFailureCancel, "failed", "blocked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.mustEnqueue(queue.Job{ID: "parent"})
			endParentByOutcome[c.end](f)
			child := draftDependingOn("child", "parent", c.how)
			child.OnDependencyFailure = c.do
			f.mustEnqueue(child)
			f.wantStates("child", c.want)
		})
	}
}

// A job with several parents waits for all of them. One broken dependency is enough to cancel it.
func TestDependantWaitsForAllParents(t *testing.T) {
	f := newFixture(t)
	both := draftDependingOn("child", "p1", queue.ParentCompleted)
	both.DependsOn = append(both.DependsOn, queue.Dependency{ParentID: "p2", Condition: queue.ParentCompleted})
	other := both
	other.ID = "other"
	f.mustEnqueue(queue.Job{ID: "p1"}, queue.Job{ID: "p2"})
	f.mustEnqueue(both)
	f.claimAndReportEnd("p1", queue.Completed)
	f.wantStates("child", "blocked")
	f.mustEnqueue(other)
	f.claimAndReportEnd("p2", queue.Dead)
	f.wantStates("child other", "cancelled cancelled")
}

// If a dependant is cancelled, the jobs that depend on its success are cancelled too.
func TestCancelledDependantCancelsItsDependants(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "a"})
	f.mustEnqueue(draftDependingOn("b", "a", queue.ParentCompleted))
	f.mustEnqueue(draftDependingOn("c", "b", queue.ParentCompleted))
	f.mustEnqueue(draftDependingOn("cleanup", "c", queue.ParentEnded))
	f.claimAndReportEnd("a", queue.Dead)
	f.wantStates("b c cleanup", "cancelled cancelled pending")
	if got := f.jobByID("c").Reason; got != queue.ReasonDependency {
		t.Errorf("the reason of the cancelled dependant is %q; want %q", got, queue.ReasonDependency)
	}
}

// If a user has held a job, its satisfied dependencies do not release it. When the user releases it, it runs,
// or waits for parents that have not ended.
func TestSatisfiedDependenciesDoNotReleaseHeldJob(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "parent"}, queue.Job{ID: "slow"})
	f.mustEnqueue(draftDependingOn("done", "parent", queue.ParentCompleted),
		draftDependingOn("waits", "slow", queue.ParentCompleted))
	f.mustApplyVerb(queue.VerbHold, "done", "waits")
	f.claimAndReportEnd("parent", queue.Completed)
	f.wantStates("done waits", "held held")
	f.mustApplyVerb(queue.VerbRelease, "done", "waits")
	f.wantStates("done waits", "pending blocked")
	f.claimAndReportEnd("slow", queue.Completed)
	f.wantStates("waits", "pending")
}

// A held job is cancelled if one of its dependencies is broken.
func TestHeldDependantIsCancelledByBrokenDependency(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "parent"})
	f.mustEnqueue(draftDependingOn("child", "parent", queue.ParentCompleted))
	f.mustApplyVerb(queue.VerbHold, "child")
	f.claimAndReportEnd("parent", queue.Dead)
	f.wantStates("child", "cancelled")
}

// A job that is held because of a broken dependency runs when a user releases it.
func TestReleaseIgnoresBrokenDependency(t *testing.T) {
	f := newFixture(t)
	child := draftDependingOn("child", "parent", queue.ParentCompleted)
	child.OnDependencyFailure = queue.DependencyFailureHold
	f.mustEnqueue(queue.Job{ID: "parent"})
	f.mustEnqueue(child)
	f.claimAndReportEnd("parent", queue.Dead)
	f.mustApplyVerb(queue.VerbRelease, "child")
	f.wantClaim(1, "child")
}

// When a parent is retried, dependants that were cancelled because of it wait for it.
func TestCancelledDependantsWaitForRetriedParent(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "parent"})
	f.mustEnqueue(draftDependingOn("child", "parent", queue.ParentCompleted))
	f.mustEnqueue(draftDependingOn("grandchild", "child", queue.ParentCompleted))
	f.claimAndReportEnd("parent", queue.Dead)
	f.wantStates("child grandchild", "cancelled cancelled")
	f.mustApplyVerb(queue.VerbRetry, "parent")
	f.wantStates("parent child grandchild", "pending blocked blocked")
	f.claimAndReportEnd("parent", queue.Completed)
	f.claimAndReportEnd("child", queue.Completed)
	f.claimAndReportEnd("grandchild", queue.Completed)
}

// A cancelled dependant does not wait for a retried parent if the user retries the parent alone, if a user
// has cancelled the dependant, if its input was removed, or if another job has its unique key.
func TestRetriedParentLeavesIneligibleDependantsCancelled(t *testing.T) {
	cases := map[string]struct {
		prepare func(*fixture) // runs before the parent is retried
		alone   bool
		want    string
	}{
		"nothing in the way":             {func(*fixture) {}, false, "blocked"},
		"the retry is for the job alone": {func(*fixture) {}, true, "cancelled"},
		"a user had cancelled the job": {func(f *fixture) {
			j := f.jobByID("child")
			j.Reason = ""
			f.jobs[j.Seq] = *j
		}, false, "cancelled"},
		"the input of the job is gone": {func(f *fixture) {
			j := f.jobByID("child")
			j.InputRemoved = queue.InputEnv
			f.jobs[j.Seq] = *j
		}, false, "cancelled"},
		"another job has the unique key": {func(f *fixture) {
			f.mustEnqueue(queue.Job{ID: "successor", Unique: "k"})
		}, false, "cancelled"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			child := draftDependingOn("child", "parent", queue.ParentCompleted)
			child.Unique = "k"
			f.mustEnqueue(queue.Job{ID: "parent"})
			f.mustEnqueue(child)
			f.claimAndReportEnd("parent", queue.Dead)
			c.prepare(f)
			seq := f.jobByID("parent").Seq
			f.mustRunTx(func(r *Rules) error {
				return r.ChangeJob(seq, store.JobChange{Verb: queue.VerbRetry, UID: userA, KeepDependantsCancelled: c.alone})
			})
			f.wantStates("child", c.want)
		})
	}
}

// A cancelled dependant waits for a retried parent only if none of its other dependencies is broken.
func TestDependantStaysCancelledWhileAnotherParentIsDead(t *testing.T) {
	f := newFixture(t)
	child := draftDependingOn("child", "p1", queue.ParentCompleted)
	child.DependsOn = append(child.DependsOn, queue.Dependency{ParentID: "p2", Condition: queue.ParentCompleted})
	f.mustEnqueue(queue.Job{ID: "p1"}, queue.Job{ID: "p2"})
	f.mustEnqueue(child)
	f.claimAndReportEnd("p1", queue.Dead)
	f.claimAndReportEnd("p2", queue.Dead)
	f.mustApplyVerb(queue.VerbRetry, "p1")
	f.wantStates("child", "cancelled")
	f.mustApplyVerb(queue.VerbRetry, "p2")
	f.wantStates("child", "blocked")
}

// After the end of a parent, each transaction releases at most maxEdgesResolvedPerTx dependants.
func TestDependantsAreReleasedInSeveralTransactions(t *testing.T) {
	countPending := func(f *fixture) (n int) {
		for _, j := range f.jobs {
			n += boolToInt(j.State == queue.Pending)
		}
		return n
	}
	for _, dependants := range []int{maxEdgesResolvedPerTx - 1, maxEdgesResolvedPerTx, maxEdgesResolvedPerTx + 1} {
		f := newFixture(t)
		f.mustEnqueue(queue.Job{ID: "parent"})
		for i := range dependants {
			f.mustEnqueue(draftDependingOn(fmt.Sprint("child", i), "parent", queue.ParentCompleted))
		}
		f.wantClaim(1, "parent")
		f.reportJobsCompleted("parent")
		if got, want := countPending(f), min(dependants, maxEdgesResolvedPerTx); got != want {
			t.Errorf("one transaction released %d of %d dependants; want %d", got, dependants, want)
		}
		if f.earliestWakeAt == 0 && dependants >= maxEdgesResolvedPerTx {
			t.Errorf("nothing wakes the service, although %d dependants may be left", dependants-maxEdgesResolvedPerTx)
		}
		f.advanceTime(0)
		if got := countPending(f); got != dependants {
			t.Errorf("two transactions released %d of %d dependants", got, dependants)
		}
	}
}

// However often a user ends and retries a parent, at most MaxStateChangesPerParent notes (changes that its dependants
// have not seen yet) about the parent are stored.
func TestStoredParentChangesAreLimited(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "parent"})
	f.mustEnqueue(draftDependingOn("child", "parent", queue.ParentCompleted))
	parent, r := f.jobByID("parent"), &Rules{}
	r.Init(f.newTx(), &f.rechecks)
	for range 2 * MaxStateChangesPerParent {
		for _, state := range []queue.State{queue.Dead, ParentRerunState} {
			if r.addParentStateChange(parent, state); r.Err() != nil {
				t.Fatal(r.Err())
			}
		}
	}
	if n := len(f.parentChanges); n > MaxStateChangesPerParent+1 {
		t.Errorf("%d notes are stored; want at most %d", n, MaxStateChangesPerParent+1)
	}
}

// A request is rejected if the dependencies of one of its jobs can never be satisfied.
func TestUnsatisfiableDependenciesAreRejected(t *testing.T) {
	draft := func(id string, parents ...string) queue.Job {
		j := queue.Job{ID: id}
		for _, p := range parents {
			j.DependsOn = append(j.DependsOn, queue.Dependency{ParentID: p, Condition: queue.ParentCompleted})
		}
		return j
	}
	cases := map[string]struct {
		drafts []queue.Job
		want   string
	}{
		"a job that does not exist": {[]queue.Job{draft("a", "nowhere")}, `there is no job "nowhere"`},
		"itself":                    {[]queue.Job{draft("a", "a")}, "a waits for a"},
		"a cycle": {[]queue.Job{draft("a", "c"), draft("b", "a"), draft("c", "b")},
			"a waits for c waits for b waits for a"},
		"a number beyond the request": {[]queue.Job{{ID: "a",
			DependsOn: []queue.Dependency{{ParentDraftNumber: 2, Condition: queue.ParentEnded}}}},
			"refers to job 2 of the request"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			_, err := f.enqueue(c.drafts...)
			wantRejection(t, err, queue.CodeInvalid, c.want)
			if len(f.jobs) != 0 {
				t.Errorf("%d jobs of the rejected request are stored", len(f.jobs))
			}
		})
	}
}

// Jobs of one request may depend on each other in any order.
func TestJobMayDependOnLaterJobOfRequest(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftDependingOn("child", "parent", queue.ParentCompleted), queue.Job{ID: "parent"})
	f.wantStates("child parent", "blocked pending")
	f.claimAndReportEnd("parent", queue.Completed)
	f.wantStates("child", "pending")
}

// An edit can replace the parents of a job, but cannot make the job wait for itself.
func TestEditReplacesParentsWithoutCycle(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "a"})
	f.mustEnqueue(draftDependingOn("b", "a", queue.ParentCompleted))
	f.mustEnqueue(draftDependingOn("c", "b", queue.ParentCompleted))
	edit := func(id, parent string) error {
		seq := f.jobByID(id).Seq
		return f.runTx(func(r *Rules) error {
			return r.ChangeJob(seq, store.JobChange{Verb: queue.VerbEdit, UID: userA, EditJob: func(j *queue.Job) error {
				j.DependsOn = []queue.Dependency{{ParentID: parent, Condition: queue.ParentCompleted}}
				return nil
			}})
		})
	}
	wantRejection(t, edit("b", "c"), queue.CodeInvalid, `"c" waits for this job`)
	wantRejection(t, edit("b", "b"), queue.CodeInvalid, "cannot depend on itself")
	if err := edit("c", "a"); err != nil {
		t.Fatal(err)
	}
	f.claimAndReportEnd("a", queue.Completed)
	f.wantStates("b c", "pending pending")
}
