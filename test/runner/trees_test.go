//go:build linux || windows

package runner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// stubbornTreeCommands lists commands whose process trees are hard to end. All processes of a tree inherit descriptor 9
// with a lock, and each has WORD in its command line. No process both leaves the session and clears its environment,
// because only a control group could find such a process.
var stubbornTreeCommands = map[string]string{
	"plain":            `echo up; sleep WORD; true`,
	"empty env":        `echo up; exec env -i /bin/sleep WORD`,
	"double fork":      `( ( sleep WORD & ) ); echo up; sleep WORD; true`,
	"double fork away": `( ( setsid sleep WORD & ) ); echo up; sleep WORD; true`,
	"TERM ignored":     `trap '' TERM; echo up; sleep WORD; sleep WORD; true`,
	"pipe held":        `sh -c 'trap "" TERM; sleep WORD; true' & echo up; sleep WORD; true`,
}

// newTreeJob returns a job that takes a lock and then runs commandTemplate. In commandTemplate, a unique marker
// replaces WORD. newTreeJob also returns the path of the lock, and the marker, which occurs in the command line of each
// process of the job.
func newTreeJob(q *testrig.Harness, jobNumber int, commandTemplate string) (spec testrig.JSONFields, lockPath,
	commandMarker string) {
	commandMarker = fmt.Sprintf("6%d.%d", jobNumber, time.Now().UnixNano())
	lockPath = q.Path(fmt.Sprintf("lock%d", jobNumber))
	command := testrig.LockingCommand(lockPath) + " || exit 99; " +
		strings.ReplaceAll(commandTemplate, "WORD", commandMarker)
	return testrig.JSONFields{"command": command, "kill_after": "150ms", "max_attempts": 2, "backoff_base": 0.02},
		lockPath, commandMarker
}

// checkTreeEnded checks that no process of a tree remains and that the lock of the tree is free.
func checkTreeEnded(t *testing.T, treeName, lockPath, commandMarker string) {
	t.Helper()
	if !testrig.IsFileUnlocked(t, lockPath) {
		t.Errorf("%s: the lock is still held", treeName)
	}
	if remaining := testrig.ProcessesWithArg(commandMarker); len(remaining) > 0 {
		t.Errorf("%s: remaining processes: %q", treeName, remaining)
	}
}

// When `queuectl cancel` returns, the whole process tree has ended.
func TestCancelEndsProcessTrees(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "6")
	w := q.DialService()
	i := 0
	for name, shape := range stubbornTreeCommands {
		i++
		spec, lock, marker := newTreeJob(q, i, shape)
		id := w.Enqueue(spec)
		w.WaitJobRunning(id)
		q.MustRunCLI("cancel", id)
		checkTreeEnded(t, name, lock, marker)
		if j := w.ShowJob(id); j.State != "cancelled" || j.AttemptCount != 1 {
			t.Errorf("%s: %+v", name, j)
		}
	}
}

// When a job reaches its timeout, its whole process tree ends before the next attempt starts.
func TestTimeoutEndsProcessTrees(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "6")
	w := q.DialService()
	type tree struct{ name, id, lock, marker string }
	var trees []tree
	i := 0
	for name, shape := range stubbornTreeCommands {
		i++
		spec, lock, marker := newTreeJob(q, i, shape)
		spec["timeout_ms"] = 400
		trees = append(trees, tree{name, w.Enqueue(spec), lock, marker})
	}
	for _, tr := range trees {
		j := w.WaitJobEnded(tr.id)
		if j.State != "dead" || j.Reason != "timed_out" || len(j.AttemptHistory) != 2 ||
			j.AttemptHistory[0].Reason != "timed_out" {
			t.Errorf("%s: state %s, reason %s, code %d, error %q, history %+v", tr.name, j.State, j.Reason,
				testrig.ValueOrMinusOne(j.ExitCode), j.Error, j.AttemptHistory)
		}
		checkTreeEnded(t, tr.name, tr.lock, tr.marker)
	}
}

