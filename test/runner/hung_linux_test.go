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

// stopRunner stops the runner with SIGSTOP. The function thaw lets it continue. In practice, a debugger or a
// mistaken signal stops a runner in the same way.
func stopRunner(q *testrig.Queue) (pid int, thaw func()) {
	q.Helper()
	pid = q.RunnerPid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		q.Fatal(err)
	}
	thaw = sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	q.TB.Cleanup(thaw)
	// A thread stops only when the kernel schedules it next, so wait until all threads have stopped.
	q.WaitUntil("all its threads have stopped", 10*time.Second, func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, name := range threads {
			stat, _ := os.ReadFile(name)
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
	return pid, thaw
}

// A hung runner delays only its own jobs. All commands return soon, a job that has not started can be
// cancelled, and new jobs run in another runner. A service that starts while the runner hangs serves requests
// immediately. When the hung runner continues, its job ends normally.
func TestHungRunnerDelaysOnlyItsJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.WaitRunning(id)
	pid, thaw := stopRunner(q)
	names := fmt.Sprintf("the runner with pid %d does not answer", pid)
	waiting := w.Enqueue(testrig.Fields{"command": "sleep 600"})
	q.WaitUntil("the job that never started is cancelled", 20*time.Second, func() bool {
		return q.CLIWithin(10*time.Second, "cancel", waiting).Code == 0
	})
	if j := w.Show(waiting); j.State != "cancelled" {
		t.Errorf("the job that never started: %+v", j)
	}

	if got := q.CLIWithin(5*time.Second, "show", id); got.Code != 0 || !strings.Contains(got.Stdout, "processing") {
		t.Errorf("show: %+v", got)
	}
	for _, args := range [][]string{{"logs", id}, {"cancel", id}, {"rm", "--force", id}, {"kill", id},
		{"worker", "stop", "--all", "--force"}} {
		if got := q.CLIWithin(10*time.Second, args...); got.Code != 3 && got.Code != 5 ||
			!strings.Contains(got.Stderr, names) {
			t.Errorf("%v: %+v; want an error that names the runner", args, got)
		}
	}
	q.MustCLI("worker", "scale", "2")
	if j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "echo other"})); j.Output != "other\n" {
		t.Errorf("a job in another runner: %+v", j)
	}
	if !strings.Contains(q.MustCLI("status"), names) {
		t.Errorf("status does not name the runner: %s", q.MustCLI("status"))
	}

	q.Kill()
	started := time.Now()
	q.Start("--workers", "2")
	if elapsed := time.Since(started); elapsed > 3*time.Second {
		t.Errorf("the next service was ready after %v", elapsed)
	}
	w = q.Dial()
	if j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "echo again"})); j.Output != "again\n" {
		t.Errorf("a job of the next service: %+v", j)
	}
	thaw()
	if j := w.Show(id); j.State != "cancelled" && j.State != "processing" {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
	q.WriteFile("go", "")
	if j := w.WaitEnded(id); len(j.History) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// A client that follows a job gets its output and its end even if the job's runner hangs. If that runner has
// not started the job, another runner runs it. Otherwise the job ends after the hung runner has continued.
func TestHungRunnersJobsAreFollowed(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "5")
	w := q.Dial()
	jobID := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end",
		"max_retries": 0})
	w.WaitRunning(jobID)
	_, thaw := stopRunner(q)
	moved := w.Enqueue(testrig.Fields{"command": "echo moved", "max_retries": 0})
	follow := func(args ...string) <-chan testrig.Result {
		results := make(chan testrig.Result, 1)
		go func() { results <- q.CLI(args...) }() // this goroutine ends when the job or the service ends
		return results
	}
	want := func(results <-chan testrig.Result, what, out string) {
		t.Helper()
		select {
		case got := <-results:
			if got.Code != 0 || got.Stdout != out {
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
		if j := w.WaitEnded(id); j.State != "completed" || len(j.History) != 1 {
			t.Errorf("the job that was followed: %+v, want one attempt", j)
		}
	}
}

// If a service restarts while its runner hangs, the job of that runner ends normally when the runner continues.
func TestHungRunnersJobContinues(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.WaitRunning(id)
	_, thaw := stopRunner(q)
	q.Kill()
	q.Start("--workers", "1")
	thaw()
	q.WriteFile("go", "")
	if j := q.Dial().WaitEnded(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// When the service stops, it ends a hung runner and the runner's jobs after stop_timeout. The jobs return to
// the queue. If a user has requested to cancel a job, the job is cancelled instead.
func TestStopEndsAHungRunner(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; sleep 600 & sleep 600", "max_retries": 1})
	pid := w.WaitRunning(id).PID
	jobID := w.Enqueue(testrig.Fields{"command": "echo up; exec sleep 600"})
	w.WaitRunning(jobID)
	q.MustCLI("config", "set", "stop_timeout", "1s")
	runner, _ := stopRunner(q)
	for _, verb := range []string{"requeue", "cancel"} { // the request to cancel replaces the request to requeue
		if got := q.CLI(verb, jobID); got.Code != 3 ||
			!strings.Contains(got.Stderr, "if the runner answers later, it ends the job then") {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	started := time.Now()
	if code := q.Stop(); code != 0 {
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
	q.Start("--workers", "0")
	w = q.Dial()
	if j := w.Show(id); j.State != "pending" || j.Attempts != 0 || len(j.History) != 1 ||
		j.History[0].Reason != "stopped" {
		t.Errorf("the job that returned to the queue: %+v, want one attempt that does not count", j)
	}
	if j := w.Show(jobID); j.State != "cancelled" {
		t.Errorf("the cancelled job: %+v", j)
	}
}

// If an old runner hangs when a service starts, the service immediately starts jobs in another runner.
func TestHungRunnerDelaysNoServiceStart(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	w.WaitRunning(w.Enqueue(testrig.Fields{"command": "echo up; exec sleep 600"}))
	stopRunner(q)
	q.Kill()
	q.Start("--workers", "2")
	started := time.Now()
	q.Dial().WaitEnded(q.Dial().Enqueue(testrig.Fields{"command": "true"}))
	if elapsed := time.Since(started); elapsed > 5*time.Second {
		t.Errorf("a new job ended after %v", elapsed)
	}
}

// If a runner hangs after it has received a job but before it has started the job, another runner runs the job.
// This is also true if the service has restarted and cannot reach the first runner.
func TestUnstartedJobLeavesHungRunnerOnRestart(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	jobID := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go"), "max_retries": 0})
	w.WaitRunning(jobID)
	_, thaw := stopRunner(q)
	sent := w.Enqueue(testrig.Fields{"command": "echo other"})
	q.WaitUntil("the job is sent", 10*time.Second, func() bool { return q.CountReserved() == 1 })
	q.Kill()
	q.Start("--workers", "2")
	w = q.Dial()
	if j := w.WaitEnded(sent); j.Output != "other\n" || len(j.History) != 1 {
		t.Errorf("the job that was sent: %+v", j)
	}
	q.WriteFile("go", "")
	thaw()
	if j := w.WaitEnded(jobID); j.State != "completed" || len(j.History) != 1 {
		t.Errorf("the job that had started: %+v", j)
	}
}

// A command with a timeout returns when the timeout expires, even if the service hangs.
func TestClientTimeoutHoldsIfServiceHangs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	id := q.Dial().Enqueue(testrig.Fields{"command": "true"})
	pid := q.Cmd.Process.Pid
	// At the end, let the service continue, so that the test can stop it.
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) })
	syscall.Kill(pid, syscall.SIGSTOP)
	if got := q.CLIWithin(10*time.Second, "wait", id, "--timeout", "1s"); got.Code != 124 {
		t.Errorf("wait with a timeout of 1s: got %+v", got)
	}
}

// A job that has printed something counts as running, and a user can send it a signal.
func TestPrintingJobCanBeSignalled(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w, reader := q.Dial(), q.Dial()
	for range 10 {
		id := w.Enqueue(testrig.Fields{"command": "trap 'exit 7' USR1; echo up; sleep 600 & wait", "max_retries": 0})
		reader.SendLine(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"logs","params":{"id":%q,"follow":true}}`, id))
		reader.ReadMessage()
		w.MustCall("kill", testrig.Fields{"id": id, "signal": "USR1"}, nil)
		if j := w.WaitEnded(id); testrig.OrMinusOne(j.ExitCode) != 7 {
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
		q := testrig.NewQueue(t, "")
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
		q.Start("--workers", "1")
		w := q.Dial()
		if j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "echo hi", "max_retries": 9})); j.Output != "hi\n" {
			t.Errorf("round %d: job %+v", n, j)
		}
		if got := <-killed; got < 4 {
			t.Errorf("round %d: %d runners were killed", n, got)
		}
	}
}

// Even if a runner's directory is damaged, the service finds the process trees of its jobs. No tree runs at the
// same time as the job's next attempt. If the service can connect to the runner, the runner keeps its job.
func TestDamagedRunnerDirsLeaveNoTrees(t *testing.T) {
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
				w := q.Dial()
				id := w.Enqueue(testrig.Fields{"command": `echo up; [ "$QUEUECTL_ATTEMPT" = 1 ] && { setsid sleep 600 & ` +
					q.WaitForFileCommand("go") + `; }; true`, "max_retries": 1})
				tree := w.WaitRunning(id).PID
				dirs, err := filepath.Glob(q.Path("runner/*.*"))
				if err != nil || len(dirs) != 1 {
					t.Fatal(dirs, err)
				}
				q.Kill()
				runner := q.RunnerPid()
				defer syscall.Kill(runner, syscall.SIGKILL)
				if err := damage(dirs[0]); err != nil {
					t.Fatal(err)
				}
				if dies {
					syscall.Kill(runner, syscall.SIGKILL)
				}
				q.Start("--workers", "1")
				w = q.Dial()
				attempts := 2
				if !dies && (name == "boot id" || name == "table") {
					attempts = 1
					q.WriteFile("go", "")
				} else {
					q.WaitUntil("the first tree is gone", 20*time.Second, func() bool {
						return syscall.Kill(tree, 0) == syscall.ESRCH
					})
				}
				if j := w.WaitEnded(id); j.State != "completed" || len(j.History) != attempts || attempts == 2 &&
					j.History[0].Reason != "lost" {
					t.Errorf("job %+v, want %d attempts, the first of two lost", j, attempts)
				}
			})
		}
	}
}

// If the socket file of a runner is removed, the runner creates the socket again. The next service connects to
// the new socket, and the jobs of the runner continue.
func TestRunnerRecreatesItsSocket(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.WaitRunning(id)
	q.Kill()
	socks, err := filepath.Glob(q.Path("runner/*/run.sock"))
	if err != nil || len(socks) != 1 || os.Remove(socks[0]) != nil {
		t.Fatal(socks, err)
	}
	q.Start("--workers", "1")
	q.WriteFile("go", "")
	if j := q.Dial().WaitEnded(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("the job of the runner that recreated its socket: %+v", j)
	}
}

// A runner may die before it has written the result of an attempt to its journal. The next service still knows
// that the attempt started. It records the attempt as lost, and on_lost decides whether the job runs again. The
// service deletes the output files of such an attempt.
func TestAttemptWithoutJournalIsLost(t *testing.T) {
	q := testrig.NewQueue(t, "failpoint")
	t.Parallel()
	q.Env = []string{"QUEUECTL_FAILPOINTS=nojournal"}
	q.Start("--workers", "4")
	w := q.Dial()
	specs := copies(40, testrig.Fields{"command": "head -c 200000 /dev/zero; echo $QUEUECTL_JOB_ID >>" + q.Path("ran") +
		"; " +
		q.WaitForFileCommand("go"), "on_lost": "dead"})
	hold := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("never")})
	w.WaitRunning(hold)
	ids := w.Batch(specs)
	q.WaitUntil("three run", 20*time.Second, func() bool { return strings.Count(q.ReadFile("ran"), "\n") == 3 })
	// Stop the service while the jobs run, so that it stores no result.
	syscall.Kill(q.Cmd.Process.Pid, syscall.SIGSTOP)
	runner := q.RunnerPid()
	files := func() []string {
		found, _ := filepath.Glob(q.Path("runner/output/*"))
		return found
	}
	q.WriteFile("go", "")
	q.WaitUntil("their outputs are written", 20*time.Second, func() bool { return len(files()) >= 3 })
	syscall.Kill(runner, syscall.SIGKILL)
	q.Kill()
	q.Env = nil
	q.WriteFile("runner/output/4000-7", "of an unknown attempt")
	owned := func() int { return q.QueryInt(`SELECT count(*) FROM attempts WHERE output_ref <> ''`) }
	if len(files()) < owned()+2 {
		t.Error("the killed runner left no orphaned output")
	}
	q.Start("--workers", "2")
	w = q.Dial()
	starts := map[string]int{}
	for _, id := range ids {
		w.WaitEnded(id)
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
		q.MustCLI("config", "set", "retention_output", "1g") // after this change, the service checks its output files
		return len(files()) == owned()
	})
}

// If clients change settings at the same time, all changes apply, in the order in which they are stored.
func TestConcurrentSettingChangesAllApply(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { q.Dial().MustCall("worker.start", testrig.Fields{"count": 1}, nil) })
	}
	calls.Wait()
	if got := q.MustCLI("config", "get", "workers"); strings.TrimSpace(got) != "22" {
		t.Errorf("20 requests for one more worker, starting with 2: %s", got)
	}
	for range 10 {
		for n := range 8 {
			calls.Go(func() {
				w := q.Dial()
				w.MustCall("config.set", testrig.Fields{"key": "priority", "value": n + 1}, nil)
				// Another request may end this drain before it is complete.
				if got := w.Call("drain", testrig.Fields{"off": n%2 == 0}); got.Error != nil &&
					got.Error.Data.Code != "wrong_state" {
					t.Errorf("drain: %+v", *got.Error)
				}
			})
		}
		calls.Wait()
		before := q.MustCLI("config", "get", "priority")
		drains := strings.Contains(q.MustCLI("status"), "drain")
		q.MustCLI("reload")
		if after := q.MustCLI("config", "get", "priority"); after != before {
			t.Errorf("priority was %s before the reload and is %s after it", before, after)
		}
		q.Kill()
		q.Start("--workers", "2")
		if got := strings.Contains(q.MustCLI("status"), "drain"); got != drains {
			t.Errorf("before the restart drain was %t, after it %t", drains, got)
		}
	}
}

// `queuectl service stop --runners` ends runners that a service has left running, and their jobs. It also works
// if no service can start because the database is older than the runners.
func TestRunnersOfAnOlderDatabase(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	if err := os.WriteFile(q.Path("keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.MustCLI("backup", q.Path("old"))
	id := w.Enqueue(testrig.Fields{"command": "echo up; sleep 600", "max_retries": 0})
	pid := w.WaitRunning(id).PID
	for range 3 { // each start raises the epoch, which is the number of the start
		q.Kill()
		q.Start("--workers", "1")
	}
	q.Kill()
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
	if err := q.TryStart("--workers", "1"); err == nil {
		t.Fatal("a service started on a database that is older than its runner")
	}
	log := q.ServiceLog.String()
	if code := q.Cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(log, "restore") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, log %q; want 78 and the advice", code, log)
	}
	if got := q.CLI("service", "stop", "--runners"); got.Code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.WaitUntil("the job is gone", 5*time.Second, func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	q.Start("--workers", "1")
	if j := q.Dial().WaitEnded(q.Dial().Enqueue(testrig.Fields{"command": "echo hi"})); j.Output != "hi\n" {
		t.Errorf("the job after service stop --runners: %+v", j)
	}
}

// If a database has lost its newest transactions, the file "initialized" shows the loss to the service.
// Without that file, the service notices the loss if a live runner has a job that is not in the database. In
// both cases the service refuses to start, says why, and leaves the runner's job running.
func TestTruncatedDatabaseIsRefused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	w.WaitEnded(w.Enqueue(testrig.Fields{"command": "true"})) // this job starts a runner
	wal := q.Path("queuectl.db-wal")
	walInfo, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	pid := w.WaitRunning(w.Enqueue(testrig.Fields{"command": "echo up; sleep 600", "max_retries": 0})).PID
	q.Kill()
	if err := os.Truncate(wal, walInfo.Size()); err != nil {
		t.Fatal(err)
	}
	if err := q.TryStart("--workers", "1"); err == nil || q.Cmd.ProcessState.ExitCode() != 74 ||
		!strings.Contains(q.ServiceLog.String(), "acknowledged changes") {
		t.Errorf("on a database that has lost its end: %v, %v", q.Cmd.ProcessState, err)
	}
	if err := os.Remove(q.Path("initialized")); err != nil {
		t.Fatal(err)
	}
	if err := q.TryStart("--workers", "1"); err == nil {
		t.Error("a service started on a database that has lost its end")
	}
	log := q.ServiceLog.String()
	if code := q.Cmd.ProcessState.ExitCode(); code != 78 ||
		!strings.Contains(log, "its newest job is job 2, but the newest job of this queue is job 1") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, log %q; want 78 and the advice", code, log)
	}
	if !testrig.IsAlive(pid) {
		t.Error("the job was ended")
	}
	if got := q.CLI("service", "stop", "--runners"); got.Code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.Start("--workers", "1")
}

// If the service is killed while a client sends a file of jobs, no job is stored and the client reports that.
// The kill may interrupt a request. It may also happen between two requests, so that a new service receives the
// next request.
func TestKillDuringUploadStoresNothing(t *testing.T) {
	for name, jobs := range map[string]int{"a request under way": 3000, "between two requests": 1001} {
		t.Run(name, func(t *testing.T) {
			q := testrig.StartQueue(t, "--workers", "0")
			cmd, errs := q.Command("enqueue", "--file", "-"), &testrig.LockedBuffer{}
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
			q.WaitUntil("a part is stored", 20*time.Second, func() bool { return q.QueryInt(`SELECT count(*) FROM frames`) > 0 })
			q.Kill()
			q.Start("--workers", "0")
			in.Write([]byte(lines)) // this fails if the client has already ended
			in.Close()
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 3 ||
				!strings.Contains(errs.String(), "nothing was stored; run the same command again") {
				t.Errorf("exit code %d: %s", code, errs)
			}
			if n := q.Dial().Counts()["pending"]; n != 0 {
				t.Errorf("%d jobs are stored", n)
			}
		})
	}
}
