//go:build linux || windows

package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

// retryDelays returns the times between each attempt's end and the next one's start.
func (j job) retryDelays() (list []time.Duration) {
	for i := 1; i < len(j.History); i++ {
		list = append(list, j.History[i].StartedAt.Sub(j.History[i-1].FinishedAt))
	}
	return list
}

// A job that always fails, with a backoff base of 2 and 3 retries, starts at 0, 2, 6 and 14 s and is then
// dead. It keeps the error and output of every attempt.
func TestExponentialBackoffTimes(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	id := q.must("enqueue", `{"command":"echo try $QUEUECTL_ATTEMPT; echo bad >&2; exit 3","max_retries":3,"backoff_base":2}`)
	w := q.dial()
	j := w.waitEnded(id)
	if j.State != "dead" || j.Attempts != 4 || len(j.History) != 4 || j.Error == "" || deref(j.ExitCode) != 3 {
		t.Fatalf("got %+v", j)
	}
	for i, delay := range []time.Duration{0, 2 * time.Second, 6 * time.Second, 14 * time.Second} {
		if got := j.History[i].StartedAt.Sub(j.History[0].StartedAt); !near(got, delay, time.Second) {
			t.Errorf("attempt %d began after %v, want %v", i+1, got, delay)
		}
		if got, want := q.must("logs", id, "--attempt", strconv.Itoa(i+1), "--stdout"),
			fmt.Sprintf("try %d", i+1); got != want {
			t.Errorf("output of attempt %d is %q, want %q", i+1, got, want)
		}
		if deref(j.History[i].ExitCode) != 3 {
			t.Errorf("attempt %d: %+v", i+1, j.History[i])
		}
	}
}

