package storetest

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var pauseTests = []contractTest{
	{name: "a running job can be paused and resumed, and the events name the user", run: runningJobPausesAndResumes},
	{name: "only a job that is known to run can be paused", run: pauseNeedsRunningJob},
	{name: "a pause ends with the attempt", run: pauseEndsWithAttempt},
	{name: "a change of a setting can be recorded as another kind of event", run: settingRecordsGivenEventKind},
}

// setJobPaused pauses or resumes a leased job on behalf of a user.
func (r *storeTest) setJobPaused(l queue.Lease, paused bool, requesterUID int) error {
	return r.store.RecordJobPause(r.Context(), store.JobPauseRequest{Lease: l, Paused: paused, RequesterUID: requesterUID})
}

// A running job can be paused and resumed, and the events contain the uid of the user who requested it.
func runningJobPausesAndResumes(r *storeTest) {
	r.enqueueOne()
	j := r.startJob(r.claimOne())
	r.readNewEvents()
	r.checkStoreUnchanged(func() { r.must(r.setJobPaused(j.Lease(), false, testUID)) })
	r.advanceClock(time.Second)
	r.must(r.setJobPaused(j.Lease(), true, 7))
	j.PausedAt, j.PausedBy, j.UpdatedAt = r.store.Now(), 7, r.store.Now()
	checkEqual(r, "paused job", r.getJob(j.ID), j)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventPaused, j,
		queue.EventDetail{CausedByUID: new(7)})})
	r.advanceClock(time.Second)
	r.checkStoreUnchanged(func() { r.must(r.setJobPaused(j.Lease(), true, 8)) }) // pausing a paused job changes nothing
	r.checkJobCounts()
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "jobs leased by an earlier service", leased, []queue.Job{j})
	r.must(r.setJobPaused(j.Lease(), false, 8))
	j.PausedAt, j.PausedBy, j.UpdatedAt = 0, 0, r.store.Now()
	checkEqual(r, "resumed job", r.getJob(j.ID), j)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventResumed, j,
		queue.EventDetail{CausedByUID: new(8)})})
	r.checkJobCounts()
}

// Only a job that was reported as started can be paused.
func pauseNeedsRunningJob(r *storeTest) {
	waits := r.enqueueAndGet(newDraft(), newDraft())[1]
	j := r.claimOne()
	r.checkStoreUnchanged(func() {
		for _, on := range []bool{true, false} {
			r.checkErrLeased("pause before the start", r.setJobPaused(j.Lease(), on, testUID))
			for what, l := range map[string]queue.Lease{"a waiting job": waits.Lease(),
				"another fence": {Seq: j.Seq, Fence: j.Fence + 1}, "no job": {Seq: 99, Fence: 1}} {
				if err := r.setJobPaused(l, on, testUID); !errors.Is(err, store.ErrJobStateChanged) {
					r.Errorf("%s: got error %v, want %v", what, err, store.ErrJobStateChanged)
				}
			}
		}
	})
}

// When an attempt ends, its pause ends too.
func pauseEndsWithAttempt(r *storeTest) {
	for _, o := range []queue.AttemptOutcome{exitOutcome(0), exitOutcome(1), outcomeOfCause(queue.EndCancelled),
		outcomeOfCause(queue.EndStopped), {EndCause: queue.EndStopped, WasPausedAtEnd: true},
		outcomeOfCause(queue.EndRunnerLost)} {
		r.enqueueOne()
		j := r.startJob(r.claimOne())
		r.must(r.setJobPaused(j.Lease(), true, testUID))
		e := r.newSettlement(j, o)
		checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}}),
			store.ReportAndClaimResult{})
		if got := r.getJob(j.ID); got.PausedAt != 0 || got.PausedBy != 0 || got.State != e.Decision.NextState {
			r.Errorf("after %+v, the job is %s, paused at %v by %d", o, got.State, got.PausedAt, got.PausedBy)
		}
		if err := r.setJobPaused(j.Lease(), true, testUID); !errors.Is(err, store.ErrJobStateChanged) {
			r.Errorf("after %+v: got error %v, want %v", o, err, store.ErrJobStateChanged)
		}
		r.must(r.applyVerb(r.getJob(j.ID), queue.VerbRemove))
	}
}

