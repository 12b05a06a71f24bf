package rules

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A report about a lease that has ended changes nothing, whatever it contains. The reply lists the lease as
// stale.
func TestReportOfEndedLeaseChangesNothing(t *testing.T) {
	reports := map[string]func(*fixture, queue.Lease) store.LeaseReport{
		"started": func(f *fixture, l queue.Lease) store.LeaseReport {
			return store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: l, StartedAt: f.currentTime}}}
		},
		"progress": func(f *fixture, l queue.Lease) store.LeaseReport {
			return store.LeaseReport{ProgressReports: []store.AttemptProgress{{Lease: l, Progress: queue.Progress{Percent: 50}}}}
		},
		"ended": func(f *fixture, l queue.Lease) store.LeaseReport {
			return store.LeaseReport{Settlements: []store.Settlement{f.newSettlement(l, queue.Completed)}}
		},
		"released": func(_ *fixture, l queue.Lease) store.LeaseReport {
			return store.LeaseReport{ReleasedLeases: []queue.Lease{l}}
		},
		"changed": func(_ *fixture, l queue.Lease) store.LeaseReport {
			return store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: l,
				JobChange: store.JobChange{Verb: queue.VerbCancel, UID: userA}}}}
		},
	}
	lose := map[string]func(*fixture) queue.Lease{
		"the lease has ended": func(f *fixture) queue.Lease {
			lost := f.leaseOf("1")
			f.reportJobsCompleted("1")
			return lost
		},
		"a later claim has a higher fence": func(f *fixture) queue.Lease {
			lost := f.leaseOf("1")
			f.releaseLeases("1")
			f.wantClaim(1, "1")
			return lost
		},
		"no claim has this fence": func(f *fixture) queue.Lease {
			return queue.Lease{Seq: f.leaseOf("1").Seq, Fence: f.leaseOf("1").Fence + 1}
		},
	}
	for how, lost := range lose {
		for what, report := range reports {
			t.Run(how+", "+what, func(t *testing.T) {
				f := newFixture(t)
				f.mustEnqueue(queue.Job{ID: "1"})
				f.wantClaim(1, "1")
				lease := lost(f)
				before, attempts, current := f.jobByID("1"), len(f.settlementsByJobSeq[lease.Seq]), f.leases[lease.Seq]
				g := f.reportAndClaim(report(f, lease))
				if !slices.Contains(g.StaleLeases, lease) {
					t.Errorf("the stale leases are %v; want %v among them", g.StaleLeases, lease)
				}
				after := f.jobByID("1")
				if after.State != before.State || after.StartedAttempts != before.StartedAttempts ||
					after.UpdatedAt != before.UpdatedAt ||
					len(f.settlementsByJobSeq[lease.Seq]) != attempts || f.leases[lease.Seq] != current {
					t.Errorf("the report changed the job from %v to %v", before.State, after.State)
				}
			})
		}
	}
}

// A lease cannot be returned to the queue after its attempt has started.
func TestStartedLeaseIsNotReleased(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	f.reportJobsStarted("1")
	lease := f.leaseOf("1")
	if g := f.reportAndClaim(store.LeaseReport{ReleasedLeases: []queue.Lease{lease}}); !slices.Contains(g.StaleLeases,
		lease) {
		t.Errorf("the stale leases are %v; want the one that has started", g.StaleLeases)
	}
	f.wantStates("1", "processing")
}

// When an attempt ends, the attempt, its event and the job's new state are recorded.
func TestSettleRecordsAttempt(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	f.reportJobsStarted("1")
	f.reportAttemptEnd("1", queue.Failed)
	j := f.jobByID("1")
	if j.StartedAttempts != 1 || j.Attempts != 1 || len(f.settlementsByJobSeq[j.Seq]) != 1 {
		t.Errorf("the job has %d runs, %d counted attempts and %d records; want 1 of each",
			j.StartedAttempts, j.Attempts, len(f.settlementsByJobSeq[j.Seq]))
	}
	if got, want := f.eventKindsOf("1"), "enqueued started ended"; got != want {
		t.Errorf("the events are %q; want %q", got, want)
	}
	f.claimAndReportEnd("1", queue.Dead)
	if got := f.jobByID("1"); got.StartedAttempts != 2 || got.State != queue.Dead {
		t.Errorf("the job has %d runs and is %v; want 2 and dead", got.StartedAttempts, got.State)
	}
}

