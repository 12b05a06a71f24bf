package test

import (
	"strings"
	"testing"
)

// A service on Windows refuses jobs with a terminal and names Windows as the reason.
func TestNoTerminalOnWindows(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	if r := q.cli("enqueue", "--tty", "true"); r.code != 2 || !strings.Contains(r.err, "tty") ||
		!strings.Contains(r.err, "Windows") {
		t.Errorf("got %+v", r)
	}
	w := q.dial()
	delayedJob := w.enqueue(fields{"command": "true", "delay": "1h"})
	if r := q.cli("edit", delayedJob, "--tty"); r.code == 0 || !strings.Contains(r.err, "Windows") {
		t.Errorf("edit: got %+v", r)
	}
}
