package rules

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// enqueueAs enqueues jobs with the given ids, all of the same user and priority.
func (f *fixture) enqueueAs(uid int, priority int64, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.mustEnqueue(queue.Job{ID: id, UID: uid, Priority: priority})
	}
}

// Users whose next jobs have the same priority take turns, so a user who enqueues later waits for only
// one job of each other user.
func TestUsersOfEqualPriorityTakeTurns(t *testing.T) {
	f := newFixture(t)
	f.enqueueAs(userA, 5, "a1", "a2", "a3")
	f.enqueueAs(userB, 5, "b1", "b2")
	f.enqueueAs(userC, 5, "c1")
	f.wantClaim(6, "a1 b1 c1 a2 b2 a3")
}

// TestDocumentedExampleOfUserTurns is the example at the top of user_turns.go, with fewer jobs.
func TestDocumentedExampleOfUserTurns(t *testing.T) {
	f := newFixture(t)
	f.enqueueAs(userA, 5, "warm")
	f.wantClaim(1, "warm") // user 1 was served most recently
	for i := range 20 {
		f.enqueueAs(userA, 5, fmt.Sprint(i+1))
	}
	f.enqueueAs(userB, 5, "10001")
	f.enqueueAs(userC, 3, "10002")

	best := f.jobByID("1")
	f.mustRunTx(func(r *Rules) error {
		jobs, _, err := r.Claim(1)
		if err != nil || len(jobs) != 1 || jobs[0].ID != "10001" {
			return fmt.Errorf("the claim got %v, %v; want job 10001", jobs, err)
		}
		if want := queue.StartPosition(best.Position()); jobs[0].StartPosition != want {
			t.Errorf("job 10001 starts at %v; want the place of job 1, %v", jobs[0].StartPosition, want)
		}
		if jobs[0].Rank != f.jobByID("10001").Rank {
			t.Error("the turn has changed the rank of job 10001")
		}
		return nil
	})
	f.wantClaim(1, "1")
	f.wantClaim(1, "2") // user 3's job has another priority, so it takes no turn
}

// If a claimed job is given back before it starts, its user is next in turn again.
func TestReleasedJobReturnsUserTurn(t *testing.T) {
	f := newFixture(t)
	f.enqueueAs(userA, 5, "a1", "a2")
	f.enqueueAs(userB, 5, "b1", "b2")
	f.wantClaim(2, "a1 b1")
	f.reportJobsCompleted("a1")
	f.releaseLeases("b1")
	f.wantClaim(1, "b1")
}

// With the scheduling setting fifo, users do not take turns: jobs start in rank order.
func TestFifoSchedulingIgnoresUserTurns(t *testing.T) {
	f := newFixture(t)
	f.order.Scheduling = queue.SchedulingByArrival
	f.enqueueAs(userA, 5, "a1", "a2")
	f.enqueueAs(userB, 5, "b1")
	f.wantClaim(3, "a1 a2 b1")
}

// Turns between users do not change the order in which the jobs of one user start.
func TestUserTurnsKeepRankOrderWithinUser(t *testing.T) {
	f := newFixture(t)
	f.enqueueAs(userA, 5, "a1")
	f.enqueueAs(userB, 3, "b-low")
	f.enqueueAs(userB, 5, "b-high")
	f.enqueueAs(userA, 5, "a2")
	f.wantClaim(4, "a1 b-high a2 b-low")
}

// If a limit holds back the user's next job, another user gets the turn.
func TestUserWithoutGateRoomTakesNoTurn(t *testing.T) {
	f := newFixture(t)
	f.maxLeasedPerUser = 1
	f.enqueueAs(userA, 5, "a1", "a2")
	f.enqueueAs(userB, 5, "b1", "b2")
	f.wantClaim(4, "a1 b1")
	f.reportJobsCompleted("b1")
	f.wantClaim(4, "b2")
	f.wantLaneState("a2", "closed by quota")
}

// Each queue counts its own turns: a start in one queue does not use up a turn in another.
func TestUserTurnsAreCountedPerQueue(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "other", UID: userA, Queue: "other"})
	f.wantClaim(1, "other")
	f.enqueueAs(userA, 5, "a1")
	f.enqueueAs(userB, 5, "b1")
	f.wantClaim(2, "a1 b1")
}
