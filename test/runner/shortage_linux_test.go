package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// injectShortage makes the given system calls of the runner and its children fail until the returned function is
// called. It uses strace, which writes a line with a timestamp to the given file for each failure.
func injectShortage(q *testrig.Queue, calls, fault, file string) (stop func()) {
	q.Helper()
	stderrFile := q.Path(file + ".said")
	stderr, err := os.Create(stderrFile)
	if err != nil {
		q.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command("strace", "-f", "-ttt", "-p", strconv.Itoa(q.RunnerPid()), "-o", q.Path(file),
		"-e", "trace="+calls, "-e", "inject="+calls+":error="+fault)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	stop = func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	q.Cleanup(stop)
	q.WaitUntil("strace is attached", 10*time.Second, func() bool {
		return strings.Contains(q.ReadFile(file+".said"), " attached")
	})
	return stop
}

// injectedPattern matches the line that strace writes for a failure. The group is the time.
var injectedPattern = regexp.MustCompile(`(?m)^\d+ +(\d+\.\d+) .*\(INJECTED\)$`)

// injectedFailures returns the times of the failures that injectShortage has caused and recorded in a file.
func injectedFailures(q *testrig.Queue, file string) (times []time.Time) {
	q.Helper()
	for _, m := range injectedPattern.FindAllStringSubmatch(q.ReadFile(file), -1) {
		seconds, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			q.Fatal(err)
		}
		times = append(times, time.UnixMicro(int64(seconds*1e6)))
	}
	return times
}

// If the machine lacks a resource that a job needs in order to start, the job returns to the queue. The attempt
// does not count, and the job starts again after a pause.
func TestShortageUsesNoAttempt(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	for _, c := range []struct{ name, calls, fault, stdin string }{
		{"no process left", "clone,clone3", "EAGAIN", ""},
		{"no memory for a process", "clone,clone3", "ENOMEM", ""},
		{"no descriptor in the runner", "pipe2", "EMFILE", ""},
		{"no descriptor in the machine", "pipe2", "ENFILE", ""},
		{"no memory for its input", "memfd_create", "ENOMEM", "fed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := testrig.StartQueue(t, "--workers", "32")
			w := q.Dial()
			for _, id := range w.Batch(copies(32, testrig.Fields{"argv": []string{"sleep", "0.2"}})) {
				w.WaitEnded(id) // the runner then has all its threads, so only the job needs clone below
			}
			q.MustCLI("worker", "scale", "1")
			stop := injectShortage(q, c.calls, c.fault, "trace")
			started := time.Now()
			id := w.Enqueue(testrig.Fields{"command": "echo try $QUEUECTL_ATTEMPT; cat", "max_retries": 0, "stdin": c.stdin})
			var j testrig.Job
			q.WaitUntil("the job has met the shortage", 10*time.Second, func() bool {
				j = w.Show(id)
				return j.Reason != "" || j.State == "completed"
			})
			if j.State != "pending" || j.Reason != "shortage" || j.Attempts != 0 || len(j.History) != 0 || j.Error == "" {
				t.Errorf("the job during the shortage: %+v", j)
			}
			stop()
			j = w.WaitEnded(id)
			if j.State != "completed" || j.Reason != "" || j.Attempts != 1 || len(j.History) != 1 ||
				j.Output != "try 1\n"+c.stdin {
				t.Fatalf("the job after the shortage: %+v", j)
			}
			if waited := j.History[0].StartedAt.Sub(started); waited < 990*time.Millisecond {
				t.Errorf("the job was tried again after %v, want a pause of 1s", waited)
			}
		})
	}
}

// If a runner reaches its file size limit, it stores as much of a job's output as it can, as on a full disk,
// and keeps running. The jobs have the default handling of SIGXFSZ, the signal for exceeding the limit.
func TestLimitOfFileSizesEndsNoRunner(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	w.WaitEnded(w.Enqueue(testrig.Fields{"argv": []string{"true"}}))
	runner := q.RunnerPid()
	lift := setLimit(t, runner, unix.RLIMIT_FSIZE, 100_000)
	j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "head -c 300000 /dev/zero | tr '\\0' x; echo end",
		"max_retries": 0}))
	if j.State != "completed" || len(j.History) != 1 || j.History[0].DroppedBytes == 0 ||
		!strings.HasPrefix(j.Output, "xxx") {
		t.Errorf("a job that prints more: %s, %+v, output of %d bytes", j.State, j.History, len(j.Output))
	}
	if j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "kill -XFSZ $$; echo lives",
		"max_retries": 0})); testrig.OrMinusOne(j.Signal) != int(unix.SIGXFSZ) {
		t.Errorf("a job that gets the signal: %+v", j)
	}
	lift()
	if got := q.RunnerPid(); got != runner {
		t.Errorf("runner %d has died, %d is another", runner, got)
	}
	if j := w.WaitEnded(w.Enqueue(
		testrig.Fields{"command": "head -c 300000 /dev/zero | tr '\\0' x"})); j.State != "completed" ||
		j.History[0].DroppedBytes != 0 {
		t.Errorf("without the limit: %+v", j.History)
	}
}

