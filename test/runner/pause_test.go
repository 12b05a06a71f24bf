//go:build linux || windows

package runner

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// tickingCommand returns a shell command that starts a child process. Both processes keep appending bytes to a
// file.
func tickingCommand(q *testrig.Harness, id string) string {
	tick := "while :; do echo x >>%s; sleep 0.01; done"
	return fmt.Sprintf("("+tick+") & "+tick, q.Path(id+"-child"), q.Path(id+"-main"))
}

// bytesWrittenByProcesses returns how many bytes the child and the main process have written.
func bytesWrittenByProcesses(q *testrig.Harness, id string) (childAndMainBytes [2]int64) {
	for i, name := range []string{id + "-child", id + "-main"} {
		if info, err := os.Stat(q.Path(name)); err == nil {
			childAndMainBytes[i] = info.Size()
		}
	}
	return childAndMainBytes
}

// waitUntilTicking waits until both processes of the job have written at least one more byte.
func waitUntilTicking(q *testrig.Harness, id string) {
	q.Helper()
	before := bytesWrittenByProcesses(q, id)
	q.WaitUntil(id+" and its child run", 20*time.Second, func() bool {
		now := bytesWrittenByProcesses(q, id)
		return now[0] > before[0] && now[1] > before[1]
	})
}

// checkNotTicking checks for 200 ms that neither process of the job writes.
func checkNotTicking(q *testrig.Harness, id string) {
	q.Helper()
	before := bytesWrittenByProcesses(q, id)
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now := bytesWrittenByProcesses(q, id); now != before {
			q.Fatalf("the paused job %s wrote to its files: %v bytes, then %v", id, before, now)
		}
	}
}

// waitUntilElapsed waits until the given duration has passed since a time.
func waitUntilElapsed(q *testrig.Harness, since time.Time, duration time.Duration) {
	q.WaitUntil("time passes", duration+time.Second, func() bool { return time.Since(since) > duration })
}

// A paused job and its child do not run, even if the service is killed and restarted in the meantime. The job keeps its
// worker and its state, and `queuectl show` reports which user paused the job, and when. After a resume the job
// continues.
func TestPausedJobRunsOnlyAfterResume(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "a", "command": tickingCommand(q, "a")})
	waitUntilTicking(q, "a")
	if got := q.MustRunCLI("pause", "a"); got != "a" {
		t.Errorf("pause prints %q", got)
	}
	pid := q.ShowJob("a").PID
	checkNotTicking(q, "a")
	first := q.ShowJobPause("a")
	if first.State != "processing" || first.PausedAt.IsZero() || first.PausedBy == "" {
		t.Errorf("the paused job: %+v", first)
	}
	for _, verb := range []string{"list", "show a", "status"} {
		if out := q.MustRunCLI(strings.Fields(verb)...); !strings.Contains(out, "paused") ||
			!strings.Contains(out, "by "+first.PausedBy) {
			t.Errorf("%s does not show that the job is paused and which user paused it:\n%s", verb, out)
		}
	}
	if out := q.MustRunCLI("list"); !strings.Contains(out, "processing (paused)") {
		t.Errorf("list:\n%s", out)
	}
	if out := q.MustRunCLI("worker", "list"); strings.Count(out, " paused ") != 1 || strings.Count(out, " idle ") != 1 {
		t.Errorf("worker list:\n%s", out)
	}
	q.MustRunCLI("pause", "a") // pausing a paused job again is not an error
	q.KillService()
	checkNotTicking(q, "a")
	q.StartService("--workers", "2")
	checkNotTicking(q, "a")
	if got := q.ShowJobPause("a"); got != first || q.ShowJob("a").PID != pid {
		t.Errorf("after a crash of the service: %+v, was %+v", got, first)
	}
	q.MustRunCLI("resume", "a")
	waitUntilTicking(q, "a")
	if got := q.ShowJobPause("a"); !got.PausedAt.IsZero() || got.PausedBy != "" || got.State != "processing" {
		t.Errorf("the resumed job: %+v", got)
	}
	q.MustRunCLI("resume", "a")
	var kinds []string
	for _, e := range q.ListEvents("a") {
		kinds = append(kinds, e.Event)
	}
	if got := strings.Join(kinds, " "); got != "enqueued started paused resumed" {
		t.Errorf("events: %s", got)
	}
	q.MustRunCLI("pause", "a")
	q.MustRunCLI("cancel", "a")
	if j := q.ShowJob("a"); j.State != "cancelled" || testrig.IsProcessAlive(pid) {
		t.Errorf("cancelled while it was paused: %+v", j)
	}
}

