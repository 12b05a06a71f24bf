package rules

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

func (f *fixture) editJob(id string, change func(*queue.Job)) error {
	f.t.Helper()
	c := store.JobChange{Verb: queue.VerbEdit, UID: userA, EditJob: func(j *queue.Job) error { change(j); return nil }}
	seq := f.jobByID(id).Seq
	return f.runTx(func(r *Rules) error { return r.ChangeJob(seq, c) })
}

// A job whose queue or demands are edited is moved to the lane (list of ready jobs) of its new queue and
// demands.
func TestEditMovesJobToItsLane(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(draftWithDemands("1", "lock:db"), draftWithDemands("2", "lock:db"))
	err := f.editJob("1", func(j *queue.Job) { j.Queue, j.Demands = "other", parseDemands("lock:db:3 rate:mail:2") })
	if err != nil {
		t.Fatal(err)
	}
	if f.jobByID("1").LaneID == f.jobByID("2").LaneID {
		t.Error("the edited job is still in its old lane")
	}
	for _, g := range f.gates {
		if want := map[string]int{"db": 3, "mail": 2}[g.GateKey]; g.Amount != want {
			t.Errorf("the limit of %s is %d; want %d, as the edited job says", g.GateKey, g.Amount, want)
		}
		if want := map[string]int{"db": 2, "mail": 1}[g.GateKey]; g.limitStatingJobCount != want {
			t.Errorf("%d jobs count as naming %s; want %d", g.limitStatingJobCount, g.GateKey, want)
		}
	}
	f.wantClaim(9, "1 2")
}

// A job whose start time is not edited keeps its waiting time.
func TestEditKeepsWaitingTime(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"}, queue.Job{ID: "2"})
	f.advanceTime(time.Minute)
	since := f.jobByID("1").AgingSince
	if err := f.editJob("1", func(j *queue.Job) { j.Command = "true" }); err != nil || f.jobByID("1").AgingSince != since {
		t.Errorf("the edited job waits since %v, error %v; want %v", f.jobByID("1").AgingSince, err, since)
	}
	if err := f.editJob("1", func(j *queue.Job) { j.Delay = time.Second }); err != nil {
		t.Fatal(err)
	}
	f.wantClaim(2, "2")
	f.advanceTime(time.Second)
	f.wantClaim(2, "1")
}

// An edit is rejected if it exceeds a limit or uses the unique key of another job.
func TestInvalidEditIsRejected(t *testing.T) {
	cases := map[string]struct {
		edit func(*queue.Job)
		code queue.ErrorCode
		text string
	}{
		"a full queue":        {func(j *queue.Job) { j.Queue = "full" }, queue.CodeQueueFull, "queue full is full"},
		"a unique key in use": {func(j *queue.Job) { j.Unique = "k" }, queue.CodeExists, "already used by job other"},
		"demands without a kind": {func(j *queue.Job) { j.Demands = []queue.Demand{{GateKey: "x", Amount: 1}} },
			queue.CodeInvalid, "resources"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.queueRules["full"] = store.QueueRule{Weight: 1, MaxPendingJobs: 1}
			f.mustEnqueue(queue.Job{ID: "other", Unique: "k", Queue: "full"}, queue.Job{ID: "1"})
			wantRejection(t, f.editJob("1", c.edit), c.code, c.text)
		})
	}
}

// A retried job starts again with all its attempts and without its old error.
func TestRetryResetsJob(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1", MaxAttempts: 1, ExpiresAt: f.currentTime.Add(time.Minute)})
	f.claimAndReportEnd("1", queue.Dead)
	timeout := time.Second
	seq := f.jobByID("1").Seq
	f.advanceTime(time.Hour)
	f.mustRunTx(func(r *Rules) error {
		return r.ChangeJob(seq, store.JobChange{Verb: queue.VerbRetry, UID: userA, NewTimeout: &timeout})
	})
	j := f.jobByID("1")
	if j.Attempts != 0 || j.Error != "" || j.ExpiresAt != 0 || j.AgingSince != f.currentTime || j.Timeout != timeout {
		t.Errorf("the retried job is %+v; want it without attempts, error and expiry", *j)
	}
	f.wantClaim(1, "1")
}

// A job that a user releases does not wait for its retry delay, and has at least one attempt left.
func TestReleaseEndsRetryDelay(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1", MaxAttempts: 1})
	f.wantClaim(1, "1")
	e := f.newSettlement(f.leaseOf("1"), queue.Failed)
	e.Decision.StartDelay = time.Hour
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}})
	f.mustApplyVerb(queue.VerbHold, "1")
	f.mustApplyVerb(queue.VerbRelease, "1")
	if j := f.jobByID("1"); j.Attempts >= j.MaxAttempts {
		t.Errorf("the released job has used %d of %d attempts; want one left", j.Attempts, j.MaxAttempts)
	}
	f.wantClaim(1, "1")
}

// A change of a job whose row is damaged is rejected.
func TestDamagedJobIsNotChanged(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.damageJob("1")
	wantRejection(t, f.applyVerb(queue.VerbHold, "1"), queue.CodeWrongState, "cannot be read")
	if j := f.jobByID("1"); j.State != queue.Pending {
		t.Errorf("the damaged job is %v; want it unchanged", j.State)
	}
}

// A change with a list of states does nothing if the job is in another state.
func TestChangeAppliesOnlyInListedStates(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	seq := f.jobByID("1").Seq
	err := f.runTx(func(r *Rules) error {
		return r.ChangeJob(seq, store.JobChange{Verb: queue.VerbCancel, UID: userA, AllowedStates: []queue.State{queue.Held}})
	})
	if err != store.ErrJobStateChanged {
		t.Errorf("the change returned %v; want %v", err, store.ErrJobStateChanged)
	}
	f.wantStates("1", "pending")
}
