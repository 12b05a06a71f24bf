package test

import (
	"strings"
	"testing"
	"time"
)

// If the service is killed while it stops, its runners and jobs keep running. The command that has requested
// the stop reports an error, and how to end the runners and jobs.
func TestServiceStopReportsRunnersOfAKilledService(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.env = []string{"QUEUECTL_STOP_TIMEOUT=600s"}
	q.start("--workers", "1")
	w := q.dial()
	pid := w.waitRunning(w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go"), "max_retries": 0})).PID
	ended := make(chan result, 1)
	go func() { ended <- runCommand(q, q.command("service", "stop")) }()
	q.waitUntil("the service stops", 20*time.Second, func() bool {
		return strings.Contains(q.cli("status", "--check").out, "the service is stopping")
	})
	q.kill()
	r := <-ended
	if r.code != 5 || !strings.Contains(r.err, "its runners are still alive") ||
		!strings.Contains(r.err, "service stop --runners") {
		t.Errorf("service stop: %+v; want exit code 5, and how to stop the runners", r)
	}
	if !isAlive(pid) {
		t.Error("the job has ended with its service")
	}
	q.must("service", "stop", "--runners")
	q.waitUntil("the job is gone", 5*time.Second, func() bool { return !isAlive(pid) })
}
