package rules

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// For each kind of gate (lock, rate or other limit), GateRoom returns the units that leases leave free.
func TestGateRoomExcludesLeasedUnits(t *testing.T) {
	const gate = 7
	type given []func(*fakeData)
	lease := func(units int, running bool) func(*fakeData) {
		return func(d *fakeData) {
			seq := int64(len(d.leases) + 1)
			need := GateNeed{GateID: gate, Kind: d.gates[gate].Kind, Units: units}
			d.leases[seq] = &Lease{Job: Job{Job: queue.Job{Seq: seq, UID: userA}}, AttemptStarted: running,
				HeldGateUnits: []GateNeed{need}}
		}
	}
	startedAgo := func(ago time.Duration) func(*fakeData) {
		return func(d *fakeData) {
			_ = fakeGates{d}.RecordRateStart(gate, d.currentTime-queue.UnixMillis(ago.Milliseconds()))
		}
	}
	mail := queue.Demand{Kind: queue.GateRate, GateKey: "mail", Amount: 2, RatePeriod: time.Minute}
	units := func(n int) func(*fakeData) {
		return func(d *fakeData) { d.node.ResourceUnits = map[string]int{"gpu": n} }
	}
	quota := func(n int) func(*fakeData) { return func(d *fakeData) { d.maxLeasedPerUser = n } }
	cases := map[string]struct {
		demand queue.Demand // for a user's quota, only the kind GateUser
		given  given
		want   GateRoom
	}{
		"quota: unlimited": {queue.Demand{Kind: queue.GateUser}, nil, GateRoom{FreeUnits: math.MaxInt}},
		"quota: unused":    {queue.Demand{Kind: queue.GateUser}, given{quota(2)}, GateRoom{FreeUnits: 2, TotalUnits: 2}},
		"quota: partly used": {queue.Demand{Kind: queue.GateUser}, given{quota(2), lease(1, true)},
			GateRoom{FreeUnits: 1, TotalUnits: 2}},
		"quota: lowered below its use": {queue.Demand{Kind: queue.GateUser},
			given{quota(1), lease(1, true), lease(1, true)}, GateRoom{FreeUnits: -1, TotalUnits: 1}},
		"quota: unknown account": {queue.Demand{Kind: queue.GateUser},
			given{func(d *fakeData) { d.node.UIDsWithoutAccount = map[int]bool{userA: true} }}, GateRoom{}},
		"node: this one":    {queue.Demand{Kind: queue.GateNode, GateKey: "here"}, nil, GateRoom{FreeUnits: math.MaxInt}},
		"node: another one": {queue.Demand{Kind: queue.GateNode, GateKey: "there"}, nil, GateRoom{}},
		"node: this label": {queue.Demand{Kind: queue.GateNode, GateKey: "os=linux"},
			given{func(d *fakeData) { d.node.Labels = map[string]string{"os": "linux"} }}, GateRoom{FreeUnits: math.MaxInt}},
		"lock: free": {queue.Demand{Kind: queue.GateLock, GateKey: "db", Amount: 2}, nil,
			GateRoom{FreeUnits: 2, TotalUnits: 2}},
		"lock: taken": {queue.Demand{Kind: queue.GateLock, GateKey: "db", Amount: 2},
			given{lease(1, true), lease(1, false)}, GateRoom{FreeUnits: 0, TotalUnits: 2}},
		"resource: some units taken": {queue.Demand{Kind: queue.GateResource, GateKey: "gpu"},
			given{lease(3, true), units(8)}, GateRoom{FreeUnits: 5, TotalUnits: 8}},
		"resource: the node has none":   {queue.Demand{Kind: queue.GateResource, GateKey: "gpu"}, nil, GateRoom{}},
		"rate: unused":                  {mail, nil, GateRoom{FreeUnits: 2, TotalUnits: 2}},
		"rate: a claimed job may start": {mail, given{lease(1, false)}, GateRoom{FreeUnits: 1, TotalUnits: 2}},
		"rate: a started job is a start": {mail, given{lease(1, true), startedAgo(time.Second)},
			GateRoom{FreeUnits: 1, TotalUnits: 2}},
		"rate: an old start does not count": {mail, given{startedAgo(time.Minute + time.Millisecond)},
			GateRoom{FreeUnits: 2, TotalUnits: 2}},
		"rate: opens when the oldest start leaves": {mail, given{startedAgo(50 * time.Second), startedAgo(time.Second)},
			GateRoom{FreeUnits: 0, TotalUnits: 2, OpensAt: 1_010_001}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := newFakeData()
			d.gates[gate] = fakeGate{Demand: c.demand, ownerUID: userA}
			for _, given := range c.given {
				given(d)
			}
			k := gatekeeper{clock: fakeClock{d}, settings: fakeSettings{d}, counters: fakeCounters{d}, gates: fakeGates{d}}
			for range 2 { // the second call reads the cached value
				got, err := k.GateRoom(userA, GateNeed{GateID: gate, Kind: c.demand.Kind, Units: 1})
				if err != nil || got != c.want {
					t.Fatalf("the gate is %+v, %v; want %+v", got, err, c.want)
				}
			}
		})
	}
}

