package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// In the foreground, `queuectl worker start` adds workers until the user presses Ctrl-C. Then the command waits for the
// jobs of these workers, and removes the workers.
func TestForegroundWorkersEndOnCtrlC(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	workers := func() (st struct{ Workers struct{ Total int } }) {
		w.MustCall("status", testrig.JSONFields{}, &st)
		return st
	}
	cmd := q.CLICommand("worker", "start", "-c", "2", "--foreground")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.WaitUntil("three workers", 20*time.Second, func() bool { return workers().Workers.Total == 3 })
	cmd.Process.Signal(syscall.SIGINT)
	text, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil || string(text) != "1 worker\n" {
		t.Errorf("worker start ended after Ctrl-C with %v and printed %q", err, text)
	}
	if got := workers().Workers.Total; got != 1 {
		t.Errorf("%d workers are left, want 1", got)
	}
	cmd = q.CLICommand("worker", "start", "--foreground")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.WaitUntil("two workers", 20*time.Second, func() bool { return workers().Workers.Total == 2 })
	q.StopService()
	if err := cmd.Wait(); err == nil {
		t.Error("worker start succeeds although the service has ended")
	}
}

// A second Ctrl-C cancels the job and ends `queuectl run`, even if no process reads its output.
func TestSecondCtrlCEndsRunWithUnreadOutput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	cmd := q.CLICommand("run", "--id", "loud", "yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	// Read only the first bytes, although the job keeps printing.
	if _, err := io.ReadFull(out, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	read, since := "", time.Now()
	q.WaitUntil("the client has printed all output", 20*time.Second, func() bool {
		now, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid))
		if first, _, _ := strings.Cut(string(now), "\n"); first != read {
			read, since = first, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
	cmd.Process.Signal(syscall.SIGINT)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "press Ctrl-C again") {
	}
	cmd.Process.Signal(syscall.SIGINT)
	remaining, _ := io.ReadAll(stderr)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 ||
		!strings.Contains(string(remaining), "job loud cancelled") {
		t.Errorf("the client ended with %v and printed %q", err, remaining)
	}
	if j := q.ShowJob("loud"); j.State != "cancelled" {
		t.Errorf("the job is %s, want cancelled", j.State)
	}
}

// `queuectl run` prints all output of a job immediately, even output that exceeds the limit for jobs of other commands:
// jobs of run have a higher default limit. If the output exceeds --output-limit, the command reports that.
func TestRunShowsAllOfALargeOutput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	const lines = 1_000_000
	r := q.RunCLI("run", "--", "seq", fmt.Sprint(lines))
	if want := 6_888_896; r.ExitCode != 0 || len(r.Stdout) != want || r.Stderr != "" {
		t.Errorf("run of a job with a large output: exit code %d, %d bytes of %d; stderr %q", r.ExitCode, len(r.Stdout), want,
			r.Stderr)
	}
	r = q.RunCLI("run", "--output-limit", "1M", "--", "sh", "-c", "seq 2000000")
	if kept := strings.Contains(
		r.Stderr, "were not kept]: the output exceeded --output-limit, or could not be stored"); r.ExitCode != 0 ||
		len(r.Stdout) < 14_888_896 != kept {
		t.Errorf("run of a job with a too large output: exit code %d, %d bytes; stderr %q", r.ExitCode, len(r.Stdout),
			r.Stderr)
	}
}
