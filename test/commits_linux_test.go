package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// runThroughKills runs a command during which a failpoint may kill the service. If the service dies, it
// starts the service and runs the command again.
func (q *queue) runThroughKills(args ...string) {
	q.Helper()
	for n := range 3 {
		got := q.cli(args...)
		// The command fails when it is repeated if its first run has already taken effect.
		done := n > 0 && (got.code == 5 && strings.Contains(got.err, "another job has") || got.code == 4)
		if got.code == 0 || done {
			return
		}
		if !q.restartIfDead() {
			q.Fatalf("%q: %+v", args, got)
		}
	}
	q.Fatalf("%q: the service dies of it each time", args)
}

// outputThroughKills returns the output of a command. If the service dies, it starts the service and runs the
// command again.
func (q *queue) outputThroughKills(args ...string) string {
	q.Helper()
	for {
		if got := q.cli(args...); got.code == 0 {
			return got.out
		} else if !q.restartIfDead() {
			q.Fatalf("%q: %+v", args, got)
		}
	}
}

// restartIfDead reports whether the service has ended, and starts it again in that case.
func (q *queue) restartIfDead() bool {
	q.Helper()
	select {
	case <-q.ended:
		q.cmd, q.env = nil, nil
		q.start("--workers", "4")
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// TestKilledAtEachCommit kills the service at its n-th commit, for each n. In the meantime, jobs
// release dependants, replace each other, run hooks, and come from a schedule. The next service
// finishes whatever was interrupted: each hook is enqueued once, no occurrence of the schedule
// runs twice, and all dependants of ended jobs have run.
func TestKilledAtEachCommit(t *testing.T) {
	t.Parallel()
	short := []int{7, 29, 61}
	for i, killed := 0, true; killed && (fullScale() || i < len(short)); i++ {
		n := i + 1
		if !fullScale() {
			n = short[i]
		}
		q := newQueue(t, "failpoint")
		q.env = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=kill:%d", n)}
		if q.tryStart("--workers", "4") != nil {
			q.restartIfDead()
		}
		runCommitScenario(q)
		killed = q.env == nil // otherwise the service never reached commit n
		q.stop()
	}
}

// If a kill interrupts the freeze of a queue, the next service finishes it. If a kill interrupts a
// resume, repeating the request finishes it. No job of a frozen queue runs, and no job stays
// stopped once its queue is not frozen.
func TestInterruptedFreezeIsFinished(t *testing.T) {
	t.Parallel()
	const jobs = 6
	for _, verb := range [][]string{{"queue", "pause", "fz", "--freeze"}, {"queue", "resume", "fz"}} {
		cut := 0
		step := 4
		if fullScale() {
			step = 1
		}
		for n := 5; n <= 15; n += step {
			q := newQueue(t, "failpoint")
			q.start("--workers", fmt.Sprint(jobs))
			q.must("enqueue", "-q", "-Q", "fz", "--lines", q.writeFile("lines", strings.Repeat("sleep 600\n", jobs)))
			w := q.dial()
			w.waitUntil("they run", 20*time.Second, func() bool { return w.counts()["processing"] == jobs })
			if verb[1] == "resume" {
				q.must("queue", "pause", "fz", "--freeze")
			}
			q.kill()
			q.env = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=kill:%d", n)}
			if q.tryStart("--workers", fmt.Sprint(jobs)) != nil {
				q.restartIfDead()
			}
			q.cli(verb...)
			if q.restartIfDead() {
				cut++
			}
			countPaused := func() (n int) {
				return strings.Count(q.outputThroughKills("list", "-s", "processing", "--json"), `"paused_by":"`)
			}
			frozen := strings.Contains(q.outputThroughKills("queue", "list", "--json"), `"frozen":true`)
			if verb[1] == "resume" {
				q.outputThroughKills(verb...)
				frozen = false
			}
			q.waitUntil(fmt.Sprintf("%v cut at %d: they stand still: %t", verb, n, frozen), 20*time.Second, func() bool {
				return countPaused() == map[bool]int{true: jobs}[frozen]
			})
			q.outputThroughKills("cancel", "--all", "--yes")
			q.stop()
		}
		if cut == 0 {
			t.Errorf("%v was never cut", verb)
		}
	}
}

func runCommitScenario(q *queue) {
	q.Helper()
	q.runThroughKills("schedule", "add", "s", "@every 1s", "--overlap", "replace", "--max-retries", "0", "--on-ended",
		"true", "--", "sleep", "0.7")
	q.runThroughKills("enqueue", "--id", "u1", "--unique", "k", "--delay", "1h", "--on-ended", "true", "true")
	q.runThroughKills("enqueue", "--id", "p", "--delay", "300ms", "--max-retries", "1", "--backoff-base", "0.01",
		"--on-failed", "true", "--on-dead", "true", "--on-ended", "true", "exit 3")
	q.runThroughKills("enqueue", "--id", "c", "--depends-on", "p:dead", "--on-completed", "true", "true")
	q.runThroughKills("enqueue", "--id", "x", "--depends-on", "p:completed", "--on-ended", "true", "true")
	q.runThroughKills("enqueue", "--id", "u2", "--unique", "k", "--on-conflict", "replace", "--delay", "1h", "--on-ended",
		"true", "true")
	count := func(args ...string) int {
		return len(strings.Fields(q.outputThroughKills(append([]string{"list", "-q"}, args...)...)))
	}
	q.waitUntil("two jobs of the schedule, and all that follows from the others", 30*time.Second, func() bool {
		return count("--state", "done", "--id-glob", "s@*") >= 2 && count("--state", "done", "--id-glob", "c") == 1 &&
			count("--id-glob", "x", "--state", "cancelled") == 1
	})
	q.runThroughKills("schedule", "rm", "s")
	q.waitUntil("nothing is left to run", 30*time.Second, func() bool {
		return count("--state", "waiting", "--state", "processing") == 1
	})
	hookCounts := map[string]int{} // number of hook jobs, by the job and the outcome that caused the hook
	var hooks []struct {
		State  string            `json:"state"`
		Labels map[string]string `json:"labels"`
	}
	if err := json.Unmarshal([]byte(q.must("list", "--queue", "hooks", "--json")), &hooks); err != nil {
		q.Fatal(err)
	}
	for _, h := range hooks {
		if h.State != "completed" {
			q.Errorf("a hook is %s", h.State)
		}
		hookCounts[h.Labels["job"]+" "+h.Labels["hook"]]++
	}
	for _, hook := range []string{"p on_failed", "p on_dead", "p on_ended", "c on_completed", "x on_ended",
		"u1 on_ended"} {
		if hookCounts[hook] != 1 {
			q.Errorf("%s was made %d times", hook, hookCounts[hook])
		}
	}
	for _, id := range strings.Fields(q.must("list", "-q", "--id-glob", "s@*")) {
		if hookCounts[id+" on_ended"] != 1 {
			q.Errorf("%s on_ended was made %d times", id, hookCounts[id+" on_ended"])
		}
	}
	if got := q.show("u2").State; got != "pending" {
		q.Errorf("u2 is %s", got)
	}
	fired := map[string]bool{}
	for line := range strings.Lines(q.must("events", "--event", "schedule_fired", "--jsonl")) {
		var e struct{ Instant string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || fired[e.Instant] {
			q.Errorf("%s fired twice, or %v", e.Instant, err)
		}
		fired[e.Instant] = true
	}
	q.checkStats()
	if out := q.cli("doctor", "--verify"); strings.Contains(out.out, "failure") {
		q.Errorf("doctor: %s", out.out)
	}
}

// checkStats compares the statistics with the attempts in the events. No job may be running.
func (q *queue) checkStats() {
	q.Helper()
	want, got, started := map[string]int64{}, map[string]int64{}, int64(0)
	for line := range strings.Lines(q.must("events", "--event", "ended", "--jsonl")) {
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
	if err := json.Unmarshal([]byte(q.must("stats", "--json")), &stats); err != nil {
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
		q.Errorf("the figures are %v, and events tell of %v", got, want)
	}
}
