package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var queueTests = []contractTest{
	{name: "a queue exists while it has jobs or settings", run: queueExistsWhileItHasJobs},
	{name: "a queue's max_pending limits its waiting jobs", run: maxPendingLimitsQueue},
	{name: "a queue's pause ends at its end time", run: queuePauseEndsAtSetTime},
	{name: "the number of queues that one user creates is limited", run: queuesPerUserAreLimited},
	{name: "an edit moves a waiting job to another queue", run: editMovesJobToQueue},
	{name: "Obstacles lists the gates that keep a job from starting", run: waitReasonsAreListed},
	{name: "Simulate returns the jobs that would start next and changes nothing", run: simulateClaimsChangesNothing},
	{name: "a unique key belongs to one unfinished job", run: uniqueKeyBelongsToUnfinishedJob},
	{name: "an ended job keeps its unique key for UniqueFor", run: endedJobKeepsUniqueKey},
	{name: "a new job can replace the waiting job with its unique key", run: newJobReplacesHolderOfUniqueKey},
	{name: "drafts of one request can share a unique key", run: draftsCanShareUniqueKey},
	{name: "a job cannot be retried while another job has its unique key", run: retryNeedsFreeUniqueKey},
	{name: "a job that is cancelled by its enqueue does not keep its unique key",
		run: jobCancelledAtEnqueueFreesUniqueKey},
	{name: "retrying a parent revives no dependant whose unique key another job has",
		run: retriedParentRevivesNoConflictingDependant},
}

// withUniqueKey returns a function that gives a job a unique key. onConflict determines what the store does if another
// job already has that key.
func withUniqueKey(key string, onConflict queue.ConflictAction) func(*queue.Job) {
	return func(j *queue.Job) { j.Unique, j.OnConflict = key, onConflict }
}

func (r *storeTest) queueStates() map[string]store.QueueState {
	r.Helper()
	list, err := r.store.Queues(r.Context())
	r.must(err)
	states := map[string]store.QueueState{}
	for i, q := range list {
		if i > 0 && list[i-1].Name >= q.Name {
			r.Errorf("queue %q comes after %q", q.Name, list[i-1].Name)
		}
		states[q.Name] = q
	}
	return states
}

// A queue exists while it has jobs or settings.
func queueExistsWhileItHasJobs(r *storeTest) {
	checkEqual(r, "queues of an empty store", len(r.queueStates()), 0)
	rule := store.QueueRule{Weight: 3, Concurrency: 2, MaxPendingJobs: 9, JobDefaults: `{"priority":7}`, Paused: true,
		PausedByUID: 7, PausedAt: 5, PauseReason: "x"}
	r.setQueueRule("kept", rule)
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID,
		Drafts: []queue.Job{newDraft(withQueue("gpu")), newDraft(withQueue("gpu")),
			newDraft(withQueue("gpu"), withDelay(time.Hour)), newDraft(withQueue("kept"))}})
	r.must(err)
	checkEqual(r, "new queues", receipt.CreatedQueues, []string{"gpu"})
	r.must(r.applyVerb(r.getJob(receipt.IDs[3]), queue.VerbCancel))
	got := r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 1}).ClaimedJobs
	checkEqual(r, "queues", r.queueStates(), map[string]store.QueueState{
		"kept": {Name: "kept", Rule: rule},
		// A leased job counts as waiting until it is reported as started.
		"gpu": {Name: "gpu", Rule: store.DefaultQueueRule, WaitingJobs: 3, LeasedJobs: 1, OldestReadySince: r.store.Now()},
	})
	r.sendLeaseReport(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: got[0].Lease(),
		StartedAt: r.store.Now(),
		WorkerID:  "w", PID: 1}}})
	checkEqual(r, "waiting jobs of the queue", r.queueStates()["gpu"].WaitingJobs, int64(2))
	r.settleJob(got[0], exitOutcome(0))
	for _, j := range r.listAllJobs(store.JobFilter{States: []queue.State{queue.Pending}}) {
		r.must(r.applyVerb(j, queue.VerbCancel))
	}
	r.setQueueRule("kept", store.DefaultQueueRule)
	checkEqual(r, "queues at the end", len(r.queueStates()), 0)
}

