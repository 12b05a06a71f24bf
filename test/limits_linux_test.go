package test

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
)

// A service that runs out of file descriptors refuses connections and does not spin. It works
// again when descriptors are free, and acknowledged jobs run.
func TestOutOfDescriptors(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	id := q.must("enqueue", "sleep 1; touch "+q.path("ended"))
	lift := setLimit(t, q.cmd.Process.Pid, unix.RLIMIT_NOFILE, freeDescriptor(q.cmd.Process.Pid)+20)
	defer lift()
	var conns []net.Conn
	for range 100 {
		c, err := net.DialTimeout("unix", filepath.Join(q.dir, "queuectl.sock"), 100*time.Millisecond)
		if err != nil {
			break // the socket's backlog is full
		}
		conns = append(conns, c)
	}
	before := cpuTicks(t, q.cmd.Process.Pid)
	q.waitUntil("the job ends without a client", 10*time.Second, func() bool {
		_, err := os.Stat(q.path("ended"))
		return err == nil
	})
	if spent := cpuTicks(t, q.cmd.Process.Pid) - before; spent > 30 {
		t.Errorf("%d ticks of CPU while no descriptor was free: it spins", spent)
	}
	for _, c := range conns {
		c.Close()
	}
	q.waitUntil("it answers again", 20*time.Second, func() bool { return q.cli("wait", id, "--timeout", "5").code == 0 })
}

// startWithLimits starts the service under resource limits that a shell sets.
func (q *queue) startWithLimits(limits string) error {
	q.Helper()
	plain := q.bin
	defer func() { q.bin = plain }()
	q.bin = q.path("limited")
	script := fmt.Sprintf("#!/bin/bash\nif [ \"$1\" = serve ]; then %s; fi\nexec %s \"$@\"\n", limits, plain)
	if err := os.WriteFile(q.bin, []byte(script), 0o755); err != nil {
		q.Fatal(err)
	}
	return q.tryStart("--workers", "2")
}

// A service does not start under limits that would make it fail later, and the error names the limit. If it
// has fewer descriptors than the settings need, it allows fewer connections, in total and per user, and
// status says so.
func TestLowServiceLimitsAreReported(t *testing.T) {
	for limits, wantText := range map[string]string{
		"ulimit -n 90":      "the limit of open files is 90, but at least 96 are needed",
		"ulimit -v 1000000": "the address space limit",
		"ulimit -f 1024":    "the file size limit is 1MiB",
	} {
		q := newQueue(t, "")
		err := q.startWithLimits(limits)
		if err == nil || q.cmd.ProcessState.ExitCode() != 78 || !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v, want exit 78 and %q", limits, err, wantText)
		}
		q.cmd = nil
	}
	q := newQueue(t, "")
	if err := q.startWithLimits("ulimit -n 200"); err != nil {
		t.Fatal(err)
	}
	if got := q.must("status"); !strings.Contains(got,
		"the limit of open files is 200, which allows 136 connections (34 per user)") {
		t.Errorf("status says nothing of the connections:\n%s", got)
	}
	id := q.must("enqueue", "-q", "--delay", "1h", "true")
	messages := ""
	for range 60 {
		c, err := net.Dial("unix", q.path("queuectl.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintln(c, `{"id":1,"method":"hello"}`)
		// The connection is busy, so the service does not close it to admit another one.
		fmt.Fprintf(c, `{"id":2,"method":"wait","params":{"ids":[%q]}}`+"\n", strings.TrimSpace(id))
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if messages, err = bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(messages, "result") {
			break
		}
	}
	if !strings.Contains(messages, "you have 34 open connections to the service, all in use") {
		t.Errorf("the last one was told %q", messages)
	}
}

// If the service reaches its limit on file sizes, it refuses new jobs in time, and running jobs end and are
// recorded. The limit ends neither the service nor the runner. It may end commands, which have the same
// limit.
func TestFileSizeLimitRefusesJobs(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	before := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go") + "; head -c 3000000 /dev/zero",
		"output_limit": 4 << 20})
	w.waitRunning(before)
	size := func() (n int64) {
		for _, name := range []string{"queuectl.db", "queuectl.db-wal"} {
			info, err := os.Stat(q.path(name))
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
		}
		return n
	}
	runner := q.runnerPid()
	lifts := []func(){
		setLimit(t, q.cmd.Process.Pid, unix.RLIMIT_FSIZE, uint64(size())+13<<20),
		setLimit(t, runner, unix.RLIMIT_FSIZE, 1<<20),
	}
	refused := ""
	q.waitUntil("a new job is refused", 60*time.Second, func() bool {
		a := w.call("enqueue.batch", fields{"jobs": copies(20,
			fields{"command": ": " + strings.Repeat("x", 50_000), "delay": "1h"}), "commit": true})
		if a.Error != nil {
			refused = fmt.Sprint(*a.Error)
		}
		return a.Error != nil
	})
	if !strings.Contains(refused, "no_space") || !strings.Contains(refused, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("it is refused with %s", refused)
	}
	if got := q.must("status"); !strings.Contains(got, "for file sizes (LimitFSIZE=, ulimit -f)") {
		t.Errorf("status says nothing of it:\n%s", got)
	}
	q.writeFile("go", "")
	if j := w.waitEnded(before); j.State != "completed" || j.History[0].Dropped == 0 {
		t.Errorf("got %+v, want it completed, and output dropped", j)
	}
	lifts[0]()
	q.waitUntil("a new job is taken", 20*time.Second, func() bool { return q.cli("enqueue", "true").code == 0 })
	writes := w.enqueue(fields{"command": "exec head -c 3000000 /dev/zero >" + q.path("large"), "max_retries": 0})
	if j := w.waitEnded(writes); j.Signal == nil || *j.Signal != int(unix.SIGXFSZ) {
		t.Errorf("got %+v, want it ended by SIGXFSZ", j)
	}
	lifts[1]()
	if now := q.runnerPid(); now != runner || q.cli("status").code != 0 {
		t.Errorf("runner %d, once %d", now, runner)
	}
}

