package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// startRootService returns a service that root starts without systemd. The service starts the launcher, a
// process with root's rights that starts runners. Then the service changes to the account queuectl, which is
// ServiceAccount in this test.
func startRootService(t *testing.T) (q *testrig.Harness, serviceArgs []string) {
	t.Helper()
	q, rules := testrig.PrepareQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	skip.UnlessProgram(t, "unshare", "needs unshare; .ci/run installs it")
	q.ServiceCredential = nil
	accounts := map[string]string{
		"passwd": fmt.Sprintf("queuectl:x:%d:%d::/:/bin/false\n", testrig.ServiceAccount.Uid, testrig.ServiceAccount.Gid),
		"group": fmt.Sprintf("queuectl:x:%d:\nqueuectl-service:x:%d:\n", testrig.ServiceAccount.Gid,
			testrig.ServiceAccount.Gid),
	}
	base := filepath.Dir(rules)
	script := `mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/group" /etc/group && exec "$@"`
	q.ServiceCommandPrefix = []string{"unshare", "--mount", "sh", "-c", script, base}
	for name, extraLine := range accounts {
		systemFile, err := os.ReadFile(filepath.Join("/etc", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, name), append(systemFile, extraLine...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := testrig.ShellCommand("unshare --mount mount --bind " + base +
		"/passwd /etc/passwd").CombinedOutput(); err != nil {
		t.Logf("mount: %v: %s", err, out)
		skip.MissingRequirement(t, "mount", "needs the right to mount; .ci/run runs it as root")
	}
	serviceArgs = []string{"--workers", "2", "--runner-dir", q.RootRunnerDir, "--runner-policy", rules}
	q.StartService(serviceArgs...)
	return q, serviceArgs
}

// childrenWithArgument lists the children of a process whose command line contains the given argument.
func childrenWithArgument(pid int, arg string) (pids []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range threads {
		list, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(list)) {
			line, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if child, err := strconv.Atoi(field); err == nil && bytes.Contains(line, []byte("\x00"+arg+"\x00")) {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// launcherPID returns the pid of the service's launcher.
func launcherPID(q *testrig.Harness) int {
	q.Helper()
	pids := childrenWithArgument(q.ServiceCmd.Process.Pid, "--launcher")
	if len(pids) != 1 {
		q.Fatalf("launchers of the service: %v, want one", pids)
	}
	return pids[0]
}

// writeToSocketAs writes a text to a Unix socket as an account. It does not wait for a reply.
func writeToSocketAs(p testrig.Person, socketPath, text string) error {
	sent := make(chan error)
	go func() {
		// Change the user and group of this thread only. The thread is never unlocked, so it
		// ends with this goroutine.
		runtime.LockOSThread()
		_, _, gid := syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(p.Gid), uintptr(p.Gid), uintptr(p.Gid))
		_, _, uid := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(p.Uid), uintptr(p.Uid), uintptr(p.Uid))
		if gid != 0 || uid != 0 {
			sent <- fmt.Errorf("run as %s: %w, %w", p.Name, gid, uid)
			return
		}
		c, err := net.Dial("unix", socketPath)
		if err == nil {
			_, err = c.Write([]byte(text))
			c.Close()
		}
		sent <- err
	}()
	return <-sent
}

// startJobWaitingForFile enqueues a job of DaemonUser that runs until the file with the returned path exists. It
// returns once the job runs.
func startJobWaitingForFile(q *testrig.Harness) (id, filePath string) {
	q.Helper()
	filePath = filepath.Join(filepath.Dir(q.ClientPath), "go")
	id = q.MustRunAs(testrig.DaemonUser, "enqueue", "--no-cwd", testrig.CommandWaitingForFile(filePath))
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob(id).State == "processing" })
	return id, filePath
}

// checkWaitReasonInAllCommands checks that the commands why, show, status, doctor and run all report the same reason
// for a waiting job, in the same words.
func checkWaitReasonInAllCommands(q *testrig.Harness, id, wantReason string) {
	q.Helper()
	var why struct {
		Reasons []struct{ Kind, Text, Next string }
	}
	q.WaitUntil("why names the launcher", 40*time.Second, func() bool {
		err := json.Unmarshal([]byte(q.MustRunCLI("why", id, "--json")), &why)
		return err == nil && len(why.Reasons) > 0 && strings.Contains(why.Reasons[0].Text, wantReason)
	})
	if got := why.Reasons[0].Kind; got != "runner" {
		q.Errorf("why: the kind of the reason is %q, want runner", got)
	}
	reason := why.Reasons[0].Text + "; " + why.Reasons[0].Next
	var detail struct {
		WaitsFor struct{ Text, Next string } `json:"waits_for"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &detail); err != nil {
		q.Fatal(err)
	}
	if got := detail.WaitsFor.Text + "; " + detail.WaitsFor.Next; got != reason {
		q.Errorf("waits_for: %q\nwant %q", got, reason)
	}
	if got := q.MustRunCLI("status"); !strings.Contains(strings.Join(strings.Fields(got), " "), reason) {
		q.Errorf("status: %s\nwant %q", got, reason)
	}
	if got := q.RunCLI("doctor"); !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), why.Reasons[0].Text) {
		q.Errorf("doctor: %s\nwant %q", got.Stdout, reason)
	}
	cmd := testrig.CommandAs(q.CLICommand("run", "--no-cwd", "true"), testrig.DaemonUser)
	stderr := &testrig.LockedBuffer{}
	cmd.Stderr = stderr
	if err := testrig.StartCommand(cmd); err != nil {
		q.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	q.WaitUntil("run prints the reason", 20*time.Second, func() bool {
		return strings.Contains(stderr.String(), "is waiting: "+why.Reasons[0].Text+"; next step: "+why.Reasons[0].Next)
	})
}

// A service that root has started gives up root's rights, so it cannot start a second launcher. When its
// launcher ends, the service ends too. The jobs continue, and the next service starts another launcher.
func TestServiceEndsWithItsLauncher(t *testing.T) {
	q, args := startRootService(t)
	id, gate := startJobWaitingForFile(q)
	launcher := launcherPID(q)
	testrig.KillProcess(launcher)
	select {
	case <-q.ServiceExit:
	case <-time.After(testrig.TimeoutFactor * 20 * time.Second):
		t.Fatal("the service runs without its launcher")
	}
	if got := q.ServiceCmd.ProcessState.ExitCode(); got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
	logs, _ := filepath.Glob(q.Path("stderr-*"))
	text, _ := os.ReadFile(logs[0])
	want := fmt.Sprintf("the launcher (process %d) ended (signal: killed)", launcher)
	if !strings.Contains(string(text), want) {
		t.Errorf("the log of the service is %s\nwant %s", text, want)
	}
	q.ServiceCmd = nil
	q.StartService(args...)
	if got := q.ShowJob(id); got.State != "processing" {
		t.Errorf("the running job after the end of the service: %+v", got)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if got := q.ShowJob(id); got.State != "completed" || len(got.AttemptHistory) != 1 {
		t.Errorf("the job that ran during the restart: %+v", got)
	}
	q.KillRunners()
	if got := q.RunJobAs(testrig.DaemonUser, "--no-cwd", "id -un"); got != "daemon" {
		t.Errorf("a job in the runner of the next launcher printed %q", got)
	}
}

// If the launcher is stopped with SIGSTOP, messages report that and say how to continue it, even before the service
// needs a runner. When the launcher continues, waiting jobs start. The launcher does not start runners for requests
// that the service made earlier but no longer waits for.
func TestMessagesNameStoppedLauncher(t *testing.T) {
	testrig.SkipIfShort(t)
	q, _ := startRootService(t)
	q.RunJobAs(testrig.DaemonUser, "--no-cwd", "true")
	launcher := launcherPID(q)
	syscall.Kill(launcher, syscall.SIGSTOP)
	defer syscall.Kill(launcher, syscall.SIGCONT)
	want := fmt.Sprintf("the launcher (process %d) is stopped", launcher)
	q.WaitUntil("status names the stopped launcher while a runner exists", 20*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("status"), want)
	})
	q.CheckDoctorFinding("a stopped launcher", "launcher", fmt.Sprintf("kill -CONT %d", launcher))
	for range 3 {
		if err := writeToSocketAs(testrig.ServiceAccount, filepath.Join(q.RootRunnerDir, "spawn.sock"),
			"queuectl wants a runner\n"); err != nil {
			t.Fatal(err)
		}
	}
	q.KillRunners()
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--no-cwd", "true")
	checkWaitReasonInAllCommands(q, id, want)
	syscall.Kill(launcher, syscall.SIGCONT)
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if pids := childrenWithArgument(launcher, "--accepted"); len(pids) != 1 {
		t.Errorf("runners after the launcher continues: %v, want one", pids)
	}
	for _, f := range q.RunDoctor().Findings {
		if f.Check == "launcher" {
			t.Errorf("doctor, after the launcher continues: %+v", f)
		}
	}
	if got := q.MustRunCLI("status"); strings.Contains(got, "launcher") {
		t.Errorf("status, after the launcher continues: %s", got)
	}
}

// If another process has started the launcher, the service keeps running when the launcher ends. It then
// reports that the launcher is missing.
func TestMessagesNameMissingLauncher(t *testing.T) {
	testrig.SkipIfShort(t)
	q, rules := testrig.PrepareQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	launcher := q.StartLauncher(rules)
	socket := filepath.Join(q.RootRunnerDir, "spawn.sock")
	q.StartService("--workers", "2", "--runner-dir", q.RootRunnerDir, "--runner-socket", socket, "--runner-policy", rules)
	q.RunJobAs(testrig.DaemonUser, "--no-cwd", "true")
	launcher.Process.Kill()
	q.WaitUntil("the launcher has ended", 20*time.Second, func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	q.KillRunners()
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--no-cwd", "true")
	checkWaitReasonInAllCommands(q, id, "no launcher listens on the socket "+socket)
	q.StartLauncher(rules)
	q.MustRunAs(testrig.DaemonUser, "wait", id)
}
