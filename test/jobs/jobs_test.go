//go:build linux || windows

package jobs

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// retryDelays returns the times from the end of each attempt of a job to the start of its next attempt.
func retryDelays(j testrig.Job) (delays []time.Duration) {
	for i := 1; i < len(j.AttemptHistory); i++ {
		delays = append(delays, j.AttemptHistory[i].StartedAt.Sub(j.AttemptHistory[i-1].FinishedAt))
	}
	return delays
}

// A job that always fails, with a backoff base of 2 and 3 retries, starts at 0, 2, 6 and 14 s and is then
// dead. It keeps the error and output of every attempt.
func TestExponentialBackoffDelaysRetries(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	id := q.MustRunCLI("enqueue",
		`{"command":"echo try $QUEUECTL_ATTEMPT; echo bad >&2; exit 3","max_retries":3,"backoff_base":2}`)
	w := q.DialService()
	j := w.WaitJobEnded(id)
	if j.State != "dead" || j.AttemptCount != 4 || len(j.AttemptHistory) != 4 || j.Error == "" ||
		testrig.ValueOrMinusOne(j.ExitCode) != 3 {
		t.Fatalf("a job that always fails: %+v", j)
	}
	for i, delay := range []time.Duration{0, 2 * time.Second, 6 * time.Second, 14 * time.Second} {
		if got := j.AttemptHistory[i].StartedAt.Sub(j.AttemptHistory[0].StartedAt); !testrig.IsDurationNear(got, delay,
			time.Second) {
			t.Errorf("attempt %d began after %v, want %v", i+1, got, delay)
		}
		if got, want := q.MustRunCLI("logs", id, "--attempt", strconv.Itoa(i+1), "--stdout"),
			fmt.Sprintf("try %d", i+1); got != want {
			t.Errorf("output of attempt %d is %q, want %q", i+1, got, want)
		}
		if testrig.ValueOrMinusOne(j.AttemptHistory[i].ExitCode) != 3 {
			t.Errorf("attempt %d: %+v", i+1, j.AttemptHistory[i])
		}
	}
}

// Each backoff strategy delays the retries as its formula defines, with the configured maximum and jitter.
func TestBackoffStrategiesDelayRetries(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "8")
	q.MustRunCLI("config", "set", "job_retry_delay", "0.3s")
	ms := func(list ...int) (d []time.Duration) {
		for _, n := range list {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	cases := []struct {
		name string
		spec testrig.JSONFields
		want []time.Duration
	}{
		{"exponential 1.5", testrig.JSONFields{"backoff_base": 1.5}, ms(1500, 2250, 3375)},
		{"exponential 0.5", testrig.JSONFields{"backoff_base": 0.5}, ms(500, 250, 125)},
		{"linear", testrig.JSONFields{"backoff_base": 0.2, "backoff_strategy": "linear"}, ms(200, 400, 600)},
		{"fixed", testrig.JSONFields{"backoff_base": 9, "backoff_strategy": "fixed"}, ms(300, 300, 300)},
		{"capped", testrig.JSONFields{"backoff_base": 3, "backoff_max": "250ms"}, ms(250, 250, 250)},
	}
	w := q.DialService()
	ids := make([]string, len(cases))
	for i, c := range cases {
		c.spec["command"], c.spec["max_attempts"] = "exit 1", 4
		ids[i] = w.Enqueue(c.spec)
	}
	for i, c := range cases {
		got := retryDelays(w.WaitJobEnded(ids[i]))
		ok := len(got) == len(c.want)
		for k := range c.want {
			ok = ok && testrig.IsDurationNear(got[k], c.want[k], 500*time.Millisecond)
		}
		if !ok {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.want)
		}
	}
}

