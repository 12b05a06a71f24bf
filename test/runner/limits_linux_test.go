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
func TestOutOfDescriptors(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	id := q.MustCLI("enqueue", "sleep 1; touch "+q.Path("ended"))
	lift := setLimit(t, q.Cmd.Process.Pid, unix.RLIMIT_NOFILE, freeDescriptor(q.Cmd.Process.Pid)+20)
	defer lift()
	var conns []net.Conn
	for range 100 {
		c, err := net.DialTimeout("unix", filepath.Join(q.Dir, "queuectl.sock"), 100*time.Millisecond)
		if err != nil {
			break // the socket's backlog is full
		}
		conns = append(conns, c)
	}
	before := testrig.CPUTicks(t, q.Cmd.Process.Pid)
	q.WaitUntil("the job ends without a client", 10*time.Second, func() bool {
		_, err := os.Stat(q.Path("ended"))
		return err == nil
	})
	if spent := testrig.CPUTicks(t, q.Cmd.Process.Pid) - before; spent > 30 {
		t.Errorf("%d ticks of CPU while no descriptor was free; the service retries without a pause", spent)
	}
	for _, c := range conns {
		c.Close()
	}
	q.WaitUntil("it answers again", 20*time.Second, func() bool { return q.CLI("wait", id, "--timeout", "5").Code == 0 })
}

// startWithLimits starts the service under resource limits that a shell sets.
func startWithLimits(q *testrig.Queue, limits string) error {
	q.Helper()
	plain := q.Bin
	defer func() { q.Bin = plain }()
	q.Bin = q.Path("limited")
	script := fmt.Sprintf("#!/bin/bash\nif [ \"$1\" = serve ]; then %s; fi\nexec %s \"$@\"\n", limits, plain)
	if err := os.WriteFile(q.Bin, []byte(script), 0o755); err != nil {
		q.Fatal(err)
	}
	return q.TryStart("--workers", "2")
}

// If a resource limit of the service is so low that the service would fail later, it does not start, and the
// error names the limit. If it may open fewer descriptors than its settings need, it starts, but allows fewer
// connections, in total and per user, and `queuectl status` reports that.
func TestLowServiceLimitsAreReported(t *testing.T) {
	for limits, wantText := range map[string]string{
		"ulimit -n 90":      "the limit of open files is 90, but at least 96 are needed",
		"ulimit -v 1000000": "the address space limit",
		"ulimit -f 1024":    "the file size limit is 1MiB",
	} {
		q := testrig.NewQueue(t, "")
		err := startWithLimits(q, limits)
		if err == nil || q.Cmd.ProcessState.ExitCode() != 78 || !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v, want exit 78 and %q", limits, err, wantText)
		}
		q.Cmd = nil
	}
	q := testrig.NewQueue(t, "")
	if err := startWithLimits(q, "ulimit -n 200"); err != nil {
		t.Fatal(err)
	}
	if got := q.MustCLI("status"); !strings.Contains(got,
		"the limit of open files is 200, which allows 136 connections (34 per user)") {
		t.Errorf("status does not print the limit of connections:\n%s", got)
	}
	id := q.MustCLI("enqueue", "-q", "--delay", "1h", "true")
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
func TestFileSizeLimitRefusesJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	before := w.Enqueue(testrig.Fields{"command": "echo up; " + q.WaitForFileCommand("go") + "; head -c 3000000 /dev/zero",
		"output_limit": 4 << 20})
	w.WaitRunning(before)
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
	runner := q.RunnerPid()
	lifts := []func(){
		setLimit(t, q.Cmd.Process.Pid, unix.RLIMIT_FSIZE, uint64(size())+13<<20),
		setLimit(t, runner, unix.RLIMIT_FSIZE, 1<<20),
	}
	refused := ""
	q.WaitUntil("a new job is refused", 60*time.Second, func() bool {
		a := w.Call("enqueue.batch", testrig.Fields{"jobs": copies(20,
			testrig.Fields{"command": ": " + strings.Repeat("x", 50_000), "delay": "1h"}), "commit": true})
		if a.Error != nil {
			refused = fmt.Sprint(*a.Error)
		}
		return a.Error != nil
	})
	if !strings.Contains(refused, "no_space") || !strings.Contains(refused, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("the job is refused with %s", refused)
	}
	if got := q.MustCLI("status"); !strings.Contains(got, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("status does not name the limit:\n%s", got)
	}
	q.WriteFile("go", "")
	if j := w.WaitEnded(before); j.State != "completed" || j.History[0].DroppedBytes == 0 {
		t.Errorf("the job that printed at the limit: %+v, want it completed and output dropped", j)
	}
	lifts[0]()
	q.WaitUntil("a new job is taken", 20*time.Second, func() bool { return q.CLI("enqueue", "true").Code == 0 })
	writes := w.Enqueue(testrig.Fields{"command": "exec head -c 3000000 /dev/zero >" + q.Path("large"), "max_retries": 0})
	if j := w.WaitEnded(writes); j.Signal == nil || *j.Signal != int(unix.SIGXFSZ) {
		t.Errorf("the job that wrote a large file: %+v, want it ended by SIGXFSZ", j)
	}
	lifts[1]()
	if now := q.RunnerPid(); now != runner || q.CLI("status").Code != 0 {
		t.Errorf("the runner is %d, was %d", now, runner)
	}
}

