package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// After the first Ctrl-C, a private run lets its running jobs finish. The second Ctrl-C ends these jobs and returns
// them to the queue. When the user starts the same command again, the run continues.
func TestInterruptedPrivateRunContinues(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	const jobs = "touch started; while ! test -e go; do sleep 0.01; done; echo 1 | tee -a effects\necho 2 >>effects\n"
	var out testrig.LockedBuffer
	start := func() (cmd *exec.Cmd, errs *testrig.LockedBuffer) {
		os.Remove(filepath.Join(p.WorkDir, "started"))
		cmd, errs = p.NewPrivateRunCommand(jobs, "--lines", "-", "--workers", "1"), &testrig.LockedBuffer{}
		cmd.Stdout, cmd.Stderr = &out, errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.WaitUntil("a job runs", 20*time.Second, func() bool {
			_, err := os.Stat(filepath.Join(p.WorkDir, "started"))
			return err == nil
		})
		return cmd, errs
	}
	cmd, errs := start()
	interrupt := func() {
		cmd.Process.Signal(syscall.SIGINT)
		p.WaitUntil("it confirms the interrupt", 20*time.Second, func() bool {
			return strings.Contains(errs.String(), "running jobs may finish")
		})
	}
	interrupt()
	cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Fatalf("the run ended after two Ctrl-C with %v\n%s", err, errs)
	}
	if _, lines := countJobRuns(p); lines != 0 {
		t.Fatal("a job continued after the interrupt")
	}
	if err := os.Remove(filepath.Join(p.WorkDir, "started")); err != nil {
		t.Fatal(err)
	}
	cmd, errs = start()
	interrupt()
	if err := os.WriteFile(filepath.Join(p.WorkDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Fatalf("the run ended after one Ctrl-C with %v\n%s", err, errs)
	}
	if stderr := errs.String(); !strings.Contains(stderr, "1 of 2 jobs finished, 1 left") ||
		strings.Contains(stderr, "degraded") {
		t.Errorf("after one Ctrl-C the run printed the error text %q", stderr)
	}
	if counts, lines := countJobRuns(p); lines != 1 || counts["1"] != 1 || out.String() != "1\n" {
		t.Errorf("after one Ctrl-C the jobs had run %v times, and the run printed %q", counts, out.String())
	}
	if r := p.RunPrivate(jobs, "--lines", "-", "--workers", "1"); r.ExitCode != 0 {
		t.Fatalf("the last run: %+v", r)
	}
	if counts, lines := countJobRuns(p); lines != 2 || counts["2"] != 1 {
		t.Errorf("number of times that each job ran: %v", counts)
	}
}

// Ctrl-C ends a private run that is still reading its job list. If the stdout of a private run
// is closed, the run fails.
func TestPrivateRunEndsOnCtrlCOrClosedStdout(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	cmd := p.NewPrivateRunCommand("", "--lines", "-")
	cmd.Stdin = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("true\n")); err != nil {
		t.Fatal(err)
	}
	p.WaitUntil("its service runs", 20*time.Second, func() bool {
		_, err := os.Stat(p.Path("queuectl.sock"))
		return err == nil
	})
	cmd.Process.Signal(syscall.SIGINT)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("Ctrl-C while the run waits for its file: exit %d", code)
		}
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		t.Error("the run does not end while it waits for its file")
	}
	const jobs = "echo 1\necho 2; touch 2; sleep 0.2\necho 3; touch 3\nsleep 0.1\nsleep 0.1\n"
	cmd = p.NewPrivateRunCommand(jobs, "--lines", "-", "--workers", "1")
	errs := &testrig.LockedBuffer{}
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "1\n" {
		t.Fatalf("the run printed %q, %v", line, err)
	}
	out.Close()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "the output pipe is closed") {
		t.Errorf("a run with a closed output pipe: exit code %d, %s", code, errs)
	}
	if r := p.RunPrivate(jobs, "--lines", "-"); r.ExitCode != 0 || !strings.Contains(r.Stderr, "5 jobs: 5 completed") {
		t.Errorf("the repeated run: %+v", r)
	}
}

// `queuectl logs` can read a large output without a service. A large output is stored in a separate file.
func TestLargeOutputIsReadableOffline(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	r := p.RunPrivate("seq 100000\n", "--lines", "-")
	if r.ExitCode != 0 {
		t.Fatalf("the run: %+v", r)
	}
	id := strings.TrimSpace(p.RunCLI("--dir", p.StateDir, "list", "-q").Stdout)
	if got := p.RunCLI("--dir", p.StateDir, "logs", id); got.ExitCode != 0 || got.Stdout != r.Stdout {
		t.Errorf("logs without a service: exit code %d, %d bytes, want %d: %s", got.ExitCode, len(got.Stdout), len(r.Stdout),
			got.Stderr)
	}
}

// Commands do not read the directory of a private run if another user owns it, because that user may have
// put harmful files there.
func TestOtherUsersPrivateRunDirIsNotRead(t *testing.T) {
	skip.UnlessRoot(t, "needs root, because it changes the owner of a directory; .ci/run runs it as root")
	p := testrig.NewPrivateQueue(t)
	if r := p.RunPrivate("true\n", "--lines", "-"); r.ExitCode != 0 {
		t.Fatalf("the run: %+v", r)
	}
	if err := os.Chown(p.StateDir, 4001, 4001); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"list", "status", "events"} {
		if r := p.RunCLI("--dir", p.StateDir, verb); r.ExitCode != 5 || r.Stdout != "" ||
			!strings.Contains(r.Stderr, "belongs to 4001, who can change its content") {
			t.Errorf("%s: %+v", verb, r)
		}
	}
}

// If the current directory was deleted, a private run fails and says how to proceed.
func TestPrivateRunInDeletedDirExplainsFailure(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	cmd := exec.Command(
		"/bin/sh", "-c", `mkdir gone && cd gone && rmdir ../gone && exec "$0" run --private --lines /dev/stdin`, p.ClientPath)
	cmd.Env, cmd.Dir, cmd.Stdin = testrig.UserEnvironment(p.WorkDir), p.WorkDir, strings.NewReader("true\n")
	output, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(output), "the current directory no longer exists") ||
		!strings.Contains(string(output), "--dir") {
		t.Errorf("a private run in a deleted directory: %v: %s", err, output)
	}
}

// If a private run is repeated with other arguments, the error contains the old and the new command, quoted for
// a shell.
func TestPrivateRunQuotesChangedArguments(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	if r := p.RunPrivate("", "--", "echo", "{}", ":::", "a b"); r.ExitCode != 0 {
		t.Fatalf("the first run: %+v", r)
	}
	r := p.RunPrivate("", "--", "echo", "{}", ":::", "c  d")
	if r.ExitCode != 125 || !strings.Contains(r.Stderr, `"echo 'a b'"`) || !strings.Contains(r.Stderr, `"echo 'c  d'"`) {
		t.Errorf("a run with changed arguments: %+v, want 125 and both commands", r)
	}
}
