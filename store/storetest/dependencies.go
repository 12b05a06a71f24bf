package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var depending = []promise{
	{name: "a job waits for others", keep: waitsForOthers},
	{name: "a job waits for drafts of its request", keep: waitsForDrafts},
	{name: "what has ended decides at once", keep: decidedAtOnce},
	{name: "what ends otherwise cancels, holds or is let pass", keep: endsOtherwise},
	{name: "a cancelled job cancels those that wait for it", keep: cancelsOn},
	{name: "a removed job has not ended as asked", keep: removedParent},
	{name: "what a staged job waits for may go", keep: stagedParentGoes},
	{name: "drafts of a frame wait for each other", keep: framesWait},
	{name: "nobody waits for what is not there, or for itself", keep: wrongDependencies},
	{name: "a job that is held waits still", keep: heldWaits},
	{name: "a job that is retried waits for what is left", keep: retriedWaits},
	{name: "a job that earns points begins when it may run", keep: earnsFromThen},
	{name: "parents are named by id", keep: namedParents},
	{name: "a retried parent takes those back that were cancelled for its sake", keep: retriedParent},
	{name: "an edit changes what a job waits for", keep: editedParents},
	{name: "what waits and has waited is told", keep: toldLinks},
	{name: "a job that starts is told of those that it waited for", keep: parentsTold},
	{name: "a job with many dependants ends at once", keep: manyDependants},
}

// after makes a draft depend on parents that end in the given way.
func after(how queue.ParentEnd, parents ...queue.Job) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, p := range parents {
			j.After = append(j.After, queue.Dependency{Job: p.Seq, How: how})
		}
	}
}

func otherwise(do queue.Otherwise) func(*queue.Job) {
	return func(j *queue.Job) { j.OtherwiseDo = do }
}

func (r *rig) in(what string, j queue.Job, want queue.State, reason queue.Reason) {
	r.Helper()
	if got := r.get(j.ID); got.State != want || got.Reason != reason {
		r.Errorf("%s: job %s is %s %q, want %s %q", what, j.ID, got.State, got.Reason, want, reason)
	}
}

func framesWait(r *rig) {
	stage := func(drafts ...queue.Job) (store.Receipt, error) {
		return r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: asker, Batch: "b"})
	}
	waits := func(j *queue.Job) { j.After = []queue.Dependency{{Draft: 2, How: queue.ParentCompleted}} }
	got, err := stage(draft(waits), draft())
	r.must(err)
	_, err = stage(draft(waits), draft(waits))
	r.refused("drafts that wait for each other", err, queue.CodeInvalid, "depends_on")
	_, err = stage(draft(demands(lock("k", 0))))
	r.refused("a lock of none", err, queue.CodeInvalid, "demands")
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b"})
	r.must(err)
	r.finish(committed)
	r.in("before the other has ended", r.get(got.IDs[0]), queue.Blocked, "")
	r.end(r.claims("the other", r.get(got.IDs[1]))[0], exit(0))
	r.claims("then this one", r.get(got.IDs[0]))
}

func waitsForOthers(r *rig) {
	parents := r.store(draft(), draft())
	child := r.one(after(queue.ParentCompleted, parents...))
	r.in("at first", child, queue.Blocked, "")
	got := r.claims("the parents alone", parents...)
	r.end(got[0], exit(0))
	r.claims("one has ended")
	r.end(got[1], exit(1)) // the parent will be retried
	r.in("the other has failed", child, queue.Blocked, "")
	r.pass(time.Hour)
	r.promote()
	r.end(r.claims("the other", parents[1])[0], exit(0))
	r.in("both have ended", child, queue.Pending, "")
	r.claims("it may run", child)
	r.counted()
}

func waitsForDrafts(r *rig) {
	third := func(j *queue.Job) {
		j.After = []queue.Dependency{{Draft: 2, How: queue.ParentCompleted}, {Draft: 3, How: queue.ParentCompleted}}
	}
	jobs := r.store(draft(third), draft(), draft())
	for _, j := range r.claims("in any order", jobs[1], jobs[2]) {
		r.end(j, exit(0))
	}
	r.claims("both have ended", jobs[0])
}

