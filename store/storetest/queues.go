package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var queuePromises = []promise{
	{name: "a queue exists while it has jobs or settings", check: queueExistsWhileItHasJobs},
	{name: "a queue's max_pending limits its waiting jobs", check: maxPendingLimitsQueue},
	{name: "a queue's pause ends at its end time", check: queuePauseEnds},
	{name: "the number of queues that one user creates is limited", check: queuesPerUserAreLimited},
	{name: "an edit moves a waiting job to another queue", check: editMovesJobToQueue},
	{name: "Obstacles lists the gates that keep a job from starting", check: waitReasonsAreListed},
	{name: "Simulate returns the jobs that would start next and changes nothing", check: simulationChangesNothing},
	{name: "a unique key belongs to one unfinished job", check: uniqueKeyBelongsToUnfinishedJob},
	{name: "an ended job keeps its unique key for UniqueFor", check: endedJobKeepsUniqueKey},
	{name: "a new job can replace the waiting job with its unique key", check: newJobReplacesHolderOfUniqueKey},
	{name: "drafts of one request can share a unique key", check: draftsCanShareUniqueKey},
	{name: "a job cannot be retried while another job has its unique key", check: retryNeedsFreeUniqueKey},
	{name: "a job that is cancelled by its enqueue does not keep its unique key", check: cancelledEnqueueFreesKey},
	{name: "retrying a parent revives no dependant whose unique key another job has",
		check: retriedParentRevivesNoKeyConflict},
}

// withUniqueKey returns a function that gives a job a unique key. action says what happens if another
// job already has that key.
func withUniqueKey(key string, action queue.ConflictAction) func(*queue.Job) {
	return func(j *queue.Job) { j.Unique, j.OnConflict = key, action }
}

func (r *rig) queueStates() map[string]store.QueueState {
	r.Helper()
	list, err := r.s.Queues(r.Context())
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
func queueExistsWhileItHasJobs(r *rig) {
	checkEqual(r, "queues of an empty store", len(r.queueStates()), 0)
	rule := store.QueueRule{Weight: 3, Concurrency: 2, MaxPending: 9, JobDefaults: `{"priority":7}`, Paused: true,
		PausedBy: 7, PausedAt: 5, PauseReason: "x"}
	r.setQueueRule("kept", rule)
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID,
		Drafts: []queue.Job{draft(withQueue("gpu")), draft(withQueue("gpu")), draft(withQueue("gpu"), withDelay(time.Hour)),
			draft(withQueue("kept"))}})
	r.must(err)
	checkEqual(r, "new queues", receipt.NewQueues, []string{"gpu"})
	r.must(r.change(r.getJob(receipt.IDs[3]), queue.VerbCancel))
	got := r.exchange(store.Report{WantedJobs: 1}).Jobs
	checkEqual(r, "queues", r.queueStates(), map[string]store.QueueState{
		"kept": {Name: "kept", Rule: rule},
		// A leased job counts as waiting until it is reported as started.
		"gpu": {Name: "gpu", Rule: store.DefaultQueueRule, Waiting: 3, Leased: 1, OldestReadySince: r.s.Now()},
	})
	r.exchange(store.Report{Starts: []store.AttemptStart{{Lease: got[0].Lease(), StartedAt: r.s.Now(), Worker: "w",
		PID: 1}}})
	checkEqual(r, "waiting jobs of the queue", r.queueStates()["gpu"].Waiting, int64(2))
	r.settle(got[0], exitOutcome(0))
	for _, j := range r.listAll(store.Filter{States: []queue.State{queue.Pending}}) {
		r.must(r.change(j, queue.VerbCancel))
	}
	r.setQueueRule("kept", store.DefaultQueueRule)
	checkEqual(r, "queues at the end", len(r.queueStates()), 0)
}

func maxPendingLimitsQueue(r *rig) {
	r.setQueueRule("small", store.QueueRule{Weight: 1, MaxPending: 2})
	ask := func(subject string, drafts ...queue.Job) {
		r.Helper()
		r.checkUnchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: testUID})
			r.wantCode(subject, err, queue.CodeQueueFull)
		})
	}
	ask("three jobs in one request", draft(withQueue("small")), draft(withQueue("small")), draft(withQueue("small")))
	jobs := r.enqueueAndGet(draft(withQueue("small")), draft(withQueue("small")))
	ask("a third job", draft(withQueue("small")))
	other := r.enqueueOne()
	r.wantCode("an edit that moves a job into the full queue",
		r.edit(other, func(j *queue.Job) error { j.Queue = "small"; return nil }), queue.CodeQueueFull)
	r.must(r.change(jobs[0], queue.VerbCancel))
	last := r.enqueueOne(withQueue("small"))
	r.wantCode("a retry in the full queue", r.change(jobs[0], queue.VerbRetry), queue.CodeQueueFull)
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(withQueue("small"))}, UID: testUID,
		Batch: "b"})
	r.wantCode("a frame of a batch for the full queue", err, queue.CodeQueueFull)
	r.must(r.change(last, queue.VerbCancel))
	_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(withQueue("small"))}, UID: testUID,
		Batch: "b"})
	r.must(err)
	_, err = r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withQueue("small"))}, UID: testUID,
		Batch: "b"})
	r.wantCode("a last frame that exceeds the limit", err, queue.CodeQueueFull)
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "b"})
	r.must(err)
	r.applyBatch(committed)
	checkEqual(r, "waiting jobs of the queue", r.queueStates()["small"].Waiting, int64(2))
	r.checkCounts()
}