// copies returns n copies of a spec.
func copies(n int, spec testrig.Fields) (specs []testrig.Fields) {
	for range n {
		specs = append(specs, spec)
	}
	return specs
}

// If the machine lacks a resource, the service does not try to start one waiting job after another. After the
// first failed start, it delays only that job. After each further failed start, it starts nothing for a
// while, longer each time. Waiting jobs lose no attempts.
func TestShortageSlowsThePool(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	stop := injectShortage(q, "pipe2", "EMFILE", "trace")
	ids := w.Batch(copies(8, testrig.Fields{"argv": []string{"true"}, "max_retries": 0}))
	q.WaitUntil("three starts have failed", 10*time.Second, func() bool { return len(injectedFailures(q, "trace")) >= 3 })
	stop()
	failed := injectedFailures(q, "trace")
	firstStart := time.Now().Add(time.Hour)
	for _, id := range ids {
		j := w.WaitEnded(id)
		if j.State != "completed" || j.Attempts != 1 || len(j.History) != 1 {
			t.Fatalf("a job that waited during the shortage: %+v", j)
		}
		if started := j.History[0].StartedAt; started.Before(firstStart) {
			firstStart = started
		}
	}
	if len(failed) != 3 || failed[1].Sub(failed[0]) > time.Second ||
		!testrig.IsNear(failed[2].Sub(failed[1]), time.Second, 5*time.Second) ||
		!testrig.IsNear(firstStart.Sub(failed[2]), 2*time.Second, 5*time.Second) {
		t.Errorf("failed at %v, then started at %v; want pauses of 1s and 2s after the second and the third", failed,
			firstStart)
	}
}

// A runner without free descriptors starts no jobs, and no job loses an attempt for that reason. Running jobs
// continue, and their results and outputs are stored.
func TestRunnerOutOfDescriptors(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	running := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end",
		"max_retries": 0})
	w.WaitRunning(running)
	pid := q.RunnerPid()
	lift := setLimit(t, pid, unix.RLIMIT_NOFILE, freeDescriptor(pid))
	id := w.Enqueue(testrig.Fields{"command": "echo hi", "max_retries": 0})
	q.WaitUntil("the job has met the shortage", 10*time.Second, func() bool { return w.Show(id).Reason != "" })
	if j := w.Show(id); j.State != "pending" || j.Reason != "shortage" || j.Attempts != 0 {
		t.Errorf("without descriptors: %+v", j)
	}
	q.WriteFile("go", "")
	if j := w.WaitEnded(running); j.State != "completed" || j.Output != "up\nend\n" {
		t.Errorf("the running job: %+v", j)
	}
	lift()
	if j := w.WaitEnded(id); j.State != "completed" || j.Attempts != 1 || len(j.History) != 1 || j.Output != "hi\n" {
		t.Errorf("with descriptors: %+v", j)
	}
}

// freeDescriptor returns the lowest free descriptor number of a process. The next file that the process opens
// gets this number.
func freeDescriptor(pid int) (n uint64) {
	for {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, n)); err != nil {
			return n
		}
		n++
	}
}

// setLimit sets a soft limit of a process and returns a function that restores the previous limit.
func setLimit(t *testing.T, pid, resource int, limit uint64) (restore func()) {
	t.Helper()
	var previous unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &previous); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Prlimit(pid, resource, &l, nil); err != nil {
			t.Error(err)
		}
	}
	set(unix.Rlimit{Cur: limit, Max: previous.Max})
	return func() { set(previous) }
}