// A gate of an unknown kind, which a newer version has stored, causes an error. It does not count as
// unlimited.
func TestUnknownGateKindIsRejected(t *testing.T) {
	d := newFakeData()
	k := gatekeeper{clock: fakeClock{d}, settings: fakeSettings{d}, counters: fakeCounters{d}, gates: fakeGates{d}}
	if _, err := k.GateRoom(userA, GateNeed{GateID: 1, Kind: 50, Units: 1}); !errors.Is(err, errUnknownGateKind) {
		t.Errorf("got the error %v; want %v", err, errUnknownGateKind)
	}
}

// If a user has reached the quota, jobs of other users can still start.
func TestFullQuotaDelaysOnlyItsUser(t *testing.T) {
	f := newFixture(t)
	f.maxLeasedPerUser = 2
	f.enqueueAs(userA, 9, "a1", "a2", "a3")
	f.enqueueAs(userB, 0, "b1")
	f.wantClaim(9, "a1 a2 b1")
	f.wantLaneState("a3", "closed by quota")
	f.reportJobsCompleted("a2")
	f.wantLaneState("a3", "open")
	f.wantClaim(9, "a3")
}

// A job takes its units of locks and other gates when it is claimed, not when it starts.
func TestClaimTakesGateUnitsBeforeStart(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "lock:db:2"), draftWithDemands("2", "lock:db:2"),
		draftWithDemands("3", "lock:db:2"))
	f.wantClaim(9, "1 2")
	f.releaseLeases("1")
	f.wantClaim(9, "1")
	f.reportJobsStarted("1")
	f.reportJobsCompleted("2")
	f.wantClaim(9, "3")
}

// A rate counts starts. The end of a job does not undo its start, but a job that is returned before it starts
// does not count.
func TestRateLimitCountsStarts(t *testing.T) {
	f := newFixture(t)
	for _, id := range []string{"1", "2", "3", "4"} {
		f.mustEnqueue(draftWithDemands(id, "rate:mail:2"))
	}
	f.wantClaim(9, "1 2")
	f.releaseLeases("2")
	f.wantClaim(9, "2")
	f.reportJobsCompleted("1", "2")
	f.wantClaim(9, "")
	f.wantLaneState("3", "closed by mail")
	f.advanceTime(time.Minute)
	f.wantClaim(9, "") // each start counts until it is older than the period of the rate
	f.advanceTime(time.Millisecond)
	f.wantClaim(9, "3 4")
}

// A start that was reported with a time in the future counts as a start at the current time.
func TestFutureStartCountsAsCurrentStart(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "rate:mail:1"), draftWithDemands("2", "rate:mail:1"))
	f.wantClaim(9, "1")
	f.reportAndClaim(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: f.leaseOf("1"),
		StartedAt: f.currentTime.Add(time.Hour)}}})
	f.advanceTime(time.Minute + time.Millisecond)
	f.wantClaim(9, "2")
}

// A claim gives a job the free units with the lowest numbers of each resource. The row of the job lists them.
func TestClaimAssignsUnitsOfResource(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 4}
	f.mustEnqueue(draftWithDemands("1", "resource:gpu:2"), draftWithDemands("2", "resource:gpu:1"),
		draftWithDemands("3", "resource:gpu:2"))
	f.wantClaim(9, "1 2")
	if a, b := f.jobByID("1").HeldUnits, f.jobByID("2").HeldUnits; a != "gpu=0,1" || b != "gpu=2" {
		t.Errorf("the jobs hold the units %q and %q; want gpu=0,1 and gpu=2", a, b)
	}
	f.reportJobsCompleted("1")
	f.wantClaim(9, "3")
	if got := f.jobByID("3").HeldUnits; got != "gpu=0,1" {
		t.Errorf("job 3 holds the units %q; want those that job 1 has freed", got)
	}
}

