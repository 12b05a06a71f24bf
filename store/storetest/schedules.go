package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var schedulePromises = []promise{
	{name: "a schedule is returned unchanged, and a change must name its current version",
		check: scheduleIsStoredUnchanged},
	{name: "the number of schedules is limited per user", check: schedulesPerUserAreLimited},
	{name: "Schedules returns pages, ordered by name", check: schedulesAreListedInPages},
	{name: "DueSchedules returns the due schedules and when the next one is due", check: dueSchedulesAreReturned},
	{name: "PromoteHints sends a hint for a schedule that is due earlier", check: earlierScheduleSendsHint},
	{name: "an occurrence runs once", check: occurrenceRunsOnce},
	{name: "overlap skip: an occurrence is skipped while the previous job is unfinished", check: overlapSkipSkipsRun},
	{name: "overlap queue: an occurrence waits for the previous job", check: overlapQueueWaitsForPreviousJob},
	{name: "overlap replace: an occurrence cancels a waiting job and returns a leased one", check: overlapReplaceCancels},
	{name: "overlap replace: the previous job stays if the new one is rejected", check: rejectedJobReplacesNothing},
	{name: "jobs of a schedule depend on the jobs that it names", check: scheduledJobsHaveDependencies},
	{name: "occurrences that are caught up run one after another", check: occurrencesRunInSequence},
	{name: "an occurrence in a full queue is recorded as refused", check: fullQueueRefusesOccurrence},
	{name: "an occurrence whose id is in use gets another id", check: occurrenceGetsFreeID},
	{name: "a run that a user requests does not change the schedule", check: requestedRunKeepsSchedule},
	{name: "a paused schedule runs nothing until it is resumed", check: pausedScheduleRunsNothing},
	{name: "the newest MaxOccurrenceRecords records are kept", check: newestRecordsAreKept},
	{name: "an at-boot schedule is due after the next boot", check: bootScheduleIsDueAfterBoot},
	{name: "Disown pauses the former owner's schedules", check: disownPausesSchedules},
}

// putSchedule stores a new schedule to which the functions in set have been applied.
func (r *rig) putSchedule(name string, set ...func(*store.Schedule)) store.Schedule {
	r.Helper()
	now := r.s.Now()
	s := store.Schedule{
		Name: name, UID: testUID, Cron: "* * * * *", TimeZone: "UTC", CatchUp: store.CatchUpNone, Overlap: store.OverlapSkip,
		Spec:  `{"command":"true"}`,
		Draft: draft(), CreatedAt: now, LastAt: now, NextAt: now + 60_000, DueAt: now + 60_000,
	}
	for _, f := range set {
		f(&s)
	}
	stored, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: s, RequestedBy: testUID})
	r.must(err)
	return stored
}

func withOverlap(o store.Overlap) func(*store.Schedule) {
	return func(s *store.Schedule) { s.Overlap = o }
}

// getSchedule returns a schedule and the records of its occurrences (planned starts).
func (r *rig) getSchedule(name string) (store.Schedule, []store.OccurrenceRecord) {
	r.Helper()
	s, runs, err := r.s.Schedule(r.Context(), name)
	r.must(err)
	return s, runs
}

// occurrencesAt returns a request to run the occurrences of a schedule at the given times. The schedule's next
// occurrence is one minute after the last one.
func occurrencesAt(s store.Schedule, plannedTimes ...queue.Millis) store.OccurrenceRequest {
	f := store.OccurrenceRequest{
		Name: s.Name, Generation: s.Generation, ExpectedLastAt: s.LastAt, ExpectedBootID: s.BootID, NextBootID: s.BootID,
		LastAt: s.LastAt, Occurrences: plannedTimes,
		CandidateID: func(plannedTime queue.Millis, n int) string {
			return fmt.Sprintf("%s@%d", s.Name, plannedTime) + strings.Repeat("-", min(1, n-1)) +
				strings.TrimPrefix(fmt.Sprint(n), "1")
		},
	}
	if len(plannedTimes) > 0 {
		f.LastAt = plannedTimes[len(plannedTimes)-1]
	}
	f.NextAt, f.DueAt = f.LastAt+60_000, f.LastAt+60_000
	return f
}

