package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/estimates"
	"github.com/queuectl/queuectl/store/rules"
)

// completeOneJob enqueues a job in a queue and completes it.
func completeOneJob(t *testing.T, s *Store, queueName string) {
	t.Helper()
	_, err := s.Enqueue(t.Context(),
		store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.Queue = queueName })}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
	if err != nil || len(got.ClaimedJobs) != 1 {
		t.Fatalf("claimed %v, %v", got.ClaimedJobs, err)
	}
	e := completedSettlement(&got.ClaimedJobs[0])
	e.Attempt = queue.Attempt{StartedAt: s.clock(), EndedAt: s.clock() + 5000}
	e.CommandFingerprint = got.ClaimedJobs[0].CommandFingerprint()
	if _, err = s.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{e}}); err != nil {
		t.Fatal(err)
	}
}

// sumStatistics returns the sum of all statistics of a grain, that is, of one length of period.
func sumStatistics(t *testing.T, s *Store, g store.Granularity) (sum store.AttemptStatistics) {
	t.Helper()
	got, err := s.Stats(t.Context(), store.StatsFilter{Granularity: g, IncludePeriods: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Queues {
		sum.Add(&got.Queues[i].AttemptStatistics)
	}
	return sum
}

// openWithClock returns an open store whose clock returns *now.
func openWithClock(t *testing.T, dir string, now *queue.UnixMillis) *Store {
	t.Helper()
	s := openStore(t, dir)
	s.clock = func() queue.UnixMillis { return *now }
	return s
}

// recordStatistics records statistics and sums them up in hours and days. Then it sets the clock back and
// records more statistics for the same periods.
func recordStatistics(t *testing.T, s *Store) {
	t.Helper()
	clock, now := s.clock, s.clock()
	s.clock = func() queue.UnixMillis { return now }
	defer func() { s.clock = clock }()
	for range 2 {
		completeOneJob(t, s, "f")
		now += queue.UnixMillis((25 * time.Hour).Milliseconds())
		applyAllDueChanges(t, s)
	}
	now -= queue.UnixMillis((26 * time.Hour).Milliseconds())
	completeOneJob(t, s, "f")
	sumStatistics(t, s, store.PerDay)
}

// Statistics are committed together with the changes of jobs that they count. They survive restarts. A
// transaction that is rolled back does not change them.
func TestStatisticsCommitWithJobChanges(t *testing.T) {
	dir, now := t.TempDir(), queue.UnixMillisOf(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s := openWithClock(t, dir, &now)
	for want := range int64(4) {
		completeOneJob(t, s, "f")
		undone := errors.New("undone")
		err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
			tx.AddMeasurement(rules.AttemptMeasurement{Queue: "f"})
			if err := tx.writeStatistics(); err != nil {
				return err
			}
			return undone
		})
		if err == nil {
			t.Fatal("the transaction was not rolled back")
		}
		if want%2 == 1 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openWithClock(t, dir, &now)
		}
		if f := sumStatistics(t, s, store.PerMinute); f.Started != want+1 || f.Completed != want+1 {
			t.Fatalf("after %d attempts, and as many that were undone: %d started, %d completed", want+1, f.Started, f.Completed)
		}
	}
}

// The statistics per minute, hour and day count each attempt exactly once, even if upkeep is interrupted, at any point
// and any number of times, while it sums up minutes to hours and days.
func TestInterruptedStatsRollUpCountsOnce(t *testing.T) {
	dir, now := t.TempDir(), queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 30, 0, 0, time.UTC))
	s := openWithClock(t, dir, &now)
	total := int64(0)
	for range 30 {
		completeOneJob(t, s, "f")
		total++
		now += queue.UnixMillis((50 * time.Minute).Milliseconds())
	}
	for range 100 {
		undone := errors.New("undone")
		s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
			if _, err := tx.statisticsWriter().RollUpAndDeleteOld(); err != nil {
				t.Error(err)
			}
			return undone
		})
		next, err := s.ApplyDueChanges(t.Context())
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		s = openWithClock(t, dir, &now)
		for g := store.PerMinute; g <= store.PerDay; g++ {
			if f := sumStatistics(t, s, g); f.Started != total || f.Completed != total || f.RunTimes.Count() != total {
				t.Fatalf("by %v %d began and %d completed, want %d", g, f.Started, f.Completed, total)
			}
		}
		if next > 0 {
			break
		}
	}
	if days := queryNumber(t, s, `SELECT count(*) FROM figures WHERE grain = 3`); days != 1 {
		t.Errorf("%d rows for days, want 1", days)
	}
	now += queue.UnixMillis((49 * time.Hour).Milliseconds())
	applyAllDueChanges(t, s)
	if minutes := queryNumber(t, s, `SELECT count(*) FROM figures WHERE grain = 1`); minutes != 0 {
		t.Errorf("%d rows for minutes remain after two days", minutes)
	}
	if f := sumStatistics(t, s, store.PerHour); f.Started != total {
		t.Errorf("by hour %d began, want %d", f.Started, total)
	}
}

