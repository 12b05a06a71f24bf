package test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// stuckQueue starts a queue with one worker. If processes outlive SIGKILL, the runner of the queue stops
// waiting for them after a moment instead of half a minute. spec is a job that outlives SIGKILL: it reads a
// file of a FUSE server that accepts the request and never replies.
func stuckQueue(t *testing.T) (q *queue, d *disk, spec fields) {
	t.Helper()
	needsDisks(t, "/dev/fuse")
	t.Parallel()
	q, d = newQueue(t, "failpoint"), newDisk(t, 0)
	q.env = []string{"QUEUECTL_FAILPOINTS=impatient"}
	q.start("--workers", "1")
	return q, d, fields{"argv": []string{"cat", d.path("fuse/stuck")}, "timeout": 0.2, "kill_after": 0.1}
}

// health returns what status reports about the workers and about the service's health.
func (w *wire) health() (busy, idle int, health string) {
	w.Helper()
	var st struct {
		Workers struct{ Busy, Idle int }
		Health  string
	}
	w.mustCall("status", nil, &st)
	return st.Workers.Busy, st.Workers.Idle, st.Health
}

// reader returns the pid of the process that reads the stuck file.
func (d *disk) reader() (pid int) {
	d.Helper()
	for _, line := range processesWithArg("cat\x00" + d.path("fuse/stuck")) {
		fmt.Sscan(line, &pid)
	}
	if pid == 0 || !isAlive(pid) {
		d.Fatal("nothing outlives SIGKILL")
	}
	return pid
}

// A job is dead with the reason "unkillable" if it outlives SIGKILL or leaves a process that does. Such a job
// is not retried, and the log contains an error. Its worker stays busy, also for the next service, until all
// of its processes have ended.
func TestUnkillableJob(t *testing.T) {
	needsDisks(t, "/dev/fuse")
	t.Run("itself", func(t *testing.T) {
		q, d, spec := stuckQueue(t)
		outlives(q, d, spec)
	})
	t.Run("what it leaves behind", func(t *testing.T) {
		q, d, _ := stuckQueue(t)
		outlives(q, d, fields{"command": "setsid cat " + d.path("fuse/stuck") + " & exit 0"})
	})
}

func outlives(q *queue, d *disk, spec fields) {
	w := q.dial()
	id := w.enqueue(spec)
	next := w.enqueue(fields{"argv": []string{"true"}})
	j := w.waitEnded(id)
	if j.State != "dead" || j.Reason != "unkillable" || j.Attempts != 1 || len(j.History) != 1 || j.Error == "" {
		q.Fatalf("got %+v, want dead as unkillable after one attempt", j)
	}
	pid := d.reader()
	checkWorkerTaken := func(when string) {
		q.Helper()
		if busy, idle, health := w.health(); busy != 1 || idle != 0 ||
			!strings.Contains(health, fmt.Sprint("process ", pid)) {
			q.Errorf("%s: %d busy, %d idle, %s; want the worker taken by %d, and said so", when, busy, idle, health, pid)
		}
		if list := q.must("worker", "list"); !strings.Contains(list, "stuck") {
			q.Errorf("%s: worker list: %s", when, list)
		}
		if j := w.show(next); j.State != "pending" {
			q.Errorf("%s: the next job is %s, want pending", when, j.State)
		}
		for started := time.Now(); time.Since(started) < 200*time.Millisecond; time.Sleep(5 * time.Millisecond) {
			if q.countReserved() > 0 {
				q.Fatalf("%s: a job is claimed for a worker that is taken", when)
			}
		}
	}
	checkWorkerTaken("at first")
	if text := q.logText(); !strings.Contains(text, "ERROR") || !strings.Contains(text, "SIGKILL") {
		q.Errorf("no alarm in the log:\n%s", text)
	}
	q.kill()
	q.start("--workers", "1")
	w = q.dial()
	checkWorkerTaken("with another service")
	d.abort()
	q.waitUntil("the process is gone, and reaped", 20*time.Second, func() bool {
		_, err := os.Stat(fmt.Sprint("/proc/", pid))
		return err != nil
	})
	if j := w.waitEnded(next); j.State != "completed" {
		q.Errorf("the next job, once the process is gone: %+v", j)
	}
	q.waitUntil("the worker is free", 10*time.Second, func() bool {
		busy, idle, health := w.health()
		return busy == 0 && idle == 1 && health == "ok"
	})
}

// A service that is stopped does not wait for processes that cannot be killed.
func TestUnkillableJobDelaysNoServiceStop(t *testing.T) {
	needsDisks(t, "/dev/fuse")
	for _, c := range []struct {
		name string
		dead bool // whether the job is dead before the service stops
	}{{"given up already", true}, {"running", false}} {
		t.Run(c.name, func(t *testing.T) {
			q, d, spec := stuckQueue(t)
			w := q.dial()
			delete(spec, "timeout")
			id := w.enqueue(spec)
			q.waitUntil("it runs", 20*time.Second, func() bool { return w.show(id).PID > 0 })
			if c.dead {
				w.mustCall("cancel", fields{"id": id}, nil)
			} else {
				q.must("config", "set", "stop_timeout", "0.1s")
			}
			if code := q.stop(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			d.reader()
			q.waitUntil("the runner has ended", 20*time.Second, func() bool { return len(q.runnerPids()) == 0 })
			q.start("--workers", "1")
			w = q.dial()
			if j := w.show(id); j.Reason != "unkillable" || j.State != "dead" {
				t.Errorf("got %+v, want dead as unkillable", j)
			}
			if j := w.waitEnded(w.enqueue(fields{"argv": []string{"true"}})); j.State != "completed" {
				t.Errorf("the next job: %+v", j)
			}
		})
	}
}

// When a runner dies, those of its jobs that outlive SIGKILL are dead with the reason "unkillable". They are
// not retried, because another attempt would run at the same time as the first. Other jobs continue.
func TestUnkillableJobOfADeadRunner(t *testing.T) {
	q, d, spec := stuckQueue(t)
	w := q.dial()
	delete(spec, "timeout")
	id := w.enqueue(spec)
	q.waitUntil("it runs", 20*time.Second, func() bool { return w.show(id).PID > 0 })
	next := w.enqueue(fields{"argv": []string{"true"}})
	q.killRunners()
	if j := w.waitEnded(id); j.State != "dead" || j.Reason != "unkillable" {
		t.Errorf("got %+v, want dead as unkillable", j)
	}
	d.reader()
	if j := w.waitEnded(next); j.State != "completed" {
		t.Errorf("the next job: %+v", j)
	}
}