// A job that waits only for a resource reserves its free units: other jobs of its queue that need fewer units
// must wait.
func TestLargeJobReservesResource(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 4}
	f.mustEnqueue(draftWithDemands("running", "resource:gpu:2"), draftWithDemands("large", "resource:gpu:4"),
		draftWithDemands("small", "resource:gpu:1"))
	f.mustEnqueue(queue.Job{ID: "other queue", Queue: "other", Demands: parseDemands("resource:gpu:1")})
	f.mustEnqueue(queue.Job{ID: "no resource"})
	f.wantClaim(9, "running other queue no resource")
	f.reportJobsCompleted("other queue", "running")
	f.wantClaim(9, "large")
	f.reportJobsCompleted("large")
	f.wantClaim(9, "small")
}

// When users take turns, a job must not take units of a resource that are reserved for a better-ranked job of
// another user. This also holds if no claim has checked the better-ranked job yet.
func TestUserTurnsRespectResourceReservations(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 4}
	f.mustEnqueue(queue.Job{ID: "warm up C", UID: userC}, queue.Job{ID: "warm up A"})
	f.claimAndReportEnd("warm up C", queue.Completed)
	f.claimAndReportEnd("warm up A", queue.Completed) // from here on, userB is the user who was served least recently
	f.mustEnqueue(queue.Job{ID: "running", UID: userC, Priority: 9, Demands: parseDemands("resource:gpu:2")})
	f.mustEnqueue(queue.Job{ID: "first", UID: userC}, draftWithDemands("large", "resource:gpu:4"))
	f.mustEnqueue(queue.Job{ID: "small", UID: userB, Demands: parseDemands("resource:gpu:1")})
	f.wantClaim(9, "running first") // the two free units of gpu are reserved for the large job
	f.reportJobsCompleted("running")
	f.wantClaim(9, "small") // large and small both fit now, and it is userB's turn
	f.reportJobsCompleted("small")
	f.wantClaim(9, "large")
}

// A job that names a node starts only there. While it waits, other jobs can start.
func TestJobStartsOnlyOnItsNamedNode(t *testing.T) {
	f := newFixture(t)
	f.node.Labels = map[string]string{"os": "linux"}
	f.mustEnqueue(draftWithDemands("elsewhere", "node:there"), draftWithDemands("here", "node:here"),
		draftWithDemands("label", "node:os=linux"))
	f.mustEnqueue(queue.Job{ID: "anywhere"})
	f.wantClaim(9, "here label anywhere")
	f.wantLaneState("elsewhere", "closed by there")
}

// A job that waits for a resource and also for a lock does not reserve units of the resource.
func TestJobThatWaitsForLockReservesNoResource(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 4}
	f.occupySharedLock("@db")
	f.mustEnqueue(draftWithDemands("large", "lock:@db resource:gpu:4"), draftWithDemands("small", "resource:gpu:1"))
	f.wantClaim(9, "small")
	f.wantLaneState("large", "closed by @db")
}

// The newest job sets the limit of a user's lock. The limit of a shared lock is set by an operator or,
// otherwise, by the first job that names the lock.
func TestJobsDeclareLockLimits(t *testing.T) {
	cases := map[string]struct {
		key      string
		operator int // limit that an operator has set; 0 if none
		declared []string
		want     int
	}{
		"own lock: the newest job decides":      {"db", 0, []string{"1", "3", "2"}, 2},
		"shared lock: the first job decides":    {"@db", 0, []string{"1", "3", "2"}, 1},
		"shared lock: the operator decides":     {"@db", 4, []string{"1", "3"}, 4},
		"shared lock: the operator comes later": {"@db", 4, nil, 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if c.operator > 0 {
				f.mustRunTx(func(r *Rules) error {
					return r.SetFixedGateRule(queue.Demand{Kind: queue.GateLock, GateKey: c.key, Amount: c.operator})
				})
			}
			for i, n := range c.declared {
				f.mustEnqueue(draftWithDemands(string(rune('a'+i)), "lock:"+c.key+":"+n))
			}
			for _, g := range f.gates {
				if g.Amount != c.want {
					t.Errorf("the limit of the lock is %d; want %d", g.Amount, c.want)
				}
			}
		})
	}
}

