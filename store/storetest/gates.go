package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var gateTests = []contractTest{
	{name: "rules of SetGate override the limits that jobs declare", run: sharedGateLimitOverridesDeclaredLimits},
	{name: "a lock limits the number of running jobs", run: lockLimitsRunningJobs},
	{name: "a lock is private to its user unless its key is shared", run: locksArePrivateToUsers},
	{name: "the newest declared limit applies to all jobs of a lock", run: newestDeclaredLimitApplies},
	{name: "a rate limits the number of starts in a period", run: rateLimitsStarts},
	{name: "a rate counts a claimed job as started until it is given back", run: claimedJobsCountTowardRate},
	{name: "a resource limits the units in use", run: resourceLimitsUnitsInUse},
	{name: "no job of the same queue overtakes a job that waits for a resource", run: noJobOvertakesResourceWaiter},
	{name: "a job that also lacks another gate reserves no units", run: jobLackingAnotherGateReservesNoUnits},
	{name: "a job runs only on the node that it demands", run: jobRunsOnItsNode},
	{name: "a job starts only when all its gates have room", run: allGatesMustHaveRoom},
	{name: "edited demands apply", run: editedDemandsApply},
	{name: "Await returns when a gate gets room", run: awaitReturnsWhenGateHasRoom},
	{name: "invalid demands are rejected", run: impossibleDemandsAreRefused},
	{name: "jobs of a paused queue do not start", run: pausedQueueStartsNoJobs},
	{name: "a queue's concurrency limits its leased jobs", run: concurrencyLimitsLeasedJobs},
	{name: "a user with jobs in many queues does not delay other users", run: limitedUserDelaysNoOtherUsers},
	{name: "many queues that wait for a resource do not delay other jobs", run: resourceWaitersDelayNoOtherJobs},
	{name: "queues share the starts by weight", run: queuesShareByWeight},
	{name: "an idle queue does not save up starts", run: idleQueueSavesNoTurns},
}

func withQueue(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }

// withDemands returns a function that makes a job need locks, rates, resources or a node.
func withDemands(demands ...queue.Demand) func(*queue.Job) {
	return func(j *queue.Job) { j.Demands = demands }
}

func lockDemand(key string, maxHolders int) queue.Demand {
	return queue.Demand{Kind: queue.GateLock, GateKey: key, Amount: maxHolders}
}

func rateDemand(key string, maxStarts int, period time.Duration) queue.Demand {
	return queue.Demand{Kind: queue.GateRate, GateKey: key, Amount: maxStarts, RatePeriod: period}
}

func resourceDemand(name string, units int) queue.Demand {
	return queue.Demand{Kind: queue.GateResource, GateKey: name, Amount: units}
}

// claimAndExpect claims all jobs that can start. It checks that these are exactly the given jobs, in this order.
func (r *storeTest) claimAndExpect(description string, want ...queue.Job) []queue.Job {
	r.Helper()
	got := r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 50}).ClaimedJobs
	seqs := func(jobs []queue.Job) (list []int64) {
		for i := range jobs {
			list = append(list, jobs[i].Seq)
		}
		return list
	}
	if !slices.Equal(seqs(got), seqs(want)) {
		r.Errorf("%s: claimed %v, want %v", description, seqs(got), seqs(want))
	}
	return got
}

// releaseClaimedJobs gives claimed jobs back to the queue before they have started.
func (r *storeTest) releaseClaimedJobs(jobs ...queue.Job) {
	r.Helper()
	var report store.LeaseReport
	for _, j := range jobs {
		report.ReleasedLeases = append(report.ReleasedLeases, j.Lease())
	}
	r.sendLeaseReport(report)
}

