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

// quickly is a command that must answer within a while, whatever hangs.
func (q *queue) quickly(within time.Duration, args ...string) result {
	q.Helper()
	began := time.Now()
	got := q.cli(args...)
	if took := time.Since(began); took > within {
		q.Errorf("%v took %v, want at most %v", args, took, within)
	}
	return got
}

// freeze stops the runner, as a debugger or a mistaken signal does, until thaw is called.
func (q *queue) freeze() (pid int, thaw func()) {
	q.Helper()
	pid = q.runnerPid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		q.Fatal(err)
	}
	thaw = sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	q.TB.Cleanup(thaw)
	q.until("all its threads have stopped", 10*time.Second, func() bool { // each does when it is next about to run
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

// A runner that hangs holds up what it runs and nothing else: every verb answers soon,
// what was never started is cancelled, new jobs run in another runner, a service that
// starts serves at once, and once the runner goes on its job ends as if nothing had been.
func TestHungRunnerHoldsUpItsJobsAlone(t *testing.T) {
	q := serving(t, "--workers", "2")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitFor("go") + "; echo end", "max_retries": 0})
	w.runs(id)
	pid, thaw := q.freeze()
	names := fmt.Sprintf("the runner with pid %d does not answer", pid)
	waiting := w.enqueue(fields{"command": "sleep 600"})
	q.until("what never started is cancelled", 20*time.Second, func() bool { return q.quickly(10*time.Second, "cancel", waiting).code == 0 })
	if j := w.show(waiting); j.State != "cancelled" {
		t.Errorf("what never started: %+v", j)
	}

	if got := q.quickly(5*time.Second, "show", id); got.code != 0 || !strings.Contains(got.out, "processing") {
		t.Errorf("show: %+v", got)
	}
	for _, args := range [][]string{{"logs", id}, {"cancel", id}, {"rm", "--force", id}, {"kill", id}, {"worker", "stop", "--all", "--force"}} {
		if got := q.quickly(10*time.Second, args...); got.code != 3 && got.code != 5 || !strings.Contains(got.err, names) {
			t.Errorf("%v: %+v; want an error that names the runner", args, got)
		}
	}
	q.must("worker", "scale", "2")
	if j := w.end(w.enqueue(fields{"command": "echo other"})); j.Output != "other\n" {
		t.Errorf("a job beside it: %+v", j)
	}
	if !strings.Contains(q.must("status"), names) {
		t.Errorf("status does not name the runner: %s", q.must("status"))
	}

	q.kill()
	began := time.Now()
	q.start("--workers", "2")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the next service was ready after %v", took)
	}
	w = q.dial()
	if j := w.end(w.enqueue(fields{"command": "echo again"})); j.Output != "again\n" {
		t.Errorf("a job of the next service: %+v", j)
	}
	thaw()
	if j := w.show(id); j.State != "cancelled" && j.State != "processing" {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
	q.write("go", "")
	if j := w.end(id); len(j.History) != 1 {
		t.Errorf("the job of the runner that hung: %+v", j)
	}
}

// Whoever follows a job is told its output and its end by whichever runner runs it in the
// end: by another one if the job was sent to a runner that hung before it began the job, and
// by that runner, once it goes on, if the job had begun.
func TestHungRunnersJobsAreFollowed(t *testing.T) {
	q := serving(t, "--workers", "5")
	w := q.dial()
	begun := w.enqueue(fields{"command": "echo up; " + q.waitFor("go") + "; echo end", "max_retries": 0})
	w.runs(begun)
	_, thaw := q.freeze()
	moved := w.enqueue(fields{"command": "echo moved", "max_retries": 0})
	follow := func(args ...string) <-chan result {
		told := make(chan result, 1)
		go func() { told <- q.cli(args...) }() // ends with the job, or the service
		return told
	}
	want := func(told <-chan result, what, out string) {
		t.Helper()
		select {
		case got := <-told:
			if got.code != 0 || got.out != out {
				t.Errorf("%s: %+v, want code 0 and %q", what, got, out)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: nothing was told in 20 s", what)
		}
	}
	stays := follow("logs", "-f", begun)
	logs, lines := follow("logs", "-f", moved), follow("logs", "-f", "-n", "5", moved)
	run := follow("run", "echo other; echo words >&2")
	want(run, "run", "other\n")
	want(logs, "logs -f", "moved\n")
	want(lines, "logs -f -n 5", "moved\n")
	thaw()
	q.write("go", "")
	want(stays, "logs -f of a job that had begun", "up\nend\n")
	for _, id := range []string{begun, moved} {
		if j := w.end(id); j.State != "completed" || len(j.History) != 1 {
			t.Errorf("got %+v, want one attempt", j)
		}
	}
}

// What was asked of a job while its runner hung, and could not be done, is not done behind
// the asker's back once the runner goes on, unless it was begun: a job that nobody could
// reach ends as it would have.
func TestHungRunnersJobGoesOn(t *testing.T) {
	q := serving(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitFor("go") + "; echo end", "max_retries": 0})
	w.runs(id)
	_, thaw := q.freeze()
	q.kill()
	q.start("--workers", "1")
	thaw()
	q.write("go", "")
	if j := q.dial().end(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("got %+v", j)
	}
}

