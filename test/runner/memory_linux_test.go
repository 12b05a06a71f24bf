package runner

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// After its start, the service releases the memory of code that it needs only to start, and continues to
// work.
func TestServiceReleasesStartupMemory(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	// If the start takes long, the service releases the memory later, in its next periodic check.
	q.WaitUntil("it holds less than 14 MiB", 70*time.Second,
		func() bool { return testrig.ResidentMemoryBytes(q.ServiceCmd.Process.Pid) < 14<<20 })
	if out := q.MustRunCLI("run", "echo well"); out != "well" {
		t.Errorf("after that a job printed %q", out)
	}
}