// When the limit of a gate is raised, jobs that have waited for the gate can start.
func TestRaisedLimitOpensLanes(t *testing.T) {
	f := newFixture(t)
	f.occupySharedLock("@db")
	f.mustEnqueue(draftWithDemands("waits", "lock:@db"))
	f.wantLaneState("waits", "closed by @db")
	f.mustRunTx(func(r *Rules) error {
		return r.SetFixedGateRule(queue.Demand{Kind: queue.GateLock, GateKey: "@db", Amount: 2})
	})
	f.wantClaim(9, "waits")
}

// An operator can set the limits of shared locks and rates only.
func TestSetGateAcceptsOnlySharedKeys(t *testing.T) {
	for _, d := range []queue.Demand{
		{Kind: queue.GateLock, GateKey: "own", Amount: 1},
		{Kind: queue.GateResource, GateKey: "@gpu", Amount: 1},
		{Kind: queue.GateNode, GateKey: "here", Amount: 1},
	} {
		f := newFixture(t)
		err := f.runTx(func(r *Rules) error { return r.SetFixedGateRule(d) })
		var rejection *queue.Error
		if !errors.As(err, &rejection) || rejection.Code != queue.CodeInvalid {
			t.Errorf("setting the limit of %q returned %v; want an invalid request", d.GateKey, err)
		}
	}
}

// WaitReasons lists every lock, rate or other gate that has no room for a job, not only the first one.
func TestWaitReasonsListAllFullGates(t *testing.T) {
	f := newFixture(t)
	f.maxLeasedPerUser = 1
	f.node.ResourceUnits = map[string]int{"gpu": 1}
	f.queueRules["default"] = store.QueueRule{Weight: 1, Concurrency: 1}
	f.mustEnqueue(draftWithDemands("running", "lock:db rate:mail:1"))
	f.claimAndReportEnd("running", queue.Completed) // this start uses up the rate
	f.mustEnqueue(draftWithDemands("holder", "lock:db"))
	f.wantClaim(1, "holder")
	f.mustEnqueue(draftWithDemands("waits", "node:there lock:db rate:mail:1 resource:gpu:2"))
	var list []store.WaitReason
	f.mustRunTx(func(r *Rules) (err error) {
		list, err = r.WaitReasons(f.jobByID("waits").Seq)
		return err
	})
	want := []store.WaitReason{
		{GateKeyOrQueueName: "default", UsedUnits: 1, MaxUnits: 1, NeededUnits: 1},
		{GateKind: queue.GateUser, UsedUnits: 1, MaxUnits: 1, NeededUnits: 1},
		{GateKind: queue.GateNode, GateKeyOrQueueName: "there", NeededUnits: 1},
		{GateKind: queue.GateLock, GateKeyOrQueueName: "db", UsedUnits: 1, MaxUnits: 1, NeededUnits: 1},
		{GateKind: queue.GateRate, GateKeyOrQueueName: "mail", UsedUnits: 1, MaxUnits: 1, NeededUnits: 1,
			RateOpensAt: f.currentTime.Add(time.Minute) + 1},
		{GateKind: queue.GateResource, GateKeyOrQueueName: "gpu", UsedUnits: 0, MaxUnits: 1, NeededUnits: 2},
	}
	if len(list) != len(want) {
		t.Fatalf("the obstacles are %+v; want %+v", list, want)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("obstacle %d is %+v; want %+v", i+1, list[i], want[i])
		}
	}
}

// WaitReasons reports that the free units of a resource are reserved for a better-ranked job.
func TestWaitReasonsReportResourceReservation(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 4}
	f.mustEnqueue(draftWithDemands("running", "resource:gpu:2"), draftWithDemands("large", "resource:gpu:4"),
		draftWithDemands("small", "resource:gpu:1"))
	f.wantClaim(9, "running")
	f.mustRunTx(func(r *Rules) error {
		list, err := r.WaitReasons(f.jobByID("small").Seq)
		if len(list) != 1 || !list[0].UnitsKeptForOtherJob || list[0].GateKeyOrQueueName != "gpu" {
			t.Errorf("the obstacles are %+v; want the reserved resource gpu", list)
		}
		return err
	})
}