// SetSetting records an event of the kind that the caller chooses.
func settingRecordsGivenEventKind(r *storeTest) {
	set := func(value string, uid int, kind queue.EventKind) {
		r.must(r.store.SetSetting(r.Context(), store.Setting{Key: "pause", Value: value, SetByUID: uid, EventKind: kind}))
		checkEqual(r, "events", r.readNewEvents(), []queue.Event{{Time: r.store.Now(), Kind: kind,
			Detail: queue.EventDetail{CausedByUID: &uid, SettingName: "pause", SettingValue: value}}})
	}
	set("on", 7, queue.EventPaused)
	list, err := r.store.Settings(r.Context())
	r.must(err)
	checkEqual(r, "settings", list, []store.Setting{{Key: "pause", Value: "on", SetByUID: 7, SetAt: r.store.Now()}})
	set("", 8, queue.EventResumed)
}

// pauseRandomJob pauses or resumes a leased job.
func (w *predictedWalk) pauseRandomJob() {
	list := slices.Sorted(maps.Keys(w.leasedSeqs))
	if len(list) == 0 {
		return
	}
	j, on := w.expectedJobs[list[w.rng.IntN(len(list))]], w.rng.IntN(2) == 0
	err := w.storeTest.setJobPaused(j.Lease(), on, testUID)
	if j.State != queue.Processing {
		w.checkErrLeased("pause", err)
	} else if w.must(err); on != (j.PausedAt != 0) {
		j.PausedAt, j.PausedBy, j.UpdatedAt = 0, 0, w.store.Now()
		if on {
			j.PausedAt, j.PausedBy = w.store.Now(), testUID
		}
	}
	w.checkJob(j)
}

func pausedScheduleRunsNoOccurrence(r *storeTest) {
	s := r.putSchedule("nightly")
	r.readNewEvents()
	uid := 7
	pause := store.SchedulePauseRequest{ScheduleName: "nightly", Generation: s.Generation, RequestedByUID: &uid,
		PauseNote: "why", Paused: true}
	for range 2 { // the second call changes nothing
		r.must(r.store.PauseSchedule(r.Context(), pause))
	}
	got, _ := r.getSchedule("nightly")
	want := s
	want.PausedAt, want.PausedByUID, want.PauseOrDamageNote, want.NextOccurrenceAt, want.NextDueAt = r.store.Now(), &uid,
		"why", 0, 0
	checkEqual(r, "paused", got, want)
	r.advanceClock(5 * time.Minute)
	checkEqual(r, "occurrence while the schedule is paused", r.runOccurrences(occurrencesAt(s, s.NextOccurrenceAt)),
		store.OccurrenceResult{})
	names, next := r.dueSchedules("other", 9)
	checkEqual(r, "due schedules while it is paused", len(names), 0)
	checkEqual(r, "next while it is paused", next, time.Hour)
	now := r.store.Now()
	resume := store.SchedulePauseRequest{ScheduleName: "nightly", Generation: s.Generation, RequestedByUID: &uid,
		LastOccurrenceAt: now, NextOccurrenceAt: now + 60_000, NextDueAt: now + 61_000, LastBootID: "b"}
	for range 2 {
		r.must(r.store.PauseSchedule(r.Context(), resume))
	}
	got, _ = r.getSchedule("nightly")
	want = s
	want.LastOccurrenceAt, want.NextOccurrenceAt, want.NextDueAt, want.LastBootID = now, now+60_000, now+61_000, "b"
	checkEqual(r, "resumed", got, want)
	checkEqual(r, "events", r.readNewScheduleEvents(), []string{"schedule_paused nightly ", "schedule_resumed nightly "})
	pause.Generation++
	r.checkErrScheduleChanged("another version", r.store.PauseSchedule(r.Context(), pause))
	pause.ScheduleName = "gone"
	r.checkError("no schedule", r.store.PauseSchedule(r.Context(), pause), queue.CodeNotFound, "")
}