// An attempt that has not started leaves no record, and its job keeps the results of its last attempt.
func TestSettleWithoutStartRecordsNoAttempt(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	e := store.Settlement{Lease: f.leaseOf("1")}
	e.Decision = queue.AttemptDecision{NextState: queue.Pending, CountsAsShortage: true, StartDelay: time.Minute,
		Error: "no memory"}
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}})
	j := f.jobByID("1")
	if j.StartedAttempts != 0 || j.Shortages != 1 || j.Error != "no memory" || len(f.settlementsByJobSeq[j.Seq]) != 0 {
		t.Errorf("the job has %d runs, %d refunds, the error %q; want none, 1 and the reason", j.StartedAttempts, j.Shortages,
			j.Error)
	}
	f.wantClaim(1, "")
	f.advanceTime(time.Minute)
	f.wantClaim(1, "1")
}

// A failed job is not claimed before its retry delay has passed.
func TestRetryWaitsForItsDelay(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	e := f.newSettlement(f.leaseOf("1"), queue.Failed)
	e.Decision.StartDelay = 4 * time.Second
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}})
	f.advanceTime(4*time.Second - time.Millisecond)
	f.wantClaim(1, "")
	f.advanceTime(time.Millisecond)
	f.wantClaim(1, "1")
}

// A job that is returned to the queue has the same position as before.
func TestReleasedJobKeepsItsPosition(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"}, queue.Job{ID: "2"})
	f.wantClaim(1, "1")
	f.advanceTime(time.Minute)
	f.releaseLeases("1")
	f.wantClaim(2, "1 2")
}

// A change that a user requested during a lease is applied when the lease is released. If one change is
// rejected, the others still apply.
func TestChangeDuringLeaseAppliesAfterRelease(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"}, queue.Job{ID: "2"})
	f.wantClaim(2, "1 2")
	if err := f.applyVerb(queue.VerbCancel, "1"); err != store.ErrJobLeased {
		t.Errorf("a change of a leased job returned %v; want %v", err, store.ErrJobLeased)
	}
	second := f.leaseOf("2")
	g := f.reportAndClaim(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{
		{Lease: f.leaseOf("1"), JobChange: store.JobChange{Verb: queue.VerbCancel, UID: userA}},
		{Lease: second, JobChange: store.JobChange{Verb: queue.VerbRelease, UID: userA,
			AllowedStates: []queue.State{queue.Held}}},
	}})
	f.wantStates("1 2", "cancelled pending")
	if g.RejectedChanges[second] == nil {
		t.Error("the rejected change is not reported")
	}
	f.wantClaim(2, "2")
}

// A pause is recorded only for a running attempt, and deleted when the attempt ends.
func TestPauseIsRecordedOnlyWhileRunning(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	pause := func(on bool) error {
		lease := f.leaseOf("1")
		return f.runTx(func(r *Rules) error {
			return r.RecordPause(store.JobPauseRequest{Lease: lease, Paused: on, RequesterUID: userA})
		})
	}
	if err := pause(true); err != store.ErrJobLeased {
		t.Errorf("pausing a job that has not started returned %v; want %v", err, store.ErrJobLeased)
	}
	f.reportJobsStarted("1")
	for _, on := range []bool{true, true, false, true} {
		if err := pause(on); err != nil {
			t.Fatal(err)
		}
	}
	f.reportJobsCompleted("1")
	if j := f.jobByID("1"); j.PausedAt != 0 || j.PausedBy != 0 {
		t.Errorf("the ended job is paused since %v by %d", j.PausedAt, j.PausedBy)
	}
	if got, want := f.eventKindsOf("1"), "enqueued started paused resumed paused ended"; got != want {
		t.Errorf("the events are %q; want %q", got, want)
	}
}

// Progress is recorded only for a running attempt. The job keeps it after the end, unless the report of the
// end contains newer progress.
func TestProgressIsKeptAfterAttemptEnds(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.wantClaim(1, "1")
	report := store.LeaseReport{ProgressReports: []store.AttemptProgress{{Lease: f.leaseOf("1"),
		Progress: queue.Progress{Percent: 50}}}}
	if g := f.reportAndClaim(report); len(g.StaleLeases) != 1 {
		t.Error("progress was recorded for an attempt that has not started")
	}
	f.reportJobsStarted("1")
	f.reportAndClaim(report)
	f.reportJobsCompleted("1")
	if p := f.jobByID("1").Progress; p == nil || p.Percent != 50 {
		t.Errorf("the progress of the ended job is %v; want 50 %%", p)
	}
	if got, want := f.eventKindsOf("1"), "enqueued started progress ended"; got != want {
		t.Errorf("the events are %q; want %q", got, want)
	}
}

