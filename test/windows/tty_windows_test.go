package windows

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A service on Windows refuses jobs that request a terminal. The error names Windows as the reason.
func TestNoTerminalOnWindows(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	if r := q.RunCLI("enqueue", "--tty", "true"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "tty") ||
		!strings.Contains(r.Stderr, "Windows") {
		t.Errorf("enqueue --tty: got %+v", r)
	}
	w := q.DialService()
	delayedJob := w.Enqueue(testrig.JSONFields{"command": "true", "delay": "1h"})
	if r := q.RunCLI("edit", delayedJob, "--tty"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "Windows") {
		t.Errorf("edit: got %+v", r)
	}
}
