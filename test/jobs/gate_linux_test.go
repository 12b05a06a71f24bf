package jobs

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A job can request exclusive units of a resource. An environment variable contains the names of the job's
// units. No two jobs hold the same unit at the same time, even if the service and its runners are killed. A
// request for units that can never be available is refused.
func TestResourceUnitsAreExclusive(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	file := q.WriteFile("q.toml", "workers = 8\nmax_retries = 20\n[resources.gpu]\nids = [\"a\", \"b\", \"c\", "+
		"\"d\"]\nenv = \"CARDS\"\n[resources.disk]\ncount = 2\n")
	q.StartService("--config", file)
	for need, want := range map[string]string{"gpu=5": "the job needs 5 units of the resource gpu, but only 4 exist",
		"gp=1": `there is no resource "gp"; did you mean "gpu"?`} {
		if r := q.RunCLI("enqueue", "--resource", need, "true"); r.ExitCode != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %s", need, r.ExitCode, r.Stderr)
		}
	}
	// Each unit is a lock file. A job holds the lock until its last process has ended.
	script := q.WriteFile(
		"take",
		`n=4; for u in $(echo "$CARDS" | tr , ' '); do eval "exec $n>taken-$u"; flock -n $n || echo "$CARDS $QUEUECTL_JOB_ID" >>twice; n=$((n + 1)); done
[ "$CARDS" = "$QUEUECTL_RESOURCE_GPU" ] || echo "$CARDS, $QUEUECTL_RESOURCE_GPU" >>twice
sleep 0.03; echo "$QUEUECTL_JOB_ID" >>done`)
	jobs, kills := 100, 5
	if testrig.IsFullScale() {
		jobs, kills = 1000, 20
	}
	var lines strings.Builder
	for i := range jobs {
		fmt.Fprintf(&lines, `{"command": "sh %s", "cwd": %q, "resources": {"gpu": %d}}`+"\n", script, q.StateDir, 1+i%3)
	}
	q.MustRunCLI("enqueue", "--file", q.WriteFile("jobs", lines.String()))
	for i := range kills {
		// Let some jobs complete before each kill. A job that is interrupted by a kill runs alone next time, and after three
		// interruptions it would be dead with the reason "poison".
		completed := countJobsInState(q, "completed")
		q.WaitUntil("some more have run", 30*time.Second, func() bool {
			return countJobsInState(q, "completed") >= min(jobs, completed+8)
		})
		if i%2 == 1 {
			q.KillRunners()
			continue
		}
		q.KillService()
		q.StartService("--config", file)
	}
	q.WaitUntil("all have run", testrig.TimeoutFactor*2*time.Minute,
		func() bool { return countJobsInState(q, "completed") >= jobs })
	completed := map[string]bool{}
	for id := range strings.FieldsSeq(q.ReadFile("done")) {
		completed[id] = true
	}
	if len(completed) != jobs {
		t.Errorf("%d of %d jobs completed", len(completed), jobs)
	}
	if text, err := os.ReadFile(q.Path("twice")); err == nil {
		t.Errorf("units were taken twice: %s", text)
	}
	q.MustRunCLI("enqueue", "--id", "shown", "--resource", "gpu=2", "--resource", "disk=1", "sleep 600")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob("shown").State == "processing" })
	if out := q.MustRunCLI("show", "shown", "--json"); !strings.Contains(out, `"units":{"disk":["0"],"gpu":["a","b"]}`) {
		t.Errorf("show --json does not contain the units of the job: %s", out)
	}
	q.MustRunCLI("config", "set", "resources", "gpu=3")
	q.MustRunCLI("enqueue", "--id", "more", "--resource", "gpu=2", "true")
	if out := q.MustRunCLI("why", "more"); !strings.Contains(out,
		"resource gpu: 2 of 3 units in use, but the job needs 2") {
		t.Errorf("why: %s", out)
	}
	if out := q.MustRunCLI("status"); !strings.Contains(out, "resource gpu") {
		t.Errorf("status does not name the resource that the job waits for: %s", out)
	}
	q.MustRunCLI("cancel", "shown")
	q.MustRunCLI("wait", "more")
}

