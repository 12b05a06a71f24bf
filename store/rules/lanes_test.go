package rules

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// TestDocumentedExampleOfTwoLanesSharingLock executes the example at the top of lanes.go.
func TestDocumentedExampleOfTwoLanesSharingLock(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "lock:db")) // lane A
	f.advanceTime(time.Second)
	f.mustEnqueue(draftWithDemands("2", "lock:db rate:mail:10")) // lane B
	f.mustEnqueue(queue.Job{ID: "3", Delay: time.Hour})          // not due, so in no lane
	f.mustEnqueue(draftWithDemands("4", "lock:db"))              // lane A

	head := func(id string) Position { return f.lanes[f.jobByID(id).LaneID].Head }
	f.wantClaim(3, "1") // lane A has the better head
	if head("4").After(f.jobByID("2").Position()) {
		t.Error("the claim has read further than job 1")
	}
	f.wantLaneState("4", "closed by db")
	f.wantLaneState("2", "closed by db")

	f.reportJobsCompleted("1")
	f.wantLaneState("4", "open") // lane A still has the better head
	f.wantLaneState("2", "closed by db")

	f.wantClaim(3, "2")
	if head("4") != f.jobByID("4").Position() {
		t.Error("the claim has not moved the head of lane A to job 4")
	}
	f.wantLaneState("4", "closed by db") // job 2 holds the lock now
	f.wantLaneState("2", "closed by db") // no claim has seen yet that lane B is empty

	f.reportJobsCompleted("2")
	f.wantLaneState("2", "open") // lane B is open again; its head is just after job 2
	f.wantLaneState("4", "closed by db")
	f.wantClaim(3, "4")
	f.wantLaneState("2", "empty")
}

// Jobs with the same queue, user and demands share a lane.
func TestLaneHoldsJobsOfOneQueueUserAndDemands(t *testing.T) {
	first := draftWithDemands("1", "lock:db resource:gpu:2")
	cases := map[string]struct {
		other queue.Job
		same  bool
	}{
		"everything the same": {draftWithDemands("2", "lock:db resource:gpu:2"), true},
		"another priority":    {queue.Job{ID: "2", Demands: first.Demands, Priority: 9}, true},
		"another lock limit":  {draftWithDemands("2", "lock:db:5 resource:gpu:2"), true},
		"another amount":      {draftWithDemands("2", "lock:db resource:gpu:1"), false},
		"another lock":        {draftWithDemands("2", "lock:other resource:gpu:2"), false},
		"no demands":          {queue.Job{ID: "2"}, false},
		"another queue":       {queue.Job{ID: "2", Demands: first.Demands, Queue: "other"}, false},
		"another user":        {queue.Job{ID: "2", Demands: first.Demands, UID: userB}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.mustEnqueue(first, c.other)
			if same := f.jobByID("1").LaneID == f.jobByID("2").LaneID; same != c.same {
				t.Errorf("the jobs share a lane: %t; want %t", same, c.same)
			}
		})
	}
}

// A claim takes the next job that can start, even if better-ranked jobs wait for a lock or another limit.
func TestClaimSkipsClosedLane(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@db")
	f.mustEnqueue(draftWithDemands("waits", "lock:@db"))
	f.mustEnqueue(queue.Job{ID: "free", Priority: -9})
	f.wantClaim(2, "free")
	f.wantLaneState("waits", "closed by @db")
}

// If a job joins an empty lane while one of its gates (locks, rates and other limits) is full, the lane is
// closed immediately, not by the next claim.
func TestJobClosesEmptyLaneAtFullGate(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@db")
	f.mustEnqueue(draftWithDemands("waits", "lock:@db"))
	f.wantLaneState("waits", "closed by @db")
}

// A lane is closed by the first of its gates (locks, rates and other limits) without room, in the order in
// which claims check the gates.
func TestLaneIsClosedByItsFirstFullGate(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@a")
	f.occupySharedLock("@b")
	f.mustEnqueue(draftWithDemands("both", "lock:@a lock:@b"))
	f.wantLaneState("both", "closed by @a")
	f.reportJobsCompleted("@a")
	f.wantLaneState("both", "closed by @b")
	f.reportJobsCompleted("@b")
	f.wantLaneState("both", "open")
}

// A lane counts as empty when a claim has read it to its end. A new job opens it.
func TestLaneWithoutJobsIsEmpty(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantLaneState("1", "open")
	f.wantClaim(1, "1")
	f.wantLaneState("1", "open") // the claim stopped after job 1
	f.wantClaim(1, "")
	f.wantLaneState("1", "empty")
	f.mustEnqueue(queue.Job{ID: "2"})
	f.wantLaneState("2", "open")
}

