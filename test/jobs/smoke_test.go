//go:build linux || windows

package jobs

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// An enqueued command runs, and its exit code and output are stored.
func TestEnqueuedCommandCompletes(t *testing.T) {
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	id := q.MustRunCLI("enqueue", "echo hello; echo warn >&2")
	if r := q.RunCLI("wait", id); r.ExitCode != 0 {
		t.Fatalf("wait: exit code %d: %s", r.ExitCode, r.Stderr)
	}
	j := q.ShowJob(id)
	if j.State != "completed" || j.ExitCode == nil || *j.ExitCode != 0 || j.Output != "hello\n" || j.Stderr != "warn\n" ||
		len(j.AttemptHistory) != 1 {
		t.Errorf("the completed job: %+v", j)
	}
}
