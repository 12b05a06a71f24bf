package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var scheduleTests = []contractTest{
	{name: "a schedule is returned unchanged, and a change must name its current version",
		run: scheduleIsStoredUnchanged},
	{name: "the number of schedules is limited per user", run: schedulesPerUserAreLimited},
	{name: "Schedules returns pages, ordered by name", run: schedulesAreListedInPages},
	{name: "DueSchedules returns the due schedules and when the next one is due", run: dueSchedulesAreReturned},
	{name: "PromoteHints sends a hint for a schedule that is due earlier", run: earlierScheduleSendsDueChangeHint},
	{name: "an occurrence runs once", run: occurrenceRunsOnce},
	{name: "overlap skip: an occurrence is skipped while the previous job is unfinished", run: overlapSkipSkipsOccurrence},
	{name: "overlap queue: an occurrence waits for the previous job", run: overlapQueueWaitsForPreviousJob},
	{name: "overlap replace: an occurrence cancels a waiting job and returns a leased one",
		run: overlapReplaceCancelsPreviousJob},
	{name: "overlap replace: the previous job stays if the new one is rejected", run: rejectedOccurrenceReplacesNoJob},
	{name: "jobs of a schedule depend on the jobs that it names", run: scheduledJobsHaveDependencies},
	{name: "occurrences that are caught up run one after another", run: occurrencesRunInSequence},
	{name: "an occurrence in a full queue is recorded as refused", run: fullQueueRefusesOccurrence},
	{name: "an occurrence whose id is in use gets another id", run: occurrenceJobGetsUnusedID},
	{name: "a run that a user requests does not change the schedule", run: requestedOccurrenceKeepsSchedule},
	{name: "a paused schedule runs nothing until it is resumed", run: pausedScheduleRunsNoOccurrence},
	{name: "the newest MaxOccurrenceRecords records are kept", run: newestOccurrenceRecordsAreKept},
	{name: "an at-boot schedule is due after the next boot", run: bootScheduleIsDueAfterBoot},
	{name: "Disown pauses the former owner's schedules", run: disownPausesSchedules},
}

// putSchedule stores a new schedule after it has applied the given functions to it.
func (r *storeTest) putSchedule(name string, options ...func(*store.Schedule)) store.Schedule {
	r.Helper()
	now := r.store.Now()
	s := store.Schedule{
		Name: name, OwnerUID: testUID, CronLine: "* * * * *", TimeZone: "UTC", CatchUp: store.CatchUpNone,
		Overlap:  store.OverlapSkip,
		SpecJSON: `{"command":"true"}`,
		JobDraft: newDraft(), CreatedAt: now, LastOccurrenceAt: now, NextOccurrenceAt: now + 60_000, NextDueAt: now + 60_000,
	}
	for _, f := range options {
		f(&s)
	}
	stored, err := r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: s, RequestedByUID: testUID})
	r.must(err)
	return stored
}

func withOverlap(o store.OverlapPolicy) func(*store.Schedule) {
	return func(s *store.Schedule) { s.Overlap = o }
}

// getSchedule returns a schedule and the records of its occurrences (planned starts).
func (r *storeTest) getSchedule(name string) (store.Schedule, []store.OccurrenceRecord) {
	r.Helper()
	s, runs, err := r.store.GetSchedule(r.Context(), name)
	r.must(err)
	return s, runs
}

// occurrencesAt returns a request to run the occurrences of a schedule at the given times. In the request, the
// schedule's next occurrence is one minute after the last of these times.
func occurrencesAt(s store.Schedule, plannedTimes ...queue.UnixMillis) store.OccurrenceRequest {
	f := store.OccurrenceRequest{
		ScheduleName: s.Name, Generation: s.Generation, ExpectedLastOccurrenceAt: s.LastOccurrenceAt,
		ExpectedLastBootID: s.LastBootID, NewLastBootID: s.LastBootID,
		NewLastOccurrenceAt: s.LastOccurrenceAt, OccurrencesToRun: plannedTimes,
		CandidateJobID: func(plannedTime queue.UnixMillis, n int) string {
			return fmt.Sprintf("%s@%d", s.Name, plannedTime) + strings.Repeat("-", min(1, n-1)) +
				strings.TrimPrefix(fmt.Sprint(n), "1")
		},
	}
	if len(plannedTimes) > 0 {
		f.NewLastOccurrenceAt = plannedTimes[len(plannedTimes)-1]
	}
	f.NewNextOccurrenceAt, f.NewNextDueAt = f.NewLastOccurrenceAt+60_000, f.NewLastOccurrenceAt+60_000
	return f
}

