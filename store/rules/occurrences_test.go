package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// addSchedule stores a schedule named "s" with an overlap policy.
func (f *fixture) addSchedule(overlap store.OverlapPolicy) {
	draft := draftWithDefaults(queue.Job{})
	f.schedules["s"] = store.Schedule{Name: "s", Generation: 1, OwnerUID: userA, Overlap: overlap, JobDraft: draft,
		LastOccurrenceAt: 100}
}

// occurrenceRequest returns a request to run occurrences of the schedule "s". The job of an occurrence gets the id
// s-TIME or, if another job has that id, s-TIME-N.
func occurrenceRequest(occurrences ...queue.UnixMillis) store.OccurrenceRequest {
	return store.OccurrenceRequest{
		ScheduleName: "s", Generation: 1, ExpectedLastOccurrenceAt: 100, OccurrencesToRun: occurrences,
		NewLastOccurrenceAt: 900,
		NewNextOccurrenceAt: 1000, NewNextDueAt: 1000,
		CandidateJobID: func(at queue.UnixMillis, n int) string {
			if n == 1 {
				return fmt.Sprintf("s-%d", int64(at))
			}
			return fmt.Sprintf("s-%d-%d", int64(at), n)
		},
	}
}

// runOccurrences runs occurrences in a transaction, in the same steps as package store/engine.
func (f *fixture) runOccurrences(request store.OccurrenceRequest) (result store.OccurrenceResult, err error) {
	f.t.Helper()
	err = f.runTx(func(r *Rules) error {
		result, err = r.RunOccurrences(&request, func(draft queue.Job) (int64, string, error) {
			if err := CheckWaitingLimits(fakeCounters{f.fakeData}, draft.UID, 1, request.MaxPendingJobs,
				request.MaxPendingJobsPerUser); err != nil {
				return 0, "", err
			}
			ids, err := f.insertDrafts(r, []queue.Job{draft})
			if err != nil {
				return 0, "", err
			}
			return f.jobByID(ids[0]).Seq, ids[0], nil
		})
		return err
	})
	return result, err
}

// listRecordedOutcomes returns the planned time and the outcome of each recorded occurrence of the schedule.
func (f *fixture) listRecordedOutcomes() string {
	var list []string
	for _, r := range f.occurrenceRecords["s"] {
		list = append(list, fmt.Sprintf("%d %s", int64(r.OccurrenceAt), r.Outcome))
	}
	return strings.Join(list, ", ")
}

// If several occurrences were missed, the jobs of those that the schedule catches up on run one after
// another. The others are recorded as missed. The schedule stores the newest occurrence that was handled.
func TestScheduleCatchesUpOnMissedOccurrences(t *testing.T) {
	cases := map[string]struct {
		missed, runs []queue.UnixMillis
		outcomes     string
		states       string // states of the jobs s-200, s-300 and s-400
	}{
		"none": {[]queue.UnixMillis{200, 300}, []queue.UnixMillis{400}, "200 missed, 300 missed, 400 fired",
			"gone gone pending"},
		"one": {[]queue.UnixMillis{200}, []queue.UnixMillis{300}, "200 missed, 300 fired", "gone pending gone"},
		"all": {nil, []queue.UnixMillis{200, 300, 400}, "200 fired, 300 fired, 400 fired", "pending blocked blocked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.addSchedule(store.OverlapQueue)
			request := occurrenceRequest(c.runs...)
			request.MissedOccurrences = c.missed
			if fired, err := f.runOccurrences(request); err != nil || !fired.RequestCarriedOut {
				t.Fatalf("Fire returned %+v, %v", fired, err)
			}
			if got := f.listRecordedOutcomes(); got != c.outcomes {
				t.Errorf("the outcomes are %q; want %q", got, c.outcomes)
			}
			f.wantStates("s-200 s-300 s-400", c.states)
			if s := f.schedules["s"]; s.LastOccurrenceAt != 900 || s.NextOccurrenceAt != 1000 || s.NextDueAt != 1000 {
				t.Errorf("the schedule has the times %d, %d, %d; want those of the request", s.LastOccurrenceAt, s.NextOccurrenceAt,
					s.NextDueAt)
			}
		})
	}
}

// If an earlier job of the schedule has not ended, the overlap policy decides what happens to the next
// occurrence.
func TestOverlapPolicyDecidesNextOccurrence(t *testing.T) {
	cases := map[store.OverlapPolicy]struct{ outcome, states string }{
		store.OverlapSkip:    {"300 skipped", "pending gone"},
		store.OverlapQueue:   {"300 fired", "pending blocked"},
		store.OverlapReplace: {"300 fired", "cancelled pending"},
	}
	for overlap, c := range cases {
		t.Run(string(overlap), func(t *testing.T) {
			f := newFixture(t)
			f.addSchedule(overlap)
			if _, err := f.runOccurrences(occurrenceRequest(200)); err != nil {
				t.Fatal(err)
			}
			request := occurrenceRequest(300)
			request.ExpectedLastOccurrenceAt = 900
			if _, err := f.runOccurrences(request); err != nil {
				t.Fatal(err)
			}
			if got, want := f.listRecordedOutcomes(), "200 fired, "+c.outcome; got != want {
				t.Errorf("the outcomes are %q; want %q", got, want)
			}
			f.wantStates("s-200 s-300", c.states)
		})
	}
}

// With the overlap "queue", the job of the next occurrence runs after the earlier job has ended, even if that
// job is dead.
func TestQueuedOccurrenceRunsAfterDeadJob(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapQueue)
	if _, err := f.runOccurrences(occurrenceRequest(200, 300)); err != nil {
		t.Fatal(err)
	}
	f.claimAndReportEnd("s-200", queue.Dead)
	f.claimAndReportEnd("s-300", queue.Completed)
}

