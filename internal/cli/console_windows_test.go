package cli

import (
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// "queuectl run" exits with the exit code of the job. On Windows, an exit code has 32 bits.
func TestRunReturnsJobExitCode(t *testing.T) {
	for _, code := range []int64{3, 256, 0xc0000005} {
		if got := jobExitCode(&control.Job{State: queue.Dead.String(), ExitCode: &code}); int64(got) != code {
			t.Errorf("got %d, want %d", got, code)
		}
	}
}
