package test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// kill signals every process of a job, including processes in other sessions, and no other process.
func TestKillSignalsTheTree(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	const hears = `trap 'echo %s got it' USR1; echo up; while :; do sleep 0.05; done`
	job := fmt.Sprintf(`setsid sh -c "%s" & sh -c "%s" & `+hears, fmt.Sprintf(hears, "away"), fmt.Sprintf(hears, "child"),
		"main")
	id := w.enqueue(fields{"command": job})
	other := w.enqueue(fields{"command": fmt.Sprintf(hears, "other")})
	output := func(id string) string { return q.must("logs", id) }
	w.waitUntil("all three are up", 20*time.Second, func() bool { return strings.Count(output(id), "up") == 3 })
	w.waitRunning(other)
	q.must("kill", "-s", "USR1", id)
	for _, process := range []string{"main", "child", "away"} {
		w.waitUntil(process+" got the signal", 20*time.Second, func() bool {
			return strings.Contains(output(id), process+" got it")
		})
	}
	if got := output(other); strings.Contains(got, "got it") {
		t.Errorf("a stranger got the signal: %q", got)
	}
	if r := q.cli("kill", "-s", "NOPE", id); r.code != 2 || !strings.Contains(r.err, "signal") {
		t.Errorf("a wrong signal: %+v", r)
	}
	q.must("cancel", id, other)
	if r := q.cli("kill", id); r.code != 5 || !strings.Contains(r.err, "only a running job") {
		t.Errorf("kill of an ended job: %+v", r)
	}
}