func (r *storeTest) runOccurrences(request store.OccurrenceRequest) store.OccurrenceResult {
	r.Helper()
	fired, err := r.store.RunOccurrences(r.Context(), request)
	r.must(err)
	return fired
}

// occurrenceOutcomes returns the outcomes of a schedule's recorded occurrences, newest first.
func (r *storeTest) occurrenceOutcomes(scheduleName string) (outcomes []string) {
	r.Helper()
	_, runs := r.getSchedule(scheduleName)
	for _, run := range runs {
		outcomes = append(outcomes, string(run.Outcome))
	}
	return outcomes
}

// readNewScheduleEvents returns the events about schedules since the last call of readNewScheduleEvents or
// readNewEvents.
func (r *storeTest) readNewScheduleEvents() (eventTexts []string) {
	r.Helper()
	for _, e := range r.readNewEvents() {
		if e.Detail.ScheduleName != "" {
			eventTexts = append(eventTexts, fmt.Sprintf("%s %s %s", e.Kind, e.Detail.ScheduleName, e.JobID))
		}
	}
	return eventTexts
}

func scheduleIsStoredUnchanged(r *storeTest) {
	r.readNewEvents()
	want := r.putSchedule("nightly", func(s *store.Schedule) {
		s.MaxJitter, s.LastBootID, s.JobDraft.Env, s.JobDraft.Stdin = time.Minute, "b", []string{"A=b"}, "in"
		s.JobDraft.Labels, s.JobDraft.Backoff.Jitter, s.JobDraft.Delay = map[string]string{"a": "b"}, new(float64),
			time.Second
	})
	got, runs := r.getSchedule("nightly")
	checkEqual(r, "stored", got, want)
	checkEqual(r, "runs", len(runs), 0)
	_, err := r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: want, RequestedByUID: testUID})
	r.checkErrScheduleChanged("a second schedule with the same name", err)
	_, err = r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: want,
		ReplacedGeneration: want.Generation + 1, RequestedByUID: testUID})
	r.checkErrScheduleChanged("another version", err)
	again := want
	again.CronLine, again.OwnerUID = "0 0 * * *", 7
	again, err = r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: again,
		ReplacedGeneration: want.Generation, RequestedByUID: 7})
	r.must(err)
	if again.Generation == want.Generation {
		r.Error("the new version has the number of the old one")
	}
	got, _ = r.getSchedule("nightly")
	checkEqual(r, "replaced", got, again)
	r.checkErrScheduleChanged("removal of the old version",
		r.store.RemoveSchedule(r.Context(), "nightly", want.Generation, testUID))
	r.must(r.store.RemoveSchedule(r.Context(), "nightly", again.Generation, testUID))
	_, _, err = r.store.GetSchedule(r.Context(), "nightly")
	r.checkError("a removed schedule", err, queue.CodeNotFound, "")
	r.checkError("a second removal", r.store.RemoveSchedule(r.Context(), "nightly", again.Generation, testUID),
		queue.CodeNotFound, "")
	_, err = r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: want, ReplacedGeneration: want.Generation,
		RequestedByUID: testUID})
	r.checkErrScheduleChanged("replacing a schedule that does not exist", err)
	checkEqual(r, "events", r.readNewScheduleEvents(), []string{"schedule_added nightly ", "schedule_added nightly ",
		"schedule_removed nightly "})
}

// checkErrScheduleChanged checks that err is ErrScheduleChanged: another caller has changed the schedule.
func (r *storeTest) checkErrScheduleChanged(description string, err error) {
	r.Helper()
	if !errors.Is(err, store.ErrScheduleChanged) {
		r.Errorf("%s: got error %v, want %v", description, err, store.ErrScheduleChanged)
	}
}

func schedulesPerUserAreLimited(r *storeTest) {
	var lastSchedule store.Schedule
	for i := range store.MaxSchedulesPerUser {
		lastSchedule = r.putSchedule(fmt.Sprintf("s%04d", i))
	}
	more := lastSchedule
	more.Name = "more"
	_, err := r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: more, RequestedByUID: testUID})
	r.checkError("one more schedule", err, queue.CodeQueueFull, "")
	_, err = r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: lastSchedule,
		ReplacedGeneration: lastSchedule.Generation, RequestedByUID: testUID})
	r.must(err) // a user can replace an existing schedule even at the limit
	more.OwnerUID = 7
	_, err = r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: more, RequestedByUID: 7})
	r.must(err)
}