// A pause of a queue ends at the time set in the queue's rule.
func queuePauseEnds(r *rig) {
	r.setQueueRule("night", store.QueueRule{Weight: 2, Paused: true, PausedBy: 3, PausedAt: r.s.Now(), PauseReason: "why",
		PausedUntil: r.s.Now().Add(time.Minute)})
	j := r.enqueueOne(withQueue("night"))
	if next := r.promote(); next > time.Minute {
		r.Errorf("the next Promote is due in %v, want at most a minute", next)
	}
	r.claimExactly("the queue is paused")
	r.advanceAndPromote(time.Minute - time.Millisecond)
	r.claimExactly("a millisecond before the pause ends")
	r.advanceAndPromote(time.Millisecond)
	checkEqual(r, "rule of the queue", r.queueStates()["night"].Rule, store.QueueRule{Weight: 2})
	r.claimExactly("the pause has ended", j)
}

// Each user may create only a limited number of queues.
func queuesPerUserAreLimited(r *rig) {
	drafts := make([]queue.Job, store.MaxQueues)
	for i := range drafts {
		drafts[i] = draft(withQueue(fmt.Sprint("q", i)))
	}
	jobs := r.enqueueAndGet(drafts...)
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withQueue("one-more"))}, UID: testUID})
	r.wantCode("one more queue", err, queue.CodeQueueFull)
	r.enqueueAndGet(draft(withQueue("q7")))
	_, err = r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withQueue("another-user"), withUID(7))},
		UID: 7})
	r.must(err)
	r.setQueueRule("set", store.QueueRule{Weight: 2})
	r.enqueueAndGet(draft(withQueue("set")))
	r.must(r.change(jobs[0], queue.VerbCancel))
	r.enqueueOne(withQueue("one-more"))
}

// An edit moves a waiting job to another queue.
func editMovesJobToQueue(r *rig) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	j := r.enqueueOne(withQueue("night"))
	r.claimExactly("the queue is paused")
	r.must(r.edit(j, func(j *queue.Job) error { j.Queue = "day"; return nil }))
	checkEqual(r, "waiting jobs of the second queue", r.queueStates()["day"].Waiting, int64(1))
	checkEqual(r, "waiting jobs of the first queue", r.queueStates()["night"].Waiting, int64(0))
	r.claimExactly("the job has moved to another queue", j)
}

// Simulate returns the jobs that would start next and changes nothing.
func simulationChangesNothing(r *rig) {
	r.must(r.s.SetNode(r.Context(), store.Node{Resources: map[string]int{"gpu": 1}}))
	r.setQueueRule("one", store.QueueRule{Weight: 2, Concurrency: 1})
	gpu := queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 1}
	jobs := r.enqueueAndGet(draft(), draft(withQueue("one")), draft(withQueue("one")), draft(withDemands(gpu)),
		draft(withDemands(gpu)), draft(withDemands(lockDemand("k", 1))), draft(withExpiry(r.s.Now().Add(time.Minute))))
	r.advance(2 * time.Minute) // the last job has expired by then
	queues, counts := r.queueStates(), r.s.Counts()
	r.newEvents()
	var first []int64
	for range 3 {
		got, err := r.s.Simulate(r.Context(), 9)
		r.must(err)
		if first == nil {
			first = seqs(got.Jobs)
		}
		checkEqual(r, "simulated jobs", seqs(got.Jobs), first)
		checkEqual(r, "incomplete", got.Incomplete, false)
	}
	checkEqual(r, "jobs", len(first), 4)
	checkEqual(r, "queues", r.queueStates(), queues)
	checkEqual(r, "counts", r.s.Counts().States, counts.States)
	checkEqual(r, "events", r.newEvents(), nil)
	checkEqual(r, "claimed jobs", seqs(r.exchange(store.Report{WantedJobs: 9}).Jobs), first)
	r.checkState("the job has expired", jobs[6], queue.Cancelled, queue.ReasonExpired)
	r.checkCounts()
}

