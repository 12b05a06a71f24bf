//go:build linux || windows

package jobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// shownSchedule is a schedule as `queuectl schedule show` prints it in JSON.
type shownSchedule struct {
	Name        string            `json:"name"`
	TimeZone    string            `json:"tz"`
	Paused      bool              `json:"paused"`
	NextAt      *time.Time        `json:"next_at"`
	NextTimes   []time.Time       `json:"next"`
	Occurrences []shownOccurrence `json:"runs"`
}

// shownOccurrence is one occurrence (planned start) of a schedule and its job.
type shownOccurrence struct {
	PlannedAt time.Time `json:"instant"`
	Outcome   string    `json:"outcome"`
	JobID     *string   `json:"id"`
	JobState  *string   `json:"state"`
	Note      string    `json:"note"`
}

func showSchedule(q *testrig.Harness, scheduleName string) (schedule shownSchedule) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustRunCLI("schedule", "show", scheduleName, "--json")), &schedule); err != nil {
		q.Fatalf("schedule show %s: %v", scheduleName, err)
	}
	return schedule
}

// occurrenceOutcomes returns the outcomes of the schedule's occurrences, oldest first.
func (s shownSchedule) occurrenceOutcomes() (outcomes []string) {
	for _, r := range slices.Backward(s.Occurrences) {
		outcomes = append(outcomes, r.Outcome)
	}
	return outcomes
}

// A schedule creates a job for each occurrence, with the fields that the schedule defines. The id of the job
// contains the name of the schedule and the time. Adding the same schedule again is not an error. Adding a
// different schedule with the same name needs --replace.
func TestScheduleCreatesJobPerOccurrence(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	add := []string{"schedule", "add", "tick", "@every 1s", "--tz", "Europe/Berlin", "--env", "GREETING=hello", "--label",
		"of=tick", "--max-retries", "0", "--json", "echo $GREETING"}
	var added shownSchedule
	if err := json.Unmarshal([]byte(q.MustRunCLI(add...)), &added); err != nil || len(added.NextTimes) != 5 ||
		added.TimeZone != "Europe/Berlin" {
		t.Fatalf("added %+v, %v", added, err)
	}
	if got := q.MustRunCLI(add...); !strings.Contains(got, `"existed":true`) {
		t.Errorf("adding the same schedule again: %s", got)
	}
	if got := q.RunCLI("schedule", "add", "tick", "@every 2s", "--", "other"); got.ExitCode != 5 ||
		!strings.Contains(got.Stderr, "cron") || !strings.Contains(got.Stderr, "--replace") {
		t.Errorf("adding a different schedule with the same name: %+v", got)
	}
	q.WaitUntil("three runs", 20*time.Second, func() bool {
		s := showSchedule(q, "tick")
		n := 0
		for _, r := range s.Occurrences {
			if r.JobState != nil && *r.JobState == "completed" {
				n++
			}
		}
		return n >= 3
	})
	for _, r := range showSchedule(q, "tick").Occurrences {
		if r.JobID == nil || r.JobState == nil || *r.JobState != "completed" {
			continue
		}
		if want := "tick@" + r.PlannedAt.UTC().Format("20060102T150405Z"); *r.JobID != want {
			t.Errorf("the job is %s, want %s", *r.JobID, want)
		}
		var j struct {
			Schedule, Output string
			Labels           map[string]string
		}
		if err := json.Unmarshal([]byte(q.MustRunCLI("show", *r.JobID, "--json")), &j); err != nil || j.Schedule != "tick" ||
			strings.TrimSpace(j.Output) != "hello" || j.Labels["of"] != "tick" {
			t.Errorf("job %s: %+v, %v", *r.JobID, j, err)
		}
	}
	q.MustRunCLI("schedule", "pause", "tick")
	if s := showSchedule(q, "tick"); !s.Paused || s.NextAt != nil || len(s.NextTimes) != 0 {
		t.Errorf("the paused schedule: %+v", s)
	}
	before := len(showSchedule(q, "tick").Occurrences)
	q.MustRunCLI("schedule", "resume", "tick")
	q.WaitUntil("the resumed schedule starts a job", 20*time.Second, func() bool {
		return len(showSchedule(q, "tick").Occurrences) > before
	})
	if slices.Contains(showSchedule(q, "tick").occurrenceOutcomes(), "missed") {
		t.Errorf("outcomes after the pause: %v", showSchedule(q, "tick").occurrenceOutcomes())
	}
	q.MustRunCLI("schedule", "add", "tick", "0 3 * * *", "--replace", "--", "other")
	if s := showSchedule(q, "tick"); s.NextAt == nil || s.NextAt.Before(time.Now()) {
		t.Errorf("the replaced schedule: %+v", s)
	}
	q.MustRunCLI("schedule", "rm", "tick")
	if got := q.RunCLI("schedule", "show", "tick"); got.ExitCode != 4 {
		t.Errorf("show of a removed schedule: %+v", got)
	}
	if got := q.MustRunCLI("schedule", "list", "--json"); strings.TrimSpace(got) != "[]" {
		t.Errorf("list after the schedule was removed: %s", got)
	}
}