// If a job cannot start because of a mistake in the job, such as a missing program, the start counts as an
// attempt. The job gets the exit code that a shell would return, and an error with the reason. If its program
// cannot be executed, the job is not retried, except if another process has the program open for writing.
func TestJobsOwnFaultUsesAttempts(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.Dial()
	program := func(name, text string) string { return q.Install(q.WriteFile(name+".text", text), name) }
	if err := errors.Join(os.Mkdir(q.Path("bin"), 0o755), os.Mkdir(q.Path("somedir"), 0o755),
		os.Symlink("loop", q.Path("loop"))); err != nil {
		t.Fatal(err)
	}
	q.WriteFile("bin/tool", "#!/bin/sh\n") // this file is not executable
	const beingWritten = "being written"
	type row struct {
		name     string
		spec     testrig.Fields
		code     int
		wantText string
	}
	cases := []row{
		{"garbage", testrig.Fields{"argv": []string{program("garbage", "\x00\x01\x02 no program\n")}}, 126,
			"exec format error"},
		{"interpreter missing", testrig.Fields{"argv": []string{program("script", "#!/no/such/interpreter\n")}}, 127,
			`interpreter "/no/such/interpreter": no such file`},
		{"not executable, in PATH", testrig.Fields{"argv": []string{"tool"}, "env": testrig.Fields{"PATH": q.Path("bin")}},
			126,
			"permission denied"},
		{"a directory", testrig.Fields{"argv": []string{q.Path("somedir")}}, 126, "permission denied"},
		{"links in a ring", testrig.Fields{"argv": []string{q.Path("loop")}}, 126, "symbolic links"},
		{"name too long", testrig.Fields{"argv": []string{"/" + strings.Repeat("x", 5000)}}, 126, "name too long"},
		{"below a file", testrig.Fields{"argv": []string{q.Path("garbage/x")}}, 126, "not a directory"},
		{"cwd is a file", testrig.Fields{"command": "true", "cwd": q.Path("garbage")}, 126, "not a directory"},
	}
	busy := program("busy", "#!/bin/sh\nexit 0\n")
	writer, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	// This case is tested only if the kernel refuses to run a program that is open for writing. Not all kernels
	// do.
	if err := exec.Command(busy).Run(); errors.Is(err, syscall.ETXTBSY) {
		cases = append(cases, row{beingWritten, testrig.Fields{"argv": []string{busy}}, 126, "text file busy"})
	}
	var ids []string
	for _, c := range cases {
		c.spec["max_attempts"], c.spec["backoff_base"] = 2, 0.02
		ids = append(ids, w.Enqueue(c.spec))
	}
	for i, c := range cases {
		attempts := 1
		if c.name == beingWritten {
			attempts = 2
		}
		checkFailedStartsCounted(t, w.WaitEnded(ids[i]), c.name, startFailure{c.code, attempts, c.wantText})
	}
}

// After fork, the child process uses programs, directories and inputs of the job's user, who can make the
// kernel return any error for them. So any error between fork and exec counts as an attempt of the job.
func TestErrorsAfterForkUseAttempts(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	for _, c := range []struct{ calls, fault, wantText string }{
		{"execve", "EAGAIN", "resource temporarily unavailable"},
		{"execve", "ENOMEM", "cannot allocate memory"},
		{"chdir", "EMFILE", "too many open files"},
	} {
		stop := injectShortage(q, c.calls, c.fault, c.fault)
		j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "echo hi", "max_attempts": 2, "backoff_base": 0.02}))
		stop()
		checkFailedStartsCounted(t, j, c.calls+" "+c.fault, startFailure{126, 2, c.wantText})
	}
}

// startFailure is the expected result of a job that cannot start and is itself at fault.
type startFailure struct {
	code, attempts int
	stderr         string
}

// checkFailedStartsCounted checks that a job is dead with the expected result, and that its failed starts counted as
// attempts.
func checkFailedStartsCounted(t *testing.T, j testrig.Job, name string, want startFailure) {
	t.Helper()
	reason := map[int]string{126: "not_runnable", 127: "not_found"}[want.code]
	if j.State != "dead" || j.Reason != reason || testrig.OrMinusOne(j.ExitCode) != want.code ||
		j.Attempts != want.attempts ||
		len(j.History) != want.attempts || !strings.Contains(j.Error, want.stderr) {
		t.Errorf("%s: %+v; want dead, %+v", name, j, want)
	}
}

// The kernel limits the arguments of a program to a quarter of the stack limit of the process that starts it.
// If a job's arguments exceed only this limit, the failed start counts as an attempt. Otherwise the job would
// be retried forever.
func TestTooLongArgumentsUseAttempts(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	argv := []string{"true"}
	for range 4 {
		argv = append(argv, strings.Repeat("x", 100<<10))
	}
	spec := testrig.Fields{"argv": argv, "max_attempts": 2, "backoff_base": 0.02}
	lift := setLimit(t, q.RunnerPid(), unix.RLIMIT_STACK, 1<<20)
	checkFailedStartsCounted(t, w.WaitEnded(w.Enqueue(spec)), "1 MiB of stack",
		startFailure{126, 2, "argument list too long"})
	if j := w.WaitEnded(w.Enqueue(testrig.Fields{"command": "echo hi"})); j.Output != "hi\n" {
		t.Errorf("few arguments: %+v", j)
	}
	lift()
	if j := w.WaitEnded(w.Enqueue(spec)); j.State != "completed" {
		t.Errorf("with the usual stack: %+v", j)
	}
}