// WaitReasons lists everything that prevents a job from starting.
func waitReasonsAreListed(r *rig) {
	obstacles := func(subject string, j queue.Job, want ...store.WaitReason) {
		r.Helper()
		got, err := r.s.WaitReasons(r.Context(), []int64{j.Seq})
		r.must(err)
		checkEqual(r, subject, got[j.Seq], want)
	}
	r.must(r.s.SetNode(r.Context(), store.Node{Resources: map[string]int{"gpu": 3}}))
	first := r.enqueueOne(withDemands(lockDemand("k", 1),
		queue.Demand{Kind: queue.GateRate, Key: "r", Amount: 1, Period: time.Minute},
		queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 2}))
	obstacles("no obstacle", first)
	r.claimExactly("the first job", first)
	obstacles("a running job", first)
	second := r.enqueueOne(withDemands(lockDemand("k", 1),
		queue.Demand{Kind: queue.GateRate, Key: "r", Amount: 1, Period: time.Minute}))
	large := r.enqueueOne(withDemands(queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 2}))
	small := r.enqueueOne(withDemands(queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 1}))
	r.claimExactly("no other job can start")
	obstacles("a lock and a rate", second, store.WaitReason{GateKind: queue.GateLock, Key: "k", Usage: 1, Limit: 1,
		NeededUnits: 1},
		store.WaitReason{GateKind: queue.GateRate, Key: "r", Usage: 1, Limit: 1, NeededUnits: 1})
	obstacles("more units than are free", large, store.WaitReason{GateKind: queue.GateResource, Key: "gpu", Usage: 2,
		Limit:       3,
		NeededUnits: 2})
	obstacles("units reserved for another job", small, store.WaitReason{GateKind: queue.GateResource, Key: "gpu", Usage: 2,
		Limit: 3, NeededUnits: 1, KeptForOtherJob: true})
	r.startJob(r.getJob(first.ID))
	free := r.enqueueOne(withDemands(lockDemand("other", 1)))
	// firsts checks the first wait reason of each job in want.
	firsts := func(subject string, want map[int64]store.WaitReason) {
		r.Helper()
		all, err := r.s.WaitReasons(r.Context(), []int64{second.Seq, large.Seq, small.Seq, free.Seq, first.Seq, 99})
		r.must(err)
		got := map[int64]store.WaitReason{}
		for seq, list := range all {
			got[seq] = store.WaitReason{GateKind: list[0].GateKind, Key: list[0].Key}
		}
		checkEqual(r, subject, got, want)
	}
	gpu := store.WaitReason{GateKind: queue.GateResource, Key: "gpu"}
	firsts("first obstacles of several jobs",
		map[int64]store.WaitReason{second.Seq: {GateKind: queue.GateLock, Key: "k"}, large.Seq: gpu, small.Seq: gpu})
	r.setMaxRunning(1)
	own := store.WaitReason{GateKind: queue.GateUser}
	firsts("first obstacles of several jobs with a quota",
		map[int64]store.WaitReason{second.Seq: own, large.Seq: own, small.Seq: own, free.Seq: own})
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	last := r.enqueueOne(withQueue("night"))
	obstacles("a paused queue and a quota", last, store.WaitReason{Key: "night", NeededUnits: 1, Paused: true},
		store.WaitReason{GateKind: queue.GateUser, Usage: 1, Limit: 1, NeededUnits: 1})
	later := r.enqueueOne(withDelay(time.Hour))
	obstacles("a job that is not due", later)
	obstacles("a job that is not due in a paused queue", r.enqueueOne(withQueue("night"), withDelay(time.Hour)),
		store.WaitReason{Key: "night", NeededUnits: 1, Paused: true})
}

// tryEnqueue enqueues one job. It returns the error if the store rejects the job.
func (r *rig) tryEnqueue(set ...func(*queue.Job)) (store.Receipt, error) {
	r.Helper()
	return r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(set...)}, UID: testUID})
}

func uniqueKeyBelongsToUnfinishedJob(r *rig) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturn))
	got, err := r.tryEnqueue(withUniqueKey("k", queue.ConflictReturn))
	r.must(err)
	checkEqual(r, "receipt of the second job", got, store.Receipt{IDs: []string{first.ID}, Seqs: []int64{first.Seq},
		IsExisting: []bool{true}, NewQueues: got.NewQueues})
	r.checkUnchanged(func() {
		_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReject))
		r.wantError("a job that rejects duplicates", err, queue.CodeExists, "unique")
	})
	r.enqueueAndGet(draft(withUniqueKey("k", queue.ConflictReject), withUID(7)),
		draft(withUniqueKey("other", queue.ConflictReject)))
	running := r.claimOne()
	checkEqual(r, "the running job", running.Seq, first.Seq)
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReplace))
	r.wantError("replacing a running job", err, queue.CodeExists, "unique")
	r.settle(running, exitOutcome(1))
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReject))
	r.wantError("the job with the key waits for its retry", err, queue.CodeExists, "unique")
	r.must(r.change(first, queue.VerbCancel))
	r.enqueueOne(withUniqueKey("k", queue.ConflictReject))
	_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(withUniqueKey("z",
		queue.ConflictReturn))}, UID: testUID, Batch: "b"})
	r.wantError("a frame of a batch", err, queue.CodeInvalid, "unique")
	r.checkCounts()
}

