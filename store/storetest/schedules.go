package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var scheduling = []promise{
	{name: "a schedule is kept as it was stored, and replaced by its number alone", keep: schedulesKept},
	{name: "a user has so many schedules at most", keep: schedulesBounded},
	{name: "schedules are listed by name in pages", keep: schedulesListed},
	{name: "schedules that are due are told, and when the next one is", keep: schedulesDue},
	{name: "the alarm rings for a schedule that is due earlier", keep: scheduleAlarm},
	{name: "an instant is carried out once", keep: firedOnce},
	{name: "an instant beside a job that has not ended is skipped", keep: firedSkips},
	{name: "an instant beside a job that has not ended waits for it", keep: firedQueues},
	{name: "an instant replaces what waits, and names what runs", keep: firedReplaces},
	{name: "what would be replaced stays if the new job is refused", keep: firedReplacesNothing},
	{name: "jobs of a schedule wait for those that it names", keep: firedWaits},
	{name: "instants that are caught up come one after another", keep: firedInARow},
	{name: "an instant without room is recorded as refused", keep: firedRefused},
	{name: "an instant whose id is taken gets another one", keep: firedTaken},
	{name: "an instant that a person asks for is beside all others", keep: firedByHand},
	{name: "a paused schedule fires nothing until it goes on", keep: schedulePaused},
	{name: "the newest hundred runs are kept", keep: runsBounded},
	{name: "a schedule of a boot is due on another one", keep: scheduleAtBoot},
	{name: "a former owner's schedules are paused", keep: schedulesDisowned},
}

// plan stores a schedule after applying set to it.
func (r *rig) plan(name string, set ...func(*store.Schedule)) store.Schedule {
	r.Helper()
	now := r.s.Now()
	s := store.Schedule{
		Name: name, UID: asker, Cron: "* * * * *", Zone: "UTC", CatchUp: store.CatchUpNone, Overlap: store.OverlapSkip, Spec: `{"command":"true"}`,
		Draft: draft(), CreatedAt: now, LastAt: now, NextAt: now + 60_000, DueAt: now + 60_000,
	}
	for _, f := range set {
		f(&s)
	}
	stored, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: s, By: asker})
	r.must(err)
	return stored
}

func overlap(o store.Overlap) func(*store.Schedule) {
	return func(s *store.Schedule) { s.Overlap = o }
}

// planned reads a schedule and its records.
func (r *rig) planned(name string) (store.Schedule, []store.ScheduleRun) {
	r.Helper()
	s, runs, err := r.s.Schedule(r.Context(), name)
	r.must(err)
	return s, runs
}

// firing returns a Firing of a schedule that runs occurrences at the given times. The next occurrence is a
// minute later.
func firing(s store.Schedule, at ...queue.Millis) store.Firing {
	f := store.Firing{
		Name: s.Name, Gen: s.Gen, Last: s.LastAt, Boot: s.Boot, NextBoot: s.Boot, LastAt: s.LastAt, Runs: at,
		IDs: func(at queue.Millis, n int) string {
			return fmt.Sprintf("%s@%d", s.Name, at) + strings.Repeat("-", min(1, n-1)) + strings.TrimPrefix(fmt.Sprint(n), "1")
		},
	}
	if len(at) > 0 {
		f.LastAt = at[len(at)-1]
	}
	f.NextAt, f.DueAt = f.LastAt+60_000, f.LastAt+60_000
	return f
}

func (r *rig) fire(f store.Firing) store.Fired {
	r.Helper()
	fired, err := r.s.Fire(r.Context(), f)
	r.must(err)
	return fired
}

// outcomes returns the outcomes of a schedule's records, newest first.
func (r *rig) outcomes(name string) (list []string) {
	r.Helper()
	_, runs := r.planned(name)
	for _, run := range runs {
		list = append(list, string(run.Outcome))
	}
	return list
}

// toldOf returns the events about schedules since the last call.
func (r *rig) toldOf() (list []string) {
	r.Helper()
	for _, e := range r.news() {
		if e.Detail.Schedule != "" {
			list = append(list, fmt.Sprintf("%s %s %s", e.Kind, e.Detail.Schedule, e.ID))
		}
	}
	return list
}