// A stop ends a runner that hangs, and all that it runs, once the time for that is over. Its
// jobs are given back as those of any other, but for one that somebody has cancelled.
func TestStopEndsAHungRunner(t *testing.T) {
	q := serving(t, "--workers", "2")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; sleep 600 & sleep 600", "max_retries": 1})
	pid := w.runs(id).PID
	gone := w.enqueue(fields{"command": "echo up; exec sleep 600"})
	w.runs(gone)
	q.must("config", "set", "stop_timeout", "1s")
	runner, _ := q.freeze()
	for _, verb := range []string{"requeue", "cancel"} { // what was asked last holds
		if got := q.cli(verb, gone); got.code != 3 || !strings.Contains(got.err, "the job will be ended when the runner answers") {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	began := time.Now()
	if code := q.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v", took)
	}
	for _, p := range []int{pid, runner} {
		q.until(fmt.Sprintf("process %d is gone", p), 5*time.Second, func() bool { return syscall.Kill(p, 0) == syscall.ESRCH })
	}
	q.start("--workers", "0")
	w = q.dial()
	if j := w.show(id); j.State != "pending" || j.Attempts != 0 || len(j.History) != 1 || j.History[0].Reason != "stopped" {
		t.Errorf("got %+v, want one attempt that does not count", j)
	}
	if j := w.show(gone); j.State != "cancelled" {
		t.Errorf("what was cancelled: %+v", j)
	}
}

// A service that starts beside a runner that hangs starts jobs at once in another one.
func TestHungRunnerHoldsUpNoStart(t *testing.T) {
	q := serving(t, "--workers", "2")
	w := q.dial()
	w.runs(w.enqueue(fields{"command": "echo up; exec sleep 600"}))
	q.freeze()
	q.kill()
	q.start("--workers", "2")
	began := time.Now()
	q.dial().end(q.dial().enqueue(fields{"command": "true"}))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a job was done after %v", took)
	}
}

// What was sent to a runner that hung before it began it runs in another one, though the service
// has been started anew since and cannot ask that runner.
func TestHungRunnerKeepsNothingOverARestart(t *testing.T) {
	q := serving(t, "--workers", "2")
	w := q.dial()
	begun := w.enqueue(fields{"command": "echo up; " + q.waitFor("go"), "max_retries": 0})
	w.runs(begun)
	_, thaw := q.freeze()
	sent := w.enqueue(fields{"command": "echo other"})
	q.until("it is sent", 10*time.Second, func() bool { return q.reserved() == 1 })
	q.kill()
	q.start("--workers", "2")
	w = q.dial()
	if j := w.end(sent); j.Output != "other\n" || len(j.History) != 1 {
		t.Errorf("what was sent: %+v", j)
	}
	q.write("go", "")
	thaw()
	if j := w.end(begun); j.State != "completed" || len(j.History) != 1 {
		t.Errorf("what had begun: %+v", j)
	}
}

// Who waits for a time only does not wait longer for a service that hangs.
func TestHungServiceHoldsUpNoTimeout(t *testing.T) {
	q := serving(t, "--workers", "0")
	id := q.dial().enqueue(fields{"command": "true"})
	pid := q.cmd.Process.Pid
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) }) // so that it can be stopped
	syscall.Kill(pid, syscall.SIGSTOP)
	if got := q.quickly(10*time.Second, "wait", id, "--timeout", "1s"); got.code != 124 {
		t.Errorf("got %+v", got)
	}
}

