//go:build linux || windows

package runner

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// treeCommandsByShape lists commands whose process trees must be found and ended after their runner has died. All
// processes of a tree inherit descriptor 9, which holds a lock. No command combines "env -i" with "setsid". A process
// that both programs have started has neither the session nor the environment of its job, so only a control group could
// find it.
var treeCommandsByShape = map[string]string{
	"plain":   `sleep 600`,
	"bare":    `exec env -i sleep 600`,
	"forks":   `(sleep 600 >/dev/null 2>&1 &); sleep 600`,
	"setsid":  `(setsid sleep 600 >/dev/null 2>&1 &); sleep 600`,
	"no-term": `trap '' TERM; while :; do sleep 1; done`,
	"pipe":    `(sleep 600 &); exec sleep 600`,
}

// treeJobScript is the shell script of the jobs. In its first attempt, a job with a shape runs the process tree of that
// shape. In all other cases, the script only checks that no process tree of the job exists. If it finds a tree, it
// writes X to the ledger, the file in which jobs note their starts and ends.
var treeJobScript = `note() {
	printf '%s %s %02d %07d\n' "$1" "$QUEUECTL_JOB_ID" "$QUEUECTL_ATTEMPT" $$ >>"$RIG/ledger"
}
if [ "$QUEUECTL_ATTEMPT" != 1 ] || [ -z "$1" ]; then
	for lock in "$RIG"/locks/*; do flock -s -n "$lock" true || note X; done
	note S
	exit 0
fi
` + testrig.LockingCommand("$RIG/locks/$QUEUECTL_JOB_ID") + ` || note X
note S
eval "$1"
`

// processTreeQueue contains a queue whose workers all run process trees. The runner has received more jobs, which wait
// for a worker.
type processTreeQueue struct {
	*testrig.LedgerQueue
	requester              *testrig.Requester
	firstAttemptPIDByJobID map[string]int // pids of the first attempts, by job id
	reservedJobIDs         []string       // ids of the jobs that the runner has received but not started
}

// startTreesWithReservedJobs starts the process trees and waits until the runner has also received jobs that it cannot
// start yet. On a slow machine, the service may send no such jobs. startTreesWithReservedJobs then discards the queue
// and tries again with a new one.
func startTreesWithReservedJobs(t *testing.T) *processTreeQueue {
	t.Helper()
	for range 4 {
		r := startProcessTrees(t)
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
			if r.CountReservedJobs() > 0 {
				return r
			}
		}
		r.KillService()
		r.KillRunners()
		r.StartService("--workers", "0") // this service ends the process trees
		r.KillService()
	}
	t.Fatal("the runner never had a reserved job while all workers ran trees")
	return nil
}

// startProcessTrees starts a process tree of each shape on its own worker, and enqueues more jobs.
func startProcessTrees(t *testing.T) *processTreeQueue {
	t.Helper()
	r := &processTreeQueue{LedgerQueue: testrig.NewLedgerQueue(t, testrig.PrefetchBuildTag),
		firstAttemptPIDByJobID: map[string]int{}}
	r.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=" + testrig.PrefetchFailpoints}
	r.requester = &testrig.Requester{TargetQueue: r.Harness}
	r.WriteFile("tree.sh", treeJobScript)
	r.StartService("--workers", "1")
	r.requester.WarmUpPrefetch(len(treeCommandsByShape) + 2)
	jobs := []map[string]any{r.treeJobParams("on-dead", treeCommandsByShape["plain"]),
		r.treeJobParams("on-hold", treeCommandsByShape["plain"])}
	jobs[0]["on_lost"], jobs[1]["on_lost"] = "dead", "hold"
	for id, shape := range treeCommandsByShape {
		jobs = append(jobs, r.treeJobParams(id, shape))
	}
	r.requester.EnqueueBatch(jobs...)
	r.WaitUntil("all trees have grown", 10*time.Second, func() bool {
		return r.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state = 5`) == len(jobs) &&
			len(r.CountLedgerEntries("S")) == len(jobs)
	})
	for _, n := range r.ReadLedger() {
		r.firstAttemptPIDByJobID[n.JobTag] = n.PID
	}
	jobs = nil
	for n := range 30 {
		jobs = append(jobs, r.treeJobParams(fmt.Sprintf("behind%d", n), ""))
	}
	r.reservedJobIDs = r.requester.EnqueueBatch(jobs...)
	return r
}

// treeJobParams returns the parameters of a job with the given shape.
func (r *processTreeQueue) treeJobParams(id, shape string) map[string]any {
	return map[string]any{"id": id, "argv": []string{testrig.ToolPath("sh"), r.Path("tree.sh"), shape},
		"env": map[string]string{"RIG": r.StateDir}, "cwd": r.StateDir}
}

// jobIDsWithLiveTrees returns the ids of the jobs whose process trees still exist. Such a tree holds the lock of its
// job.
func (r *processTreeQueue) jobIDsWithLiveTrees() (jobIDs []string) {
	r.Helper()
	locks, _ := filepath.Glob(filepath.Join(r.StateDir, "locks", "*"))
	for _, lock := range locks {
		if !testrig.IsFileUnlocked(r, lock) {
			jobIDs = append(jobIDs, filepath.Base(lock))
		}
	}
	return jobIDs
}

// checkJobOutcomes waits until all jobs have ended, and checks how each of them ended.
func (r *processTreeQueue) checkJobOutcomes() {
	r.Helper()
	r.WaitUntil("all jobs ended", 20*time.Second, func() bool {
		return r.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state IN (1, 3, 4, 5)`) == 0
	})
	r.CheckNoOverlappingAttempts()
	for id := range treeCommandsByShape {
		j := r.requester.ShowJob(id)
		if j.State != "completed" || j.AttemptCount != 2 || len(j.AttemptHistory) != 2 ||
			j.AttemptHistory[0].Reason != "lost" ||
			j.AttemptHistory[0].PID != r.firstAttemptPIDByJobID[id] {
			r.Errorf("%s: %+v", id, j)
		}
	}
	for id, state := range map[string]string{"on-dead": "dead", "on-hold": "held"} {
		if j := r.requester.ShowJob(id); j.State != state || j.Reason != "lost" || j.AttemptCount != 1 ||
			len(j.AttemptHistory) != 1 {
			r.Errorf("%s: %+v", id, j)
		}
	}
	starts := r.CountLedgerEntries("S")
	for _, id := range r.reservedJobIDs {
		if j := r.requester.ShowJob(id); j.State != "completed" || starts[id] != 1 || j.AttemptCount != 1 ||
			len(j.AttemptHistory) != 1 {
			r.Errorf("job %s had not started when the runner died; started %d times, want once: %+v", id, starts[id], j)
		}
	}
	if s := r.StrayProcesses(); len(s) > 0 {
		r.Errorf("stray processes: %v", s)
	}
}

