package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var gatePromises = []promise{
	{name: "rules of SetGate override the limits that jobs declare", check: setGateRulesApply},
	{name: "a lock limits the number of running jobs", check: lockLimitsRunningJobs},
	{name: "a lock is private to its user unless its key is shared", check: locksArePrivateToUsers},
	{name: "the newest declared limit applies to all jobs of a lock", check: newestDeclaredLimitApplies},
	{name: "a rate limits the number of starts in a period", check: rateLimitsStarts},
	{name: "a rate counts a claimed job as started until it is given back", check: claimedJobsCountAsStarts},
	{name: "a resource limits the units in use", check: resourceLimitsUnits},
	{name: "no job of the same queue overtakes a job that waits for a resource", check: noJobOvertakesAtResource},
	{name: "a job that also lacks another gate reserves no units", check: jobLackingAnotherGateReservesNoUnits},
	{name: "a job runs only on the node that it demands", check: jobRunsOnItsNode},
	{name: "a job starts only when all its gates have room", check: allGatesMustHaveRoom},
	{name: "edited demands apply", check: editedDemandsApply},
	{name: "Await returns when a gate gets room", check: awaitReturnsWhenGateHasRoom},
	{name: "invalid demands are rejected", check: impossibleDemandsAreRefused},
	{name: "jobs of a paused queue do not start", check: pausedQueueStartsNothing},
	{name: "a queue's concurrency limits its leased jobs", check: concurrencyLimitsLeasedJobs},
	{name: "a user with jobs in many queues does not delay other users", check: manyQueuesDelayNoOthers},
	{name: "many queues that wait for a resource do not delay other jobs", check: resourceWaitDelaysNoOthers},
	{name: "queues share the starts by weight", check: queuesShareByWeight},
	{name: "an idle queue does not save up starts", check: idleQueueSavesNoTurns},
}

func withQueue(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }

// withDemands returns a function that makes a job need locks, rates, resources or a node.
func withDemands(list ...queue.Demand) func(*queue.Job) {
	return func(j *queue.Job) { j.Demands = list }
}

func lockDemand(key string, n int) queue.Demand {
	return queue.Demand{Kind: queue.GateLock, Key: key, Amount: n}
}

func rateDemand(key string, n int, per time.Duration) queue.Demand {
	return queue.Demand{Kind: queue.GateRate, Key: key, Amount: n, Period: per}
}

func resourceDemand(name string, n int) queue.Demand {
	return queue.Demand{Kind: queue.GateResource, Key: name, Amount: n}
}

// claimExactly claims as many jobs as can start. It checks that these are exactly the
// given jobs, in this order.
func (r *rig) claimExactly(subject string, want ...queue.Job) []queue.Job {
	r.Helper()
	got := r.exchange(store.Report{WantedJobs: 50}).Jobs
	seqs := func(jobs []queue.Job) (list []int64) {
		for i := range jobs {
			list = append(list, jobs[i].Seq)
		}
		return list
	}
	if !slices.Equal(seqs(got), seqs(want)) {
		r.Errorf("%s: claimed %v, want %v", subject, seqs(got), seqs(want))
	}
	return got
}

// release gives claimed jobs back to the queue before they have started.
func (r *rig) release(jobs ...queue.Job) {
	r.Helper()
	var report store.Report
	for _, j := range jobs {
		report.Releases = append(report.Releases, j.Lease())
	}
	r.exchange(report)
}

func lockLimitsRunningJobs(r *rig) {
	jobs := r.enqueueAndGet(draft(withDemands(lockDemand("k", 2))), draft(withDemands(lockDemand("k", 2))),
		draft(withDemands(lockDemand("k", 2))), draft(withDemands(lockDemand("other", 1))), draft())
	got := r.claimExactly("two jobs of the lock, and the jobs without it", jobs[0], jobs[1], jobs[3], jobs[4])
	r.claimExactly("the lock is full")
	r.release(got[1])
	got[1] = r.claimExactly("a job was given back", jobs[1])[0]
	got[0] = r.startJob(got[0])
	r.claimExactly("a started job still holds the lock")
	r.settle(got[0], exitOutcome(1)) // the job fails and waits for its retry
	r.claimExactly("a job has ended", jobs[2])
	r.advanceAndPromote(time.Hour)
	r.promote()
	r.claimExactly("the lock has no room for the retry")
	r.settle(got[1], exitOutcome(0))
	r.claimExactly("another job has ended", jobs[0])
}