// The concurrency limit and the pause of a queue survive a kill of the service. A pause with a duration ends
// when that time is over.
func TestQueueLimitAndPauseSurviveServiceKill(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	q.MustRunCLI("queue", "set", "one", "--concurrency", "1", "--default", "max_retries=0")
	q.MustRunCLI("enqueue", "-Q", "one", "--cwd", q.StateDir, "--", "sh", "-c", "mkdir alone && sleep 0.1 && rmdir alone")
	for range 5 {
		q.MustRunCLI("enqueue", "-q", "-Q", "one", "--cwd", q.StateDir, "--", "sh", "-c",
			"mkdir alone && sleep 0.02 && rmdir alone")
	}
	q.KillService()
	q.StartService("--workers", "4")
	q.WaitUntil("all jobs of queue one have run", 30*time.Second,
		func() bool { return countJobsInState(q, "completed") == 6 })
	if n := countJobsInState(q, "dead"); n != 0 {
		t.Errorf("%d jobs ran concurrently with another job of their queue", n)
	}
	q.MustRunCLI("queue", "pause", "default", "--reason", "a test")
	q.MustRunCLI("enqueue", "--id", "waits", "true")
	q.KillService()
	q.StartService("--workers", "4")
	if out := q.MustRunCLI("why", "waits"); !strings.Contains(out, "queue default is paused") {
		t.Errorf("after a restart: %s", out)
	}
	q.MustRunCLI("queue", "resume", "default")
	q.MustRunCLI("wait", "waits", "--timeout", "20")
	q.MustRunCLI("enqueue", "-Q", "one", "--id", "busy", "--timeout", "60s", "sleep 600")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob("busy").State == "processing" })
	q.MustRunCLI("enqueue", "-Q", "one", "--id", "alone", "--timeout", "60s", "sleep 600")
	q.MustRunCLI("queue", "set", "one", "--concurrency", "2")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob("alone").State == "processing" })
	q.MustRunCLI("pause", "alone")
	q.MustRunCLI("queue", "pause", "one", "--freeze")
	if out := q.MustRunCLI("show", "busy", "--json"); !strings.Contains(out, `"paused_by":"`) {
		t.Errorf("the running job was not paused with its queue: %s", out)
	}
	if code := q.StopService(); code != 0 {
		t.Errorf("the service ends with %d", code)
	}
	q.StartService("--workers", "4")
	q.MustRunCLI("queue", "resume", "one")
	q.WaitUntil("the jobs of the frozen queue, which the stop has requeued, run again", 10*time.Second, func() bool {
		return q.ShowJob("busy").State == "processing" && q.ShowJob("alone").State == "processing"
	})
	q.MustRunCLI("pause", "alone")
	q.MustRunCLI("queue", "pause", "one", "--freeze")
	q.MustRunCLI("queue", "resume", "one")
	if out := q.MustRunCLI("show", "busy", "--json"); !strings.Contains(out, `"paused_by":null`) {
		t.Errorf("the job was not resumed with its queue: %s", out)
	}
	if out := q.MustRunCLI("show", "alone", "--json"); !strings.Contains(out, `"paused_by":"`) {
		t.Errorf("resuming the queue resumed a job that was paused separately: %s", out)
	}
	q.MustRunCLI("cancel", "busy", "alone")
	q.MustRunCLI("queue", "pause", "default")
	q.MustRunCLI("enqueue", "--id", "later", "true")
	q.MustRunCLI("queue", "pause", "default", "--for", "1s")
	q.MustRunCLI("wait", "later", "--timeout", "20")
}

// After the reply to a pause of a queue, no job of the queue starts, not even one that was already sent to a
// runner. With --freeze, running jobs stop too, including those that have just started.
func TestPausedQueuesStartNoJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	for round := range 12 {
		name := fmt.Sprint("q", round)
		w.EnqueueBatch(slices.Repeat([]testrig.JSONFields{{"command": "echo >>started; sleep 0.05; echo >>ended",
			"queue": name, "cwd": q.StateDir,
			"max_retries": 0}}, 40))
		// Each round pauses the queue at a different time. At that time, some jobs are running and others are about to start.
		time.Sleep(time.Duration(round) * 3 * time.Millisecond)
		args, freeze := []string{"queue", "pause", name}, round%2 == 1
		if freeze {
			args = append(args, "--freeze")
		}
		q.MustRunCLI(args...)
		lines := func(file string) int { return strings.Count(q.ReadFile(file), "\n") }
		if !freeze {
			w.WaitUntil("the running jobs have ended", 10*time.Second, func() bool {
				var list struct {
					Queues []struct {
						Queue   string
						Running int
					}
				}
				w.MustCall("queue.list", testrig.JSONFields{}, &list)
				for _, q := range list.Queues {
					if q.Queue == name {
						return q.Running == 0
					}
				}
				return false
			})
		}
		started, ended := lines("started"), lines("ended")
		time.Sleep(150 * time.Millisecond) // enough time for more jobs to start and end
		if now := lines("started"); now != started {
			t.Errorf("round %d, freeze %t: %d jobs have started after the pause", round, freeze, now-started)
		}
		if now := lines("ended"); now != ended {
			t.Errorf("round %d, freeze %t: %d jobs have ended after the pause", round, freeze, now-ended)
		}
		q.MustRunCLI("queue", "resume", name)
		w.WaitUntil("all have run", 30*time.Second, func() bool { return lines("ended") == 40*(round+1) })
	}
}