func endedJobKeepsUniqueKey(r *rig) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturn), func(j *queue.Job) { j.UniqueFor = time.Minute })
	r.settle(r.claimOne(), exitOutcome(0))
	r.advanceAndPromote(time.Minute - time.Millisecond)
	got, err := r.tryEnqueue(withUniqueKey("k", queue.ConflictReturn))
	r.must(err)
	checkEqual(r, "the ended job with the key", got.Seqs, []int64{first.Seq})
	_, err = r.tryEnqueue(withUniqueKey("k", queue.ConflictReplace))
	r.wantError("replacing an ended job", err, queue.CodeExists, "unique")
	r.advanceAndPromote(time.Millisecond)
	r.enqueueOne(withUniqueKey("k", queue.ConflictReject))
}

// With ConflictReplace, a new job replaces the waiting job that has the same unique key.
func newJobReplacesHolderOfUniqueKey(r *rig) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReplace))
	child := r.enqueueOne(withParents(queue.ParentEnded, first))
	second := r.enqueueOne(withUniqueKey("k", queue.ConflictReplace))
	r.checkState("the first job", first, queue.Cancelled, queue.ReasonReplaced)
	r.claimExactly("the second job, and the dependant of the first", child, second)
	r.checkCounts()
}

func draftsCanShareUniqueKey(r *rig) {
	got, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID,
		Drafts: []queue.Job{draft(withUniqueKey("k", queue.ConflictReturn)), draft(),
			draft(withUniqueKey("k", queue.ConflictReturn))}})
	r.must(err)
	checkEqual(r, "seq of the third draft", got.Seqs[2], got.Seqs[0])
	checkEqual(r, "jobs", len(r.listAll(store.Filter{})), 2)
	r.checkUnchanged(func() {
		_, err = r.s.Enqueue(r.Context(), store.Request{UID: testUID,
			Drafts: []queue.Job{draft(withUniqueKey("z", queue.ConflictReject)),
				draft(withUniqueKey("z", queue.ConflictReject))}})
		r.wantCode("two drafts of one request", err, queue.CodeExists)
	})
}

func retryNeedsFreeUniqueKey(r *rig) {
	first := r.enqueueOne(withUniqueKey("k", queue.ConflictReturn))
	r.must(r.change(first, queue.VerbCancel))
	second := r.enqueueOne(withUniqueKey("k", queue.ConflictReturn))
	r.wantCode("another job has the unique key", r.change(first, queue.VerbRetry), queue.CodeExists)
	r.must(r.change(second, queue.VerbCancel))
	r.must(r.change(first, queue.VerbRetry))
}

// If a parent is retried, a dependant that was cancelled stays cancelled if another job now has its unique key.
func retriedParentRevivesNoKeyConflict(r *rig) {
	parent := r.enqueueOne(withMaxAttempts(1))
	child := r.enqueueOne(withUniqueKey("k", queue.ConflictReject), withParents(queue.ParentCompleted, parent))
	r.settle(r.claimExactly("the parent", parent)[0], exitOutcome(1))
	other := r.enqueueOne(withUniqueKey("k", queue.ConflictReject), withDelay(time.Hour))
	r.must(r.change(parent, queue.VerbRetry))
	r.promote()
	r.checkState("another job has the unique key", child, queue.Cancelled, queue.ReasonDependency)
	r.settle(r.claimExactly("the retried parent", parent)[0], exitOutcome(1))
	r.must(r.change(other, queue.VerbCancel))
	r.must(r.change(parent, queue.VerbRetry))
	r.promote()
	r.checkState("no other job has the unique key", child, queue.Blocked, "")
}

// If a job is cancelled already when it is enqueued, because its parent is dead, another
// job can use its unique key.
func cancelledEnqueueFreesKey(r *rig) {
	parent := r.enqueueOne(withMaxAttempts(1))
	r.settle(r.claimExactly("the parent", parent)[0], exitOutcome(1))
	keyed := func(set ...func(*queue.Job)) queue.Job {
		j := draft(set...)
		j.Unique, j.UniqueFor, j.OnConflict = "k", time.Hour, queue.ConflictReplace
		return j
	}
	jobs := r.enqueueAndGet(keyed(withParents(queue.ParentCompleted, parent)), keyed())
	r.checkState("a dependant of a dead job", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.checkState("the second job with the key", jobs[1], queue.Pending, "")
}