func schedulesKept(r *rig) {
	r.news()
	want := r.plan("nightly", func(s *store.Schedule) {
		s.Jitter, s.Boot, s.Draft.Env, s.Draft.Stdin = time.Minute, "b", []string{"A=b"}, "in"
		s.Draft.Labels, s.Draft.Backoff.Jitter, s.Draft.Delay = map[string]string{"a": "b"}, new(float64), time.Second
	})
	got, runs := r.planned("nightly")
	same(r, "stored", got, want)
	same(r, "runs", len(runs), 0)
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, By: asker})
	r.changed("a second one", err)
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, Replaces: want.Gen + 1, By: asker})
	r.changed("another gen", err)
	again := want
	again.Cron, again.UID = "0 0 * * *", 7
	again, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: again, Replaces: want.Gen, By: 7})
	r.must(err)
	if again.Gen == want.Gen {
		r.Error("the new one has the old one's number")
	}
	got, _ = r.planned("nightly")
	same(r, "replaced", got, again)
	r.changed("removal of the old one", r.s.RemoveSchedule(r.Context(), "nightly", want.Gen, asker))
	r.must(r.s.RemoveSchedule(r.Context(), "nightly", again.Gen, asker))
	_, _, err = r.s.Schedule(r.Context(), "nightly")
	r.refused("a removed one", err, queue.CodeNotFound, "")
	r.refused("a second removal", r.s.RemoveSchedule(r.Context(), "nightly", again.Gen, asker), queue.CodeNotFound, "")
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: want, Replaces: want.Gen, By: asker})
	r.changed("one in the place of none", err)
	same(r, "events", r.toldOf(), []string{"schedule_added nightly ", "schedule_added nightly ", "schedule_removed nightly "})
}

// changed checks that err is ErrChanged.
func (r *rig) changed(what string, err error) {
	r.Helper()
	if !errors.Is(err, store.ErrChanged) {
		r.Errorf("%s: got error %v, want %v", what, err, store.ErrChanged)
	}
}

func schedulesBounded(r *rig) {
	var last store.Schedule
	for i := range store.MaxSchedules {
		last = r.plan(fmt.Sprintf("s%04d", i))
	}
	more := last
	more.Name = "more"
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: more, By: asker})
	r.refused("one more", err, queue.CodeFull, "")
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: last, Replaces: last.Gen, By: asker})
	r.must(err) // it replaces an existing schedule
	more.UID = 7
	_, err = r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: more, By: 7})
	r.must(err)
}

func schedulesListed(r *rig) {
	for _, name := range []string{"c", "a", "b", "d"} {
		r.plan(name, func(s *store.Schedule) { s.Draft.Env, s.Draft.Stdin = []string{"A=b"}, "in" })
	}
	list, err := r.s.Schedules(r.Context(), "a", 2)
	r.must(err)
	if len(list) != 2 || list[0].Name != "b" || list[1].Name != "c" {
		r.Fatalf("got %v", list)
	}
	want, _ := r.planned("b")
	want.Draft.Env, want.Draft.Stdin, want.Spec = nil, "", ""
	same(r, "a listed one", list[0], want)
	list, err = r.s.Schedules(r.Context(), "d", 2)
	r.must(err)
	same(r, "after the last", len(list), 0)
}

// dueNow returns the names of the due schedules, and the time until another one is due.
func (r *rig) dueNow(boot string, limit int) (names []string, next time.Duration) {
	r.Helper()
	list, next, err := r.s.DueSchedules(r.Context(), boot, limit)
	r.must(err)
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names, next
}

func schedulesDue(r *rig) {
	after := func(d time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) { s.NextAt, s.DueAt = s.CreatedAt.Add(d), s.CreatedAt.Add(d) }
	}
	check := func(what string, limit int, wantNext time.Duration, want ...string) {
		r.Helper()
		names, next := r.dueNow("", limit)
		same(r, what, names, want)
		same(r, what+", next", next, wantNext)
	}
	check("without any", 9, time.Hour)
	r.plan("late", after(20*time.Minute))
	r.plan("soon", after(2*time.Minute))
	r.plan("sooner", after(time.Minute))
	r.plan("never", func(s *store.Schedule) { s.NextAt, s.DueAt = 0, 0 })
	r.plan("far", after(9*time.Hour))
	check("before", 9, time.Minute)
	r.advance(time.Minute)
	check("one", 9, time.Minute, "sooner")
	r.advance(time.Minute)
	check("two", 9, 18*time.Minute, "sooner", "soon")
	check("one of two", 1, 0, "sooner")
	s, _ := r.planned("sooner")
	f := firing(s)
	f.LastAt, f.NextAt, f.DueAt = s.NextAt, s.NextAt.Add(30*time.Minute), s.NextAt.Add(30*time.Minute)
	r.fire(f)
	check("after it was carried out", 9, 18*time.Minute, "soon")
	r.advance(19 * time.Minute)
	r.plan("of another", after(time.Minute), func(s *store.Schedule) { s.UID = asker + 1 })
	r.plan("of another, too", after(2*time.Minute), func(s *store.Schedule) { s.UID = asker + 1 })
	r.advance(2 * time.Minute)
	check("users take turns", 3, 0, "soon", "of another", "late")
	check("all of them", 9, 8*time.Minute, "soon", "of another", "late", "of another, too")
}