func lockLimitsRunningJobs(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withDemands(lockDemand("k", 2))), newDraft(withDemands(lockDemand("k", 2))),
		newDraft(withDemands(lockDemand("k", 2))), newDraft(withDemands(lockDemand("other", 1))), newDraft())
	got := r.claimAndExpect("two jobs of the lock, and the jobs without it", jobs[0], jobs[1], jobs[3], jobs[4])
	r.claimAndExpect("the lock is full")
	r.releaseClaimedJobs(got[1])
	got[1] = r.claimAndExpect("a job was given back", jobs[1])[0]
	got[0] = r.startJob(got[0])
	r.claimAndExpect("a started job still holds the lock")
	r.settleJob(got[0], exitOutcome(1)) // the job fails and waits for its retry
	r.claimAndExpect("a job has ended", jobs[2])
	r.advanceAndApplyDueChanges(time.Hour)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("the lock has no room for the retry")
	r.settleJob(got[1], exitOutcome(0))
	r.claimAndExpect("another job has ended", jobs[0])
}

func locksArePrivateToUsers(r *storeTest) {
	jobs := r.enqueueAndGet(
		newDraft(withUID(1), withDemands(lockDemand("k", 1))), newDraft(withUID(1), withDemands(lockDemand("k", 1))),
		newDraft(withUID(2), withDemands(lockDemand("k", 1))),
		newDraft(withUID(1), withDemands(lockDemand("@k", 1))), newDraft(withUID(2), withDemands(lockDemand("@k", 1))))
	r.claimAndExpect("one job for each user's lock, and one for the shared lock", jobs[0], jobs[2], jobs[3])
}

func newestDeclaredLimitApplies(r *storeTest) {
	old := r.enqueueAndGet(newDraft(withDemands(lockDemand("k", 1))), newDraft(withDemands(lockDemand("k", 1))),
		newDraft(withDemands(lockDemand("k", 1))))
	r.claimAndExpect("the first declared limit", old[0])
	last := r.enqueueOne(withDemands(lockDemand("k", 3)))
	r.must(r.editJob(old[2], func(j *queue.Job) error { j.Command = "edited"; return nil }))
	got := r.claimAndExpect("the newest declared limit; an edit of another field changes nothing", old[1], old[2])
	r.settleJob(got[0], exitOutcome(0))
	r.claimAndExpect("one of three jobs has ended", last)
	r.enqueueOne(withDemands(lockDemand("k", 1)))
	r.settleJob(got[1], exitOutcome(0))
	r.claimAndExpect("two jobs run, and the newest limit is one")
}