func locksArePrivateToUsers(r *rig) {
	jobs := r.enqueueAndGet(
		draft(withUID(1), withDemands(lockDemand("k", 1))), draft(withUID(1), withDemands(lockDemand("k", 1))),
		draft(withUID(2), withDemands(lockDemand("k", 1))),
		draft(withUID(1), withDemands(lockDemand("@k", 1))), draft(withUID(2), withDemands(lockDemand("@k", 1))))
	r.claimExactly("one job for each user's lock, and one for the shared lock", jobs[0], jobs[2], jobs[3])
}

func newestDeclaredLimitApplies(r *rig) {
	old := r.enqueueAndGet(draft(withDemands(lockDemand("k", 1))), draft(withDemands(lockDemand("k", 1))),
		draft(withDemands(lockDemand("k", 1))))
	r.claimExactly("the first declared limit", old[0])
	last := r.enqueueOne(withDemands(lockDemand("k", 3)))
	r.must(r.edit(old[2], func(j *queue.Job) error { j.Command = "edited"; return nil }))
	got := r.claimExactly("the newest declared limit; an edit of another field changes nothing", old[1], old[2])
	r.settle(got[0], exitOutcome(0))
	r.claimExactly("one of three jobs has ended", last)
	r.enqueueOne(withDemands(lockDemand("k", 1)))
	r.settle(got[1], exitOutcome(0))
	r.claimExactly("two jobs run, and the newest limit is one")
}

func rateLimitsStarts(r *rig) {
	second := withDemands(rateDemand("k", 2, time.Second))
	jobs := r.enqueueAndGet(draft(second), draft(second), draft(second), draft(second), draft(second))
	got := r.claimExactly("two starts", jobs[0], jobs[1])
	r.startJob(got[0])
	r.settle(got[0], exitOutcome(0))
	r.advanceAndPromote(400 * time.Millisecond)
	r.startJob(got[1])
	r.claimExactly("an end makes no room")
	r.advanceAndPromote(600 * time.Millisecond)
	r.promote()
	r.claimExactly("exactly one second after the first start")
	r.advanceAndPromote(time.Millisecond)
	r.promote()
	r.claimExactly("more than one second after the first start", jobs[2])
	r.advanceAndPromote(399 * time.Millisecond)
	r.promote()
	r.claimExactly("exactly one second after the second start")
	r.advanceAndPromote(time.Millisecond)
	r.promote()
	r.claimExactly("more than one second after the second start", jobs[3])
}

// A claimed job counts toward its rate limit like a started one, until it is given back.
func claimedJobsCountAsStarts(r *rig) {
	second := withDemands(rateDemand("k", 1, time.Second))
	jobs := r.enqueueAndGet(draft(second), draft(second))
	got := r.claimExactly("one start", jobs[0])
	r.advanceAndPromote(time.Hour)
	r.promote()
	r.claimExactly("a claimed job may start at any time")
	r.release(got...)
	got = r.claimExactly("the job was given back, so it did not start", jobs[0])
	r.settle(got[0], outcomeOfCause(queue.EndNeverStarted))
	r.settle(r.claimExactly("the job was never started", jobs[0])[0], exitOutcome(0))
	r.claimExactly("the job has started")
	r.advanceAndPromote(time.Second + time.Millisecond)
	r.promote()
	r.claimExactly("more than a second later", jobs[1])
}

// setResources sets how many units of each resource the node has.
func (r *rig) setResources(units map[string]int) {
	r.Helper()
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "here", Resources: units}))
}

func resourceLimitsUnits(r *rig) {
	jobs := r.enqueueAndGet(draft(withDemands(resourceDemand("gpu", 2))), draft(withDemands(resourceDemand("gpu", 1))),
		draft(withDemands(resourceDemand("gpu", 1))), draft(withDemands(resourceDemand("disk", 1))))
	r.claimExactly("a node without resources")
	r.setResources(map[string]int{"gpu": 3})
	got := r.claimExactly("three units exist", jobs[0], jobs[1])
	r.setResources(map[string]int{"gpu": 1, "disk": 1})
	disk := r.claimExactly("the node has fewer units than are in use", jobs[3])
	r.settle(got[1], exitOutcome(0))
	r.claimExactly("two units are in use, and one exists")
	r.settle(got[0], exitOutcome(0))
	r.claimExactly("one unit is free", jobs[2])
	r.settle(disk[0], exitOutcome(0))
}