func scheduleAlarm(r *rig) {
	r.promote()
	select {
	case <-r.s.DueSooner():
	default:
	}
	r.plan("soon")
	within(r, "alarm of a schedule", r.s.DueSooner())
}

func firedOnce(r *rig) {
	s := r.plan("nightly", func(s *store.Schedule) { s.Draft.Priority = 7 })
	r.news()
	r.advance(3 * time.Minute)
	f := firing(s, s.NextAt+60_000)
	f.Missed = []queue.Millis{s.NextAt}
	fired := r.fire(f)
	if !fired.Done || len(fired.Runs) != 1 {
		r.Fatalf("got %+v", fired)
	}
	j := r.get(fired.Runs[0].ID)
	same(r, "the job", []any{j.ID, j.Seq, j.Schedule, j.Priority, j.UID, j.State}, []any{f.IDs(f.LastAt, 1), fired.Runs[0].Job, "nightly", int64(7), asker, queue.Pending})
	same(r, "again", r.fire(f), store.Fired{})
	other := firing(s, s.NextAt+120_000)
	same(r, "another instant of the old state", r.fire(other), store.Fired{})
	other.Last, other.Gen = f.LastAt, s.Gen+1
	same(r, "another definition", r.fire(other), store.Fired{})
	got, runs := r.planned("nightly")
	s.LastAt, s.NextAt, s.DueAt = f.LastAt, f.NextAt, f.DueAt
	same(r, "the schedule", got, s)
	now := r.s.Now()
	same(r, "the runs", runs, []store.ScheduleRun{
		{Instant: f.LastAt, At: now, Outcome: store.OutcomeFired, Job: j.Seq, ID: j.ID}, {Instant: f.Missed[0], At: now, Outcome: store.OutcomeMissed},
	})
	same(r, "events", r.toldOf(), []string{"schedule_missed nightly ", "schedule_fired nightly " + j.ID})
	same(r, "counts", r.s.Counts().States[queue.Pending], int64(1))
	f.Name = "gone"
	_, err := r.s.Fire(r.Context(), f)
	r.refused("without a schedule", err, queue.CodeNotFound, "")
}

// next fires the next occurrence of a schedule.
func (r *rig) next(name string) store.Fired {
	r.Helper()
	r.advance(time.Minute)
	s, _ := r.planned(name)
	return r.fire(firing(s, s.NextAt))
}

func firedSkips(r *rig) {
	r.plan("nightly")
	first := r.next("nightly").Runs[0]
	skipped := r.next("nightly").Runs[0]
	same(r, "beside one that waits", []any{skipped.Outcome, skipped.Note, skipped.Job}, []any{store.OutcomeSkipped, first.ID, int64(0)})
	r.start(r.claimOne())
	same(r, "beside one that runs", r.next("nightly").Runs[0].Outcome, store.OutcomeSkipped)
	j := r.get(first.ID)
	r.end(j, exit(1))
	same(r, "beside one that failed", r.next("nightly").Runs[0].Outcome, store.OutcomeSkipped)
	r.advance(time.Minute)
	r.promote()
	r.end(r.claimOne(), exit(0))
	same(r, "after its end", r.next("nightly").Runs[0].Outcome, store.OutcomeFired)
	same(r, "all", r.outcomes("nightly"), []string{"fired", "skipped", "skipped", "skipped", "fired"})
	same(r, "jobs ever", r.s.Counts().Enqueued, int64(2))
}