// Each period has a limited number of rows, however many queues there are. The statistics of a queue for all
// time never decrease, even if the clock is changed.
func TestStatisticsRowsAreBounded(t *testing.T) {
	now := queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := openWithClock(t, t.TempDir(), &now)
	total := int64(0)
	was, ruled := map[string]int64{}, 0
	rises := func() {
		t.Helper()
		got, err := s.Stats(t.Context(), store.StatsFilter{OnlyAllTimeTotals: true})
		if err != nil {
			t.Fatal(err)
		}
		is, sum := map[string]int64{}, int64(0)
		for _, q := range got.Queues {
			is[q.QueueName], sum = q.Started, sum+q.Started
		}
		for name, n := range was {
			if is[name] < n {
				t.Fatalf("after %d starts the figure of %s is %d, and was %d", total, name, is[name], n)
			}
		}
		if was = is; sum != total || len(is) > store.MaxQueuesWithStats+1+ruled {
			t.Fatalf("%d began ever, want %d, of %d queues", sum, total, len(is))
		}
	}
	for i := range 240 {
		name := fmt.Sprint("q", (i*97)%240)
		completeOneJob(t, s, name)
		total++
		rises()
		for _, rule := range []store.QueueRule{{Weight: 2}, store.DefaultQueueRule} { // add a rule, then remove it
			if i%7 != 6 {
				break
			}
			if err := s.SetQueue(t.Context(), name, rule); err != nil {
				t.Fatal(err)
			}
			ruled++
			completeOneJob(t, s, name)
			total++
			rises()
		}
		if i%4 == 3 {
			now += 40_000
		}
		if i%60 == 59 {
			now = store.PerHour.PeriodStart(now).Add(time.Hour)
			applyAllDueChanges(t, s)
			rises()
		}
	}
	now += queue.UnixMillis((24 * time.Hour).Milliseconds())
	applyAllDueChanges(t, s)
	rises()
	now -= queue.UnixMillis((25 * time.Hour).Milliseconds()) // the clock is set back
	for i := range 80 {
		completeOneJob(t, s, fmt.Sprint("late", i))
		total++
		rises()
	}
	now += queue.UnixMillis((25 * time.Hour).Milliseconds())
	defer func() {
		now += queue.UnixMillis((4 * 365 * 24 * time.Hour).Milliseconds()) // the clock is set far ahead, and later corrected
		applyAllDueChanges(t, s)
		rises()
		now -= queue.UnixMillis((4 * 365 * 24 * time.Hour).Milliseconds())
		completeOneJob(t, s, "q0")
		total++
		rises()
	}()
	for g := store.PerMinute; g <= store.PerDay; g++ {
		if f := sumStatistics(t, s, g); f.Started != total {
			t.Errorf("by %v %d began, want %d", g, f.Started, total)
		}
		if most := queryNumber(
			t, s, fmt.Sprintf(`SELECT max(n) FROM (SELECT count(*) AS n FROM figures WHERE grain = %d GROUP BY at)`,
				g)); most > store.MaxQueuesWithStats+1 {
			t.Errorf("a %v has %d rows", g, most)
		}
	}
}