func (r *rig) runOccurrences(request store.OccurrenceRequest) store.OccurrenceResult {
	r.Helper()
	fired, err := r.s.RunOccurrences(r.Context(), request)
	r.must(err)
	return fired
}

// outcomes returns the outcomes of a schedule's recorded occurrences, newest first.
func (r *rig) outcomes(name string) (list []string) {
	r.Helper()
	_, runs := r.getSchedule(name)
	for _, run := range runs {
		list = append(list, string(run.Outcome))
	}
	return list
}

// newScheduleEvents returns the events about schedules since the last call of this function.
func (r *rig) newScheduleEvents() (list []string) {
	r.Helper()
	for _, e := range r.newEvents() {
		if e.Detail.Schedule != "" {
			list = append(list, fmt.Sprintf("%s %s %s", e.Kind, e.Detail.Schedule, e.JobID))
		}
	}
	return list
}

func scheduleIsStoredUnchanged(r *rig) {
	r.newEvents()
	want := r.putSchedule("nightly", func(s *store.Schedule) {
		s.Jitter, s.BootID, s.Draft.Env, s.Draft.Stdin = time.Minute, "b", []string{"A=b"}, "in"
		s.Draft.Labels, s.Draft.Backoff.Jitter, s.Draft.Delay = map[string]string{"a": "b"}, new(float64), time.Second
	})
	got, runs := r.getSchedule("nightly")
	checkEqual(r, "stored", got, want)
	checkEqual(r, "runs", len(runs), 0)
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, RequestedBy: testUID})
	r.wantErrChanged("a second schedule with the same name", err)
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, ReplacedGeneration: want.Generation + 1,
		RequestedBy: testUID})
	r.wantErrChanged("another version", err)
	again := want
	again.Cron, again.UID = "0 0 * * *", 7
	again, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: again, ReplacedGeneration: want.Generation,
		RequestedBy: 7})
	r.must(err)
	if again.Generation == want.Generation {
		r.Error("the new version has the number of the old one")
	}
	got, _ = r.getSchedule("nightly")
	checkEqual(r, "replaced", got, again)
	r.wantErrChanged("removal of the old version", r.s.RemoveSchedule(r.Context(), "nightly", want.Generation, testUID))
	r.must(r.s.RemoveSchedule(r.Context(), "nightly", again.Generation, testUID))
	_, _, err = r.s.Schedule(r.Context(), "nightly")
	r.wantError("a removed schedule", err, queue.CodeNotFound, "")
	r.wantError("a second removal", r.s.RemoveSchedule(r.Context(), "nightly", again.Generation, testUID),
		queue.CodeNotFound, "")
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, ReplacedGeneration: want.Generation,
		RequestedBy: testUID})
	r.wantErrChanged("replacing a schedule that does not exist", err)
	checkEqual(r, "events", r.newScheduleEvents(), []string{"schedule_added nightly ", "schedule_added nightly ",
		"schedule_removed nightly "})
}

// wantErrChanged checks that err is ErrScheduleChanged: another caller has changed the schedule.
func (r *rig) wantErrChanged(subject string, err error) {
	r.Helper()
	if !errors.Is(err, store.ErrScheduleChanged) {
		r.Errorf("%s: got error %v, want %v", subject, err, store.ErrScheduleChanged)
	}
}

func schedulesPerUserAreLimited(r *rig) {
	var lastSchedule store.Schedule
	for i := range store.MaxSchedules {
		lastSchedule = r.putSchedule(fmt.Sprintf("s%04d", i))
	}
	more := lastSchedule
	more.Name = "more"
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: more, RequestedBy: testUID})
	r.wantError("one more schedule", err, queue.CodeQueueFull, "")
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: lastSchedule,
		ReplacedGeneration: lastSchedule.Generation, RequestedBy: testUID})
	r.must(err) // at the limit, an existing schedule can be replaced
	more.UID = 7
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: more, RequestedBy: 7})
	r.must(err)
}

