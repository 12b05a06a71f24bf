package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If the service is killed while it stops, its runners and jobs keep running. The command that
// requested the stop reports an error and says how to end the runners and jobs.
func TestServiceStopReportsRunnersOfAKilledService(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{"QUEUECTL_STOP_TIMEOUT=600s"}
	q.StartService("--workers", "1")
	w := q.DialService()
	pid := w.WaitJobRunning(w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go"),
		"max_retries": 0})).PID
	ended := make(chan testrig.CommandResult, 1)
	go func() { ended <- testrig.RunCommand(q, q.CLICommand("service", "stop")) }()
	q.WaitUntil("the service stops", 20*time.Second, func() bool {
		return strings.Contains(q.RunCLI("status", "--check").Stdout, "the service is stopping")
	})
	q.KillService()
	r := <-ended
	if r.ExitCode != 5 || !strings.Contains(r.Stderr, "its runners are still alive") ||
		!strings.Contains(r.Stderr, "service stop --runners") {
		t.Errorf("service stop: %+v; want exit code 5, and how to stop the runners", r)
	}
	if !testrig.IsProcessAlive(pid) {
		t.Error("the job has ended with its service")
	}
	q.MustRunCLI("service", "stop", "--runners")
	q.WaitUntil("the job is gone", 5*time.Second, func() bool { return !testrig.IsProcessAlive(pid) })
}