// Jitter spreads the retry delays within its bounds, differently for each job.
func TestJitterSpreadsRetryDelays(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "8")
	w := q.DialService()
	var specs []testrig.JSONFields
	for range 20 {
		specs = append(specs, testrig.JSONFields{"command": "exit 1", "max_retries": 1, "backoff_base": 1, "jitter": 0.5})
	}
	var least, most time.Duration
	for _, id := range w.EnqueueBatch(specs) {
		j := w.WaitJobEnded(id)
		if len(retryDelays(j)) != 1 {
			t.Fatalf("job with one retry: got %+v", j)
		}
		d := retryDelays(j)[0]
		if d < 498*time.Millisecond || d > 2*testrig.TimeoutFactor*time.Second {
			t.Errorf("job %s waited %v, want 0.5 to 1.5 s", id, d)
		}
		if least == 0 || d < least {
			least = d
		}
		most = max(most, d)
	}
	if most-least < 200*time.Millisecond {
		t.Errorf("waits from %v to %v are not spread", least, most)
	}
}

// If the program of a job is missing or cannot be executed, the job is dead with exit code 127 or 126 after one
// attempt. A job whose shell does not find a program is retried. A job may specify which exit codes count as success,
// and after which exit codes it is not retried.
func TestExitCodeDecidesWhetherJobIsRetried(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	plain := q.WriteFile("plain"+testrig.ExecutableSuffix, "not a program")
	cases := []struct {
		name     string
		spec     testrig.JSONFields
		state    string
		reason   string
		code     int
		attempts int
	}{
		{"command not found", testrig.JSONFields{"command": "no-such-command-here"}, "dead", "not_found", 127, 3},
		{"program not found", testrig.JSONFields{"argv": []string{"/no/such/program"}}, "dead", "not_found", 127, 1},
		{"directory missing", testrig.JSONFields{"command": "true", "cwd": "/no/such/dir"}, "dead", "not_runnable", 126, 1},
		{"not executable", testrig.JSONFields{"argv": []string{plain}}, "dead", "not_runnable", 126, 1},
		{"shell missing", testrig.JSONFields{"command": "true", "shell": "/no/such/shell -c"}, "dead", "not_found", 127, 1},
		{"a missing program is success", testrig.JSONFields{"argv": []string{"/no/such/program"}, "ok_codes": []int{127}},
			"completed",
			"", 127, 1},
		{"no retry", testrig.JSONFields{"command": "exit 9", "no_retry_codes": []int{7, 9}}, "dead", "", 9, 1},
		{"no retry of another", testrig.JSONFields{"command": "exit 8", "no_retry_codes": []int{7, 9}}, "dead", "", 8, 3},
		{"ok code", testrig.JSONFields{"command": "exit 4", "ok_codes": []int{0, 4}}, "completed", "", 4, 1},
		{"zero is not ok", testrig.JSONFields{"command": "exit 0", "ok_codes": []int{4}}, "dead", "", 0, 3},
		{"timeout", testrig.JSONFields{"command": "sleep 60", "timeout_ms": 60}, "dead", "timed_out",
			testrig.KilledJobExitCode, 3},
		{"no retries at all", testrig.JSONFields{"command": "exit 1", "max_retries": 0}, "dead", "", 1, 1},
		{"attempts", testrig.JSONFields{"command": "exit 1", "max_attempts": 2}, "dead", "", 1, 2},
		{"second time right", testrig.JSONFields{"command": `[ $QUEUECTL_ATTEMPT = 2 ]`}, "completed", "", 0, 2},
	}
	w := q.DialService()
	ids := make([]string, len(cases))
	for i, c := range cases {
		if c.spec["max_attempts"] == nil && c.spec["max_retries"] == nil {
			c.spec["max_attempts"] = 3
		}
		c.spec["backoff_base"] = 0.03
		ids[i] = w.Enqueue(c.spec)
	}
	for i, c := range cases {
		j := w.WaitJobEnded(ids[i])
		if j.State != c.state || j.Reason != c.reason || testrig.ValueOrMinusOne(j.ExitCode) != c.code ||
			j.AttemptCount != c.attempts ||
			len(j.AttemptHistory) != c.attempts {
			t.Errorf("%s: state %s, reason %q, code %d, attempts %d, history %d; want %+v", c.name, j.State, j.Reason,
				testrig.ValueOrMinusOne(j.ExitCode), j.AttemptCount, len(j.AttemptHistory), c)
		}
		if (j.Error == "") != (c.state == "completed") {
			t.Errorf("%s: error %q", c.name, j.Error)
		}
	}
}