func noJobOvertakesAtResource(r *rig) {
	r.setResources(map[string]int{"gpu": 4})
	jobs := r.enqueueAndGet(draft(withDemands(resourceDemand("gpu", 2))), draft(withDemands(resourceDemand("gpu", 4))),
		draft(withDemands(resourceDemand("gpu", 1))),
		draft(withUID(7), withPriority(4), withDemands(resourceDemand("gpu", 1))),
		draft(withQueue("night"), withDemands(resourceDemand("gpu", 1))), draft())
	got := r.claimExactly("the jobs that do not wait behind the large job", jobs[0], jobs[4], jobs[5])
	r.settle(got[1], exitOutcome(0))
	r.claimExactly("the large job waits")
	r.settle(got[0], exitOutcome(0))
	got = r.claimExactly("the large job starts first", jobs[1])
	r.settle(got[0], exitOutcome(0))
	r.claimExactly("the jobs behind the large job", jobs[2], jobs[3])
}

func jobLackingAnotherGateReservesNoUnits(r *rig) {
	r.setResources(map[string]int{"gpu": 2})
	jobs := r.enqueueAndGet(draft(withDemands(lockDemand("k", 1))), draft(withDemands(resourceDemand("gpu", 1))),
		draft(withDemands(lockDemand("k", 1), resourceDemand("gpu", 2))),
		draft(withUID(7), withPriority(4), withDemands(resourceDemand("gpu", 1))))
	got := r.claimExactly("the third job waits for its lock", jobs[0], jobs[1], jobs[3])
	next := r.enqueueOne(withDemands(resourceDemand("gpu", 1)))
	r.settle(got[1], exitOutcome(0))
	got[1] = r.claimExactly("no job waits behind it", next)[0]
	r.settle(got[0], exitOutcome(0))
	last := r.enqueueOne(withDemands(resourceDemand("gpu", 1)))
	r.settle(got[1], exitOutcome(0))
	r.claimExactly("it has its lock, and waits for units")
	r.must(r.change(jobs[2], queue.VerbCancel))
	r.claimExactly("it was cancelled", last)
}

func nodeDemand(node string) queue.Demand {
	return queue.Demand{Kind: queue.GateNode, Key: node, Amount: 1}
}

func jobRunsOnItsNode(r *rig) {
	jobs := r.enqueueAndGet(draft(withDemands(nodeDemand("here"))), draft(withDemands(nodeDemand("there"))),
		draft(withDemands(nodeDemand("size=large"))), draft(withDemands(nodeDemand("size=small"))),
		draft(withDemands(nodeDemand("there"), resourceDemand("gpu", 1))), draft(withDemands(resourceDemand("gpu", 1))))
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "here", Labels: map[string]string{"size": "large"},
		Resources: map[string]int{"gpu": 1}}))
	got := r.claimExactly("one node", jobs[0], jobs[2], jobs[5])
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "there", Labels: map[string]string{"size": "small", "here": ""},
		Resources: map[string]int{"gpu": 1}}))
	r.promote()
	r.claimExactly("a second node, whose unit is in use", jobs[1], jobs[3])
	r.settle(got[2], exitOutcome(0))
	r.claimExactly("the unit is free", jobs[4])
}

func allGatesMustHaveRoom(r *rig) {
	r.setResources(map[string]int{"gpu": 1})
	r.setMaxRunning(2)
	all := withDemands(lockDemand("k", 1), rateDemand("r", 1, time.Second), resourceDemand("gpu", 1))
	jobs := r.enqueueAndGet(draft(all), draft(all), draft(withDemands(lockDemand("k", 1))),
		draft(withDemands(rateDemand("r", 1, time.Second))), draft(withDemands(resourceDemand("gpu", 1))), draft(), draft())
	got := r.claimExactly("one job with all three demands, one with none", jobs[0], jobs[5])
	r.settle(got[1], exitOutcome(0))
	plain := r.claimExactly("the user has room again", jobs[6])
	r.settle(got[0], exitOutcome(0))
	one := r.claimExactly("the rate of the second job is full", jobs[2])
	r.settle(plain[0], exitOutcome(0))
	two := r.claimExactly("the unit is free", jobs[4])
	r.advanceAndPromote(time.Second + time.Millisecond)
	r.promote()
	r.settle(two[0], exitOutcome(0))
	three := r.claimExactly("the lock of the second job is held", jobs[3])
	r.settle(one[0], exitOutcome(0))
	r.settle(three[0], exitOutcome(0))
	r.claimExactly("the rate of the second job is full again")
	r.advanceAndPromote(time.Second + time.Millisecond)
	r.promote()
	r.claimExactly("all gates have room", jobs[1])
}