func schedulesAreListedInPages(r *storeTest) {
	for _, name := range []string{"c", "a", "b", "d"} {
		r.putSchedule(name, func(s *store.Schedule) { s.JobDraft.Env, s.JobDraft.Stdin = []string{"A=b"}, "in" })
	}
	list, err := r.store.ListSchedules(r.Context(), "a", 2)
	r.must(err)
	if len(list) != 2 || list[0].Name != "b" || list[1].Name != "c" {
		r.Fatalf("got schedules %v", list)
	}
	want, _ := r.getSchedule("b")
	want.JobDraft.Env, want.JobDraft.Stdin, want.SpecJSON = nil, "", ""
	checkEqual(r, "a listed schedule", list[0], want)
	list, err = r.store.ListSchedules(r.Context(), "d", 2)
	r.must(err)
	checkEqual(r, "after the last", len(list), 0)
}

// dueSchedules returns the names of the due schedules, and the time until the next schedule is due.
func (r *storeTest) dueSchedules(bootID string, limit int) (names []string, untilNext time.Duration) {
	r.Helper()
	list, untilNext, err := r.store.DueSchedules(r.Context(), bootID, limit)
	r.must(err)
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names, untilNext
}

func dueSchedulesAreReturned(r *storeTest) {
	after := func(d time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) { s.NextOccurrenceAt, s.NextDueAt = s.CreatedAt.Add(d), s.CreatedAt.Add(d) }
	}
	check := func(subject string, limit int, wantNext time.Duration, want ...string) {
		r.Helper()
		names, next := r.dueSchedules("", limit)
		checkEqual(r, subject, names, want)
		checkEqual(r, subject+", next", next, wantNext)
	}
	check("without schedules", 9, time.Hour)
	r.putSchedule("late", after(20*time.Minute))
	r.putSchedule("soon", after(2*time.Minute))
	r.putSchedule("sooner", after(time.Minute))
	r.putSchedule("never", func(s *store.Schedule) { s.NextOccurrenceAt, s.NextDueAt = 0, 0 })
	r.putSchedule("far", after(9*time.Hour))
	check("before the first is due", 9, time.Minute)
	r.advanceClock(time.Minute)
	check("one is due", 9, time.Minute, "sooner")
	r.advanceClock(time.Minute)
	check("two are due", 9, 18*time.Minute, "sooner", "soon")
	check("two are due, with a limit of one", 1, 0, "sooner")
	s, _ := r.getSchedule("sooner")
	f := occurrencesAt(s)
	next := s.NextOccurrenceAt.Add(30 * time.Minute)
	f.NewLastOccurrenceAt, f.NewNextOccurrenceAt, f.NewNextDueAt = s.NextOccurrenceAt, next, next
	r.runOccurrences(f)
	check("after an occurrence has run", 9, 18*time.Minute, "soon")
	r.advanceClock(19 * time.Minute)
	r.putSchedule("of-another", after(time.Minute), func(s *store.Schedule) { s.OwnerUID = testUID + 1 })
	r.putSchedule("of-another-2", after(2*time.Minute), func(s *store.Schedule) { s.OwnerUID = testUID + 1 })
	r.advanceClock(2 * time.Minute)
	check("users take turns", 3, 0, "soon", "of-another", "late")
	check("all are due", 9, 8*time.Minute, "soon", "of-another", "late", "of-another-2")
}

func earlierScheduleSendsDueChangeHint(r *storeTest) {
	r.applyDueChangesUntilDone()
	select {
	case <-r.store.DueChangeHints():
	default:
	}
	r.putSchedule("soon")
	receive(r, "hint for a schedule", r.store.DueChangeHints())
}

