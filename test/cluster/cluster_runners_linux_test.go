package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
	"github.com/queuectl/queuectl/test/pgserver"
)

// If the service and the runner of a node are killed while the database server is down, the next start of the service
// fails. Before it fails, that service ends the jobs of the killed runner, because other nodes may soon run these jobs
// again.
func TestDeadRunnersJobsEndDuringDatabaseOutage(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.MustRunCLI("enqueue", "--id", "long", "--max-retries", "0", testrig.CommandWaitingForFile(a.Path("go")))
	pid := a.DialService().WaitJobRunning("long").PID
	p.Kill()
	a.KillService()
	a.KillRunners()
	if syscall.Kill(pid, 0) != nil {
		t.Log("the job has ended with its runner")
	}
	a.WaitUntil("the job is ended", 10*time.Second, func() bool {
		// Start the service again, as a service manager would. Each start fails, but it must end the job.
		if err := a.TryStartService("--workers", "2"); err == nil {
			t.Error("the service starts without its database")
		}
		a.ServiceCmd = nil
		return syscall.Kill(pid, 0) != nil
	})
	p.Start(t)
	a.StartService("--workers", "2")
	a.WaitUntil("the job is dead", 20*time.Second, func() bool { return a.ShowJob("long").State == "dead" })
}

// When a runner is killed, its jobs are ended immediately, even if the service waits for a database server that
// hangs. Other nodes may soon run these jobs again.
func TestDeadRunnersJobsEndWhileDatabaseHangs(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.MustRunCLI("enqueue", "--id", "long", testrig.CommandWaitingForFile(a.Path("go")))
	a.MustRunCLI("enqueue", "--id", "ends", testrig.CommandWaitingForFile(a.Path("end")))
	w := a.DialService()
	pid, ends := w.WaitJobRunning("long").PID, w.WaitJobRunning("ends").PID
	p.SetFrozen(true)
	t.Cleanup(func() { p.SetFrozen(false) })
	a.WriteFile("end", "")
	a.WaitUntil("the job whose end will be stored ends", 10*time.Second,
		func() bool { return !testrig.IsProcessAlive(ends) })
	time.Sleep(200 * time.Millisecond) // until then, the service waits for the reply of the database
	a.KillRunners()
	started := time.Now()
	a.WaitUntil("the job is ended", 10*time.Second, func() bool { return !testrig.IsProcessAlive(pid) })
	if elapsed := time.Since(started); elapsed > testrig.TimeoutFactor*2*time.Second {
		t.Errorf("the job ran for another %v, although the node lease lasts 5 s", elapsed)
	}
	p.SetFrozen(false)
	a.WriteFile("go", "")
	a.WaitUntil("both have ended", 60*time.Second, func() bool {
		return a.ShowJob("long").State == "completed" && a.ShowJob("ends").State == "completed"
	})
}

// If a runner hangs while its service is stopped, its jobs are ended before the node lease of 5 s expires.
func TestHungRunnersJobsEndWhileServiceSuspended(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	checkJobEndsWithoutService(t, 5*time.Second, func(a *testrig.Harness) {
		for _, pid := range a.RunnerPIDs() {
			syscall.Kill(pid, syscall.SIGSTOP)
		}
	})
}

// If a runner is killed while its service is stopped, its jobs are ended immediately.
func TestDeadRunnersJobsEndWhileServiceSuspended(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	checkJobEndsWithoutService(t, testrig.TimeoutFactor*2*time.Second, (*testrig.Harness).KillRunners)
}

// checkJobEndsWithoutService calls injectFault for the runner of a node whose service is stopped with SIGSTOP, and then
// once more after the service was killed. Each time, the job must end within endTimeLimit, because other nodes may soon
// run the job. Afterwards it must run again.
func checkJobEndsWithoutService(t *testing.T, endTimeLimit time.Duration, injectFault func(*testrig.Harness)) {
	_, nodes := startNodes(t, "a")
	a := nodes[0]
	for i, end := range []func(){func() { a.ServiceCmd.Process.Signal(syscall.SIGSTOP) }, func() { a.KillService() }} {
		id := fmt.Sprint("j", i)
		a.MustRunCLI("enqueue", "--id", id, testrig.CommandWaitingForFile(a.Path("go")))
		w := a.DialService()
		pid := w.WaitJobRunning(id).PID
		end()
		injectFault(a)
		started := time.Now()
		a.WaitUntil("the job is ended", 10*time.Second, func() bool { return !testrig.IsProcessAlive(pid) })
		if elapsed := time.Since(started); elapsed > endTimeLimit {
			t.Errorf("the job ran for another %v, want at most %v", elapsed, endTimeLimit)
		}
		if i == 0 {
			a.ServiceCmd.Process.Signal(syscall.SIGCONT)
			a.WaitUntil("the job runs again", 60*time.Second, func() bool {
				if a.RunCLI("show", id).ExitCode != 0 {
					return false
				}
				secondPID := a.ShowJob(id).PID
				return secondPID != pid && secondPID != 0
			})
		}
	}
	a.WriteFile("go", "")
	a.StartService("--workers", "2")
	for _, id := range []string{"j0", "j1"} {
		a.WaitUntil(id+" has ended", 60*time.Second, func() bool { return a.ShowJob(id).State == "completed" })
	}
}

// A runner may have recorded the start of a job without having started it, so that the job may still start. A drain
// then fails, even if another node requests the drain. Other changes on all nodes still work.
func TestRemoteDrainFailsWhileJobMayStart(t *testing.T) {
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	b.ClientPath = testrig.BuiltProgram(t, "failpoint")
	b.ServiceEnv = append(b.ServiceEnv, "QUEUECTL_FAILPOINTS=attempt-noted=wait:"+b.Path("go"))
	a.StartService("--workers", "1")
	b.StartService("--workers", "1")
	id := a.MustRunCLI("enqueue", "--on", "b", "echo started")
	a.WaitUntil("its attempt is noted", 10*time.Second, func() bool { return b.CountStartedAttempts() == 1 })
	want := "on b: draining has begun, but job " + id + " may still start"
	for _, verb := range [][]string{{"node", "drain", "b"}, {"drain"}} {
		if got := a.RunCLIWithin(20*time.Second, verb...); got.ExitCode != 3 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%v: got %+v, want an error with %q", verb, got, want)
		}
	}
	a.MustRunCLI("config", "set", "priority", "3")
	logs, _ := filepath.Glob(a.Path("stderr-*"))
	for _, name := range logs {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), "has not confirmed a settings change") {
			t.Error("the drain of a node is reported as an unconfirmed settings change")
		}
	}
	b.WriteFile("go", "")
	a.WaitUntil("the job has run", 20*time.Second, func() bool { return a.ShowJob(id).State == "completed" })
	a.MustRunCLI("node", "drain", "b", "--wait")
	a.MustRunCLI("drain", "--wait")
}

// A user can cancel a job even if the node that runs it is lost and no other node has noticed that yet.
func TestJobOfLostNodeCanBeCancelled(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	_, nodes := startNodes(t, "a", "b")
	a, b := nodes[0], nodes[1]
	a.MustRunCLI("enqueue", "--id", "long", "--on", "a", testrig.CommandWaitingForFile(a.Path("never")))
	a.DialService().WaitJobRunning("long")
	a.KillService()
	b.MustRunCLI("cancel", "long")
	if j := b.ShowJob("long"); j.State != "cancelled" {
		t.Errorf("the cancelled job is %s", j.State)
	}
}
