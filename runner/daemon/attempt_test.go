package daemon

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
)

// If the service has killed an attempt, the result contains the cause of this kill, whatever else the runner has
// observed. Otherwise the result contains the cause that the runner has observed.
func TestKillCauseOverridesObservedCause(t *testing.T) {
	for _, c := range []struct {
		r    process.Result
		want int64
	}{
		{process.Result{ExitCode: 1}, 0},
		{process.Result{Signal: 9}, 0},
		{process.Result{KillCause: 4, StartHung: true, ExitStatusUnknown: true, OutOfMemory: true}, 4},
		{process.Result{ExitStatusUnknown: true}, int64(queue.EndRunnerLost)},
		{process.Result{StartHung: true}, int64(queue.EndStartHung)},
		{process.Result{OutOfMemory: true}, int64(queue.EndOutOfMemory)},
		{process.Result{ReachedMemoryLimit: true}, 0}, // a child process was killed, not the main process
		{process.Result{LoginSessionWasEnding: true, OutOfMemory: true, ResourceShortage: true}, int64(queue.EndStopped)},
	} {
		if got := resultEndCause(&c.r); got != c.want {
			t.Errorf("%+v: cause %d, want %d", c.r, got, c.want)
		}
	}
	if queue.EndStopped != 5 || queue.EndRunnerLost != 8 || queue.EndInterrupted != 9 || queue.EndOutOfMemory != 12 ||
		queue.EndStartHung != 13 {
		t.Error("the causes have other numbers than in the service")
	}
}