// Each backoff strategy waits as its formula defines, with the configured maximum and jitter.
func TestBackoffStrategies(t *testing.T) {
	q := startQueue(t, "--workers", "8")
	q.must("config", "set", "job_retry_delay", "0.3s")
	ms := func(list ...int) (d []time.Duration) {
		for _, n := range list {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	cases := []struct {
		name string
		spec fields
		want []time.Duration
	}{
		{"exponential 1.5", fields{"backoff_base": 1.5}, ms(1500, 2250, 3375)},
		{"exponential 0.5", fields{"backoff_base": 0.5}, ms(500, 250, 125)},
		{"linear", fields{"backoff_base": 0.2, "backoff_strategy": "linear"}, ms(200, 400, 600)},
		{"fixed", fields{"backoff_base": 9, "backoff_strategy": "fixed"}, ms(300, 300, 300)},
		{"capped", fields{"backoff_base": 3, "backoff_max": "250ms"}, ms(250, 250, 250)},
	}
	w := q.dial()
	ids := make([]string, len(cases))
	for i, c := range cases {
		c.spec["command"], c.spec["max_attempts"] = "exit 1", 4
		ids[i] = w.enqueue(c.spec)
	}
	for i, c := range cases {
		got := w.waitEnded(ids[i]).retryDelays()
		ok := len(got) == len(c.want)
		for k := range c.want {
			ok = ok && near(got[k], c.want[k], 500*time.Millisecond)
		}
		if !ok {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.want)
		}
	}
}

// Jitter spreads the waits within its bounds, differently for each job.
func TestJitterSpreads(t *testing.T) {
	q := startQueue(t, "--workers", "8")
	w := q.dial()
	var specs []fields
	for range 20 {
		specs = append(specs, fields{"command": "exit 1", "max_retries": 1, "backoff_base": 1, "jitter": 0.5})
	}
	var least, most time.Duration
	for _, id := range w.batch(specs) {
		j := w.waitEnded(id)
		if len(j.retryDelays()) != 1 {
			t.Fatalf("got %+v", j)
		}
		d := j.retryDelays()[0]
		if d < 498*time.Millisecond || d > 2*timeoutFactor*time.Second {
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

// If a job cannot be started, it is dead with exit code 127 or 126 after one attempt. If its shell does not
// find a program, the job is retried. For exit codes that the job's fields list, the job succeeds, or is dead
// after one attempt.
func TestExitCodesDecideAboutRetries(t *testing.T) {
	q := startQueue(t, "--workers", "4")
	plain := q.writeFile("plain"+extension, "not a program")
	cases := []struct {
		name     string
		spec     fields
		state    string
		reason   string
		code     int
		attempts int
	}{
		{"command not found", fields{"command": "no-such-command-here"}, "dead", "not_found", 127, 3},
		{"program not found", fields{"argv": []string{"/no/such/program"}}, "dead", "not_found", 127, 1},
		{"folder missing", fields{"command": "true", "cwd": "/no/such/folder"}, "dead", "not_runnable", 126, 1},
		{"not executable", fields{"argv": []string{plain}}, "dead", "not_runnable", 126, 1},
		{"shell missing", fields{"command": "true", "shell": "/no/such/shell -c"}, "dead", "not_found", 127, 1},
		{"a missing program is success", fields{"argv": []string{"/no/such/program"}, "ok_codes": []int{127}}, "completed",
			"", 127, 1},
		{"no retry", fields{"command": "exit 9", "no_retry_codes": []int{7, 9}}, "dead", "", 9, 1},
		{"no retry of another", fields{"command": "exit 8", "no_retry_codes": []int{7, 9}}, "dead", "", 8, 3},
		{"ok code", fields{"command": "exit 4", "ok_codes": []int{0, 4}}, "completed", "", 4, 1},
		{"zero is not ok", fields{"command": "exit 0", "ok_codes": []int{4}}, "dead", "", 0, 3},
		{"timeout", fields{"command": "sleep 60", "timeout_ms": 60}, "dead", "timed_out", exitCodeEnded, 3},
		{"no retries at all", fields{"command": "exit 1", "max_retries": 0}, "dead", "", 1, 1},
		{"attempts", fields{"command": "exit 1", "max_attempts": 2}, "dead", "", 1, 2},
		{"second time right", fields{"command": `[ $QUEUECTL_ATTEMPT = 2 ]`}, "completed", "", 0, 2},
	}
	w := q.dial()
	ids := make([]string, len(cases))
	for i, c := range cases {
		if c.spec["max_attempts"] == nil && c.spec["max_retries"] == nil {
			c.spec["max_attempts"] = 3
		}
		c.spec["backoff_base"] = 0.03
		ids[i] = w.enqueue(c.spec)
	}
	for i, c := range cases {
		j := w.waitEnded(ids[i])
		if j.State != c.state || j.Reason != c.reason || deref(j.ExitCode) != c.code || j.Attempts != c.attempts ||
			len(j.History) != c.attempts {
			t.Errorf("%s: state %s, reason %q, code %d, attempts %d, history %d; want %+v", c.name, j.State, j.Reason,
				deref(j.ExitCode), j.Attempts, len(j.History), c)
		}
		if (j.Error == "") != (c.state == "completed") {
			t.Errorf("%s: error %q", c.name, j.Error)
		}
	}
}

// A job starts after its delay or at its run_at. A job that does not start before its expiry is
// cancelled.
func TestDelayRunAtExpiry(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	timeIn := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }
	started := time.Now()
	delayed := w.enqueue(fields{"command": "true", "delay": "700ms"})
	due := w.enqueue(fields{"command": "true", "run_at": timeIn(900 * time.Millisecond)})
	alias := w.enqueue(fields{"command": "true", "next_run_at": timeIn(800 * time.Millisecond)})
	expired := w.enqueue(fields{"command": "true", "delay": "5s", "expires_at": timeIn(400 * time.Millisecond)})
	for id, least := range map[string]time.Duration{delayed: 700, due: 900, alias: 800} {
		j := w.waitEnded(id)
		if got := j.History[0].StartedAt.Sub(started); j.State != "completed" ||
			!near(got, least*time.Millisecond, 700*time.Millisecond) {
			t.Errorf("job %s is %s and began after %v, want %v ms", id, j.State, got, int(least))
		}
	}
	if j := w.waitEnded(expired); j.State != "cancelled" || j.Reason != "expired" || len(j.History) != 0 {
		t.Errorf("expired job: %+v", j)
	}
	if got := time.Since(started); got > 4*timeoutFactor*time.Second {
		t.Errorf("expiry took %v", got)
	}
}

// A waiting or running job can be cancelled, and an ended job can be retried. If the state of the job does
// not permit the command, the command fails.
func TestCancelAndRetry(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	running := w.enqueue(fields{"command": "echo up; exec sleep 60"})
	waiting := w.enqueue(fields{"command": "echo again"})
	w.waitRunning(running)
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
		if r := q.cli(s.args...); r.code != s.code || !strings.Contains(r.err, s.err) {
			t.Errorf("%v: code %d, stderr %q; want %d, %q", s.args, r.code, r.err, s.code, s.err)
		}
	}
	if j := w.show(running); j.State != "cancelled" || j.Reason != "cancelled" || j.Attempts != 1 ||
		isAlive(j.History[0].PID) {
		t.Errorf("cancelled while it ran: %+v", j)
	}
	if j := w.waitEnded(waiting); j.State != "completed" || j.Output != "again\n" {
		t.Errorf("cancelled, then retried: %+v", j)
	}
	if r := q.cli("cancel", waiting); r.code != 5 {
		t.Errorf("cancel of a completed job: code %d, stderr %q", r.code, r.err)
	}
	q.must("retry", waiting)
	if j := w.waitEnded(waiting); j.State != "completed" || j.Attempts != 1 || len(j.History) != 2 {
		t.Errorf("completed, then retried: %+v", j)
	}
}

// The dead-letter queue lists jobs that failed for good. Such jobs can be retried with all their attempts, or
// removed.
func TestDeadLetters(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	fixed := q.path("fixed")
	var specs []fields
	for _, id := range []string{"a", "b", "c"} {
		specs = append(specs, fields{"id": id, "command": "[ -e " + fixed + " ]", "max_attempts": 2, "backoff_base": 0.02,
			"timeout": 50})
	}
	for _, id := range w.batch(specs) {
		w.waitEnded(id)
	}
	if got := q.must("dlq", "list"); !strings.Contains(got, "2/2") || !strings.Contains(got, "exit code 1") {
		t.Errorf("dlq list: %s", got)
	}
	if got := q.must("dlq", "list", "-q"); got != "c\nb\na" {
		t.Errorf("dlq list -q: %q", got)
	}
	q.writeFile("fixed", "")
	q.must("dlq", "retry", "a", "--timeout", "7s")
	if j := w.waitEnded("a"); j.State != "completed" || j.Attempts != 1 || len(j.History) != 3 || j.Error != "" {
		t.Errorf("dlq retry a: %+v", j)
	}
	if got := q.must("show", "a", "--json"); !strings.Contains(got, `"timeout_ms":7000`) {
		t.Errorf("timeout not replaced: %s", got)
	}
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"dlq", "retry", "a"}, 5}, {[]string{"dlq", "retry", "none"}, 4}, {[]string{"dlq", "retry"}, 2},
		{[]string{"dlq", "clear"}, 2}, {[]string{"dlq", "retry", "b", "--all"}, 2}} {
		if r := q.cli(c.args...); r.code != c.code || r.err == "" {
			t.Errorf("%v: code %d, stderr %q; want %d", c.args, r.code, r.err, c.code)
		}
	}
	q.must("dlq", "clear", "--yes")
	if got := q.must("dlq", "list", "--json"); got != "[]" {
		t.Errorf("dlq list after clear: %s", got)
	}
	if r := q.cli("show", "b"); r.code != 4 {
		t.Errorf("show of a removed job: code %d", r.code)
	}
	// The id b is free again, because the job b was removed.
	w.enqueue(fields{"id": "b", "command": "exit 1", "max_retries": 0})
	w.waitEnded("b")
	if got := q.must("dlq", "retry", "--all"); got != "b" {
		t.Errorf("dlq retry --all: %q", got)
	}
}

