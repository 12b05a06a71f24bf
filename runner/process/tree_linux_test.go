package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/runner/procfs"
	"github.com/queuectl/queuectl/runner/runas"
)

// startUnrelatedProcess starts a process that belongs to no command. The process is killed when the test ends.
func startUnrelatedProcess(t *testing.T, configure func(c *exec.Cmd)) (pid int) {
	t.Helper()
	c := exec.Command("/bin/sleep", "4330")
	c.SysProcAttr = &syscall.SysProcAttr{}
	configure(c)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c.Process.Pid
}

func isProcessAlive(pid int) bool {
	p, ok := procfs.Stat(pid)
	return ok && p.WasAlive()
}

// setOtherAccount makes c run under an account that the commands of the tests do not use.
func setOtherAccount(c *exec.Cmd) { c.SysProcAttr.Credential = &syscall.Credential{Uid: 2, Gid: 2} }

// The processes of a command have its cookie (a text) in their environment. A process of another account may
// have a copy of the cookie, but does not belong to the command: it is not killed, and does not delay the end
// of the command.
func TestForgedCookieDoesNotDelayCommandEnd(t *testing.T) {
	skip.UnlessRoot(t, "needs root to start processes of several users; .ci/run runs it as root")
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "/bin/sh", "-c", "sleep 4331 & exec kill -TERM $$")
	forged := startUnrelatedProcess(t, func(s *exec.Cmd) {
		setOtherAccount(s)
		s.Env = []string{CookieEnvVar + "=" + c.Cookie}
	})
	if r := w.Run(c); r.EndedLeftoverCount != 1 || r.Signal != 15 {
		t.Errorf("got %+v, want one process left behind", r)
	}
	if !isProcessAlive(forged) {
		t.Error("another account's process was ended")
	}
}

// Signal sends a signal to each process of a command that the command's account may signal, exactly once, and to no
// other process.
func TestSignalReachesOnlyOwnAccountProcesses(t *testing.T) {
	skip.UnlessRoot(t, "needs root to start processes of several users; .ci/run runs it as root")
	w := NewWorker(nil)
	defer w.Close()
	w.startsCommandsInSessions = false // a process of another account can then join the command's group
	c := newTestCommand(t, "/bin/sh", "-c",
		`trap 'echo main' USR1; sh -c "trap 'echo child' USR1; echo up; while :; do sleep 0.01; done" & `+
			`echo up; while :; do sleep 0.01; done`)
	c.RunAs = &runas.Identity{UID: 2, GID: 2, Groups: []uint32{2}}
	pid := make(chan int, 1)
	c.OnForked = func(p int, _ time.Time) { pid <- p }
	result := make(chan Result, 1)
	go func() { result <- w.Run(c) }()
	main := <-pid
	waitUntil(t, "both are up", func() bool { return strings.Count(c.output(t), "up\n") == 2 })
	roots := startUnrelatedProcess(t, func(s *exec.Cmd) { s.SysProcAttr.Setpgid, s.SysProcAttr.Pgid = true, main })
	w.Signal(main, c.Cookie, int(unix.SIGUSR1))
	waitUntil(t, "both have received the signal", func() bool {
		return strings.Contains(c.output(t), "main\n") && strings.Contains(c.output(t), "child\n")
	})
	if !isProcessAlive(roots) {
		t.Error("root's process in the group was signalled by an account without the right to do so")
	}
	w.Signal(main+1, c.Cookie, int(unix.SIGKILL))
	w.Kill(4, 0)
	if r := <-result; r.KillCause != 4 || strings.Count(c.output(t), "main\n") != 1 {
		t.Errorf("the result is %+v, output %q; want cause 4 and one signal in the main process", r, c.output(t))
	}
	if isProcessAlive(roots) {
		t.Error("the end of the tree left a process of its group")
	}
}

// If a command has its own session, the processes in this session belong to the command, even if their
// process group and environment differ. A command without its own session is at least the leader of its
// process group.
func TestProcessTreeIsFoundBySession(t *testing.T) {
	for _, session := range []bool{false, true} {
		w := NewWorker(nil)
		w.startsCommandsInSessions = session
		c := newTestCommand(t, "/bin/sh", "-c",
			`read -r _ _ _ _ group session _ </proc/$$/stat; echo $((group - $$)) $((session - $$ == 0))`)
		r, want := w.Run(c), fmt.Sprintf("0 %d\n", map[bool]int{true: 1}[session])
		if r.ExitCode != 0 || c.output(t) != want {
			t.Errorf("separate session %v: the result is %+v, output %q; want %q", session, r, c.output(t), want)
		}
		w.Close()
	}
	w := NewWorker(nil)
	defer w.Close()
	w.startsCommandsInSessions = true
	setSubreaper(t)
	// timeout(1) starts a new process group.
	if r := w.Run(newTestCommand(
		t, "/bin/sh", "-c", "env -i timeout 4332 sleep 4332 >/dev/null 2>&1 & exit 0")); r.EndedLeftoverCount != 2 {
		t.Errorf("got %+v, want two processes left behind", r)
	}
}

