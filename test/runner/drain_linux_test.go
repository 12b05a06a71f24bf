package runner

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl drain` returns once no job can start, even if a runner does not answer. A job that a runner
// received before the drain does not start afterwards.
func TestDrainReturnsOnceNoJobCanStart(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	longJob := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go")})
	w.WaitJobRunning(longJob)
	_, thaw := suspendRunner(q)
	sent := w.Enqueue(testrig.JSONFields{"command": "touch " + q.Path("started")})
	q.WaitUntil("the job is sent", 10*time.Second, func() bool { return q.CountReservedJobs() == 1 })
	if got := q.RunCLIWithin(15*time.Second, "drain"); got.ExitCode != 0 {
		t.Fatalf("drain: %+v", got)
	}
	if n := q.CountReservedJobs(); n != 0 {
		t.Errorf("drain returned while the runner could still start %d jobs", n)
	}
	thaw()
	q.WriteFile("go", "")
	w.WaitJobEnded(longJob)
	if j := w.ShowJob(sent); j.State != "pending" {
		t.Errorf("the job that was sent before the drain: %+v", j)
	}
	if _, err := os.Stat(q.Path("started")); err == nil {
		t.Error("a job has started during the drain")
	}
	q.MustRunCLI("drain", "--off")
	w.WaitJobEnded(sent)
}

// A runner may be stopped by SIGSTOP after it has recorded an attempt and before it has started the process.
// When the runner continues, it may still start the job. The drain reports this, even after a restart of the
// service, and is complete once the job has started.
func TestDrainNamesJobThatSuspendedRunnerMayStart(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.NewHarness(t, "failpoint")
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=attempt-noted=wait:" + q.Path("go")}
	q.StartService("--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo started"})
	q.WaitUntil("its attempt is noted", 10*time.Second, func() bool { return q.CountStartedAttempts() == 1 })
	_, thaw := suspendRunner(q)
	for _, when := range []string{"at first", "after a restart"} {
		got := q.RunCLIWithin(15*time.Second, "drain")
		if got.ExitCode != 3 || !strings.Contains(got.Stderr, "does not answer, so job "+id+" cannot be reached") ||
			!strings.Contains(got.Stderr, "draining has begun, but this job may still start") {
			t.Errorf("%s: got %+v, want an error that names the job and its runner", when, got)
		}
		if when == "at first" {
			q.KillService()
			q.StartService("--workers", "1")
		}
	}
	q.WriteFile("go", "")
	thaw()
	q.WaitUntil("a drain is complete", 20*time.Second, func() bool { return q.RunCLI("drain").ExitCode == 0 })
	if j := q.DialService().WaitJobEnded(id); j.Output != "started\n" || len(j.AttemptHistory) != 1 {
		t.Errorf("the job after the drain: %+v, want one attempt", j)
	}
}