func schedulesAreListedInPages(r *rig) {
	for _, name := range []string{"c", "a", "b", "d"} {
		r.putSchedule(name, func(s *store.Schedule) { s.Draft.Env, s.Draft.Stdin = []string{"A=b"}, "in" })
	}
	list, err := r.s.Schedules(r.Context(), "a", 2)
	r.must(err)
	if len(list) != 2 || list[0].Name != "b" || list[1].Name != "c" {
		r.Fatalf("got schedules %v", list)
	}
	want, _ := r.getSchedule("b")
	want.Draft.Env, want.Draft.Stdin, want.Spec = nil, "", ""
	checkEqual(r, "a listed schedule", list[0], want)
	list, err = r.s.Schedules(r.Context(), "d", 2)
	r.must(err)
	checkEqual(r, "after the last", len(list), 0)
}

// dueSchedules returns the names of the due schedules, and the time until another schedule is due.
func (r *rig) dueSchedules(boot string, limit int) (names []string, next time.Duration) {
	r.Helper()
	list, next, err := r.s.DueSchedules(r.Context(), boot, limit)
	r.must(err)
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names, next
}

func dueSchedulesAreReturned(r *rig) {
	after := func(d time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) { s.NextAt, s.DueAt = s.CreatedAt.Add(d), s.CreatedAt.Add(d) }
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
	r.putSchedule("never", func(s *store.Schedule) { s.NextAt, s.DueAt = 0, 0 })
	r.putSchedule("far", after(9*time.Hour))
	check("before the first is due", 9, time.Minute)
	r.advance(time.Minute)
	check("one is due", 9, time.Minute, "sooner")
	r.advance(time.Minute)
	check("two are due", 9, 18*time.Minute, "sooner", "soon")
	check("two are due, with a limit of one", 1, 0, "sooner")
	s, _ := r.getSchedule("sooner")
	f := occurrencesAt(s)
	f.LastAt, f.NextAt, f.DueAt = s.NextAt, s.NextAt.Add(30*time.Minute), s.NextAt.Add(30*time.Minute)
	r.runOccurrences(f)
	check("after an occurrence has run", 9, 18*time.Minute, "soon")
	r.advance(19 * time.Minute)
	r.putSchedule("of-another", after(time.Minute), func(s *store.Schedule) { s.UID = testUID + 1 })
	r.putSchedule("of-another-2", after(2*time.Minute), func(s *store.Schedule) { s.UID = testUID + 1 })
	r.advance(2 * time.Minute)
	check("users take turns", 3, 0, "soon", "of-another", "late")
	check("all are due", 9, 8*time.Minute, "soon", "of-another", "late", "of-another-2")
}

func earlierScheduleSendsHint(r *rig) {
	r.promote()
	select {
	case <-r.s.PromoteHints():
	default:
	}
	r.putSchedule("soon")
	receive(r, "hint for a schedule", r.s.PromoteHints())
}

func occurrenceRunsOnce(r *rig) {
	s := r.putSchedule("nightly", func(s *store.Schedule) { s.Draft.Priority = 7 })
	r.newEvents()
	r.advance(3 * time.Minute)
	f := occurrencesAt(s, s.NextAt+60_000)
	f.MissedOccurrences = []queue.Millis{s.NextAt}
	fired := r.runOccurrences(f)
	if !fired.CarriedOut || len(fired.Records) != 1 {
		r.Fatalf("got result %+v, want one run", fired)
	}
	j := r.getJob(fired.Records[0].JobID)
	checkEqual(r, "the job", []any{j.ID, j.Seq, j.Schedule, j.Priority, j.UID, j.State},
		[]any{f.CandidateID(f.LastAt, 1), fired.Records[0].JobSeq, "nightly", int64(7), testUID, queue.Pending})
	checkEqual(r, "the same occurrence again", r.runOccurrences(f), store.OccurrenceResult{})
	other := occurrencesAt(s, s.NextAt+120_000)
	checkEqual(r, "another occurrence requested from outdated state", r.runOccurrences(other), store.OccurrenceResult{})
	other.ExpectedLastAt, other.Generation = f.LastAt, s.Generation+1
	checkEqual(r, "an occurrence of another version", r.runOccurrences(other), store.OccurrenceResult{})
	got, runs := r.getSchedule("nightly")
	s.LastAt, s.NextAt, s.DueAt = f.LastAt, f.NextAt, f.DueAt
	checkEqual(r, "schedule", got, s)
	now := r.s.Now()
	checkEqual(r, "records", runs, []store.OccurrenceRecord{
		{OccurrenceAt: f.LastAt, RecordedAt: now, Outcome: store.OutcomeEnqueued, JobSeq: j.Seq, JobID: j.ID},
		{OccurrenceAt: f.MissedOccurrences[0], RecordedAt: now, Outcome: store.OutcomeMissed},
	})
	checkEqual(r, "events", r.newScheduleEvents(), []string{"schedule_missed nightly ", "schedule_fired nightly " + j.ID})
	checkEqual(r, "counts", r.s.Counts().States[queue.Pending], int64(1))
	f.Name = "gone"
	_, err := r.s.RunOccurrences(r.Context(), f)
	r.wantError("an occurrence of an unknown schedule", err, queue.CodeNotFound, "")
}

