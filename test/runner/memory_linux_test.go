package runner

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// After its start, the service releases the memory of those parts of its program that it used only
// during the start. It continues to work.
func TestStartupMemoryIsReleased(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	// If the start takes long, only the next periodic check releases the memory.
	q.WaitUntil("it holds less than 14 MiB", 70*time.Second,
		func() bool { return testrig.ResidentMemory(q.Cmd.Process.Pid) < 14<<20 })
	if out := q.MustCLI("run", "echo well"); out != "well" {
		t.Errorf("after that a job printed %q", out)
	}
}
