package test

import (
	"testing"
	"time"
)

// A service that has started holds no longer what its start alone has read of its program, and works as before.
func TestStartIsForgotten(t *testing.T) {
	q := serving(t, "--workers", "1")
	q.until("it holds less than 14 MiB", 70*time.Second, // where its start takes long it is the next look that does it
		func() bool { return resident(q.cmd.Process.Pid) < 14<<20 })
	if out := q.must("run", "echo well"); out != "well" {
		t.Errorf("after that a job printed %q", out)
	}
}
