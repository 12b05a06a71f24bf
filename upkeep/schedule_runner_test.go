package upkeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/store/storetest/faultstore"
)

// parseMarchTime parses a time in March that is written as day of the month and time of day, such as 1 12:00:00.000.
func parseMarchTime(text string) queue.UnixMillis {
	t, err := time.Parse("2 15:04:05.000", text)
	if err != nil {
		panic(err)
	}
	return queue.UnixMillisOf(t.AddDate(2026, 2, 0))
}

// formatMarchTimes formats times in the format that parseMarchTime parses.
func formatMarchTimes(times []queue.UnixMillis) string {
	var texts []string
	for _, m := range times {
		texts = append(texts, strings.TrimSuffix(m.Time().Format("2 15:04:05.000"), ".000"))
	}
	return strings.Join(texts, ", ")
}

// An occurrence (a planned start) creates a job if it is less than a minute late. If several occurrences are
// due, only the newest creates a job, and the others count as missed. The catch-up setting decides whether
// missed occurrences create jobs.
func TestPlanOccurrencesRunsNewestUnlessLate(t *testing.T) {
	none, one, all := store.CatchUpNone, store.CatchUpOne, store.CatchUpAll
	for _, c := range []struct {
		name, cron, last, now string
		catchUp               store.CatchUpPolicy
		runs, missed, next    string
	}{
		{"in time", "0 3 * * *", "1 12:00:00.000", "2 03:00:00.000", none, "2 03:00:00", "", "3 03:00:00"},
		{"nearly late", "0 3 * * *", "1 12:00:00.000", "2 03:00:59.999", none, "2 03:00:00", "", "3 03:00:00"},
		{"late", "0 3 * * *", "1 12:00:00.000", "2 03:01:00.000", none, "", "2 03:00:00", "3 03:00:00"},
		{"late, one", "0 3 * * *", "1 12:00:00.000", "2 09:00:00.000", one, "2 03:00:00", "", "3 03:00:00"},
		{"of several the newest", "*/15 * * * * *", "1 12:00:00.000", "1 12:00:50.000", none, "1 12:00:45",
			"1 12:00:15, 1 12:00:30", "1 12:01:00"},
		{"a week off", "0 3 * * *", "1 12:00:00.000", "8 12:00:00.000", none, "",
			"2 03:00:00, 3 03:00:00, 4 03:00:00, 5 03:00:00, 6 03:00:00, 7 03:00:00, 8 03:00:00", "9 03:00:00"},
		{"a week off, one", "0 3 * * *", "1 12:00:00.000", "4 12:00:00.000", one, "4 03:00:00", "2 03:00:00, 3 03:00:00",
			"5 03:00:00"},
		{"a week off, all", "0 3 * * *", "1 12:00:00.000", "4 12:00:00.000", all, "2 03:00:00, 3 03:00:00, 4 03:00:00", "",
			"5 03:00:00"},
		{"the clock set back a day", "0 3 * * *", "2 03:00:00.000", "1 04:00:00.000", all, "", "", "3 03:00:00"},
		{"the clock set back a moment", "0 3 * * *", "2 03:00:00.000", "2 02:59:59.999", none, "", "", "3 03:00:00"},
		{"before its time", "@every 90s", "1 12:00:00.000", "1 12:01:29.999", none, "", "", "1 12:01:30"},
		{"every so often", "@every 90s", "1 12:00:00.000", "1 12:03:10.000", none, "1 12:03:00", "1 12:01:30", "1 12:04:30"},
	} {
		s := store.Schedule{Name: "n", CronLine: c.cron, TimeZone: "UTC", CatchUp: c.catchUp,
			CreatedAt: parseMarchTime("1 12:00:00.000"), LastOccurrenceAt: parseMarchTime(c.last)}
		f, err := PlanOccurrences(&s, "", parseMarchTime(c.now))
		if err != nil {
			t.Fatal(err)
		}
		got := []string{formatMarchTimes(f.OccurrencesToRun), formatMarchTimes(f.MissedOccurrences),
			formatMarchTimes([]queue.UnixMillis{f.NewNextOccurrenceAt})}
		if want := []string{c.runs, c.missed, c.next}; !slices.Equal(got, want) || f.NewNextDueAt != f.NewNextOccurrenceAt ||
			f.NewLastOccurrenceAt < s.LastOccurrenceAt || f.ExpectedLastOccurrenceAt != s.LastOccurrenceAt {
			t.Errorf("%s: got %q, want %q; %+v", c.name, got, want, f)
		}
	}
}

