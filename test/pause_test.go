//go:build linux || windows

package test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// pausedJob contains the members of show --json about a pause.
type pausedJob struct {
	State    string    `json:"state"`
	PausedAt time.Time `json:"paused_at"`
	PausedBy string    `json:"paused_by"`
}

func (q *queue) pauseOf(id string) (j pausedJob) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.must("show", id, "--json")), &j); err != nil {
		q.Fatal(err)
	}
	return j
}

// tickingCommand returns a command with a child process. Both processes keep writing to a file.
func (q *queue) tickingCommand(id string) string {
	tick := "while :; do echo x >>%s; sleep 0.01; done"
	return fmt.Sprintf("("+tick+") & "+tick, q.path(id+"-child"), q.path(id+"-main"))
}

// ticks returns how many bytes the child and the main process have written.
func (q *queue) ticks(id string) (n [2]int64) {
	for i, name := range []string{id + "-child", id + "-main"} {
		if info, err := os.Stat(q.path(name)); err == nil {
			n[i] = info.Size()
		}
	}
	return n
}

// waitTicking waits until both processes write.
func (q *queue) waitTicking(id string) {
	q.Helper()
	before := q.ticks(id)
	q.waitUntil(id+" and its child go on", 20*time.Second, func() bool {
		now := q.ticks(id)
		return now[0] > before[0] && now[1] > before[1]
	})
}

// checkNotTicking checks for 200 ms that neither process writes.
func (q *queue) checkNotTicking(id string) {
	q.Helper()
	before := q.ticks(id)
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now := q.ticks(id); now != before {
			q.Fatalf("%s goes on though it is paused: %v, then %v", id, before, now)
		}
	}
}

// waitElapsed waits until the time length has passed since an instant.
func (q *queue) waitElapsed(since time.Time, length time.Duration) {
	q.waitUntil("time passes", length+time.Second, func() bool { return time.Since(since) > length })
}

// A paused job and its child do not run, also while the service is killed and restarted. The job keeps its
// worker and its state, and show reports who paused it and when. After a resume it continues.
func TestPauseAndResume(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	w.enqueue(fields{"id": "a", "command": q.tickingCommand("a")})
	q.waitTicking("a")
	if got := q.must("pause", "a"); got != "a" {
		t.Errorf("pause prints %q", got)
	}
	pid := q.show("a").PID
	q.checkNotTicking("a")
	first := q.pauseOf("a")
	if first.State != "processing" || first.PausedAt.IsZero() || first.PausedBy == "" {
		t.Errorf("the paused job: %+v", first)
	}
	for _, verb := range []string{"list", "show a", "status"} {
		if out := q.must(strings.Fields(verb)...); !strings.Contains(out, "paused") ||
			!strings.Contains(out, "by "+first.PausedBy) {
			t.Errorf("%s does not say that it is paused, and by whom:\n%s", verb, out)
		}
	}
	if out := q.must("list"); !strings.Contains(out, "processing (paused)") {
		t.Errorf("list:\n%s", out)
	}
	if out := q.must("worker", "list"); strings.Count(out, " paused ") != 1 || strings.Count(out, " idle ") != 1 {
		t.Errorf("worker list:\n%s", out)
	}
	q.must("pause", "a") // pausing a paused job again is not an error
	q.kill()
	q.checkNotTicking("a")
	q.start("--workers", "2")
	q.checkNotTicking("a")
	if got := q.pauseOf("a"); got != first || q.show("a").PID != pid {
		t.Errorf("after a crash of the service: %+v, was %+v", got, first)
	}
	q.must("resume", "a")
	q.waitTicking("a")
	if got := q.pauseOf("a"); !got.PausedAt.IsZero() || got.PausedBy != "" || got.State != "processing" {
		t.Errorf("the resumed job: %+v", got)
	}
	q.must("resume", "a")
	var kinds []string
	for _, e := range q.events("a") {
		kinds = append(kinds, e.Event)
	}
	if got := strings.Join(kinds, " "); got != "enqueued started paused resumed" {
		t.Errorf("events: %s", got)
	}
	q.must("pause", "a")
	q.must("cancel", "a")
	if j := q.show("a"); j.State != "cancelled" || isAlive(pid) {
		t.Errorf("cancelled while it was paused: %+v", j)
	}
}