// On 8 workers, 3,000 jobs (fewer on slow systems) run exactly once each.
func TestEachJobRunsOnce(t *testing.T) {
	const n = 3000 / jobDivisor
	q := startQueue(t, "--workers", "8")
	var specs []fields
	for range n {
		specs = append(specs, fields{"command": "echo $QUEUECTL_JOB_ID >>" + q.path("ledger"), "max_retries": 0})
	}
	w := q.dial()
	ids := w.batch(specs)
	q.waitUntil("all have completed", 50*time.Second, func() bool { return w.counts()["completed"] == n })
	got := strings.Fields(q.readFile("ledger"))
	sort.Strings(got)
	sort.Strings(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("%d lines for %d jobs", len(got), len(ids))
	}
}

// Five jobs of 2 s on three workers take two rounds.
func TestWorkersRunJobsConcurrently(t *testing.T) {
	q := startQueue(t, "--workers", "3")
	w := q.dial()
	started := time.Now()
	ids := w.batch(slices.Repeat([]fields{{"argv": []string{toolPath("sleep"), "2"}}}, 5))
	for _, id := range ids {
		w.waitEnded(id)
	}
	if got := time.Since(started); !near(got, 4*time.Second, 1500*time.Millisecond) {
		t.Errorf("took %v, want about 4 s", got)
	}
}

