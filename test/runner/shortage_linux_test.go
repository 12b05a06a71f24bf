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

// injectSystemCallFailures makes the given system calls of the runner and its children fail until the returned function
// is called. It uses strace, which writes a line with a timestamp to the given file for each failure.
func injectSystemCallFailures(q *testrig.Harness, systemCalls, fault, traceFile string) (stopFailures func()) {
	q.Helper()
	stderrFile := q.Path(traceFile + ".said")
	stderr, err := os.Create(stderrFile)
	if err != nil {
		q.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command("strace", "-f", "-ttt", "-p", strconv.Itoa(q.OnlyRunnerPID()), "-o", q.Path(traceFile),
		"-e", "trace="+systemCalls, "-e", "inject="+systemCalls+":error="+fault)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	stopFailures = func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	q.Cleanup(stopFailures)
	q.WaitUntil("strace is attached", 10*time.Second, func() bool {
		return strings.Contains(q.ReadFile(traceFile+".said"), " attached")
	})
	return stopFailures
}

// injectedFailurePattern matches the line that strace writes for a failure. The group is the time.
var injectedFailurePattern = regexp.MustCompile(`(?m)^\d+ +(\d+\.\d+) .*\(INJECTED\)$`)

// injectedFailureTimes returns the times of the failures that injectSystemCallFailures has caused, as recorded in
// traceFile.
func injectedFailureTimes(q *testrig.Harness, traceFile string) (times []time.Time) {
	q.Helper()
	for _, m := range injectedFailurePattern.FindAllStringSubmatch(q.ReadFile(traceFile), -1) {
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
func TestResourceShortageUsesNoAttempt(t *testing.T) {
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
			w := q.DialService()
			for _, id := range w.EnqueueBatch(repeatSpec(32, testrig.JSONFields{"argv": []string{"sleep", "0.2"}})) {
				w.WaitJobEnded(id) // the runner then has all its threads; from here on, only the start of a job needs clone
			}
			q.MustRunCLI("worker", "scale", "1")
			stop := injectSystemCallFailures(q, c.calls, c.fault, "trace")
			started := time.Now()
			id := w.Enqueue(testrig.JSONFields{"command": "echo try $QUEUECTL_ATTEMPT; cat", "max_retries": 0, "stdin": c.stdin})
			var j testrig.Job
			q.WaitUntil("the job has met the shortage", 10*time.Second, func() bool {
				j = w.ShowJob(id)
				return j.Reason != "" || j.State == "completed"
			})
			if j.State != "pending" || j.Reason != "shortage" || j.AttemptCount != 0 || len(j.AttemptHistory) != 0 ||
				j.Error == "" {
				t.Errorf("the job during the shortage: %+v", j)
			}
			stop()
			j = w.WaitJobEnded(id)
			if j.State != "completed" || j.Reason != "" || j.AttemptCount != 1 || len(j.AttemptHistory) != 1 ||
				j.Output != "try 1\n"+c.stdin {
				t.Fatalf("the job after the shortage: %+v", j)
			}
			if waited := j.AttemptHistory[0].StartedAt.Sub(started); waited < 990*time.Millisecond {
				t.Errorf("the job was tried again after %v, want a pause of 1s", waited)
			}
		})
	}
}

// If a runner reaches its file size limit, it stores as much of a job's output as it can, as on a full disk,
// and keeps running. The jobs have the default handling of SIGXFSZ, the signal for exceeding the limit.
func TestFileSizeLimitEndsNoRunner(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"argv": []string{"true"}}))
	runner := q.OnlyRunnerPID()
	lift := setProcessLimit(t, runner, unix.RLIMIT_FSIZE, 100_000)
	j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "head -c 300000 /dev/zero | tr '\\0' x; echo end",
		"max_retries": 0}))
	if j.State != "completed" || len(j.AttemptHistory) != 1 || j.AttemptHistory[0].DroppedBytes == 0 ||
		!strings.HasPrefix(j.Output, "xxx") {
		t.Errorf("a job that prints more: %s, %+v, output of %d bytes", j.State, j.AttemptHistory, len(j.Output))
	}
	if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "kill -XFSZ $$; echo lives",
		"max_retries": 0})); testrig.ValueOrMinusOne(j.Signal) != int(unix.SIGXFSZ) {
		t.Errorf("a job that gets the signal: %+v", j)
	}
	lift()
	if got := q.OnlyRunnerPID(); got != runner {
		t.Errorf("runner %d has died, %d is another", runner, got)
	}
	if j := w.WaitJobEnded(w.Enqueue(
		testrig.JSONFields{"command": "head -c 300000 /dev/zero | tr '\\0' x"})); j.State != "completed" ||
		j.AttemptHistory[0].DroppedBytes != 0 {
		t.Errorf("without the limit: %+v", j.AttemptHistory)
	}
}

