package storetest

import (
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
	{name: "a job with many dependants ends at once", keep: manyDependants},
}

// after has a draft wait for jobs that end so.
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
	r.end(got[1], exit(1)) // it is tried again
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
	r.must(r.change(jobs[1], queue.VerbRemove)) // nothing is left of what it waited for
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
	r.claims("the other has ended", child)
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

// manyDependants takes steps, which Promote goes on with. Whoever comes to wait meanwhile, since the
// job is to run again, waits for that.
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
