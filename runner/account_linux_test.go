package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// startedProcess is a process that startProcess has started.
type startedProcess struct {
	pid        int
	startedAt  time.Time
	startTicks int64 // start time in clock ticks since boot
}

// startProcess starts a process under the account with the given uid, in a new session. The process ends with the test.
func startProcess(t *testing.T, uid uint32) startedProcess {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	b := startedProcess{startedAt: time.Now()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.pid = cmd.Process.Pid
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	if b.startTicks, err = strconv.ParseInt(b.procStatFields(t)[19], 10, 64); err != nil {
		t.Fatal(err)
	}
	return b
}

// procStatFields returns the fields of /proc/PID/stat of the process, beginning with the third field, the process
// state.
func (b startedProcess) procStatFields(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(b.pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return strings.Fields(rest)
}

// createAccountRunnerDir creates the directory of a runner that has switched to uid 1, and locks the directory as a
// living runner would. The running table (the file that lists running attempts) contains runnerProcess as the runner
// and jobProcesses as the processes of its jobs.
func createAccountRunnerDir(t *testing.T, baseDir string, runnerProcess startedProcess,
	jobProcesses ...startedProcess) (dir string) {
	t.Helper()
	dir = filepath.Join(baseDir, rundir.AccountDirPrefix+"daemon", "1.a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Dir(dir), 1, 1); err != nil {
		t.Fatal(err)
	}
	lock, ok, err := rundir.TryLockFile(filepath.Join(dir, rundir.LockFileName), 0o600)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	t.Cleanup(func() { lock.Close() })
	table, err := rundir.CreateRunningTable(dir, 0o600, runnerProcess.pid, runnerProcess.startTicks)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for i, job := range jobProcesses {
		table.SetStartingAttempt(int64(i+1), wire.Lease{Seq: 1, Fence: int64(i + 1)}, 0)
		table.SetAttemptProcess(int64(i+1), job.pid, job.startedAt.UnixMilli())
	}
	return dir
}

// If root calls EndAllRunners, it ends only processes of the account to which a runner has switched. This account can
// write the pid of any process into the runner's directory, so other processes must be safe.
func TestEndAllRunnersSparesOtherAccounts(t *testing.T) {
	skip.UnlessRoot(t, "needs root, who ends the runners of all users; .ci/run runs it as root")
	own, ownJob, foreign, foreignJob := startProcess(t, 1), startProcess(t, 1), startProcess(t, 0), startProcess(t, 2)

	base := t.TempDir()
	dir := createAccountRunnerDir(t, base, foreign, foreignJob)
	if pid := LivingRunnerPID(dir); pid != 0 {
		t.Errorf("its runner is process %d, of another account", pid)
	}
	if n, err := (RunnersLocation{RunnersDir: base}).EndAllRunners(0); n != 0 || err == nil {
		t.Errorf("a runner with the pid of another account's process: ended %d, %v", n, err)
	}

	// For a process of another account, SignalProcess returns no error. It assumes that the runner has ended and that
	// another process got its pid.
	if err := process.SignalProcess(foreign.pid, foreign.startTicks, new(uint32(1)), syscall.SIGKILL); err != nil {
		t.Errorf("a pid that now belongs to another account's process: %v", err)
	}

	base = t.TempDir()
	dir = createAccountRunnerDir(t, base, own, ownJob, foreignJob)
	if pid := LivingRunnerPID(dir); pid != int64(own.pid) {
		t.Errorf("its runner is process %d, want %d", pid, own.pid)
	}
	if n, err := (RunnersLocation{RunnersDir: base}).EndAllRunners(0); n != 1 || err != nil {
		t.Errorf("the account's own runner: ended %d, %v", n, err)
	}
	for what, c := range map[string]struct {
		process startedProcess
		ended   bool
	}{
		"its runner": {own, true}, "its job": {ownJob, true},
		"root's process": {foreign, false}, "another account's process": {foreignJob, false},
	} {
		if got := c.process.procStatFields(t)[0] == "Z"; got != c.ended {
			t.Errorf("%s has ended: %t", what, got)
		}
	}
}

// CappedOutputFileBytes counts a symbolic link in the output directory as 0 bytes, because the target of the link may
// belong to another account.
func TestOutputSizeIgnoresSymlinks(t *testing.T) {
	root := t.TempDir()
	path := OutputPath(root, "1-1")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.Args[0], path); err != nil {
		t.Fatal(err)
	}
	if got := CappedOutputFileBytes(root, "1-1", 1<<20); got != 0 {
		t.Errorf("the file has %d bytes", got)
	}
}
