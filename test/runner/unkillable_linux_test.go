package runner

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// startQueueForUnkillableJobs starts a queue with one worker. The returned spec describes a job that outlives SIGKILL:
// it reads a file of a FUSE server that accepts the request and never replies. To save time, the runner waits only
// briefly, instead of half a minute, for processes that outlive SIGKILL.
func startQueueForUnkillableJobs(t *testing.T) (q *testrig.Harness, d *testrig.Disk, spec testrig.JSONFields) {
	t.Helper()
	testrig.RequireDisks(t, "/dev/fuse")
	t.Parallel()
	q, d = testrig.NewHarness(t, "failpoint"), testrig.NewDisk(t, 0)
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=impatient"}
	q.StartService("--workers", "1")
	return q, d, testrig.JSONFields{"argv": []string{"cat", d.Path("fuse/stuck")}, "timeout": 0.2, "kill_after": 0.1}
}

// workersAndHealth returns the number of busy workers, the number of idle workers, and the health of the service, as
// the API method "status" reports them.
func workersAndHealth(conn *testrig.ServiceConn) (busyWorkers, idleWorkers int, health string) {
	conn.Helper()
	var st struct {
		Workers struct{ Busy, Idle int }
		Health  string
	}
	conn.MustCall("status", nil, &st)
	return st.Workers.Busy, st.Workers.Idle, st.Health
}

// If a job outlives SIGKILL, or leaves a process that does, the job is dead with the reason "unkillable". The
// job is not retried, and the service logs an error. Its worker stays busy, also for the next service, until
// all processes of the job have ended.
func TestUnkillableJobIsDeadAndOccupiesWorker(t *testing.T) {
	testrig.RequireDisks(t, "/dev/fuse")
	t.Run("the job outlives SIGKILL", func(t *testing.T) {
		q, d, spec := startQueueForUnkillableJobs(t)
		checkUnkillableJob(q, d, spec)
	})
	t.Run("the job leaves a process that outlives SIGKILL", func(t *testing.T) {
		q, d, _ := startQueueForUnkillableJobs(t)
		checkUnkillableJob(q, d, testrig.JSONFields{"command": "setsid cat " + d.Path("fuse/stuck") + " & exit 0"})
	})
}

// checkUnkillableJob checks the promises of TestUnkillableJobIsDeadAndOccupiesWorker for a job.
func checkUnkillableJob(q *testrig.Harness, d *testrig.Disk, spec testrig.JSONFields) {
	w := q.DialService()
	id := w.Enqueue(spec)
	next := w.Enqueue(testrig.JSONFields{"argv": []string{"true"}})
	j := w.WaitJobEnded(id)
	if j.State != "dead" || j.Reason != "unkillable" || j.AttemptCount != 1 || len(j.AttemptHistory) != 1 ||
		j.Error == "" {
		q.Fatalf("the job: %+v, want it dead as unkillable after one attempt", j)
	}
	pid := d.StuckReaderPID()
	checkWorkerTaken := func(context string) {
		q.Helper()
		if busy, idle, health := workersAndHealth(w); busy != 1 || idle != 0 ||
			!strings.Contains(health, fmt.Sprint("process ", pid)) {
			q.Errorf("%s: %d busy, %d idle, health %s; want the worker busy with process %d, and its pid in health",
				context, busy, idle, health, pid)
		}
		if list := q.MustRunCLI("worker", "list"); !strings.Contains(list, "stuck") {
			q.Errorf("%s: worker list: %s", context, list)
		}
		if j := w.ShowJob(next); j.State != "pending" {
			q.Errorf("%s: the next job is %s, want pending", context, j.State)
		}
		for started := time.Now(); time.Since(started) < 200*time.Millisecond; time.Sleep(5 * time.Millisecond) {
			if q.CountReservedJobs() > 0 {
				q.Fatalf("%s: a job was claimed for a worker that is still busy", context)
			}
		}
	}
	checkWorkerTaken("at first")
	if text := q.ReadAllLogs(); !strings.Contains(text, "ERROR") || !strings.Contains(text, "SIGKILL") {
		q.Errorf("the log contains no error about the job:\n%s", text)
	}
	q.KillService()
	q.StartService("--workers", "1")
	w = q.DialService()
	checkWorkerTaken("with another service")
	d.AbortServer()
	q.WaitUntil("the process is gone, and reaped", 20*time.Second, func() bool {
		_, err := os.Stat(fmt.Sprint("/proc/", pid))
		return err != nil
	})
	if j := w.WaitJobEnded(next); j.State != "completed" {
		q.Errorf("the next job, after the process has ended: %+v", j)
	}
	q.WaitUntil("the worker is free", 10*time.Second, func() bool {
		busy, idle, health := workersAndHealth(w)
		return busy == 0 && idle == 1 && health == "ok"
	})
}

// A service that is stopped does not wait for processes that cannot be killed.
func TestUnkillableJobDelaysNoServiceStop(t *testing.T) {
	testrig.RequireDisks(t, "/dev/fuse")
	for _, c := range []struct {
		name string
		dead bool // whether the job is dead before the service stops
	}{{"given up already", true}, {"running", false}} {
		t.Run(c.name, func(t *testing.T) {
			q, d, spec := startQueueForUnkillableJobs(t)
			w := q.DialService()
			delete(spec, "timeout")
			id := w.Enqueue(spec)
			q.WaitUntil("the job runs", 20*time.Second, func() bool { return w.ShowJob(id).PID > 0 })
			if c.dead {
				w.MustCall("cancel", testrig.JSONFields{"id": id}, nil)
			} else {
				q.MustRunCLI("config", "set", "stop_timeout", "0.1s")
			}
			if code := q.StopService(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			d.StuckReaderPID()
			q.WaitUntil("the runner has ended", 20*time.Second, func() bool { return len(q.RunnerPIDs()) == 0 })
			q.StartService("--workers", "1")
			w = q.DialService()
			if j := w.ShowJob(id); j.Reason != "unkillable" || j.State != "dead" {
				t.Errorf("the job after the restart: %+v, want it dead as unkillable", j)
			}
			if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"argv": []string{"true"}})); j.State != "completed" {
				t.Errorf("the next job: %+v", j)
			}
		})
	}
}

// When a runner dies, the jobs that outlive SIGKILL are dead with the reason "unkillable". They are not
// retried, because a new attempt would run at the same time as the old processes. Other jobs continue.
func TestDeadRunnersUnkillableJobIsNotRetried(t *testing.T) {
	q, d, spec := startQueueForUnkillableJobs(t)
	w := q.DialService()
	delete(spec, "timeout")
	id := w.Enqueue(spec)
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return w.ShowJob(id).PID > 0 })
	next := w.Enqueue(testrig.JSONFields{"argv": []string{"true"}})
	q.KillRunners()
	if j := w.WaitJobEnded(id); j.State != "dead" || j.Reason != "unkillable" {
		t.Errorf("the job of the killed runner: %+v, want it dead as unkillable", j)
	}
	d.StuckReaderPID()
	if j := w.WaitJobEnded(next); j.State != "completed" {
		t.Errorf("the next job: %+v", j)
	}
}