func maxPendingLimitsQueue(r *storeTest) {
	r.setQueueRule("small", store.QueueRule{Weight: 1, MaxPendingJobs: 2})
	ask := func(subject string, drafts ...queue.Job) {
		r.Helper()
		r.checkStoreUnchanged(func() {
			_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID})
			r.checkErrorCode(subject, err, queue.CodeQueueFull)
		})
	}
	ask("three jobs in one request", newDraft(withQueue("small")), newDraft(withQueue("small")),
		newDraft(withQueue("small")))
	jobs := r.enqueueAndGet(newDraft(withQueue("small")), newDraft(withQueue("small")))
	ask("a third job", newDraft(withQueue("small")))
	other := r.enqueueOne()
	r.checkErrorCode("an edit that moves a job into the full queue",
		r.editJob(other, func(j *queue.Job) error { j.Queue = "small"; return nil }), queue.CodeQueueFull)
	r.must(r.applyVerb(jobs[0], queue.VerbCancel))
	last := r.enqueueOne(withQueue("small"))
	r.checkErrorCode("a retry in the full queue", r.applyVerb(jobs[0], queue.VerbRetry), queue.CodeQueueFull)
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withQueue("small"))},
		UID: testUID, BatchName: "b"})
	r.checkErrorCode("a frame of a batch for the full queue", err, queue.CodeQueueFull)
	r.must(r.applyVerb(last, queue.VerbCancel))
	_, err = r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withQueue("small"))},
		UID: testUID, BatchName: "b"})
	r.must(err)
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withQueue("small"))},
		UID: testUID, BatchName: "b"})
	r.checkErrorCode("a last frame that exceeds the limit", err, queue.CodeQueueFull)
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b"})
	r.must(err)
	r.applyBatchUntilDone(committed)
	checkEqual(r, "waiting jobs of the queue", r.queueStates()["small"].WaitingJobs, int64(2))
	r.checkJobCounts()
}

// A pause of a queue ends at the time set in the queue's rule.
func queuePauseEndsAtSetTime(r *storeTest) {
	r.setQueueRule("night", store.QueueRule{Weight: 2, Paused: true, PausedByUID: 3, PausedAt: r.store.Now(),
		PauseReason: "why", PausedUntil: r.store.Now().Add(time.Minute)})
	j := r.enqueueOne(withQueue("night"))
	if next := r.applyDueChangesUntilDone(); next > time.Minute {
		r.Errorf("the next Promote is due in %v, want at most a minute", next)
	}
	r.claimAndExpect("the queue is paused")
	r.advanceAndApplyDueChanges(time.Minute - time.Millisecond)
	r.claimAndExpect("a millisecond before the pause ends")
	r.advanceAndApplyDueChanges(time.Millisecond)
	checkEqual(r, "rule of the queue", r.queueStates()["night"].Rule, store.QueueRule{Weight: 2})
	r.claimAndExpect("the pause has ended", j)
}

// Each user may create only a limited number of queues.
func queuesPerUserAreLimited(r *storeTest) {
	drafts := make([]queue.Job, store.MaxQueuesPerUser)
	for i := range drafts {
		drafts[i] = newDraft(withQueue(fmt.Sprint("q", i)))
	}
	jobs := r.enqueueAndGet(drafts...)
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withQueue("one-more"))},
		UID: testUID})
	r.checkErrorCode("one more queue", err, queue.CodeQueueFull)
	r.enqueueAndGet(newDraft(withQueue("q7")))
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withQueue("another-user"),
		withUID(7))},
		UID: 7})
	r.must(err)
	r.setQueueRule("set", store.QueueRule{Weight: 2})
	r.enqueueAndGet(newDraft(withQueue("set")))
	r.must(r.applyVerb(jobs[0], queue.VerbCancel))
	r.enqueueOne(withQueue("one-more"))
}

// An edit moves a waiting job to another queue.
func editMovesJobToQueue(r *storeTest) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	j := r.enqueueOne(withQueue("night"))
	r.claimAndExpect("the queue is paused")
	r.must(r.editJob(j, func(j *queue.Job) error { j.Queue = "day"; return nil }))
	checkEqual(r, "waiting jobs of the second queue", r.queueStates()["day"].WaitingJobs, int64(1))
	checkEqual(r, "waiting jobs of the first queue", r.queueStates()["night"].WaitingJobs, int64(0))
	r.claimAndExpect("the job has moved to another queue", j)
}