// PredictSettledRow returns the same row that a settlement then writes.
func TestPredictedSettledRowMatchesSettlement(t *testing.T) {
	f := newFixture(t)
	f.node.ResourceUnits = map[string]int{"gpu": 1}
	f.mustEnqueue(draftWithDemands("1", "resource:gpu:1"))
	f.wantClaim(1, "1")
	f.reportJobsStarted("1")
	e := f.newSettlement(f.leaseOf("1"), queue.Completed)
	e.Attempt.Output = []byte("text")
	var predicted *Job
	f.mustRunTx(func(r *Rules) error { predicted = r.PredictSettledRow(&e, 0); return nil })
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}})
	got, want := f.jobByID("1"), predicted
	if got.State != want.State || got.Slot != want.Slot || got.StartedAttempts != want.StartedAttempts ||
		got.StoredBytes != want.StoredBytes ||
		got.OutputBytes != want.OutputBytes || got.EndedAt != want.EndedAt || got.HeldUnits != want.HeldUnits ||
		got.PID != want.PID {
		t.Errorf("the row is %+v; the prediction was %+v", *got, *want)
	}
}

// If the output of an attempt exceeds the user's quota, older outputs are removed. If that is not enough, the
// new output is not kept.
func TestNewOutputReplacesOlderOutputs(t *testing.T) {
	end := func(f *fixture, id string, limit int64) {
		f.wantClaim(1, id)
		e := f.newSettlement(f.leaseOf(id), queue.Completed)
		e.Attempt.Output = []byte(strings.Repeat("x", 1000))
		f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{e}, MaxBytesPerUser: limit})
	}
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "1"}, queue.Job{ID: "2"}, queue.Job{ID: "3"})
	limit := f.bytesByUID[userA].storedAndOutputBytes + 1000 // leaves room for one output
	end(f, "1", limit)
	end(f, "2", limit)
	if a, b := f.jobByID("1").OutputBytes, f.jobByID("2").OutputBytes; a != 0 || b != 1000 {
		t.Errorf("outputs of %d and %d bytes are kept; want only the newer one", a, b)
	}
	end(f, "3", limit-1)
	if got := f.settlementsByJobSeq[f.jobByID("3").Seq][0].Attempt.OutputBytes; got != queue.OutputRemovedByQuota {
		t.Errorf("the output size is %d; want the mark %d of an output that was not kept", got, queue.OutputRemovedByQuota)
	}
	f.wantStates("1 2 3", "completed completed completed")
}

// The detail of an ended attempt is the encoded EventDetail, also if it is written without the encoder.
func TestAttemptEndDetailIsEncodedEventDetail(t *testing.T) {
	uid := 1000
	for _, c := range []struct {
		attempt    queue.Attempt
		settlement store.Settlement
		want       queue.EventDetail
	}{
		{queue.Attempt{StartedAt: 7}, store.Settlement{}, queue.EventDetail{ExitCode: new(int64(0))}},
		{queue.Attempt{StartedAt: 7, ExitCode: 3}, store.Settlement{}, queue.EventDetail{ExitCode: new(int64(3))}},
		{queue.Attempt{StartedAt: 7, ExitCode: -1, Signal: 9}, store.Settlement{}, queue.EventDetail{Signal: 9}},
		{queue.Attempt{StartedAt: 7, Output: []byte("x")}, store.Settlement{},
			queue.EventDetail{ExitCode: new(int64(0)), HasOutput: true}},
		{queue.Attempt{StartedAt: 7}, store.Settlement{Decision: queue.AttemptDecision{Reason: queue.ReasonTimedOut}},
			queue.EventDetail{ExitCode: new(int64(0)), Reason: queue.ReasonTimedOut}},
		{queue.Attempt{StartedAt: 7}, store.Settlement{EndedByUID: &uid, EndedByVerb: "cancel"},
			queue.EventDetail{ExitCode: new(int64(0)), CausedByUID: &uid, Verb: "cancel"}},
	} {
		c.want.AttemptNumber, c.want.StartedAt = 2, 7
		got, want := attemptEndEventDetail(2, &c.attempt, &c.settlement), encodeEventDetail(c.want)
		if string(got) != string(want) {
			t.Errorf("%+v: got %s, want %s", c.attempt, got, want)
		}
	}
}
