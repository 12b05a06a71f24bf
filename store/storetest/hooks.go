package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var hookTests = []contractTest{
	{name: "a hook is created once for each moment that the job requests", run: requestedHooksAreCreatedOnce},
	{name: "hooks for all jobs are created in addition to a job's own hooks", run: globalHooksAddToRequestedHooks},
	{name: "a hook job gets no hooks", run: hookJobsHaveNoHooks},
	{name: "every way of cancelling a job creates its hook", run: cancellingJobCreatesHookJob},
	{name: "jobs of a batch get their hooks", run: batchJobsGetHooks},
	{name: "an edit changes a job's hooks", run: editChangesHooks},
	{name: "a full queue does not prevent hooks, but MaxWaitingHookJobs per user does", run: waitingHookJobsAreLimited},
	{name: "a hook removes old outputs of its user if the byte quota requires it", run: hookJobRemovesOutputsAtQuota},
	{name: "a hook stores no name for another user", run: hookOwnerNameIsStoredForOwnerOnly},
	{name: "jobs of a former owner create no hooks", run: disownedJobsCreateNoHooks},
}

// createHookDrafts returns one hook job (a job that the store creates because of an event of job j) for each of the
// given events. The command of a hook contains the event and describes j.
func createHookDrafts(j *queue.Job, events queue.HookEvents) (drafts []queue.Job) {
	for _, moment := range queue.AllHookEvents {
		if moment&events == 0 {
			continue
		}
		d := newDraft(func(d *queue.Job) {
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

// installHooks makes the store create hooks with createHookDrafts. Each job gets hooks for the events that it requests
// and, in addition, for the given events.
func (r *storeTest) installHooks(triggerEvents queue.HookEvents) {
	r.Helper()
	r.must(r.store.SetHooks(r.Context(), store.HookSettings{TriggerEvents: triggerEvents, MakeHookDrafts: createHookDrafts,
		OwnerName: "hooks"}))
}

// readNewHookCommands returns the commands of the hooks that were created since the last call of readNewHookCommands,
// oldest first.
func (r *storeTest) readNewHookCommands() (commands []string) {
	r.Helper()
	for _, e := range r.readNewEvents() {
		if e.Kind != queue.EventEnqueued {
			continue
		}
		if j := r.getJob(e.JobID); j.Queue == queue.HookQueue {
			commands = append(commands, j.Command)
		}
	}
	return commands
}

func requestedHooksAreCreatedOnce(r *storeTest) {
	r.installHooks(0)
	r.enqueueOne(withHooks(queue.HookFailed|queue.HookDead|queue.HookEnded), withMaxAttempts(2), withID("a"),
		func(j *queue.Job) { j.Env = []string{"A=b"} })
	r.readNewHookCommands()
	j := r.claimOne()
	e := r.newSettlement(j, exitOutcome(3))
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	checkEqual(r, "after the first attempt", r.readNewHookCommands(), []string{"failed a failed 1"})
	r.checkJobCounts()
	// the lease has ended, so this report has no effect
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	checkEqual(r, "after a stale report", r.readNewHookCommands(), nil)
	hook := r.claimOne()
	checkEqual(r, "the hook job", hook, func() queue.Job {
		j := r.getJob(hook.ID)
		j.HookEvents, j.Queue, j.Env = queue.HookJobFlag, queue.HookQueue, []string{"A=b"}
		return j
	}())
	r.settleJob(hook, exitOutcome(1))
	checkEqual(r, "after the hook failed", r.readNewHookCommands(), nil)
	r.advanceAndApplyDueChanges(time.Minute)
	for range 2 {
		if j = r.claimOne(); j.ID != "a" {
			r.settleJob(j, exitOutcome(0))
			continue
		}
		r.settleJob(j, exitOutcome(3))
	}
	checkEqual(r, "after the last attempt", r.readNewHookCommands(), []string{"dead a dead 2", "ended a dead 2"})
	for range 2 {
		r.settleJob(r.claimOne(), exitOutcome(0))
	}
	r.must(r.applyVerb(r.getJob("a"), queue.VerbRetry))
	r.settleJob(r.claimOne(), exitOutcome(0))
	checkEqual(r, "after the job was retried", r.readNewHookCommands(), []string{"ended a completed 3"})
	r.checkJobCounts()
}

// SetHooks can request hooks for events of all jobs. These hooks are created in addition to the hooks that a job itself
// requests.
func globalHooksAddToRequestedHooks(r *storeTest) {
	r.installHooks(queue.HookCompleted | queue.HookDead)
	r.enqueueOne(withHooks(queue.HookEnded), withID("a"))
	r.settleJob(r.claimOne(), exitOutcome(0))
	r.enqueueOne(withID("b"), withMaxAttempts(1))
	r.settleJob(r.claimOne(), exitOutcome(1)) // this claims job b, because job b has a better rank than the hook jobs
	checkEqual(r, "hooks", r.readNewHookCommands(), []string{"completed a completed 1", "ended a completed 1",
		"dead b dead 1"})
	r.must(r.store.SetHooks(r.Context(), store.HookSettings{}))
	r.enqueueOne(withID("c"), withHooks(queue.HookEnded))
	r.must(r.applyVerb(r.getJob("c"), queue.VerbCancel))
	checkEqual(r, "hooks after hooks were switched off", r.readNewHookCommands(), nil)
}

func hookJobsHaveNoHooks(r *storeTest) {
	r.installHooks(queue.HookCompleted | queue.HookFailed | queue.HookDead | queue.HookEnded)
	r.enqueueOne(withID("a"))
	r.settleJob(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.readNewHookCommands(), []string{"completed a completed 1", "ended a completed 1"})
	r.settleJob(r.claimOne(), exitOutcome(0))
	r.settleJob(r.claimOne(), exitOutcome(1))
	checkEqual(r, "hooks of hooks", r.readNewHookCommands(), nil)
}

func cancellingJobCreatesHookJob(r *storeTest) {
	r.installHooks(0)
	ends := withHooks(queue.HookEnded)
	r.enqueueAndGet(newDraft(ends, withID("a"), withDelay(time.Hour)),
		newDraft(ends, withID("b"), withExpiry(r.store.Now().Add(time.Second)), withDelay(time.Hour)),
		newDraft(ends, withID("c"), withDelay(time.Hour)))
	parent := r.getJob("a")
	r.enqueueAndGet(newDraft(ends, withID("d"), func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentSeq: parent.Seq, Condition: queue.ParentCompleted}}
	}))
	r.readNewHookCommands()
	r.must(r.applyVerb(parent, queue.VerbCancel))
	r.advanceAndApplyDueChanges(time.Second)
	r.must(r.applyVerb(r.getJob("c"), queue.VerbRemove)) // removing a job that has not ended creates no hook
	list := r.readNewHookCommands()
	checkEqual(r, "hooks", list[:1], []string{"ended a cancelled 0"})
	rest := map[string]bool{}
	for _, command := range list[1:] {
		rest[command] = true
	}
	checkEqual(r, "hooks of the dependant and the expired job", rest,
		map[string]bool{"ended b cancelled 0": true, "ended d cancelled 0": true})
	r.checkJobCounts()
}

func batchJobsGetHooks(r *storeTest) {
	r.installHooks(0)
	ctx := r.Context()
	_, err := r.store.StageBatch(ctx, store.EnqueueRequest{UID: testUID, BatchName: "x",
		Drafts: []queue.Job{newDraft(withHooks(queue.HookCompleted))}})
	r.must(err)
	receipt, err := r.store.Enqueue(ctx, store.EnqueueRequest{UID: testUID, BatchName: "x"})
	r.must(err)
	for more := receipt.Staged; more; {
		more, err = r.store.ApplyBatch(ctx, receipt.Batch)
		r.must(err)
	}
	r.readNewHookCommands()
	j := r.settleJob(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.readNewHookCommands(), []string{"completed " + j.ID + " completed 1"})
}

func editChangesHooks(r *storeTest) {
	r.installHooks(0)
	r.enqueueOne(withID("a"), withHooks(queue.HookDead))
	r.must(r.store.ChangeJob(r.Context(), r.getJob("a").Seq,
		store.JobChange{Verb: queue.VerbEdit, UID: testUID, EditJob: func(j *queue.Job) error {
			j.HookEvents = queue.HookCompleted
			return nil
		}}))
	r.readNewHookCommands()
	r.settleJob(r.claimOne(), exitOutcome(0))
	checkEqual(r, "hooks", r.readNewHookCommands(), []string{"completed a completed 1"})
}

// The limits on waiting jobs do not apply to hook jobs. Instead, each user may have at most MaxWaitingHookJobs waiting
// hook jobs.
func waitingHookJobsAreLimited(r *storeTest) {
	r.installHooks(0)
	ends := withHooks(queue.HookEnded)
	cancelled := func(id string) {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID,
			Drafts: []queue.Job{newDraft(ends, withID(id))}})
		r.must(err)
		r.must(r.store.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, MaxPendingJobs: 1}))
		r.must(r.applyVerb(r.getJob(id), queue.VerbCancel))
	}
	cancelled("a")
	cancelled("b")
	if n := len(r.readNewHookCommands()); n != 2 {
		r.Errorf("got %d hooks with a full queue, want 2", n)
	}
	r.must(r.store.SetQueue(r.Context(), queue.HookQueue, store.QueueRule{Weight: 1, Concurrency: 1}))
	var drafts []queue.Job
	for range queue.MaxWaitingHookJobs - 2 {
		drafts = append(drafts, newDraft(withHooks(queue.HookJobFlag),
			func(j *queue.Job) { j.Queue, j.HookUID = queue.HookQueue, testUID }))
	}
	r.enqueueJobs(testUID, drafts...)
	r.readNewEvents()
	cancelled("c")
	var kinds []queue.EventKind
	for _, e := range r.readNewEvents() {
		kinds = append(kinds, e.Kind)
	}
	checkEqual(r, "events", kinds, []queue.EventKind{queue.EventEnqueued, queue.EventCancelled, queue.EventHookDropped})
}