// If more than a hundred occurrences are due, PlanOccurrences uses only the newest hundred, whatever the
// catch-up setting is.
func TestPlanOccurrencesUsesNewestHundred(t *testing.T) {
	for catchUp, want := range map[store.CatchUpPolicy][2]int{store.CatchUpNone: {1, 99}, store.CatchUpOne: {1, 99},
		store.CatchUpAll: {100, 0}} {
		s := store.Schedule{Name: "n", CronLine: "* * * * * *", TimeZone: "UTC", CatchUp: catchUp,
			LastOccurrenceAt: parseMarchTime("1 12:00:00.000")}
		f, err := PlanOccurrences(&s, "", parseMarchTime("1 12:00:00.000").Add(50*365*24*time.Hour))
		if got := [2]int{len(f.OccurrencesToRun), len(f.MissedOccurrences)}; err != nil || got != want {
			t.Errorf("%s: got runs and missed occurrences %v, %v, want %v", catchUp, got, err, want)
		}
	}
}

// Jitter delays an occurrence by the same time whenever the schedule is planned. Its lateness is measured
// from the delayed time.
func TestPlanOccurrencesAddsStableJitter(t *testing.T) {
	s := store.Schedule{Name: "n", CronLine: "0 3 * * *", TimeZone: "UTC", MaxJitter: time.Hour,
		LastOccurrenceAt: parseMarchTime("1 12:00:00.000")}
	f, err := PlanOccurrences(&s, "", s.LastOccurrenceAt)
	if err != nil || len(f.OccurrencesToRun)+len(f.MissedOccurrences) > 0 ||
		f.NewNextOccurrenceAt != parseMarchTime("2 03:00:00.000") ||
		f.NewNextDueAt <= f.NewNextOccurrenceAt ||
		f.NewNextDueAt >= parseMarchTime("2 04:00:00.000") {
		t.Fatalf("before the occurrence: %+v, %v", f, err)
	}
	due := f.NewNextDueAt
	for after, want := range map[queue.UnixMillis][2]string{-1: {}, 0: {"2 03:00:00"}, 59_999: {"2 03:00:00"},
		60_000: {"", "2 03:00:00"}} {
		if f, err = PlanOccurrences(&s, "", due+after); err != nil || formatMarchTimes(f.OccurrencesToRun) != want[0] ||
			formatMarchTimes(f.MissedOccurrences) != want[1] {
			t.Errorf("%d ms after the due time: runs %s, missed %s, %v", after, formatMarchTimes(f.OccurrencesToRun),
				formatMarchTimes(f.MissedOccurrences), err)
		}
	}
}

// PlanOccurrences returns an error for an invalid schedule.
func TestPlanOccurrencesRejectsInvalidSchedule(t *testing.T) {
	for _, s := range []store.Schedule{{CronLine: "61 * * * *", TimeZone: "UTC"}, {CronLine: "* * * * *",
		TimeZone: "Mars/Olympus"}} {
		if _, err := PlanOccurrences(&s, "", 1); err == nil {
			t.Errorf("Plan accepts the line %q in the zone %q", s.CronLine, s.TimeZone)
		}
	}
}

