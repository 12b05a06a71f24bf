package runner

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// If a service has no free file descriptors, it refuses connections and does not use much CPU. When
// descriptors are free again, it accepts connections and runs the acknowledged jobs.
func TestServiceRecoversFromDescriptorShortage(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	id := q.MustRunCLI("enqueue", "sleep 1; touch "+q.Path("ended"))
	lift := setProcessLimit(t, q.ServiceCmd.Process.Pid, unix.RLIMIT_NOFILE,
		lowestFreeDescriptor(q.ServiceCmd.Process.Pid)+20)
	defer lift()
	var conns []net.Conn
	for range 100 {
		c, err := net.DialTimeout("unix", filepath.Join(q.StateDir, "queuectl.sock"), 100*time.Millisecond)
		if err != nil {
			break // the socket's queue of unaccepted connections is full
		}
		conns = append(conns, c)
	}
	before := testrig.ProcessCPUTicks(t, q.ServiceCmd.Process.Pid)
	q.WaitUntil("the job ends without a client", 10*time.Second, func() bool {
		_, err := os.Stat(q.Path("ended"))
		return err == nil
	})
	if spent := testrig.ProcessCPUTicks(t, q.ServiceCmd.Process.Pid) - before; spent > 30 {
		t.Errorf("%d ticks of CPU while no descriptor was free; the service retries without a pause", spent)
	}
	for _, c := range conns {
		c.Close()
	}
	q.WaitUntil("it answers again", 20*time.Second, func() bool {
		return q.RunCLI("wait", id, "--timeout", "5").ExitCode == 0
	})
}

// startServiceWithLimits starts the service under resource limits that a shell sets.
func startServiceWithLimits(q *testrig.Harness, ulimitCommands string) error {
	q.Helper()
	plain := q.ClientPath
	defer func() { q.ClientPath = plain }()
	q.ClientPath = q.Path("limited")
	script := fmt.Sprintf("#!/bin/bash\nif [ \"$1\" = serve ]; then %s; fi\nexec %s \"$@\"\n", ulimitCommands, plain)
	testrig.WriteProgram(q, q.ClientPath, script)
	return q.TryStartService("--workers", "2")
}

// If a resource limit of the service is so low that the service would fail later, it does not start, and the error
// names the limit. If the limit of file descriptors is lower than the settings require, the service starts. It then
// allows fewer connections, in total and per user, and `queuectl status` reports this.
func TestLowServiceLimitsAreReported(t *testing.T) {
	for limits, wantText := range map[string]string{
		"ulimit -n 90":      "the limit of open files is 90, but at least 96 are needed",
		"ulimit -v 1000000": "the address space limit",
		"ulimit -f 1024":    "the file size limit is 1MiB",
	} {
		q := testrig.NewHarness(t, "")
		err := startServiceWithLimits(q, limits)
		if err == nil || q.ServiceCmd.ProcessState.ExitCode() != 78 || !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v, want exit 78 and %q", limits, err, wantText)
		}
		q.ServiceCmd = nil
	}
	q := testrig.NewHarness(t, "")
	if err := startServiceWithLimits(q, "ulimit -n 200"); err != nil {
		t.Fatal(err)
	}
	if got := q.MustRunCLI("status"); !strings.Contains(got,
		"the limit of open files is 200, which allows 136 connections (34 per user)") {
		t.Errorf("status does not print the limit of connections:\n%s", got)
	}
	id := q.MustRunCLI("enqueue", "-q", "--delay", "1h", "true")
	messages := ""
	for range 60 {
		c, err := net.Dial("unix", q.Path("queuectl.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintln(c, `{"id":1,"method":"hello"}`)
		// This connection waits for a job, so it is not idle, and the service does not close it to admit
		// another one.
		fmt.Fprintf(c, `{"id":2,"method":"wait","params":{"ids":[%q]}}`+"\n", strings.TrimSpace(id))
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if messages, err = bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(messages, "result") {
			break
		}
	}
	if !strings.Contains(messages, "you have 34 open connections to the service, all in use") {
		t.Errorf("the refused connections got the messages %q", messages)
	}
}

// If the service reaches its file size limit, it refuses new jobs in time. Running jobs still end and are
// recorded. The service and the runner keep running. Commands of jobs have the same limit, and the kernel may
// end a command that reaches it.
func TestServiceFileSizeLimitRefusesNewJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	before := w.Enqueue(testrig.JSONFields{"command": "echo up; " + q.CommandAwaitingQueueFile("go") +
		"; head -c 3000000 /dev/zero",
		"output_limit": 4 << 20})
	w.WaitJobRunning(before)
	size := func() (n int64) {
		for _, name := range []string{"queuectl.db", "queuectl.db-wal"} {
			info, err := os.Stat(q.Path(name))
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
		}
		return n
	}
	runner := q.OnlyRunnerPID()
	lifts := []func(){
		setProcessLimit(t, q.ServiceCmd.Process.Pid, unix.RLIMIT_FSIZE, uint64(size())+13<<20),
		setProcessLimit(t, runner, unix.RLIMIT_FSIZE, 1<<20),
	}
	refused := ""
	q.WaitUntil("a new job is refused", 60*time.Second, func() bool {
		a := w.Call("enqueue.batch", testrig.JSONFields{"jobs": repeatSpec(20,
			testrig.JSONFields{"command": ": " + strings.Repeat("x", 50_000), "delay": "1h"}), "commit": true})
		if a.Error != nil {
			refused = fmt.Sprint(*a.Error)
		}
		return a.Error != nil
	})
	if !strings.Contains(refused, "no_space") || !strings.Contains(refused, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("the job is refused with %s", refused)
	}
	if got := q.MustRunCLI("status"); !strings.Contains(got, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("status does not name the limit:\n%s", got)
	}
	q.WriteFile("go", "")
	if j := w.WaitJobEnded(before); j.State != "completed" || j.AttemptHistory[0].DroppedBytes == 0 {
		t.Errorf("the job that printed at the limit: %+v, want it completed and output dropped", j)
	}
	lifts[0]()
	q.WaitUntil("a new job is taken", 20*time.Second, func() bool { return q.RunCLI("enqueue", "true").ExitCode == 0 })
	writes := w.Enqueue(testrig.JSONFields{"command": "exec head -c 3000000 /dev/zero >" + q.Path("large"),
		"max_retries": 0})
	if j := w.WaitJobEnded(writes); j.Signal == nil || *j.Signal != int(unix.SIGXFSZ) {
		t.Errorf("the job that wrote a large file: %+v, want it ended by SIGXFSZ", j)
	}
	lifts[1]()
	if now := q.OnlyRunnerPID(); now != runner || q.RunCLI("status").ExitCode != 0 {
		t.Errorf("the runner is %d, was %d", now, runner)
	}
}