// runNextOccurrence advances the clock by a minute and runs the next occurrence of a schedule.
func (r *rig) runNextOccurrence(name string) store.OccurrenceResult {
	r.Helper()
	r.advance(time.Minute)
	s, _ := r.getSchedule(name)
	return r.runOccurrences(occurrencesAt(s, s.NextAt))
}

func overlapSkipSkipsRun(r *rig) {
	r.putSchedule("nightly")
	first := r.runNextOccurrence("nightly").Records[0]
	skipped := r.runNextOccurrence("nightly").Records[0]
	checkEqual(r, "while the previous job waits", []any{skipped.Outcome, skipped.Note, skipped.JobSeq},
		[]any{store.OutcomeSkipped, first.JobID, int64(0)})
	r.startJob(r.claimOne())
	checkEqual(r, "while the previous job runs", r.runNextOccurrence("nightly").Records[0].Outcome, store.OutcomeSkipped)
	j := r.getJob(first.JobID)
	r.settle(j, exitOutcome(1))
	checkEqual(r, "while the previous job waits for its retry", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OutcomeSkipped)
	r.advance(time.Minute)
	r.promote()
	r.settle(r.claimOne(), exitOutcome(0))
	checkEqual(r, "after the previous job has ended", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OutcomeEnqueued)
	checkEqual(r, "outcomes", r.outcomes("nightly"), []string{"fired", "skipped", "skipped", "skipped", "fired"})
	checkEqual(r, "jobs ever enqueued", r.s.Counts().EnqueuedTotal, int64(2))
}

func overlapQueueWaitsForPreviousJob(r *rig) {
	r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	var ids []string
	for range 3 {
		ids = append(ids, r.runNextOccurrence("nightly").Records[0].JobID)
	}
	for i, id := range ids {
		checkEqual(r, "blocked jobs after "+id, r.s.Counts().States[queue.Blocked], int64(2-i))
		j := r.claimOne()
		checkEqual(r, "claimed job", j.ID, id)
		checkEqual(r, "jobs claimed at the same time", len(r.claim(9)), 0)
		end := exitOutcome(0)
		if i == 1 {
			end = outcomeOfCause(queue.EndKilled) // the next job starts however this one ends
		}
		r.settle(r.startJob(j), end)
		r.promote()
	}
	checkEqual(r, "after all jobs have ended", r.runNextOccurrence("nightly").Records[0].Outcome, store.OutcomeEnqueued)
	checkEqual(r, "blocked jobs after all jobs have ended", r.s.Counts().States[queue.Blocked], int64(0))
}

func overlapReplaceCancels(r *rig) {
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
		checkEqual(r, "while the previous job is "+what, fired, store.OccurrenceResult{LeasedSeqs: []int64{claimed.Seq}})
		after, now := r.getSchedule("nightly")
		checkEqual(r, "schedule", after, before)
		checkEqual(r, "records", now, runs)
	}
	r.settle(claimed, outcomeOfCause(queue.EndKilled))
	checkEqual(r, "after the previous job has ended", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OutcomeEnqueued)
}