// storeSchedule stores a schedule that runs the command "true". The first occurrence of the schedule is the next one
// after the current time.
func storeSchedule(s store.Store, name, cron string, configure func(*store.Schedule)) store.Schedule {
	one := store.Schedule{Name: name, OwnerUID: 1, CronLine: cron, TimeZone: "UTC", CatchUp: store.CatchUpNone,
		Overlap: store.OverlapQueue, CreatedAt: s.Now(), LastOccurrenceAt: s.Now()}
	one.JobDraft = queue.Job{Queue: "default", MaxAttempts: 1, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Command: "true"}}
	if configure != nil {
		configure(&one)
	}
	if !one.RunsAtBoot {
		f, err := PlanOccurrences(&one, "", s.Now())
		if err != nil {
			panic(err)
		}
		one.NextOccurrenceAt, one.NextDueAt = f.NewNextOccurrenceAt, f.NewNextDueAt
	}
	one, err := s.PutSchedule(context.Background(), store.SchedulePutRequest{Schedule: one, RequestedByUID: 1})
	if err != nil {
		panic(err)
	}
	return one
}

func newRecurringJobConfig(bootID string, endJob func(context.Context, int64, int) error) RecurringJobConfig {
	return RecurringJobConfig{BootID: bootID, EndJob: endJob, UserLimits: func(int) (string, int64, int64, int64) {
		return "", 0, 0, 0
	}}
}

// runUpkeepDespiteErrors calls Run until ctx ends. It calls Run again after each error.
func runUpkeepDespiteErrors(ctx context.Context, s store.Store, config RecurringJobConfig) {
	d := newConfig(s, func() Retention { return Retention{} }, func(context.Context, []string) bool { return false })
	d.RecurringJobConfig = config
	for ctx.Err() == nil {
		if err := Run(ctx, d); err != nil {
			sleepUnlessDone(ctx, time.Millisecond)
		}
	}
}

// occurrenceOutcomes returns the outcomes of a schedule's occurrences, oldest first.
func occurrenceOutcomes(t *testing.T, s store.Store, scheduleName string) (texts []string) {
	t.Helper()
	_, runs, err := s.GetSchedule(t.Context(), scheduleName)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range slices.Backward(runs) {
		texts = append(texts, fmt.Sprint(r.OccurrenceAt.Time().Format("15:04:05"), " ", r.Outcome))
	}
	return texts
}

// runWithUpkeep calls the given function with a new store while Run is active. The clock is fake and starts at
// midnight.
func runWithUpkeep(t *testing.T, config RecurringJobConfig, test func(s *memstore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(queue.RankPolicy{Scheduling: queue.SchedulingByPriority})
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { runUpkeepDespiteErrors(ctx, s, config) })
		test(s)
		cancel()
		loop.Wait()
	})
}

// Each schedule creates jobs at its own due times, even a schedule that is added later.
func TestSchedulesCreateJobsWhenDue(t *testing.T) {
	runWithUpkeep(t, newRecurringJobConfig("", nil), func(s *memstore.Store) {
		storeSchedule(s, "slow", "@every 90s", nil)
		time.Sleep(45 * time.Second)
		storeSchedule(s, "quick", "*/20 * * * * *", nil)
		time.Sleep(2*time.Minute + 16*time.Second)
		synctest.Wait()
		if got := occurrenceOutcomes(t, s, "slow"); !slices.Equal(got, []string{"00:01:30 fired", "00:03:00 fired"}) {
			t.Errorf("outcomes of the schedule slow: %q", got)
		}
		if got := occurrenceOutcomes(t, s, "quick"); len(got) != 7 || got[0] != "00:01:00 fired" ||
			got[6] != "00:03:00 fired" {
			t.Errorf("outcomes of the schedule quick: %q", got)
		}
	})
}

