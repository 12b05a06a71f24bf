package test

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
)

// cliWithin runs a command that must return within the given time, even if other processes hang.
func (q *queue) cliWithin(limit time.Duration, args ...string) result {
	q.Helper()
	started := time.Now()
	got := q.cli(args...)
	if elapsed := time.Since(started); elapsed > limit {
		q.Errorf("%v took %v, want at most %v", args, elapsed, limit)
	}
	return got
}

// stopRunner stops the runner with SIGSTOP until thaw is called. A debugger or a mistaken signal has
// the same effect.
func (q *queue) stopRunner() (pid int, thaw func()) {
	q.Helper()
	pid = q.runnerPid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		q.Fatal(err)
	}
	thaw = sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	q.TB.Cleanup(thaw)
	// A thread stops only when the kernel schedules it next, so wait until all of them have stopped.
	q.waitUntil("all its threads have stopped", 10*time.Second, func() bool {
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

// A hung runner delays only its own jobs. Every command answers soon. A job that never started can
// be cancelled, and new jobs run in another runner. A service that starts serves immediately. When
// the runner continues, its job ends normally.
func TestHungRunnerDelaysOnlyItsJobs(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.waitRunning(id)
	pid, thaw := q.stopRunner()
	names := fmt.Sprintf("the runner with pid %d does not answer", pid)
	waiting := w.enqueue(fields{"command": "sleep 600"})
	q.waitUntil("what never started is cancelled", 20*time.Second, func() bool {
		return q.cliWithin(10*time.Second, "cancel", waiting).code == 0
	})
	if j := w.show(waiting); j.State != "cancelled" {
		t.Errorf("what never started: %+v", j)
	}

	if got := q.cliWithin(5*time.Second, "show", id); got.code != 0 || !strings.Contains(got.out, "processing") {
		t.Errorf("show: %+v", got)
	}
	for _, args := range [][]string{{"logs", id}, {"cancel", id}, {"rm", "--force", id}, {"kill", id},
		{"worker", "stop", "--all", "--force"}} {
		if got := q.cliWithin(10*time.Second, args...); got.code != 3 && got.code != 5 || !strings.Contains(got.err, names) {
			t.Errorf("%v: %+v; want an error that names the runner", args, got)
		}
	}
	q.must("worker", "scale", "2")
	if j := w.waitEnded(w.enqueue(fields{"command": "echo other"})); j.Output != "other\n" {
		t.Errorf("a job beside it: %+v", j)
	}
	if !strings.Contains(q.must("status"), names) {
		t.Errorf("status does not name the runner: %s", q.must("status"))
	}

	q.kill()
	started := time.Now()
	q.start("--workers", "2")
	if elapsed := time.Since(started); elapsed > 3*time.Second {
		t.Errorf("the next service was ready after %v", elapsed)
	}
	w = q.dial()
	if j := w.waitEnded(w.enqueue(fields{"command": "echo again"})); j.Output != "again\n" {
		t.Errorf("a job of the next service: %+v", j)
	}
	thaw()
	if j := w.show(id); j.State != "cancelled" && j.State != "processing" {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
	q.writeFile("go", "")
	if j := w.waitEnded(id); len(j.History) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// A client that follows a job gets its output and its end even if a runner hangs. A job that the hung runner
// had not started runs in another runner. A job that it had started continues there when the runner
// continues.
func TestHungRunnersJobsAreFollowed(t *testing.T) {
	q := startQueue(t, "--workers", "5")
	w := q.dial()
	jobID := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.waitRunning(jobID)
	_, thaw := q.stopRunner()
	moved := w.enqueue(fields{"command": "echo moved", "max_retries": 0})
	follow := func(args ...string) <-chan result {
		results := make(chan result, 1)
		go func() { results <- q.cli(args...) }() // this goroutine ends when the job or the service ends
		return results
	}
	want := func(results <-chan result, what, out string) {
		t.Helper()
		select {
		case got := <-results:
			if got.code != 0 || got.out != out {
				t.Errorf("%s: %+v, want code 0 and %q", what, got, out)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: nothing was told in 20 s", what)
		}
	}
	stays := follow("logs", "-f", jobID)
	logs, lines := follow("logs", "-f", moved), follow("logs", "-f", "-n", "5", moved)
	run := follow("run", "echo other; echo words >&2")
	want(run, "run", "other\n")
	want(logs, "logs -f", "moved\n")
	want(lines, "logs -f -n 5", "moved\n")
	thaw()
	q.writeFile("go", "")
	want(stays, "logs -f of a job that had begun", "up\nend\n")
	for _, id := range []string{jobID, moved} {
		if j := w.waitEnded(id); j.State != "completed" || len(j.History) != 1 {
			t.Errorf("got %+v, want one attempt", j)
		}
	}
}

// If a service restarts while its runner hangs, the job of that runner ends normally when the
// runner continues.
func TestHungRunnersJobContinues(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.waitRunning(id)
	_, thaw := q.stopRunner()
	q.kill()
	q.start("--workers", "1")
	thaw()
	q.writeFile("go", "")
	if j := q.dial().waitEnded(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("got %+v", j)
	}
}

// A stop of the service ends a hung runner and its jobs after stop_timeout. These jobs return to the queue,
// unless a user has cancelled them.
func TestStopEndsAHungRunner(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; sleep 600 & sleep 600", "max_retries": 1})
	pid := w.waitRunning(id).PID
	jobID := w.enqueue(fields{"command": "echo up; exec sleep 600"})
	w.waitRunning(jobID)
	q.must("config", "set", "stop_timeout", "1s")
	runner, _ := q.stopRunner()
	for _, verb := range []string{"requeue", "cancel"} { // the later request replaces the earlier one
		if got := q.cli(verb, jobID); got.code != 3 ||
			!strings.Contains(got.err, "the job will be ended when the runner answers") {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	started := time.Now()
	if code := q.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if elapsed := time.Since(started); elapsed > 15*time.Second {
		t.Errorf("the stop took %v", elapsed)
	}
	for _, p := range []int{pid, runner} {
		q.waitUntil(fmt.Sprintf("process %d is gone", p), 5*time.Second, func() bool {
			return syscall.Kill(p, 0) == syscall.ESRCH
		})
	}
	q.start("--workers", "0")
	w = q.dial()
	if j := w.show(id); j.State != "pending" || j.Attempts != 0 || len(j.History) != 1 ||
		j.History[0].Reason != "stopped" {
		t.Errorf("got %+v, want one attempt that does not count", j)
	}
	if j := w.show(jobID); j.State != "cancelled" {
		t.Errorf("what was cancelled: %+v", j)
	}
}

// A service that starts while an old runner hangs immediately starts jobs in another runner.
func TestHungRunnerDelaysNoServiceStart(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	w.waitRunning(w.enqueue(fields{"command": "echo up; exec sleep 600"}))
	q.stopRunner()
	q.kill()
	q.start("--workers", "2")
	started := time.Now()
	q.dial().waitEnded(q.dial().enqueue(fields{"command": "true"}))
	if elapsed := time.Since(started); elapsed > 5*time.Second {
		t.Errorf("a job was done after %v", elapsed)
	}
}

// If a runner hangs after it has received a job and before it has started the job, the job runs in another
// runner. This also holds if the service has restarted and cannot reach the first runner.
func TestUnstartedJobLeavesHungRunnerOnRestart(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	jobID := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go"), "max_retries": 0})
	w.waitRunning(jobID)
	_, thaw := q.stopRunner()
	sent := w.enqueue(fields{"command": "echo other"})
	q.waitUntil("it is sent", 10*time.Second, func() bool { return q.countReserved() == 1 })
	q.kill()
	q.start("--workers", "2")
	w = q.dial()
	if j := w.waitEnded(sent); j.Output != "other\n" || len(j.History) != 1 {
		t.Errorf("what was sent: %+v", j)
	}
	q.writeFile("go", "")
	thaw()
	if j := w.waitEnded(jobID); j.State != "completed" || len(j.History) != 1 {
		t.Errorf("what had begun: %+v", j)
	}
}

// A client with a timeout does not wait longer, even if the service hangs.
func TestClientTimeoutHoldsIfServiceHangs(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	id := q.dial().enqueue(fields{"command": "true"})
	pid := q.cmd.Process.Pid
	// Let the service continue at the end, so that the test can stop it.
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) })
	syscall.Kill(pid, syscall.SIGSTOP)
	if got := q.cliWithin(10*time.Second, "wait", id, "--timeout", "1s"); got.code != 124 {
		t.Errorf("got %+v", got)
	}
}

// A job that prints is running, so it can get a signal.
func TestPrintingJobCanBeSignalled(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w, reader := q.dial(), q.dial()
	for range 10 {
		id := w.enqueue(fields{"command": "trap 'exit 7' USR1; echo up; sleep 600 & wait", "max_retries": 0})
		reader.sendLine(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"logs","params":{"id":%q,"follow":true}}`, id))
		reader.read()
		w.mustCall("kill", fields{"id": id, "signal": "USR1"}, nil)
		if j := w.waitEnded(id); deref(j.ExitCode) != 7 {
			t.Errorf("got %+v", j)
		}
		reader.read() // discard the reply
	}
}

// If a runner dies while the service starts it or connects to it, the service keeps running. It starts
// another runner, and jobs run.
func TestServiceSurvivesRunnersThatDieAtStart(t *testing.T) {
	t.Parallel()
	for n, wait := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond,
		50 * time.Millisecond} {
		q := newQueue(t, "")
		killed := make(chan int)
		go func() { // this goroutine ends after four kills
			seen := map[string]bool{}
			for deadline := time.Now().Add(20 * time.Second); len(seen) < 4 && time.Now().Before(deadline); {
				dirs, _ := filepath.Glob(q.path("runner/*.*"))
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
		q.start("--workers", "1")
		w := q.dial()
		if j := w.waitEnded(w.enqueue(fields{"command": "echo hi", "max_retries": 9})); j.Output != "hi\n" {
			t.Errorf("%d: %+v", n, j)
		}
		if got := <-killed; got < 4 {
			t.Errorf("%d: %d runners were killed", n, got)
		}
	}
}

// Even if a runner's directory is damaged, the service finds the process trees of its jobs. No
// tree survives to run at the same time as the job's next attempt. A runner to which the service
// can connect keeps its job.
func TestDamagedRunnerDirsLeaveNoTrees(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"boot id":   func(dir string) error { return os.Remove(filepath.Join(dir, "boot-id")) },
		"table":     func(dir string) error { return os.Remove(filepath.Join(dir, "running")) },
		"cut table": func(dir string) error { return os.Truncate(filepath.Join(dir, "running"), 10) },
		"lock":      func(dir string) error { return os.Remove(filepath.Join(dir, "lock")) },
		"folder":    os.RemoveAll,
	} {
		for _, dies := range []bool{true, false} {
			if !dies && name == "cut table" {
				continue // the next write to the mapped table would kill a live runner, so there is no such case
			}
			t.Run(fmt.Sprintf("%s, runner dies %t", name, dies), func(t *testing.T) {
				q := startQueue(t, "--workers", "1")
				w := q.dial()
				id := w.enqueue(fields{"command": `echo up; [ "$QUEUECTL_ATTEMPT" = 1 ] && { setsid sleep 600 & ` +
					q.waitForFileCommand("go") + `; }; true`, "max_retries": 1})
				tree := w.waitRunning(id).PID
				dirs, err := filepath.Glob(q.path("runner/*.*"))
				if err != nil || len(dirs) != 1 {
					t.Fatal(dirs, err)
				}
				q.kill()
				runner := q.runnerPid()
				defer syscall.Kill(runner, syscall.SIGKILL)
				if err := damage(dirs[0]); err != nil {
					t.Fatal(err)
				}
				if dies {
					syscall.Kill(runner, syscall.SIGKILL)
				}
				q.start("--workers", "1")
				w = q.dial()
				attempts := 2
				if !dies && (name == "boot id" || name == "table") {
					attempts = 1
					q.writeFile("go", "")
				} else {
					q.waitUntil("the first tree is gone", 20*time.Second, func() bool {
						return syscall.Kill(tree, 0) == syscall.ESRCH
					})
				}
				if j := w.waitEnded(id); j.State != "completed" || len(j.History) != attempts || attempts == 2 &&
					j.History[0].Reason != "lost" {
					t.Errorf("got %+v, want %d attempts, the first of two lost", j, attempts)
				}
			})
		}
	}
}

// If the socket of a runner is removed, the runner creates it again. The next service connects to that
// socket, and the jobs of the runner continue.
func TestRunnerRecreatesItsSocket(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.waitRunning(id)
	q.kill()
	socks, err := filepath.Glob(q.path("runner/*/run.sock"))
	if err != nil || len(socks) != 1 || os.Remove(socks[0]) != nil {
		t.Fatal(socks, err)
	}
	q.start("--workers", "1")
	q.writeFile("go", "")
	if j := q.dial().waitEnded(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("got %+v", j)
	}
}

// A runner may die before it has written the result of an attempt to its journal. The next service still
// knows that the attempt had started. So the job is lost and does not run again unnoticed. Output files of
// such attempts are deleted.
func TestAttemptWithoutJournalIsLost(t *testing.T) {
	q := newQueue(t, "failpoint")
	t.Parallel()
	q.env = []string{"QUEUECTL_FAILPOINTS=nojournal"}
	q.start("--workers", "4")
	w := q.dial()
	specs := copies(40, fields{"command": "head -c 200000 /dev/zero; echo $QUEUECTL_JOB_ID >>" + q.path("ran") + "; " +
		q.waitForFileCommand("go"), "on_lost": "dead"})
	hold := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("never")})
	w.waitRunning(hold)
	ids := w.batch(specs)
	q.waitUntil("three run", 20*time.Second, func() bool { return strings.Count(q.readFile("ran"), "\n") == 3 })
	// Stop the service while the jobs run, so that it stores no result.
	syscall.Kill(q.cmd.Process.Pid, syscall.SIGSTOP)
	runner := q.runnerPid()
	files := func() []string {
		found, _ := filepath.Glob(q.path("runner/output/*"))
		return found
	}
	q.writeFile("go", "")
	q.waitUntil("their outputs are written", 20*time.Second, func() bool { return len(files()) >= 3 })
	syscall.Kill(runner, syscall.SIGKILL)
	q.kill()
	q.env = nil
	q.writeFile("runner/output/4000-7", "of an attempt that nobody knows")
	owned := func() int { return q.queryInt(`SELECT count(*) FROM attempts WHERE output_ref <> ''`) }
	if len(files()) < owned()+2 {
		t.Error("no output was left behind")
	}
	q.start("--workers", "2")
	w = q.dial()
	starts := map[string]int{}
	for _, id := range ids {
		w.waitEnded(id)
	}
	for line := range strings.FieldsSeq(q.readFile("ran")) {
		starts[line]++
	}
	for id, n := range starts {
		if n > 1 {
			t.Errorf("job %s was started %d times, with on_lost dead", id, n)
		}
	}
	q.waitUntil("what was left is deleted", 20*time.Second, func() bool {
		q.must("config", "set", "retention_output", "1g") // this change makes the service run its upkeep
		return len(files()) == owned()
	})
}

// Concurrent changes of settings all take effect, in the order in which they are stored.
func TestConcurrentSettingChangesAllApply(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { q.dial().mustCall("worker.start", fields{"count": 1}, nil) })
	}
	calls.Wait()
	if got := q.must("config", "get", "workers"); strings.TrimSpace(got) != "22" {
		t.Errorf("20 times one worker more than 2: %s", got)
	}
	for range 10 {
		for n := range 8 {
			calls.Go(func() {
				w := q.dial()
				w.mustCall("config.set", fields{"key": "priority", "value": n + 1}, nil)
				// Another request may end this drain before it is complete.
				if got := w.call("drain", fields{"off": n%2 == 0}); got.Error != nil && got.Error.Data.Code != "wrong_state" {
					t.Errorf("drain: %+v", *got.Error)
				}
			})
		}
		calls.Wait()
		before := q.must("config", "get", "priority")
		drains := strings.Contains(q.must("status"), "drain")
		q.must("reload")
		if after := q.must("config", "get", "priority"); after != before {
			t.Errorf("priority is %s, but stored is %s", before, after)
		}
		q.kill()
		q.start("--workers", "2")
		if got := strings.Contains(q.must("status"), "drain"); got != drains {
			t.Errorf("it drains: %t, but stored is %t", drains, got)
		}
	}
}

// "service stop --runners" ends runners that a service has left running, and their jobs. This also works if
// the database is older than the runners, so that no service can start on it.
func TestRunnersOfAnOlderDatabase(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	if err := os.WriteFile(q.path("keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.must("backup", q.path("old"))
	id := w.enqueue(fields{"command": "echo up; sleep 600", "max_retries": 0})
	pid := w.waitRunning(id).PID
	for range 3 { // each start raises the epoch
		q.kill()
		q.start("--workers", "1")
	}
	q.kill()
	// Remove the file "initialized" too: it records how new the database was, so the service would refuse the
	// old one.
	for _, name := range []string{"queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		os.Remove(q.path(name))
	}
	old, err := os.ReadFile(q.path("old"))
	if err == nil {
		err = os.WriteFile(q.path("queuectl.db"), old, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := q.tryStart("--workers", "1"); err == nil {
		t.Fatal("a service started on a database that is older than its runner")
	}
	log := q.log.String()
	if code := q.cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(log, "restore") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, said %q; want 78 and what to do", code, log)
	}
	if got := q.cli("service", "stop", "--runners"); got.code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.waitUntil("the job is gone", 5*time.Second, func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	q.start("--workers", "1")
	if j := q.dial().waitEnded(q.dial().enqueue(fields{"command": "echo hi"})); j.Output != "hi\n" {
		t.Errorf("afterwards: %+v", j)
	}
}

// A database may have lost its newest transactions. The service detects that by the file "initialized", or
// without that file by a live runner with a job that the database does not contain. In both cases the service
// refuses to start, says why, and does not end the job of the runner.
func TestTruncatedDatabaseIsRefused(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	w.waitEnded(w.enqueue(fields{"command": "true"})) // this job starts a runner
	wal := q.path("queuectl.db-wal")
	walInfo, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	pid := w.waitRunning(w.enqueue(fields{"command": "echo up; sleep 600", "max_retries": 0})).PID
	q.kill()
	if err := os.Truncate(wal, walInfo.Size()); err != nil {
		t.Fatal(err)
	}
	if err := q.tryStart("--workers", "1"); err == nil || q.cmd.ProcessState.ExitCode() != 74 ||
		!strings.Contains(q.log.String(), "acknowledged changes") {
		t.Errorf("on a database that has lost its end: %v, %v", q.cmd.ProcessState, err)
	}
	if err := os.Remove(q.path("initialized")); err != nil {
		t.Fatal(err)
	}
	if err := q.tryStart("--workers", "1"); err == nil {
		t.Error("a service started on a database that has lost its end")
	}
	log := q.log.String()
	if code := q.cmd.ProcessState.ExitCode(); code != 78 ||
		!strings.Contains(log, "its newest job is job 2, but the newest job of this queue is job 1") ||
		!strings.Contains(log, "service stop --runners") {
		t.Errorf("exit code %d, said %q; want 78 and what to do", code, log)
	}
	if !isAlive(pid) {
		t.Error("the job was ended")
	}
	if got := q.cli("service", "stop", "--runners"); got.code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.start("--workers", "1")
}

// If the service is killed while a client sends a file of jobs, no job is stored and the client says so. This
// holds if the kill interrupts a request. It also holds if the kill happens between two requests, so that the
// next request reaches a new service.
func TestKillDuringUploadStoresNothing(t *testing.T) {
	for name, jobs := range map[string]int{"a request under way": 3000, "between two requests": 1001} {
		t.Run(name, func(t *testing.T) {
			q := startQueue(t, "--workers", "0")
			cmd, errs := q.command("enqueue", "--file", "-"), &lockedBuffer{}
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
			q.waitUntil("a part is stored", 20*time.Second, func() bool { return q.queryInt(`SELECT count(*) FROM frames`) > 0 })
			q.kill()
			q.start("--workers", "0")
			in.Write([]byte(lines)) // this fails if the client has already ended
			in.Close()
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 3 ||
				!strings.Contains(errs.String(), "nothing was stored; run the same command again") {
				t.Errorf("exit code %d: %s", code, errs)
			}
			if n := q.dial().counts()["pending"]; n != 0 {
				t.Errorf("%d jobs are stored", n)
			}
		})
	}
}