func decidedAtOnce(r *rig) {
	done := r.run(exit(0))
	dead := r.run(exit(1), maxAttempts(1))
	jobs := r.store(draft(after(queue.ParentCompleted, done)), draft(after(queue.ParentDead, dead)), draft(after(queue.ParentEnded, done, dead)),
		draft(after(queue.ParentCompleted, done, dead)), draft(after(queue.ParentCompleted, dead), otherwise(queue.OtherwiseHold)), draft(after(queue.ParentCompleted, dead), otherwise(queue.OtherwiseRun)))
	r.claims("those that may", jobs[0], jobs[1], jobs[2], jobs[5])
	r.in("that can never run", jobs[3], queue.Cancelled, queue.ReasonDependency)
	r.in("that is to be held", jobs[4], queue.Held, queue.ReasonDependency)
	r.counted()
}

func endsOtherwise(r *rig) {
	parent := r.one(maxAttempts(1))
	jobs := r.store(draft(after(queue.ParentCompleted, parent)), draft(after(queue.ParentCompleted, parent), otherwise(queue.OtherwiseHold)),
		draft(after(queue.ParentCompleted, parent), otherwise(queue.OtherwiseRun)), draft(after(queue.ParentDead, parent)), draft(after(queue.ParentEnded, parent)))
	r.end(r.claims("the parent", parent)[0], exit(1))
	r.in("as usual", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.in("to be held", jobs[1], queue.Held, queue.ReasonDependency)
	r.claims("the others", jobs[2], jobs[3], jobs[4])
	r.counted()
}

func cancelsOn(r *rig) {
	first := r.one()
	second := r.one(after(queue.ParentCompleted, first))
	third := r.one(after(queue.ParentCompleted, second))
	last := r.one(after(queue.ParentEnded, third))
	r.must(r.change(first, queue.VerbCancel))
	r.in("its child", second, queue.Cancelled, queue.ReasonDependency)
	r.in("and its child", third, queue.Cancelled, queue.ReasonDependency)
	r.claims("which has ended", last)
}

func removedParent(r *rig) {
	parents := r.store(draft(), draft())
	jobs := r.store(draft(after(queue.ParentEnded, parents[0])), draft(after(queue.ParentCompleted, parents[1])))
	r.must(r.change(parents[0], queue.VerbRemove))
	r.in("nobody knows how it would have ended", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.must(r.change(jobs[1], queue.VerbRemove)) // removing a job removes its dependencies
	r.end(r.claims("the other parent", parents[1])[0], exit(0))
	r.counted()
}

func stagedParentGoes(r *rig) {
	parents := r.store(draft(), draft())
	_, err := r.s.StageBatch(r.Context(), store.Request{Batch: "b", UID: asker, Drafts: []queue.Job{
		draft(), draft(after(queue.ParentCompleted, parents[0])), draft(after(queue.ParentEnded, parents[1]), otherwise(queue.OtherwiseRun))}})
	r.must(err)
	for _, p := range parents {
		r.must(r.change(p, queue.VerbRemove))
	}
	committed, err := r.s.Enqueue(r.Context(), store.Request{Batch: "b", UID: asker})
	r.must(err)
	r.finish(committed)
	got := r.turn(store.Report{Want: 9}).Jobs
	same(r, "jobs that may run", len(got), 2)
	same(r, "cancelled jobs", r.s.Counts().States[queue.Cancelled], int64(1))
	r.counted()
}

func wrongDependencies(r *rig) {
	ask := func(what string, drafts ...queue.Job) {
		r.Helper()
		r.unchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: asker})
			r.refusedCode(what, err, queue.CodeInvalid)
			if err != nil && !strings.Contains(err.Error(), "depends_on") {
				r.Errorf("%s: %v does not name the field", what, err)
			}
		})
	}
	of := func(list ...int) queue.Job {
		return draft(func(j *queue.Job) {
			for _, n := range list {
				j.After = append(j.After, queue.Dependency{Draft: n, How: queue.ParentCompleted})
			}
		})
	}
	ask("an unknown job", draft(after(queue.ParentCompleted, queue.Job{Seq: 99})))
	ask("a draft that is not there", of(2))
	ask("itself", of(1))
	ask("a ring", draft(), of(3), of(4, 1), of(2))
	ask("too many", draft(func(j *queue.Job) {
		j.After = make([]queue.Dependency, queue.MaxDependencies+1)
		for i := range j.After {
			j.After[i] = queue.Dependency{Draft: 1}
		}
	}))
}

