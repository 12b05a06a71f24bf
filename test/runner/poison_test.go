//go:build linux || windows

package runner

import (
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If a job kills its runner in each attempt, the job runs alone in a runner from the second attempt on. Once it has
// killed three runners in which it ran alone, it is dead with the reason "poison", whatever its number of retries.
// Other jobs of the first killed runner run alone once and complete. A runner for a single job ends with its job.
func TestJobThatKillsRunnersIsDead(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "8")
	w := q.DialService()
	var neighbours []string
	for i := range 7 {
		neighbours = append(neighbours, fmt.Sprint("neighbour", i))
		w.Enqueue(testrig.JSONFields{"id": neighbours[i], "command": fmt.Sprintf("sleep %.1f; echo done on $QUEUECTL_WORKER",
			0.5*testrig.TimeoutFactor)})
	}
	q.WaitUntil("all neighbours run", 20*time.Second, func() bool { return q.ShowJob("neighbour6").State == "processing" })
	q.MustRunCLI("enqueue", "--id", "poison", "--max-retries", "50", "kill -KILL $PPID")
	if r := q.RunCLI("wait", "poison", "--timeout", "30"); r.ExitCode != 125 {
		t.Errorf("wait: %+v", r)
	}
	if j := q.ShowJob("poison"); j.State != "dead" || j.Reason != "poison" || j.AttemptCount != 4 {
		t.Errorf("the job that kills its runner: %+v", j)
	}
	for _, id := range neighbours {
		q.MustRunCLI("wait", id, "--timeout", "30")
		if j := q.ShowJob(id); j.State != "completed" || j.AttemptCount != 2 || j.AttemptHistory[0].Reason != "lost" {
			t.Errorf("a job that ran together with the poison job: %+v", j)
		}
	}
	q.WaitUntil("one runner remains", 20*time.Second, func() bool { return len(q.RunnerPIDs()) == 1 })
	q.MustRunCLI("run", "true")

	// After a retry by a user, the first attempt of the job runs alone, so that it affects no other job.
	q.MustRunCLI("enqueue", "--id", "bystander", "sleep 1")
	q.MustRunCLI("dlq", "retry", "poison")
	q.RunCLI("wait", "poison", "bystander", "--timeout", "30")
	if j := q.ShowJob("poison"); j.State != "dead" || j.Reason != "poison" || len(j.AttemptHistory) != 7 {
		t.Errorf("the retried poison job: %+v", j)
	}
	if j := q.ShowJob("bystander"); j.State != "completed" || j.AttemptCount != 1 {
		t.Errorf("the bystander: %+v", j)
	}
}

// A suspect is a job whose last runner died, perhaps because of the job. It runs alone in a runner. If the
// service restarts while a suspect runs, the new service takes over the runner and starts no other job in it.
// The runner ends after the job.
func TestSuspectJobOutlivesService(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "4")
	q.MustRunCLI("enqueue", "--id", "a", fmt.Sprintf("sleep %d; echo $QUEUECTL_WORKER", 1+testrig.TimeoutFactor))
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("a").State == "processing" })
	q.KillRunners()
	q.WaitUntil("the job runs alone", 20*time.Second, func() bool {
		j := q.ShowJob("a")
		return j.State == "processing" && j.AttemptCount == 1
	})
	pid := q.ShowJob("a").PID
	q.KillService()
	q.StartService("--workers", "4")
	q.MustRunCLI("run", "--id", "b", "echo $QUEUECTL_WORKER")
	if j := q.ShowJob("a"); j.PID != pid || !testrig.IsProcessAlive(pid) {
		t.Errorf("the suspect: %+v", j)
	}
	q.MustRunCLI("wait", "a")
	if a, b := q.ShowJob("a").Output, q.ShowJob("b").Output; a[:5] != "lone-" || b[:1] != "w" {
		t.Errorf("workers: %q and %q", a, b)
	}
	q.WaitUntil("one runner remains", 20*time.Second, func() bool { return len(q.RunnerPIDs()) == 1 })
}
