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
	q.MustRunCLI("enqueue", "--id", "paused", "sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("paused").State == "processing" })
	q.MustRunCLI("pause", "paused")
	q.MustRunCLI("enqueue", "--id", "late", "--batch", "b", "--delay", "1h", "true")
	q.MustRunCLI("enqueue", "--id", "held", "--batch", "b", "--delay", "1h", "true")
	q.MustRunCLI("hold", "held")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "locked", "command": "true", "queue": "closed"})
	q.MustRunCLI("queue", "pause", "closed")
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
			if r := q.RunCLIOnTerminal(args...); r.ExitCode != 124 || strings.Count(r.Stdout, c.wantText) != 1 {
				t.Errorf("wait %s: exit code %d, want 124; it printed %q, want %q once", c.words, r.ExitCode, r.Stdout, c.wantText)
			}
		})
	}
}

// On a terminal, `queuectl wait` reports when a failed job will be retried.
func TestWaitOnATerminalSaysWhenAFailedJobIsRetried(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "again", "--max-retries", "1", "--backoff-base", "3600", "false")
	q.WaitUntil("the job has failed", 20*time.Second, func() bool { return q.ShowJob("again").State == "failed" })
	if r := q.RunCLIOnTerminal("wait", "--timeout", "2s", "again"); strings.Count(r.Stdout,
		"job again is waiting: ") != 1 {
		t.Errorf("wait printed %q, want the time of the retry once", r.Stdout)
	}
}

// On a terminal, a `queuectl service stop` that takes longer than one second reports which jobs it is waiting
// for.
func TestServiceStopOnATerminalSaysWhatItWaitsFor(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("config", "set", "stop_timeout", "2s")
	q.MustRunCLI("enqueue", "--id", "long", "exec sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("long").State == "processing" })
	if r := runOnTerminalTyping(q, "waiting for 1 job to finish", "", "service", "stop"); r.ExitCode != 0 ||
		!strings.Contains(r.Stdout, "stopped") {
		t.Errorf("service stop: %+v", r)
	}
}
