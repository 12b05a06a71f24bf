package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var hookPromises = []promise{
	{name: "a hook is created once for each moment that the job requests", check: requestedHooksAreCreatedOnce},
	{name: "hooks for all jobs are created in addition to a job's own hooks", check: triggersAddToRequestedHooks},
	{name: "a hook job gets no hooks", check: hookHasNoHooks},
	{name: "every way of cancelling a job creates its hook", check: cancellingCreatesHook},
	{name: "jobs of a batch get their hooks", check: batchJobsGetHooks},
	{name: "an edit changes a job's hooks", check: editChangesHooks},
	{name: "a full queue does not prevent hooks, but MaxWaitingHookJobs per user does", check: waitingHookJobsAreLimited},
	{name: "a hook removes old outputs of its user if the byte quota requires it", check: hookRemovesOutputsAtQuota},
	{name: "a hook stores no name for another user", check: hookNamesNoOtherUser},
	{name: "jobs of a former owner create no hooks", check: disownedJobsCreateNoHooks},
}

// hooksOf returns one hook (a job that is created because of an event of job j) for each of the given events.
// The command of a hook contains the event and describes j.
func hooksOf(j *queue.Job, events queue.HookEvents) (drafts []queue.Job) {
	for _, moment := range queue.AllHookEvents {
		if moment&events == 0 {
			continue
		}
		d := draft(func(d *queue.Job) {
			d.Queue, d.UID, d.MaxAttempts, d.Priority = queue.HookQueue, j.UID, 2, 1
			d.Command, d.Env = fmt.Sprintf("%s %s %v %d", moment, j.ID, j.State, j.StartedAttempts), j.Env
		})
		drafts = append(drafts, d)
	}
	return drafts
}

// withHooks returns a function that makes a job request hooks for the given events.
func withHooks(events queue.HookEvents) func(*queue.Job) {
	return func(j *queue.Job) { j.HookEvents = events }
}

// makeHooks makes the store create hooks with hooksOf. Each job gets hooks for the events that it requests and,
// in addition, for the given events.
func (r *rig) makeHooks(events queue.HookEvents) {
	r.Helper()
	r.must(r.s.SetHooks(r.Context(), store.Hooks{Triggers: events, MakeHooks: hooksOf, Owner: "hooks"}))
}

// newHooks returns the commands of the hooks that were created since its last call, oldest first.
func (r *rig) newHooks() (list []string) {
	r.Helper()
	for _, e := range r.newEvents() {
		if e.Kind != queue.EventEnqueued {
			continue
		}
		if j := r.getJob(e.JobID); j.Queue == queue.HookQueue {
			list = append(list, j.Command)
		}
	}
	return list
}

func requestedHooksAreCreatedOnce(r *rig) {
	r.makeHooks(0)
	r.enqueueOne(withHooks(queue.HookFailed|queue.HookDead|queue.HookEnded), withMaxAttempts(2), withID("a"),
		func(j *queue.Job) { j.Env = []string{"A=b"} })
	r.newHooks()
	j := r.claimOne()
	e := r.settlement(j, exitOutcome(3))
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	checkEqual(r, "after the first attempt", r.newHooks(), []string{"failed a failed 1"})
	r.checkCounts()
	r.exchange(store.Report{Settlements: []store.Settlement{e}}) // the lease has ended, so this report has no effect
	checkEqual(r, "after a stale report", r.newHooks(), nil)
	hook := r.claimOne()
	checkEqual(r, "the hook job", hook, func() queue.Job {
		j := r.getJob(hook.ID)
		j.HookEvents, j.Queue, j.Env = queue.IsHook, queue.HookQueue, []string{"A=b"}
		return j
	}())
	r.settle(hook, exitOutcome(1))
	checkEqual(r, "after the hook failed", r.newHooks(), nil)
	r.advanceAndPromote(time.Minute)
	for range 2 {
		if j = r.claimOne(); j.ID != "a" {
			r.settle(j, exitOutcome(0))
			continue
		}
		r.settle(j, exitOutcome(3))
	}
	checkEqual(r, "after the last attempt", r.newHooks(), []string{"dead a dead 2", "ended a dead 2"})
	for range 2 {
		r.settle(r.claimOne(), exitOutcome(0))
	}
	r.must(r.change(r.getJob("a"), queue.VerbRetry))
	r.settle(r.claimOne(), exitOutcome(0))
	checkEqual(r, "after the job was retried", r.newHooks(), []string{"ended a completed 3"})
	r.checkCounts()
}