func heldWaits(r *rig) {
	parents := r.store(draft(), draft())
	child := r.one(after(queue.ParentCompleted, parents...))
	r.must(r.change(child, queue.VerbHold))
	got := r.claims("the parents", parents...)
	r.end(got[0], exit(0))
	r.must(r.change(child, queue.VerbRelease))
	r.in("one is left", child, queue.Blocked, "")
	r.must(r.change(child, queue.VerbHold))
	r.end(got[1], exit(0))
	r.in("none is left", child, queue.Held, "")
	r.must(r.change(child, queue.VerbRelease))
	r.claims("released", child)
}

func retriedWaits(r *rig) {
	parents := r.store(draft(maxAttempts(1)), draft())
	child := r.one(after(queue.ParentCompleted, parents...))
	got := r.claims("the parents", parents...)
	r.end(got[0], exit(1))
	r.in("one is dead", child, queue.Cancelled, queue.ReasonDependency)
	r.must(r.change(child, queue.VerbRetry))
	r.in("a person wants it all the same", child, queue.Blocked, "")
	r.end(got[1], exit(0))
	r.end(r.claims("the other has ended", child)[0], exit(0))
	r.must(r.change(parents[0], queue.VerbRetry))
	r.promote()
	r.in("it has run, and its parent waits to", child, queue.Completed, "")
	r.must(r.change(child, queue.VerbRetry))
	r.in("it is wanted again, too", child, queue.Pending, "")
	r.claims("neither waits for the other", parents[0], child)
	r.counted()
}

func earnsFromThen(r *rig) {
	parent := r.one()
	child := r.one(after(queue.ParentCompleted, parent))
	later := r.one(func(j *queue.Job) { j.Delay = time.Hour }, after(queue.ParentCompleted, parent))
	r.pass(time.Minute)
	other := r.one()
	got := r.claims("the parent and another", parent, other)
	r.pass(time.Minute)
	r.end(got[0], exit(0))
	same(r, "since", r.get(child.ID).Since, r.s.Now())
	same(r, "due", r.get(later.ID).DueAt, r.get(later.ID).RunAt)
	r.claims("not before its time", child)
	r.pass(time.Hour)
	r.promote()
	r.claims("then", later)
}

// Many dependants are decided in several steps, which Promote continues. A dependant that is added in
// between, while the parent is to run again, waits for the parent to end again.
func manyDependants(r *rig) {
	const many = 400
	parent := r.one()
	drafts := make([]queue.Job, many)
	for i := range drafts {
		drafts[i] = draft(after(queue.ParentCompleted, parent))
	}
	r.store(drafts...)
	r.end(r.claims("the parent", parent)[0], exit(0))
	r.must(r.change(parent, queue.VerbRetry))
	late := r.one(after(queue.ParentCompleted, parent))
	for range many {
		if r.promote() != 0 {
			break
		}
	}
	same(r, "waiting jobs", r.s.Counts().States[queue.Pending], int64(many+1))
	r.in("it waits for another end", late, queue.Blocked, "")
}

// byID makes a draft depend on jobs with these ids.
func byID(how queue.ParentEnd, ids ...string) func(*queue.Job) {
	return func(j *queue.Job) {
		for _, id := range ids {
			j.After = append(j.After, queue.Dependency{ID: id, How: how})
		}
	}
}