// If a new hook job would exceed its user's byte quota, the store first removes old outputs of that user. If this does
// not free enough bytes, the hook job is not created.
func hookJobRemovesOutputsAtQuota(r *storeTest) {
	quota := func(n int64) {
		r.Helper()
		r.must(r.store.SetHooks(r.Context(), store.HookSettings{MakeHookDrafts: createHookDrafts, OwnerName: "hooks",
			MaxBytesPerUser: n}))
	}
	old := r.endJobWithOutput(r.enqueueAndClaim(1), exitOutcome(0), 5000, 0)
	first, second := r.enqueueAndClaim(1, withHooks(queue.HookCompleted)),
		r.enqueueAndClaim(1, withHooks(queue.HookCompleted))
	limit := r.countedUserBytes(1) + 100
	quota(limit)
	r.readNewHookCommands()
	r.settleJob(first, exitOutcome(0))
	checkEqual(r, "hooks with room", len(r.readNewHookCommands()), 1)
	checkEqual(r, "output that was removed", r.outputSizes(old, 1), []int64{queue.OutputRemovedByQuota})
	if used := r.countedUserBytes(1); used > limit {
		r.Errorf("with the hook, the user holds %d bytes, and %d are allowed", used, limit)
	}
	before := r.countedUserBytes(1)
	quota(before + 100)
	r.settleJob(second, exitOutcome(0))
	var kinds []queue.EventKind
	for _, e := range r.readNewEvents() {
		kinds = append(kinds, e.Kind)
	}
	checkEqual(r, "events without room", kinds, []queue.EventKind{queue.EventEnded, queue.EventHookDropped})
	checkEqual(r, "bytes without room", r.countedUserBytes(1), before)
}