// What prints runs, and gets a signal.
func TestSignalReachesWhatPrints(t *testing.T) {
	q := serving(t, "--workers", "2")
	w, reader := q.dial(), q.dial()
	for range 10 {
		id := w.enqueue(fields{"command": "trap 'exit 7' USR1; echo up; sleep 600 & wait", "max_retries": 0})
		reader.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"logs","params":{"id":%q,"follow":true}}`, id))
		reader.read()
		w.good("kill", fields{"id": id, "signal": "USR1"}, nil)
		if j := w.end(id); deref(j.ExitCode) != 7 {
			t.Errorf("got %+v", j)
		}
		reader.read() // its answer
	}
}

// A runner that dies while it is started or met ends no service: it is tried again, and
// jobs run.
func TestRunnersThatDieYoungEndNoService(t *testing.T) {
	t.Parallel()
	for n, wait := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond} {
		q := newQueue(t, "")
		killed := make(chan int)
		go func() { // ends after the fourth
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
		if j := w.end(w.enqueue(fields{"command": "echo hi", "max_retries": 9})); j.Output != "hi\n" {
			t.Errorf("%d: %+v", n, j)
		}
		if got := <-killed; got < 4 {
			t.Errorf("%d: %d runners were killed", n, got)
		}
	}
}

// What a damaged folder of a runner does not tell is found all the same: no tree lives on
// beside the repetition of its job. A runner that can be met keeps its job.
func TestDamagedFoldersLeaveNoTrees(t *testing.T) {
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
				continue // a living runner would be ended by its next write to it
			}
			t.Run(fmt.Sprintf("%s, runner dies %t", name, dies), func(t *testing.T) {
				q := serving(t, "--workers", "1")
				w := q.dial()
				id := w.enqueue(fields{"command": `echo up; [ "$QUEUECTL_ATTEMPT" = 1 ] && { setsid sleep 600 & ` + q.waitFor("go") + `; }; true`, "max_retries": 1})
				tree := w.runs(id).PID
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
					q.write("go", "")
				} else {
					q.until("the first tree is gone", 20*time.Second, func() bool { return syscall.Kill(tree, 0) == syscall.ESRCH })
				}
				if j := w.end(id); j.State != "completed" || len(j.History) != attempts || attempts == 2 && j.History[0].Reason != "lost" {
					t.Errorf("got %+v, want %d attempts, the first of two lost", j, attempts)
				}
			})
		}
	}
}

// A runner whose socket is removed makes it anew: the next service meets it, and its jobs
// go on.
func TestRunnerMakesItsSocketAnew(t *testing.T) {
	q := serving(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; " + q.waitFor("go") + "; echo end", "max_retries": 0})
	w.runs(id)
	q.kill()
	socks, err := filepath.Glob(q.path("runner/*/run.sock"))
	if err != nil || len(socks) != 1 || os.Remove(socks[0]) != nil {
		t.Fatal(socks, err)
	}
	q.start("--workers", "1")
	q.write("go", "")
	if j := q.dial().end(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("got %+v", j)
	}
}

// An attempt whose result could not be written to the journal, and was not stored either,
// is known to have been begun when the runner dies: it is lost, not run again without a
// trace. The files that such attempts have left are deleted.
func TestResultsWithoutAJournalAreLostNotForgotten(t *testing.T) {
	q := newQueue(t, "failpoint")
	t.Parallel()
	q.env = []string{"QUEUECTL_FAILPOINTS=nojournal"}
	q.start("--workers", "4")
	w := q.dial()
	specs := copies(40, fields{"command": "head -c 200000 /dev/zero; echo $QUEUECTL_JOB_ID >>" + q.path("ran") + "; " + q.waitFor("go"), "on_lost": "dead"})
	hold := w.enqueue(fields{"command": "echo up; " + q.waitFor("never")})
	w.runs(hold)
	ids := w.batch(specs)
	q.until("three run", 20*time.Second, func() bool { return strings.Count(q.text("ran"), "\n") == 3 })
	// The service is stopped while they run, so that no result is stored.
	syscall.Kill(q.cmd.Process.Pid, syscall.SIGSTOP)
	runner := q.runnerPid()
	files := func() []string {
		found, _ := filepath.Glob(q.path("runner/output/*"))
		return found
	}
	q.write("go", "")
	q.until("their outputs are written", 20*time.Second, func() bool { return len(files()) >= 3 })
	syscall.Kill(runner, syscall.SIGKILL)
	q.kill()
	q.env = nil
	q.write("runner/output/4000-7", "of an attempt that nobody knows")
	owned := func() int { return q.peek(`SELECT count(*) FROM attempts WHERE output_ref <> ''`) }
	if len(files()) < owned()+2 {
		t.Error("no output was left behind")
	}
	q.start("--workers", "2")
	w = q.dial()
	starts := map[string]int{}
	for _, id := range ids {
		w.end(id)
	}
	for line := range strings.FieldsSeq(q.text("ran")) {
		starts[line]++
	}
	for id, n := range starts {
		if n > 1 {
			t.Errorf("job %s was started %d times, with on_lost dead", id, n)
		}
	}
	q.until("what was left is deleted", 20*time.Second, func() bool {
		q.must("config", "set", "retention_output", "1g") // which wakes upkeep
		return len(files()) == owned()
	})
}

// Many changes at once all hold, and in the order in which they are stored.
func TestSettingsChangeInTurn(t *testing.T) {
	q := serving(t, "--workers", "2")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { q.dial().good("worker.start", fields{"count": 1}, nil) })
	}
	calls.Wait()
	if got := q.must("config", "get", "workers"); strings.TrimSpace(got) != "22" {
		t.Errorf("20 times one worker more than 2: %s", got)
	}
	for range 10 {
		for n := range 8 {
			calls.Go(func() {
				w := q.dial()
				w.good("config.set", fields{"key": "priority", "value": n + 1}, nil)
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

// The runners that a service has left are ended, with what they run, by service stop
// --runners: also where the database is too old for them, which no service starts on.
func TestRunnersOfAnOlderDatabase(t *testing.T) {
	q := serving(t, "--workers", "1")
	w := q.dial()
	if err := os.WriteFile(q.path("keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.must("backup", q.path("old"))
	id := w.enqueue(fields{"command": "echo up; sleep 600", "max_retries": 0})
	pid := w.runs(id).PID
	for range 3 { // each raises the epoch
		q.kill()
		q.start("--workers", "1")
	}
	q.kill()
	for _, name := range []string{"queuectl.db-wal", "queuectl.db-shm", "initialized"} { // the copy's own mark is none
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
	said := q.log.String()
	if code := q.cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(said, "restore") || !strings.Contains(said, "service stop --runners") {
		t.Errorf("exit code %d, said %q; want 78 and what to do", code, said)
	}
	if got := q.cli("service", "stop", "--runners"); got.code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.until("the job is gone", 5*time.Second, func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	q.start("--workers", "1")
	if j := q.dial().end(q.dial().enqueue(fields{"command": "echo hi"})); j.Output != "hi\n" {
		t.Errorf("afterwards: %+v", j)
	}
}

// A database that has lost its end has not come as far as its mark says; where that is gone too it is
// older than a living runner with a job of which it does not know. The service says so, and does not
// end what was acknowledged.
func TestADatabaseWithoutItsEndIsOlder(t *testing.T) {
	q := serving(t, "--workers", "1")
	w := q.dial()
	w.end(w.enqueue(fields{"command": "true"})) // a runner has been met
	wal := q.path("queuectl.db-wal")
	kept, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	pid := w.runs(w.enqueue(fields{"command": "echo up; sleep 600", "max_retries": 0})).PID
	q.kill()
	if err := os.Truncate(wal, kept.Size()); err != nil {
		t.Fatal(err)
	}
	if err := q.tryStart("--workers", "1"); err == nil || q.cmd.ProcessState.ExitCode() != 74 || !strings.Contains(q.log.String(), "acknowledged changes") {
		t.Errorf("on a database that has lost its end: %v, %v", q.cmd.ProcessState, err)
	}
	if err := os.Remove(q.path("initialized")); err != nil {
		t.Fatal(err)
	}
	if err := q.tryStart("--workers", "1"); err == nil {
		t.Error("a service started on a database that has lost its end")
	}
	said := q.log.String()
	if code := q.cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(said, "its newest job is job 2, but the newest job of this queue is job 1") || !strings.Contains(said, "service stop --runners") {
		t.Errorf("exit code %d, said %q; want 78 and what to do", code, said)
	}
	if !lives(pid) {
		t.Error("the job was ended")
	}
	if got := q.cli("service", "stop", "--runners"); got.code != 0 {
		t.Fatalf("service stop --runners: %+v", got)
	}
	q.start("--workers", "1")
}

// If the service is killed while a file of jobs is being sent, nothing is stored and the client says so, whether a
// request was under way at that time or the next one meets the new service.
func TestServiceKilledUnderAnUpload(t *testing.T) {
	for name, jobs := range map[string]int{"a request under way": 3000, "between two requests": 1001} {
		t.Run(name, func(t *testing.T) {
			q := serving(t, "--workers", "0")
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
			q.until("a part is stored", 20*time.Second, func() bool { return q.peek(`SELECT count(*) FROM frames`) > 0 })
			q.kill()
			q.start("--workers", "0")
			in.Write([]byte(lines)) // the client may have ended already
			in.Close()
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(errs.String(), "nothing was stored; run the same command again") {
				t.Errorf("exit code %d: %s", code, errs)
			}
			if n := q.dial().counts()["pending"]; n != 0 {
				t.Errorf("%d jobs are stored", n)
			}
		})
	}
}