// Each occurrence creates exactly one job, even if calls of the store fail. Some of these calls fail before they take
// effect, others afterwards.
func TestOccurrenceRunsOnceDespiteFailures(t *testing.T) {
	const seconds = 40
	for every := 1; every <= 9; every++ {
		synctest.Test(t, func(t *testing.T) {
			inner := memstore.New(queue.RankPolicy{Scheduling: queue.SchedulingByPriority})
			s := faultstore.New(inner)
			storeSchedule(inner, "n", "*/2 * * * * *", func(s *store.Schedule) { s.CatchUp = store.CatchUpAll })
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			s.SetHook(func(_ context.Context, c faultstore.Call) error {
				if n++; n%every != 0 || every == 1 && n > 30 {
					return nil
				}
				if c.HasSucceeded {
					return queue.ErrOutcomeUnknown // as if the caller had been killed before it received the result
				}
				return queue.ErrNoSpace
			})
			var loop sync.WaitGroup
			loop.Go(func() { runUpkeepDespiteErrors(ctx, s, newRecurringJobConfig("", nil)) })
			time.Sleep(seconds * time.Second)
			s.SetHook(nil)
			time.Sleep(3 * time.Second)
			cancel()
			loop.Wait()
			got := occurrenceOutcomes(t, inner, "n")
			seen := map[string]bool{}
			for _, o := range got {
				if seen[o] || !strings.HasSuffix(o, " fired") {
					t.Errorf("every %dth call fails: outcome %q is a duplicate or is not fired", every, o)
				}
				seen[o] = true
			}
			if len(got) < seconds/2 || inner.Counts().JobsEverEnqueued != int64(len(got)) {
				t.Errorf("every %dth call fails: %d occurrences, but %d jobs", every, len(got), inner.Counts().JobsEverEnqueued)
			}
		})
	}
}

// Occurrences that are due while upkeep does not run are recorded as missed. For a paused
// schedule, no occurrences are recorded.
func TestMissedOccurrencesAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(queue.RankPolicy{Scheduling: queue.SchedulingByPriority})
		storeSchedule(s, "n", "* * * * *", nil)
		p := storeSchedule(s, "paused", "* * * * *", nil)
		if err := s.PauseSchedule(t.Context(), store.SchedulePauseRequest{ScheduleName: "paused", Generation: p.Generation,
			Paused: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Minute + 30*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { runUpkeepDespiteErrors(ctx, s, newRecurringJobConfig("", nil)) })
		synctest.Wait()
		if got := occurrenceOutcomes(t, s, "n"); !slices.Equal(got,
			[]string{"00:01:00 missed", "00:02:00 missed", "00:03:00 fired"}) {
			t.Errorf("outcomes of the schedule n: %q", got)
		}
		if got := occurrenceOutcomes(t, s, "paused"); got != nil {
			t.Errorf("outcomes of the paused schedule: %q", got)
		}
		cancel()
		loop.Wait()
	})
}

