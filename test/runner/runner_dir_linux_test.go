package runner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If the directory of a runner is removed, no service can find the runner any more. So the runner ends its jobs, and
// then itself. If a service is running at that time, the jobs return to the queue. Otherwise, the jobs are lost. The
// history of each job shows whether it returned or was lost. No process tree runs at the same time as the next attempt
// of its job.
func TestRunnerEndsWhenItsDirIsRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		served bool
		reason string
	}{"with a service": {true, "stopped"}, "without one": {false, "lost"}} {
		t.Run(name, func(t *testing.T) {
			q := testrig.StartQueue(t, "--workers", "1")
			w := q.DialService()
			id := w.Enqueue(testrig.JSONFields{"command": testrig.LockingCommand(q.Path("tree")) +
				` || echo two >&2; echo up; if [ "$QUEUECTL_ATTEMPT" = 1 ]; then (sleep 600 >/dev/null 2>&1 &); ` +
				q.CommandAwaitingQueueFile("never") + "; fi", "max_retries": 1})
			w.WaitJobRunning(id)
			runners := q.RunnerPIDs()
			dirs, err := filepath.Glob(q.Path("runner/[0-9]*"))
			if err != nil || len(dirs) != 1 || len(runners) != 1 {
				t.Fatal(dirs, runners, err)
			}
			if !c.served {
				q.KillService()
			}
			if err := os.RemoveAll(dirs[0]); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("the runner has ended", 20*time.Second, func() bool { return !testrig.IsProcessAlive(runners[0]) })
			if !c.served {
				q.StartService("--workers", "1")
				w = q.DialService()
			}
			j := w.WaitJobEnded(id)
			if j.State != "completed" || j.Stderr != "" || j.AttemptCount > 2 || j.AttemptHistory[0].Reason != c.reason {
				t.Errorf("job %+v, want a first attempt with the reason %s, and another attempt", j, c.reason)
			}
			// In the attempts between the first and the last one, the service had sent the job to a runner, but no process was
			// started.
			for _, a := range j.AttemptHistory[1 : len(j.AttemptHistory)-1] {
				if a.Reason != "lost" || a.PID != 0 {
					t.Errorf("attempts %+v; want no started attempt between the first and the last", j.AttemptHistory)
				}
			}
		})
	}
}

// If the socket file of a runner is removed, the runner creates the socket again. The next service connects to
// the new socket, and the jobs of the runner continue.
func TestRunnerRecreatesItsSocket(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(id)
	q.KillService()
	socks, err := filepath.Glob(q.Path("runner/*/run.sock"))
	if err != nil || len(socks) != 1 || os.Remove(socks[0]) != nil {
		t.Fatal(socks, err)
	}
	q.StartService("--workers", "1")
	q.WriteFile("go", "")
	if j := q.DialService().WaitJobEnded(id); j.State != "completed" || j.Output != "up\nend\n" ||
		len(j.AttemptHistory) != 1 {
		t.Errorf("the job of the runner that recreated its socket: %+v", j)
	}
}
