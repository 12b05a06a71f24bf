package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var hooking = []promise{
	{name: "a hook is made with what it tells of, once for each time", keep: hookIsMade},
	{name: "hooks of all jobs are made beside a job's own", keep: hooksOfAll},
	{name: "a hook has none of its own", keep: hookHasNone},
	{name: "whoever cancels a job, its hook is made", keep: hookOfCancelled},
	{name: "jobs of a batch have their hooks", keep: hookOfBatch},
	{name: "an edit gives a job another hook", keep: hookEdited},
	{name: "a hook is made though the queue is full, unless too many of the user wait", keep: hooksAreBounded},
	{name: "a hook makes room in its user's quota, and is not made without", keep: hooksInQuota},
	{name: "a hook names the account of the settings alone", keep: hookNamesNobody},
	{name: "nobody has a hook run whose account is no more", keep: hookOfNobody},
}

// hooksOf returns hooks whose commands contain the moment and the job for which they were made.
func hooksOf(j *queue.Job, on queue.HookSet) (drafts []queue.Job) {
	for _, moment := range queue.Hooks {
		if moment&on == 0 {
			continue
		}
		d := draft(func(d *queue.Job) {
			d.Queue, d.UID, d.MaxAttempts, d.Priority = queue.HookQueue, j.UID, 2, 1
			d.Command, d.Env = fmt.Sprintf("%s %s %v %d", moment, j.ID, j.State, j.Runs), j.Env
		})
		drafts = append(drafts, d)
	}
	return drafts
}

// hooked makes a job request hooks at these moments.
func hooked(set queue.HookSet) func(*queue.Job) {
	return func(j *queue.Job) { j.Hooks = set }
}

// makesHooks makes the store create hooks with hooksOf. on lists the moments at which every job gets one.
func (r *rig) makesHooks(on queue.HookSet) {
	r.Helper()
	r.must(r.s.SetHooks(r.Context(), store.Hooks{On: on, Make: hooksOf, Owner: "hooks"}))
}

// hooks returns the commands of the hooks created since the last call, oldest first.
func (r *rig) hooks() (list []string) {
	r.Helper()
	for _, e := range r.news() {
		if e.Kind != queue.EventEnqueued {
			continue
		}
		if j := r.get(e.ID); j.Queue == queue.HookQueue {
			list = append(list, j.Command)
		}
	}
	return list
}

func hookIsMade(r *rig) {
	r.makesHooks(0)
	r.one(hooked(queue.HookFailed|queue.HookDead|queue.HookEnded), maxAttempts(2), named("a"), func(j *queue.Job) { j.Env = []string{"A=b"} })
	r.hooks()
	j := r.claimOne()
	e := r.settlement(j, exit(3))
	r.turn(store.Report{Ended: []store.Settlement{e}})
	same(r, "after the first attempt", r.hooks(), []string{"failed a failed 1"})
	r.counted()
	r.turn(store.Report{Ended: []store.Settlement{e}}) // a stale report
	same(r, "after a stale report", r.hooks(), nil)
	hook := r.claimOne()
	same(r, "what it is", hook, func() queue.Job {
		j := r.get(hook.ID)
		j.Hooks, j.Queue, j.Env = queue.HookItself, queue.HookQueue, []string{"A=b"}
		return j
	}())
	r.end(hook, exit(1))
	same(r, "after the hook failed", r.hooks(), nil)
	r.pass(time.Minute)
	for range 2 {
		if j = r.claimOne(); j.ID != "a" {
			r.end(j, exit(0))
			continue
		}
		r.end(j, exit(3))
	}
	same(r, "after the last attempt", r.hooks(), []string{"dead a dead 2", "ended a dead 2"})
	for range 2 {
		r.end(r.claimOne(), exit(0))
	}
	r.must(r.change(r.get("a"), queue.VerbRetry))
	r.end(r.claimOne(), exit(0))
	same(r, "after it was run again", r.hooks(), []string{"ended a completed 3"})
	r.counted()
}

func hooksOfAll(r *rig) {
	r.makesHooks(queue.HookCompleted | queue.HookDead)
	r.one(hooked(queue.HookEnded), named("a"))
	r.end(r.claimOne(), exit(0))
	r.one(named("b"), maxAttempts(1))
	r.end(r.claimOne(), exit(1)) // the job ranks before the hooks
	same(r, "hooks", r.hooks(), []string{"completed a completed 1", "ended a completed 1", "dead b dead 1"})
	r.must(r.s.SetHooks(r.Context(), store.Hooks{}))
	r.one(named("c"), hooked(queue.HookEnded))
	r.must(r.change(r.get("c"), queue.VerbCancel))
	same(r, "hooks where the store makes none", r.hooks(), nil)
}

func hookHasNone(r *rig) {
	r.makesHooks(queue.HookCompleted | queue.HookFailed | queue.HookDead | queue.HookEnded)
	r.one(named("a"))
	r.end(r.claimOne(), exit(0))
	same(r, "hooks", r.hooks(), []string{"completed a completed 1", "ended a completed 1"})
	r.end(r.claimOne(), exit(0))
	r.end(r.claimOne(), exit(1))
	same(r, "hooks of hooks", r.hooks(), nil)
}