// repeatSpec returns n copies of a spec.
func repeatSpec(copyCount int, spec testrig.JSONFields) (specs []testrig.JSONFields) {
	for range copyCount {
		specs = append(specs, spec)
	}
	return specs
}

// If the machine lacks a resource, the service does not try to start one waiting job after another. After the
// first failed start, it delays only that job. After each further failed start, it starts nothing for a
// while, longer each time. Waiting jobs lose no attempts.
func TestResourceShortageSlowsJobStarts(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	stop := injectSystemCallFailures(q, "pipe2", "EMFILE", "trace")
	ids := w.EnqueueBatch(repeatSpec(8, testrig.JSONFields{"argv": []string{"true"}, "max_retries": 0}))
	q.WaitUntil("three starts have failed", 10*time.Second,
		func() bool { return len(injectedFailureTimes(q, "trace")) >= 3 })
	stop()
	failed := injectedFailureTimes(q, "trace")
	firstStart := time.Now().Add(time.Hour)
	for _, id := range ids {
		j := w.WaitJobEnded(id)
		if j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 1 {
			t.Fatalf("a job that waited during the shortage: %+v", j)
		}
		if started := j.AttemptHistory[0].StartedAt; started.Before(firstStart) {
			firstStart = started
		}
	}
	if len(failed) != 3 || failed[1].Sub(failed[0]) > time.Second ||
		!testrig.IsDurationNear(failed[2].Sub(failed[1]), time.Second, 5*time.Second) ||
		!testrig.IsDurationNear(firstStart.Sub(failed[2]), 2*time.Second, 5*time.Second) {
		t.Errorf("failed at %v, then started at %v; want pauses of 1s and 2s after the second and the third", failed,
			firstStart)
	}
}

// A runner without free descriptors starts no jobs, and no job loses an attempt for that reason. Running jobs
// continue, and their results and outputs are stored.
func TestRunnerWithoutDescriptorsStartsNoJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	running := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(running)
	pid := q.OnlyRunnerPID()
	lift := setProcessLimit(t, pid, unix.RLIMIT_NOFILE, lowestFreeDescriptor(pid))
	id := w.Enqueue(testrig.JSONFields{"command": "echo hi", "max_retries": 0})
	q.WaitUntil("the job has met the shortage", 10*time.Second, func() bool { return w.ShowJob(id).Reason != "" })
	if j := w.ShowJob(id); j.State != "pending" || j.Reason != "shortage" || j.AttemptCount != 0 {
		t.Errorf("without descriptors: %+v", j)
	}
	q.WriteFile("go", "")
	if j := w.WaitJobEnded(running); j.State != "completed" || j.Output != "up\nend\n" {
		t.Errorf("the running job: %+v", j)
	}
	lift()
	if j := w.WaitJobEnded(id); j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 1 ||
		j.Output != "hi\n" {
		t.Errorf("with descriptors: %+v", j)
	}
}

// lowestFreeDescriptor returns the lowest free descriptor number of a process. The next file that the process opens
// gets this number.
func lowestFreeDescriptor(pid int) (n uint64) {
	for {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, n)); err != nil {
			return n
		}
		n++
	}
}