func namedParents(r *rig) {
	parent := r.one(named("p"))
	hook := r.one(named("h"), of(7), func(j *queue.Job) { j.Hooks = queue.HookItself | queue.HookSettings })
	jobs := r.store(draft(named("c"), byID(queue.ParentCompleted, "b", "p")), draft(named("b")))
	r.in("it waits for both", jobs[0], queue.Blocked, "")
	r.unchanged(func() {
		_, err := r.ask(byID(queue.ParentCompleted, "nobody"))
		r.refused("an unknown id", err, queue.CodeInvalid, "depends_on")
		_, err = r.ask(byID(queue.ParentCompleted, "h"))
		r.refused("another one's hook of the settings", err, queue.CodeInvalid, "depends_on")
		_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Drafts: []queue.Job{draft(named("x"), byID(queue.ParentCompleted, "y")), draft(named("y"), byID(queue.ParentCompleted, "x"))}})
		r.refused("a ring", err, queue.CodeInvalid, "depends_on")
	})
	stage := func(drafts ...queue.Job) error {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: asker, Batch: "f"})
		return err
	}
	r.must(stage(draft(named("first"))))
	r.must(stage(draft(named("second"), byID(queue.ParentCompleted, "first"))))
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(of(7), byID(queue.ParentCompleted, "first"))}, UID: 7, Batch: "f"})
	r.refused("what another one stages", err, queue.CodeInvalid, "depends_on")
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "f"})
	r.must(err)
	r.finish(committed)
	got := r.claims("what waits for nothing", parent, hook, jobs[1], r.get("first"))
	r.end(got[3], exit(0))
	r.claims("the second frame", r.get("second"))
}

func retriedParent(r *rig) {
	parents := r.store(draft(maxAttempts(1)), draft(maxAttempts(1)))
	child := r.one(after(queue.ParentCompleted, parents[0]))
	grand := r.one(after(queue.ParentCompleted, child), delay(time.Hour))
	both := r.one(after(queue.ParentCompleted, parents...))
	got := r.claims("the parents", parents...)
	r.end(got[0], exit(1))
	r.end(got[1], exit(1))
	for _, j := range []queue.Job{child, grand, both} {
		r.in("its parent is dead", j, queue.Cancelled, queue.ReasonDependency)
	}
	alone := store.Change{Verb: queue.VerbRetry, Alone: true}
	r.must(r.s.Change(r.Context(), parents[0].Seq, alone))
	r.in("the parent alone", child, queue.Cancelled, queue.ReasonDependency)
	r.end(r.claims("it runs", parents[0])[0], exit(1))
	r.must(r.change(parents[0], queue.VerbRetry))
	r.promote()
	r.in("it waits again", child, queue.Blocked, "")
	r.in("and who waits for it", grand, queue.Blocked, "")
	r.in("who waits for the other too", both, queue.Cancelled, queue.ReasonDependency)
	r.end(r.claims("it runs again", parents[0])[0], exit(0))
	r.promote()
	r.end(r.claims("the child", child)[0], exit(0))
	r.must(r.change(parents[1], queue.VerbRetry))
	r.promote()
	r.in("it waits for the other", both, queue.Blocked, "")
	r.end(r.claims("the other", parents[1])[0], exit(0))
	r.promote()
	r.claims("both have ended", both)
	r.counted()
}

func editedParents(r *rig) {
	parents := r.store(draft(named("a")), draft(named("b")), draft(named("done")))
	got := r.claims("all", parents...)
	r.end(got[2], exit(0))
	child := r.one(named("c"), delay(time.Hour))
	to := func(j queue.Job, list ...queue.Dependency) error {
		return r.edit(j, func(j *queue.Job) error { j.After = append([]queue.Dependency{}, list...); return nil })
	}
	completed := func(ids ...string) (list []queue.Dependency) {
		for _, id := range ids {
			list = append(list, queue.Dependency{ID: id, How: queue.ParentCompleted})
		}
		return list
	}
	r.must(to(child, completed("a", "done")...))
	r.in("it waits", child, queue.Blocked, "")
	r.unchanged(func() {
		r.refusedCode("itself", to(child, completed("c")...), queue.CodeInvalid)
		r.refusedCode("nobody", to(child, completed("zzz")...), queue.CodeInvalid)
		r.refusedCode("what has ended otherwise", to(child, queue.Dependency{ID: "done", How: queue.ParentDead}), queue.CodeInvalid)
	})
	grand := r.one(named("g"), byID(queue.ParentCompleted, "c"))
	r.unchanged(func() { r.refusedCode("a ring", to(child, completed("g")...), queue.CodeInvalid) })
	r.must(r.edit(grand, func(j *queue.Job) error { j.Priority = 9; return nil }))
	r.in("another edit leaves it", grand, queue.Blocked, "")
	r.must(to(child, completed("b")...))
	r.end(got[0], exit(1))
	r.in("it waits for the other now", child, queue.Blocked, "")
	r.must(to(child))
	r.in("for nobody", child, queue.Pending, "")
	r.end(got[1], exit(0))
	r.counted()
}