// Background trees are process trees that live on after their command. An account may have maxBackgroundTreesPerUser of
// them. A further tree is ended, and the result says why. When a background tree has ended, another one may live on.
func TestBackgroundTreesAreBounded(t *testing.T) {
	t.Run("by cookie", func(t *testing.T) { testBackgroundTrees(t, nil) })
	t.Run("by control group", func(t *testing.T) { testBackgroundTrees(t, newTestCgroups(t)) })
}

// testBackgroundTrees runs the test with control groups or, if groups is nil, without them. Without control groups, the
// processes of a tree are found by their cookie.
func testBackgroundTrees(t *testing.T, groups *Cgroups) {
	setSubreaper(t)
	w := NewWorker(groups)
	defer w.Close()
	word := strconv.FormatInt(time.Now().UnixNano(), 10)
	trees := func() (list []int) {
		for _, p := range procfs.AllProcesses() {
			if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); string(raw) == "sleep\x00433."+word+"\x00" {
				list = append(list, p.PID)
			}
		}
		return list
	}
	defer func() {
		for _, pid := range trees() {
			unix.Kill(pid, unix.SIGKILL)
		}
		waitUntil(t, "all have ended", func() bool { return len(trees()) == 0 })
		ReapEndedOrphans()
	}()
	run := func(configure func(c *Command)) Result {
		c := newTestCommand(t, "/bin/sh", "-c", "sleep 433."+word+" >/dev/null 2>&1 & :")
		c.AllowBackground = true
		configure(c)
		return w.Run(c)
	}
	plain := func(*Command) {}
	for i := range maxBackgroundTreesPerUser {
		if r := run(plain); !r.HasBackgroundProcesses || r.EndedLeftoverCount != 0 || r.Error != "" {
			t.Fatalf("tree %d: %+v, want it spared", i+1, r)
		}
	}
	if r := run(plain); r.HasBackgroundProcesses || r.EndedLeftoverCount != 1 || r.ExitCode != 0 ||
		!strings.Contains(r.Error, "64 earlier jobs") {
		t.Errorf("one tree more: %+v, want it ended", r)
	}
	own := trees()
	if os.Geteuid() == 0 {
		if r := run(func(c *Command) {
			c.RunAs = &runas.Identity{UID: 2, GID: 2, Groups: []uint32{2}}
		}); !r.HasBackgroundProcesses {
			t.Errorf("another account's: %+v, want it spared", r)
		}
	}
	unix.Kill(own[0], unix.SIGKILL)
	waitUntil(t, "one has ended", func() bool {
		ReapEndedOrphans()
		return len(trees()) < maxBackgroundTreesPerUser+1 || os.Geteuid() != 0
	})
	if r := run(plain); !r.HasBackgroundProcesses {
		t.Errorf("after one has ended: %+v, want it spared", r)
	}
}

// If the exit status of a command is unknown, the result has ExitStatusUnknown set, and ExitCode is -1.
func TestUnknownExitStatusIsReported(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "/bin/true")
	// Reap the process before the worker does.
	c.OnForked = func(pid int, _ time.Time) { unix.Wait4(pid, nil, 0, nil) }
	if r := w.Run(c); !r.ExitStatusUnknown || r.ExitCode != -1 || !strings.Contains(r.Error, "no child processes") {
		t.Errorf("got %+v, want it lost", r)
	}
}