func rateLimitsStarts(r *storeTest) {
	second := withDemands(rateDemand("k", 2, time.Second))
	jobs := r.enqueueAndGet(newDraft(second), newDraft(second), newDraft(second), newDraft(second), newDraft(second))
	got := r.claimAndExpect("two starts", jobs[0], jobs[1])
	r.startJob(got[0])
	r.settleJob(got[0], exitOutcome(0))
	r.advanceAndApplyDueChanges(400 * time.Millisecond)
	r.startJob(got[1])
	r.claimAndExpect("an end makes no room")
	r.advanceAndApplyDueChanges(600 * time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("exactly one second after the first start")
	r.advanceAndApplyDueChanges(time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("more than one second after the first start", jobs[2])
	r.advanceAndApplyDueChanges(399 * time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("exactly one second after the second start")
	r.advanceAndApplyDueChanges(time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("more than one second after the second start", jobs[3])
}

// A claimed job counts toward its rate limit even before it has started. If it is given back without a start, it no
// longer counts.
func claimedJobsCountTowardRate(r *storeTest) {
	second := withDemands(rateDemand("k", 1, time.Second))
	jobs := r.enqueueAndGet(newDraft(second), newDraft(second))
	got := r.claimAndExpect("one start", jobs[0])
	r.advanceAndApplyDueChanges(time.Hour)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("a claimed job may start at any time")
	r.releaseClaimedJobs(got...)
	got = r.claimAndExpect("the job was given back, so it did not start", jobs[0])
	r.settleJob(got[0], outcomeOfCause(queue.EndNeverStarted))
	r.settleJob(r.claimAndExpect("the job was never started", jobs[0])[0], exitOutcome(0))
	r.claimAndExpect("the job has started")
	r.advanceAndApplyDueChanges(time.Second + time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("more than a second later", jobs[1])
}

// setResourceUnits sets how many units of each resource this node has.
func (r *storeTest) setResourceUnits(unitsByResource map[string]int) {
	r.Helper()
	r.must(r.store.SetThisNodeProperties(r.Context(), store.Node{Name: "here", ResourceUnits: unitsByResource}))
}

func resourceLimitsUnitsInUse(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withDemands(resourceDemand("gpu", 2))),
		newDraft(withDemands(resourceDemand("gpu", 1))),
		newDraft(withDemands(resourceDemand("gpu", 1))), newDraft(withDemands(resourceDemand("disk", 1))))
	r.claimAndExpect("a node without resources")
	r.setResourceUnits(map[string]int{"gpu": 3})
	got := r.claimAndExpect("three units exist", jobs[0], jobs[1])
	r.setResourceUnits(map[string]int{"gpu": 1, "disk": 1})
	disk := r.claimAndExpect("the node has fewer units than are in use", jobs[3])
	r.settleJob(got[1], exitOutcome(0))
	r.claimAndExpect("two units are in use, and one exists")
	r.settleJob(got[0], exitOutcome(0))
	r.claimAndExpect("one unit is free", jobs[2])
	r.settleJob(disk[0], exitOutcome(0))
}

func noJobOvertakesResourceWaiter(r *storeTest) {
	r.setResourceUnits(map[string]int{"gpu": 4})
	jobs := r.enqueueAndGet(newDraft(withDemands(resourceDemand("gpu", 2))),
		newDraft(withDemands(resourceDemand("gpu", 4))), newDraft(withDemands(resourceDemand("gpu", 1))),
		newDraft(withUID(7), withPriority(4), withDemands(resourceDemand("gpu", 1))),
		newDraft(withQueue("night"), withDemands(resourceDemand("gpu", 1))), newDraft())
	got := r.claimAndExpect("the jobs that do not wait behind the large job", jobs[0], jobs[4], jobs[5])
	r.settleJob(got[1], exitOutcome(0))
	r.claimAndExpect("the large job waits")
	r.settleJob(got[0], exitOutcome(0))
	got = r.claimAndExpect("the large job starts first", jobs[1])
	r.settleJob(got[0], exitOutcome(0))
	r.claimAndExpect("the jobs behind the large job", jobs[2], jobs[3])
}

func jobLackingAnotherGateReservesNoUnits(r *storeTest) {
	r.setResourceUnits(map[string]int{"gpu": 2})
	jobs := r.enqueueAndGet(newDraft(withDemands(lockDemand("k", 1))), newDraft(withDemands(resourceDemand("gpu", 1))),
		newDraft(withDemands(lockDemand("k", 1), resourceDemand("gpu", 2))),
		newDraft(withUID(7), withPriority(4), withDemands(resourceDemand("gpu", 1))))
	got := r.claimAndExpect("the third job waits for its lock", jobs[0], jobs[1], jobs[3])
	next := r.enqueueOne(withDemands(resourceDemand("gpu", 1)))
	r.settleJob(got[1], exitOutcome(0))
	got[1] = r.claimAndExpect("no job waits behind it", next)[0]
	r.settleJob(got[0], exitOutcome(0))
	last := r.enqueueOne(withDemands(resourceDemand("gpu", 1)))
	r.settleJob(got[1], exitOutcome(0))
	r.claimAndExpect("it has its lock, and waits for units")
	r.must(r.applyVerb(jobs[2], queue.VerbCancel))
	r.claimAndExpect("it was cancelled", last)
}

func nodeDemand(node string) queue.Demand {
	return queue.Demand{Kind: queue.GateNode, GateKey: node, Amount: 1}
}

func jobRunsOnItsNode(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withDemands(nodeDemand("here"))), newDraft(withDemands(nodeDemand("there"))),
		newDraft(withDemands(nodeDemand("size=large"))), newDraft(withDemands(nodeDemand("size=small"))),
		newDraft(withDemands(nodeDemand("there"), resourceDemand("gpu", 1))), newDraft(withDemands(resourceDemand("gpu", 1))))
	r.must(r.store.SetThisNodeProperties(r.Context(), store.Node{Name: "here", Labels: map[string]string{"size": "large"},
		ResourceUnits: map[string]int{"gpu": 1}}))
	got := r.claimAndExpect("one node", jobs[0], jobs[2], jobs[5])
	r.must(r.store.SetThisNodeProperties(r.Context(), store.Node{Name: "there",
		Labels: map[string]string{"size": "small", "here": ""}, ResourceUnits: map[string]int{"gpu": 1}}))
	r.applyDueChangesUntilDone()
	r.claimAndExpect("a second node, whose unit is in use", jobs[1], jobs[3])
	r.settleJob(got[2], exitOutcome(0))
	r.claimAndExpect("the unit is free", jobs[4])
}

func allGatesMustHaveRoom(r *storeTest) {
	r.setResourceUnits(map[string]int{"gpu": 1})
	r.setMaxRunningPerUser(2)
	all := withDemands(lockDemand("k", 1), rateDemand("r", 1, time.Second), resourceDemand("gpu", 1))
	jobs := r.enqueueAndGet(newDraft(all), newDraft(all), newDraft(withDemands(lockDemand("k", 1))),
		newDraft(withDemands(rateDemand("r", 1, time.Second))), newDraft(withDemands(resourceDemand("gpu", 1))), newDraft(),
		newDraft())
	got := r.claimAndExpect("one job with all three demands, one with none", jobs[0], jobs[5])
	r.settleJob(got[1], exitOutcome(0))
	plain := r.claimAndExpect("the user has room again", jobs[6])
	r.settleJob(got[0], exitOutcome(0))
	one := r.claimAndExpect("the rate of the second job is full", jobs[2])
	r.settleJob(plain[0], exitOutcome(0))
	two := r.claimAndExpect("the unit is free", jobs[4])
	r.advanceAndApplyDueChanges(time.Second + time.Millisecond)
	r.applyDueChangesUntilDone()
	r.settleJob(two[0], exitOutcome(0))
	three := r.claimAndExpect("the lock of the second job is held", jobs[3])
	r.settleJob(one[0], exitOutcome(0))
	r.settleJob(three[0], exitOutcome(0))
	r.claimAndExpect("the rate of the second job is full again")
	r.advanceAndApplyDueChanges(time.Second + time.Millisecond)
	r.applyDueChangesUntilDone()
	r.claimAndExpect("all gates have room", jobs[1])
}

func editedDemandsApply(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withDemands(lockDemand("k", 1))), newDraft(withDemands(lockDemand("k", 1))),
		newDraft())
	r.must(r.editJob(jobs[1], func(j *queue.Job) error { j.Demands, j.Queue = nil, "night"; return nil }))
	got := r.claimAndExpect("the demand was removed", jobs[0], jobs[1], jobs[2])
	checkEqual(r, "queue", r.getJob(jobs[1].ID).Queue, "night")
	checkEqual(r, "demands", len(r.getJob(jobs[1].ID).Demands), 0)
	r.releaseClaimedJobs(got[1])
	r.must(r.editJob(r.getJob(jobs[1].ID), func(j *queue.Job) error {
		j.Demands = []queue.Demand{lockDemand("k",
			1)}
		return nil
	}))
	r.claimAndExpect("the demand was added again")
	r.settleJob(got[0], exitOutcome(0))
	r.claimAndExpect("the lock is free", jobs[1])
}