// SimulateClaims returns the jobs that would start next and changes nothing.
func simulateClaimsChangesNothing(r *storeTest) {
	r.must(r.store.SetThisNodeProperties(r.Context(), store.Node{ResourceUnits: map[string]int{"gpu": 1}}))
	r.setQueueRule("one", store.QueueRule{Weight: 2, Concurrency: 1})
	gpu := queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}
	jobs := r.enqueueAndGet(newDraft(), newDraft(withQueue("one")), newDraft(withQueue("one")), newDraft(withDemands(gpu)),
		newDraft(withDemands(gpu)), newDraft(withDemands(lockDemand("k", 1))),
		newDraft(withExpiry(r.store.Now().Add(time.Minute))))
	r.advanceClock(2 * time.Minute) // the last job expires during these two minutes
	queues, counts := r.queueStates(), r.store.Counts()
	r.readNewEvents()
	var first []int64
	for range 3 {
		got, err := r.store.SimulateClaims(r.Context(), 9)
		r.must(err)
		if first == nil {
			first = seqsOf(got.StartingJobs)
		}
		checkEqual(r, "simulated jobs", seqsOf(got.StartingJobs), first)
		checkEqual(r, "incomplete", got.IsIncomplete, false)
	}
	checkEqual(r, "jobs", len(first), 4)
	checkEqual(r, "queues", r.queueStates(), queues)
	checkEqual(r, "counts", r.store.Counts().JobsByState, counts.JobsByState)
	checkEqual(r, "events", r.readNewEvents(), nil)
	checkEqual(r, "claimed jobs", seqsOf(r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 9}).ClaimedJobs), first)
	r.checkJobState("the job has expired", jobs[6], queue.Cancelled, queue.ReasonExpired)
	r.checkJobCounts()
}

// WaitReasons lists everything that prevents a job from starting.
func waitReasonsAreListed(r *storeTest) {
	obstacles := func(subject string, j queue.Job, want ...store.WaitReason) {
		r.Helper()
		got, err := r.store.WaitReasons(r.Context(), []int64{j.Seq})
		r.must(err)
		checkEqual(r, subject, got[j.Seq], want)
	}
	r.must(r.store.SetThisNodeProperties(r.Context(), store.Node{ResourceUnits: map[string]int{"gpu": 3}}))
	first := r.enqueueOne(withDemands(lockDemand("k", 1),
		queue.Demand{Kind: queue.GateRate, GateKey: "r", Amount: 1, RatePeriod: time.Minute},
		queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 2}))
	obstacles("no obstacle", first)
	r.claimAndExpect("the first job", first)
	obstacles("a running job", first)
	second := r.enqueueOne(withDemands(lockDemand("k", 1),
		queue.Demand{Kind: queue.GateRate, GateKey: "r", Amount: 1, RatePeriod: time.Minute}))
	large := r.enqueueOne(withDemands(queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 2}))
	small := r.enqueueOne(withDemands(queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}))
	r.claimAndExpect("no other job can start")
	obstacles("a lock and a rate", second, store.WaitReason{GateKind: queue.GateLock, GateKeyOrQueueName: "k",
		UsedUnits: 1, MaxUnits: 1,
		NeededUnits: 1},
		store.WaitReason{GateKind: queue.GateRate, GateKeyOrQueueName: "r", UsedUnits: 1, MaxUnits: 1, NeededUnits: 1})
	obstacles("more units than are free", large, store.WaitReason{GateKind: queue.GateResource, GateKeyOrQueueName: "gpu",
		UsedUnits: 2, MaxUnits: 3,
		NeededUnits: 2})
	obstacles("units reserved for another job", small, store.WaitReason{GateKind: queue.GateResource,
		GateKeyOrQueueName: "gpu", UsedUnits: 2, MaxUnits: 3, NeededUnits: 1, UnitsKeptForOtherJob: true})
	r.startJob(r.getJob(first.ID))
	free := r.enqueueOne(withDemands(lockDemand("other", 1)))
	// firsts checks the first wait reason of each job in want.
	firsts := func(subject string, want map[int64]store.WaitReason) {
		r.Helper()
		all, err := r.store.WaitReasons(r.Context(), []int64{second.Seq, large.Seq, small.Seq, free.Seq, first.Seq, 99})
		r.must(err)
		got := map[int64]store.WaitReason{}
		for seq, list := range all {
			got[seq] = store.WaitReason{GateKind: list[0].GateKind, GateKeyOrQueueName: list[0].GateKeyOrQueueName}
		}
		checkEqual(r, subject, got, want)
	}
	gpu := store.WaitReason{GateKind: queue.GateResource, GateKeyOrQueueName: "gpu"}
	firsts("first obstacles of several jobs",
		map[int64]store.WaitReason{second.Seq: {GateKind: queue.GateLock, GateKeyOrQueueName: "k"}, large.Seq: gpu,
			small.Seq: gpu})
	r.setMaxRunningPerUser(1)
	own := store.WaitReason{GateKind: queue.GateUser}
	firsts("first obstacles of several jobs with a quota",
		map[int64]store.WaitReason{second.Seq: own, large.Seq: own, small.Seq: own, free.Seq: own})
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	last := r.enqueueOne(withQueue("night"))
	obstacles("a paused queue and a quota", last, store.WaitReason{GateKeyOrQueueName: "night", NeededUnits: 1,
		QueuePaused: true},
		store.WaitReason{GateKind: queue.GateUser, UsedUnits: 1, MaxUnits: 1, NeededUnits: 1})
	later := r.enqueueOne(withDelay(time.Hour))
	obstacles("a job that is not due", later)
	obstacles("a job that is not due in a paused queue", r.enqueueOne(withQueue("night"), withDelay(time.Hour)),
		store.WaitReason{GateKeyOrQueueName: "night", NeededUnits: 1, QueuePaused: true})
}