// If the settings request hooks for all jobs, these are created in addition to the hooks that a job requests.
func triggersAddToRequestedHooks(r *rig) {
	r.makeHooks(queue.HookCompleted | queue.HookDead)
	r.enqueueOne(withHooks(queue.HookEnded), withID("a"))
	r.settle(r.claimOne(), exitOutcome(0))
	r.enqueueOne(withID("b"), withMaxAttempts(1))
	r.settle(r.claimOne(), exitOutcome(1)) // this claims job b, because it ranks before the hook jobs
	checkEqual(r, "hooks", r.newHooks(), []string{"completed a completed 1", "ended a completed 1", "dead b dead 1"})
	r.must(r.s.SetHooks(r.Context(), store.Hooks{}))
	r.enqueueOne(withID("c"), withHooks(queue.HookEnded))
	r.must(r.change(r.getJob("c"), queue.VerbCancel))
	checkEqual(r, "hooks after hooks were switched off", r.newHooks(), nil)
}

func hookHasNoHooks(r *rig) {
	r.makeHooks(queue.HookCompleted | queue.HookFailed | queue.HookDead | queue.HookEnded)
	r.enqueueOne(withID("a"))
	r.settle(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.newHooks(), []string{"completed a completed 1", "ended a completed 1"})
	r.settle(r.claimOne(), exitOutcome(0))
	r.settle(r.claimOne(), exitOutcome(1))
	checkEqual(r, "hooks of hooks", r.newHooks(), nil)
}

func cancellingCreatesHook(r *rig) {
	r.makeHooks(0)
	ends := withHooks(queue.HookEnded)
	r.enqueueAndGet(draft(ends, withID("a"), withDelay(time.Hour)),
		draft(ends, withID("b"), withExpiry(r.s.Now().Add(time.Second)), withDelay(time.Hour)),
		draft(ends, withID("c"), withDelay(time.Hour)))
	parent := r.getJob("a")
	r.enqueueAndGet(draft(ends, withID("d"), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{JobSeq: parent.Seq, Condition: queue.ParentCompleted}}
	}))
	r.newHooks()
	r.must(r.change(parent, queue.VerbCancel))
	r.advanceAndPromote(time.Second)
	r.must(r.change(r.getJob("c"), queue.VerbRemove)) // removing a job that has not ended creates no hook
	list := r.newHooks()
	checkEqual(r, "hooks", list[:1], []string{"ended a cancelled 0"})
	rest := map[string]bool{}
	for _, command := range list[1:] {
		rest[command] = true
	}
	checkEqual(r, "hooks of the dependant and the expired job", rest,
		map[string]bool{"ended b cancelled 0": true, "ended d cancelled 0": true})
	r.checkCounts()
}