// Stopping the workers or the service ends every process tree and returns the jobs to the queue.
func TestWorkerAndServiceStopEndProcessTrees(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{"QUEUECTL_STOP_TIMEOUT=100ms"}
	q.StartService("--workers", "6")
	w := q.DialService()
	names, ids, locks, words := []string{}, []string{}, []string{}, []string{}
	for name, shape := range stubbornTreeCommands {
		spec, lock, marker := newTreeJob(q, len(names), shape)
		names, ids, locks, words = append(names, name), append(ids, w.Enqueue(spec)), append(locks, lock),
			append(words, marker)
	}
	for _, id := range ids {
		w.WaitJobRunning(id)
	}
	q.MustRunCLI("worker", "stop", "--all", "--force")
	for i := range names {
		checkTreeEnded(t, names[i]+" after worker stop", locks[i], words[i])
	}
	q.MustRunCLI("worker", "scale", "6")
	for _, id := range ids {
		w.WaitJobRunning(id)
	}
	if code := q.StopService(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for i := range names {
		checkTreeEnded(t, names[i]+" after stop", locks[i], words[i])
	}
	q.WaitUntil("no runner is left", 5*time.Second, func() bool { return len(q.RunnerPIDs()) == 0 })
	q.StartService("--workers", "0")
	w = q.DialService()
	for i, id := range ids {
		if j := w.ShowJob(id); j.State != "pending" || j.Reason != "stopped" || j.AttemptCount != 0 ||
			len(j.AttemptHistory) != 2 {
			t.Errorf("%s: %+v", names[i], j)
		}
	}
}

// A job ends once its main process has ended and output_grace has passed, even if other processes of the job still have
// the job's output open. The runner ends and counts these other processes, unless the job allows background processes.
func TestLeftoverProcessesAreEndedAndCounted(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{fmt.Sprint("QUEUECTL_OUTPUT_GRACE=", (1+testrig.TimeoutFactor)*250*time.Millisecond)}
	q.StartService("--workers", "4")
	w := q.DialService()
	for i, c := range []struct {
		name, command string
		background    bool
		leftovers     int
		slow          bool
	}{
		{"nothing left", "true", false, 0, false},
		{"holds the output", "sleep WORD & exit 0", false, 1, true},
		{"holds it in a separate session", "setsid sleep WORD & exit 0", false, 1, true},
		{"holds nothing", "sleep WORD >/dev/null 2>&1 & exit 0", false, 1, true},
		{"two of a pipeline", "sleep WORD | sleep WORD & exit 0", false, 2, true},
		{"ends within the grace", "(sleep 0.15; echo late) & exit 0", false, 0, false},
		{"spared", "sleep WORD >/dev/null 2>&1 & exit 0", true, 0, false},
	} {
		marker := fmt.Sprintf("7%d.%d", i, time.Now().UnixNano())
		started := time.Now()
		id := w.Enqueue(testrig.JSONFields{"command": strings.ReplaceAll(c.command, "WORD", marker),
			"allow_background": c.background,
			"kill_after":       "100ms"})
		j := w.WaitJobEnded(id)
		h := j.AttemptHistory[0]
		elapsed := time.Since(started)
		if j.State != "completed" || h.LeftoverProcessCount != c.leftovers || elapsed > 3*testrig.TimeoutFactor*time.Second ||
			c.slow &&
				elapsed < 400*time.Millisecond {
			t.Errorf("%s: %s, %d leftovers, took %v; want %d", c.name, j.State, h.LeftoverProcessCount, elapsed, c.leftovers)
		}
		if c.name == "ends within the grace" && j.Output != "late\n" {
			t.Errorf("%s: output %q", c.name, j.Output)
		}
		leftovers := testrig.ProcessesWithArg(marker)
		if c.background != (len(leftovers) == 1) {
			t.Errorf("%s: processes %q", c.name, leftovers)
		}
		for _, line := range leftovers {
			testrig.KillListedProcess(line)
		}
	}
}

// If a job times out or is cancelled at the moment when it ends, it still has exactly one outcome.
func TestJobEndRacesHaveOneOutcome(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	var specs []testrig.JSONFields
	for i := range 200 / testrig.JobCountDivisor {
		specs = append(specs, testrig.JSONFields{"argv": []string{testrig.ToolPath("sleep"), "0.05"}, "timeout_ms": 47 + i%10,
			"max_retries": 0})
	}
	seen := map[string]int{}
	for _, id := range w.EnqueueBatch(specs) {
		j := w.WaitJobEnded(id)
		kind := j.State + "/" + j.Reason
		seen[kind]++
		if len(j.AttemptHistory) != 1 || j.AttemptCount != 1 || kind == "completed/" &&
			testrig.ValueOrMinusOne(j.ExitCode) != 0 ||
			kind != "completed/" &&
				kind != "dead/timed_out" {
			t.Errorf("timeout: %+v", j)
		}
	}
	t.Logf("outcomes: %v", seen)
	for i := range 40 {
		id := w.Enqueue(testrig.JSONFields{"argv": []string{testrig.ToolPath("sleep"), fmt.Sprintf("0.0%d", 1+i%3)},
			"max_retries": 0})
		// The job ends by itself at about this time, so the cancel and the end happen nearly at the same moment.
		time.Sleep(time.Duration(10+i%25) * time.Millisecond)
		var v struct{ Done, Refused []any }
		w.MustCall("cancel", testrig.JSONFields{"ids": []string{id}}, &v)
		j := w.WaitJobEnded(id)
		if len(v.Done)+len(v.Refused) != 1 || (len(v.Done) == 1) != (j.State == "cancelled") || len(v.Refused) == 1 &&
			j.State != "completed" || len(j.AttemptHistory) > 1 {
			t.Errorf("cancel: %+v, job %+v", v, j)
		}
	}
}

// A job can set the time between SIGTERM and SIGKILL. When the service stops, it waits at most a fixed time, even if
// the job has set a longer time, and even for a job that is already being cancelled.
func TestServiceStopDurationIsBounded(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "failpoint")
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=impatient"}
	q.WriteFile("queuectl.toml", "stop_timeout = \"100ms\"\n")
	q.StartService("--workers", "2")
	job := func() string {
		id := q.MustRunCLI("enqueue", "--kill-after", "1h", "trap '' TERM; echo begun; while :; do sleep 0.1; done")
		q.WaitUntil("the job runs", 20*time.Second, func() bool {
			return strings.Contains(q.MustRunCLI("logs", id), "begun") && q.ShowJob(id).State == "processing"
		})
		return id
	}
	job()
	cancelled := q.CLICommand("cancel", job())
	if err := testrig.StartCommand(cancelled); err != nil {
		t.Fatal(err)
	}
	defer cancelled.Wait()
	if code := q.StopService(); code != 0 {
		t.Errorf("the service ended with %d", code)
	}
	if remaining := q.RunnerPIDs(); len(remaining) != 0 {
		t.Errorf("runners %v remain after the stop", remaining)
	}
}