// If a tracer (ptrace) withholds a command's exit status, the worker waits no longer than SigkillTimeout.
func TestWithheldExitStatusFreesWorker(t *testing.T) {
	skip.UnlessRoot(t, "needs root to start processes of several users; .ci/run runs it as root")
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "/bin/cat", gate)
	c.SigkillTimeout = 100 * time.Millisecond
	tracer := exec.Command("/proc/self/exe")
	c.OnForked = func(pid int, _ time.Time) {
		tracer.Env = append(os.Environ(), testRoleEnvVar+"=trace "+strconv.Itoa(pid))
		_, err1 := tracer.StdinPipe()
		out, err2 := tracer.StdoutPipe()
		if err := errors.Join(err1, err2, tracer.Start()); err != nil {
			t.Error(err)
			return
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "tracing:  <nil>\n" {
			t.Errorf("the tracer printed %q, %v", line, err)
		}
		if err := os.WriteFile(gate, nil, 0); err != nil {
			t.Error(err)
		}
	}
	r := w.Run(c)
	if !r.ExitHeldByTracer || r.StuckPID != 0 || r.ExitCode != -1 || !strings.Contains(r.Error, "traces it") {
		t.Errorf("got %+v, want it given up, and no worker taken", r)
	}
	tracer.Process.Kill()
	tracer.Wait()
	waitUntil(t, "the main process is reaped", func() bool {
		_, exists := procfs.Stat(r.PID)
		return !exists
	})
	if r := w.Run(newTestCommand(t, "/bin/true")); r.ExitCode != 0 || r.StuckPID != 0 {
		t.Errorf("the next command: the result is %+v", r)
	}
}

// If a tracer (ptrace) prevents the end of a killed command, the tracer is killed too. The worker is then
// free again.
func TestBlockingTracerIsKilled(t *testing.T) {
	skip.UnlessRoot(t, "needs root to start processes of several users; .ci/run runs it as root")
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "/bin/sleep", "60")
	c.Timeout, c.KillAfter, c.SigkillTimeout = 300*time.Millisecond, 0, 300*time.Millisecond
	tracer := exec.Command("/proc/self/exe")
	c.OnForked = func(pid int, _ time.Time) {
		tracer.Env = append(os.Environ(), testRoleEnvVar+"=keep "+strconv.Itoa(pid))
		_, err1 := tracer.StdinPipe()
		out, err2 := tracer.StdoutPipe()
		if err := errors.Join(err1, err2, tracer.Start()); err != nil {
			t.Error(err)
			return
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "tracing:  false\n" {
			t.Errorf("the tracer printed %q, %v", line, err)
		}
	}
	if r := w.Run(c); r.StuckPID == 0 {
		t.Errorf("got %+v, want it given up", r)
	}
	stop := make(chan struct{})
	late := time.AfterFunc(10*time.Second, func() { close(stop) })
	w.AwaitStuckProcesses(stop)
	if !late.Stop() {
		t.Error("the process keeps the worker busy")
	}
	tracer.Process.Kill()
	tracer.Wait()
}