// A job starts after its delay or at its run_at. A job that does not start before its expiry is
// cancelled.
func TestJobsStartWhenDueOrExpire(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	timeIn := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }
	started := time.Now()
	delayed := w.Enqueue(testrig.JSONFields{"command": "true", "delay": "700ms"})
	due := w.Enqueue(testrig.JSONFields{"command": "true", "run_at": timeIn(900 * time.Millisecond)})
	alias := w.Enqueue(testrig.JSONFields{"command": "true", "next_run_at": timeIn(800 * time.Millisecond)})
	expired := w.Enqueue(testrig.JSONFields{"command": "true", "delay": "5s",
		"expires_at": timeIn(400 * time.Millisecond)})
	for id, least := range map[string]time.Duration{delayed: 700, due: 900, alias: 800} {
		j := w.WaitJobEnded(id)
		if got := j.AttemptHistory[0].StartedAt.Sub(started); j.State != "completed" ||
			!testrig.IsDurationNear(got, least*time.Millisecond, 700*time.Millisecond) {
			t.Errorf("job %s is %s and began after %v, want %v ms", id, j.State, got, int(least))
		}
	}
	if j := w.WaitJobEnded(expired); j.State != "cancelled" || j.Reason != "expired" || len(j.AttemptHistory) != 0 {
		t.Errorf("expired job: %+v", j)
	}
	if got := time.Since(started); got > 4*testrig.TimeoutFactor*time.Second {
		t.Errorf("expiry took %v", got)
	}
}

// A waiting or running job can be cancelled, and an ended job can be retried. If the state of the job does
// not permit the command, the command fails.
func TestCancelAndRetryDependOnJobState(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	running := w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 60"})
	waiting := w.Enqueue(testrig.JSONFields{"command": "echo again"})
	w.WaitJobRunning(running)
	steps := []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"retry", running}, 5, "cancel"},
		{[]string{"retry", waiting}, 0, ""},
		{[]string{"cancel", waiting}, 0, ""},
		{[]string{"cancel", waiting}, 0, ""},
		{[]string{"cancel", running}, 0, ""},
		{[]string{"cancel", "no-such"}, 4, "no-such"},
		{[]string{"cancel", "no-such", running}, 4, "no-such"},
		{[]string{"retry", waiting}, 0, ""},
	}
	for _, s := range steps {
		if r := q.RunCLI(s.args...); r.ExitCode != s.code || !strings.Contains(r.Stderr, s.err) {
			t.Errorf("%v: code %d, stderr %q; want %d, %q", s.args, r.ExitCode, r.Stderr, s.code, s.err)
		}
	}
	if j := w.ShowJob(running); j.State != "cancelled" || j.Reason != "cancelled" || j.AttemptCount != 1 ||
		testrig.IsProcessAlive(j.AttemptHistory[0].PID) {
		t.Errorf("cancelled while it ran: %+v", j)
	}
	if j := w.WaitJobEnded(waiting); j.State != "completed" || j.Output != "again\n" {
		t.Errorf("cancelled, then retried: %+v", j)
	}
	if r := q.RunCLI("cancel", waiting); r.ExitCode != 5 {
		t.Errorf("cancel of a completed job: code %d, stderr %q", r.ExitCode, r.Stderr)
	}
	q.MustRunCLI("retry", waiting)
	if j := w.WaitJobEnded(waiting); j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 2 {
		t.Errorf("completed, then retried: %+v", j)
	}
}