// If a schedule replaces its running job, the next job is created only after the running job has
// ended. Other schedules do not wait for that.
func TestReplacementWaitsForRunningJobsEnd(t *testing.T) {
	var s *memstore.Store
	ending := 0
	end := func(ctx context.Context, seq int64, uid int) error {
		if ending++; ending == 1 {
			return errors.New("not yet")
		}
		time.Sleep(5 * time.Minute)
		left, err := s.PreviousSession(ctx)
		if err != nil || len(left.LeasedJobs) == 0 {
			return err
		}
		j := left.LeasedJobs[0]
		_, err = s.ReportAndClaim(ctx, store.LeaseReport{Settlements: []store.Settlement{{Lease: j.Lease(),
			Decision: queue.AttemptDecision{NextState: queue.Cancelled, CountsTowardMaxAttempts: true, RecordsAttempt: true}}}})
		return err
	}
	runWithUpkeep(t, newRecurringJobConfig("", end), func(made *memstore.Store) {
		s = made
		storeSchedule(s, "n", "0 * * * *", func(s *store.Schedule) { s.Overlap = store.OverlapReplace })
		storeSchedule(s, "other", "* * * * *", nil)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		for claimed := false; !claimed; {
			g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
			if err != nil || len(g.ClaimedJobs) == 0 {
				t.Fatalf("claimed %v, %v", g.ClaimedJobs, err)
			}
			if claimed = g.ClaimedJobs[0].Schedule == "n"; !claimed {
				if _, err := s.ReportAndClaim(t.Context(),
					store.LeaseReport{Settlements: []store.Settlement{{Lease: g.ClaimedJobs[0].Lease(),
						Decision: queue.AttemptDecision{NextState: queue.Completed, CountsTowardMaxAttempts: true,
							RecordsAttempt: true}}}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Hour + 2*time.Minute)
		synctest.Wait()
		if got := occurrenceOutcomes(t, s, "n"); !slices.Equal(got, []string{"01:00:00 fired"}) {
			t.Errorf("outcomes while the previous job is being ended: %q", got)
		}
		if got := occurrenceOutcomes(t, s, "other"); got[len(got)-1] != "02:02:00 fired" {
			t.Errorf("last outcome of another schedule in that time: %q", got[len(got)-1])
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := occurrenceOutcomes(t, s, "n"); !slices.Equal(got, []string{"01:00:00 fired", "02:00:00 fired"}) {
			t.Errorf("outcomes after the previous job has ended: %q", got)
		}
	})
}

// A user may remove a schedule while it waits for the end of a job that it replaces, and add a schedule with the same
// name. The new schedule does not wait for the end of that job. If the new schedule replaces the same job, it ends the
// job itself, and the removed schedule no longer tries to end the job.
func TestScheduleAddedAgainDoesNotWaitForReplacement(t *testing.T) {
	for name, c := range map[string]struct {
		uid     int
		overlap store.OverlapPolicy
		want    []string // outcomes of the schedule that is added again
		calls   int      // calls of EndJob
	}{
		"by another user":        {2, store.OverlapReplace, []string{"03:00:00 fired"}, 1},
		"with overlap queue":     {1, store.OverlapQueue, []string{"03:00:00 fired"}, 1},
		"replacing the same job": {1, store.OverlapReplace, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var calls, active atomic.Int64
			end := func(ctx context.Context, _ int64, _ int) error {
				calls.Add(1)
				active.Add(1)
				defer active.Add(-1)
				<-ctx.Done()
				return ctx.Err()
			}
			runWithUpkeep(t, newRecurringJobConfig("", end), func(s *memstore.Store) {
				first := storeSchedule(s, "n", "0 * * * *", func(s *store.Schedule) { s.Overlap = store.OverlapReplace })
				time.Sleep(time.Hour + time.Second)
				synctest.Wait()
				if g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1}); err != nil ||
					len(g.ClaimedJobs) != 1 {
					t.Fatalf("claimed %v, %v", g.ClaimedJobs, err)
				}
				time.Sleep(time.Hour + time.Minute)
				if n := calls.Load(); n != 1 {
					t.Fatalf("after the second occurrence: %d calls of EndJob, want 1", n)
				}
				if err := s.RemoveSchedule(t.Context(), "n", first.Generation, 1); err != nil {
					t.Fatal(err)
				}
				storeSchedule(s, "n", "0 * * * *", func(s *store.Schedule) { s.OwnerUID, s.Overlap = c.uid, c.overlap })
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := occurrenceOutcomes(t, s, "n"); !slices.Equal(got, c.want) {
					t.Errorf("outcomes of the schedule that was added again: %q, want %q", got, c.want)
				}
				if n, running := calls.Load(), active.Load(); n != int64(c.calls) || running != 1 {
					t.Errorf("%d calls of EndJob, of which %d are in progress; want %d, of which 1 is", n, running, c.calls)
				}
			})
		})
	}
}

// A schedule with @reboot creates one job per boot.
func TestRebootScheduleRunsOncePerBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(queue.RankPolicy{Scheduling: queue.SchedulingByPriority})
		storeSchedule(s, "n", "@reboot", func(s *store.Schedule) { s.RunsAtBoot, s.LastBootID = true, "first" })
		for _, c := range []struct {
			boot string
			jobs int64
		}{{"first", 0}, {"second", 1}, {"second", 1}, {"third", 2}, {"", 2}} {
			ctx, cancel := context.WithCancel(t.Context())
			var loop sync.WaitGroup
			loop.Go(func() { runUpkeepDespiteErrors(ctx, s, newRecurringJobConfig(c.boot, nil)) })
			time.Sleep(time.Minute)
			cancel()
			loop.Wait()
			if got := s.Counts().JobsEverEnqueued; got != c.jobs {
				t.Errorf("after boot %q: %d jobs, want %d", c.boot, got, c.jobs)
			}
		}
	})
}