func editedDemandsApply(r *rig) {
	jobs := r.enqueueAndGet(draft(withDemands(lockDemand("k", 1))), draft(withDemands(lockDemand("k", 1))), draft())
	r.must(r.edit(jobs[1], func(j *queue.Job) error { j.Demands, j.Queue = nil, "night"; return nil }))
	got := r.claimExactly("the demand was removed", jobs[0], jobs[1], jobs[2])
	checkEqual(r, "queue", r.getJob(jobs[1].ID).Queue, "night")
	checkEqual(r, "demands", len(r.getJob(jobs[1].ID).Demands), 0)
	r.release(got[1])
	r.must(r.edit(r.getJob(jobs[1].ID), func(j *queue.Job) error {
		j.Demands = []queue.Demand{lockDemand("k",
			1)}
		return nil
	}))
	r.claimExactly("the demand was added again")
	r.settle(got[0], exitOutcome(0))
	r.claimExactly("the lock is free", jobs[1])
}

func awaitReturnsWhenGateHasRoom(r *rig) {
	jobs := r.enqueueAndGet(draft(withDemands(lockDemand("k", 1), rateDemand("r", 1, time.Second))),
		draft(withDemands(lockDemand("k", 1))), draft(withDemands(rateDemand("r", 1, time.Second))))
	got := r.claimExactly("the first job", jobs[0])
	result := r.await(r.Context(), 1)
	r.settle(got[0], exitOutcome(0))
	got = r.awaitedJobs("the lock is free", result)
	checkEqual(r, "awaited job", got[0].Seq, jobs[1].Seq)
	result = r.await(r.Context(), 1)
	r.advanceAndPromote(time.Second + time.Millisecond)
	r.promote()
	checkEqual(r, "job", r.awaitedJobs("the period of the rate is over", result)[0].Seq, jobs[2].Seq)
	other := r.enqueueOne(withDemands(lockDemand("k", 1)))
	result = r.await(r.Context(), 1)
	r.enqueueOne(withDemands(lockDemand("k", 2)))
	checkEqual(r, "job", r.awaitedJobs("a new job declares a higher limit", result)[0].Seq, other.Seq)
}

func impossibleDemandsAreRefused(r *rig) {
	j := r.enqueueOne()
	for what, list := range map[string][]queue.Demand{
		"a lock of none":         {lockDemand("k", 0)},
		"too many units":         {resourceDemand("gpu", queue.MaxDemandAmount+1)},
		"no key":                 {lockDemand("", 1)},
		"a key with a newline":   {lockDemand("a\n3 1 b", 1)},
		"a label without a name": {nodeDemand("=large")},
		"no period":              {rateDemand("r", 1, 0)},
		"a lock's period":        {{Kind: queue.GateLock, Key: "k", Amount: 1, Period: time.Second}},
		"no kind":                {{Key: "k", Amount: 1}},
		"two units of a node":    {{Kind: queue.GateNode, Key: "here", Amount: 2}},
		"a user's quota":         {{Kind: queue.GateUser, Key: "k", Amount: 1}},
		"one key twice":          {lockDemand("k", 1), lockDemand("k", 2)},
		"out of order":           {resourceDemand("gpu", 1), lockDemand("k", 1)},
		"too many demands":       make([]queue.Demand, queue.MaxDemands+1),
	} {
		r.checkUnchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withDemands(list...))}, UID: testUID})
			r.wantCode(what, err, queue.CodeInvalid)
			r.wantCode(what, r.edit(j, func(j *queue.Job) error { j.Demands = list; return nil }), queue.CodeInvalid)
		})
	}
}

func (r *rig) setQueueRule(name string, rule store.QueueRule) {
	r.Helper()
	r.must(r.s.SetQueue(r.Context(), name, rule))
}