// The dead-letter queue lists the jobs that failed for good. A user can retry such a job, which
// then gets all its attempts again, or remove it.
func TestDeadLetterCanBeRetriedOrRemoved(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	fixed := q.Path("fixed")
	var specs []testrig.JSONFields
	for _, id := range []string{"a", "b", "c"} {
		specs = append(specs, testrig.JSONFields{"id": id, "command": "[ -e " + fixed + " ]", "max_attempts": 2,
			"backoff_base": 0.02,
			"timeout":      50})
	}
	for _, id := range w.EnqueueBatch(specs) {
		w.WaitJobEnded(id)
	}
	if got := q.MustRunCLI("dlq", "list"); !strings.Contains(got, "2/2") || !strings.Contains(got, "exit code 1") {
		t.Errorf("dlq list: %s", got)
	}
	if got := q.MustRunCLI("dlq", "list", "-q"); got != "c\nb\na" {
		t.Errorf("dlq list -q: %q", got)
	}
	q.WriteFile("fixed", "")
	q.MustRunCLI("dlq", "retry", "a", "--timeout", "7s")
	if j := w.WaitJobEnded("a"); j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 3 ||
		j.Error != "" {
		t.Errorf("dlq retry a: %+v", j)
	}
	if got := q.MustRunCLI("show", "a", "--json"); !strings.Contains(got, `"timeout_ms":7000`) {
		t.Errorf("timeout not replaced: %s", got)
	}
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"dlq", "retry", "a"}, 5}, {[]string{"dlq", "retry", "none"}, 4}, {[]string{"dlq", "retry"}, 2},
		{[]string{"dlq", "clear"}, 2}, {[]string{"dlq", "retry", "b", "--all"}, 2}} {
		if r := q.RunCLI(c.args...); r.ExitCode != c.code || r.Stderr == "" {
			t.Errorf("%v: code %d, stderr %q; want %d", c.args, r.ExitCode, r.Stderr, c.code)
		}
	}
	q.MustRunCLI("dlq", "clear", "--yes")
	if got := q.MustRunCLI("dlq", "list", "--json"); got != "[]" {
		t.Errorf("dlq list after clear: %s", got)
	}
	if r := q.RunCLI("show", "b"); r.ExitCode != 4 {
		t.Errorf("show of a removed job: code %d", r.ExitCode)
	}
	// The id b can be used again, because the first job with that id was removed.
	w.Enqueue(testrig.JSONFields{"id": "b", "command": "exit 1", "max_retries": 0})
	w.WaitJobEnded("b")
	if got := q.MustRunCLI("dlq", "retry", "--all"); got != "b" {
		t.Errorf("dlq retry --all: %q", got)
	}
}

// On 8 workers, 3,000 jobs (fewer on slow systems) run exactly once each.
func TestEachJobRunsOnce(t *testing.T) {
	testrig.SkipIfShort(t)
	const n = 3000 / testrig.JobCountDivisor
	q := testrig.StartQueue(t, "--workers", "8")
	var specs []testrig.JSONFields
	for range n {
		specs = append(specs, testrig.JSONFields{"command": "echo $QUEUECTL_JOB_ID >>" + q.Path("ledger"), "max_retries": 0})
	}
	w := q.DialService()
	ids := w.EnqueueBatch(specs)
	q.WaitUntil("all have completed", 50*time.Second, func() bool { return w.JobCountsByState()["completed"] == n })
	got := strings.Fields(q.ReadFile("ledger"))
	sort.Strings(got)
	sort.Strings(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("%d lines for %d jobs", len(got), len(ids))
	}
}

// Five jobs of 2 s on three workers take two rounds: three jobs run at the same time, and then the other two.
func TestWorkersRunJobsConcurrently(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "3")
	w := q.DialService()
	started := time.Now()
	ids := w.EnqueueBatch(slices.Repeat([]testrig.JSONFields{{"argv": []string{testrig.ToolPath("sleep"), "2"}}}, 5))
	for _, id := range ids {
		w.WaitJobEnded(id)
	}
	if got := time.Since(started); !testrig.IsDurationNear(got, 4*time.Second, 1500*time.Millisecond) {
		t.Errorf("took %v, want about 4 s", got)
	}
}