// timeUntilNewJobEnds runs a new job. It returns the time that has passed from the given moment to the end of the job.
func (r *processTreeQueue) timeUntilNewJobEnds(since time.Time) time.Duration {
	r.Helper()
	job := r.treeJobParams("fresh", "")
	job["priority"] = 10
	r.requester.EnqueueBatch(job)
	r.WaitUntil("a new job is done", 10*time.Second, func() bool {
		return r.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE id = 'fresh' AND state = 6`) == 1
	})
	elapsed := time.Since(since)
	if elapsed > 2*testrig.TimeoutFactor*time.Second {
		r.Errorf("a new job was done after %v, want 2s at most", elapsed)
	}
	return elapsed
}

// When the runner is killed, the process trees of its jobs are ended before another job runs. The setting
// on_lost decides whether these jobs run again. Jobs that had not started run later, and their attempt in the
// dead runner does not count. A new job completes within two seconds.
func TestKilledRunnersProcessTreesEnd(t *testing.T) {
	r := startTreesWithReservedJobs(t)
	old := r.OnlyRunnerPID()
	if held := r.jobIDsWithLiveTrees(); len(held) != len(treeCommandsByShape)+2 {
		t.Fatalf("jobs whose trees hold a lock: %v", held)
	}
	started := time.Now()
	testrig.KillProcess(old)
	elapsed := r.timeUntilNewJobEnds(started)
	r.checkJobOutcomes()
	r.WaitUntil("one other runner remains", 20*time.Second, func() bool {
		now := r.RunnerPIDs()
		return len(now) == 1 && now[0] != old
	})
	t.Logf("runner killed: a new job done after %v", elapsed.Round(time.Millisecond))
}

// When the service and the runner are killed together, in either order, the next service ends the process trees
// before it accepts requests. It distinguishes lost jobs from jobs that had not started. A new job completes
// within two seconds.
func TestJobProcessesEndAfterServiceAndRunnerKill(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	for _, order := range []string{"service first", "runner first"} {
		t.Run(order, func(t *testing.T) {
			r := startTreesWithReservedJobs(t)
			pids := []int{r.ServiceCmd.Process.Pid, r.OnlyRunnerPID()}
			if order == "runner first" {
				slices.Reverse(pids)
			}
			for _, pid := range pids {
				testrig.KillProcess(pid)
			}
			r.KillService()
			if held := r.jobIDsWithLiveTrees(); testrig.JobsOutliveKilledRunners && order == "service first" &&
				len(held) != len(treeCommandsByShape)+2 {
				t.Errorf("jobs whose trees hold a lock after the kill: %v", held)
			}
			started := time.Now()
			r.StartService("--workers", "0")
			if held := r.jobIDsWithLiveTrees(); len(held) > 0 {
				t.Errorf("jobs whose trees still exist when the service is ready: %v", held)
			}
			r.requester = &testrig.Requester{TargetQueue: r.Harness}
			r.checkJobsLostOrReturned()
			r.requester.MustRequest("worker.scale", map[string]any{"count": 8})
			elapsed := r.timeUntilNewJobEnds(started)
			r.checkJobOutcomes()
			t.Logf("all killed, %s: a new job done after %v", order, elapsed.Round(time.Millisecond))
		})
	}
}

// checkJobsLostOrReturned checks that the running jobs were lost, and that jobs that had not started were returned
// to the queue. Call it before other jobs run.
func (r *processTreeQueue) checkJobsLostOrReturned() {
	r.Helper()
	if n := r.QueryDatabaseInt(`SELECT count(*) FROM jobs, meta WHERE state = 5 OR place > 2 OR reserved <> ""`); n > 0 {
		r.Errorf("%d jobs are still leased", n)
	}
	for id := range treeCommandsByShape {
		if j := r.requester.ShowJob(id); j.State != "failed" || j.Reason != "lost" || j.AttemptCount != 1 {
			r.Errorf("%s: %+v", id, j)
		}
	}
	for _, id := range r.reservedJobIDs {
		if j := r.requester.ShowJob(id); j.State != "pending" || j.AttemptCount != 0 || len(j.AttemptHistory) != 0 ||
			j.Reason != "" {
			r.Errorf("%s had not started: %+v", id, j)
		}
	}
}