// A pause stops the clocks of timeout and idle_timeout, however long it lasts. After the resume both
// continue.
func TestPauseStopsTheClocks(t *testing.T) {
	q := startQueue(t, "--workers", "3")
	w := q.dial()
	const limit = time.Second * timeoutFactor
	for _, field := range []string{"timeout_ms", "idle_timeout"} {
		job := fields{"id": field, "command": q.tickingCommand(field), "max_retries": 0, "kill_after": "1s"}
		if job["timeout_ms"] = limit.Milliseconds(); field == "idle_timeout" {
			job["timeout_ms"], job[field] = 0, limit.String()
		}
		w.enqueue(job)
	}
	q.waitUntil("both are started", 20*time.Second, func() bool {
		return q.must("ps", "-q") != "" && strings.Contains(q.must("ps", "-q"), "\n")
	})
	q.must("pause", "timeout_ms", "idle_timeout")
	started := time.Now()
	q.waitElapsed(started, 2*limit)
	for _, id := range []string{"timeout_ms", "idle_timeout"} {
		if got := q.pauseOf(id); got.State != "processing" {
			t.Errorf("%s: %s while it was paused", id, got.State)
		}
	}
	q.must("resume", "timeout_ms", "idle_timeout")
	for _, id := range []string{"timeout_ms", "idle_timeout"} {
		j := w.waitEnded(id)
		if elapsed := j.History[0].FinishedAt.Sub(j.History[0].StartedAt); j.Reason != "timed_out" || elapsed < 2*limit {
			t.Errorf("%s: %s, %s after %v", id, j.State, j.Reason, elapsed)
		}
	}
}

// Only running jobs can be paused. For other jobs, the error says what can be done instead. A dry run only
// counts the jobs. A signal that a user sends to a paused job resumes the job. requeue starts a paused job
// again, and the new attempt is not paused.
func TestOnlyRunningJobsCanBePaused(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	w.enqueue(fields{"id": "a", "command": q.tickingCommand("a"), "labels": fields{"site": "a"}})
	q.waitTicking("a")
	w.enqueue(fields{"id": "waits", "command": "true"})
	w.enqueue(fields{"id": "held", "command": "true"})
	q.must("hold", "held")
	for words, want := range map[string]string{
		"pause waits": "queuectl hold waits", "resume waits": "only paused jobs can be resumed",
		"pause held":  "only running jobs can be paused",
		"resume held": "queuectl release held",
	} {
		if r := q.cli(strings.Fields(words)...); r.code != 5 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v, want exit 5 and %q", words, r, want)
		}
	}
	if r := q.cli("pause", "nobody"); r.code != 4 {
		t.Errorf("pause of no job: %+v", r)
	}
	if out := q.must("pause", "--label", "site=a", "--dry-run"); out != "1 job selected; nothing was changed" {
		t.Errorf("a dry run: %q", out)
	}
	if out := q.must("pause", "--label", "site=a"); out != "a" {
		t.Errorf("by label: %q", out)
	}
	q.checkNotTicking("a")
	pid := q.show("a").PID
	q.must("requeue", "a")
	q.waitUntil("it runs anew", 20*time.Second, func() bool {
		j := q.show("a")
		return j.State == "processing" && j.PID != pid && j.PID != 0
	})
	if got := q.pauseOf("a"); !got.PausedAt.IsZero() {
		t.Errorf("the next attempt is paused: %+v", got)
	}
	q.waitTicking("a")
	q.must("pause", "a")
	q.must("kill", "-s", "KILL", "a")
	q.waitUntil("it ends", 20*time.Second, func() bool { return q.show("a").State == "failed" })
}