// Enqueued jobs survive a full stop and run after the next start.
func TestEnqueuedJobsSurviveServiceStop(t *testing.T) {
	const n = 100 / testrig.JobCountDivisor
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	ids := w.EnqueueBatch(slices.Repeat([]testrig.JSONFields{{"command": "echo $QUEUECTL_JOB_ID"}}, n))
	named := w.Enqueue(testrig.JSONFields{"id": "named", "command": "echo named", "priority": 9,
		"labels": testrig.JSONFields{"a": "b"}})
	before := q.MustRunCLI("show", named, "--json")
	if code := q.StopService(); code != 0 {
		t.Fatalf("stop: exit code %d", code)
	}
	q.WaitUntil("no process is left", 5*time.Second, func() bool { return len(q.RunnerPIDs()) == 0 })
	q.StartService("--workers", "0")
	w = q.DialService()
	drop := func(s string) string { s, _, _ = strings.Cut(s, `"queue_time_ms"`); return s }
	if after := q.MustRunCLI("show", named, "--json"); drop(after) != drop(before) {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	if got := w.JobCountsByState()["pending"]; got != n+1 {
		t.Fatalf("%d jobs are pending, want %d", got, n+1)
	}
	q.MustRunCLI("worker", "start", "-c", "2")
	for _, id := range append(ids, named) {
		if j := w.WaitJobEnded(id); j.State != "completed" || j.Output != id+"\n" || j.AttemptCount != 1 {
			t.Errorf("job after the restart: %+v", j)
		}
	}
}

// A worker that is stopped finishes its job and starts no other. If the job still runs at the
// deadline of the stop, it is ended and returned to the queue, and the attempt does not count.
func TestStoppedWorkerFinishesItsJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	short := w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf("echo up; sleep %.1f; echo done",
		0.7*testrig.TimeoutFactor)})
	w.WaitJobRunning(short)
	w.Enqueue(testrig.JSONFields{"id": "blocker", "command": fmt.Sprintf("echo up; sleep %.1f",
		0.7*testrig.TimeoutFactor)})
	w.WaitJobRunning("blocker")
	next := w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 30"})
	q.MustRunCLI("worker", "stop", "--all")
	if j := w.ShowJob(short); j.State != "completed" || j.Output != "up\ndone\n" {
		t.Errorf("running job after worker stop: %+v", j)
	}
	if j := w.ShowJob(next); j.State != "pending" || len(j.AttemptHistory) != 0 {
		t.Errorf("waiting job after worker stop: %+v", j)
	}
	for i, args := range [][]string{{"worker", "stop", "--all", "--force"},
		{"worker", "stop", "--timeout", "300ms", "--all"}} {
		q.MustRunCLI("worker", "scale", "1")
		pid := w.WaitJobRunning(next).PID
		started := time.Now()
		q.MustRunCLI(args...)
		if got := time.Since(started); got > 5*testrig.TimeoutFactor*time.Second || i == 1 && got < 290*time.Millisecond {
			t.Errorf("%v took %v", args, got)
		}
		if j := w.ShowJob(next); j.State != "pending" || j.Reason != "stopped" || j.AttemptCount != 0 ||
			len(j.AttemptHistory) != i+1 ||
			testrig.IsProcessAlive(pid) {
			t.Errorf("after %v: %+v", args, j)
		}
	}
	q.MustRunCLI("cancel", next)
}