func occurrenceRunsOnce(r *storeTest) {
	s := r.putSchedule("nightly", func(s *store.Schedule) { s.JobDraft.Priority = 7 })
	r.readNewEvents()
	r.advanceClock(3 * time.Minute)
	f := occurrencesAt(s, s.NextOccurrenceAt+60_000)
	f.MissedOccurrences = []queue.UnixMillis{s.NextOccurrenceAt}
	fired := r.runOccurrences(f)
	if !fired.RequestCarriedOut || len(fired.Records) != 1 {
		r.Fatalf("got result %+v, want one run", fired)
	}
	j := r.getJob(fired.Records[0].JobID)
	checkEqual(r, "the job", []any{j.ID, j.Seq, j.Schedule, j.Priority, j.UID, j.State},
		[]any{f.CandidateJobID(f.NewLastOccurrenceAt, 1), fired.Records[0].JobSeq, "nightly", int64(7), testUID,
			queue.Pending})
	checkEqual(r, "the same occurrence again", r.runOccurrences(f), store.OccurrenceResult{})
	other := occurrencesAt(s, s.NextOccurrenceAt+120_000)
	checkEqual(r, "another occurrence requested from outdated state", r.runOccurrences(other), store.OccurrenceResult{})
	other.ExpectedLastOccurrenceAt, other.Generation = f.NewLastOccurrenceAt, s.Generation+1
	checkEqual(r, "an occurrence of another version", r.runOccurrences(other), store.OccurrenceResult{})
	got, runs := r.getSchedule("nightly")
	s.LastOccurrenceAt, s.NextOccurrenceAt, s.NextDueAt = f.NewLastOccurrenceAt, f.NewNextOccurrenceAt, f.NewNextDueAt
	checkEqual(r, "schedule", got, s)
	now := r.store.Now()
	checkEqual(r, "records", runs, []store.OccurrenceRecord{
		{OccurrenceAt: f.NewLastOccurrenceAt, RecordedAt: now, Outcome: store.OccurrenceEnqueued, JobSeq: j.Seq, JobID: j.ID},
		{OccurrenceAt: f.MissedOccurrences[0], RecordedAt: now, Outcome: store.OccurrenceMissed},
	})
	checkEqual(r, "events", r.readNewScheduleEvents(), []string{"schedule_missed nightly ", "schedule_fired nightly " +
		j.ID})
	checkEqual(r, "counts", r.store.Counts().JobsByState[queue.Pending], int64(1))
	f.ScheduleName = "gone"
	_, err := r.store.RunOccurrences(r.Context(), f)
	r.checkError("an occurrence of an unknown schedule", err, queue.CodeNotFound, "")
}

// runNextOccurrence advances the clock by a minute and runs the next occurrence of a schedule.
func (r *storeTest) runNextOccurrence(name string) store.OccurrenceResult {
	r.Helper()
	r.advanceClock(time.Minute)
	s, _ := r.getSchedule(name)
	return r.runOccurrences(occurrencesAt(s, s.NextOccurrenceAt))
}

func overlapSkipSkipsOccurrence(r *storeTest) {
	r.putSchedule("nightly")
	first := r.runNextOccurrence("nightly").Records[0]
	skipped := r.runNextOccurrence("nightly").Records[0]
	checkEqual(r, "while the previous job waits", []any{skipped.Outcome, skipped.OutcomeNote, skipped.JobSeq},
		[]any{store.OccurrenceSkipped, first.JobID, int64(0)})
	r.startJob(r.claimOne())
	checkEqual(r, "while the previous job runs", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OccurrenceSkipped)
	j := r.getJob(first.JobID)
	r.settleJob(j, exitOutcome(1))
	checkEqual(r, "while the previous job waits for its retry", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OccurrenceSkipped)
	r.advanceClock(time.Minute)
	r.applyDueChangesUntilDone()
	r.settleJob(r.claimOne(), exitOutcome(0))
	checkEqual(r, "after the previous job has ended", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OccurrenceEnqueued)
	checkEqual(r, "outcomes", r.occurrenceOutcomes("nightly"), []string{"fired", "skipped", "skipped", "skipped", "fired"})
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, int64(2))
}