// Enqueued jobs survive a full stop and run after the next start.
func TestJobsSurviveAStop(t *testing.T) {
	const n = 100 / jobDivisor
	q := startQueue(t, "--workers", "0")
	w := q.dial()
	ids := w.batch(slices.Repeat([]fields{{"command": "echo $QUEUECTL_JOB_ID"}}, n))
	named := w.enqueue(fields{"id": "named", "command": "echo named", "priority": 9, "labels": fields{"a": "b"}})
	before := q.must("show", named, "--json")
	if code := q.stop(); code != 0 {
		t.Fatalf("stop: exit code %d", code)
	}
	q.waitUntil("no process is left", 5*time.Second, func() bool { return len(q.runnerPids()) == 0 })
	q.start("--workers", "0")
	w = q.dial()
	drop := func(s string) string { s, _, _ = strings.Cut(s, `"queue_time_ms"`); return s }
	if after := q.must("show", named, "--json"); drop(after) != drop(before) {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	if got := w.counts()["pending"]; got != n+1 {
		t.Fatalf("%d jobs are pending, want %d", got, n+1)
	}
	q.must("worker", "start", "-c", "2")
	for _, id := range append(ids, named) {
		if j := w.waitEnded(id); j.State != "completed" || j.Output != id+"\n" || j.Attempts != 1 {
			t.Errorf("got %+v", j)
		}
	}
}

// Workers that are stopped finish their jobs and start no others. After a deadline they end their jobs and
// return them to the queue, and the attempts do not count.
func TestWorkerStop(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	short := w.enqueue(fields{"command": fmt.Sprintf("echo up; sleep %.1f; echo done", 0.7*timeoutFactor)})
	w.waitRunning(short)
	w.enqueue(fields{"id": "blocker", "command": fmt.Sprintf("echo up; sleep %.1f", 0.7*timeoutFactor)})
	w.waitRunning("blocker")
	next := w.enqueue(fields{"command": "echo up; exec sleep 30"})
	q.must("worker", "stop", "--all")
	if j := w.show(short); j.State != "completed" || j.Output != "up\ndone\n" {
		t.Errorf("running job after worker stop: %+v", j)
	}
	if j := w.show(next); j.State != "pending" || len(j.History) != 0 {
		t.Errorf("waiting job after worker stop: %+v", j)
	}
	for i, args := range [][]string{{"worker", "stop", "--all", "--force"},
		{"worker", "stop", "--timeout", "300ms", "--all"}} {
		q.must("worker", "scale", "1")
		pid := w.waitRunning(next).PID
		started := time.Now()
		q.must(args...)
		if got := time.Since(started); got > 5*timeoutFactor*time.Second || i == 1 && got < 290*time.Millisecond {
			t.Errorf("%v took %v", args, got)
		}
		if j := w.show(next); j.State != "pending" || j.Reason != "stopped" || j.Attempts != 0 || len(j.History) != i+1 ||
			isAlive(pid) {
			t.Errorf("after %v: %+v", args, j)
		}
	}
	q.must("cancel", next)
}

// Workers can be added, removed, set and listed. Zero workers is not an error.
func TestWorkerCounts(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	w := q.dial()
	if got := q.must("worker", "list", "--json"); got != "[]" {
		t.Errorf("no workers: %s", got)
	}
	if got := q.must("worker", "list"); got != "" {
		t.Errorf("no workers: %q", got)
	}
	for _, c := range []struct {
		args string
		want int
	}{{"start", 1}, {"start -c 3", 4}, {"stop -c 1", 3}, {"scale 5", 5}, {"scale 5", 5}, {"start --count 2", 7},
		{"stop -c 99", 0}, {"scale 2", 2}} {
		q.must(append([]string{"worker"}, strings.Fields(c.args)...)...)
		var list struct{ Workers []fields }
		w.mustCall("worker.list", nil, &list)
		if len(list.Workers) != c.want {
			t.Errorf("worker %s: %d workers, want %d", c.args, len(list.Workers), c.want)
		}
	}
	id := w.enqueue(fields{"command": "echo up; exec sleep 30"})
	j := w.waitRunning(id)
	var list struct {
		Workers []struct {
			ID, Node, State, Job string
			PID                  int
			StartedAt            string `json:"started_at"`
			LastHeartbeat        string `json:"last_heartbeat"`
		}
	}
	w.mustCall("worker.list", nil, &list)
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
	w.mustCall("status", nil, &st)
	if busy != 1 || st.Workers.Total != 2 || st.Workers.Busy != 1 || st.Workers.Idle != 1 {
		t.Errorf("list %+v, status %+v", list.Workers, st.Workers)
	}
	for _, bad := range []string{"scale -1", "scale x", "start -c 0", "stop -c -3", "stop extra"} {
		if r := q.cli(append([]string{"worker"}, strings.Fields(bad)...)...); r.code != 2 {
			t.Errorf("worker %s: code %d", bad, r.code)
		}
	}
}

// An exit code that defers the job uses no attempt. The job runs again after job_retry_delay.
func TestDeferCodes(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("config", "set", "job_retry_delay", "0.3s")
	w := q.dial()
	id := w.enqueue(fields{"command": "[ $QUEUECTL_ATTEMPT = 3 ] || exit 75", "defer_codes": []int{75}, "max_retries": 0})
	j := w.waitEnded(id)
	if j.State != "completed" || j.Attempts != 1 || len(j.History) != 3 || j.History[1].Reason != "deferred" {
		t.Fatalf("got %+v", j)
	}
	for _, wait := range j.retryDelays() {
		if !near(wait, 300*time.Millisecond, 400*time.Millisecond) {
			t.Errorf("deferred for %v, want 0.3 s", wait)
		}
	}
}

// A job that prints nothing for its idle timeout is ended. A job that prints occasionally is not.
func TestIdleTimeout(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	chatty := w.enqueue(fields{"command": "for i in 1 2 3 4 5 6; do echo $i >&2; sleep 0.2; done",
		"idle_timeout": 0.8 * timeoutFactor, "max_retries": 0})
	silent := w.enqueue(fields{"command": "echo up; sleep 600", "idle_timeout": 0.4 * timeoutFactor, "max_retries": 0,
		"kill_after": 1})
	if j := w.waitEnded(silent); j.State != "dead" || j.Reason != "timed_out" ||
		!strings.Contains(j.Error, "printed nothing for "+(timeoutFactor*400*time.Millisecond).String()) ||
		j.Output != "up\n" {
		t.Errorf("silent: %+v", j)
	}
	if j := w.waitEnded(chatty); j.State != "completed" {
		t.Errorf("chatty: %+v", j)
	}
	if r := q.cli("run", "--max-retries", "0", "--idle-timeout", "0.2", "--kill-after", "1", "sleep 600"); r.code != 124 {
		t.Errorf("run: %+v, want code 124", r)
	}
}

// If a job has a stdin file, it reads its standard input from that file. The path is relative to the
// directory of the caller, and the file is read when the job starts. If the file cannot be read, only that
// job fails, and nothing hangs.
func TestStdinFile(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	q.writeFile("in", "from a file\n")
	if r := q.cli("run", "--stdin-file", "in", "--cwd", filepath.VolumeName(q.dir)+"/", "cat"); r.code != 0 ||
		r.out != "from a file\n" {
		t.Errorf("a relative path: %+v", r)
	}
	for file, wantText := range map[string]string{q.path("none"): "none", q.dir: "not a regular file"} {
		j := w.waitEnded(w.enqueue(fields{"command": "cat", "stdin_file": file, "max_retries": 0}))
		if j.State != "dead" || deref(j.ExitCode) != 126 || !strings.Contains(j.Error, "stdin_file: ") ||
			!strings.Contains(j.Error, wantText) {
			t.Errorf("%s: %+v, want 126 and %q", file, j, wantText)
		}
	}
	for _, spec := range []fields{{"command": "cat", "stdin_file": "in"},
		{"command": "cat", "stdin_file": q.path("in"), "stdin": "x"}} {
		if a := w.call("enqueue", spec); a.Error == nil || a.Error.Data.Code != "invalid" {
			t.Errorf("%v: %+v", spec, a)
		}
	}
}