func hookOfCancelled(r *rig) {
	r.makesHooks(0)
	ends := hooked(queue.HookEnded)
	r.store(draft(ends, named("a"), delay(time.Hour)), draft(ends, named("b"), expires(r.s.Now().Add(time.Second)), delay(time.Hour)), draft(ends, named("c"), delay(time.Hour)))
	parent := r.get("a")
	r.store(draft(ends, named("d"), func(j *queue.Job) { j.After = []queue.Dependency{{Job: parent.Seq, How: queue.ParentCompleted}} }))
	r.hooks()
	r.must(r.change(parent, queue.VerbCancel))
	r.pass(time.Second)
	r.must(r.change(r.get("c"), queue.VerbRemove)) // removing a job is not an end
	list := r.hooks()
	same(r, "hooks", list[:1], []string{"ended a cancelled 0"})
	rest := map[string]bool{}
	for _, command := range list[1:] {
		rest[command] = true
	}
	same(r, "those that followed", rest, map[string]bool{"ended b cancelled 0": true, "ended d cancelled 0": true})
	r.counted()
}

func hookOfBatch(r *rig) {
	r.makesHooks(0)
	ctx := r.Context()
	_, err := r.s.StageBatch(ctx, store.Request{UID: asker, Batch: "x", Drafts: []queue.Job{draft(hooked(queue.HookCompleted))}})
	r.must(err)
	receipt, err := r.s.Enqueue(ctx, store.Request{UID: asker, Batch: "x"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.s.ApplyBatch(ctx, receipt.Batch)
		r.must(err)
	}
	r.hooks()
	j := r.end(r.claimOne(), exit(0))
	same(r, "hooks", r.hooks(), []string{"completed " + j.ID + " completed 1"})
}

func hookEdited(r *rig) {
	r.makesHooks(0)
	r.one(named("a"), hooked(queue.HookDead))
	r.must(r.s.Change(r.Context(), r.get("a").Seq, store.Change{Verb: queue.VerbEdit, UID: asker, Edit: func(j *queue.Job) error {
		j.Hooks = queue.HookCompleted
		return nil
	}}))
	r.hooks()
	r.end(r.claimOne(), exit(0))
	same(r, "hooks", r.hooks(), []string{"completed a completed 1"})
}

func hooksAreBounded(r *rig) {
	r.makesHooks(0)
	ends := hooked(queue.HookEnded)
	cancelled := func(id string) {
		_, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Drafts: []queue.Job{draft(ends, named(id))}})
		r.must(err)
		r.must(r.s.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, MaxPending: 1}))
		r.must(r.change(r.get(id), queue.VerbCancel))
	}
	cancelled("a")
	cancelled("b")
	if n := len(r.hooks()); n != 2 {
		r.Errorf("got %d hooks though its queue is full, want 2", n)
	}
	r.must(r.s.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, Concurrency: 1}))
	var many []queue.Job
	for range queue.MaxHooks - 2 {
		many = append(many, draft(hooked(queue.HookItself), func(j *queue.Job) { j.Queue, j.HookUID = queue.HookQueue, asker }))
	}
	r.enqueue(asker, many...)
	r.news()
	cancelled("c")
	var kinds []queue.EventKind
	for _, e := range r.news() {
		kinds = append(kinds, e.Kind)
	}
	same(r, "events", kinds, []queue.EventKind{queue.EventEnqueued, queue.EventCancelled, queue.EventNoHook})
}

func hooksInQuota(r *rig) {
	quota := func(n int64) {
		r.Helper()
		r.must(r.s.SetHooks(r.Context(), store.Hooks{Make: hooksOf, Owner: "hooks", MaxBytesUser: n}))
	}
	old := r.prints(r.claimOf(1), exit(0), 5000, 0)
	first, second := r.claimOf(1, hooked(queue.HookCompleted)), r.claimOf(1, hooked(queue.HookCompleted))
	most := r.held(1) + 100
	quota(most)
	r.hooks()
	r.end(first, exit(0))
	same(r, "hooks with room", len(r.hooks()), 1)
	same(r, "output that made room", r.sizes(old, 1), []int64{queue.OutputOverQuota})
	if held := r.held(1); held > most {
		r.Errorf("with a hook its user holds %d of %d bytes", held, most)
	}
	before := r.held(1)
	quota(before + 100)
	r.end(second, exit(0))
	var kinds []queue.EventKind
	for _, e := range r.news() {
		kinds = append(kinds, e.Kind)
	}
	same(r, "events without room", kinds, []queue.EventKind{queue.EventEnded, queue.EventNoHook})
	same(r, "bytes without room", r.held(1), before)
}

func hookOfNobody(r *rig) {
	r.makesHooks(0)
	_, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Owner: "x", Drafts: []queue.Job{draft(named("a"), hooked(queue.HookCompleted|queue.HookEnded)), draft(named("b"), hooked(queue.HookEnded))}})
	r.must(err)
	j := r.claimOne()
	for more := true; more; {
		more, err = r.s.Disown(r.Context(), asker, "x")
		r.must(err)
	}
	r.turn(store.Report{Ended: []store.Settlement{r.settlement(j, exit(0))}})
	r.must(r.change(r.get("b"), queue.VerbCancel))
	same(r, "hooks", r.hooks(), nil)
}

func hookNamesNobody(r *rig) {
	r.must(r.s.SetHooks(r.Context(), store.Hooks{Make: hooksOf, UID: 7, Owner: "hooks"}))
	r.one(hooked(queue.HookEnded), named("a")) // the user has no stored name
	r.must(r.change(r.get("a"), queue.VerbCancel))
	names, _, err := r.s.Owners(r.Context())
	r.must(err)
	same(r, "names", names, map[int]string{})
}