// While each fsync takes two seconds, a cancel of a job ends the job's process tree immediately. The service
// acknowledges a request only after the fsync of its change.
func TestSlowDisk(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "2")
	running := q.MustCLI("enqueue", "sleep 100")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.Show(running).State == "processing" })
	pid := q.Show(running).PID
	stop := q.InjectFault("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000")
	defer stop()
	go q.CLI("enqueue", "true") // makes the service busy with a commit, whose fsync is slow
	started := time.Now()
	cancelled := make(chan testrig.Result, 1)
	go func() { cancelled <- q.CLI("cancel", running) }()
	q.WaitUntil("the tree is gone", 1500*time.Millisecond, func() bool { return syscall.Kill(pid, 0) != nil })
	t.Logf("tree ended after %v", time.Since(started))
	if r := <-cancelled; r.Code != 0 {
		t.Errorf("cancel: exit code %d, %s", r.Code, r.Stderr)
	}
	if s := q.Show(running).State; s != "cancelled" {
		t.Errorf("state %s, want cancelled", s)
	}
}

// When the disk turns read-only, the service prints a reason and exits with 74. Its jobs continue, and the
// next service gets their results. The test needs root to mount the disk.
func TestReadOnlyDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and TestDiskErrorsLoseNothing has the same stop")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	q := testrig.NewQueue(t, "")
	disk := q.Mount("64M")
	q.Start("--workers", "1")
	jobID := q.MustCLI("enqueue", "true")
	q.MustCLI("wait", jobID)
	// The option "abort" makes the file system read-only, as happens when ext4 finds an error.
	if out, err := exec.Command("mount", "-o", "remount,abort", disk).CombinedOutput(); err != nil {
		t.Fatalf("make the disk read-only: %v\n%s", err, out)
	}
	if r := q.CLI("enqueue", "true"); r.Code == 0 {
		t.Error("a job was acknowledged on a read-only disk")
	}
	select {
	case <-q.Exit:
		if code := q.Cmd.ProcessState.ExitCode(); code != 74 {
			t.Errorf("exit code %d, want 74", code)
		}
		q.Cmd = nil
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
	q.Start("--workers", "1")
	if j := q.Show(jobID); j.State != "completed" {
		t.Errorf("after the disk is mounted again, the job is %s", j.State)
	}
}

// While the disk is frozen, `queuectl status --check` responds and reports the frozen disk. Once the disk
// continues, the request that was waiting for it succeeds.
func TestFrozenDisk(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sqlite cover slow commits")
	t.Parallel()
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	skip.UnlessProgram(t, "fsfreeze", "needs fsfreeze; .ci/run installs it")
	q := testrig.NewQueue(t, "")
	disk := q.Mount("64M")
	q.Start("--workers", "1")
	q.MustCLI("run", "--", "true")
	freeze := func(option string) {
		if out, err := exec.Command("fsfreeze", option, disk).CombinedOutput(); err != nil {
			t.Fatalf("fsfreeze %s: %v\n%s", option, err, out)
		}
	}
	freeze("--freeze")
	thaw := sync.OnceFunc(func() { freeze("--unfreeze") })
	t.Cleanup(thaw)
	enqueued := make(chan testrig.Result, 1)
	go func() { enqueued <- q.CLI("enqueue", "--id", "late", "true") }()
	q.WaitUntil("the frozen disk is reported", 30*time.Second, func() bool {
		got := q.CLI("status", "--check")
		return got.Code == 2 && strings.HasPrefix(got.Stdout, "failing: the database has been waiting for the disk of "+disk)
	})
	thaw()
	if got := <-enqueued; got.Code != 0 {
		t.Errorf("the request that waited for the disk: %+v", got)
	}
	q.MustCLI("wait", "late")
	if got := q.CLI("status", "--check"); got.Code != 0 {
		t.Errorf("after the disk was thawed: %+v", got)
	}
}