// setProcessLimit sets a soft limit of a process and returns a function that restores the previous limit.
func setProcessLimit(t *testing.T, pid, resource int, limit uint64) (restore func()) {
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
func TestUnstartableJobUsesAttempts(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	program := func(name, text string) string { return q.InstallProgram(q.WriteFile(name+".text", text), name) }
	if err := errors.Join(os.Mkdir(q.Path("bin"), 0o755), os.Mkdir(q.Path("somedir"), 0o755),
		os.Symlink("loop", q.Path("loop"))); err != nil {
		t.Fatal(err)
	}
	q.WriteFile("bin/tool", "#!/bin/sh\n") // the mode of this file does not permit execution
	const beingWritten = "being written"
	type row struct {
		name     string
		spec     testrig.JSONFields
		code     int
		wantText string
	}
	cases := []row{
		{"garbage", testrig.JSONFields{"argv": []string{program("garbage", "\x00\x01\x02 no program\n")}}, 126,
			"exec format error"},
		{"interpreter missing", testrig.JSONFields{"argv": []string{program("script", "#!/no/such/interpreter\n")}}, 127,
			`interpreter "/no/such/interpreter": no such file`},
		{"not executable, in PATH", testrig.JSONFields{"argv": []string{"tool"},
			"env": testrig.JSONFields{"PATH": q.Path("bin")}},
			126,
			"permission denied"},
		{"a directory", testrig.JSONFields{"argv": []string{q.Path("somedir")}}, 126, "permission denied"},
		{"links in a ring", testrig.JSONFields{"argv": []string{q.Path("loop")}}, 126, "symbolic links"},
		{"name too long", testrig.JSONFields{"argv": []string{"/" + strings.Repeat("x", 5000)}}, 126, "name too long"},
		{"below a file", testrig.JSONFields{"argv": []string{q.Path("garbage/x")}}, 126, "not a directory"},
		{"cwd is a file", testrig.JSONFields{"command": "true", "cwd": q.Path("garbage")}, 126, "not a directory"},
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
		cases = append(cases, row{beingWritten, testrig.JSONFields{"argv": []string{busy}}, 126, "text file busy"})
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
		checkFailedStartsCountAsAttempts(t, w.WaitJobEnded(ids[i]), c.name, startFailure{c.code, attempts, c.wantText})
	}
}

// After fork, the child process uses programs, directories and inputs of the job's user, who can make the
// kernel return any error for them. So any error between fork and exec counts as an attempt of the job.
func TestStartErrorsAfterForkUseAttempts(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	for _, c := range []struct{ calls, fault, wantText string }{
		{"execve", "EAGAIN", "resource temporarily unavailable"},
		{"execve", "ENOMEM", "cannot allocate memory"},
		{"chdir", "EMFILE", "too many open files"},
	} {
		stop := injectSystemCallFailures(q, c.calls, c.fault, c.fault)
		j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo hi", "max_attempts": 2, "backoff_base": 0.02}))
		stop()
		checkFailedStartsCountAsAttempts(t, j, c.calls+" "+c.fault, startFailure{126, 2, c.wantText})
	}
}

// startFailure is the expected result of a job that cannot start because of a mistake in the job.
type startFailure struct {
	exitCode, attempts int
	stderr             string
}

// checkFailedStartsCountAsAttempts checks that a job is dead with the expected result, and that its failed starts
// counted as attempts.
func checkFailedStartsCountAsAttempts(t *testing.T, j testrig.Job, caseName string, want startFailure) {
	t.Helper()
	reason := map[int]string{126: "not_runnable", 127: "not_found"}[want.exitCode]
	if j.State != "dead" || j.Reason != reason || testrig.ValueOrMinusOne(j.ExitCode) != want.exitCode ||
		j.AttemptCount != want.attempts ||
		len(j.AttemptHistory) != want.attempts || !strings.Contains(j.Error, want.stderr) {
		t.Errorf("%s: %+v; want dead, %+v", caseName, j, want)
	}
}

// The kernel limits the arguments of a program to a quarter of the stack limit of the process that starts it. If a
// job's arguments exceed only this limit of the runner, the failed start counts as an attempt. Otherwise the job would
// be retried forever.
func TestTooLongArgumentsUseAttempts(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	argv := []string{"true"}
	for range 4 {
		argv = append(argv, strings.Repeat("x", 100<<10))
	}
	spec := testrig.JSONFields{"argv": argv, "max_attempts": 2, "backoff_base": 0.02}
	lift := setProcessLimit(t, q.OnlyRunnerPID(), unix.RLIMIT_STACK, 1<<20)
	checkFailedStartsCountAsAttempts(t, w.WaitJobEnded(w.Enqueue(spec)), "1 MiB of stack",
		startFailure{126, 2, "argument list too long"})
	if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo hi"})); j.Output != "hi\n" {
		t.Errorf("few arguments: %+v", j)
	}
	lift()
	if j := w.WaitJobEnded(w.Enqueue(spec)); j.State != "completed" {
		t.Errorf("with the usual stack: %+v", j)
	}
}