func firedQueues(r *rig) {
	r.plan("nightly", overlap(store.OverlapQueue))
	var ids []string
	for range 3 {
		ids = append(ids, r.next("nightly").Runs[0].ID)
	}
	for i, id := range ids {
		same(r, "blocked behind "+id, r.s.Counts().States[queue.Blocked], int64(2-i))
		j := r.claimOne()
		same(r, "the next", j.ID, id)
		same(r, "beside it", len(r.claim(9)), 0)
		end := exit(0)
		if i == 1 {
			end = ended(queue.Killed) // the outcome does not matter
		}
		r.end(r.start(j), end)
		r.promote()
	}
	same(r, "after all", r.next("nightly").Runs[0].Outcome, store.OutcomeFired)
	same(r, "blocked after all", r.s.Counts().States[queue.Blocked], int64(0))
}

func firedReplaces(r *rig) {
	r.plan("nightly", overlap(store.OverlapReplace))
	first := r.next("nightly").Runs[0]
	second := r.next("nightly").Runs[0]
	j := r.get(first.ID)
	same(r, "the first", []any{j.State, j.Reason}, []any{queue.Cancelled, queue.ReasonReplaced})
	claimed := r.claimOne()
	same(r, "the second", claimed.ID, second.ID)
	for _, what := range []string{"reserved", "running"} {
		if what == "running" {
			claimed = r.start(claimed)
		}
		before, runs := r.planned("nightly")
		fired := r.next("nightly")
		same(r, "beside one that is "+what, fired, store.Fired{Leased: []int64{claimed.Seq}})
		after, now := r.planned("nightly")
		same(r, "the schedule", after, before)
		same(r, "its runs", now, runs)
	}
	r.end(claimed, ended(queue.Killed))
	same(r, "after its end", r.next("nightly").Runs[0].Outcome, store.OutcomeFired)
}

func firedReplacesNothing(r *rig) {
	keyed := func(keeps time.Duration) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.Draft.Unique, s.Draft.UniqueFor = store.OverlapReplace, s.Name, keeps
		}
	}
	r.plan("kept", keyed(time.Hour))
	first := r.next("kept").Runs[0]
	same(r, "beside one that waits and keeps its key", r.next("kept").Runs[0].Outcome, store.OutcomeRefused)
	same(r, "that one", r.get(first.ID).State, queue.Pending)
	byHand := func(name string) error {
		s, _ := r.planned(name)
		f := firing(s, r.s.Now())
		f.By = new(7)
		_, err := r.s.Fire(r.Context(), f)
		return err
	}
	r.refusedCode("by hand", byHand("kept"), queue.CodeExists)
	same(r, "that one, still", r.get(first.ID).State, queue.Pending)
	claimed := r.start(r.claimOne())
	fired := r.next("kept")
	same(r, "beside one that runs and keeps its key", []any{fired.Runs[0].Outcome, fired.Leased}, []any{store.OutcomeRefused, []int64(nil)})
	r.refusedCode("by hand, beside one that runs", byHand("kept"), queue.CodeExists)
	r.end(claimed, exit(0))

	r.plan("free", keyed(0))
	second := r.next("free").Runs[0]
	third := r.next("free").Runs[0]
	same(r, "its key is free then", []any{third.Outcome, r.get(second.ID).State}, []any{store.OutcomeFired, queue.Cancelled})
	claimed = r.start(r.claimOne())
	same(r, "it is to be ended first", r.next("free").Leased, []int64{claimed.Seq})
	r.one()
	s, _ := r.planned("free")
	r.advance(time.Minute)
	f := firing(s, s.NextAt)
	f.MaxPending = 1
	fired = r.fire(f)
	same(r, "without room beside one that runs", []any{fired.Runs[0].Outcome, fired.Leased}, []any{store.OutcomeRefused, []int64(nil)})
	same(r, "that one", r.get(claimed.ID).State, queue.Processing)
	same(r, "all", r.outcomes("free"), []string{"refused", "fired", "fired"})
	r.counted()
}