// EndProcessTrees recognises the processes of a dead runner by a cookie (a text in their environment), by the seq
// and fence of an attempt in the cookie, or by the pid and start time of a main process. It kills no other
// process. If the runner's pid is unknown, it kills no session.
func TestEndProcessTreesEndsOnlyKnownProcesses(t *testing.T) {
	cookie := func(text string) func(c *exec.Cmd) {
		return func(c *exec.Cmd) { c.Env = []string{CookieEnvVar + "=" + text} }
	}
	plain := func(c *exec.Cmd) { c.Env = []string{"A=b"} }
	own := func(c *exec.Cmd) { plain(c); c.SysProcAttr.Setpgid = true }
	const unknown = time.Hour
	type row struct {
		name       string
		set        func(c *exec.Cmd)
		startDelay time.Duration // time from tree.StartedAt to the process's start; unknown if StartedAt is zero
		tree       AttemptTree   // a MainPID of -1 means the pid of the started process
		ends       bool          // EndProcessTrees must end the process
	}
	rows := []row{
		{"one of the cookies", cookie("dead.runner.1.2"), unknown, AttemptTree{}, true},
		{"the numbers of an attempt", cookie("other.name.7.99"), unknown, AttemptTree{JobSeq: 7, Fence: 99}, true},
		{"the end of a number", cookie("other.name.17.99"), unknown, AttemptTree{}, false},
		{"the beginning of a number", cookie("other.name.7.990"), unknown, AttemptTree{}, false},
		{"no name before the numbers", cookie("7.99"), unknown, AttemptTree{}, false},
		{"no fence", cookie("other.name.9.0"), unknown, AttemptTree{JobSeq: 9}, false},
		{"a main process", own, maxStartAfterFork - 5*time.Millisecond, AttemptTree{MainPID: -1, JobSeq: 8, Fence: 1}, true},
		{"a main process by a clock with ticks", own, 5*time.Millisecond - maxStartBeforeFork, AttemptTree{MainPID: -1},
			true},
		{"a process that started before", own, -maxStartBeforeFork - 5*time.Millisecond,
			AttemptTree{MainPID: -1, JobSeq: 8, Fence: 2}, false},
		{"a process that started after", own, maxStartAfterFork + 5*time.Millisecond,
			AttemptTree{MainPID: -1, JobSeq: 8, Fence: 3}, false},
		{"a process of which nothing is known", own, unknown, AttemptTree{MainPID: -1, JobSeq: 8, Fence: 4}, false},
		{"a main process with its cookie", cookie("other.name.8.5"), unknown, AttemptTree{MainPID: -1, JobSeq: 8, Fence: 5},
			true},
		{"a stranger", plain, unknown, AttemptTree{}, false},
	}
	d := DeadRunner{Cookies: []string{"dead.runner.1.2"}}
	var pids []int
	for _, r := range rows {
		pid := startUnrelatedProcess(t, r.set)
		pids = append(pids, pid)
		if r.tree.MainPID == -1 {
			r.tree.MainPID = pid
		}
		if r.startDelay != unknown {
			p, _ := procfs.Stat(pid)
			var up unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
				t.Fatal(err)
			}
			age := time.Duration(up.Nano()) - time.Duration(p.StartTicks)*10*time.Millisecond
			r.tree.StartedAt = time.Now().Add(-age - r.startDelay)
		}
		d.AttemptTrees = append(d.AttemptTrees, r.tree)
	}
	member := startUnrelatedProcess(t, func(c *exec.Cmd) {
		plain(c)
		c.SysProcAttr.Setpgid, c.SysProcAttr.Pgid = true, pids[6]
	})
	other := startUnrelatedProcess(t, func(c *exec.Cmd) {
		plain(c)
		c.SysProcAttr.Setpgid, c.SysProcAttr.Pgid = true, pids[8]
	})
	spared := startUnrelatedProcess(t, func(c *exec.Cmd) { cookie("dead.runner.1.2")(c); c.SysProcAttr.Setpgid = true })
	d.IsBackgroundGroup = func(pgid int) bool { return pgid == spared }
	found, stuck := EndProcessTrees(d, 20*time.Second)
	if stuck != nil {
		t.Errorf("EndTrees could not end %v", stuck)
	}
	for i, r := range rows {
		if isProcessAlive(pids[i]) == r.ends {
			t.Errorf("%s: EndTrees must end the process: %v", r.name, r.ends)
		}
		if slices.ContainsFunc(found, func(p SurvivingProcess) bool { return p.PID == pids[i] }) != r.ends {
			t.Errorf("%s: EndTrees returned the process: %v", r.name, !r.ends)
		}
	}
	if isProcessAlive(member) || !isProcessAlive(other) || !isProcessAlive(spared) {
		t.Errorf("alive: member of a main process's group %v, of another group %v, spared %v", isProcessAlive(member),
			isProcessAlive(other), isProcessAlive(spared))
	}
}

// Orphans of jobs of other accounts do not delay the end of a command.
func TestOtherAccountOrphansDoNotDelayCommandEnd(t *testing.T) {
	skip.UnlessRoot(t, "needs root to start processes of several users; .ci/run runs it as root")
	cmd := exec.Command("/bin/sleep", "433")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2, Gid: 2}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // Wait returns an error, because the process was killed
	defer cmd.Process.Kill()
	ownsOrphan := func(uid uint32) bool {
		r := &runningCommand{runState: runState{command: &Command{RunAs: &runas.Identity{UID: uid}}}}
		return r.mayOwnAnyOrphan([]int{cmd.Process.Pid})
	}
	if ownsOrphan(1) || !ownsOrphan(2) {
		t.Errorf("the orphan may belong to another account's command: %t, to its own account's: %t; want false and true",
			ownsOrphan(1), ownsOrphan(2))
	}
}

// An orphan (a process whose parent has ended) may have lost its cookie and session. It is then unknown to which
// command the orphan belongs. The command waits for such an orphan and reads its output.
func TestOutputOfUnidentifiedOrphanIsRead(t *testing.T) {
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	c := newTestCommand(t, "/bin/sh", "-c", "setsid env -i /bin/sh -c 'sleep 0.2; head -c 400000 /dev/zero' & exit 0")
	c.LeftoverGracePeriod = 10 * time.Second
	start := time.Now()
	r := w.Run(c)
	if got := len(c.output(t)); got != 400_000 || time.Since(start) > 5*time.Second {
		t.Errorf("after %v, the output has %d bytes, want 400000; the result is %+v", time.Since(start), got, r)
	}
}
