package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Each setting of the order decides which of two jobs is claimed first. The second job is enqueued ten
// seconds after the first one and has a higher priority.
func TestOrderSettingDecidesClaimOrder(t *testing.T) {
	byPoints := queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingInterval: time.Second}
	byJobs := queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues}
	byPriority := queue.RankPolicy{Scheduling: queue.SchedulingByPriority}
	byArrival := queue.RankPolicy{Scheduling: queue.SchedulingByArrival}
	cases := map[string]struct {
		order    queue.RankPolicy
		priority int64 // priority of the second job; the first one has 0
		want     string
	}{
		"ageing: the first job has earned more points":     {byPoints, 9, "first second"},
		"ageing: the first job has earned fewer points":    {byPoints, 11, "second first"},
		"ageing: equal ranks start in order of number":     {byPoints, 10, "first second"},
		"ageing by enqueued jobs: equal ranks":             {byJobs, 1, "first second"},
		"ageing by enqueued jobs: more priority than jobs": {byJobs, 2, "second first"},
		"priority: any difference decides":                 {byPriority, 1, "second first"},
		"priority: equal priorities start in order":        {byPriority, 0, "first second"},
		"fifo: the priority has no effect":                 {byArrival, 1_000_000, "first second"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.order = c.order
			f.mustEnqueue(queue.Job{ID: "first"})
			f.advanceTime(10 * time.Second)
			f.mustEnqueue(queue.Job{ID: "second", Priority: c.priority})
			f.wantClaim(2, c.want)
		})
	}
}

// A claim takes jobs in the order of their ranks, even if they are in different lanes (lists of jobs with the
// same queue, user and demands).
func TestClaimMergesLanesByRank(t *testing.T) {
	f := newFixture(t)
	for i := range 6 {
		f.mustEnqueue(draftWithDemands(fmt.Sprint(i), []string{"", "lock:db:10", "rate:mail:10"}[i%3]))
	}
	f.wantClaim(4, "0 1 2 3")
	f.wantClaim(4, "4 5")
}

// A claim does not take jobs that are held or blocked, or that are not due yet.
func TestClaimTakesOnlyReadyJobs(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "later", Delay: time.Minute}, queue.Job{ID: "held"}, queue.Job{ID: "parent"})
	f.mustEnqueue(draftDependingOn("blocked", "parent", queue.ParentCompleted))
	f.mustApplyVerb(queue.VerbHold, "held")
	f.wantClaim(4, "parent")
	f.advanceTime(time.Minute)
	f.wantClaim(4, "later")
}

// A job with a start time in the future gains no ageing points before that time.
func TestAgeingStartsWhenJobIsDue(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "delayed", Delay: time.Minute})
	f.advanceTime(30 * time.Second)
	f.mustEnqueue(queue.Job{ID: "later but runnable"})
	f.advanceTime(30 * time.Second)
	f.wantClaim(2, "later but runnable delayed")
}

// A claim does not write a job's state or row. Only the lease shows that the job is claimed.
func TestClaimWritesLeaseButNotJob(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	before := f.jobByID("1")
	f.wantClaim(1, "1")
	after := f.jobByID("1")
	if after.State != before.State || after.Fence != before.Fence || after.Slot != before.Slot {
		t.Errorf("the claim changed the row from %+v to %+v", *before, *after)
	}
	f.wantClaim(1, "")
}

// Every claim of a job raises its fence (the number of its lease), even if the previous lease was returned
// before the job started.
func TestClaimRaisesFence(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	last := int64(0)
	for range 3 {
		f.wantClaim(1, "1")
		if fence := f.leaseOf("1").Fence; fence <= last {
			t.Fatalf("the claim gave the fence %d; want more than %d", fence, last)
		} else {
			last = fence
		}
		f.releaseLeases("1")
	}
}

// A claim takes no more jobs when it has read MaxBytesReadPerClaim bytes of jobs.
func TestClaimIsLimitedInBytes(t *testing.T) {
	f := newFixture(t)
	half := queue.ExecutionSettings{Stdin: strings.Repeat("x", MaxBytesReadPerClaim/2)}
	for _, id := range []string{"1", "2", "3"} {
		f.mustEnqueue(queue.Job{ID: id, ExecutionSettings: half})
	}
	f.wantClaim(3, "1 2")
	f.wantClaim(3, "3")
}