// If a job of a schedule is still waiting or running at the next occurrence, the flag --overlap decides: the
// occurrence is skipped, waits, or replaces that job. If the replaced job is running, it is ended.
func TestOverlapSettingDecidesConcurrentOccurrences(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "4")
	for _, overlap := range []string{"skip", "queue", "replace"} {
		q.MustRunCLI("schedule", "add", overlap, "@every 1s", "--overlap", overlap, "--kill-after", "1s", "sleep 60")
	}
	q.WaitUntil("something was skipped", 20*time.Second, func() bool {
		s := showSchedule(q, "skip")
		return slices.Contains(s.occurrenceOutcomes(), "skipped") && s.occurrenceOutcomes()[0] == "fired"
	})
	q.WaitUntil("something waits", 20*time.Second, func() bool {
		s := showSchedule(q, "queue")
		return len(s.Occurrences) > 1 && s.Occurrences[0].JobState != nil && *s.Occurrences[0].JobState == "blocked"
	})
	q.WaitUntil("something was replaced", 30*time.Second, func() bool {
		s := showSchedule(q, "replace")
		return slices.ContainsFunc(s.Occurrences, func(r shownOccurrence) bool {
			return r.JobState != nil &&
				*r.JobState == "cancelled"
		})
	})
	if got := q.RunCLI("schedule", "run", "skip"); got.ExitCode != 5 || !strings.Contains(got.Stderr, "has not ended") {
		t.Errorf("schedule run while another run is active: %+v", got)
	}
	q.MustRunCLI("schedule", "rm", "skip", "queue", "replace")
	q.MustRunCLI("cancel", "--all", "--yes")
}

// `queuectl schedule run` starts a job immediately. The id of the job contains the current second. If that id is
// taken, the job gets an id with a suffix.
func TestScheduleRunStartsJobImmediately(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "--overlap", "queue", "--", "true")
	var ids []string
	q.WaitUntil("two in one second", 20*time.Second, func() bool {
		ids = append(ids, strings.TrimSpace(q.MustRunCLI("schedule", "run", "nightly")))
		n := len(ids)
		return n > 1 && ids[n-1] == ids[n-2]+"-2"
	})
	if s := showSchedule(q, "nightly"); len(s.Occurrences) != len(ids) || s.NextAt == nil ||
		!s.NextAt.Equal(s.NextTimes[0]) {
		t.Errorf("the schedule after two runs: %+v", s)
	}
}

// Even if the service is killed repeatedly, each planned start of a schedule gets exactly one job. With
// --catch-up all, starts that were missed while no service ran get their jobs later, one after another.
func TestScheduleWhileKilled(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	q.MustRunCLI("schedule", "add", "tick", "* * * * * *", "--catch-up", "all", "--overlap", "queue", "--max-retries", "0",
		"echo run")
	// newest returns the planned time of the newest occurrence. Counting the occurrences would not work, because `queuectl
	// schedule show` lists at most 20 of them.
	newest := func() (planned time.Time) {
		if runs := showSchedule(q, "tick").Occurrences; len(runs) > 0 {
			planned = runs[0].PlannedAt
		}
		return planned
	}
	for range 6 {
		before := newest()
		q.WaitUntil("the schedule creates a job", 20*time.Second, func() bool { return !newest().Equal(before) })
		q.KillService()
		killed := time.Now()
		q.WaitUntil("an instant passes", 20*time.Second, func() bool { return time.Since(killed) > 1500*time.Millisecond })
		q.StartService("--workers", "2")
	}
	q.MustRunCLI("schedule", "pause", "tick")
	s := showSchedule(q, "tick")
	var last time.Time
	for _, r := range slices.Backward(s.Occurrences) {
		if r.Outcome != "fired" || r.JobID == nil {
			t.Errorf("the occurrence at %v has the outcome %s: %s", r.PlannedAt, r.Outcome, r.Note)
			continue
		}
		if !last.IsZero() && r.PlannedAt.Sub(last) != time.Second {
			t.Errorf("the occurrence after %v is %v", last, r.PlannedAt)
		}
		last = r.PlannedAt
		if want := "tick@" + r.PlannedAt.UTC().Format("20060102T150405Z"); *r.JobID != want {
			t.Errorf("the job is %s, want %s", *r.JobID, want)
		}
	}
	if len(s.Occurrences) < 8 {
		t.Errorf("the schedule has only %d occurrences", len(s.Occurrences))
	}
	q.WaitUntil("all have ended", 30*time.Second, func() bool {
		for _, r := range showSchedule(q, "tick").Occurrences {
			if r.JobState == nil || *r.JobState != "completed" {
				return false
			}
		}
		return true
	})
	var jobs []testrig.Job
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--json")), &jobs); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, j := range jobs {
		if seen[j.ID] || strings.Contains(j.ID, "-2") {
			t.Errorf("the same occurrence has two jobs; %s", j.ID)
		}
		seen[j.ID] = true
	}
}