func batchJobsGetHooks(r *rig) {
	r.makeHooks(0)
	ctx := r.Context()
	_, err := r.s.StageBatch(ctx, store.Request{UID: testUID, Batch: "x",
		Drafts: []queue.Job{draft(withHooks(queue.HookCompleted))}})
	r.must(err)
	receipt, err := r.s.Enqueue(ctx, store.Request{UID: testUID, Batch: "x"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.s.ApplyBatch(ctx, receipt.Batch)
		r.must(err)
	}
	r.newHooks()
	j := r.settle(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.newHooks(), []string{"completed " + j.ID + " completed 1"})
}

func editChangesHooks(r *rig) {
	r.makeHooks(0)
	r.enqueueOne(withID("a"), withHooks(queue.HookDead))
	r.must(r.s.Change(r.Context(), r.getJob("a").Seq,
		store.Change{Verb: queue.VerbEdit, UID: testUID, Edit: func(j *queue.Job) error {
			j.HookEvents = queue.HookCompleted
			return nil
		}}))
	r.newHooks()
	r.settle(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.newHooks(), []string{"completed a completed 1"})
}

// The limits on waiting jobs do not prevent hooks, except that each user has at most
// MaxWaitingHookJobs of them.
func waitingHookJobsAreLimited(r *rig) {
	r.makeHooks(0)
	ends := withHooks(queue.HookEnded)
	cancelled := func(id string) {
		_, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Drafts: []queue.Job{draft(ends, withID(id))}})
		r.must(err)
		r.must(r.s.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, MaxPending: 1}))
		r.must(r.change(r.getJob(id), queue.VerbCancel))
	}
	cancelled("a")
	cancelled("b")
	if n := len(r.newHooks()); n != 2 {
		r.Errorf("got %d hooks with a full queue, want 2", n)
	}
	r.must(r.s.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, Concurrency: 1}))
	var drafts []queue.Job
	for range queue.MaxWaitingHookJobs - 2 {
		drafts = append(drafts, draft(withHooks(queue.IsHook),
			func(j *queue.Job) { j.Queue, j.HookUID = queue.HookQueue, testUID }))
	}
	r.enqueue(testUID, drafts...)
	r.newEvents()
	cancelled("c")
	var kinds []queue.EventKind
	for _, e := range r.newEvents() {
		kinds = append(kinds, e.Kind)
	}
	checkEqual(r, "events", kinds, []queue.EventKind{queue.EventEnqueued, queue.EventCancelled, queue.EventHookDropped})
}

// To make room for a hook, the store removes old outputs of its user. If that is not enough,
// the hook is not created.
func hookRemovesOutputsAtQuota(r *rig) {
	quota := func(n int64) {
		r.Helper()
		r.must(r.s.SetHooks(r.Context(), store.Hooks{MakeHooks: hooksOf, Owner: "hooks", MaxBytesPerUser: n}))
	}
	old := r.endWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 5000, 0)
	first, second := r.enqueueAndClaim(1, withHooks(queue.HookCompleted)),
		r.enqueueAndClaim(1, withHooks(queue.HookCompleted))
	limit := r.bytesHeld(1) + 100
	quota(limit)
	r.newHooks()
	r.settle(first, exitOutcome(0))
	checkEqual(r, "hooks with room", len(r.newHooks()), 1)
	checkEqual(r, "output that was removed", r.outputSizes(old, 1), []int64{queue.OutputOverQuota})
	if used := r.bytesHeld(1); used > limit {
		r.Errorf("with the hook, the user holds %d bytes, and %d are allowed", used, limit)
	}
	before := r.bytesHeld(1)
	quota(before + 100)
	r.settle(second, exitOutcome(0))
	var kinds []queue.EventKind
	for _, e := range r.newEvents() {
		kinds = append(kinds, e.Kind)
	}
	checkEqual(r, "events without room", kinds, []queue.EventKind{queue.EventEnded, queue.EventHookDropped})
	checkEqual(r, "bytes without room", r.bytesHeld(1), before)
}

func disownedJobsCreateNoHooks(r *rig) {
	r.makeHooks(0)
	_, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Owner: "x",
		Drafts: []queue.Job{draft(withID("a"), withHooks(queue.HookCompleted|queue.HookEnded)),
			draft(withID("b"), withHooks(queue.HookEnded))}})
	r.must(err)
	j := r.claimOne()
	for more := true; more; {
		more, err = r.s.Disown(r.Context(), testUID, "x")
		r.must(err)
	}
	r.exchange(store.Report{Settlements: []store.Settlement{r.settlement(j, exitOutcome(0))}})
	r.must(r.change(r.getJob("b"), queue.VerbCancel))
	checkEqual(r, "hooks", r.newHooks(), nil)
}

// When a hook runs as another user than Hooks.UID, the store does not record Hooks.Owner
// as the name of that user.
func hookNamesNoOtherUser(r *rig) {
	r.must(r.s.SetHooks(r.Context(), store.Hooks{MakeHooks: hooksOf, UID: 7, Owner: "hooks"}))
	r.enqueueOne(withHooks(queue.HookEnded), withID("a")) // the store does not know the name of this job's user
	r.must(r.change(r.getJob("a"), queue.VerbCancel))
	names, _, err := r.s.Owners(r.Context())
	r.must(err)
	checkEqual(r, "names", names, map[int]string{})
}
