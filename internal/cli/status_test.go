package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// testScreenTime is the current time in the tests of the status screen.
var testScreenTime = time.Date(2026, 11, 22, 16, 12, 0, 0, time.Local)

// newTestScreen returns a screen with the given number of jobs in each section.
func newTestScreen(jobsPerSection int) *control.OverviewScreen {
	at := func(ago time.Duration) control.Time {
		return control.Time(queue.UnixMillisOf(testScreenTime.Add(-ago)))
	}
	s := &control.OverviewScreen{Status: control.Status{Health: "ok", PID: 1, Jobs: map[string]int64{},
		Workers: control.WorkerSummary{Total: 2, Busy: 2}, ThroughputPerMinute: 412}}
	count := func(state queue.State) string {
		s.Status.Jobs[state.String()]++
		return state.String()
	}
	for i := range jobsPerSection {
		id := func(kind string) string { return fmt.Sprintf("%s%d", kind, i+1) }
		s.Running = append(s.Running, control.OverviewJob{Job: control.Job{ID: id("build"), State: count(queue.Processing),
			Command: "make all", StartedAt: at(192 * time.Second)}, LastLine: "compiling 61/140"})
		s.Ready = append(s.Ready, control.Job{ID: id("r"), State: count(queue.Pending), Command: "make docs", RunAt: at(0)})
		s.Delayed = append(s.Delayed, control.Job{ID: id("t"), State: count(queue.Pending), Command: "./backup.sh",
			RunAt: at(-6*time.Hour - 48*time.Minute)},
			control.Job{ID: id("f"), State: count(queue.Failed), Command: "./flaky.sh", NextRetryAt: at(-8 * time.Second)})
		s.HeldOrBlocked = append(s.HeldOrBlocked, control.Job{ID: id("h"), State: count(queue.Held), Command: "true"})
		s.Dead = append(s.Dead, control.OverviewJob{Job: control.Job{ID: id("z"), State: count(queue.Dead), AttemptCount: 4,
			MaxAttempts: 4, Command: "convert 97.png", FinishedAt: at(11 * time.Minute), Error: new("exit code 1")},
			LastLine: "bad header in 97.png"})
		s.Done = append(s.Done, control.Job{ID: id("d"), State: count(queue.Completed), Command: "make lint",
			FinishedAt: at(2 * time.Minute), RunTimeMS: new(int64(1200))})
	}
	return s
}

// The screen shows the health, running jobs with their last line of output, the next jobs with their start
// time, failed jobs with the reason, and the jobs that finished last.
func TestStatusScreenShowsAllSections(t *testing.T) {
	out, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s := newTestScreen(1)
	s.Status.Jobs["dead"] = 3
	for i, r := range []control.WaitReason{{Kind: "lock", CauseKey: "db"}, {Kind: "user", Limit: new(3)},
		{Kind: "queue", CauseKey: "gpu", Limit: new(1)}} {
		s.Ready = append(s.Ready, control.Job{ID: fmt.Sprintf("b%d", i+1), State: queue.Pending.String(),
			Command: "./migrate", RunAt: s.Ready[0].RunAt, MainWaitReason: &r})
	}
	s.Status.Jobs["pending"] += 3
	if err := (&screenPrinter{App: NewApp(Program{}, nil, out, nil),
		ScreenFormatter: present.ScreenFormatter{Screen: s, CurrentTime: testScreenTime}}).print(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	const want = `blocked    0
held       1
pending    5
failed     1
processing 1
completed  1
dead       3
cancelled  0

ok · 2 of 2 workers busy · 6 waiting · 1 held · 3 dead jobs need attention

RUNNING   FOR    COMMAND   LAST LINE
▶ build1  3m12s  make all  compiling 61/140
UP NEXT  WHEN            COMMAND
○ r1     ready           make docs
○ b1     lock db         ./migrate
○ b2     user limit      ./migrate
○ b3     queue limit     ./migrate
○ t1     23:00, in 6h48  ./backup.sh
↻ f1     in 8s           ./flaky.sh
‖ h1     held            true
FAILED  ATTEMPTS  WHEN     COMMAND         WHY
✗ z1    4/4       11m ago  convert 97.png  exit code 1: bad header in 97.png
  2 more: queuectl list --failed · run again: queuectl retry --failed
FINISHED  RAN   WHEN    COMMAND
✓ d1      1.2s  2m ago  make lint
`
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	p := &screenPrinter{App: NewApp(Program{}, nil, out, nil), ScreenFormatter: present.ScreenFormatter{Screen: s,
		CurrentTime: testScreenTime}}
	if got, want := present.StatusJobCountsText(&p.Screen.Status),
		"held 1 · pending 5 · failed 1 · processing 1 · completed 1 · dead 3     412/min"; got != want {
		t.Errorf("the last line: %q, want %q", got, want)
	}
	s.Status.Health = "degraded: 5 jobs are waiting, but there are no workers; add some with: queuectl worker start"
	if got := p.statusLine(); got != s.Status.Health {
		t.Errorf("the first line: %q", got)
	}
}

// The screen fits into the window and uses all lines of the window. Each section has at least one row if there are
// enough lines.
func TestStatusScreenFitsTerminal(t *testing.T) {
	for _, height := range []int{1, 5, 8, 10, 14, 20, 24, 60, 200} {
		for _, jobs := range []int{0, 1, 3, 40} {
			p := &screenPrinter{App: NewApp(Program{}, nil, nil, nil),
				ScreenFormatter: present.ScreenFormatter{Screen: newTestScreen(jobs), CurrentTime: testScreenTime}}
			parts := p.sections()
			// Five lines are for the status line, two empty lines, the counts and the prompt.
			fitSectionHeights(parts, height-5)
			lines, shown := 5, 0
			for _, part := range parts {
				if len(part.rows) > 0 {
					lines += 1 + len(part.rows)
					shown++
				}
				if len(part.rows) > 0 && part.hiddenRows > 0 && part.hiddenRowsText != "" {
					lines++
				}
			}
			// The least height consists of the five lines above, a heading and a row for each of the four sections, and a line
			// about hidden jobs for three of the sections.
			least := 5 + 4 + 4 + 3
			switch {
			case lines > max(height, 8): // the first section is never removed
				t.Errorf("%d jobs of each: %d lines in a window of %d", jobs, lines, height)
			case jobs > 0 && height >= least && shown < 4:
				t.Errorf("%d jobs of each: %d parts in a window of %d", jobs, shown, height)
			case jobs == 40 && height >= least && lines < height-1:
				t.Errorf("%d jobs of each: %d lines only in a window of %d", jobs, lines, height)
			}
		}
	}
}

// A table lists running jobs, then waiting jobs in the order in which they will start, then held and blocked jobs, then
// dead jobs, then other ended jobs. Among ended jobs, the last one to end comes first.
func TestTableJobsAreSortedByState(t *testing.T) {
	s := newTestScreen(2)
	s.Ready[1].EffectivePriority = 7
	s.Done[1].FinishedAt += 1000
	var jobs []control.Job
	jobs = append(append(append(append(append(jobs, s.Done...), s.HeldOrBlocked...), s.Dead[0].Job, s.Dead[1].Job),
		s.Delayed...), s.Ready...)
	for i := range s.Running {
		jobs = append(jobs, s.Running[i].Job)
	}
	sortJobsForTable(jobs, testScreenTime)
	var ids []string
	for i := range jobs {
		ids = append(ids, jobs[i].ID)
	}
	if got, want := strings.Join(ids, " "), "build1 build2 r2 r1 f1 f2 t1 t2 h1 h2 z1 z2 d2 d1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