func overlapQueueWaitsForPreviousJob(r *storeTest) {
	r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	var ids []string
	for range 3 {
		ids = append(ids, r.runNextOccurrence("nightly").Records[0].JobID)
	}
	for i, id := range ids {
		checkEqual(r, "blocked jobs after "+id, r.store.Counts().JobsByState[queue.Blocked], int64(2-i))
		j := r.claimOne()
		checkEqual(r, "claimed job", j.ID, id)
		checkEqual(r, "jobs claimed at the same time", len(r.claimJobs(9)), 0)
		end := exitOutcome(0)
		if i == 1 {
			end = outcomeOfCause(queue.EndCancelled) // the next job starts whatever the outcome of this job is
		}
		r.settleJob(r.startJob(j), end)
		r.applyDueChangesUntilDone()
	}
	checkEqual(r, "after all jobs have ended", r.runNextOccurrence("nightly").Records[0].Outcome, store.OccurrenceEnqueued)
	checkEqual(r, "blocked jobs after all jobs have ended", r.store.Counts().JobsByState[queue.Blocked], int64(0))
}

func overlapReplaceCancelsPreviousJob(r *storeTest) {
	r.putSchedule("nightly", withOverlap(store.OverlapReplace))
	first := r.runNextOccurrence("nightly").Records[0]
	second := r.runNextOccurrence("nightly").Records[0]
	j := r.getJob(first.JobID)
	checkEqual(r, "the first job", []any{j.State, j.Reason}, []any{queue.Cancelled, queue.ReasonReplaced})
	claimed := r.claimOne()
	checkEqual(r, "claimed job", claimed.ID, second.JobID)
	for _, what := range []string{"reserved", "running"} {
		if what == "running" {
			claimed = r.startJob(claimed)
		}
		before, runs := r.getSchedule("nightly")
		fired := r.runNextOccurrence("nightly")
		checkEqual(r, "while the previous job is "+what, fired, store.OccurrenceResult{JobSeqsToCancel: []int64{claimed.Seq}})
		after, now := r.getSchedule("nightly")
		checkEqual(r, "schedule", after, before)
		checkEqual(r, "records", now, runs)
	}
	r.settleJob(claimed, outcomeOfCause(queue.EndCancelled))
	checkEqual(r, "after the previous job has ended", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OccurrenceEnqueued)
}

func rejectedOccurrenceReplacesNoJob(r *storeTest) {
	keyed := func(retention time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.JobDraft.Unique, s.JobDraft.UniqueFor = store.OverlapReplace, s.Name, retention
		}
	}
	r.putSchedule("kept", keyed(time.Hour))
	first := r.runNextOccurrence("kept").Records[0]
	checkEqual(r, "while a waiting job keeps its unique key", r.runNextOccurrence("kept").Records[0].Outcome,
		store.OccurrenceRefused)
	checkEqual(r, "state of the previous job", r.getJob(first.JobID).State, queue.Pending)
	fireRequested := func(name string) error {
		s, _ := r.getSchedule(name)
		f := occurrencesAt(s, r.store.Now())
		f.RequestedByUID = new(7)
		_, err := r.store.RunOccurrences(r.Context(), f)
		return err
	}
	r.checkErrorCode("requested by a user", fireRequested("kept"), queue.CodeExists)
	checkEqual(r, "state of the previous job after the rejection", r.getJob(first.JobID).State, queue.Pending)
	claimed := r.startJob(r.claimOne())
	fired := r.runNextOccurrence("kept")
	checkEqual(r, "while a running job keeps its unique key", []any{fired.Records[0].Outcome, fired.JobSeqsToCancel},
		[]any{store.OccurrenceRefused, []int64(nil)})
	r.checkErrorCode("requested by a user while the previous job runs", fireRequested("kept"), queue.CodeExists)
	r.settleJob(claimed, exitOutcome(0))

	r.putSchedule("free", keyed(0))
	second := r.runNextOccurrence("free").Records[0]
	third := r.runNextOccurrence("free").Records[0]
	checkEqual(r, "the replaced job does not keep its unique key", []any{third.Outcome, r.getJob(second.JobID).State},
		[]any{store.OccurrenceEnqueued, queue.Cancelled})
	claimed = r.startJob(r.claimOne())
	checkEqual(r, "leased job that must end first", r.runNextOccurrence("free").JobSeqsToCancel, []int64{claimed.Seq})
	r.enqueueOne()
	s, _ := r.getSchedule("free")
	r.advanceClock(time.Minute)
	f := occurrencesAt(s, s.NextOccurrenceAt)
	f.MaxPendingJobs = 1
	fired = r.runOccurrences(f)
	checkEqual(r, "in a full queue while the previous job runs", []any{fired.Records[0].Outcome, fired.JobSeqsToCancel},
		[]any{store.OccurrenceRefused, []int64(nil)})
	checkEqual(r, "state of the running job", r.getJob(claimed.ID).State, queue.Processing)
	checkEqual(r, "outcomes", r.occurrenceOutcomes("free"), []string{"refused", "fired", "fired"})
	r.checkJobCounts()
}

