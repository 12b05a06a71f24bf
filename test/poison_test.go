//go:build linux || windows

package test

import (
	"fmt"
	"testing"
	"time"
)

// A job that kills its runner whenever it runs is dead with the reason "poison" after it has killed three
// runners while it ran alone. Its number of retries does not matter. Jobs that ran with it in the first
// killed runner run alone once and complete. The runners for single jobs end afterwards.
func TestPoison(t *testing.T) {
	q := startQueue(t, "--workers", "8")
	w := q.dial()
	var neighbours []string
	for i := range 7 {
		neighbours = append(neighbours, fmt.Sprint("neighbour", i))
		w.enqueue(fields{"id": neighbours[i], "command": fmt.Sprintf("sleep %.1f; echo done on $QUEUECTL_WORKER",
			0.5*timeoutFactor)})
	}
	q.waitUntil("they run", 20*time.Second, func() bool { return q.show("neighbour6").State == "processing" })
	q.must("enqueue", "--id", "poison", "--max-retries", "50", "kill -KILL $PPID")
	if r := q.cli("wait", "poison", "--timeout", "30"); r.code != 125 {
		t.Errorf("wait: %+v", r)
	}
	if j := q.show("poison"); j.State != "dead" || j.Reason != "poison" || j.Attempts != 4 {
		t.Errorf("the job that kills its runner: %+v", j)
	}
	for _, id := range neighbours {
		q.must("wait", id, "--timeout", "30")
		if j := q.show(id); j.State != "completed" || j.Attempts != 2 || j.History[0].Reason != "lost" {
			t.Errorf("a neighbour: %+v", j)
		}
	}
	q.waitUntil("one runner is left", 20*time.Second, func() bool { return len(q.runnerPids()) == 1 })
	q.must("run", "true")

	// After a retry, the job still runs alone from its first attempt on, so other jobs are not affected.
	q.must("enqueue", "--id", "bystander", "sleep 1")
	q.must("dlq", "retry", "poison")
	q.cli("wait", "poison", "bystander", "--timeout", "30")
	if j := q.show("poison"); j.State != "dead" || j.Reason != "poison" || len(j.History) != 7 {
		t.Errorf("once more: %+v", j)
	}
	if j := q.show("bystander"); j.State != "completed" || j.Attempts != 1 {
		t.Errorf("the bystander: %+v", j)
	}
}

// A job that is suspected of killing its runner runs alone. If the service restarts while such a job runs,
// the new service adopts the runner as one for a single job. It starts no other job there, and the runner
// ends afterwards.
func TestSuspectOutlivesTheService(t *testing.T) {
	q := startQueue(t, "--workers", "4")
	q.must("enqueue", "--id", "a", fmt.Sprintf("sleep %d; echo $QUEUECTL_WORKER", 1+timeoutFactor))
	q.waitUntil("it runs", 20*time.Second, func() bool { return q.show("a").State == "processing" })
	q.killRunners()
	q.waitUntil("it runs alone", 20*time.Second, func() bool {
		j := q.show("a")
		return j.State == "processing" && j.Attempts == 1
	})
	pid := q.show("a").PID
	q.kill()
	q.start("--workers", "4")
	q.must("run", "--id", "b", "echo $QUEUECTL_WORKER")
	if j := q.show("a"); j.PID != pid || !isAlive(pid) {
		t.Errorf("the suspect: %+v", j)
	}
	q.must("wait", "a")
	if a, b := q.show("a").Output, q.show("b").Output; a[:5] != "lone-" || b[:1] != "w" {
		t.Errorf("workers: %q and %q", a, b)
	}
	q.waitUntil("one runner is left", 20*time.Second, func() bool { return len(q.runnerPids()) == 1 })
}
