package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// setSubreaper makes this process adopt orphans (as a child subreaper), like a runner, until the test ends.
func setSubreaper(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

// allowHangingStarts prepares this process for starts that hang, until the test ends. It turns garbage
// collection off, because a collection would wait for these starts. It also lets more threads run Go code,
// because each hanging start occupies a thread.
func allowHangingStarts(t *testing.T) {
	percent, procs := debug.SetGCPercent(-1), runtime.GOMAXPROCS(8)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	})
}

// runCommandAsync runs a command on a new worker in the background. It returns a channel that receives the result.
func runCommandAsync(t *testing.T, c *Command) <-chan Result {
	t.Helper()
	result := make(chan Result, 1)
	go func() {
		w := NewWorker(nil)
		defer w.Close()
		result <- w.Run(c)
	}()
	return result
}

// waitUntil waits until isTrue returns true. description describes this condition in the error message.
func waitUntil(t *testing.T, description string, isTrue func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !isTrue(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", description)
		}
	}
}

// startingChildren lists the children of this process that have not executed a program yet.
func startingChildren(t *testing.T) (pids []int) {
	t.Helper()
	s, err := NewStartWatcher(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	s.KillHungStarts(time.Hour, 0)
	for pid := range s.startingChildren {
		pids = append(pids, pid)
	}
	return pids
}

// While the start of one program hangs, other commands start and end without delay, also if they leave an
// orphan or end while an orphan exists. The start hangs because a user holds a lease (fcntl(2)) on the
// program's file.
func TestHungStartDoesNotDelayOtherCommands(t *testing.T) {
	allowHangingStarts(t)
	setSubreaper(t)
	left := newTestCommand(t, "/bin/sh", "-c", "sleep 4322 >/dev/null 2>&1 & echo $!")
	left.AllowBackground = true
	w := NewWorker(nil)
	defer w.Close()
	if r := w.Run(left); !r.HasBackgroundProcesses {
		t.Fatalf("got %+v, want an orphan that is still running", r)
	}
	defer killByCmdline(t, "sleep\x004322\x00")
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	before := newTestCommand(t, "/bin/cat", gate)
	before.LeftoverGracePeriod = time.Minute
	runs := make(chan int, 1)
	before.OnForked = func(pid int, _ time.Time) { runs <- pid }
	early := runCommandAsync(t, before)
	<-runs
	hung := newTestCommand(t, copyWithFileLease(t, "/bin/true"))
	result := runCommandAsync(t, hung)
	waitUntil(t, "the program is being started", func() bool { return len(startingChildren(t)) == 1 })
	if err := os.WriteFile(gate, []byte("said"), 0); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-early:
		if r.ExitCode != 0 || r.EndedLeftoverCount != 0 || before.output(t) != "said" {
			t.Errorf("a command whose output is open in a process that is starting: %+v, %q", r, before.output(t))
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a command does not end while a process that is starting has its output open")
	}
	for range 20 {
		others := runCommandAsync(t, newTestCommand(t, "/bin/sh", "-c", "(sleep 4323 &)"))
		select {
		case r := <-others:
			if r.ExitCode != 0 || r.EndedLeftoverCount != 1 {
				t.Errorf("another command: %+v", r)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("another command does not end while the start of a program hangs")
		}
	}
	select {
	case r := <-result:
		t.Errorf("the leased program has run: %+v", r)
	default:
	}
	killStartingChildren(t)
	<-result
}

// killStartingChildren kills the children of this process that have not executed a program yet.
func killStartingChildren(t *testing.T) {
	for _, pid := range startingChildren(t) {
		unix.Kill(pid, unix.SIGKILL)
	}
}

// If the start of a program takes too long, the watchdog kills the process. The result is exit code 126 without a
// signal. The result is the same if the program's user kills the process first.
func TestHungStartIsKilled(t *testing.T) {
	allowHangingStarts(t)
	path := copyWithFileLease(t, "/bin/true")
	s, err := NewStartWatcher(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	result := runCommandAsync(t, newTestCommand(t, path))
	var r Result
	waitUntil(t, "the start is abandoned", func() bool {
		s.KillHungStarts(ExecTimeout, 100*time.Millisecond)
		select {
		case r = <-result:
			return true
		default:
			return false
		}
	})
	if want := "cannot start " + path + ": it did not start within 1s"; !r.StartHung || r.ExitCode != 126 ||
		r.Signal != 0 || !strings.HasPrefix(r.Error, want) || r.EndedAt.Sub(r.StartedAt) < ExecTimeout {
		t.Errorf("got %+v, want a hung start, and %q", r, want)
	}
	result = runCommandAsync(t, newTestCommand(t, path))
	waitUntil(t, "the program is being started", func() bool { return len(startingChildren(t)) == 1 })
	killStartingChildren(t)
	r = <-result
	if want := "cannot start " + path + ": signal 9 (SIGKILL) ended the new process before it could run the program; to " +
		"see whether the kernel sent it, run: dmesg"; !r.StartHung || r.ExitCode != 126 || r.Error != want {
		t.Errorf("got %+v, want a hung start, and %q", r, want)
	}
	if r := <-runCommandAsync(t, newTestCommand(t, "/bin/sh", "-c", "kill -KILL $$")); r.StartHung || r.Signal != 9 ||
		r.ExitCode != -1 {
		t.Errorf("a program that ends itself: %+v", r)
	}
}

// If a command is killed while its start hangs, the result has the cause that was passed to Worker.Kill.
func TestKillOfHungStartSetsKillCause(t *testing.T) {
	allowHangingStarts(t)
	w := NewWorker(nil)
	defer w.Close()
	c, result := newTestCommand(t, copyWithFileLease(t, "/bin/true")), make(chan Result, 1)
	go func() { result <- w.Run(c) }()
	waitUntil(t, "the program is being started", func() bool { return len(startingChildren(t)) == 1 })
	if !w.Kill(4, time.Second) {
		t.Error("the kill came too late")
	}
	killStartingChildren(t)
	if r := <-result; r.KillCause != 4 || r.ExitCode != 126 {
		t.Errorf("the result is %+v, want cause 4", r)
	}
}

// If the kernel kills a program for lack of memory, before or after its exec, the result has OutOfMemory set.
// If the program ends in another way, OutOfMemory is not set.
func TestOOMKillAroundExecIsReported(t *testing.T) {
	hung := Result{StartHung: true, ExitCode: 126, Error: "hung"}
	for _, c := range []struct {
		ranOut       bool // the kernel has killed a process of the tree for lack of memory
		before, want Result
	}{
		{true, hung, Result{OutOfMemory: true, ExitCode: -1, Signal: 9}},
		{false, hung, hung},
		{true, Result{ExitCode: -1, Signal: 9}, Result{OutOfMemory: true, ExitCode: -1, Signal: 9}},
		{true, Result{ExitCode: -1, Signal: 15}, Result{ExitCode: -1, Signal: 15}},
		{true, Result{ExitCode: 1}, Result{ExitCode: 1}},
	} {
		got := c.before
		(&runningCommand{runState: runState{result: &got}}).recordOutOfMemory(oomReport{processKilled: c.ranOut})
		if got != c.want {
			t.Errorf("%+v, ran out: %v: got %+v, want %+v", c.before, c.ranOut, got, c.want)
		}
	}
}

// An ended process is reaped as an orphan only when no fork is in progress that may have created it. A main process is
// reaped only by its worker.
func TestOrphanReapSkipsActiveForks(t *testing.T) {
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	before := unreapedChildren(os.Getpid())
	createOrphan := func() (pid int) {
		c := newTestCommand(t, "/bin/sh", "-c", "sleep 4324 >/dev/null 2>&1 &")
		c.AllowBackground = true
		if r := w.Run(c); !r.HasBackgroundProcesses {
			t.Fatalf("the result is %+v, want a background process", r)
		}
		for _, p := range unreapedChildren(os.Getpid()) {
			if !slices.Contains(before, p) {
				pid = p
			}
		}
		unix.Kill(pid, unix.SIGKILL)
		waitUntil(t, "the orphan has ended", func() bool {
			_, ended := childExitState(pid)
			return ended
		})
		return pid
	}
	first, old := globalOrphanTable.beginFork(), createOrphan()
	check := func(pid int, exists bool, when string) {
		t.Helper()
		ReapEndedOrphans()
		if _, found := procfs.Stat(pid); found != exists {
			t.Errorf("%s: the orphan exists: %v, want %v", when, found, exists)
		}
	}
	check(old, true, "while a fork is under way")
	second := globalOrphanTable.beginFork()
	check(old, true, "while two forks are under way")
	globalOrphanTable.endFork(first, 0)
	check(old, false, "while a fork is under way that began after it was seen")
	young := createOrphan()
	check(young, true, "while a fork is under way that began before it was seen")
	globalOrphanTable.endFork(second, young)
	check(young, true, "as a main process")
	if _, _, ok, err := globalOrphanTable.reapMainProcess(young); !ok || err != nil {
		t.Errorf("its worker's wait: %v, %v", ok, err)
	}
}

// killByCmdline ends the processes that have the given command line.
func killByCmdline(t *testing.T, cmdline string) {
	t.Helper()
	for _, p := range procfs.AllProcesses() {
		if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); string(raw) == cmdline {
			unix.Kill(p.PID, unix.SIGKILL)
			unix.Wait4(p.PID, nil, 0, nil)
		}
	}
}
