package test

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// A node's service and runner are killed while the database server is down. When the service is started
// again, it ends the jobs of that runner, although it cannot run without the database. The jobs must end
// because other nodes may soon run them again.
func TestDeadRunnersJobsEndWithoutDatabase(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.must("enqueue", "--id", "long", "--max-retries", "0", gatedJob(a.path("go")))
	pid := a.dial().waitRunning("long").PID
	p.Kill()
	a.kill()
	a.killRunners()
	if syscall.Kill(pid, 0) != nil {
		t.Log("the job has ended with its runner")
	}
	a.waitUntil("the job is ended", 10*time.Second, func() bool {
		// Start the service again, as a service manager would. Each start fails, but it must end the job.
		if err := a.tryStart("--workers", "2"); err == nil {
			t.Error("the service starts without its database")
		}
		a.cmd = nil
		return syscall.Kill(pid, 0) != nil
	})
	p.Start(t)
	a.start("--workers", "2")
	a.waitUntil("it is dead", 20*time.Second, func() bool { return a.show("long").State == "dead" })
}

// When a runner is killed, its jobs are ended immediately, even if its service is waiting for a hung database
// server. The jobs must end because other nodes may soon run them again.
func TestDeadRunnersJobsEndWhileStoreHangs(t *testing.T) {
	t.Parallel()
	p, nodes := startNodes(t, "a")
	a := nodes[0]
	a.must("enqueue", "--id", "long", gatedJob(a.path("go")))
	a.must("enqueue", "--id", "ends", gatedJob(a.path("end")))
	w := a.dial()
	pid, ends := w.waitRunning("long").PID, w.waitRunning("ends").PID
	p.Freeze(true)
	t.Cleanup(func() { p.Freeze(false) })
	a.writeFile("end", "")
	a.waitUntil("a job has ended, which is to be stored", 10*time.Second, func() bool { return !isAlive(ends) })
	time.Sleep(200 * time.Millisecond) // time for the service to block on the store
	a.killRunners()
	started := time.Now()
	a.waitUntil("the job is ended", 10*time.Second, func() bool { return !isAlive(pid) })
	if elapsed := time.Since(started); elapsed > timeoutFactor*2*time.Second {
		t.Errorf("it lived on for %v, and its node's lease has 5 s", elapsed)
	}
	p.Freeze(false)
	a.writeFile("go", "")
	a.waitUntil("both have ended", 60*time.Second, func() bool {
		return a.show("long").State == "completed" && a.show("ends").State == "completed"
	})
}

// If a runner hangs while its service cannot act, its jobs are ended before the node lease of 5 s
// expires.
func TestHungRunnersJobsEndWithoutService(t *testing.T) {
	t.Parallel()
	checkRunnerWithoutService(t, 5*time.Second, func(a *queue) {
		for _, pid := range a.runnerPids() {
			syscall.Kill(pid, syscall.SIGSTOP)
		}
	})
}

// If a runner is killed while its service cannot act, its jobs are ended immediately.
func TestDeadRunnersJobsEndWithoutService(t *testing.T) {
	t.Parallel()
	checkRunnerWithoutService(t, timeoutFactor*2*time.Second, (*queue).killRunners)
}

// checkRunnerWithoutService harms the runner of a node whose service is stopped (SIGSTOP), and then of
// a node whose service was killed. The job must be ended within the given time, because other
// nodes may soon run it. It must run again afterwards.
func checkRunnerWithoutService(t *testing.T, limit time.Duration, inject func(*queue)) {
	_, nodes := startNodes(t, "a")
	a := nodes[0]
	for i, end := range []func(){func() { a.cmd.Process.Signal(syscall.SIGSTOP) }, func() { a.kill() }} {
		id := fmt.Sprint("j", i)
		a.must("enqueue", "--id", id, gatedJob(a.path("go")))
		w := a.dial()
		pid := w.waitRunning(id).PID
		end()
		inject(a)
		started := time.Now()
		a.waitUntil("the job is ended", 10*time.Second, func() bool { return !isAlive(pid) })
		if elapsed := time.Since(started); elapsed > limit {
			t.Errorf("it lived on for %v, which is to be %v at most", elapsed, limit)
		}
		if i == 0 {
			a.cmd.Process.Signal(syscall.SIGCONT)
			a.waitUntil("it runs again", 60*time.Second, func() bool {
				if a.cli("show", id).code != 0 {
					return false
				}
				secondPID := a.show(id).PID
				return secondPID != pid && secondPID != 0
			})
		}
	}
	a.writeFile("go", "")
	a.start("--workers", "2")
	for _, id := range []string{"j0", "j1"} {
		a.waitUntil(id+" has ended", 60*time.Second, func() bool { return a.show(id).State == "completed" })
	}
}
