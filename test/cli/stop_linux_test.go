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
	q := testrig.NewQueue(t, "")
	q.Env = []string{"QUEUECTL_STOP_TIMEOUT=600s"}
	q.Start("--workers", "1")
	w := q.Dial()
	pid := w.WaitRunning(w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go"),
		"max_retries": 0})).PID
	ended := make(chan testrig.Result, 1)
	go func() { ended <- testrig.RunCommand(q, q.Command("service", "stop")) }()
	q.WaitUntil("the service stops", 20*time.Second, func() bool {
		return strings.Contains(q.CLI("status", "--check").Stdout, "the service is stopping")
	})
	q.Kill()
	r := <-ended
	if r.Code != 5 || !strings.Contains(r.Stderr, "its runners are still alive") ||
		!strings.Contains(r.Stderr, "service stop --runners") {
		t.Errorf("service stop: %+v; want exit code 5, and how to stop the runners", r)
	}
	if !testrig.IsAlive(pid) {
		t.Error("the job has ended with its service")
	}
	q.MustCLI("service", "stop", "--runners")
	q.WaitUntil("the job is gone", 5*time.Second, func() bool { return !testrig.IsAlive(pid) })
}