func toldLinks(r *rig) {
	parents := r.store(draft(named("a")), draft(named("b")), draft(named("gone")))
	child := r.one(named("c"), func(j *queue.Job) {
		j.After = []queue.Dependency{{ID: "a", How: queue.ParentCompleted}, {ID: "b", How: queue.ParentEnded}, {ID: "gone", How: queue.ParentDead}}
		j.OtherwiseDo = queue.OtherwiseRun
	})
	same(r, "those that it waits for, as it is read", r.get("c").After, []queue.Dependency{
		{ID: "a", Job: parents[0].Seq, How: queue.ParentCompleted}, {ID: "b", Job: parents[1].Seq, How: queue.ParentEnded}, {ID: "gone", Job: parents[2].Seq, How: queue.ParentDead}})
	r.must(r.change(parents[2], queue.VerbRemove))
	r.end(r.claims("the parents", parents[0], parents[1])[0], exit(0))
	up, down, err := r.s.Links(r.Context(), child.Seq, 9)
	r.must(err)
	same(r, "parents", up, []store.Link{
		{Seq: parents[1].Seq, ID: "b", State: queue.Pending, How: queue.ParentEnded},
		{Seq: parents[0].Seq, ID: "a", State: queue.Completed, How: queue.ParentCompleted, Met: store.Well},
		{Seq: parents[2].Seq, How: queue.ParentDead, Met: store.Well}})
	same(r, "children", down, nil)
	up, down, err = r.s.Links(r.Context(), parents[1].Seq, 9)
	r.must(err)
	same(r, "no parents", up, nil)
	same(r, "its child", down, []store.Link{{Seq: child.Seq, ID: "c", State: queue.Blocked, How: queue.ParentEnded}})
	_, _, err = r.s.Links(r.Context(), 99, 9)
	r.refusedCode("of nobody", err, queue.CodeNotFound)
	up, _, err = r.s.Links(r.Context(), child.Seq, 1)
	r.must(err)
	same(r, "up to one", len(up), 1)
}

func parentsTold(r *rig) {
	first := r.one(named("a"), maxAttempts(1))
	e := r.settlement(r.claimOne(), exit(0))
	e.Attempt.Result = []byte(`{"x":1}`)
	r.turn(store.Report{Ended: []store.Settlement{e}})
	second := r.one(named("b"), maxAttempts(1), func(j *queue.Job) { j.UID = 7 })
	r.end(r.claimOne(), exit(3))
	gone := r.one(named("c"))
	child := r.one(after(queue.ParentEnded, second, first, gone))
	r.must(r.change(r.get("c"), queue.VerbCancel))
	r.must(r.change(r.get("c"), queue.VerbRemove))
	if got := r.get(child.ID); got.Parents != 3 {
		r.Errorf("it knows of %d parents, want 3", got.Parents)
	}
	got, err := r.s.Parents(r.Context(), child.Seq)
	r.must(err)
	same(r, "parents", got, []store.Parent{{ID: "b", UID: 7, State: queue.Dead, ExitCode: 3}, {ID: "a", UID: asker, State: queue.Completed, Result: []byte(`{"x":1}`)}})
	got, err = r.s.Parents(r.Context(), first.Seq)
	r.must(err)
	same(r, "parents of who has none", got, nil)
	if _, err := r.s.Parents(r.Context(), 99); !errors.Is(err, queue.ErrNotFound) {
		r.Errorf("got error %v, want %v", err, queue.ErrNotFound)
	}
}