// A lane with demands is empty when its only job is cancelled.
func TestLaneIsEmptyWhenItsOnlyJobIsCancelled(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "lock:db"))
	f.mustApplyVerb(queue.VerbCancel, "1")
	f.wantLaneState("1", "empty")
}

// When a gate has room again, the best of the lanes that it has closed opens, for each queue and user.
func TestFreedGateOpensBestLanePerUser(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@db")
	f.mustEnqueue(
		draftWithDemands("best", "lock:@db"), draftWithDemands("second", "lock:@db rate:mail:10"),
		queue.Job{ID: "other queue", Queue: "other", Demands: parseDemands("lock:@db")},
		queue.Job{ID: "other user", UID: userB, Demands: parseDemands("lock:@db")},
	)
	f.reportJobsCompleted("@db")
	f.wantLaneState("best", "open")
	f.wantLaneState("second", "closed by @db")
	f.wantLaneState("other queue", "open")
	f.wantLaneState("other user", "open")
}

// A lane stays closed behind an open lane of the same queue and user that needs the same gate. It opens when
// the first job of the open lane leaves.
func TestLaneOpensAfterJobAheadLeaves(t *testing.T) {
	leave := map[string]func(*fixture){
		"is cancelled": func(f *fixture) { f.mustApplyVerb(queue.VerbCancel, "first") },
		"is held":      func(f *fixture) { f.mustApplyVerb(queue.VerbHold, "first") },
		"is removed":   func(f *fixture) { f.mustApplyVerb(queue.VerbRemove, "first") },
		"expires":      func(f *fixture) { f.advanceTime(time.Hour); f.wantClaim(1, "second") },
	}
	for name, do := range leave {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.occupySharedLock("@db")
			first := draftWithDemands("first", "lock:@db rate:mail:10")
			first.ExpiresAt = f.currentTime.Add(time.Minute)
			f.mustEnqueue(first, draftWithDemands("second", "lock:@db"))
			f.reportJobsCompleted("@db")
			f.wantLaneState("first", "open")
			f.wantLaneState("second", "closed by @db")
			do(f)
			if f.leases[f.jobByID("second").Seq] == nil {
				f.wantLaneState("second", "open")
			}
		})
	}
}

// OpenLanes checks a limited number of lanes in each transaction, and continues in the next one.
func TestOpenLanesContinuesInNextTransaction(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@db")
	for _, name := range []string{"q1", "q2", "q3"} {
		f.mustEnqueue(queue.Job{ID: name, Queue: name, Demands: parseDemands("lock:@db")})
	}
	f.rechecks.MaxNonClaimSteps = 3
	f.reportJobsCompleted("@db")
	open := len(f.lanesSortedByHead(func(l *Lane) bool {
		return l.ClosedBy == Open && len(l.GateNeeds) > 0 &&
			l.UID == userA
	}))
	if open == 0 || open == 3 {
		t.Errorf("one transaction opened %d of 3 lanes; want some of them", open)
	}
	if f.rechecks.DirtyGateCount() == 0 || f.earliestWakeAt != f.currentTime {
		t.Errorf("%d gates are left to check, and the service wakes at %d; want some, and %d", f.rechecks.DirtyGateCount(),
			f.earliestWakeAt, f.currentTime)
	}
	for range 3 {
		f.advanceTime(0)
	}
	for _, name := range []string{"q1", "q2", "q3"} {
		f.wantLaneState(name, "open")
	}
	if f.rechecks.DirtyGateCount() != 0 {
		t.Errorf("%d gates are left to check; want 0", f.rechecks.DirtyGateCount())
	}
}

// A claim cancels a job that has expired, and takes the next one.
func TestClaimCancelsExpiredJob(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "late", ExpiresAt: f.currentTime.Add(time.Second)}, queue.Job{ID: "next"})
	f.currentTime = f.currentTime.Add(time.Second)
	f.wantClaim(1, "next")
	f.wantStates("late", "cancelled")
	if got := f.jobByID("late").Reason; got != queue.ReasonExpired {
		t.Errorf("the reason of the expired job is %q; want %q", got, queue.ReasonExpired)
	}
}

// A claim sets a job that cannot be read to held, and takes the next one.
func TestClaimHoldsDamagedJob(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "broken"}, queue.Job{ID: "next"})
	broken := f.jobByID("broken")
	broken.IsDamaged, broken.Error = true, "the row cannot be read"
	f.jobs[broken.Seq] = *broken
	f.wantClaim(1, "next")
	f.wantStates("broken", "held")
}