// Workers can be added, removed, set and listed. Zero workers is not an error.
func TestWorkersCanBeScaledAndListed(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	if got := q.MustRunCLI("worker", "list", "--json"); got != "[]" {
		t.Errorf("no workers: %s", got)
	}
	if got := q.MustRunCLI("worker", "list"); got != "" {
		t.Errorf("no workers: %q", got)
	}
	for _, c := range []struct {
		args string
		want int
	}{{"start", 1}, {"start -c 3", 4}, {"stop -c 1", 3}, {"scale 5", 5}, {"scale 5", 5}, {"start --count 2", 7},
		{"stop -c 99", 0}, {"scale 2", 2}} {
		q.MustRunCLI(append([]string{"worker"}, strings.Fields(c.args)...)...)
		var list struct{ Workers []testrig.JSONFields }
		w.MustCall("worker.list", nil, &list)
		if len(list.Workers) != c.want {
			t.Errorf("worker %s: %d workers, want %d", c.args, len(list.Workers), c.want)
		}
	}
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 30"})
	j := w.WaitJobRunning(id)
	var list struct {
		Workers []struct {
			ID, Node, State, Job string
			PID                  int
			StartedAt            string `json:"started_at"`
			LastHeartbeat        string `json:"last_heartbeat"`
		}
	}
	w.MustCall("worker.list", nil, &list)
	busy := 0
	for _, x := range list.Workers {
		if x.State == "busy" && x.Job == id && x.PID == j.PID && x.StartedAt != "" {
			busy++
		}
		if x.ID == "" || x.Node == "" || x.LastHeartbeat == "" {
			t.Errorf("worker %+v", x)
		}
	}
	var st struct {
		Workers struct{ Total, Busy, Idle int }
	}
	w.MustCall("status", nil, &st)
	if busy != 1 || st.Workers.Total != 2 || st.Workers.Busy != 1 || st.Workers.Idle != 1 {
		t.Errorf("list %+v, status %+v", list.Workers, st.Workers)
	}
	for _, bad := range []string{"scale -1", "scale x", "start -c 0", "stop -c -3", "stop extra"} {
		if r := q.RunCLI(append([]string{"worker"}, strings.Fields(bad)...)...); r.ExitCode != 2 {
			t.Errorf("worker %s: code %d", bad, r.ExitCode)
		}
	}
}

// Some exit codes defer the job: the attempt does not count, and the job runs again after job_retry_delay.
func TestDeferExitCodesDelayJobWithoutUsingAttempt(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("config", "set", "job_retry_delay", "0.3s")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "[ $QUEUECTL_ATTEMPT = 3 ] || exit 75", "defer_codes": []int{75},
		"max_retries": 0})
	j := w.WaitJobEnded(id)
	if j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 3 ||
		j.AttemptHistory[1].Reason != "deferred" {
		t.Fatalf("a job that defers itself twice: %+v", j)
	}
	for _, wait := range retryDelays(j) {
		if !testrig.IsDurationNear(wait, 300*time.Millisecond, 400*time.Millisecond) {
			t.Errorf("deferred for %v, want 0.3 s", wait)
		}
	}
}

// A job that prints nothing for its idle timeout is ended. A job that prints occasionally continues.
func TestIdleTimeoutEndsSilentJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	chatty := w.Enqueue(testrig.JSONFields{"command": "for i in 1 2 3 4 5 6; do echo $i >&2; sleep 0.2; done",
		"idle_timeout": 0.8 * testrig.TimeoutFactor, "max_retries": 0})
	silent := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600", "idle_timeout": 0.4 * testrig.TimeoutFactor,
		"max_retries": 0,
		"kill_after":  1})
	if j := w.WaitJobEnded(silent); j.State != "dead" || j.Reason != "timed_out" ||
		!strings.Contains(j.Error, "printed nothing for "+(testrig.TimeoutFactor*400*time.Millisecond).String()) ||
		j.Output != "up\n" {
		t.Errorf("silent: %+v", j)
	}
	if j := w.WaitJobEnded(chatty); j.State != "completed" {
		t.Errorf("chatty: %+v", j)
	}
	if r := q.RunCLI("run", "--max-retries", "0", "--idle-timeout", "0.2", "--kill-after", "1",
		"sleep 600"); r.ExitCode != 124 {
		t.Errorf("run: %+v, want code 124", r)
	}
}
