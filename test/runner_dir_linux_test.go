package test

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A runner whose directory is removed ends itself and its jobs, because no service could find it. If a
// service runs, these jobs return to the queue; otherwise they are lost. Both outcomes are recorded. No
// process tree survives to run at the same time as the next attempt of its job.
func TestRunnerWithoutItsDirEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		served bool
		reason string
	}{"with a service": {true, "stopped"}, "without one": {false, "lost"}} {
		t.Run(name, func(t *testing.T) {
			q := startQueue(t, "--workers", "1")
			w := q.dial()
			id := w.enqueue(fields{"command": lockingCommand(q.path("tree")) +
				` || echo two >&2; echo up; if [ "$QUEUECTL_ATTEMPT" = 1 ]; then (sleep 600 >/dev/null 2>&1 &); ` +
				q.waitForFileCommand("never") + "; fi", "max_retries": 1})
			w.waitRunning(id)
			runners := q.runnerPids()
			dirs, err := filepath.Glob(q.path("runner/[0-9]*"))
			if err != nil || len(dirs) != 1 || len(runners) != 1 {
				t.Fatal(dirs, runners, err)
			}
			if !c.served {
				q.kill()
			}
			if err := os.RemoveAll(dirs[0]); err != nil {
				t.Fatal(err)
			}
			q.waitUntil("the runner has ended", 20*time.Second, func() bool { return !isAlive(runners[0]) })
			if !c.served {
				q.start("--workers", "1")
				w = q.dial()
			}
			j := w.waitEnded(id)
			if j.State != "completed" || j.Stderr != "" || j.Attempts > 2 || j.History[0].Reason != c.reason {
				t.Errorf("got %+v, want the first attempt %s, and another one", j, c.reason)
			}
			// The attempts between the first and the last were sent to the runner but never started.
			for _, a := range j.History[1 : len(j.History)-1] {
				if a.Reason != "lost" || a.PID != 0 {
					t.Errorf("got %+v, want none between the first and the last that ran", j.History)
				}
			}
		})
	}
}