// If a runner lacks the descriptors to add workers, it adds the workers once descriptors are free. Waiting jobs
// then run.
func TestWorkersAreCreatedAfterShortage(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.Dial()
	pid := q.RunnerPid()
	lift := setLimit(t, pid, unix.RLIMIT_NOFILE, freeDescriptor(pid))
	id := w.Enqueue(testrig.Fields{"command": "echo hi", "max_retries": 0})
	q.MustCLI("worker", "scale", "1")
	q.WaitUntil("the shortage has prevented a start of the job",
		10*time.Second, func() bool { return w.Show(id).Reason == "shortage" })
	lift()
	if j := w.WaitEnded(id); j.State != "completed" || j.Attempts != 1 {
		t.Errorf("the job after the shortage: %+v", j)
	}
}

// If a runner has no free descriptor for a connection to the next service, the service still starts without
// delay. It connects to the runner, and takes over the runner's jobs, once the runner has a free descriptor.
func TestRunnerIsAdoptedAfterShortage(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end", "max_retries": 0})
	w.WaitRunning(id)
	pid := q.RunnerPid()
	q.Kill()
	lift := func() {}
	q.WaitUntil("the runner takes no connection", 60*time.Second, func() bool {
		lift()
		lift = setLimit(t, pid, unix.RLIMIT_NOFILE, freeDescriptor(pid))
		q.Start("--workers", "2")
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			if strings.Contains(q.MustCLI("status"), fmt.Sprintf("the runner with pid %d does not answer", pid)) {
				return true
			}
			if strings.Contains(q.MustCLI("worker", "list"), "busy") {
				break // the runner still had the descriptor of its old connection when the test set the limit
			}
		}
		q.Kill()
		return false
	})
	if j := q.Dial().WaitEnded(q.Dial().Enqueue(testrig.Fields{"command": "echo during"})); j.Output != "during\n" {
		t.Errorf("a job during the shortage: %+v", j)
	}
	lift()
	q.WriteFile("go", "")
	if j := q.Dial().WaitEnded(id); j.State != "completed" || j.Output != "up\nend\n" || len(j.History) != 1 {
		t.Errorf("the job of the adopted runner: %+v", j)
	}
}

// If a job with its own umask starts while the machine can create no process, the runner keeps running and its
// running jobs are not lost.
func TestShortageWithAnotherUmask(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.Dial()
	running := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; echo end",
		"max_retries": 0})
	w.WaitRunning(running)
	runner := q.RunnerPid()
	stop := injectShortage(q, "clone,clone3", "EAGAIN", "trace")
	id := w.Batch(copies(3, testrig.Fields{"argv": []string{"true"}, "umask": "027", "max_retries": 0}))[0]
	q.WaitUntil("a job has met the shortage", 10*time.Second, func() bool {
		j := w.Show(id)
		return j.Reason != "" || j.State == "completed"
	})
	stop()
	if got := q.RunnerPid(); got != runner {
		t.Errorf("runner %d has died, %d is another", runner, got)
	}
	q.WriteFile("go", "")
	if j := w.WaitEnded(running); j.State != "completed" {
		t.Errorf("the running job: %+v", j)
	}
}

// The service can send a whole block of jobs to a runner. If the starts of all these jobs fail because of one
// shortage, the service pauses once, not once per job.
func TestOneShortageCausesOnePause(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.Dial()
	specs := copies(60, testrig.Fields{"argv": []string{"true"}, "max_retries": 0})
	for _, id := range w.Batch(specs) { // these jobs are so short that the service later sends many jobs together
		w.WaitEnded(id)
	}
	stop := injectShortage(q, "pipe2", "EMFILE", "trace")
	ids := w.Batch(specs)
	q.WaitUntil("a block has failed", 10*time.Second, func() bool { return len(injectedFailures(q, "trace")) >= 8 })
	stop()
	started := time.Now()
	for _, id := range ids {
		w.WaitEnded(id)
	}
	if elapsed := time.Since(started); elapsed > 8*time.Second {
		t.Errorf("the pool started no job for %v after one shortage", elapsed)
	}
}
