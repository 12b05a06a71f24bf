//go:build linux || windows

package access

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The jobs of one user use at most max_bytes_per_user bytes, also after a restart. To make room for a new job,
// the service removes inputs of ended jobs.
func TestUserBytesStayWithinLimit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("config", "set", "max_bytes_per_user", "2MiB")
	file := filepath.Join(t.TempDir(), "job")
	if err := os.WriteFile(file, []byte(`{"command": "cat", "delay": "1h", "stdin": "`+strings.Repeat("x", 250<<10)+`"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	full := func(when string) {
		t.Helper()
		r := q.RunCLI("enqueue", "--file", file)
		if r.ExitCode != 5 || !strings.Contains(r.Stderr, "max_bytes_per_user: ") ||
			!strings.Contains(r.Stderr, "of 2097152 bytes") ||
			!strings.Contains(r.Stderr, "queuectl rm") {
			t.Errorf("%s: exit code %d, %s", when, r.ExitCode, r.Stderr)
		}
		if out := q.MustRunCLI("status"); !strings.Contains(out, "of 2.0 MiB used") {
			t.Errorf("%s: status does not show the bytes: %s", when, out)
		}
		if out := q.MustRunCLI("status", "--json"); !strings.Contains(out, `"max_bytes_per_user":2097152`) {
			t.Errorf("%s: status --json does not show the bytes: %s", when, out)
		}
	}
	if out := q.MustRunCLI("status"); strings.Contains(out, "used") {
		t.Errorf("status shows bytes that are far from the limit: %s", out)
	}
	if out := q.MustRunCLI("status", "--verbose"); !strings.Contains(out, "Your jobs: 0 bytes of 2.0 MiB used") {
		t.Errorf("status --verbose: %s", out)
	}
	for range 8 {
		q.MustRunCLI("enqueue", "--file", file)
	}
	full("a ninth job of 250 KiB in 2 MiB")
	q.KillService()
	q.StartService("--workers", "1")
	full("after a restart")
	if r := q.RunCLI("whoami"); !strings.Contains(r.Stdout, "of 2.0 MiB used") {
		t.Errorf("whoami: %s%s", r.Stdout, r.Stderr)
	}
	if r := q.RunCLI("doctor"); !strings.Contains(r.Stdout,
		"of 2097152 bytes; once all bytes are used, new jobs are refused") {
		t.Errorf("doctor: %s%s", r.Stdout, r.Stderr)
	}
	q.MustRunCLI("cancel", "--all", "--yes")
	for range 12 {
		q.MustRunCLI("enqueue", "--file", file)
		q.MustRunCLI("cancel", "--all", "--yes")
	}
	if out := q.MustRunCLI("show", "1"); !strings.Contains(out,
		"Removed:    env, stdin (to free space; this job cannot run again)") {
		t.Errorf("show of a job whose input was removed to free space: %s", out)
	}
	if out := q.MustRunCLI("show", "1", "--json"); !strings.Contains(out, `"input_removed":["env","stdin"]`) {
		t.Errorf("show --json of a job whose input was removed to free space: %s", out)
	}
	if r := q.RunCLI("retry", "1"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "stdin: job 1 cannot run again") {
		t.Errorf("retry of a job whose input was removed to free space: exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	if out := q.MustRunCLI("why", "1"); !strings.Contains(out, "its input (env, stdin) was removed to make room") {
		t.Errorf("why of a job whose input was removed to free space: %s", out)
	}
	if r := q.RunCLI("doctor", "--verify"); r.ExitCode != 0 {
		t.Errorf("doctor --verify: exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	q.MustRunCLI("config", "set", "max_bytes_per_user", "20MiB")
	q.MustRunCLI("run", "--id", "output", "head -c 60000 /dev/zero | tr '\\0' x")
	q.MustRunCLI("config", "set", "max_bytes_per_user", "64KiB")
	q.WaitUntil("the oldest output is removed", 30*time.Second, func() bool {
		return !strings.Contains(q.RunCLI("logs", "output").Stdout, "xxx")
	})
	if r := q.RunCLI("logs", "output"); !strings.Contains(r.Stderr,
		"the output of attempt 1 was removed to make room (setting max_bytes_per_user)") {
		t.Errorf("logs of an output that the quota removed: %+v", r)
	}
}

// If a job prints a lot and is retried many times, its user still never uses more than max_bytes_per_user
// bytes. The output of the last attempt is kept.
func TestRetriedJobsOutputsStayWithinLimit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("config", "set", "max_bytes_per_user", "1MiB")
	q.MustRunCLI("enqueue", "--id", "prints", "--max-retries", "15", "--backoff-max", "1ms",
		"head -c 300000 /dev/zero | tr '\\0' x; exit 1")
	peakBytes := 0
	q.WaitUntil("the job is dead", time.Minute, func() bool {
		var st struct {
			Bytes int `json:"user_bytes"`
		}
		if err := json.Unmarshal([]byte(q.MustRunCLI("status", "--json")), &st); err != nil {
			t.Fatal(err)
		}
		peakBytes = max(peakBytes, st.Bytes)
		return strings.Contains(q.MustRunCLI("show", "prints", "--json"), `"state":"dead"`)
	})
	if peakBytes > 1<<20 || peakBytes < 300_000 {
		t.Errorf("the user's jobs held %d bytes, want less than 1 MiB and the output of one attempt", peakBytes)
	}
	if r := q.RunCLI("logs", "prints", "--attempt", "1"); !strings.Contains(r.Stderr,
		"the output of attempt 1 was removed to make room (setting max_bytes_per_user)") {
		t.Errorf("logs of the first attempt: exit code %d, %s", r.ExitCode, r.Stderr)
	}
	if r := q.RunCLI("logs", "prints"); len(r.Stdout) < 300_000 {
		t.Errorf("logs of the last attempt: exit code %d, %d bytes, %s", r.ExitCode, len(r.Stdout), r.Stderr)
	}
	if r := q.RunCLI("doctor", "--verify"); r.ExitCode != 0 {
		t.Errorf("doctor --verify: exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}
