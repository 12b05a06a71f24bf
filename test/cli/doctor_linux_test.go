package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl doctor` finds files that other users can access, and a runner that does not answer.
func TestDoctorFindsAccessibleFilesAndStoppedRunners(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "true")
	os.Chmod(q.Path("queuectl.db"), 0o644)
	q.CheckDoctorFinding("a wrong mode", "permissions", "chmod 600 "+q.Path("queuectl.db"))
	os.Chmod(q.Path("queuectl.db"), 0o600)
	os.Chmod(q.Path("queuectl.sock"), 0o666)
	q.CheckDoctorFinding("an open socket", "permissions", "chmod 600 "+q.Path("queuectl.sock"))
	os.Chmod(q.Path("queuectl.sock"), 0o600)
	for _, c := range []struct {
		mode   os.FileMode
		advice string // "" if doctor must have no finding
	}{{0o711, ""}, {0o755, "run: chmod 700 " + q.StateDir}, {0o700, ""}} {
		os.Chmod(q.StateDir, c.mode)
		var got []string
		for _, f := range q.RunDoctor().Findings {
			if f.Check == "permissions" && f.Level != "ok" {
				got = append(got, f.Level+": "+f.Next)
			}
		}
		if want := "warning: " + c.advice; c.advice == "" && len(got) > 0 || c.advice != "" &&
			(len(got) != 1 || got[0] != want) {
			t.Errorf("a state directory of mode %o: doctor finds %q, want %q", c.mode, got, c.advice)
		}
	}
	q.CheckDoctorHealthy("with its modes back")

	pid := q.OnlyRunnerPID()
	syscall.Kill(pid, syscall.SIGSTOP)
	q.WaitUntil("it has stopped", 20*time.Second, func() bool {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(raw), ") T ")
	})
	q.CheckDoctorFinding("a runner that is stopped", "runner", "does not answer")
	syscall.Kill(pid, syscall.SIGCONT)
	q.CheckDoctorHealthy("with its runner back")
}