func scheduledJobsHaveDependencies(r *storeTest) {
	parent := r.enqueueOne(withID("parent"), withDelay(time.Hour))
	waits := func(id string) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.JobDraft.DependsOn = store.OverlapQueue, []queue.Dependency{{ParentID: id,
				Condition: queue.ParentCompleted}}
		}
	}
	stored := r.putSchedule("after", waits("parent"))
	kept, _ := r.getSchedule("after")
	checkEqual(r, "the stored schedule", kept, stored)
	wrong := stored
	wrong.Name = "unknown"
	waits("unknown")(&wrong)
	_, err := r.store.PutSchedule(r.Context(), store.SchedulePutRequest{Schedule: wrong, RequestedByUID: testUID})
	r.checkErrorCode("a schedule that depends on an unknown job", err, queue.CodeInvalid)
	first, second := r.runNextOccurrence("after").Records[0], r.runNextOccurrence("after").Records[0]
	for _, run := range []store.OccurrenceRecord{first, second} {
		checkEqual(r, "state of a job that depends on the parent", r.getJob(run.JobID).State, queue.Blocked)
	}
	r.must(r.store.ChangeJob(r.Context(), parent.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	r.applyDueChangesUntilDone()
	for _, run := range []store.OccurrenceRecord{first, second} {
		checkEqual(r, "state and reason after the parent was removed",
			[]any{r.getJob(run.JobID).State, r.getJob(run.JobID).Reason},
			[]any{queue.Cancelled, queue.ReasonDependency})
	}
	checkEqual(r, "an occurrence that depends on a removed job", r.runNextOccurrence("after").Records[0].Outcome,
		store.OccurrenceRefused)
	r.checkJobCounts()
}

func occurrencesRunInSequence(r *storeTest) {
	s := r.putSchedule("nightly", func(s *store.Schedule) { s.CatchUp = store.CatchUpAll })
	r.advanceClock(4 * time.Minute)
	fired := r.runOccurrences(occurrencesAt(s, s.NextOccurrenceAt, s.NextOccurrenceAt+60_000, s.NextOccurrenceAt+120_000))
	for i, run := range fired.Records {
		checkEqual(r, "outcome", run.Outcome, store.OccurrenceEnqueued)
		j := r.claimOne()
		checkEqual(r, "claimed job", j.ID, run.JobID)
		checkEqual(r, fmt.Sprintf("jobs claimed while job %d is leased", i), len(r.claimJobs(9)), 0)
		r.settleJob(r.startJob(j), exitOutcome(0))
		r.applyDueChangesUntilDone()
	}
	r.runNextOccurrence("nightly") // the job of this occurrence does not end
	s, _ = r.getSchedule("nightly")
	r.advanceClock(2 * time.Minute)
	for _, run := range r.runOccurrences(occurrencesAt(s, s.NextOccurrenceAt, s.NextOccurrenceAt+60_000)).Records {
		checkEqual(r, "outcome while an earlier job is unfinished", run.Outcome, store.OccurrenceSkipped)
	}
}

func fullQueueRefusesOccurrence(r *storeTest) {
	s := r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	r.enqueueOne()
	r.advanceClock(time.Minute)
	f := occurrencesAt(s, s.NextOccurrenceAt)
	f.MaxPendingJobs = 1
	run := r.runOccurrences(f).Records[0]
	if run.Outcome != store.OccurrenceRefused || run.OutcomeNote == "" || run.JobSeq != 0 {
		r.Errorf("record of an occurrence in a full queue: %+v", run)
	}
	s, _ = r.getSchedule("nightly")
	checkEqual(r, "time of the next occurrence", s.NextOccurrenceAt, f.NewNextOccurrenceAt)
	f = occurrencesAt(s, s.NextOccurrenceAt)
	f.MaxPendingJobsPerUser = 1
	checkEqual(r, "with a full quota", r.runOccurrences(f).Records[0].Outcome, store.OccurrenceRefused)
	checkEqual(r, "jobs ever enqueued", r.store.Counts().JobsEverEnqueued, int64(1))
	r.checkJobCounts()
}

func occurrenceJobGetsUnusedID(r *storeTest) {
	s := r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	f := occurrencesAt(s, s.NextOccurrenceAt)
	r.enqueueOne(withID(f.CandidateJobID(s.NextOccurrenceAt, 1)))
	r.advanceClock(time.Minute)
	checkEqual(r, "id of the job", r.runOccurrences(f).Records[0].JobID, f.CandidateJobID(f.NewLastOccurrenceAt, 2))
}

func requestedOccurrenceKeepsSchedule(r *storeTest) {
	s := r.putSchedule("nightly")
	uid := 7
	now := r.store.Now()
	f := occurrencesAt(s, now)
	f.RequestedByUID, f.ExpectedLastOccurrenceAt = &uid, 5
	f.NewLastOccurrenceAt, f.NewNextOccurrenceAt, f.NewNextDueAt = 6, 7, 8
	fired := r.runOccurrences(f)
	got, runs := r.getSchedule("nightly")
	checkEqual(r, "schedule", got, s)
	checkEqual(r, "records", runs, []store.OccurrenceRecord{{OccurrenceAt: now, RecordedAt: now,
		Outcome: store.OccurrenceEnqueued, JobSeq: fired.Records[0].JobSeq, JobID: fired.Records[0].JobID,
		RequestedByUID: &uid}})
	_, err := r.store.RunOccurrences(r.Context(), f)
	r.checkError("another request while the first job is unfinished", err, queue.CodeWrongState, "")
	checkEqual(r, "occurrence while a requested job is unfinished", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OccurrenceSkipped)
	r.settleJob(r.claimOne(), exitOutcome(0))
	f.MaxPendingJobs = 1
	r.enqueueOne()
	_, err = r.store.RunOccurrences(r.Context(), f)
	r.checkError("a request with a full queue", err, queue.CodeQueueFull, "")
	checkEqual(r, "outcomes", r.occurrenceOutcomes("nightly"), []string{"skipped", "fired"})
}

func newestOccurrenceRecordsAreKept(r *storeTest) {
	s := r.putSchedule("nightly")
	r.putSchedule("other")
	r.runNextOccurrence("other")
	r.advanceClock(time.Hour)
	var missedTimes []queue.UnixMillis
	for i := range store.MaxOccurrencesPerRequest {
		missedTimes = append(missedTimes, s.NextOccurrenceAt+queue.UnixMillis(i))
	}
	for range 2 {
		s, _ = r.getSchedule("nightly")
		f := occurrencesAt(s)
		f.MissedOccurrences, f.NewLastOccurrenceAt = missedTimes, s.LastOccurrenceAt+1
		r.runOccurrences(f)
	}
	_, runs := r.getSchedule("nightly")
	checkEqual(r, "runs", len(runs), store.MaxRecordsPerSchedule)
	checkEqual(r, "the newest record", runs[0].OccurrenceAt, missedTimes[len(missedTimes)-1])
	checkEqual(r, "records of another schedule", len(r.occurrenceOutcomes("other")), 1)
	s, _ = r.getSchedule("other")
	r.must(r.store.RemoveSchedule(r.Context(), "other", s.Generation, testUID))
	r.putSchedule("other")
	checkEqual(r, "records of a new schedule with the same name", len(r.occurrenceOutcomes("other")), 0)
}

func bootScheduleIsDueAfterBoot(r *storeTest) {
	s := r.putSchedule("boot", func(s *store.Schedule) {
		s.RunsAtBoot, s.LastBootID, s.NextOccurrenceAt, s.NextDueAt = true, "one", 0, 0
	})
	for boot, want := range map[string]int{"one": 0, "another": 1, "two": 1, "": 0} {
		names, next := r.dueSchedules(boot, 9)
		checkEqual(r, "due schedules on boot "+boot, len(names), want)
		checkEqual(r, "next", next, time.Hour)
	}
	f := occurrencesAt(s, r.store.Now())
	f.NewNextOccurrenceAt, f.NewNextDueAt, f.NewLastBootID = 0, 0, "two"
	checkEqual(r, "fired", r.runOccurrences(f).RequestCarriedOut, true)
	checkEqual(r, "fired again", r.runOccurrences(f).RequestCarriedOut, false)
	names, _ := r.dueSchedules("two", 9)
	checkEqual(r, "due schedules on that boot, after the occurrence has run", len(names), 0)
}