func awaitReturnsWhenGateHasRoom(r *storeTest) {
	jobs := r.enqueueAndGet(newDraft(withDemands(lockDemand("k", 1), rateDemand("r", 1, time.Second))),
		newDraft(withDemands(lockDemand("k", 1))), newDraft(withDemands(rateDemand("r", 1, time.Second))))
	got := r.claimAndExpect("the first job", jobs[0])
	result := r.startAwait(r.Context(), 1)
	r.settleJob(got[0], exitOutcome(0))
	got = r.receiveAwaitedJobs("the lock is free", result)
	checkEqual(r, "awaited job", got[0].Seq, jobs[1].Seq)
	result = r.startAwait(r.Context(), 1)
	r.advanceAndApplyDueChanges(time.Second + time.Millisecond)
	r.applyDueChangesUntilDone()
	checkEqual(r, "job", r.receiveAwaitedJobs("the period of the rate is over", result)[0].Seq, jobs[2].Seq)
	other := r.enqueueOne(withDemands(lockDemand("k", 1)))
	result = r.startAwait(r.Context(), 1)
	r.enqueueOne(withDemands(lockDemand("k", 2)))
	checkEqual(r, "job", r.receiveAwaitedJobs("a new job declares a higher limit", result)[0].Seq, other.Seq)
}