// Without control groups, as in this test, the memory limit of a job applies to each of its processes
// separately, and the service logs that once. With control groups, the limit would apply to the whole job.
func TestLimitsWithoutControlGroups(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for range 2 {
		id := q.MustCLI("enqueue", "-q", "--memory", "256M", "--cpus", "0.5", "--tasks", "7", "--max-retries", "0",
			"ulimit -v")
		q.MustCLI("wait", id)
		if got := strings.TrimSpace(q.MustCLI("logs", id)); got != "262144" {
			t.Errorf("the memory limit of the job is %s KiB", got)
		}
	}
	if n := strings.Count(q.LogText(), "limits that this system does not enforce"); n != 1 {
		t.Errorf("the log contains the warning %d times", n)
	}
	for flag, invalid := range map[string]string{"--memory": "1K", "--cpus": "0", "--tasks": "0", "--nice": "20",
		"--nofile": "0"} {
		if r := q.CLI("enqueue", flag, invalid, "true"); r.Code != 2 ||
			!strings.Contains(r.Stderr, strings.TrimPrefix(flag, "--")) {
			t.Errorf("%s %s: exit code %d, %s", flag, invalid, r.Code, r.Stderr)
		}
	}
}

// `queuectl enqueue` names the limits of a job that this machine cannot enforce. With --require-limits, it
// refuses such a job and stores nothing. `queuectl doctor` warns of each limit that is not enforced, and says
// how the other limits are enforced.
func TestUnenforcedLimitsAreReported(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "0")
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
		if r := q.CLI(c.words...); r.Code != 0 || r.Stderr != c.want {
			t.Errorf("%q: exit code %d, %q, want %q", c.words, r.Code, r.Stderr, c.want)
		}
	}
	before := q.MustCLI("status", "--json")
	const perProcess = "on this machine, this limit applies to each process of a job, not to the whole job"
	for want, words := range map[string][]string{
		"cpus: this limit is not enforced on this machine": {"enqueue", "--require-limits", "--cpus", "1", "true"},
		"memory: " + perProcess:                            {"run", "--require-limits", "--memory", "64M", "true"},
		"line 1: memory: " + perProcess:                    {"enqueue", "--require-limits", "--file", file},
	} {
		if r := q.CLI(words...); r.Code == 0 || !strings.Contains(r.Stderr, want) ||
			!strings.Contains(r.Stderr, "no control groups") {
			t.Errorf("%q: exit code %d, %s", words, r.Code, r.Stderr)
		}
	}
	if after := q.MustCLI("status", "--json"); totalEnqueued(t, after) != totalEnqueued(t, before) {
		t.Errorf("a refused job was stored: status %s, before %s", after, before)
	}
	q.MustCLI("enqueue", "--require-limits", "--nice", "3", "true")
	private := exec.Command(q.Bin, "--dir", filepath.Join(t.TempDir(), "private"), "run", "--private", "--require-limits",
		"--file", file)
	private.Env = testrig.Environment(q.Dir)
	if r := testrig.RunCommand(t, private); r.Code == 0 || !strings.Contains(r.Stderr, "memory: "+perProcess) {
		t.Errorf("a private run: exit code %d, %s", r.Code, r.Stderr)
	}
	r := q.CLI("doctor")
	for _, want := range []string{
		"WARNING  enforcement  the limit memory is enforced for each process of a job, not for the whole job (",
		"WARNING  enforcement  the limit cpus is not enforced (there are no control groups)\n",
		"WARNING  enforcement  the limit tasks is not enforced (",
		"ok       enforcement  the limit nice is enforced by ",
		"ok       enforcement  the limit nofile is enforced by ",
	} {
		if r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("doctor ends with %d, and does not say %q:\n%s", r.Code, want, r.Stdout)
		}
	}
}

// totalEnqueued returns the total number of jobs ever enqueued, which the JSON output of `queuectl status`
// contains.
func totalEnqueued(t *testing.T, status string) (n int64) {
	t.Helper()
	var st struct{ Enqueued int64 }
	if err := json.Unmarshal([]byte(status), &st); err != nil {
		t.Fatal(err)
	}
	return st.Enqueued
}

// The limits nice, nofile and no_new_privileges apply to each attempt of a job, also after an edit of another
// field. `queuectl show` prints each limit next to the amount that the job used.
func TestLimitsApplyToEachAttempt(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	id := q.MustCLI("enqueue", "-q", "--nice", "4", "--nofile", "77", "--no-new-privileges", "--memory", "512M", "--cpus",
		"2", "echo $(nice) $(ulimit -n) $(ulimit -Hn) $(grep -o NoNewPrivs.* /proc/self/status)")
	q.MustCLI("edit", id, "--priority", "9")
	q.MustCLI("worker", "scale", "1")
	q.MustCLI("wait", id)
	if got := strings.TrimSpace(q.MustCLI("logs", id)); got != "4 77 77 NoNewPrivs: 1" {
		t.Errorf("the attempt's nice value, limits and NoNewPrivs are %q", got)
	}
	detail := q.MustCLI("show", id)
	for _, want := range []string{`Memory: +at most 512.0 MiB`, `Processors: +average [0-9.]+ of 2`, `Nice: +4`,
		`Open files: +at most 77 \(usage is not measured\)`, `Privileges: +cannot be gained`} {
		if !regexp.MustCompile(want).MatchString(detail) {
			t.Errorf("show does not say %q:\n%s", want, detail)
		}
	}
}
