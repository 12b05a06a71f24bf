package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl kill` signals every process of a job, including processes in other sessions, and no other process.
func TestKillSignalsWholeProcessTree(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	const onSignal = `trap 'echo %s got it' USR1; echo up; while :; do sleep 0.05; done`
	job := fmt.Sprintf(`setsid sh -c "%s" & sh -c "%s" & `+onSignal,
		fmt.Sprintf(onSignal, "away"), fmt.Sprintf(onSignal, "child"), "main")
	id := w.Enqueue(testrig.JSONFields{"command": job})
	other := w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf(onSignal, "other")})
	output := func(id string) string { return q.MustRunCLI("logs", id) }
	w.WaitUntil("all three are up", 20*time.Second, func() bool { return strings.Count(output(id), "up") == 3 })
	w.WaitJobRunning(other)
	q.MustRunCLI("kill", "-s", "USR1", id)
	for _, process := range []string{"main", "child", "away"} {
		w.WaitUntil(process+" got the signal", 20*time.Second, func() bool {
			return strings.Contains(output(id), process+" got it")
		})
	}
	if got := output(other); strings.Contains(got, "got it") {
		t.Errorf("a process of another job got the signal: %q", got)
	}
	if r := q.RunCLI("kill", "-s", "NOPE", id); r.ExitCode != 2 || !strings.Contains(r.Stderr, "signal") {
		t.Errorf("kill with an unknown signal: %+v", r)
	}
	q.MustRunCLI("cancel", id, other)
	if r := q.RunCLI("kill", id); r.ExitCode != 5 || !strings.Contains(r.Stderr, "only a running job") {
		t.Errorf("kill of an ended job: %+v", r)
	}
}