func firedWaits(r *rig) {
	parent := r.one(named("parent"), delay(time.Hour))
	waits := func(id string) func(*store.Schedule) {
		return func(s *store.Schedule) {
			s.Overlap, s.Draft.After = store.OverlapQueue, []queue.Dependency{{ID: id, How: queue.ParentCompleted}}
		}
	}
	stored := r.plan("after", waits("parent"))
	kept, _ := r.planned("after")
	same(r, "it is kept as it was stored", kept, stored)
	nobody := stored
	nobody.Name = "nobody"
	waits("nobody")(&nobody)
	_, err := r.s.PutSchedule(r.Context(), store.SchedulePut{Schedule: nobody, By: asker})
	r.refusedCode("of a job that is not there", err, queue.CodeInvalid)
	first, second := r.next("after").Runs[0], r.next("after").Runs[0]
	for _, run := range []store.ScheduleRun{first, second} {
		same(r, "what waits for it", r.get(run.ID).State, queue.Blocked)
	}
	r.must(r.s.Change(r.Context(), parent.Seq, store.Change{Verb: queue.VerbRemove, UID: asker}))
	r.promote()
	for _, run := range []store.ScheduleRun{first, second} {
		same(r, "without it", []any{r.get(run.ID).State, r.get(run.ID).Reason}, []any{queue.Cancelled, queue.ReasonDependency})
	}
	same(r, "it is not there any more", r.next("after").Runs[0].Outcome, store.OutcomeRefused)
	r.counted()
}

func firedInARow(r *rig) {
	s := r.plan("nightly", func(s *store.Schedule) { s.CatchUp = store.CatchUpAll })
	r.advance(4 * time.Minute)
	fired := r.fire(firing(s, s.NextAt, s.NextAt+60_000, s.NextAt+120_000))
	for i, run := range fired.Runs {
		same(r, "outcome", run.Outcome, store.OutcomeFired)
		j := r.claimOne()
		same(r, "the next", j.ID, run.ID)
		same(r, fmt.Sprintf("beside the %dth", i), len(r.claim(9)), 0)
		r.end(r.start(j), exit(0))
		r.promote()
	}
	r.next("nightly") // this job stays unfinished
	s, _ = r.planned("nightly")
	r.advance(2 * time.Minute)
	for _, run := range r.fire(firing(s, s.NextAt, s.NextAt+60_000)).Runs {
		same(r, "beside an earlier one", run.Outcome, store.OutcomeSkipped)
	}
}

func firedRefused(r *rig) {
	s := r.plan("nightly", overlap(store.OverlapQueue))
	r.one()
	r.advance(time.Minute)
	f := firing(s, s.NextAt)
	f.MaxPending = 1
	run := r.fire(f).Runs[0]
	if run.Outcome != store.OutcomeRefused || run.Note == "" || run.Job != 0 {
		r.Errorf("with a full queue: %+v", run)
	}
	s, _ = r.planned("nightly")
	same(r, "the next", s.NextAt, f.NextAt)
	f = firing(s, s.NextAt)
	f.MaxPendingUser = 1
	same(r, "with a full quota", r.fire(f).Runs[0].Outcome, store.OutcomeRefused)
	same(r, "jobs ever", r.s.Counts().Enqueued, int64(1))
	r.counted()
}

func firedTaken(r *rig) {
	s := r.plan("nightly", overlap(store.OverlapQueue))
	f := firing(s, s.NextAt)
	r.one(named(f.IDs(s.NextAt, 1)))
	r.advance(time.Minute)
	same(r, "the id", r.fire(f).Runs[0].ID, f.IDs(f.LastAt, 2))
}

func firedByHand(r *rig) {
	s := r.plan("nightly")
	by := 7
	now := r.s.Now()
	f := firing(s, now)
	f.By, f.Last, f.LastAt, f.NextAt, f.DueAt = &by, 5, 6, 7, 8
	fired := r.fire(f)
	got, runs := r.planned("nightly")
	same(r, "the schedule", got, s)
	same(r, "its runs", runs, []store.ScheduleRun{{Instant: now, At: now, Outcome: store.OutcomeFired, Job: fired.Runs[0].Job, ID: fired.Runs[0].ID, By: &by}})
	_, err := r.s.Fire(r.Context(), f)
	r.refused("beside it", err, queue.CodeWrongState, "")
	same(r, "the time comes beside it", r.next("nightly").Runs[0].Outcome, store.OutcomeSkipped)
	r.end(r.claimOne(), exit(0))
	f.MaxPending = 1
	r.one()
	_, err = r.s.Fire(r.Context(), f)
	r.refused("without room", err, queue.CodeFull, "")
	same(r, "all", r.outcomes("nightly"), []string{"skipped", "fired"})
}

