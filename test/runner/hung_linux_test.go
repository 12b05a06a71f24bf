package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// suspendRunner stops the runner with SIGSTOP. resumeRunner lets the runner continue. In practice, a debugger or a
// mistaken signal stops a runner in the same way.
func suspendRunner(q *testrig.Harness) (runnerPID int, resumeRunner func()) {
	q.Helper()
	runnerPID = q.OnlyRunnerPID()
	if err := syscall.Kill(runnerPID, syscall.SIGSTOP); err != nil {
		q.Fatal(err)
	}
	resumeRunner = sync.OnceFunc(func() { syscall.Kill(runnerPID, syscall.SIGCONT) })
	q.TB.Cleanup(resumeRunner)
	// After SIGSTOP, a thread stops only when the kernel schedules it the next time. So wait until all threads have
	// stopped.
	q.WaitUntil("all its threads have stopped", 10*time.Second, func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", runnerPID))
		for _, name := range threads {
			stat, _ := os.ReadFile(name)
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
	return runnerPID, resumeRunner
}

// A hung runner delays only its own jobs. All commands return soon, a job that has not started can be
// cancelled, and new jobs run in another runner. A service that starts while the runner hangs serves requests
// immediately. When the hung runner continues, its job ends normally.
func TestHungRunnerDelaysOnlyItsJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(id)
	pid, thaw := suspendRunner(q)
	names := fmt.Sprintf("the runner with pid %d does not answer", pid)
	waiting := w.Enqueue(testrig.JSONFields{"command": "sleep 600"})
	q.WaitUntil("the job that never started is cancelled", 20*time.Second, func() bool {
		return q.RunCLIWithin(10*time.Second, "cancel", waiting).ExitCode == 0
	})
	if j := w.ShowJob(waiting); j.State != "cancelled" {
		t.Errorf("the job that never started: %+v", j)
	}
	if got := q.RunCLIWithin(5*time.Second, "show", id); got.ExitCode != 0 || !strings.Contains(got.Stdout, "processing") {
		t.Errorf("show: %+v", got)
	}
	for _, args := range [][]string{{"logs", id}, {"cancel", id}, {"rm", "--force", id}, {"kill", id},
		{"worker", "stop", "--all", "--force"}} {
		if got := q.RunCLIWithin(10*time.Second, args...); got.ExitCode != 3 && got.ExitCode != 5 ||
			!strings.Contains(got.Stderr, names) {
			t.Errorf("%v: %+v; want an error that names the runner", args, got)
		}
	}
	q.MustRunCLI("worker", "scale", "2")
	if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo other"})); j.Output != "other\n" {
		t.Errorf("a job in another runner: %+v", j)
	}
	if !strings.Contains(q.MustRunCLI("status"), names) {
		t.Errorf("status does not name the runner: %s", q.MustRunCLI("status"))
	}
	q.KillService()
	started := time.Now()
	if q.StartService("--workers", "2"); time.Since(started) > 3*time.Second {
		t.Errorf("the next service was ready after %v", time.Since(started))
	}
	if got := q.RunCLIWithin(10*time.Second, "logs", id); got.ExitCode != 3 || !strings.Contains(got.Stderr, names) {
		t.Errorf("logs after the restart: %+v; want an error that names the runner", got)
	}
	w = q.DialService()
	if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo again"})); j.Output != "again\n" {
		t.Errorf("a job of the next service: %+v", j)
	}
	thaw()
	if j := w.ShowJob(id); j.State != "cancelled" && j.State != "processing" {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
	q.WriteFile("go", "")
	if j := w.WaitJobEnded(id); len(j.AttemptHistory) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// A client that follows a job gets its output and its end even if the job's runner hangs. If the hung runner has not
// started the job, another runner runs the job. Otherwise, the job ends after the hung runner has continued.
func TestFollowersGetOutputDespiteHungRunner(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "5")
	w := q.DialService()
	jobID := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(jobID)
	_, thaw := suspendRunner(q)
	moved := w.Enqueue(testrig.JSONFields{"command": "echo moved", "max_retries": 0})
	follow := func(args ...string) <-chan testrig.CommandResult {
		results := make(chan testrig.CommandResult, 1)
		go func() { results <- q.RunCLI(args...) }() // this goroutine ends when the job or the service ends
		return results
	}
	want := func(results <-chan testrig.CommandResult, what, out string) {
		t.Helper()
		select {
		case got := <-results:
			if got.ExitCode != 0 || got.Stdout != out {
				t.Errorf("%s: %+v, want code 0 and %q", what, got, out)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: no result within 20 s", what)
		}
	}
	stays := follow("logs", "-f", jobID)
	logs, lines := follow("logs", "-f", moved), follow("logs", "-f", "-n", "5", moved)
	run := follow("run", "echo other; echo words >&2")
	want(run, "run", "other\n")
	want(logs, "logs -f", "moved\n")
	want(lines, "logs -f -n 5", "moved\n")
	thaw()
	q.WriteFile("go", "")
	want(stays, "logs -f of a job that had begun", "up\nend\n")
	for _, id := range []string{jobID, moved} {
		if j := w.WaitJobEnded(id); j.State != "completed" || len(j.AttemptHistory) != 1 {
			t.Errorf("the job that was followed: %+v, want one attempt", j)
		}
	}
}

// If a service restarts while its runner hangs, the job of that runner ends normally when the runner continues.
func TestHungRunnersJobContinuesAfterServiceRestart(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(id)
	_, thaw := suspendRunner(q)
	q.KillService()
	q.StartService("--workers", "1")
	thaw()
	q.WriteFile("go", "")
	if j := q.DialService().WaitJobEnded(id); j.State != "completed" || j.Output != "up\nend\n" ||
		len(j.AttemptHistory) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// When the service stops, it ends a hung runner and the runner's jobs after stop_timeout. The jobs return to
// the queue. If a user has requested to cancel a job, the job is cancelled instead.
func TestServiceStopEndsHungRunner(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600 & sleep 600", "max_retries": 1})
	pid := w.WaitJobRunning(id).PID
	jobID := w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 600"})
	w.WaitJobRunning(jobID)
	q.MustRunCLI("config", "set", "stop_timeout", "1s")
	runner, _ := suspendRunner(q)
	for _, verb := range []string{"requeue", "cancel"} { // the request to cancel replaces the earlier request to requeue
		if got := q.RunCLI(verb, jobID); got.ExitCode != 3 ||
			!strings.Contains(got.Stderr, "if the runner answers later, it ends the job then") {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	started := time.Now()
	if code := q.StopService(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if elapsed := time.Since(started); elapsed > 15*time.Second {
		t.Errorf("the stop took %v", elapsed)
	}
	for _, p := range []int{pid, runner} {
		q.WaitUntil(fmt.Sprintf("process %d is gone", p), 5*time.Second, func() bool {
			return syscall.Kill(p, 0) == syscall.ESRCH
		})
	}
	q.StartService("--workers", "0")
	w = q.DialService()
	if j := w.ShowJob(id); j.State != "pending" || j.AttemptCount != 0 || len(j.AttemptHistory) != 1 ||
		j.AttemptHistory[0].Reason != "stopped" {
		t.Errorf("the job that returned to the queue: %+v, want one attempt that does not count", j)
	}
	if j := w.ShowJob(jobID); j.State != "cancelled" {
		t.Errorf("the cancelled job: %+v", j)
	}
}

// If an old runner hangs when a service starts, the service immediately starts jobs in another runner.
func TestHungRunnerDelaysNoServiceStart(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	w.WaitJobRunning(w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 600"}))
	suspendRunner(q)
	q.KillService()
	q.StartService("--workers", "2")
	started := time.Now()
	q.DialService().WaitJobEnded(q.DialService().Enqueue(testrig.JSONFields{"command": "true"}))
	if elapsed := time.Since(started); elapsed > 5*time.Second {
		t.Errorf("a new job ended after %v", elapsed)
	}
}

// If a runner hangs after it has received a job but before it has started the job, another runner runs the job. This
// also holds if the service was restarted and cannot connect to the first runner.
func TestHungRunnersUnstartedJobRunsInAnotherRunner(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	jobID := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go"), "max_retries": 0})
	w.WaitJobRunning(jobID)
	_, thaw := suspendRunner(q)
	sent := w.Enqueue(testrig.JSONFields{"command": "echo other"})
	q.WaitUntil("the job is sent", 10*time.Second, func() bool { return q.CountReservedJobs() == 1 })
	q.KillService()
	q.StartService("--workers", "2")
	w = q.DialService()
	if j := w.WaitJobEnded(sent); j.Output != "other\n" || len(j.AttemptHistory) != 1 {
		t.Errorf("the job that was sent: %+v", j)
	}
	q.WriteFile("go", "")
	thaw()
	if j := w.WaitJobEnded(jobID); j.State != "completed" || len(j.AttemptHistory) != 1 {
		t.Errorf("the job that had started: %+v", j)
	}
}

// A command with a timeout returns when the timeout expires, even if the service hangs.
func TestClientTimeoutHoldsIfServiceHangs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	id := q.DialService().Enqueue(testrig.JSONFields{"command": "true"})
	pid := q.ServiceCmd.Process.Pid
	// At the end, let the service continue (SIGCONT), so that the test's cleanup can stop it.
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) })
	syscall.Kill(pid, syscall.SIGSTOP)
	if got := q.RunCLIWithin(10*time.Second, "wait", id, "--timeout", "1s"); got.ExitCode != 124 {
		t.Errorf("wait with a timeout of 1s: got %+v", got)
	}
}

// A job that has printed something counts as running, and a user can send it a signal.
func TestJobWithOutputCanBeSignalled(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w, reader := q.DialService(), q.DialService()
	for range 10 {
		id := w.Enqueue(testrig.JSONFields{"command": "trap 'exit 7' USR1; echo up; sleep 600 & wait", "max_retries": 0})
		reader.SendRawLine(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"logs","params":{"id":%q,"follow":true}}`, id))
		reader.ReadMessage()
		w.MustCall("kill", testrig.JSONFields{"id": id, "signal": "USR1"}, nil)
		if j := w.WaitJobEnded(id); testrig.ValueOrMinusOne(j.ExitCode) != 7 {
			t.Errorf("a job that handles SIGUSR1: %+v", j)
		}
		reader.ReadMessage() // discard the reply
	}
}

// If a runner dies while the service starts it or connects to it, the service keeps running. It starts
// another runner, and jobs run.
func TestServiceSurvivesRunnersThatDieAtStart(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	for n, wait := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond,
		50 * time.Millisecond} {
		q := testrig.NewHarness(t, "")
		killed := make(chan int)
		go func() { // this goroutine ends after four kills
			seen := map[string]bool{}
			for deadline := time.Now().Add(20 * time.Second); len(seen) < 4 && time.Now().Before(deadline); {
				dirs, _ := filepath.Glob(q.Path("runner/*.*"))
				for _, dir := range dirs {
					if pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), ".")[0]); err == nil && !seen[dir] {
						seen[dir] = true
						time.Sleep(wait)
						syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			}
			killed <- len(seen)
		}()
		q.StartService("--workers", "1")
		w := q.DialService()
		if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo hi", "max_retries": 9})); j.Output != "hi\n" {
			t.Errorf("round %d: job %+v", n, j)
		}
		if got := <-killed; got < 4 {
			t.Errorf("round %d: %d runners were killed", n, got)
		}
	}
}

// Even if a runner's directory is damaged, the service finds the process trees of its jobs. No tree runs at the same
// time as the job's next attempt. If the service can still connect to the runner, the job keeps running.
func TestDamagedRunnerDirLeavesNoJobProcesses(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"boot id":   func(dir string) error { return os.Remove(filepath.Join(dir, "boot-id")) },
		"table":     func(dir string) error { return os.Remove(filepath.Join(dir, "running")) },
		"cut table": func(dir string) error { return os.Truncate(filepath.Join(dir, "running"), 10) },
		"lock":      func(dir string) error { return os.Remove(filepath.Join(dir, "lock")) },
		"directory": os.RemoveAll,
	} {
		for _, dies := range []bool{true, false} {
			if !dies && name == "cut table" {
				continue // not tested, because the next write to the memory-mapped table would kill a live runner
			}
			t.Run(fmt.Sprintf("%s, runner dies %t", name, dies), func(t *testing.T) {
				q := testrig.StartQueue(t, "--workers", "1")
				w := q.DialService()
				id := w.Enqueue(testrig.JSONFields{"command": `echo up; [ "$QUEUECTL_ATTEMPT" = 1 ] && { setsid sleep 600 & ` +
					q.CommandAwaitingQueueFile("go") + `; }; true`, "max_retries": 1})
				tree := w.WaitJobRunning(id).PID
				dirs, err := filepath.Glob(q.Path("runner/*.*"))
				if err != nil || len(dirs) != 1 {
					t.Fatal(dirs, err)
				}
				q.KillService()
				runner := q.OnlyRunnerPID()
				defer syscall.Kill(runner, syscall.SIGKILL)
				if err := damage(dirs[0]); err != nil {
					t.Fatal(err)
				}
				if dies {
					syscall.Kill(runner, syscall.SIGKILL)
				}
				q.StartService("--workers", "1")
				w = q.DialService()
				attempts := 2
				if !dies && (name == "boot id" || name == "table") {
					attempts = 1
					q.WriteFile("go", "")
				} else {
					q.WaitUntil("the first tree is gone", 20*time.Second, func() bool {
						return syscall.Kill(tree, 0) == syscall.ESRCH
					})
				}
				if j := w.WaitJobEnded(id); j.State != "completed" || len(j.AttemptHistory) != attempts || attempts == 2 &&
					j.AttemptHistory[0].Reason != "lost" {
					t.Errorf("job %+v, want %d attempts, the first of two lost", j, attempts)
				}
			})
		}
	}
}

// A runner may die before it has written the result of an attempt to its journal. The next service still knows
// that the attempt started. It records the attempt as lost, and on_lost decides whether the job runs again. The
// service deletes the output files of such an attempt.
func TestAttemptWithoutJournalEntryIsLost(t *testing.T) {
	q := testrig.NewHarness(t, "failpoint")
	t.Parallel()
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=nojournal"}
	q.StartService("--workers", "4")
	w := q.DialService()
	specs := repeatSpec(40, testrig.JSONFields{"command": "head -c 200000 /dev/zero; echo $QUEUECTL_JOB_ID >>" +
		q.Path("ran") + "; " + q.CommandAwaitingQueueFile("go"), "on_lost": "dead"})
	hold := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("never")})
	w.WaitJobRunning(hold)
	ids := w.EnqueueBatch(specs)
	q.WaitUntil("three run", 20*time.Second, func() bool { return strings.Count(q.ReadFile("ran"), "\n") == 3 })
	// Stop the service while the jobs run, so that it stores no result.
	syscall.Kill(q.ServiceCmd.Process.Pid, syscall.SIGSTOP)
	runner := q.OnlyRunnerPID()
	files := func() []string {
		found, _ := filepath.Glob(q.Path("runner/output/*"))
		return found
	}
	q.WriteFile("go", "")
	q.WaitUntil("their outputs are written", 20*time.Second, func() bool { return len(files()) >= 3 })
	syscall.Kill(runner, syscall.SIGKILL)
	q.KillService()
	q.ServiceEnv = nil
	q.WriteFile("runner/output/4000-7", "of an unknown attempt")
	owned := func() int { return q.QueryDatabaseInt(`SELECT count(*) FROM attempts WHERE output_ref <> ''`) }
	if len(files()) < owned()+2 {
		t.Error("the killed runner left no orphaned output")
	}
	q.StartService("--workers", "2")
	w = q.DialService()
	starts := map[string]int{}
	for _, id := range ids {
		w.WaitJobEnded(id)
	}
	for line := range strings.FieldsSeq(q.ReadFile("ran")) {
		starts[line]++
	}
	for id, n := range starts {
		if n > 1 {
			t.Errorf("job %s was started %d times, with on_lost dead", id, n)
		}
	}
	q.WaitUntil("the orphaned outputs are deleted", 20*time.Second, func() bool {
		q.MustRunCLI("config", "set", "retention_output", "1g") // after this change, the service checks its output files
		return len(files()) == owned()
	})
}

// If clients change settings at the same time, all changes apply, in the order in which they are stored.
func TestConcurrentSettingChangesAllApply(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { q.DialService().MustCall("worker.start", testrig.JSONFields{"count": 1}, nil) })
	}
	calls.Wait()
	if got := q.MustRunCLI("config", "get", "workers"); strings.TrimSpace(got) != "22" {
		t.Errorf("20 requests for one more worker, starting with 2: %s", got)
	}
	for range 10 {
		for n := range 8 {
			calls.Go(func() {
				w := q.DialService()
				w.MustCall("config.set", testrig.JSONFields{"key": "priority", "value": n + 1}, nil)
				// Another request may end this drain before it is complete.
				if got := w.Call("drain", testrig.JSONFields{"off": n%2 == 0}); got.Error != nil &&
					got.Error.Data.Code != "wrong_state" {
					t.Errorf("drain: %+v", *got.Error)
				}
			})
		}
		calls.Wait()
		before := q.MustRunCLI("config", "get", "priority")
		drains := strings.Contains(q.MustRunCLI("status"), "drain")
		q.MustRunCLI("reload")
		if after := q.MustRunCLI("config", "get", "priority"); after != before {
			t.Errorf("priority was %s before the reload and is %s after it", before, after)
		}
		q.KillService()
		q.StartService("--workers", "2")
		if got := strings.Contains(q.MustRunCLI("status"), "drain"); got != drains {
			t.Errorf("before the restart drain was %t, after it %t", drains, got)
		}
	}
}

// `queuectl service stop --runners` ends runners that a service has left running, and their jobs. The command also
// works if no service can start because the database was replaced by an older copy.
func TestServiceStopEndsRunnersNewerThanDatabase(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	if err := os.WriteFile(q.Path("keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("backup", q.Path("old"))
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600", "max_retries": 0})
	pid := w.WaitJobRunning(id).PID
	for range 3 { // each start raises the epoch (number of the service start) in the database
		q.KillService()
		q.StartService("--workers", "1")
	}
	q.KillService()
	// The file "initialized" records how new the database was. Remove this file too. Otherwise the service
	// would refuse the old database because of this file.
	for _, name := range []string{"queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		os.Remove(q.Path(name))
	}
	old, err := os.ReadFile(q.Path("old"))
	if err == nil {
		err = os.WriteFile(q.Path("queuectl.db"), old, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := q.TryStartService("--workers", "1"); err == nil {
		t.Fatal("a service started on a database that is older than its runner")
	}
	log := q.ServiceLog.String()
	if code := q.ServiceCmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(log, "restore") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, log %q; want 78 and the advice", code, log)
	}
	if got := q.RunCLI("service", "stop", "--runners"); got.ExitCode != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.WaitUntil("the job is gone", 5*time.Second, func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	q.StartService("--workers", "1")
	j := q.DialService().WaitJobEnded(q.DialService().Enqueue(testrig.JSONFields{"command": "echo hi"}))
	if j.Output != "hi\n" {
		t.Errorf("the job after service stop --runners: %+v", j)
	}
}

// If a database has lost its newest transactions, the file "initialized" shows the loss to the service. Without that
// file, the service notices the loss if a live runner has a job that is not in the database. In both cases the service
// refuses to start, reports the reason, and leaves the runner's job running.
func TestTruncatedDatabaseIsRefused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "true"})) // this job starts a runner
	wal := q.Path("queuectl.db-wal")
	walInfo, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	pid := w.WaitJobRunning(w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600", "max_retries": 0})).PID
	q.KillService()
	if err := os.Truncate(wal, walInfo.Size()); err != nil {
		t.Fatal(err)
	}
	if err := q.TryStartService("--workers", "1"); err == nil || q.ServiceCmd.ProcessState.ExitCode() != 74 ||
		!strings.Contains(q.ServiceLog.String(), "acknowledged changes") {
		t.Errorf("on a database that has lost its end: %v, %v", q.ServiceCmd.ProcessState, err)
	}
	if err := os.Remove(q.Path("initialized")); err != nil {
		t.Fatal(err)
	}
	if err := q.TryStartService("--workers", "1"); err == nil {
		t.Error("a service started on a database that has lost its end")
	}
	log := q.ServiceLog.String()
	if code := q.ServiceCmd.ProcessState.ExitCode(); code != 78 ||
		!strings.Contains(log, "its newest job is job 2, but the newest job of this queue is job 1") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, log %q; want 78 and the advice", code, log)
	}
	if !testrig.IsProcessAlive(pid) {
		t.Error("the job was ended")
	}
	if got := q.RunCLI("service", "stop", "--runners"); got.ExitCode != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.StartService("--workers", "1")
}

// If the service is killed while a client sends a file of jobs, no job is stored and the client reports that no job was
// stored. The kill may interrupt a request. The kill may also happen between two requests, so that a new service
// receives the next request.
func TestServiceKillDuringFileEnqueueStoresNothing(t *testing.T) {
	for name, jobs := range map[string]int{"a request under way": 3000, "between two requests": 1001} {
		t.Run(name, func(t *testing.T) {
			q := testrig.StartQueue(t, "--workers", "0")
			cmd, errs := q.CLICommand("enqueue", "--file", "-"), &testrig.LockedBuffer{}
			cmd.Stderr = errs
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := strings.Repeat("{\"command\":\"true\"}\n", jobs)
			if _, err := in.Write([]byte(lines)); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("a part is stored", 20*time.Second,
				func() bool { return q.QueryDatabaseInt(`SELECT count(*) FROM frames`) > 0 })
			q.KillService()
			q.StartService("--workers", "0")
			in.Write([]byte(lines)) // this fails if the client has already ended
			in.Close()
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 3 ||
				!strings.Contains(errs.String(), "nothing was stored; run the same command again") {
				t.Errorf("exit code %d: %s", code, errs)
			}
			if n := q.DialService().JobCountsByState()["pending"]; n != 0 {
				t.Errorf("%d jobs are stored", n)
			}
		})
	}
}