func pausedQueueStartsNothing(r *rig) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Paused: true})
	jobs := r.enqueueAndGet(draft(withQueue("night")), draft(withQueue("night"), withUID(7)), draft())
	r.claimExactly("only the job of the other queue", jobs[2])
	result := r.await(r.Context(), 9)
	r.setQueueRule("night", store.QueueRule{Weight: 1})
	checkEqual(r, "jobs", len(r.awaitedJobs("the queue was resumed", result)), 2)
}

func concurrencyLimitsLeasedJobs(r *rig) {
	r.setQueueRule("night", store.QueueRule{Weight: 1, Concurrency: 2})
	jobs := r.enqueueAndGet(draft(withQueue("night")), draft(withQueue("night"), withUID(7)),
		draft(withQueue("night"), withUID(8)), draft())
	got := r.claimExactly("two jobs of the limited queue", jobs[0], jobs[1], jobs[3])
	result := r.await(r.Context(), 9)
	r.settle(got[0], exitOutcome(0))
	checkEqual(r, "job", r.awaitedJobs("one job has ended", result)[0].Seq, jobs[2].Seq)
}

// A user with jobs in many queues reaches the limit of running jobs. The jobs of other users are not delayed.
// When one of the user's jobs ends, another one starts.
func manyQueuesDelayNoOthers(r *rig) {
	const queueCount = 600
	r.setMaxRunning(2)
	drafts := make([]queue.Job, queueCount)
	for i := range drafts {
		drafts[i] = draft(withUID(1), withQueue(fmt.Sprint("q", i)))
	}
	mine := r.enqueueAndGet(drafts...)
	var claimedJobs []queue.Job
	for range 20 {
		claimedJobs = append(claimedJobs, r.exchange(store.Report{WantedJobs: 9}).Jobs...)
	}
	checkEqual(r, "jobs of the user with many queues", len(claimedJobs), 2)
	other := r.enqueueOne(withUID(2))
	r.settle(claimedJobs[0], exitOutcome(0))
	var next []queue.Job
	for range 10 {
		next = append(next, r.exchange(store.Report{WantedJobs: 9}).Jobs...)
	}
	checkEqual(r, "jobs of both users", len(next), 2)
	if !slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == other.Seq }) ||
		!slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == mine[2].Seq }) {
		r.Errorf("claimed %v, want the third job of user 1 and the job of user 2", next)
	}
}

// In each of many queues, the first job needs more units of a resource than are free. Repeated Promote calls
// still finish, and jobs that do not need the resource are not delayed.
func resourceWaitDelaysNoOthers(r *rig) {
	r.setResources(map[string]int{"gpu": 2})
	r.claimExactly("one of two units", r.enqueueOne(withDemands(resourceDemand("gpu", 1))))
	drafts := make([]queue.Job, 600)
	for i := range drafts {
		drafts[i] = draft(withUID(1), withQueue(fmt.Sprint("q", i)), withDemands(resourceDemand("gpu", 2)))
	}
	r.enqueueAndGet(drafts...)
	// After a change of the node's resources, the store checks all waiting jobs again.
	r.setResources(map[string]int{"gpu": 2, "disk": 1})
	r.claimExactly("a job of another user", r.enqueueOne(withUID(2)))
	r.promote()
	r.claimExactly("no job has enough units")
}

// Two queues with the weights 3 and 1 start jobs in the ratio 3 to 1, whatever priorities the jobs have.
func queuesShareByWeight(r *rig) {
	r.setQueueRule("a", store.QueueRule{Weight: 3})
	const jobsPerQueue = 400
	var drafts []queue.Job
	for range jobsPerQueue {
		drafts = append(drafts, draft(withQueue("a"), withPriority(1)), draft(withQueue("b"), withPriority(9)))
	}
	r.enqueueAndGet(drafts...)
	starts := map[string]int{}
	for range jobsPerQueue / 10 {
		var report store.Report
		for _, j := range r.exchange(store.Report{WantedJobs: 10}).Jobs {
			starts[j.Queue]++
			report.Settlements = append(report.Settlements, r.settlement(j, exitOutcome(0)))
		}
		r.exchange(report)
	}
	if starts["a"] < jobsPerQueue*3/4-2 || starts["a"] > jobsPerQueue*3/4+2 || starts["a"]+starts["b"] != jobsPerQueue {
		r.Errorf("starts by queue: %v of %d, with weights 3 and 1", starts, jobsPerQueue)
	}
}