// While each fsync takes two seconds, a cancel of a job ends the job's process tree immediately. The service still
// acknowledges each request only after the fsync of the request's change.
func TestSlowFsyncDelaysNoCancel(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	running := q.MustRunCLI("enqueue", "sleep 100")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob(running).State == "processing" })
	pid := q.ShowJob(running).PID
	stop := q.InjectSyscallFault("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000")
	defer stop()
	go q.RunCLI("enqueue", "true") // makes the service busy with a commit whose fsync is slow
	started := time.Now()
	cancelled := make(chan testrig.CommandResult, 1)
	go func() { cancelled <- q.RunCLI("cancel", running) }()
	q.WaitUntil("the tree is gone", 1500*time.Millisecond, func() bool { return syscall.Kill(pid, 0) != nil })
	t.Logf("tree ended after %v", time.Since(started))
	if r := <-cancelled; r.ExitCode != 0 {
		t.Errorf("cancel: exit code %d, %s", r.ExitCode, r.Stderr)
	}
	if s := q.ShowJob(running).State; s != "cancelled" {
		t.Errorf("state %s, want cancelled", s)
	}
}

// When the disk turns read-only, the service prints a reason and exits with 74. Its jobs continue, and the
// next service gets their results. The test needs root to mount the disk.
func TestReadOnlyDiskStopsServiceButNotJobs(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and TestDiskErrorsLoseNoAcknowledgedJob has the same stop")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("64M")
	q.StartService("--workers", "1")
	jobID := q.MustRunCLI("enqueue", "true")
	q.MustRunCLI("wait", jobID)
	// The option "abort" makes the file system read-only, as happens when ext4 finds an error.
	if out, err := exec.Command("mount", "-o", "remount,abort", disk).CombinedOutput(); err != nil {
		t.Fatalf("make the disk read-only: %v\n%s", err, out)
	}
	if r := q.RunCLI("enqueue", "true"); r.ExitCode == 0 {
		t.Error("a job was acknowledged on a read-only disk")
	}
	select {
	case <-q.ServiceExit:
		if code := q.ServiceCmd.ProcessState.ExitCode(); code != 74 {
			t.Errorf("exit code %d, want 74", code)
		}
		q.ServiceCmd = nil
	case <-time.After(10 * time.Second):
		t.Error("the service still runs on a read-only disk")
	}
	q.KillRunners()
	image := filepath.Join(filepath.Dir(disk), "disk.img")
	q.WaitUntil("the disk can be unmounted", 10*time.Second, func() bool {
		return exec.Command("umount", disk).Run() == nil
	})
	if out, err := exec.Command("mount", "-o", "loop", image, disk).CombinedOutput(); err != nil {
		t.Fatalf("mount again: %v\n%s", err, out)
	}
	q.StartService("--workers", "1")
	if j := q.ShowJob(jobID); j.State != "completed" {
		t.Errorf("after the disk is mounted again, the job is %s", j.State)
	}
}