// cpuTicks returns the CPU time of a process in clock ticks.
func cpuTicks(t *testing.T, pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var user, system int
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return user + system
}

// injectFault attaches strace with an injected fault to the service until the caller calls stop.
func (q *queue) injectFault(options ...string) (stop func()) {
	q.Helper()
	args := append([]string{"-f", "-p", fmt.Sprint(q.cmd.Process.Pid), "-o", os.DevNull}, options...)
	cmd := exec.Command("strace", args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err != nil { // strace prints "Process … attached"
		q.Fatalf("strace: %v", err)
	}
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// While each fsync takes two seconds, cancelling a job still ends its process tree immediately,
// and acknowledgements are late but true.
func TestSlowDisk(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	q := newQueue(t, "")
	q.start("--workers", "2")
	running := q.must("enqueue", "sleep 100")
	q.waitUntil("the job runs", 10*time.Second, func() bool { return q.show(running).State == "processing" })
	pid := q.show(running).PID
	stop := q.injectFault("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000")
	defer stop()
	go q.cli("enqueue", "true") // this request keeps the writer busy with an fsync
	started := time.Now()
	cancelled := make(chan result, 1)
	go func() { cancelled <- q.cli("cancel", running) }()
	q.waitUntil("the tree is gone", 1500*time.Millisecond, func() bool { return syscall.Kill(pid, 0) != nil })
	t.Logf("tree ended after %v", time.Since(started))
	if r := <-cancelled; r.code != 0 {
		t.Errorf("cancel: exit code %d, %s", r.code, r.err)
	}
	if s := q.show(running).State; s != "cancelled" {
		t.Errorf("state %s, want cancelled", s)
	}
}

// When the disk turns read-only, the service exits with 74 and a reason. Its jobs continue, and
// the next service gets their results. The test needs root to mount the disk.
func TestReadOnlyDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and TestDiskErrorsLoseNothing has the same stop")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	q := newQueue(t, "")
	disk := q.mount("64M")
	q.start("--workers", "1")
	jobID := q.must("enqueue", "true")
	q.must("wait", jobID)
	// The option "abort" makes the file system read-only, as happens when ext4 finds an error.
	if out, err := exec.Command("mount", "-o", "remount,abort", disk).CombinedOutput(); err != nil {
		t.Fatalf("make the disk read-only: %v\n%s", err, out)
	}
	if r := q.cli("enqueue", "true"); r.code == 0 {
		t.Error("a job was acknowledged on a read-only disk")
	}
	select {
	case <-q.ended:
		if code := q.cmd.ProcessState.ExitCode(); code != 74 {
			t.Errorf("exit code %d, want 74", code)
		}
		q.cmd = nil
	case <-time.After(10 * time.Second):
		t.Error("the service goes on on a read-only disk")
	}
	q.killRunners()
	image := filepath.Join(filepath.Dir(disk), "disk.img")
	q.waitUntil("the disk can be unmounted", 10*time.Second, func() bool {
		return exec.Command("umount", disk).Run() == nil
	})
	if out, err := exec.Command("mount", "-o", "loop", image, disk).CombinedOutput(); err != nil {
		t.Fatalf("mount again: %v\n%s", err, out)
	}
	q.start("--workers", "1")
	if j := q.show(jobID); j.State != "completed" {
		t.Errorf("after the disk came back the job is %s", j.State)
	}
}

// While the disk is frozen, "status --check" responds and reports the frozen disk. Once the disk is thawed,
// the waiting request succeeds.
func TestFrozenDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sql cover slow commits")
	t.Parallel()
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	skip.UnlessProgram(t, "fsfreeze", "needs fsfreeze; .ci/run installs it")
	q := newQueue(t, "")
	disk := q.mount("64M")
	q.start("--workers", "1")
	q.must("run", "--", "true")
	freeze := func(option string) {
		if out, err := exec.Command("fsfreeze", option, disk).CombinedOutput(); err != nil {
			t.Fatalf("fsfreeze %s: %v\n%s", option, err, out)
		}
	}
	freeze("--freeze")
	thaw := sync.OnceFunc(func() { freeze("--unfreeze") })
	t.Cleanup(thaw)
	enqueued := make(chan result, 1)
	go func() { enqueued <- q.cli("enqueue", "--id", "late", "true") }()
	q.waitUntil("the frozen disk is reported", 30*time.Second, func() bool {
		got := q.cli("status", "--check")
		return got.code == 2 && strings.HasPrefix(got.out, "failing: the database has been waiting for the disk of "+disk)
	})
	thaw()
	if got := <-enqueued; got.code != 0 {
		t.Errorf("the request that waited for the disk: %+v", got)
	}
	q.must("wait", "late")
	if got := q.cli("status", "--check"); got.code != 0 {
		t.Errorf("after the disk was thawed: %+v", got)
	}
}

