package test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Doctor finds files that other users can access, and a runner that does not answer.
func TestDoctorFindsModesAndStoppedRunners(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("run", "true")
	os.Chmod(q.path("queuectl.db"), 0o644)
	q.checkFinding("a wrong mode", "permissions", "chmod 600 "+q.path("queuectl.db"))
	os.Chmod(q.path("queuectl.db"), 0o600)
	os.Chmod(q.path("queuectl.sock"), 0o666)
	q.checkFinding("an open socket", "permissions", "chmod 600 "+q.path("queuectl.sock"))
	os.Chmod(q.path("queuectl.sock"), 0o600)
	for _, c := range []struct {
		mode   os.FileMode
		advice string // "" if doctor must have no finding
	}{{0o711, ""}, {0o755, "run: chmod 700 " + q.dir}, {0o700, ""}} {
		os.Chmod(q.dir, c.mode)
		var got []string
		for _, f := range q.doctor().Findings {
			if f.Check == "permissions" && f.Level != "ok" {
				got = append(got, f.Level+": "+f.Next)
			}
		}
		if want := "warning: " + c.advice; c.advice == "" && len(got) > 0 || c.advice != "" &&
			(len(got) != 1 || got[0] != want) {
			t.Errorf("a state directory of mode %o: doctor finds %q, want %q", c.mode, got, c.advice)
		}
	}
	q.checkHealthy("with its modes back")

	pid := q.runnerPid()
	syscall.Kill(pid, syscall.SIGSTOP)
	q.waitUntil("it has stopped", 20*time.Second, func() bool {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(raw), ") T ")
	})
	q.checkFinding("a runner that is stopped", "runner", "does not answer")
	syscall.Kill(pid, syscall.SIGCONT)
	q.checkHealthy("with its runner back")
}