// The time in which a job is paused does not count for timeout and idle_timeout.
func TestPausedTimeDoesNotCountForTimeouts(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "3")
	w := q.DialService()
	const limit = time.Second * testrig.TimeoutFactor
	for _, field := range []string{"timeout_ms", "idle_timeout"} {
		job := testrig.JSONFields{"id": field, "command": tickingCommand(q, field), "max_retries": 0, "kill_after": "1s"}
		if job["timeout_ms"] = limit.Milliseconds(); field == "idle_timeout" {
			job["timeout_ms"], job[field] = 0, limit.String()
		}
		w.Enqueue(job)
	}
	q.WaitUntil("both are started", 20*time.Second, func() bool {
		return q.MustRunCLI("ps", "-q") != "" && strings.Contains(q.MustRunCLI("ps", "-q"), "\n")
	})
	q.MustRunCLI("pause", "timeout_ms", "idle_timeout")
	started := time.Now()
	waitUntilElapsed(q, started, 2*limit)
	for _, id := range []string{"timeout_ms", "idle_timeout"} {
		if got := q.ShowJobPause(id); got.State != "processing" {
			t.Errorf("%s: %s while it was paused", id, got.State)
		}
	}
	q.MustRunCLI("resume", "timeout_ms", "idle_timeout")
	for _, id := range []string{"timeout_ms", "idle_timeout"} {
		j := w.WaitJobEnded(id)
		if elapsed := j.AttemptHistory[0].FinishedAt.Sub(j.AttemptHistory[0].StartedAt); j.Reason != "timed_out" ||
			elapsed < 2*limit {
			t.Errorf("%s: %s, %s after %v", id, j.State, j.Reason, elapsed)
		}
	}
}

// Only running jobs can be paused. For other jobs, the error names an alternative. A dry run only counts the
// jobs. A signal that a user sends to a paused job resumes the job. `queuectl requeue` starts a new attempt of a
// paused job, and the new attempt is not paused.
func TestOnlyRunningJobsCanBePaused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "a", "command": tickingCommand(q, "a"), "labels": testrig.JSONFields{"site": "a"}})
	waitUntilTicking(q, "a")
	w.Enqueue(testrig.JSONFields{"id": "waits", "command": "true"})
	w.Enqueue(testrig.JSONFields{"id": "held", "command": "true"})
	q.MustRunCLI("hold", "held")
	for words, want := range map[string]string{
		"pause waits": "queuectl hold waits", "resume waits": "only paused jobs can be resumed",
		"pause held":  "only running jobs can be paused",
		"resume held": "queuectl release held",
	} {
		if r := q.RunCLI(strings.Fields(words)...); r.ExitCode != 5 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: %+v, want exit 5 and %q", words, r, want)
		}
	}
	if r := q.RunCLI("pause", "missing"); r.ExitCode != 4 {
		t.Errorf("pause of no job: %+v", r)
	}
	if out := q.MustRunCLI("pause", "--label", "site=a", "--dry-run"); out != "1 job selected; nothing was changed" {
		t.Errorf("a dry run: %q", out)
	}
	if out := q.MustRunCLI("pause", "--label", "site=a"); out != "a" {
		t.Errorf("pause of the jobs with a label: %q", out)
	}
	checkNotTicking(q, "a")
	pid := q.ShowJob("a").PID
	q.MustRunCLI("requeue", "a")
	q.WaitUntil("the job runs again", 20*time.Second, func() bool {
		j := q.ShowJob("a")
		return j.State == "processing" && j.PID != pid && j.PID != 0
	})
	if got := q.ShowJobPause("a"); !got.PausedAt.IsZero() {
		t.Errorf("the next attempt is paused: %+v", got)
	}
	waitUntilTicking(q, "a")
	q.MustRunCLI("pause", "a")
	q.MustRunCLI("kill", "-s", "KILL", "a")
	q.WaitUntil("the job ends", 20*time.Second, func() bool { return q.ShowJob("a").State == "failed" })
}