// tryEnqueue enqueues one job. It returns the error if the store rejects the job.
func (r *storeTest) tryEnqueue(options ...func(*queue.Job)) (store.Receipt, error) {
	r.Helper()
	return r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(options...)}, UID: testUID})
}

func uniqueKeyBelongsToUnfinishedJob(r *storeTest) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturnExisting))
	got, err := r.tryEnqueue(withUniqueKey("k", queue.ConflictReturnExisting))
	r.must(err)
	checkEqual(r, "receipt of the second job", got, store.Receipt{IDs: []string{first.ID}, Seqs: []int64{first.Seq},
		IsExisting: []bool{true}, CreatedQueues: got.CreatedQueues})
	r.checkStoreUnchanged(func() {
		_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReject))
		r.checkError("a job that rejects duplicates", err, queue.CodeExists, "unique")
	})
	r.enqueueAndGet(newDraft(withUniqueKey("k", queue.ConflictReject), withUID(7)),
		newDraft(withUniqueKey("other", queue.ConflictReject)))
	running := r.claimOne()
	checkEqual(r, "the running job", running.Seq, first.Seq)
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReplaceExisting))
	r.checkError("replacing a running job", err, queue.CodeExists, "unique")
	r.settleJob(running, exitOutcome(1))
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReject))
	r.checkError("the job with the key waits for its retry", err, queue.CodeExists, "unique")
	r.must(r.applyVerb(first, queue.VerbCancel))
	r.enqueueOne(withUniqueKey("k", queue.ConflictReject))
	_, err = r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUniqueKey("z",
		queue.ConflictReturnExisting))}, UID: testUID, BatchName: "b"})
	r.checkError("a frame of a batch", err, queue.CodeInvalid, "unique")
	r.checkJobCounts()
}

func endedJobKeepsUniqueKey(r *storeTest) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturnExisting),
		func(j *queue.Job) { j.UniqueFor = time.Minute })
	r.settleJob(r.claimOne(), exitOutcome(0))
	r.advanceAndApplyDueChanges(time.Minute - time.Millisecond)
	got, err := r.tryEnqueue(withUniqueKey("k", queue.ConflictReturnExisting))
	r.must(err)
	checkEqual(r, "the ended job with the key", got.Seqs, []int64{first.Seq})
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReplaceExisting))
	r.checkError("replacing an ended job", err, queue.CodeExists, "unique")
	r.advanceAndApplyDueChanges(time.Millisecond)
	r.enqueueOne(withUniqueKey("k", queue.ConflictReject))
}