// While the disk is frozen, `queuectl status --check` responds and reports the frozen disk. Once the disk
// continues, the request that was waiting for it succeeds.
func TestStatusReportsFrozenDisk(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sqlite cover slow commits")
	t.Parallel()
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	skip.UnlessProgram(t, "fsfreeze", "needs fsfreeze; .ci/run installs it")
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("64M")
	q.StartService("--workers", "1")
	q.MustRunCLI("run", "--", "true")
	freeze := func(option string) {
		if out, err := exec.Command("fsfreeze", option, disk).CombinedOutput(); err != nil {
			t.Fatalf("fsfreeze %s: %v\n%s", option, err, out)
		}
	}
	freeze("--freeze")
	thaw := sync.OnceFunc(func() { freeze("--unfreeze") })
	t.Cleanup(thaw)
	enqueued := make(chan testrig.CommandResult, 1)
	go func() { enqueued <- q.RunCLI("enqueue", "--id", "late", "true") }()
	q.WaitUntil("the frozen disk is reported", 30*time.Second, func() bool {
		got := q.RunCLI("status", "--check")
		return got.ExitCode == 2 && strings.HasPrefix(got.Stdout, "failing: the database has been waiting for the disk of "+
			disk)
	})
	thaw()
	if got := <-enqueued; got.ExitCode != 0 {
		t.Errorf("the request that waited for the disk: %+v", got)
	}
	q.MustRunCLI("wait", "late")
	if got := q.RunCLI("status", "--check"); got.ExitCode != 0 {
		t.Errorf("after the disk was thawed: %+v", got)
	}
}

// Without control groups, as in this test, the memory limit of a job applies to each of its processes separately, and
// the service logs one warning about this. With control groups, the limit would apply to the whole job.
func TestMemoryLimitAppliesPerProcessWithoutCgroups(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for range 2 {
		id := q.MustRunCLI("enqueue", "-q", "--memory", "256M", "--cpus", "0.5", "--tasks", "7", "--max-retries", "0",
			"ulimit -v")
		q.MustRunCLI("wait", id)
		if got := strings.TrimSpace(q.MustRunCLI("logs", id)); got != "262144" {
			t.Errorf("the memory limit of the job is %s KiB", got)
		}
	}
	if n := strings.Count(q.ReadAllLogs(), "limits that this system does not enforce"); n != 1 {
		t.Errorf("the log contains the warning %d times", n)
	}
	for flag, invalid := range map[string]string{"--memory": "1K", "--cpus": "0", "--tasks": "0", "--nice": "20",
		"--nofile": "0"} {
		if r := q.RunCLI("enqueue", flag, invalid, "true"); r.ExitCode != 2 ||
			!strings.Contains(r.Stderr, strings.TrimPrefix(flag, "--")) {
			t.Errorf("%s %s: exit code %d, %s", flag, invalid, r.ExitCode, r.Stderr)
		}
	}
}

