package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// On a terminal, `queuectl wait` says after one second why no job is running.
func TestWaitOnATerminalSaysWhyNothingRuns(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustCLI("enqueue", "--id", "paused", "sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.Show("paused").State == "processing" })
	q.MustCLI("pause", "paused")
	q.MustCLI("enqueue", "--id", "late", "--batch", "b", "--delay", "1h", "true")
	q.MustCLI("enqueue", "--id", "held", "--batch", "b", "--delay", "1h", "true")
	q.MustCLI("hold", "held")
	w := q.Dial()
	w.Enqueue(testrig.Fields{"id": "locked", "command": "true", "queue": "closed"})
	q.MustCLI("queue", "pause", "closed")
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
			if r := q.RunOnScreen(args...); r.Code != 124 || strings.Count(r.Stdout, c.wantText) != 1 {
				t.Errorf("wait %s: exit code %d, want 124; it printed %q, want %q once", c.words, r.Code, r.Stdout, c.wantText)
			}
		})
	}
}

// On a terminal, `queuectl wait` reports when a failed job will be retried.
func TestWaitOnATerminalSaysWhenAFailedJobIsRetried(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustCLI("enqueue", "--id", "again", "--max-retries", "1", "--backoff-base", "3600", "false")
	q.WaitUntil("the job has failed", 20*time.Second, func() bool { return q.Show("again").State == "failed" })
	if r := q.RunOnScreen("wait", "--timeout", "2s", "again"); strings.Count(r.Stdout, "job again is waiting: ") != 1 {
		t.Errorf("wait printed %q, want the time of the retry once", r.Stdout)
	}
}

// On a terminal, a `queuectl service stop` that takes longer than one second reports which jobs it is waiting
// for.
func TestServiceStopOnATerminalSaysWhatItWaitsFor(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustCLI("config", "set", "stop_timeout", "2s")
	q.MustCLI("enqueue", "--id", "long", "exec sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.Show("long").State == "processing" })
	if r := runTyping(q, "waiting for 1 job to finish", "", "service", "stop"); r.Code != 0 ||
		!strings.Contains(r.Stdout, "stopped") {
		t.Errorf("service stop: %+v", r)
	}
}