// An invalid schedule gets an error that names the field, and is not stored.
func TestInvalidSchedulesAreRefused(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	for text, args := range map[string][]string{
		`cron: the minute "61" is not valid; use 0 to 59`:             {"n", "61 * * * *", "--", "x"},
		`cron: the hour "25" is not valid`:                            {"n", "0 25 * * *", "--", "x"},
		`cron: wrong number of fields (4)`:                            {"n", "* * * *", "--", "x"},
		`cron: the schedule would never start a job`:                  {"n", "0 0 30 2 *", "--", "x"},
		`cron: @every 10ms is too often`:                              {"n", "@every 10ms", "--", "x"},
		`tz: there is no time zone "Mars/Olympus"`:                    {"n", "@daily", "--tz", "Mars/Olympus", "--", "x"},
		`jitter: 2h is longer than the 1h`:                            {"n", "@hourly", "--jitter", "2h", "--", "x"},
		`--catch-up: unknown value "some"; use none, one or all`:      {"n", "@hourly", "--catch-up", "some", "--", "x"},
		`--overlap: unknown value "both"; use skip, queue or replace`: {"n", "@hourly", "--overlap", "both", "--", "x"},
		`name: "a b" is not a valid schedule name`:                    {"a b", "@hourly", "--", "x"},
		`name: "` + strings.Repeat("n", 80) + `…" is`:                 {strings.Repeat("n", 101), "@hourly", "--", "x"},
		`write it at the end: queuectl schedule add n `:               {"n", "@hourly"},
		`quote the cron expression`:                                   {"n", "0", "3", "*", "*", "*", "--", "x"},
		`needs a name and a cron expression`:                          {"n"},
		`id: cannot be set for a schedule, which starts many jobs`:    {"n", "@hourly", `{"command":"x","id":"a"}`},
		`--max-retries: -1 is too small`:                              {"n", "@hourly", "--max-retries", "-1", "--", "x"},
	} {
		got := q.RunCLI(append([]string{"schedule", "add"}, args...)...)
		if got.ExitCode != 2 || !strings.Contains(got.Stderr, text) {
			t.Errorf("%q: got %d, %s\nwant %s", args, got.ExitCode, got.Stderr, text)
		}
	}
	for method, params := range map[string]map[string]any{
		"schedule.add":  {"name": "n", "cron": "@hourly", "command": "x", "crone": 1},
		"schedule.show": {},
		"schedule.run":  {"name": ""},
		"schedule.list": {"limit": 1},
	} {
		w := q.DialService()
		if a := w.Call(method, params); a.Error == nil || a.Error.Data.Code != "invalid" {
			t.Errorf("%s %v: %+v", method, params, a)
		}
		w.Close()
	}
	for _, verb := range []string{"show", "rm", "pause", "resume", "run"} {
		if got := q.RunCLI("schedule", verb, "gone"); got.ExitCode != 4 ||
			!strings.Contains(got.Stderr, `there is no schedule "gone"`) {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	if got := strings.TrimSpace(q.MustRunCLI("schedule", "list", "--json")); got != "[]" {
		t.Errorf("invalid schedules were stored: %s", got)
	}
}

// In a request, the fields of a schedule and of its jobs are in one flat object. The field jitter applies to the
// schedule, and backoff_jitter to its jobs. The response repeats the fields of the request.
func TestScheduleRequestFieldsAreFlat(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	w := q.DialService()
	defer w.Close()
	a := w.Call("schedule.add", map[string]any{"name": "n", "cron": "0 3 * * *", "tz": "UTC", "command": "true",
		"jitter": "10m", "backoff_jitter": 0.5, "priority": 7})
	var d struct {
		Jitter string         `json:"jitter"`
		Spec   map[string]any `json:"spec"`
	}
	if a.Error != nil || json.Unmarshal(a.Result, &d) != nil || d.Jitter != "10m" ||
		fmt.Sprint(d.Spec) != "map[command:true jitter:0.5 priority:7]" {
		t.Errorf("schedule.add returned %+v, error %+v", d, a.Error)
	}
	a = w.Call("schedule.run", map[string]any{"name": "n"})
	var run struct{ ID string }
	if a.Error != nil || json.Unmarshal(a.Result, &run) != nil || !strings.HasPrefix(run.ID, "n@") {
		t.Fatalf("run: %+v", a)
	}
	if j := q.ShowJob(run.ID); j.State != "pending" {
		t.Errorf("the job: %+v", j)
	}
}
