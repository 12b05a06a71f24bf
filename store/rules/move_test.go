package rules

import (
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// MoveToState allows the transitions in the state table of package queue. A leased job may also change as if it were
// running, because its start may not have been reported.
func TestMoveToStateFollowsStateTable(t *testing.T) {
	for _, from := range queue.States() {
		for _, to := range queue.States() {
			for _, leased := range []bool{false, true} {
				want := from == to || from.CanChangeTo(to) || leased && from.IsRunnable() && queue.Processing.CanChangeTo(to)
				if got := transitionAllowed(from, to, leased); got != want {
					t.Errorf("from %v to %v, leased %t: allowed is %t; want %t", from, to, leased, got, want)
				}
			}
		}
	}
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	err := f.runTx(func(r *Rules) error {
		r.MoveToState(f.jobByID("1"), queue.Dead, "", nil)
		return r.Err()
	})
	if err == nil || f.jobByID("1").State != queue.Pending {
		t.Errorf("the state of a pending job is now %v, error %v; want an error and no change", f.jobByID("1").State, err)
	}
}

// When a job ends, the gates (locks, rates and other limits) and the units of resources that it has held are
// free. A job that starts keeps both.
func TestEndOfJobFreesItsGates(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 1}
	f.mustEnqueue(draftWithDemands("1", "resource:gpu:1"))
	f.wantClaim(1, "1")
	f.reportJobsStarted("1")
	if f.leases[f.jobByID("1").Seq] == nil || f.jobByID("1").HeldUnits == "" {
		t.Error("the start of the job has ended its lease")
	}
	f.reportJobsCompleted("1")
	if f.leases[f.jobByID("1").Seq] != nil || f.jobByID("1").HeldUnits != "" {
		t.Error("the end of the job has not ended its lease")
	}
}

// Every change of a job notifies the callers that watch it.
func TestEveryJobChangeNotifiesWatches(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	before := len(f.notifiedJobSeqs)
	f.reportAndClaim(store.LeaseReport{ReleasedLeases: []queue.Lease{f.leaseOf("1")}})
	if len(f.notifiedJobSeqs) == before {
		t.Error("the release of a lease notifies no watch")
	}
}

// If a queue has its own retention, its completed and cancelled jobs count toward that retention, and its
// dead jobs do not.
func TestQueueRetentionDoesNotCountDeadJobs(t *testing.T) {
	for state, kept := range map[queue.State]bool{queue.Completed: true, queue.Cancelled: true, queue.Dead: false} {
		f := newFixture(t)
		f.queueRules["default"] = store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}
		f.mustEnqueue(queue.Job{ID: "1"})
		f.claimAndReportEnd("1", state)
		if f.retainedJobCount != boolToInt(kept) {
			t.Errorf("%d %v jobs count toward the retention; want %d", f.retainedJobCount, state, boolToInt(kept))
		}
		f.mustApplyVerb(queue.VerbRetry, "1")
		if f.retainedJobCount != 0 {
			t.Errorf("the retried job still counts toward the retention")
		}
	}
}

// A removed job uses no bytes of its user's quota.
func TestRemovedJobUsesNoBytes(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	e := f.newSettlement(f.leaseOf("1"), queue.Completed)
	e.Attempt.Output = []byte("text")
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}})
	f.mustApplyVerb(queue.VerbRemove, "1")
	if got := f.bytesByUID[userA]; got != (fakeUserBytes{}) {
		t.Errorf("the user of the removed job still uses %+v", got)
	}
}

// If another account gets the uid of a user, the user's waiting jobs are held under a uid that no account
// has. A leased job gets that uid when its lease ends.
func TestDisownedJobsAreHeld(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "leased"})
	f.wantClaim(1, "leased")
	f.mustEnqueue(draftWithDemands("waiting", "lock:db"), queue.Job{ID: "done", Priority: 9})
	f.claimAndReportEnd("done", queue.Completed)
	f.formerOwnerUIDs[userA] = -userA
	f.mustRunTx(func(r *Rules) error {
		return errors.Join(r.DisownJob(f.jobByID("waiting"), -userA), r.DisownJob(f.jobByID("done"), -userA))
	})
	f.wantStates("waiting done", "held completed")
	f.reportAttemptEnd("leased", queue.Failed)
	f.wantStates("leased", "held")
	for _, id := range []string{"leased", "waiting", "done"} {
		if got := f.jobByID(id).UID; got != -userA {
			t.Errorf("job %s has the uid %d; want %d", id, got, -userA)
		}
	}
	if got := f.bytesByUID[userA]; got != (fakeUserBytes{}) {
		t.Errorf("the new owner of the uid uses %+v bytes of the former owner", got)
	}
}

// A new rank changes the position of a job in its lane, even to one before the lane's head, the position from
// which claims read the lane.
func TestRerankMovesJobInItsLane(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "low", Priority: 1})
	f.advanceTime(time.Hour)
	f.mustEnqueue(queue.Job{ID: "high", Priority: 2})
	f.order = queue.RankPolicy{Scheduling: queue.SchedulingByPriority}
	f.mustRunTx(func(r *Rules) error {
		return errors.Join(r.UpdateRank(f.jobByID("low")), r.UpdateRank(f.jobByID("high")))
	})
	f.wantClaim(2, "high low")
}

// While the ranks of all jobs are computed from new settings, a claim computes the rank of each job that it
// takes. So a job that is returned has its new rank.
func TestClaimComputesNewRankWhileReranking(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1", Priority: 5})
	f.order, f.isReranking = queue.RankPolicy{Scheduling: queue.SchedulingByPriority}, true
	f.wantClaim(1, "1")
	f.releaseLeases("1")
	if got := f.jobByID("1").Rank; got != -5 {
		t.Errorf("the rank of the released job is %d; want -5", got)
	}
}

// A job with a start time joins its lane when it is due.
func TestDueJobJoinsItsLane(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1", Delay: time.Minute})
	if f.earliestWakeAt != f.currentTime.Add(time.Minute) || f.jobByID("1").Slot != SlotWaitingUntilDue {
		t.Errorf("the service wakes at %d for a job in slot %d; want its due time", f.earliestWakeAt, f.jobByID("1").Slot)
	}
	f.advanceTime(time.Minute)
	if got := f.jobByID("1").Slot; got != SlotReady {
		t.Errorf("the due job is in slot %d; want %d", got, SlotReady)
	}
}