func disownedJobsCreateNoHooks(r *storeTest) {
	r.installHooks(0)
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, OwnerName: "x",
		Drafts: []queue.Job{newDraft(withID("a"), withHooks(queue.HookCompleted|queue.HookEnded)),
			newDraft(withID("b"), withHooks(queue.HookEnded))}})
	r.must(err)
	j := r.claimOne()
	for more := true; more; {
		more, err = r.store.DisownJobs(r.Context(), testUID, "x")
		r.must(err)
	}
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{r.newSettlement(j, exitOutcome(0))}})
	r.must(r.applyVerb(r.getJob("b"), queue.VerbCancel))
	checkEqual(r, "hooks", r.readNewHookCommands(), nil)
}

// HookSettings.OwnerName is the name of the user OwnerUID. The store must not record it as the name of another user
// whose uid a hook job has.
func hookOwnerNameIsStoredForOwnerOnly(r *storeTest) {
	r.must(r.store.SetHooks(r.Context(), store.HookSettings{MakeHookDrafts: createHookDrafts, OwnerUID: 7,
		OwnerName: "hooks"}))
	r.enqueueOne(withHooks(queue.HookEnded), withID("a")) // the store does not know the name of this job's user
	r.must(r.applyVerb(r.getJob("a"), queue.VerbCancel))
	names, _, err := r.store.Owners(r.Context())
	r.must(err)
	checkEqual(r, "names", names, map[int]string{})
}