// While all jobs are paused, no job starts or runs, also after a restart, and commands report the pause. When
// this pause ends, jobs that were also paused individually stay paused.
func TestPauseAll(t *testing.T) {
	q := startQueue(t, "--workers", "3")
	w := q.dial()
	for _, id := range []string{"a", "b"} {
		w.enqueue(fields{"id": id, "command": q.tickingCommand(id)})
		q.waitTicking(id)
	}
	q.must("pause", "a")
	if out := q.must("pause", "--all", "--dry-run"); out != "2 jobs selected; nothing was changed" {
		t.Errorf("a dry run: %q", out)
	}
	if r := q.cli("pause", "--all", "--label", "x=y"); r.code != 2 || !strings.Contains(r.err, "all") {
		t.Errorf("pause --all of some: %+v", r)
	}
	if out := q.must("pause", "--all"); out != "b" {
		t.Errorf("pause --all froze %q, want b", out)
	}
	w.enqueue(fields{"id": "c", "command": q.tickingCommand("c")})
	all := q.pauseOf("b")
	for round := range 2 {
		q.checkNotTicking("a")
		q.checkNotTicking("b")
		if n := q.ticks("c"); n != [2]int64{} || q.show("c").State != "pending" {
			t.Errorf("a job was started: %v", n)
		}
		if r := q.cli("status", "--check"); r.code != 1 || !strings.Contains(r.out, "queuectl resume --all") ||
			!strings.Contains(r.out, "by "+all.PausedBy) {
			t.Errorf("status --check: %+v", r)
		}
		if out := q.must("worker", "list"); strings.Count(out, " paused ") != 3 {
			t.Errorf("worker list:\n%s", out)
		}
		if r := q.cli("run", "--json", "-d", "true"); r.code != 0 {
			t.Errorf("run -d: %+v", r)
		}
		if r := q.cli("resume", "b"); r.code != 5 || !strings.Contains(r.err, "queuectl resume --all") {
			t.Errorf("resume of a job that is paused with all: %+v", r)
		}
		if round == 0 {
			q.kill()
			q.start("--workers", "3")
		}
	}
	if st := q.pauseOf("b"); all.PausedBy == "" || st != all {
		t.Errorf("b after the restart: %+v, was %+v", st, all)
	}
	if out := q.must("resume", "--all"); out != "b" {
		t.Errorf("resume --all had %q go on, want b", out)
	}
	q.waitTicking("b")
	q.waitTicking("c")
	q.checkNotTicking("a")
	if r := q.cli("status", "--check"); r.code != 0 {
		t.Errorf("status --check: %+v", r)
	}
	var events []string
	for _, e := range q.events("--event", "paused,resumed") {
		events = append(events, e.Event+" "+e.ID)
	}
	if got := strings.Join(events, ", "); got != "paused a, paused , resumed " {
		t.Errorf("events: %s", got)
	}
	q.must("resume", "--all") // resuming again is not an error
	q.must("resume", "a")
	q.waitTicking("a")
}

// A stop of the service does not wait for paused jobs. If a job was paused individually, the stop holds it,
// so that the next service does not run it. If a job was paused together with all jobs, it is pending until
// all jobs are resumed.
func TestStopOfPausedJobs(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	for _, id := range []string{"a", "b"} {
		w.enqueue(fields{"id": id, "command": q.tickingCommand(id)})
		q.waitTicking(id)
	}
	q.must("pause", "a")
	q.must("pause", "--all")
	started := time.Now()
	if code := q.stop(); code != 0 || time.Since(started) > 20*time.Second {
		t.Errorf("exit code %d after %v; stop_timeout is 30s", code, time.Since(started))
	}
	q.start("--workers", "2")
	a, b := q.show("a"), q.show("b")
	if a.State != "held" || a.Reason != "stopped" || b.State != "pending" {
		t.Errorf("a is %s (%s), b %s (%s); want held (stopped) and pending", a.State, a.Reason, b.State, b.Error)
	}
	q.must("resume", "--all")
	q.waitTicking("b")
	q.must("release", "a")
	q.waitTicking("a")
}

// If the runner of a paused job dies, the job ends with all its processes. No process stays stopped.
func TestRunnerOfPausedJobDies(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	w.enqueue(fields{"id": "a", "command": q.tickingCommand("a"), "on_lost": "dead"})
	q.waitTicking("a")
	q.must("pause", "a")
	pid := q.show("a").PID
	q.killRunners()
	q.waitUntil("it is dead", 20*time.Second, func() bool { return q.show("a").State == "dead" })
	if j := q.pauseOf("a"); !j.PausedAt.IsZero() || isAlive(pid) {
		t.Errorf("%+v, and process %d lives: %t", j, pid, isAlive(pid))
	}
	q.checkNotTicking("a")
}
