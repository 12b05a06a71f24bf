package cli

import (
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// run passes on exit codes of 32 bits, which only Windows has.
func TestExitCodesPass(t *testing.T) {
	for _, code := range []int64{3, 256, 0xc0000005} {
		if got := jobExit(&control.Job{State: queue.Dead.String(), ExitCode: &code}); int64(got) != code {
			t.Errorf("got %d, want %d", got, code)
		}
	}
}