// With the overlap "replace", a leased job must end before another job can replace it. Until then,
// RunOccurrences changes nothing.
func TestReplaceOverlapWaitsForLeasedJob(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapReplace)
	if _, err := f.runOccurrences(occurrenceRequest(200)); err != nil {
		t.Fatal(err)
	}
	f.wantClaim(1, "s-200")
	request := occurrenceRequest(300)
	request.ExpectedLastOccurrenceAt = 900
	fired, err := f.runOccurrences(request)
	if want := []int64{f.jobByID("s-200").Seq}; err != nil || fired.RequestCarriedOut ||
		!slices.Equal(fired.JobSeqsToCancel, want) {
		t.Fatalf("Fire returned %+v, %v; want the leased job %v and no change", fired, err, want)
	}
	f.wantStates("s-200 s-300", "pending gone")
	f.reportAttemptEnd("s-200", queue.Cancelled)
	if _, err := f.runOccurrences(request); err != nil {
		t.Fatal(err)
	}
	f.wantStates("s-300", "pending")
}

// With the overlap "replace", a leased job is not ended if the new job would be rejected anyway.
func TestReplaceOverlapKeepsLeasedJobOnRejection(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapReplace)
	if _, err := f.runOccurrences(occurrenceRequest(200)); err != nil {
		t.Fatal(err)
	}
	f.mustEnqueue(queue.Job{ID: "other"})
	f.wantClaim(1, "s-200")
	request := occurrenceRequest(300)
	request.ExpectedLastOccurrenceAt, request.MaxPendingJobs = 900, 1
	if fired, err := f.runOccurrences(request); err != nil || !fired.RequestCarriedOut || len(fired.JobSeqsToCancel) != 0 {
		t.Fatalf("Fire returned %+v, %v; want it done", fired, err)
	}
	if got, want := f.listRecordedOutcomes(), "200 fired, 300 refused"; got != want {
		t.Errorf("the outcomes are %q; want %q", got, want)
	}
}

// A request for an earlier version of the schedule does nothing.
func TestOutdatedOccurrenceRequestDoesNothing(t *testing.T) {
	cases := map[string]func(*store.Schedule){
		"replaced by a new definition":   func(s *store.Schedule) { s.Generation = 2 },
		"another occurrence was handled": func(s *store.Schedule) { s.LastOccurrenceAt = 150 },
		"paused":                         func(s *store.Schedule) { s.PausedAt = 1 },
		"handled for another boot":       func(s *store.Schedule) { s.LastBootID = "other" },
		"owned by a former account":      func(s *store.Schedule) { s.OwnerUID = -5 },
		"damaged":                        func(s *store.Schedule) { s.IsDamaged = true },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.addSchedule(store.OverlapSkip)
			s := f.schedules["s"]
			change(&s)
			f.schedules["s"] = s
			if fired, err := f.runOccurrences(occurrenceRequest(200)); err != nil || fired.RequestCarriedOut ||
				len(f.jobs) != 0 ||
				len(f.occurrenceRecords["s"]) != 0 {
				t.Errorf("Fire returned %+v, %v and stored %d jobs; want no change", fired, err, len(f.jobs))
			}
		})
	}
}

// A user can run a paused schedule. The run does not change the times of the schedule. If the job is
// rejected, the user gets an error.
func TestUserCanRunPausedSchedule(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapSkip)
	s := f.schedules["s"]
	s.PausedAt = 1
	f.schedules["s"] = s
	request, by := occurrenceRequest(200), userB
	request.RequestedByUID = &by
	if fired, err := f.runOccurrences(request); err != nil || !fired.RequestCarriedOut {
		t.Fatalf("Fire returned %+v, %v", fired, err)
	}
	if got := f.schedules["s"]; got.LastOccurrenceAt != 100 || got.PausedAt != 1 {
		t.Errorf("the run changed the schedule to %+v", got)
	}
	request.OccurrencesToRun = []queue.UnixMillis{300}
	_, err := f.runOccurrences(request)
	wantRejection(t, err, queue.CodeWrongState, "job s-200 of schedule s has not ended")
}

// If the job of an occurrence is rejected, this is recorded, and the schedule continues.
func TestRejectedOccurrenceIsRecorded(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapQueue)
	request := occurrenceRequest(200, 300)
	request.MaxPendingJobs = 1
	if fired, err := f.runOccurrences(request); err != nil || !fired.RequestCarriedOut {
		t.Fatalf("Fire returned %+v, %v", fired, err)
	}
	if got, want := f.listRecordedOutcomes(), "200 fired, 300 refused"; got != want {
		t.Errorf("the outcomes are %q; want %q", got, want)
	}
}

// If the id for the job of an occurrence is taken, the job gets the next possible id.
func TestOccurrenceJobTakesNextFreeID(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapSkip)
	f.mustEnqueue(queue.Job{ID: "s-200"}, queue.Job{ID: "s-200-2"})
	if _, err := f.runOccurrences(occurrenceRequest(200)); err != nil {
		t.Fatal(err)
	}
	f.wantStates("s-200-3", "pending")
}

// If an error does not reject the job of an occurrence, the transaction fails.
func TestRunOccurrencesReturnsNonRejectionErrors(t *testing.T) {
	f := newFixture(t)
	f.addSchedule(store.OverlapSkip)
	broken := errors.New("the disk has failed")
	err := f.runTx(func(r *Rules) error {
		request := occurrenceRequest(200)
		_, err := r.RunOccurrences(&request, func(queue.Job) (int64, string, error) { return 0, "", broken })
		return err
	})
	if !errors.Is(err, broken) || len(f.occurrenceRecords["s"]) != 0 {
		t.Errorf("Fire returned %v and recorded %q; want only the error", err, f.listRecordedOutcomes())
	}
}