func impossibleDemandsAreRefused(r *storeTest) {
	j := r.enqueueOne()
	for what, list := range map[string][]queue.Demand{
		"a lock of none":         {lockDemand("k", 0)},
		"too many units":         {resourceDemand("gpu", queue.MaxDemandAmount+1)},
		"no key":                 {lockDemand("", 1)},
		"a key with a newline":   {lockDemand("a\n3 1 b", 1)},
		"a label without a name": {nodeDemand("=large")},
		"no period":              {rateDemand("r", 1, 0)},
		"a lock's period":        {{Kind: queue.GateLock, GateKey: "k", Amount: 1, RatePeriod: time.Second}},
		"no kind":                {{GateKey: "k", Amount: 1}},
		"two units of a node":    {{Kind: queue.GateNode, GateKey: "here", Amount: 2}},
		"a user's quota":         {{Kind: queue.GateUser, GateKey: "k", Amount: 1}},
		"one key twice":          {lockDemand("k", 1), lockDemand("k", 2)},
		"out of order":           {resourceDemand("gpu", 1), lockDemand("k", 1)},
		"too many demands":       make([]queue.Demand, queue.MaxDemands+1),
	} {
		r.checkStoreUnchanged(func() {
			_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withDemands(list...))},
				UID: testUID})
			r.checkErrorCode(what, err, queue.CodeInvalid)
			r.checkErrorCode(what, r.editJob(j, func(j *queue.Job) error { j.Demands = list; return nil }), queue.CodeInvalid)
		})
	}
}

func (r *storeTest) setQueueRule(name string, rule store.QueueRule) {
	r.Helper()
	r.must(r.store.SetQueue(r.Context(), name, rule))
}

func pausedQueueStartsNoJobs(r *storeTest) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	jobs := r.enqueueAndGet(newDraft(withQueue("night")), newDraft(withQueue("night"), withUID(7)), newDraft())
	r.claimAndExpect("only the job of the other queue", jobs[2])
	result := r.startAwait(r.Context(), 9)
	r.setQueueRule("night", store.QueueRule{Weight: 1})
	checkEqual(r, "jobs", len(r.receiveAwaitedJobs("the queue was resumed", result)), 2)
}

func concurrencyLimitsLeasedJobs(r *storeTest) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Concurrency: 2})
	jobs := r.enqueueAndGet(newDraft(withQueue("night")), newDraft(withQueue("night"), withUID(7)),
		newDraft(withQueue("night"), withUID(8)), newDraft())
	got := r.claimAndExpect("two jobs of the limited queue", jobs[0], jobs[1], jobs[3])
	result := r.startAwait(r.Context(), 9)
	r.settleJob(got[0], exitOutcome(0))
	checkEqual(r, "job", r.receiveAwaitedJobs("one job has ended", result)[0].Seq, jobs[2].Seq)
}