// mount puts the queue's directory on a separate disk, made with the given mkfs options.
func (q *queue) mount(size string, options ...string) string {
	q.Helper()
	image, disk := filepath.Join(q.dir, "disk.img"), filepath.Join(q.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		q.Fatal(err)
	}
	mkfs := append([]string{"mkfs.ext4", "-q", image}, options...)
	for _, words := range [][]string{{"truncate", "-s", size, image}, mkfs, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			q.Fatalf("%v: %v\n%s", words, err, out)
		}
	}
	outer := q.dir
	q.dir = disk
	q.Cleanup(func() {
		q.kill()
		q.killRunners()
		if err := unmount(disk); err != nil && err != syscall.EINVAL { // EINVAL means that it is not mounted
			q.Error(err)
			syscall.Unmount(disk, syscall.MNT_DETACH)
		}
		q.dir = outer
	})
	return disk
}

// Without control groups, as in this test, the memory limit of a job applies to each of its processes
// separately. The log of the service says so once. With control groups, the limit would apply to the whole
// job.
func TestLimitsWithoutControlGroups(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	for range 2 {
		id := q.must("enqueue", "-q", "--memory", "256M", "--cpus", "0.5", "--tasks", "7", "--max-retries", "0", "ulimit -v")
		q.must("wait", id)
		if got := strings.TrimSpace(q.must("logs", id)); got != "262144" {
			t.Errorf("its limit is %s KiB", got)
		}
	}
	if n := strings.Count(q.logText(), "limits that this system does not enforce"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	for flag, invalid := range map[string]string{"--memory": "1K", "--cpus": "0", "--tasks": "0", "--nice": "20",
		"--nofile": "0"} {
		if r := q.cli("enqueue", flag, invalid, "true"); r.code != 2 ||
			!strings.Contains(r.err, strings.TrimPrefix(flag, "--")) {
			t.Errorf("%s %s: exit code %d, %s", flag, invalid, r.code, r.err)
		}
	}
}

// enqueue names the limits of a job that are not enforced. With --require-limits, it refuses such a job and
// stores nothing. doctor warns of each limit that is not enforced, and says what enforces the other limits.
func TestUnenforcedLimitsAreReported(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "0")
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
		if r := q.cli(c.words...); r.code != 0 || r.err != c.want {
			t.Errorf("%q: exit code %d, %q, want %q", c.words, r.code, r.err, c.want)
		}
	}
	before := q.must("status", "--json")
	const perProcess = "this limit applies to each process of a job separately on this machine"
	for want, words := range map[string][]string{
		"cpus: this limit is not enforced on this machine": {"enqueue", "--require-limits", "--cpus", "1", "true"},
		"memory: " + perProcess:                            {"run", "--require-limits", "--memory", "64M", "true"},
		"line 1: memory: " + perProcess:                    {"enqueue", "--require-limits", "--file", file},
	} {
		if r := q.cli(words...); r.code == 0 || !strings.Contains(r.err, want) ||
			!strings.Contains(r.err, "no control groups") {
			t.Errorf("%q: exit code %d, %s", words, r.code, r.err)
		}
	}
	if after := q.must("status", "--json"); totalEnqueued(t, after) != totalEnqueued(t, before) {
		t.Errorf("what was refused is stored: %s, before %s", after, before)
	}
	q.must("enqueue", "--require-limits", "--nice", "3", "true")
	private := exec.Command(q.bin, "--dir", filepath.Join(t.TempDir(), "private"), "run", "--private", "--require-limits",
		"--file", file)
	private.Env = environment(q.dir)
	if r := runCommand(t, private); r.code == 0 || !strings.Contains(r.err, "memory: "+perProcess) {
		t.Errorf("a private run: exit code %d, %s", r.code, r.err)
	}
	r := q.cli("doctor")
	for _, want := range []string{
		"WARNING  enforcement  memory is enforced for each process, not per job: ",
		"WARNING  enforcement  cpus limits are not enforced (there are no control groups)\n",
		"WARNING  enforcement  tasks limits are not enforced (", "ok       enforcement  nice is enforced by ",
		"ok       enforcement  nofile is enforced by ",
	} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("doctor ends with %d, and does not say %q:\n%s", r.code, want, r.out)
		}
	}
}