func idleQueueSavesNoTurns(r *rig) {
	r.setQueueRule("a", store.QueueRule{Weight: 2})
	var drafts []queue.Job
	for range 40 {
		drafts = append(drafts, draft(withQueue("a")))
	}
	r.enqueueAndGet(drafts...)
	r.exchange(store.Report{WantedJobs: 30})
	drafts = drafts[:0]
	for range 20 {
		drafts = append(drafts, draft(withQueue("b"), withPriority(9)))
	}
	r.enqueueAndGet(drafts...)
	starts := map[string]int{}
	for _, j := range r.exchange(store.Report{WantedJobs: 12}).Jobs {
		starts[j.Queue]++
	}
	if starts["a"] < 7 || starts["a"] > 9 {
		r.Errorf("starts by queue: %v of 12, with weights 2 and 1 after queue b was idle", starts)
	}
}

// SetGate sets the limit for a key that users share, such as @db. This limit applies instead of the
// limits that jobs declare.
func setGateRulesApply(r *rig) {
	set := func(d queue.Demand) error { return r.s.SetGate(r.Context(), d) }
	lock := func(n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, Key: "@db", Amount: n} }
	rate := queue.Demand{Kind: queue.GateRate, Key: "@api", Amount: 2, Period: time.Second}
	r.must(set(lock(2)))
	r.must(set(rate))
	demanding := func(d ...queue.Demand) queue.Job {
		return r.enqueueOne(func(j *queue.Job) { j.Demands = d })
	}
	a, b, c := demanding(lock(1)), demanding(lock(7)), demanding(lock(1))
	r.claimExactly("two jobs, whatever limits they declare", a, b)
	r.must(set(lock(3)))
	r.claimExactly("a third job after the limit was raised", c)
	own := queue.Demand{Kind: queue.GateLock, Key: "own", Amount: 1}
	demanding(own)
	r.claimExactly("the job with a private lock", r.getJob("4"))
	gates := func(uid int, after store.GateState) []store.GateState {
		list, err := r.s.Gates(r.Context(), uid, after)
		r.must(err)
		return list
	}
	want := []store.GateState{
		{Demand: lock(3), UID: queue.SharedOwner, RuleStored: true, Usage: 3, Jobs: 3},
		{Demand: rate, UID: queue.SharedOwner, RuleStored: true},
		{Demand: own, UID: testUID, Usage: 1, Jobs: 1},
	}
	checkEqual(r, "gates", gates(testUID, store.GateState{}), want)
	checkEqual(r, "gates after the first", gates(testUID, want[0]), want[1:])
	checkEqual(r, "gates after the shared ones", gates(testUID, want[1]), want[2:])
	checkEqual(r, "shared gates", gates(queue.SharedOwner, store.GateState{}), want[:2])
	checkEqual(r, "gates of another user", gates(7, store.GateState{}), want[:2])
	r.must(set(lock(0)))
	r.must(set(queue.Demand{Kind: queue.GateRate, Key: "@api"}))
	d := demanding(lock(4))
	r.claimExactly("a new job does not change the limit while other jobs use the lock")
	want[0] = store.GateState{Demand: lock(3), UID: queue.SharedOwner, Usage: 3, Jobs: 4}
	checkEqual(r, "gates without rules", gates(7, store.GateState{}), want[:1])
	leased, err := r.leasedJobs()
	r.must(err)
	for _, j := range leased {
		r.settle(j, exitOutcome(0))
	}
	r.must(r.change(d, queue.VerbCancel))
	e := demanding(lock(1))
	f := demanding(lock(9))
	r.claimExactly("the limit declared by the first job that uses the lock", e)
	r.must(r.change(f, queue.VerbCancel))
	r.must(r.change(d, queue.VerbRetry)) // the retried job d declares another limit than SetGate has set
	r.claimExactly("the same limit after a retry")
	for _, wrong := range []queue.Demand{{Kind: queue.GateLock, Key: "own", Amount: 1}, {Kind: queue.GateLock, Key: "@",
		Amount: 1},
		{Kind: queue.GateResource, Key: "gpu", Amount: 1}, {Kind: queue.GateLock, Key: "@x", Amount: -1},
		{Kind: queue.GateRate, Key: "@x", Amount: 1}} {
		if err := set(wrong); !errors.Is(err, queue.ErrInvalid) {
			r.Errorf("%+v: got error %v, want %v", wrong, err, queue.ErrInvalid)
		}
	}
}