// While all jobs are paused, no job starts or runs, even after a restart, and commands report the pause. After
// `queuectl resume --all`, jobs that were also paused individually stay paused.
func TestPauseAllStopsEveryJob(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "3")
	w := q.DialService()
	for _, id := range []string{"a", "b"} {
		w.Enqueue(testrig.JSONFields{"id": id, "command": tickingCommand(q, id)})
		waitUntilTicking(q, id)
	}
	q.MustRunCLI("pause", "a")
	if out := q.MustRunCLI("pause", "--all", "--dry-run"); out != "2 jobs selected; nothing was changed" {
		t.Errorf("a dry run: %q", out)
	}
	if r := q.RunCLI("pause", "--all", "--label", "x=y"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "all") {
		t.Errorf("pause --all with a filter: %+v", r)
	}
	if out := q.MustRunCLI("pause", "--all"); out != "b" {
		t.Errorf("pause --all froze %q, want b", out)
	}
	w.Enqueue(testrig.JSONFields{"id": "c", "command": tickingCommand(q, "c")})
	all := q.ShowJobPause("b")
	for round := range 2 {
		checkNotTicking(q, "a")
		checkNotTicking(q, "b")
		if n := bytesWrittenByProcesses(q, "c"); n != [2]int64{} || q.ShowJob("c").State != "pending" {
			t.Errorf("a job was started: %v", n)
		}
		if r := q.RunCLI("status", "--check"); r.ExitCode != 1 || !strings.Contains(r.Stdout, "queuectl resume --all") ||
			!strings.Contains(r.Stdout, "by "+all.PausedBy) {
			t.Errorf("status --check: %+v", r)
		}
		if out := q.MustRunCLI("worker", "list"); strings.Count(out, " paused ") != 3 {
			t.Errorf("worker list:\n%s", out)
		}
		if r := q.RunCLI("run", "--json", "-d", "true"); r.ExitCode != 0 {
			t.Errorf("run -d: %+v", r)
		}
		if r := q.RunCLI("resume", "b"); r.ExitCode != 5 || !strings.Contains(r.Stderr, "queuectl resume --all") {
			t.Errorf("resume of a job that is paused with all: %+v", r)
		}
		if round == 0 {
			q.KillService()
			q.StartService("--workers", "3")
		}
	}
	if st := q.ShowJobPause("b"); all.PausedBy == "" || st != all {
		t.Errorf("pause of job b after the restart: %+v, before %+v", st, all)
	}
	if out := q.MustRunCLI("resume", "--all"); out != "b" {
		t.Errorf("resume --all resumed %q, want b", out)
	}
	waitUntilTicking(q, "b")
	waitUntilTicking(q, "c")
	checkNotTicking(q, "a")
	if r := q.RunCLI("status", "--check"); r.ExitCode != 0 {
		t.Errorf("status --check: %+v", r)
	}
	var events []string
	for _, e := range q.ListEvents("--event", "paused,resumed") {
		events = append(events, e.Event+" "+e.ID)
	}
	if got := strings.Join(events, ", "); got != "paused a, paused , resumed " {
		t.Errorf("events: %s", got)
	}
	q.MustRunCLI("resume", "--all") // resuming again is not an error
	q.MustRunCLI("resume", "a")
	waitUntilTicking(q, "a")
}

// When the service stops, it does not wait for paused jobs. A job that a user has paused individually is
// held, so that the next service does not run it. A job that was paused only by `queuectl pause --all` is
// pending, and starts after `queuectl resume --all`.
func TestServiceStopDoesNotWaitForPausedJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	for _, id := range []string{"a", "b"} {
		w.Enqueue(testrig.JSONFields{"id": id, "command": tickingCommand(q, id)})
		waitUntilTicking(q, id)
	}
	q.MustRunCLI("pause", "a")
	q.MustRunCLI("pause", "--all")
	started := time.Now()
	if code := q.StopService(); code != 0 || time.Since(started) > 20*time.Second {
		t.Errorf("exit code %d after %v; stop_timeout is 30s", code, time.Since(started))
	}
	q.StartService("--workers", "2")
	a, b := q.ShowJob("a"), q.ShowJob("b")
	if a.State != "held" || a.Reason != "stopped" || b.State != "pending" {
		t.Errorf("a is %s (%s), b %s (%s); want held (stopped) and pending", a.State, a.Reason, b.State, b.Error)
	}
	q.MustRunCLI("resume", "--all")
	waitUntilTicking(q, "b")
	q.MustRunCLI("release", "a")
	waitUntilTicking(q, "a")
}

// If the runner of a paused job dies, the job ends with all its processes. No process stays stopped.
func TestDeadRunnersPausedJobEnds(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "a", "command": tickingCommand(q, "a"), "on_lost": "dead"})
	waitUntilTicking(q, "a")
	q.MustRunCLI("pause", "a")
	pid := q.ShowJob("a").PID
	q.KillRunners()
	q.WaitUntil("the job is dead", 20*time.Second, func() bool { return q.ShowJob("a").State == "dead" })
	if j := q.ShowJobPause("a"); !j.PausedAt.IsZero() || testrig.IsProcessAlive(pid) {
		t.Errorf("%+v, and process %d lives: %t", j, pid, testrig.IsProcessAlive(pid))
	}
	checkNotTicking(q, "a")
}