func rejectedJobReplacesNothing(r *rig) {
	keyed := func(retention time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.Draft.Unique, s.Draft.UniqueFor = store.OverlapReplace, s.Name, retention
		}
	}
	r.putSchedule("kept", keyed(time.Hour))
	first := r.runNextOccurrence("kept").Records[0]
	checkEqual(r, "while a waiting job keeps its unique key", r.runNextOccurrence("kept").Records[0].Outcome,
		store.OutcomeRefused)
	checkEqual(r, "state of the previous job", r.getJob(first.JobID).State, queue.Pending)
	fireRequested := func(name string) error {
		s, _ := r.getSchedule(name)
		f := occurrencesAt(s, r.s.Now())
		f.RequestedBy = new(7)
		_, err := r.s.RunOccurrences(r.Context(), f)
		return err
	}
	r.wantCode("requested by a user", fireRequested("kept"), queue.CodeExists)
	checkEqual(r, "state of the previous job after the rejection", r.getJob(first.JobID).State, queue.Pending)
	claimed := r.startJob(r.claimOne())
	fired := r.runNextOccurrence("kept")
	checkEqual(r, "while a running job keeps its unique key", []any{fired.Records[0].Outcome, fired.LeasedSeqs},
		[]any{store.OutcomeRefused, []int64(nil)})
	r.wantCode("requested by a user while the previous job runs", fireRequested("kept"), queue.CodeExists)
	r.settle(claimed, exitOutcome(0))

	r.putSchedule("free", keyed(0))
	second := r.runNextOccurrence("free").Records[0]
	third := r.runNextOccurrence("free").Records[0]
	checkEqual(r, "the replaced job does not keep its unique key", []any{third.Outcome, r.getJob(second.JobID).State},
		[]any{store.OutcomeEnqueued, queue.Cancelled})
	claimed = r.startJob(r.claimOne())
	checkEqual(r, "leased job that must end first", r.runNextOccurrence("free").LeasedSeqs, []int64{claimed.Seq})
	r.enqueueOne()
	s, _ := r.getSchedule("free")
	r.advance(time.Minute)
	f := occurrencesAt(s, s.NextAt)
	f.MaxPending = 1
	fired = r.runOccurrences(f)
	checkEqual(r, "in a full queue while the previous job runs", []any{fired.Records[0].Outcome, fired.LeasedSeqs},
		[]any{store.OutcomeRefused, []int64(nil)})
	checkEqual(r, "state of the running job", r.getJob(claimed.ID).State, queue.Processing)
	checkEqual(r, "outcomes", r.outcomes("free"), []string{"refused", "fired", "fired"})
	r.checkCounts()
}

