package durability

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// runDespiteKills runs a command. If a failpoint (a place in the program at which the test injects a crash) kills the
// service while the command runs, runDespiteKills starts the service and runs the command again.
func runDespiteKills(q *testrig.Harness, args ...string) {
	q.Helper()
	for n := range 3 {
		got := q.RunCLI(args...)
		// If the earlier run of the command has had its effect before the kill, the repeated command fails with one of these
		// errors.
		done := n > 0 && (got.ExitCode == 5 && strings.Contains(got.Stderr, "another job has") || got.ExitCode == 4)
		if got.ExitCode == 0 || done {
			return
		}
		if !restartServiceIfDead(q) {
			q.Fatalf("%q: %+v", args, got)
		}
	}
	q.Fatalf("%q: the service died each time the command ran", args)
}

// outputDespiteKills runs a command and returns its output. If a failpoint (an injected crash) kills the service while
// the command runs, outputDespiteKills starts the service and runs the command again.
func outputDespiteKills(q *testrig.Harness, args ...string) string {
	q.Helper()
	for {
		if got := q.RunCLI(args...); got.ExitCode == 0 {
			return got.Stdout
		} else if !restartServiceIfDead(q) {
			q.Fatalf("%q: %+v", args, got)
		}
	}
}

// restartServiceIfDead starts the service if it has ended. It reports whether the service had ended.
func restartServiceIfDead(q *testrig.Harness) bool {
	q.Helper()
	select {
	case <-q.ServiceExit:
		q.ServiceCmd, q.ServiceEnv = nil, nil
		q.StartService("--workers", "4")
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// TestKilledAtEachCommit kills the service at its n-th commit, for each n, while jobs release dependants,
// replace each other, run hooks, and come from a schedule. The next service finishes everything that the kill
// interrupted: each hook is enqueued once, each planned start of the schedule gives one job, and all
// dependants of ended jobs have run.
func TestKilledAtEachCommit(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	short := []int{7, 29, 61}
	for i, killed := 0, true; killed && (testrig.IsFullScale() || i < len(short)); i++ {
		n := i + 1
		if !testrig.IsFullScale() {
			n = short[i]
		}
		q := testrig.NewHarness(t, "failpoint")
		q.ServiceEnv = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=kill:%d", n)}
		if q.TryStartService("--workers", "4") != nil {
			restartServiceIfDead(q)
		}
		runKillAtCommitScenario(q)
		// If ServiceEnv is nil, restartServiceIfDead has cleared it. Otherwise, the service made fewer than n commits and was
		// not killed.
		killed = q.ServiceEnv == nil
		q.StopService()
	}
}

// If a kill interrupts the freeze of a queue, the next service finishes the freeze. If a kill
// interrupts a resume, a repeated request finishes the resume. No job of a frozen queue runs, and
// no process stays stopped after the resume.
func TestInterruptedQueueFreezeIsFinished(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	const jobs = 6
	for _, verb := range [][]string{{"queue", "pause", "fz", "--freeze"}, {"queue", "resume", "fz"}} {
		cut := 0
		step := 4
		if testrig.IsFullScale() {
			step = 1
		}
		for n := 5; n <= 15; n += step {
			q := testrig.NewHarness(t, "failpoint")
			q.StartService("--workers", fmt.Sprint(jobs))
			q.MustRunCLI("enqueue", "-q", "-Q", "fz", "--lines", q.WriteFile("lines", strings.Repeat("sleep 600\n", jobs)))
			w := q.DialService()
			w.WaitUntil("all jobs run", 20*time.Second, func() bool { return w.JobCountsByState()["processing"] == jobs })
			if verb[1] == "resume" {
				q.MustRunCLI("queue", "pause", "fz", "--freeze")
			}
			q.KillService()
			q.ServiceEnv = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=kill:%d", n)}
			if q.TryStartService("--workers", fmt.Sprint(jobs)) != nil {
				restartServiceIfDead(q)
			}
			q.RunCLI(verb...)
			if restartServiceIfDead(q) {
				cut++
			}
			countPaused := func() (n int) {
				return strings.Count(outputDespiteKills(q, "list", "-s", "processing", "--json"), `"paused_by":"`)
			}
			frozen := strings.Contains(outputDespiteKills(q, "queue", "list", "--json"), `"frozen":true`)
			if verb[1] == "resume" {
				outputDespiteKills(q, verb...)
				frozen = false
			}
			condition := fmt.Sprintf("%v interrupted at commit %d: all jobs are paused: %t", verb, n, frozen)
			q.WaitUntil(condition, 20*time.Second, func() bool {
				return countPaused() == map[bool]int{true: jobs}[frozen]
			})
			outputDespiteKills(q, "cancel", "--all", "--yes")
			q.StopService()
		}
		if cut == 0 {
			t.Errorf("no kill interrupted %v", verb)
		}
	}
}

// runKillAtCommitScenario enqueues the jobs of TestKilledAtEachCommit and waits until these jobs have ended. It checks
// that each hook and each planned start has led to exactly one job, and that `queuectl doctor` finds no problem.
func runKillAtCommitScenario(q *testrig.Harness) {
	q.Helper()
	runDespiteKills(q, "schedule", "add", "s", "@every 1s", "--overlap", "replace", "--max-retries", "0", "--on-ended",
		"true", "--", "sleep", "0.7")
	runDespiteKills(q, "enqueue", "--id", "u1", "--unique", "k", "--delay", "1h", "--on-ended", "true", "true")
	runDespiteKills(q, "enqueue", "--id", "p", "--delay", "300ms", "--max-retries", "1", "--backoff-base", "0.01",
		"--on-failed", "true", "--on-dead", "true", "--on-ended", "true", "exit 3")
	runDespiteKills(q, "enqueue", "--id", "c", "--depends-on", "p:dead", "--on-completed", "true", "true")
	runDespiteKills(q, "enqueue", "--id", "x", "--depends-on", "p:completed", "--on-ended", "true", "true")
	runDespiteKills(q, "enqueue", "--id", "u2", "--unique", "k", "--on-conflict", "replace", "--delay", "1h", "--on-ended",
		"true", "true")
	count := func(args ...string) int {
		return len(strings.Fields(outputDespiteKills(q, append([]string{"list", "-q"}, args...)...)))
	}
	q.WaitUntil("two jobs of the schedule exist, and the other jobs are done", 30*time.Second, func() bool {
		return count("--state", "done", "--id-glob", "s@*") >= 2 && count("--state", "done", "--id-glob", "c") == 1 &&
			count("--id-glob", "x", "--state", "cancelled") == 1
	})
	runDespiteKills(q, "schedule", "rm", "s")
	q.WaitUntil("nothing is left to run", 30*time.Second, func() bool {
		return count("--state", "waiting", "--state", "processing") == 1
	})
	hookCounts := map[string]int{} // number of hook jobs, by the job and the outcome that caused them
	var hooks []struct {
		State  string            `json:"state"`
		Labels map[string]string `json:"labels"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--queue", "hooks", "--json")), &hooks); err != nil {
		q.Fatal(err)
	}
	for _, h := range hooks {
		if h.State != "completed" {
			q.Errorf("a hook job is %s", h.State)
		}
		hookCounts[h.Labels["job"]+" "+h.Labels["hook"]]++
	}
	for _, hook := range []string{"p on_failed", "p on_dead", "p on_ended", "c on_completed", "x on_ended",
		"u1 on_ended"} {
		if hookCounts[hook] != 1 {
			q.Errorf("the hook %s was created %d times", hook, hookCounts[hook])
		}
	}
	for _, id := range strings.Fields(q.MustRunCLI("list", "-q", "--id-glob", "s@*")) {
		if hookCounts[id+" on_ended"] != 1 {
			q.Errorf("the hook %s on_ended was created %d times", id, hookCounts[id+" on_ended"])
		}
	}
	if got := q.ShowJob("u2").State; got != "pending" {
		q.Errorf("u2 is %s", got)
	}
	fired := map[string]bool{}
	for line := range strings.Lines(q.MustRunCLI("events", "--event", "schedule_fired", "--jsonl")) {
		var e struct{ Instant string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || fired[e.Instant] {
			q.Errorf("the occurrence %s has two jobs, or an error: %v", e.Instant, err)
		}
		fired[e.Instant] = true
	}
	checkStatsMatchEvents(q)
	if out := q.RunCLI("doctor", "--verify"); strings.Contains(out.Stdout, "failure") {
		q.Errorf("doctor: %s", out.Stdout)
	}
}

// checkStatsMatchEvents compares the attempt counts in the statistics with the attempts in the events. Call
// checkStatsMatchEvents while no job is running.
func checkStatsMatchEvents(q *testrig.Harness) {
	q.Helper()
	want, got, started := map[string]int64{}, map[string]int64{}, int64(0)
	for line := range strings.Lines(q.MustRunCLI("events", "--event", "ended", "--jsonl")) {
		var e struct{ State string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			q.Fatal(err)
		}
		if e.State == "pending" || e.State == "held" {
			e.State = "returned"
		}
		want[e.State]++
		started++
	}
	var stats struct{ Queues []map[string]any }
	if err := json.Unmarshal([]byte(q.MustRunCLI("stats", "--json")), &stats); err != nil {
		q.Fatal(err)
	}
	for _, figures := range stats.Queues {
		for name, n := range figures {
			if n, ok := n.(float64); ok && n > 0 && name != "failure_rate" {
				got[name] += int64(n)
			}
		}
	}
	want["started"] = started
	if !maps.Equal(got, want) {
		q.Errorf("the statistics are %v, want %v according to the events", got, want)
	}
}
