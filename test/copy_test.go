//go:build linux || windows

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// copyQueue returns a queue on a copy of the state directory, as made by a snapshot or a clone.
func (q *queue) copyQueue(t *testing.T) *queue {
	t.Helper()
	other := newQueue(t, "")
	if err := copyDir(q.dir, other.dir); err != nil {
		t.Fatalf("copy: %v", err)
	}
	return other
}

// gatedJob returns a job that prints its pid and then runs until a file exists.
func gatedJob(gate string) string {
	return "echo up; echo pid $$; while [ ! -e " + gate + " ]; do sleep 0.02; done; echo end of $$"
}

// A copy of the state directory that was made while jobs run is a separate queue. Neither of the two services
// adopts, kills or monitors jobs of the runner of the other service, in whatever order they start. In the
// copy, the earlier leases are lost and their jobs run again.
func TestCopiedStateDirIsASeparateQueue(t *testing.T) {
	for _, first := range []string{"original", "copy"} {
		t.Run(first+" first", func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, "")
			q.start("--workers", "2")
			gate := filepath.ToSlash(t.TempDir()) + "/go"
			w := q.dial()
			ids := w.batch([]fields{{"id": "a", "command": gatedJob(gate)}, {"id": "b", "command": gatedJob(gate)}})
			pids := map[string]int{}
			for _, id := range ids {
				pids[id] = w.waitRunning(id).PID
			}
			q.kill()
			c := q.copyQueue(t)
			starts := []*queue{q, c}
			if first == "copy" {
				starts = []*queue{c, q}
			}
			for _, s := range starts {
				s.start("--workers", "2")
			}
			for range 2 { // the restarts make the epoch of the copy higher than that of the original
				for _, id := range ids {
					c.dial().waitRunning(id)
				}
				c.kill()
				c.start("--workers", "2")
			}
			cw, qw := c.dial(), q.dial()
			for _, id := range ids {
				if j := qw.show(id); j.State != "processing" || j.PID != pids[id] || !isAlive(pids[id]) {
					t.Errorf("the original's %s is %s with pid %d, was %d; that lives: %t", id, j.State, j.PID, pids[id],
						isAlive(pids[id]))
				}
				if j := cw.waitRunning(id); j.PID == pids[id] || len(j.History) != 2 || j.History[0].Reason != "lost" {
					t.Errorf("the copy's %s: %+v", id, j)
				}
			}
			// In the copy, both jobs are suspected of having killed their runner. So each of them runs in a
			// dedicated runner, in addition to the shared runner.
			c.waitUntil("the copy has three runners", 20*time.Second, func() bool { return len(c.runnerPids()) == 3 })
			if runners := q.runnerPids(); len(runners) != 1 || slices.Contains(c.runnerPids(), runners[0]) {
				t.Errorf("runners %v and %v", runners, c.runnerPids())
			}
			// A request to the copy does not affect the original.
			cw.mustCall("cancel", fields{"ids": []string{"b"}}, nil)
			if j := qw.show("b"); j.State != "processing" || !isAlive(pids["b"]) {
				t.Errorf("after the copy cancelled its own, the original's b is %s", j.State)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				j := qw.waitEnded(id)
				want := fmt.Sprintf("up\npid %d\nend of %d\n", pids[id], pids[id])
				if j.State != "completed" || j.Attempts != 1 || j.Output != want {
					t.Errorf("the original's %s: %+v, want output %q", id, j, want)
				}
			}
			j := cw.waitEnded("a")
			copyPID := j.History[1].PID
			want := fmt.Sprintf("up\npid %d\nend of %d\n", copyPID, copyPID)
			if j.State != "completed" || j.Attempts != 2 || j.Output != want || copyPID == pids["a"] {
				t.Errorf("the copy's a: %+v, want output %q", j, want)
			}
			if r := c.cli("logs", "a", "--attempt", "1"); strings.Contains(r.out, "end of") {
				t.Errorf("the copy's lost attempt has output of the original's: %q", r.out)
			}
		})
	}
}

// The original's dead runner has left background processes alive that were allowed to outlive their jobs. A
// copy of the queue does not touch them.
func TestCopyLeavesBackgroundProcesses(t *testing.T) {
	q := newQueue(t, "")
	q.start("--workers", "1")
	w := q.dial()
	gate := filepath.ToSlash(t.TempDir()) + "/go"
	id := w.enqueue(fields{"command": "sleep 300 >/dev/null 2>&1 & echo left $!; echo up; while [ ! -e " + gate +
		" ]; do sleep 0.02; done", "allow_background": true})
	w.waitRunning(id)
	c := q.copyQueue(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j := w.waitEnded(id)
	var leftover int
	if _, err := fmt.Sscanf(j.Output, "left %d", &leftover); err != nil {
		t.Fatalf("output %q: %v", j.Output, err)
	}
	t.Cleanup(func() { killListed(fmt.Sprint(leftover)) })
	q.kill()
	q.killRunners()
	c.start("--workers", "0")
	if !isAlive(leftover) {
		t.Error("the copy ended a process that the original's job had left on purpose")
	}
	q.start("--workers", "0")
	if !isAlive(leftover) {
		t.Error("the original ended it")
	}
}
