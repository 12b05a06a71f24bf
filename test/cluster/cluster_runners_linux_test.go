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

// If the service and the runner of a node are killed while the database server is down, the next start of the
// service fails. It still ends the jobs of that runner, because other nodes may soon run them again.
func TestDeadRunnersJobsEndWithoutDatabase(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.MustCLI("enqueue", "--id", "long", "--max-retries", "0", testrig.GatedJob(a.Path("go")))
	pid := a.Dial().WaitRunning("long").PID
	p.Kill()
	a.Kill()
	a.KillRunners()
	if syscall.Kill(pid, 0) != nil {
		t.Log("the job has ended with its runner")
	}
	a.WaitUntil("the job is ended", 10*time.Second, func() bool {
		// Start the service again, as a service manager would. Each start fails, but it must end the job.
		if err := a.TryStart("--workers", "2"); err == nil {
			t.Error("the service starts without its database")
		}
		a.Cmd = nil
		return syscall.Kill(pid, 0) != nil
	})
	p.Start(t)
	a.Start("--workers", "2")
	a.WaitUntil("the job is dead", 20*time.Second, func() bool { return a.Show("long").State == "dead" })
}

// When a runner is killed, its jobs are ended immediately, even if the service waits for a database server that
// hangs. Other nodes may soon run these jobs again.
func TestDeadRunnersJobsEndWhileStoreHangs(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.MustCLI("enqueue", "--id", "long", testrig.GatedJob(a.Path("go")))
	a.MustCLI("enqueue", "--id", "ends", testrig.GatedJob(a.Path("end")))
	w := a.Dial()
	pid, ends := w.WaitRunning("long").PID, w.WaitRunning("ends").PID
	p.Freeze(true)
	t.Cleanup(func() { p.Freeze(false) })
	a.WriteFile("end", "")
	a.WaitUntil("the job whose end will be stored ends", 10*time.Second, func() bool { return !testrig.IsAlive(ends) })
	time.Sleep(200 * time.Millisecond) // the service must block on the database
	a.KillRunners()
	started := time.Now()
	a.WaitUntil("the job is ended", 10*time.Second, func() bool { return !testrig.IsAlive(pid) })
	if elapsed := time.Since(started); elapsed > testrig.TimeoutFactor*2*time.Second {
		t.Errorf("the job ran for another %v, although the node lease lasts 5 s", elapsed)
	}
	p.Freeze(false)
	a.WriteFile("go", "")
	a.WaitUntil("both have ended", 60*time.Second, func() bool {
		return a.Show("long").State == "completed" && a.Show("ends").State == "completed"
	})
}

// If a runner hangs while its service is stopped, its jobs are ended before the node lease of 5 s expires.
func TestHungRunnersJobsEndWithoutService(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	checkRunnerWithoutService(t, 5*time.Second, func(a *testrig.Queue) {
		for _, pid := range a.RunnerPids() {
			syscall.Kill(pid, syscall.SIGSTOP)
		}
	})
}

// If a runner is killed while its service is stopped, its jobs are ended immediately.
func TestDeadRunnersJobsEndWithoutService(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	checkRunnerWithoutService(t, testrig.TimeoutFactor*2*time.Second, (*testrig.Queue).KillRunners)
}

// checkRunnerWithoutService calls injectFault for the runner of a node whose service is stopped with SIGSTOP,
// and then once more after the service was killed. Each time, the job must end within limit, because other
// nodes may soon run it. Afterwards it must run again.
func checkRunnerWithoutService(t *testing.T, limit time.Duration, injectFault func(*testrig.Queue)) {
	_, nodes := startNodes(t, "a")
	a := nodes[0]
	for i, end := range []func(){func() { a.Cmd.Process.Signal(syscall.SIGSTOP) }, func() { a.Kill() }} {
		id := fmt.Sprint("j", i)
		a.MustCLI("enqueue", "--id", id, testrig.GatedJob(a.Path("go")))
		w := a.Dial()
		pid := w.WaitRunning(id).PID
		end()
		injectFault(a)
		started := time.Now()
		a.WaitUntil("the job is ended", 10*time.Second, func() bool { return !testrig.IsAlive(pid) })
		if elapsed := time.Since(started); elapsed > limit {
			t.Errorf("the job ran for another %v, want at most %v", elapsed, limit)
		}
		if i == 0 {
			a.Cmd.Process.Signal(syscall.SIGCONT)
			a.WaitUntil("the job runs again", 60*time.Second, func() bool {
				if a.CLI("show", id).Code != 0 {
					return false
				}
				secondPID := a.Show(id).PID
				return secondPID != pid && secondPID != 0
			})
		}
	}
	a.WriteFile("go", "")
	a.Start("--workers", "2")
	for _, id := range []string{"j0", "j1"} {
		a.WaitUntil(id+" has ended", 60*time.Second, func() bool { return a.Show(id).State == "completed" })
	}
}

// If a runner has recorded the start of a job but has not started it, a drain fails, even if another node
// requests the drain. Other changes on all nodes still work.
func TestDrainOfAnotherNodeNamesAJobThatMayStart(t *testing.T) {
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	b.Bin = testrig.BuiltProgram(t, "failpoint")
	b.Env = append(b.Env, "QUEUECTL_FAILPOINTS=attempt-noted=wait:"+b.Path("go"))
	a.Start("--workers", "1")
	b.Start("--workers", "1")
	id := a.MustCLI("enqueue", "--on", "b", "echo started")
	a.WaitUntil("its attempt is noted", 10*time.Second, func() bool { return b.CountStarted() == 1 })
	want := "on b: draining has begun, but job " + id + " may still start"
	for _, verb := range [][]string{{"node", "drain", "b"}, {"drain"}} {
		if got := a.CLIWithin(20*time.Second, verb...); got.Code != 3 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%v: got %+v, want an error with %q", verb, got, want)
		}
	}
	a.MustCLI("config", "set", "priority", "3")
	logs, _ := filepath.Glob(a.Path("stderr-*"))
	for _, name := range logs {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), "has not confirmed a settings change") {
			t.Error("the drain of a node is reported as an unconfirmed settings change")
		}
	}
	b.WriteFile("go", "")
	a.WaitUntil("the job has run", 20*time.Second, func() bool { return a.Show(id).State == "completed" })
	a.MustCLI("node", "drain", "b", "--wait")
	a.MustCLI("drain", "--wait")
}