// With ConflictReplace, a new job replaces the waiting job that has the same unique key.
func newJobReplacesHolderOfUniqueKey(r *storeTest) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReplaceExisting))
	child := r.enqueueOne(withParents(queue.ParentEnded, first))
	second := r.enqueueOne(withUniqueKey("k", queue.ConflictReplaceExisting))
	r.checkJobState("the first job", first, queue.Cancelled, queue.ReasonReplaced)
	r.claimAndExpect("the second job, and the dependant of the first", child, second)
	r.checkJobCounts()
}

func draftsCanShareUniqueKey(r *storeTest) {
	got, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID,
		Drafts: []queue.Job{newDraft(withUniqueKey("k", queue.ConflictReturnExisting)), newDraft(),
			newDraft(withUniqueKey("k", queue.ConflictReturnExisting))}})
	r.must(err)
	checkEqual(r, "seq of the third draft", got.Seqs[2], got.Seqs[0])
	checkEqual(r, "jobs", len(r.listAllJobs(store.JobFilter{})), 2)
	r.checkStoreUnchanged(func() {
		_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID,
			Drafts: []queue.Job{newDraft(withUniqueKey("z", queue.ConflictReject)),
				newDraft(withUniqueKey("z", queue.ConflictReject))}})
		r.checkErrorCode("two drafts of one request", err, queue.CodeExists)
	})
}

func retryNeedsFreeUniqueKey(r *storeTest) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturnExisting))
	r.must(r.applyVerb(first, queue.VerbCancel))
	second := r.enqueueOne(withUniqueKey("k", queue.ConflictReturnExisting))
	r.checkErrorCode("another job has the unique key", r.applyVerb(first, queue.VerbRetry), queue.CodeExists)
	r.must(r.applyVerb(second, queue.VerbCancel))
	r.must(r.applyVerb(first, queue.VerbRetry))
}

// If a parent is retried, a dependant that was cancelled stays cancelled if another job now has its unique key.
func retriedParentRevivesNoConflictingDependant(r *storeTest) {
	parent := r.enqueueOne(withMaxAttempts(1))
	child := r.enqueueOne(withUniqueKey("k", queue.ConflictReject), withParents(queue.ParentCompleted, parent))
	r.settleJob(r.claimAndExpect("the parent", parent)[0], exitOutcome(1))
	other := r.enqueueOne(withUniqueKey("k", queue.ConflictReject), withDelay(time.Hour))
	r.must(r.applyVerb(parent, queue.VerbRetry))
	r.applyDueChangesUntilDone()
	r.checkJobState("another job has the unique key", child, queue.Cancelled, queue.ReasonDependency)
	r.settleJob(r.claimAndExpect("the retried parent", parent)[0], exitOutcome(1))
	r.must(r.applyVerb(other, queue.VerbCancel))
	r.must(r.applyVerb(parent, queue.VerbRetry))
	r.applyDueChangesUntilDone()
	r.checkJobState("no other job has the unique key", child, queue.Blocked, "")
}

// If the parent of a new job is already dead, the new job is cancelled when it is enqueued. Its unique key is then free
// for another job.
func jobCancelledAtEnqueueFreesUniqueKey(r *storeTest) {
	parent := r.enqueueOne(withMaxAttempts(1))
	r.settleJob(r.claimAndExpect("the parent", parent)[0], exitOutcome(1))
	keyed := func(set ...func(*queue.Job)) queue.Job {
		j := newDraft(set...)
		j.Unique, j.UniqueFor, j.OnConflict = "k", time.Hour, queue.ConflictReplaceExisting
		return j
	}
	jobs := r.enqueueAndGet(keyed(withParents(queue.ParentCompleted, parent)), keyed())
	r.checkJobState("a dependant of a dead job", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.checkJobState("the second job with the key", jobs[1], queue.Pending, "")
}
