package daemon

import (
	"testing"

	"github.com/queuectl/queuectl/runner/process"
)

// The cause of a killed attempt is the cause of the kill, whatever else the runner has detected.
// Without a kill, the cause comes from the runner's own findings.
func TestCauseOfKillComesFirst(t *testing.T) {
	for _, c := range []struct {
		r    process.Result
		want int64
	}{
		{process.Result{ExitCode: 1}, 0},
		{process.Result{Signal: 9}, 0},
		{process.Result{Cause: 4, HungStart: true, EndUnknown: true, OutOfMemory: true}, 4},
		{process.Result{EndUnknown: true}, causeLost},
		{process.Result{HungStart: true}, causeHungStart},
		{process.Result{OutOfMemory: true}, causeMemory},
		{process.Result{MemoryLimit: true}, 0}, // a child process was killed, not the main process
		{process.Result{SessionEnds: true, OutOfMemory: true, Shortage: true}, causeStopped},
	} {
		if got := cause(&c.r); got != c.want {
			t.Errorf("%+v: cause %d, want %d", c.r, got, c.want)
		}
	}
	if causeStopped != 5 || causeLost != 8 || causeInterrupted != 9 || causeMemory != 12 || causeHungStart != 13 {
		t.Error("the causes have other numbers than in the service")
	}
}