func scheduledJobsHaveDependencies(r *rig) {
	parent := r.enqueueOne(withID("parent"), withDelay(time.Hour))
	waits := func(id string) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.Draft.DependsOn = store.OverlapQueue, []queue.Dependency{{ID: id, Condition: queue.ParentCompleted}}
		}
	}
	stored := r.putSchedule("after", waits("parent"))
	kept, _ := r.getSchedule("after")
	checkEqual(r, "the stored schedule", kept, stored)
	wrong := stored
	wrong.Name = "unknown"
	waits("unknown")(&wrong)
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: wrong, RequestedBy: testUID})
	r.wantCode("a schedule that depends on an unknown job", err, queue.CodeInvalid)
	first, second := r.runNextOccurrence("after").Records[0], r.runNextOccurrence("after").Records[0]
	for _, run := range []store.OccurrenceRecord{first, second} {
		checkEqual(r, "state of a job that depends on the parent", r.getJob(run.JobID).State, queue.Blocked)
	}
	r.must(r.s.Change(r.Context(), parent.Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
	r.promote()
	for _, run := range []store.OccurrenceRecord{first, second} {
		checkEqual(r, "state and reason after the parent was removed",
			[]any{r.getJob(run.JobID).State, r.getJob(run.JobID).Reason},
			[]any{queue.Cancelled, queue.ReasonDependency})
	}
	checkEqual(r, "an occurrence that depends on a removed job", r.runNextOccurrence("after").Records[0].Outcome,
		store.OutcomeRefused)
	r.checkCounts()
}

func occurrencesRunInSequence(r *rig) {
	s := r.putSchedule("nightly", func(s *store.Schedule) { s.CatchUp = store.CatchUpAll })
	r.advance(4 * time.Minute)
	fired := r.runOccurrences(occurrencesAt(s, s.NextAt, s.NextAt+60_000, s.NextAt+120_000))
	for i, run := range fired.Records {
		checkEqual(r, "outcome", run.Outcome, store.OutcomeEnqueued)
		j := r.claimOne()
		checkEqual(r, "claimed job", j.ID, run.JobID)
		checkEqual(r, fmt.Sprintf("jobs claimed while job %d is leased", i), len(r.claim(9)), 0)
		r.settle(r.startJob(j), exitOutcome(0))
		r.promote()
	}
	r.runNextOccurrence("nightly") // the job of this occurrence does not end
	s, _ = r.getSchedule("nightly")
	r.advance(2 * time.Minute)
	for _, run := range r.runOccurrences(occurrencesAt(s, s.NextAt, s.NextAt+60_000)).Records {
		checkEqual(r, "outcome while an earlier job is unfinished", run.Outcome, store.OutcomeSkipped)
	}
}

func fullQueueRefusesOccurrence(r *rig) {
	s := r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	r.enqueueOne()
	r.advance(time.Minute)
	f := occurrencesAt(s, s.NextAt)
	f.MaxPending = 1
	run := r.runOccurrences(f).Records[0]
	if run.Outcome != store.OutcomeRefused || run.Note == "" || run.JobSeq != 0 {
		r.Errorf("record of an occurrence in a full queue: %+v", run)
	}
	s, _ = r.getSchedule("nightly")
	checkEqual(r, "time of the next occurrence", s.NextAt, f.NextAt)
	f = occurrencesAt(s, s.NextAt)
	f.MaxPendingPerUser = 1
	checkEqual(r, "with a full quota", r.runOccurrences(f).Records[0].Outcome, store.OutcomeRefused)
	checkEqual(r, "jobs ever enqueued", r.s.Counts().EnqueuedTotal, int64(1))
	r.checkCounts()
}

func occurrenceGetsFreeID(r *rig) {
	s := r.putSchedule("nightly", withOverlap(store.OverlapQueue))
	f := occurrencesAt(s, s.NextAt)
	r.enqueueOne(withID(f.CandidateID(s.NextAt, 1)))
	r.advance(time.Minute)
	checkEqual(r, "id of the job", r.runOccurrences(f).Records[0].JobID, f.CandidateID(f.LastAt, 2))
}

func requestedRunKeepsSchedule(r *rig) {
	s := r.putSchedule("nightly")
	uid := 7
	now := r.s.Now()
	f := occurrencesAt(s, now)
	f.RequestedBy, f.ExpectedLastAt, f.LastAt, f.NextAt, f.DueAt = &uid, 5, 6, 7, 8
	fired := r.runOccurrences(f)
	got, runs := r.getSchedule("nightly")
	checkEqual(r, "schedule", got, s)
	checkEqual(r, "records", runs, []store.OccurrenceRecord{{OccurrenceAt: now, RecordedAt: now,
		Outcome: store.OutcomeEnqueued, JobSeq: fired.Records[0].JobSeq, JobID: fired.Records[0].JobID,
		RequestedBy: &uid}})
	_, err := r.s.RunOccurrences(r.Context(), f)
	r.wantError("another request while the first job is unfinished", err, queue.CodeWrongState, "")
	checkEqual(r, "occurrence while a requested job is unfinished", r.runNextOccurrence("nightly").Records[0].Outcome,
		store.OutcomeSkipped)
	r.settle(r.claimOne(), exitOutcome(0))
	f.MaxPending = 1
	r.enqueueOne()
	_, err = r.s.RunOccurrences(r.Context(), f)
	r.wantError("a request with a full queue", err, queue.CodeQueueFull, "")
	checkEqual(r, "outcomes", r.outcomes("nightly"), []string{"skipped", "fired"})
}

func pausedScheduleRunsNothing(r *rig) {
	s := r.putSchedule("nightly")
	r.newEvents()
	uid := 7
	pause := store.SchedulePause{Name: "nightly", Generation: s.Generation, RequestedBy: &uid, Note: "why", Pause: true}
	for range 2 { // the second call changes nothing
		r.must(r.s.PauseSchedule(r.Context(), pause))
	}
	got, _ := r.getSchedule("nightly")
	want := s
	want.PausedAt, want.PausedBy, want.Note, want.NextAt, want.DueAt = r.s.Now(), &uid, "why", 0, 0
	checkEqual(r, "paused", got, want)
	r.advance(5 * time.Minute)
	checkEqual(r, "occurrence while the schedule is paused", r.runOccurrences(occurrencesAt(s, s.NextAt)),
		store.OccurrenceResult{})
	names, next := r.dueSchedules("other", 9)
	checkEqual(r, "due schedules while it is paused", len(names), 0)
	checkEqual(r, "next while it is paused", next, time.Hour)
	now := r.s.Now()
	resume := store.SchedulePause{Name: "nightly", Generation: s.Generation, RequestedBy: &uid, LastAt: now, NextAt: now +
		60_000,
		DueAt: now + 61_000, BootID: "b"}
	for range 2 {
		r.must(r.s.PauseSchedule(r.Context(), resume))
	}
	got, _ = r.getSchedule("nightly")
	want = s
	want.LastAt, want.NextAt, want.DueAt, want.BootID = now, now+60_000, now+61_000, "b"
	checkEqual(r, "resumed", got, want)
	checkEqual(r, "events", r.newScheduleEvents(), []string{"schedule_paused nightly ", "schedule_resumed nightly "})
	pause.Generation++
	r.wantErrChanged("another version", r.s.PauseSchedule(r.Context(), pause))
	pause.Name = "gone"
	r.wantError("no schedule", r.s.PauseSchedule(r.Context(), pause), queue.CodeNotFound, "")
}

func newestRecordsAreKept(r *rig) {
	s := r.putSchedule("nightly")
	r.putSchedule("other")
	r.runNextOccurrence("other")
	r.advance(time.Hour)
	var missedTimes []queue.Millis
	for i := range store.MaxOccurrences {
		missedTimes = append(missedTimes, s.NextAt+queue.Millis(i))
	}
	for range 2 {
		s, _ = r.getSchedule("nightly")
		f := occurrencesAt(s)
		f.MissedOccurrences, f.LastAt = missedTimes, s.LastAt+1
		r.runOccurrences(f)
	}
	_, runs := r.getSchedule("nightly")
	checkEqual(r, "runs", len(runs), store.MaxOccurrenceRecords)
	checkEqual(r, "the newest record", runs[0].OccurrenceAt, missedTimes[len(missedTimes)-1])
	checkEqual(r, "records of another schedule", len(r.outcomes("other")), 1)
	s, _ = r.getSchedule("other")
	r.must(r.s.RemoveSchedule(r.Context(), "other", s.Generation, testUID))
	r.putSchedule("other")
	checkEqual(r, "records of a new schedule with the same name", len(r.outcomes("other")), 0)
}

func bootScheduleIsDueAfterBoot(r *rig) {
	s := r.putSchedule("boot", func(s *store.Schedule) { s.AtBoot, s.BootID, s.NextAt, s.DueAt = true, "one", 0, 0 })
	for boot, want := range map[string]int{"one": 0, "another": 1, "two": 1, "": 0} {
		names, next := r.dueSchedules(boot, 9)
		checkEqual(r, "due schedules on boot "+boot, len(names), want)
		checkEqual(r, "next", next, time.Hour)
	}
	f := occurrencesAt(s, r.s.Now())
	f.NextAt, f.DueAt, f.NextBootID = 0, 0, "two"
	checkEqual(r, "fired", r.runOccurrences(f).CarriedOut, true)
	checkEqual(r, "fired again", r.runOccurrences(f).CarriedOut, false)
	names, _ := r.dueSchedules("two", 9)
	checkEqual(r, "due schedules on that boot, after the occurrence has run", len(names), 0)
}
