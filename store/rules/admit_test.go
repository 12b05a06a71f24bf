package rules

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A limit on waiting jobs admits exactly as many jobs as it says. Leased jobs count as waiting until they
// start.
func TestWaitingLimitsAdmitExactJobCount(t *testing.T) {
	waiting := func() *fixture { // three waiting jobs: two of userA in queue a, one of userB; one more job has started
		f := newFixture(t)
		f.mustEnqueue(queue.Job{ID: "running", Queue: "a"})
		f.wantClaim(1, "running")
		f.reportJobsStarted("running")
		f.mustEnqueue(queue.Job{ID: "1", Queue: "a"}, queue.Job{ID: "2", Queue: "a"}, queue.Job{ID: "3", UID: userB})
		return f
	}
	cases := map[string]struct {
		limit func(f *fixture, n int64) error // checks whether n more jobs of userA in queue a fit within a limit of 5
		room  int64
	}{
		"all jobs": {func(f *fixture, n int64) error { return CheckWaitingLimits(fakeCounters{f.fakeData}, userA, n, 5, 0) },
			2},
		"one user": {func(f *fixture, n int64) error { return CheckWaitingLimits(fakeCounters{f.fakeData}, userA, n, 0, 5) },
			3},
		"one queue": {func(f *fixture, n int64) error {
			f.queueRules["a"] = store.QueueRule{Weight: 1, MaxPendingJobs: 5}
			return CheckQueueWaitingLimits(fakeQueues{f.fakeData}, map[string]int64{"a": n})
		}, 3},
		"bytes of a user": {func(f *fixture, n int64) error {
			used := fakeCounters{f.fakeData}.UserCounts(userA).UsedBytes
			return CheckUserByteLimit(fakeCounters{f.fakeData}, userA, n, used+5)
		}, 5},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := waiting()
			if err := c.limit(f, c.room); err != nil {
				t.Errorf("%d more are rejected: %v", c.room, err)
			}
			wantRejection(t, c.limit(f, c.room+1), queue.CodeQueueFull, "")
		})
	}
}

// A limit of 0 admits any number of jobs.
func TestZeroWaitingLimitMeansUnlimited(t *testing.T) {
	f := newFixture(t)
	if err := CheckWaitingLimits(fakeCounters{f.fakeData}, userA, 1_000_000, 0, 0); err != nil {
		t.Error(err)
	}
	if err := CheckUserByteLimit(fakeCounters{f.fakeData}, userA, 1<<40, 0); err != nil {
		t.Error(err)
	}
}

// A retried job must fit within the limits, like a new job. A released job may exceed them, because it has
// counted as waiting before.
func TestRetriedJobMustFitWaitingLimits(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "dead"})
	f.claimAndReportEnd("dead", queue.Dead)
	f.mustEnqueue(queue.Job{ID: "held"})
	f.mustApplyVerb(queue.VerbHold, "held")
	change := func(id string, verb queue.Verb, limit int64) error {
		seq := f.jobByID(id).Seq
		return f.runTx(func(r *Rules) error {
			return r.ChangeJob(seq, store.JobChange{Verb: verb, UID: userA, MaxPendingJobs: limit})
		})
	}
	wantRejection(t, change("dead", queue.VerbRetry, 1), queue.CodeQueueFull, "max_pending is 1")
	if err := change("held", queue.VerbRelease, 1); err != nil {
		t.Error(err)
	}
	if err := change("dead", queue.VerbRetry, 2); err != nil {
		t.Error(err)
	}
}