// totalEnqueued returns the total number of jobs ever enqueued, as reported in the JSON of status.
func totalEnqueued(t *testing.T, status string) (n int64) {
	t.Helper()
	var st struct{ Enqueued int64 }
	if err := json.Unmarshal([]byte(status), &st); err != nil {
		t.Fatal(err)
	}
	return st.Enqueued
}

// The limits nice, nofile and no_new_privileges apply to each attempt of a job, also after an edit of another
// field. show prints each limit next to what the job used.
func TestLimitsApplyToEachAttempt(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	id := q.must("enqueue", "-q", "--nice", "4", "--nofile", "77", "--no-new-privileges", "--memory", "512M", "--cpus",
		"2", "echo $(nice) $(ulimit -n) $(ulimit -Hn) $(grep -o NoNewPrivs.* /proc/self/status)")
	q.must("edit", id, "--priority", "9")
	q.must("worker", "scale", "1")
	q.must("wait", id)
	if got := strings.TrimSpace(q.must("logs", id)); got != "4 77 77 NoNewPrivs: 1" {
		t.Errorf("got %q", got)
	}
	detail := q.must("show", id)
	for _, want := range []string{`Memory: +at most 512.0 MiB`, `Processors: +average [0-9.]+ of 2`, `Nice: +4`,
		`Open files: +at most 77 \(usage is not measured\)`, `Privileges: +cannot be gained`} {
		if !regexp.MustCompile(want).MatchString(detail) {
			t.Errorf("show does not say %q:\n%s", want, detail)
		}
	}
}