// A store on a full disk can be closed without an error, although it cannot write its estimates of run times.
func TestStoreClosesOnFullDisk(t *testing.T) {
	now := queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := openWithClock(t, t.TempDir(), &now)
	many := make([]rules.AttemptMeasurement, store.MaxRuntimeEstimates)
	for i := range many {
		many[i] = rules.AttemptMeasurement{CommandFingerprint: uint64(i + 1), WaitOrRunTime: time.Second}
	}
	s.runtimeEstimates.AddMeasurements(many)
	if err := s.conn.Exec(`PRAGMA max_page_count = 1`); err != nil { // the file cannot grow
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The estimates of run times for the last 4096 commands survive restarts. If they are damaged, they are
// ignored.
func TestRuntimeEstimatesSurviveRestarts(t *testing.T) {
	dir, now := t.TempDir(), queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := openWithClock(t, dir, &now)
	completeOneJob(t, s, "f")
	kin := newDraft(func(j *queue.Job) { j.Queue = "f" })
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openWithClock(t, dir, &now)
	}
	reopen()
	if got := s.TypicalRuntime(kin.CommandFingerprint()); got != 5*time.Second {
		t.Errorf("after a restart, the typical run time is %v, want 5s", got)
	}
	var many []rules.AttemptMeasurement
	for i := range store.MaxRuntimeEstimates - 1 {
		many = append(many, rules.AttemptMeasurement{CommandFingerprint: uint64(i + 1),
			WaitOrRunTime: time.Duration(i) * time.Second})
	}
	s.runtimeEstimates.AddMeasurements(many)
	if got := s.TypicalRuntime(kin.CommandFingerprint()); got != 5*time.Second {
		t.Errorf("with the maximum number of other estimates, the typical run time is %v, want 5s", got)
	}
	applyAllDueChanges(t, s) // writes the estimates
	s.runtimeEstimates.AddMeasurements([]rules.AttemptMeasurement{{CommandFingerprint: store.MaxRuntimeEstimates,
		WaitOrRunTime: time.Second}})
	if s.TypicalRuntime(kin.CommandFingerprint()) != 0 || s.TypicalRuntime(1) != time.Millisecond ||
		s.TypicalRuntime(store.MaxRuntimeEstimates) != time.Second {
		t.Errorf("the evicted estimate is not the oldest one: %v, %v, %v", s.TypicalRuntime(kin.CommandFingerprint()),
			s.TypicalRuntime(1),
			s.TypicalRuntime(store.MaxRuntimeEstimates))
	}
	s.runtimeEstimates.Encode() // mark the changes as written but do not write them, as if the service were killed
	reopen()
	if s.TypicalRuntime(kin.CommandFingerprint()) != 5*time.Second || s.TypicalRuntime(store.MaxRuntimeEstimates) != 0 ||
		s.TypicalRuntime(600) != 599*time.Second {
		t.Errorf("after a kill, the stored estimates are %v, %v, %v", s.TypicalRuntime(kin.CommandFingerprint()),
			s.TypicalRuntime(store.MaxRuntimeEstimates),
			s.TypicalRuntime(600))
	}
	damageRow(t, s, `UPDATE usual SET list = ?`, slices.Repeat([]byte{0xff}, 3*estimates.EncodedEstimateBytes+5))
	reopen()
	if s.TypicalRuntime(1<<64-1) != 0 || s.TypicalRuntime(600) != 0 {
		t.Error("damaged estimates are used")
	}
}

// Statistics are kept even in the first minute of 1970, where a machine without a battery-backed clock
// starts.
func TestStatisticsWorkInFirstMinuteOf1970(t *testing.T) {
	now := queue.UnixMillis(30_000)
	s := openWithClock(t, t.TempDir(), &now)
	completeOneJob(t, s, "f")
	now = queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	applyAllDueChanges(t, s)
	completeOneJob(t, s, "f")
	if got, err := s.Stats(t.Context(), store.StatsFilter{OnlyAllTimeTotals: true}); err != nil ||
		got.Queues[0].Started != 2 {
		t.Errorf("ever: %+v, %v", got.Queues, err)
	}
	if left := queryNumber(t, s, `SELECT count(*) FROM figures WHERE grain = 1 AND at = 0`); left != 0 {
		t.Errorf("%d rows of the first minute remain after years", left)
	}
}

// After the clock was far ahead, the row of the current minute may have been removed as too old. Attempts
// that end later in this minute are still counted.
func TestRemovedMinuteStillCountsAttempts(t *testing.T) {
	now := queue.UnixMillisOf(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := openWithClock(t, t.TempDir(), &now)
	completeOneJob(t, s, "f")
	const far = 90 * 24 * time.Hour
	now += queue.UnixMillis(far.Milliseconds())
	applyAllDueChanges(t, s)
	now -= queue.UnixMillis(far.Milliseconds())
	completeOneJob(t, s, "f")
	if f := sumStatistics(t, s, store.PerMinute); f.Started != 1 {
		t.Errorf("%d starts are in the minute, want 1", f.Started)
	}
}