// A user with jobs in many queues reaches the limit of running jobs. The jobs of other users are not delayed.
// When one of the user's jobs ends, another one starts.
func limitedUserDelaysNoOtherUsers(r *storeTest) {
	const queueCount = 600
	r.setMaxRunningPerUser(2)
	drafts := make([]queue.Job, queueCount)
	for i := range drafts {
		drafts[i] = newDraft(withUID(1), withQueue(fmt.Sprint("q", i)))
	}
	mine := r.enqueueAndGet(drafts...)
	var claimedJobs []queue.Job
	for range 20 {
		claimedJobs = append(claimedJobs, r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 9}).ClaimedJobs...)
	}
	checkEqual(r, "jobs of the user with many queues", len(claimedJobs), 2)
	other := r.enqueueOne(withUID(2))
	r.settleJob(claimedJobs[0], exitOutcome(0))
	var next []queue.Job
	for range 10 {
		next = append(next, r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 9}).ClaimedJobs...)
	}
	checkEqual(r, "jobs of both users", len(next), 2)
	if !slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == other.Seq }) ||
		!slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == mine[2].Seq }) {
		r.Errorf("claimed %v, want the third job of user 1 and the job of user 2", next)
	}
}

// In each of many queues, the first job needs more units of a resource than are free. ApplyDueChanges must still finish
// its work after a limited number of calls. Jobs that do not need the resource must not be delayed.
func resourceWaitersDelayNoOtherJobs(r *storeTest) {
	r.setResourceUnits(map[string]int{"gpu": 2})
	r.claimAndExpect("one of two units", r.enqueueOne(withDemands(resourceDemand("gpu", 1))))
	drafts := make([]queue.Job, 600)
	for i := range drafts {
		drafts[i] = newDraft(withUID(1), withQueue(fmt.Sprint("q", i)), withDemands(resourceDemand("gpu", 2)))
	}
	r.enqueueAndGet(drafts...)
	// After a change of the node's resources, the store checks all waiting jobs again.
	r.setResourceUnits(map[string]int{"gpu": 2, "disk": 1})
	r.claimAndExpect("a job of another user", r.enqueueOne(withUID(2)))
	r.applyDueChangesUntilDone()
	r.claimAndExpect("no job has enough units")
}

// Two queues with the weights 3 and 1 start jobs in the ratio 3 to 1, whatever priorities the jobs have.
func queuesShareByWeight(r *storeTest) {
	r.setQueueRule("a", store.QueueRule{Weight: 3})
	const jobsPerQueue = 400
	var drafts []queue.Job
	for range jobsPerQueue {
		drafts = append(drafts, newDraft(withQueue("a"), withPriority(1)), newDraft(withQueue("b"), withPriority(9)))
	}
	r.enqueueAndGet(drafts...)
	starts := map[string]int{}
	for range jobsPerQueue / 10 {
		var report store.LeaseReport
		for _, j := range r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 10}).ClaimedJobs {
			starts[j.Queue]++
			report.Settlements = append(report.Settlements, r.newSettlement(j, exitOutcome(0)))
		}
		r.sendLeaseReport(report)
	}
	if starts["a"] < jobsPerQueue*3/4-2 || starts["a"] > jobsPerQueue*3/4+2 || starts["a"]+starts["b"] != jobsPerQueue {
		r.Errorf("starts by queue: %v of %d, with weights 3 and 1", starts, jobsPerQueue)
	}
}

func idleQueueSavesNoTurns(r *storeTest) {
	r.setQueueRule("a", store.QueueRule{Weight: 2})
	var drafts []queue.Job
	for range 40 {
		drafts = append(drafts, newDraft(withQueue("a")))
	}
	r.enqueueAndGet(drafts...)
	r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 30})
	drafts = drafts[:0]
	for range 20 {
		drafts = append(drafts, newDraft(withQueue("b"), withPriority(9)))
	}
	r.enqueueAndGet(drafts...)
	starts := map[string]int{}
	for _, j := range r.sendLeaseReport(store.LeaseReport{MaxJobsToClaim: 12}).ClaimedJobs {
		starts[j.Queue]++
	}
	if starts["a"] < 7 || starts["a"] > 9 {
		r.Errorf("starts by queue: %v of 12, with weights 2 and 1 after queue b was idle", starts)
	}
}