func schedulePaused(r *rig) {
	s := r.plan("nightly")
	r.news()
	by := 7
	pause := store.Pausing{Name: "nightly", Gen: s.Gen, By: &by, Note: "why", Pause: true}
	for range 2 { // the second call changes nothing
		r.must(r.s.PauseSchedule(r.Context(), pause))
	}
	got, _ := r.planned("nightly")
	want := s
	want.PausedAt, want.PausedBy, want.Note, want.NextAt, want.DueAt = r.s.Now(), &by, "why", 0, 0
	same(r, "paused", got, want)
	r.advance(5 * time.Minute)
	same(r, "while it is paused", r.fire(firing(s, s.NextAt)), store.Fired{})
	names, next := r.dueNow("other", 9)
	same(r, "due while it is paused", len(names), 0)
	same(r, "next while it is paused", next, time.Hour)
	now := r.s.Now()
	resume := store.Pausing{Name: "nightly", Gen: s.Gen, By: &by, LastAt: now, NextAt: now + 60_000, DueAt: now + 61_000, Boot: "b"}
	for range 2 {
		r.must(r.s.PauseSchedule(r.Context(), resume))
	}
	got, _ = r.planned("nightly")
	want = s
	want.LastAt, want.NextAt, want.DueAt, want.Boot = now, now+60_000, now+61_000, "b"
	same(r, "resumed", got, want)
	same(r, "events", r.toldOf(), []string{"schedule_paused nightly ", "schedule_resumed nightly "})
	pause.Gen++
	r.changed("another gen", r.s.PauseSchedule(r.Context(), pause))
	pause.Name = "gone"
	r.refused("no schedule", r.s.PauseSchedule(r.Context(), pause), queue.CodeNotFound, "")
}

func runsBounded(r *rig) {
	s := r.plan("nightly")
	r.plan("other")
	r.next("other")
	r.advance(time.Hour)
	var missed []queue.Millis
	for i := range store.MaxFired {
		missed = append(missed, s.NextAt+queue.Millis(i))
	}
	for range 2 {
		s, _ = r.planned("nightly")
		f := firing(s)
		f.Missed, f.LastAt = missed, s.LastAt+1
		r.fire(f)
	}
	_, runs := r.planned("nightly")
	same(r, "runs", len(runs), store.MaxScheduleRuns)
	same(r, "the newest", runs[0].Instant, missed[len(missed)-1])
	same(r, "those of another", len(r.outcomes("other")), 1)
	s, _ = r.planned("other")
	r.must(r.s.RemoveSchedule(r.Context(), "other", s.Gen, asker))
	r.plan("other")
	same(r, "of a new one of a name", len(r.outcomes("other")), 0)
}

func scheduleAtBoot(r *rig) {
	s := r.plan("boot", func(s *store.Schedule) { s.AtBoot, s.Boot, s.NextAt, s.DueAt = true, "one", 0, 0 })
	for boot, want := range map[string]int{"one": 0, "another": 1, "two": 1, "": 0} {
		names, next := r.dueNow(boot, 9)
		same(r, "on boot "+boot, len(names), want)
		same(r, "next", next, time.Hour)
	}
	f := firing(s, r.s.Now())
	f.NextAt, f.DueAt, f.NextBoot = 0, 0, "two"
	same(r, "fired", r.fire(f).Done, true)
	same(r, "again", r.fire(f).Done, false)
	names, _ := r.dueNow("two", 9)
	same(r, "on that boot", len(names), 0)
}

func schedulesDisowned(r *rig) {
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: asker, Owner: "ann"})
	r.must(err)
	s := r.plan("nightly")
	r.plan("theirs", func(s *store.Schedule) { s.UID = 7 })
	for more := true; more; {
		more, err = r.s.Disown(context.WithoutCancel(r.Context()), asker, "ann")
		r.must(err)
	}
	got, _ := r.planned("nightly")
	if got.UID >= 0 || got.PausedAt == 0 || got.DueAt != 0 || got.Note != store.DisownedNote {
		r.Errorf("got %+v", got)
	}
	r.advance(time.Minute)
	f := firing(s, s.NextAt)
	same(r, "it fires", r.fire(f), store.Fired{})
	f.By = new(int)
	same(r, "it is run by hand", r.fire(f), store.Fired{})
	same(r, "another's", r.next("theirs").Runs[0].Outcome, store.OutcomeFired)
}