// If a runner lacks the descriptors to add workers, it adds the workers once descriptors are free. Waiting jobs
// then run.
func TestWorkersAreAddedAfterDescriptorShortage(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	pid := q.OnlyRunnerPID()
	lift := setProcessLimit(t, pid, unix.RLIMIT_NOFILE, lowestFreeDescriptor(pid))
	id := w.Enqueue(testrig.JSONFields{"command": "echo hi", "max_retries": 0})
	q.MustRunCLI("worker", "scale", "1")
	q.WaitUntil("the shortage has prevented a start of the job",
		10*time.Second, func() bool { return w.ShowJob(id).Reason == "shortage" })
	lift()
	if j := w.WaitJobEnded(id); j.State != "completed" || j.AttemptCount != 1 {
		t.Errorf("the job after the shortage: %+v", j)
	}
}

// If a runner has no free descriptor for a connection to the next service, the service still starts without
// delay. It connects to the runner, and takes over the runner's jobs, once the runner has a free descriptor.
func TestRunnerIsAdoptedAfterDescriptorShortage(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(id)
	pid := q.OnlyRunnerPID()
	q.KillService()
	lift := func() {}
	q.WaitUntil("the runner takes no connection", 60*time.Second, func() bool {
		lift()
		lift = setProcessLimit(t, pid, unix.RLIMIT_NOFILE, lowestFreeDescriptor(pid))
		q.StartService("--workers", "2")
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			if strings.Contains(q.MustRunCLI("status"), fmt.Sprintf("the runner with pid %d does not answer", pid)) {
				return true
			}
			if strings.Contains(q.MustRunCLI("worker", "list"), "busy") {
				break // the runner still had the descriptor of its old connection when the test set the limit
			}
		}
		q.KillService()
		return false
	})
	j := q.DialService().WaitJobEnded(q.DialService().Enqueue(testrig.JSONFields{"command": "echo during"}))
	if j.Output != "during\n" {
		t.Errorf("a job during the shortage: %+v", j)
	}
	lift()
	q.WriteFile("go", "")
	if j := q.DialService().WaitJobEnded(id); j.State != "completed" || j.Output != "up\nend\n" ||
		len(j.AttemptHistory) != 1 {
		t.Errorf("the job of the adopted runner: %+v", j)
	}
}

// If a job with its own umask starts while the machine can create no process, the runner keeps running and its
// running jobs are not lost.
func TestProcessShortageWithUmaskKeepsRunner(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	running := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") + "; echo end",
		"max_retries": 0})
	w.WaitJobRunning(running)
	runner := q.OnlyRunnerPID()
	stop := injectSystemCallFailures(q, "clone,clone3", "EAGAIN", "trace")
	id := w.EnqueueBatch(repeatSpec(3, testrig.JSONFields{"argv": []string{"true"}, "umask": "027", "max_retries": 0}))[0]
	q.WaitUntil("a job has met the shortage", 10*time.Second, func() bool {
		j := w.ShowJob(id)
		return j.Reason != "" || j.State == "completed"
	})
	stop()
	if got := q.OnlyRunnerPID(); got != runner {
		t.Errorf("runner %d has died, %d is another", runner, got)
	}
	q.WriteFile("go", "")
	if j := w.WaitJobEnded(running); j.State != "completed" {
		t.Errorf("the running job: %+v", j)
	}
}

// The service can send a whole block of jobs to a runner. If the starts of all these jobs fail because of one
// shortage, the service pauses once, not once per job.
func TestOneShortageCausesOneStartPause(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	specs := repeatSpec(60, testrig.JSONFields{"argv": []string{"true"}, "max_retries": 0})
	// These jobs are so short that the service will later send many jobs to the runner together.
	for _, id := range w.EnqueueBatch(specs) {
		w.WaitJobEnded(id)
	}
	stop := injectSystemCallFailures(q, "pipe2", "EMFILE", "trace")
	ids := w.EnqueueBatch(specs)
	q.WaitUntil("a block has failed", 10*time.Second, func() bool { return len(injectedFailureTimes(q, "trace")) >= 8 })
	stop()
	started := time.Now()
	for _, id := range ids {
		w.WaitJobEnded(id)
	}
	if elapsed := time.Since(started); elapsed > 8*time.Second {
		t.Errorf("the pool started no job for %v after one shortage", elapsed)
	}
}