// `queuectl enqueue` names the limits of a job that this machine cannot enforce. With --require-limits, it refuses such
// a job and stores nothing. `queuectl doctor` warns of each limit that is not enforced, and reports how the other
// limits are enforced.
func TestUnenforcedJobLimitsAreReported(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	file := filepath.Join(t.TempDir(), "jobs")
	if err := os.WriteFile(file, []byte(`{"command":"true","memory":"64M"}`+"\n"+`{"command":"true","cpus":1,"nice":3}`+
		"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const each = "the memory limit applies to each process of a job separately"
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"enqueue", "--nice", "3", "--nofile", "99", "true"}, ""},
		{[]string{"enqueue", "--cpus", "1", "true"},
			"queuectl: warning: the limit cpus is not enforced on this machine; see: queuectl doctor\n"},
		{[]string{"enqueue", "--memory", "64M", "true"}, "queuectl: warning: " + each +
			" on this machine; see: queuectl doctor\n"},
		{[]string{"enqueue", "--memory", "64M", "--cpus", "1", "--tasks", "9", "true"}, "queuectl: warning: " + each +
			", and the limits cpus and tasks are not enforced on this machine; see: queuectl doctor\n"},
		{[]string{"enqueue", `[{"command":"true","tasks":3},{"command":"true"}]`},
			"queuectl: warning: the limit tasks is not enforced on this machine; see: queuectl doctor\n"},
		{[]string{"enqueue", "--file", file}, "queuectl: warning: " + each +
			", and the limit cpus is not enforced on this machine; see: queuectl doctor\n"},
		{[]string{"run", "-d", "--cpus", "1", "true"},
			"queuectl: warning: the limit cpus is not enforced on this machine; see: queuectl doctor\n"},
		{[]string{"enqueue", "--id", "late", "true"}, ""},
		{[]string{"edit", "late", "--cpus", "2"}, "queuectl: warning: the limit cpus is not enforced on this machine; " +
			"see: queuectl doctor\n"},
		{[]string{"edit", "late", "--priority", "2"}, ""},
	} {
		if r := q.RunCLI(c.words...); r.ExitCode != 0 || r.Stderr != c.want {
			t.Errorf("%q: exit code %d, %q, want %q", c.words, r.ExitCode, r.Stderr, c.want)
		}
	}
	before := q.MustRunCLI("status", "--json")
	const perProcess = "on this machine, this limit applies to each process of a job, not to the whole job"
	for want, words := range map[string][]string{
		"cpus: this limit is not enforced on this machine": {"enqueue", "--require-limits", "--cpus", "1", "true"},
		"memory: " + perProcess:                            {"run", "--require-limits", "--memory", "64M", "true"},
		"line 1: memory: " + perProcess:                    {"enqueue", "--require-limits", "--file", file},
	} {
		if r := q.RunCLI(words...); r.ExitCode == 0 || !strings.Contains(r.Stderr, want) ||
			!strings.Contains(r.Stderr, "no control groups") {
			t.Errorf("%q: exit code %d, %s", words, r.ExitCode, r.Stderr)
		}
	}
	if after := q.MustRunCLI("status", "--json"); totalEnqueuedJobs(t, after) != totalEnqueuedJobs(t, before) {
		t.Errorf("a refused job was stored: status %s, before %s", after, before)
	}
	q.MustRunCLI("enqueue", "--require-limits", "--nice", "3", "true")
	private := exec.Command(q.ClientPath, "--dir", filepath.Join(t.TempDir(), "private"), "run", "--private",
		"--require-limits",
		"--file", file)
	private.Env = testrig.UserEnvironment(q.StateDir)
	if r := testrig.RunCommand(t, private); r.ExitCode == 0 || !strings.Contains(r.Stderr, "memory: "+perProcess) {
		t.Errorf("a private run: exit code %d, %s", r.ExitCode, r.Stderr)
	}
	r := q.RunCLI("doctor")
	for _, want := range []string{
		"WARNING  enforcement  the limit memory is enforced for each process of a job, not for the whole job (",
		"WARNING  enforcement  the limit cpus is not enforced (there are no control groups)\n",
		"WARNING  enforcement  the limit tasks is not enforced (",
		"ok       enforcement  the limit nice is enforced by ",
		"ok       enforcement  the limit nofile is enforced by ",
	} {
		if r.ExitCode != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("doctor ends with %d, and does not say %q:\n%s", r.ExitCode, want, r.Stdout)
		}
	}
}

// totalEnqueuedJobs returns the total number of jobs ever enqueued, which the JSON output of `queuectl status`
// contains.
func totalEnqueuedJobs(t *testing.T, statusJSON string) (n int64) {
	t.Helper()
	var st struct{ Enqueued int64 }
	if err := json.Unmarshal([]byte(statusJSON), &st); err != nil {
		t.Fatal(err)
	}
	return st.Enqueued
}

// The limits nice, nofile and no_new_privileges apply to each attempt of a job, also after an edit of another
// field. `queuectl show` prints each limit next to the amount that the job used.
func TestJobLimitsApplyToEachAttempt(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	id := q.MustRunCLI("enqueue", "-q", "--nice", "4", "--nofile", "77", "--no-new-privileges", "--memory", "512M",
		"--cpus",
		"2", "echo $(nice) $(ulimit -n) $(ulimit -Hn) $(grep -o NoNewPrivs.* /proc/self/status)")
	q.MustRunCLI("edit", id, "--priority", "9")
	q.MustRunCLI("worker", "scale", "1")
	q.MustRunCLI("wait", id)
	if got := strings.TrimSpace(q.MustRunCLI("logs", id)); got != "4 77 77 NoNewPrivs: 1" {
		t.Errorf("the attempt's nice value, limits and NoNewPrivs are %q", got)
	}
	detail := q.MustRunCLI("show", id)
	for _, want := range []string{`Memory: +at most 512.0 MiB`, `Processors: +average [0-9.]+ of 2`, `Nice: +4`,
		`Open files: +at most 77 \(usage is not measured\)`, `Privileges: +cannot be gained`} {
		if !regexp.MustCompile(want).MatchString(detail) {
			t.Errorf("show does not say %q:\n%s", want, detail)
		}
	}
}
