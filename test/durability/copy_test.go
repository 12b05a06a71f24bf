//go:build linux || windows

package durability

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// copyQueueStateDir returns a queue whose state directory is a copy of that of q, as a snapshot or a clone of a machine
// would have it.
func copyQueueStateDir(q *testrig.Harness, t *testing.T) *testrig.Harness {
	t.Helper()
	other := testrig.NewHarness(t, "")
	if err := testrig.CopyDir(q.StateDir, other.StateDir); err != nil {
		t.Fatalf("copy: %v", err)
	}
	return other
}

// If the state directory is copied while jobs run, the copy turns into a separate queue. The service of the original
// and the service of the copy may start in any order. Neither service adopts, kills or monitors jobs in a runner of the
// other queue. In the copy, the running jobs count as lost and run again.
func TestCopiedStateDirIsASeparateQueue(t *testing.T) {
	for _, first := range []string{"original", "copy"} {
		t.Run(first+" first", func(t *testing.T) {
			t.Parallel()
			q := testrig.NewHarness(t, "")
			q.StartService("--workers", "2")
			gate := filepath.ToSlash(t.TempDir()) + "/go"
			w := q.DialService()
			ids := w.EnqueueBatch([]testrig.JSONFields{{"id": "a", "command": testrig.CommandWaitingForFile(gate)},
				{"id": "b", "command": testrig.CommandWaitingForFile(gate)}})
			pids := map[string]int{}
			for _, id := range ids {
				pids[id] = w.WaitJobRunning(id).PID
			}
			q.KillService()
			c := copyQueueStateDir(q, t)
			starts := []*testrig.Harness{q, c}
			if first == "copy" {
				starts = []*testrig.Harness{c, q}
			}
			for _, s := range starts {
				s.StartService("--workers", "2")
			}
			for range 2 { // each restart raises the epoch (number of the service start) of the copy above that of the original
				for _, id := range ids {
					c.DialService().WaitJobRunning(id)
				}
				c.KillService()
				c.StartService("--workers", "2")
			}
			cw, qw := c.DialService(), q.DialService()
			for _, id := range ids {
				if j := qw.ShowJob(id); j.State != "processing" || j.PID != pids[id] || !testrig.IsProcessAlive(pids[id]) {
					t.Errorf("the original's job %s is %s with pid %d, was %d; the old process is alive: %t", id, j.State, j.PID,
						pids[id],
						testrig.IsProcessAlive(pids[id]))
				}
				if j := cw.WaitJobRunning(id); j.PID == pids[id] || len(j.AttemptHistory) != 2 ||
					j.AttemptHistory[0].Reason != "lost" {
					t.Errorf("the copy's job %s: %+v", id, j)
				}
			}
			// In the copy, both jobs count as lost, and the copy cannot know which of them has killed its runner. So the
			// service of the copy runs each of the two jobs in a separate runner, in addition to the shared runner.
			c.WaitUntil("the copy has three runners", 20*time.Second, func() bool { return len(c.RunnerPIDs()) == 3 })
			if runners := q.RunnerPIDs(); len(runners) != 1 || slices.Contains(c.RunnerPIDs(), runners[0]) {
				t.Errorf("runners of the original %v, of the copy %v; want one, which the copy does not have",
					runners, c.RunnerPIDs())
			}
			// A request to the copy does not affect the original.
			cw.MustCall("cancel", testrig.JSONFields{"ids": []string{"b"}}, nil)
			if j := qw.ShowJob("b"); j.State != "processing" || !testrig.IsProcessAlive(pids["b"]) {
				t.Errorf("after the copy cancelled its job b, the original's job b is %s", j.State)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				j := qw.WaitJobEnded(id)
				want := fmt.Sprintf("up\npid %d\nend of %d\n", pids[id], pids[id])
				if j.State != "completed" || j.AttemptCount != 1 || j.Output != want {
					t.Errorf("the original's job %s: %+v, want output %q", id, j, want)
				}
			}
			j := cw.WaitJobEnded("a")
			copyPID := j.AttemptHistory[1].PID
			want := fmt.Sprintf("up\npid %d\nend of %d\n", copyPID, copyPID)
			if j.State != "completed" || j.AttemptCount != 2 || j.Output != want || copyPID == pids["a"] {
				t.Errorf("the copy's job a: %+v, want output %q", j, want)
			}
			if r := c.RunCLI("logs", "a", "--attempt", "1"); strings.Contains(r.Stdout, "end of") {
				t.Errorf("the copy's lost attempt has output of the original's attempt: %q", r.Stdout)
			}
		})
	}
}

// Jobs can have the permission to leave background processes. These processes continue after their runner has died. A
// copy of the queue does not end these processes.
func TestCopiedQueueKeepsOriginalsBackgroundProcesses(t *testing.T) {
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	w := q.DialService()
	gate := filepath.ToSlash(t.TempDir()) + "/go"
	id := w.Enqueue(testrig.JSONFields{"command": "sleep 300 >/dev/null 2>&1 & echo left $!; echo up; while [ ! -e " +
		gate +
		" ]; do sleep 0.02; done", "allow_background": true})
	w.WaitJobRunning(id)
	c := copyQueueStateDir(q, t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j := w.WaitJobEnded(id)
	var leftover int
	if _, err := fmt.Sscanf(j.Output, "left %d", &leftover); err != nil {
		t.Fatalf("output %q: %v", j.Output, err)
	}
	t.Cleanup(func() { testrig.KillListedProcess(fmt.Sprint(leftover)) })
	q.KillService()
	q.KillRunners()
	c.StartService("--workers", "0")
	if !testrig.IsProcessAlive(leftover) {
		t.Error("the copy ended a background process of the original's job")
	}
	q.StartService("--workers", "0")
	if !testrig.IsProcessAlive(leftover) {
		t.Error("the restart of the original ended its background process")
	}
}