// If two queues with weights of 3 and 1 always have waiting jobs, their jobs start in the proportion 3 to 1.
func TestWeightsShareTheStarts(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("queue", "set", "three", "--weight", "3")
	var lines strings.Builder
	starts := 400
	if testrig.IsFullScale() {
		starts = 10_000
	}
	for i := range 2 * starts {
		fmt.Fprintf(&lines, `{"argv": ["true"], "queue": %q}`+"\n", []string{"three", "one"}[i%2])
	}
	q.MustRunCLI("enqueue", "-q", "--file", q.WriteFile("jobs", lines.String()))
	q.MustRunCLI("worker", "scale", "1")
	q.WaitUntil("half have run", 120*time.Second, func() bool { return countJobsInState(q, "completed") >= starts })
	q.MustRunCLI("worker", "scale", "0")
	startCounts := map[string]int{}
	for line := range strings.Lines(q.MustRunCLI("list", "-s", "completed", "--limit", fmt.Sprint(starts), "--sort",
		"finished",
		"--columns", "queue")) {
		startCounts[strings.TrimSpace(line)]++
	}
	if n := startCounts["three"]; n < starts*3/4*95/100 || n > starts*3/4*105/100 {
		t.Errorf("of %d starts the queue of weight 3 had %d: %v", starts, n, startCounts)
	}
}

// countJobsInState returns the number of jobs in a state.
func countJobsInState(q *testrig.Harness, state string) (n int) {
	for line := range strings.Lines(q.MustRunCLI("status")) {
		if ids := strings.Fields(line); len(ids) == 2 && ids[0] == state {
			n, _ = strconv.Atoi(ids[1])
		}
	}
	return n
}

// No time window has more starts than the rate limit allows, even if the service and its runners
// are killed. The jobs use all starts that the limit allows.
func TestRateOverKills(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "4")
	seconds, kills := 4, 2 // duration of the test in seconds, and number of kills during this time
	if testrig.IsFullScale() {
		seconds, kills = 60, 20
	}
	var lines strings.Builder
	for range 10 * (seconds + 5) {
		lines.WriteString(`{"argv": ["true"], "rate_limit": "api=10/s", "max_retries": 9}` + "\n")
	}
	q.MustRunCLI("enqueue", "-q", "--file", q.WriteFile("jobs", lines.String()))
	for i := range kills {
		// The rate limits how many jobs start during this pause.
		time.Sleep(time.Duration(seconds) * time.Second / time.Duration(kills))
		if i%2 == 0 {
			q.KillService()
			q.StartService("--workers", "4")
		} else {
			q.KillRunners()
		}
	}
	var jobs []struct {
		StartedAt time.Time `json:"started_at"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--state", "completed", "--limit", "1000", "--json")),
		&jobs); err != nil {
		t.Fatal(err)
	}
	startTimes := make([]time.Time, len(jobs))
	for i := range jobs {
		startTimes[i] = jobs[i].StartedAt
	}
	slices.SortFunc(startTimes, time.Time.Compare)
	for i := 10; i < len(startTimes); i++ {
		if elapsed := startTimes[i].Sub(startTimes[i-10]); elapsed < time.Second {
			t.Errorf("11 jobs started within %v, from %v on", elapsed, startTimes[i-10])
		}
	}
	minute := 0
	for _, a := range startTimes {
		if a.Sub(startTimes[0]) < time.Duration(seconds)*time.Second {
			minute++
		}
	}
	t.Logf("%d jobs started in %d s, with %d kills", minute, seconds, kills)
	if least := seconds*10 - 10; minute < least {
		t.Errorf("%d jobs started in %d s, want at least %d", minute, seconds, least)
	}
}