// A gate key that starts with @, such as @db, is shared by all users. SetGateRule sets the limit for such a key. The
// rule's limit applies instead of the limits that jobs declare.
func sharedGateLimitOverridesDeclaredLimits(r *storeTest) {
	set := func(d queue.Demand) error { return r.store.SetGateRule(r.Context(), d) }
	lock := func(n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, GateKey: "@db", Amount: n} }
	rate := queue.Demand{Kind: queue.GateRate, GateKey: "@api", Amount: 2, RatePeriod: time.Second}
	r.must(set(lock(2)))
	r.must(set(rate))
	demanding := func(d ...queue.Demand) queue.Job {
		return r.enqueueOne(func(j *queue.Job) { j.Demands = d })
	}
	a, b, c := demanding(lock(1)), demanding(lock(7)), demanding(lock(1))
	r.claimAndExpect("two jobs, whatever limits they declare", a, b)
	r.must(set(lock(3)))
	r.claimAndExpect("a third job after the limit was raised", c)
	own := queue.Demand{Kind: queue.GateLock, GateKey: "own", Amount: 1}
	demanding(own)
	r.claimAndExpect("the job with a private lock", r.getJob("4"))
	gates := func(uid int, after store.GateState) []store.GateState {
		list, err := r.store.Gates(r.Context(), uid, after)
		r.must(err)
		return list
	}
	want := []store.GateState{
		{Demand: lock(3), OwnerUID: queue.SharedGateOwner, HasStoredRule: true, UsedUnits: 3, UnfinishedJobs: 3},
		{Demand: rate, OwnerUID: queue.SharedGateOwner, HasStoredRule: true},
		{Demand: own, OwnerUID: testUID, UsedUnits: 1, UnfinishedJobs: 1},
	}
	checkEqual(r, "gates", gates(testUID, store.GateState{}), want)
	checkEqual(r, "gates after the first", gates(testUID, want[0]), want[1:])
	checkEqual(r, "gates after the shared ones", gates(testUID, want[1]), want[2:])
	checkEqual(r, "shared gates", gates(queue.SharedGateOwner, store.GateState{}), want[:2])
	checkEqual(r, "gates of another user", gates(7, store.GateState{}), want[:2])
	r.must(set(lock(0)))
	r.must(set(queue.Demand{Kind: queue.GateRate, GateKey: "@api"}))
	d := demanding(lock(4))
	r.claimAndExpect("a new job does not change the limit while other jobs use the lock")
	want[0] = store.GateState{Demand: lock(3), OwnerUID: queue.SharedGateOwner, UsedUnits: 3, UnfinishedJobs: 4}
	checkEqual(r, "gates without rules", gates(7, store.GateState{}), want[:1])
	leased, err := r.leasedJobs()
	r.must(err)
	for _, j := range leased {
		r.settleJob(j, exitOutcome(0))
	}
	r.must(r.applyVerb(d, queue.VerbCancel))
	e := demanding(lock(1))
	f := demanding(lock(9))
	r.claimAndExpect("the limit declared by the first job that uses the lock", e)
	r.must(r.applyVerb(f, queue.VerbCancel))
	r.must(r.applyVerb(d, queue.VerbRetry)) // the retried job d declares a limit other than the one set by SetGateRule
	r.claimAndExpect("the same limit after a retry")
	for _, wrong := range []queue.Demand{{Kind: queue.GateLock, GateKey: "own", Amount: 1},
		{Kind: queue.GateLock, GateKey: "@", Amount: 1},
		{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}, {Kind: queue.GateLock, GateKey: "@x", Amount: -1},
		{Kind: queue.GateRate, GateKey: "@x", Amount: 1}} {
		if err := set(wrong); !errors.Is(err, queue.ErrInvalid) {
			r.Errorf("%+v: got error %v, want %v", wrong, err, queue.ErrInvalid)
		}
	}
}