// In one transaction, claims take at most MaxLaneStepsPerTx steps, such as checks of lanes (lists of jobs). A claim
// that has used up the steps without leasing a job asks its caller to continue the claim in another transaction.
func TestClaimIsLimitedInSteps(t *testing.T) {
	f := newFixture(t)
	for i := range MaxLaneStepsPerTx / 2 {
		f.mustEnqueue(queue.Job{ID: fmt.Sprint("late", i), ExpiresAt: f.currentTime.Add(time.Second)})
	}
	f.mustEnqueue(queue.Job{ID: "next"})
	f.currentTime = f.currentTime.Add(time.Second)
	f.mustRunTx(func(r *Rules) error {
		jobs, more, err := r.Claim(1)
		if len(jobs) != 0 || !more || r.claimSteps > MaxLaneStepsPerTx+3 {
			t.Errorf("the claim got %d jobs in %d steps, more: %t; want none, and more", len(jobs), r.claimSteps, more)
		}
		return err
	})
	f.wantClaim(1, "next")
}

// While all queues have the same weight, the best-ranked job of all queues starts first.
func TestQueuesOfEqualWeightAreServedByRank(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "a1", Queue: "a"}, queue.Job{ID: "b1", Queue: "b"}, queue.Job{ID: "a2", Queue: "a"})
	f.mustEnqueue(queue.Job{ID: "b2", Queue: "b", Priority: 9})
	f.wantClaim(4, "b2 a1 b1 a2")
}

// Queues with different weights share the starts in proportion to their weights.
func TestQueuesShareStartsByWeight(t *testing.T) {
	f := newFixture(t)
	f.queueRules["a"] = store.QueueRule{Weight: 3}
	f.queueRules["b"] = store.QueueRule{Weight: 1}
	for i := range 12 {
		f.mustEnqueue(queue.Job{ID: fmt.Sprint("a", i), Queue: "a"}, queue.Job{ID: fmt.Sprint("b", i), Queue: "b"})
	}
	got := f.claimJobIDs(8)
	if a, b := strings.Count(got, "a"), strings.Count(got, "b"); a != 6 || b != 2 {
		t.Errorf("a claim of 8 jobs took %d and %d of the queues with weights 3 and 1 (%s); want 6 and 2", a, b, got)
	}
}

// A queue gets no additional turns for the time in which it had no job to start.
func TestEmptyQueueSavesNoTurns(t *testing.T) {
	f := newFixture(t)
	f.queueRules["a"] = store.QueueRule{Weight: 2}
	f.queueRules["b"] = store.QueueRule{Weight: 1}
	for i := range 20 {
		f.mustEnqueue(queue.Job{ID: fmt.Sprint("a", i), Queue: "a"})
	}
	f.claimJobIDs(10)
	for i := range 10 {
		f.mustEnqueue(queue.Job{ID: fmt.Sprint("b", i), Queue: "b"})
	}
	if got := f.claimJobIDs(6); strings.Count(got, "b") > 3 {
		t.Errorf("a claim of 6 jobs took %s; want at most 3 jobs of the queue that was empty before", got)
	}
}

// A claim leases at most as many jobs of a queue as Queue.LeasableJobs allows, and none of a paused queue.
func TestClaimRespectsQueueConcurrency(t *testing.T) {
	f := newFixture(t)
	f.queueRules["a"] = store.QueueRule{Weight: 1, Concurrency: 2}
	f.queueRules["b"] = store.QueueRule{Weight: 1, Paused: true}
	for _, id := range []string{"a1", "a2", "a3"} {
		f.mustEnqueue(queue.Job{ID: id, Queue: "a"})
	}
	f.mustEnqueue(queue.Job{ID: "b1", Queue: "b"}, queue.Job{ID: "c1", Queue: "c", Priority: -9})
	f.wantClaim(9, "a1 a2 c1")
	f.reportJobsCompleted("a1")
	if !f.rules.JobsMayBeClaimable {
		t.Error("the end of a job of a full queue does not wake the claim that waits")
	}
	f.wantClaim(9, "a3")
}

// A simulation returns the same jobs as several claims, one after another.
func TestSimulationMatchesLaterClaims(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "lock:db"), draftWithDemands("2", "lock:db"), queue.Job{ID: "3"})
	undone := fmt.Errorf("undone")
	err := f.runTx(func(r *Rules) error {
		s, err := r.SimulateClaims(9)
		if err == nil && (len(s.StartingJobs) != 2 || s.StartingJobs[0].ID != "1" || s.StartingJobs[1].ID != "3" ||
			s.IsIncomplete) {
			t.Errorf("the simulation returned %d jobs, incomplete: %t; want jobs 1 and 3", len(s.StartingJobs), s.IsIncomplete)
		}
		return undone
	})
	if err != undone {
		t.Fatal(err)
	}
	f.wantClaim(9, "1 3")
}
