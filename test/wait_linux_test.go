package test

import (
	"strings"
	"testing"
	"time"
)

// On a terminal, wait reports after one second why none of its jobs is running, as run and attach do.
func TestWaitOnATerminalSaysWhyNothingRuns(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("enqueue", "--id", "paused", "sleep 600")
	q.waitUntil("the job runs", 20*time.Second, func() bool { return q.show("paused").State == "processing" })
	q.must("pause", "paused")
	q.must("enqueue", "--id", "late", "--batch", "b", "--delay", "1h", "true")
	q.must("enqueue", "--id", "held", "--batch", "b", "--delay", "1h", "true")
	q.must("hold", "held")
	w := q.dial()
	w.enqueue(fields{"id": "locked", "command": "true", "queue": "closed"})
	q.must("queue", "pause", "closed")
	for _, c := range []struct{ words, wantText string }{
		{"paused", "queuectl: job paused is waiting: the job is paused, by "},
		{"late", "queuectl: job late is waiting: not due yet (until "},
		{"held late", "queuectl: job held is waiting: the job is held; next step: queuectl release held"},
		{"locked", "queuectl: job locked is waiting: queue closed is paused"},
		{"--batch b", "queuectl: job late is waiting: not due yet (until "},
		{"late --any --joblog log", "queuectl: job late is waiting: not due yet (until "},
	} {
		t.Run(c.words, func(t *testing.T) {
			t.Parallel()
			q := *q
			q.TB = t
			args := append([]string{"wait", "--timeout", "2s"}, strings.Fields(c.words)...)
			if r := q.runOnScreen(args...); r.code != 124 || strings.Count(r.out, c.wantText) != 1 {
				t.Errorf("wait %s: exit code %d, want 124; it says %q, want %q once", c.words, r.code, r.out, c.wantText)
			}
		})
	}
}

// On a terminal, wait reports when a failed job will be retried.
func TestWaitOnATerminalSaysWhenAFailedJobIsRetried(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("enqueue", "--id", "again", "--max-retries", "1", "--backoff-base", "3600", "false")
	q.waitUntil("the job has failed", 20*time.Second, func() bool { return q.show("again").State == "failed" })
	if r := q.runOnScreen("wait", "--timeout", "2s", "again"); strings.Count(r.out, "job again is waiting: ") != 1 {
		t.Errorf("wait says %q", r.out)
	}
}

// On a terminal, a stop of the service that takes longer than one second reports which jobs it is waiting
// for.
func TestServiceStopOnATerminalSaysWhatItWaitsFor(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("config", "set", "stop_timeout", "2s")
	q.must("enqueue", "--id", "long", "exec sleep 600")
	q.waitUntil("the job runs", 20*time.Second, func() bool { return q.show("long").State == "processing" })
	if r := q.runTyping("waiting for 1 job to finish", "", "service", "stop"); r.code != 0 ||
		!strings.Contains(r.out, "stopped") {
		t.Errorf("service stop: %+v", r)
	}
}