// An invalid schedule is paused with the reason as its note. It delays no other schedule.
func TestInvalidScheduleIsPaused(t *testing.T) {
	runWithUpkeep(t, newRecurringJobConfig("", nil), func(s *memstore.Store) {
		storeSchedule(s, "fine", "* * * * *", nil)
		storeSchedule(s, "nonsense", "* * * * *", func(one *store.Schedule) { one.JobDraft.Labels = nil })
		broken, _, err := s.GetSchedule(t.Context(), "nonsense")
		if err != nil {
			t.Fatal(err)
		}
		broken.TimeZone = "Mars/Olympus"
		if _, err := s.PutSchedule(t.Context(), store.SchedulePutRequest{Schedule: broken,
			ReplacedGeneration: broken.Generation,
			RequestedByUID:     1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*time.Minute + time.Second)
		synctest.Wait()
		if got, _, err := s.GetSchedule(t.Context(), "nonsense"); err != nil || got.PausedAt == 0 ||
			!strings.Contains(got.PauseOrDamageNote, "Mars/Olympus") {
			t.Errorf("the invalid schedule is %+v, %v; want it paused with the reason", got, err)
		}
		if got := occurrenceOutcomes(t, s, "fine"); len(got) != 2 {
			t.Errorf("outcomes of the other schedule: %q", got)
		}
	})
}

// If the job of a due occurrence does not fit into its user's quota of bytes, the service removes older data
// of that user, and then creates the job.
func TestDueOccurrenceFreesUsersQuota(t *testing.T) {
	var s *memstore.Store
	var most atomic.Int64 // the test sets it, and UserLimits reads it
	r := newRecurringJobConfig("", nil)
	r.UserLimits = func(int) (string, int64, int64, int64) { return "", 0, 0, most.Load() }
	r.MakeRoomInQuota = func(ctx context.Context, uid int, full *store.QuotaError) bool {
		_, err := s.TrimUserData(ctx, uid, full.LimitBytes-full.NeededBytes)
		return err == nil && s.StoredBytesOfUser(uid) <= full.LimitBytes-full.NeededBytes
	}
	runWithUpkeep(t, r, func(is *memstore.Store) {
		s = is
		large := strings.Repeat("x", 5000)
		old := queue.Job{UID: 1, State: queue.Pending, Queue: "default", MaxAttempts: 1,
			ExecutionSettings: queue.ExecutionSettings{Command: "true", Stdin: large}}
		got, err := s.Enqueue(t.Context(), store.EnqueueRequest{UID: 1, Drafts: []queue.Job{old}})
		if err == nil {
			err = s.ChangeJob(t.Context(), got.Seqs[0], store.JobChange{Verb: queue.VerbCancel, UID: 1})
		}
		if err != nil {
			t.Fatal(err)
		}
		storeSchedule(s, "n", "@every 90s", func(one *store.Schedule) { one.JobDraft.Stdin = large })
		most.Store(s.StoredBytesOfUser(1) + 2000)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if got := occurrenceOutcomes(t, s, "n"); !slices.Equal(got, []string{"00:01:30 fired", "00:03:00 refused"}) {
			t.Errorf("outcomes: %q, want room for one job", got)
		}
	})
}
