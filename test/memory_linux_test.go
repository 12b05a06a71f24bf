package test

import (
	"testing"
	"time"
)

// After its start, the service releases the memory of those parts of its program that only the start has
// used. It works as before.
func TestStartupMemoryIsReleased(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	// If the start takes long, only the next periodic check releases the memory.
	q.waitUntil("it holds less than 14 MiB", 70*time.Second,
		func() bool { return resident(q.cmd.Process.Pid) < 14<<20 })
	if out := q.must("run", "echo well"); out != "well" {
		t.Errorf("after that a job printed %q", out)
	}
}
