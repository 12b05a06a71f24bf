package process

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
)

// The result contains the whole 32-bit exit code.
func TestExitCodeKeepsAll32Bits(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	for _, code := range []int64{0, 1, 255, 256, 259, 3221225786, 4294967295} {
		r, _, _ := runOnWorker(t, w, newTestCommand(t, "exit", strconv.FormatInt(code, 10)))
		if r.ExitCode != code || r.Signal != 0 || r.Error != "" || r.EndedLeftoverCount != 0 {
			t.Errorf("exit code %d: the result is %+v", code, r)
		}
	}
}

// The recorded output contains exactly the bytes that the command has written.
func TestOutputKeepsExactBytes(t *testing.T) {
	_, stdout, stderr := runCommand(t, newTestCommand(t, "print"))
	if stdout != string(binaryOutput()) || stderr != "err\r\n" {
		t.Errorf("got %d bytes of output and error output %q", len(stdout), stderr)
	}
	if _, stdout, _ = runCommand(t, newTestCommand(t, "gaps")); stdout != "012" {
		t.Errorf("with empty writes between: %q", stdout)
	}
}

// A timeout ends the whole tree.
func TestTimeoutEndsProcessTree(t *testing.T) {
	dir := t.TempDir()
	c := newTestCommand(t, "tree", dir, "3")
	c.Timeout = 10 * time.Millisecond // Run checks the timeout only after OnStarted has returned
	var processes []windows.Handle
	c.OnStarted = func(int, time.Time) { processes = openTreeHandles(t, dir, 3) }
	r, _, _ := runCommand(t, c)
	if !r.TimedOut || r.ExitCode != 1 || r.StuckPID != 0 {
		t.Errorf("the result is %+v, want a timeout", r)
	}
	if n := countLivingProcesses(processes, 0); n != 0 || len(processes) != 3 {
		t.Errorf("%d of %d processes still run, want 0 of 3", n, len(processes))
	}
}

// A command that prints nothing is ended at its idle timeout.
func TestIdleTimeoutEndsSilentCommand(t *testing.T) {
	c := newTestCommand(t, "sleep")
	c.IdleTimeout = time.Second
	if r, _, _ := runCommand(t, c); !r.TimedOut || !r.IdleTimedOut {
		t.Errorf("the result is %+v, want an idle timeout", r)
	}
}

// The time that the machine sleeps does not count for the timeouts of a command.
func TestMachineSleepDoesNotCountForTimeouts(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys, _ := fakeSystemCalls(0)
	sys.awakeTime = func() time.Duration { return time.Hour } // this clock does not advance, as if the machine were asleep
	w.systemCalls = &sys
	c := newTestCommand(t, "spin", "2s")
	c.Timeout, c.IdleTimeout, c.Limits = 200*time.Millisecond, 200*time.Millisecond, TreeLimits{MemoryBytes: 1 << 30}
	if r, _, _ := runOnWorker(t, w, c); r.TimedOut || r.ExitCode != 0 {
		t.Errorf("the result is %+v, want exit code 0 and no timeout", r)
	}
	before := realSystemCalls.awakeTime()
	time.Sleep(100 * time.Millisecond)
	if d := realSystemCalls.awakeTime() - before; d < 50*time.Millisecond || d > 10*time.Second {
		t.Errorf("100 ms took %v", d)
	}
}

// A kill ends the tree, and the result has the cause of the kill. A kill after the end has no effect.
func TestKillEndsTreeAndSetsCause(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	if w.Kill(1, 0) {
		t.Error("Kill returned true although no command was running")
	}
	dir := t.TempDir()
	c := newTestCommand(t, "tree", dir, "2")
	var processes []windows.Handle
	c.OnStarted = func(int, time.Time) {
		processes = openTreeHandles(t, dir, 2)
		if !w.Kill(5, time.Hour) || !w.Kill(6, time.Millisecond) {
			t.Error("Kill returned false although the command was running")
		}
	}
	r, _, _ := runOnWorker(t, w, c)
	if r.KillCause != 5 || r.ExitCode != 1 || r.TimedOut || countLivingProcesses(processes, 0) != 0 {
		t.Errorf("%+v, %d processes are still running", r, countLivingProcesses(processes, 0))
	}
	if w.Kill(1, 0) {
		t.Error("a command was killed after its end")
	}
	if r, _, _ = runOnWorker(t, w, newTestCommand(t, "exit", "3")); r.KillCause != 0 || r.ExitCode != 3 {
		t.Errorf("the next command: the result is %+v", r)
	}
}

// Leftover processes, which outlive the main process of their command, are ended with the command, even if
// they hold its output open.
func TestLeftoverProcessesAreEnded(t *testing.T) {
	for _, outputUse := range []string{"holds", "lets go"} {
		dir := t.TempDir()
		c := newTestCommand(t, "behind", dir, outputUse)
		var processes []windows.Handle
		c.OnStarted = func(int, time.Time) { processes = openTreeHandles(t, dir, 1) }
		r, stdout, _ := runCommand(t, c)
		if r.ExitCode != 0 || r.EndedLeftoverCount != 1 || r.HasBackgroundProcesses || stdout != "left" {
			t.Errorf("output %s: the result is %+v, output %q; want one leftover", outputUse, r, stdout)
		}
		if countLivingProcesses(processes, 0) != 0 {
			t.Errorf("output %s: a process is still running", outputUse)
		}
	}
}

// A background process lives on after the command has ended and its worker is closed. A command that does not
// read its standard input ends without delay.
func TestBackgroundProcessSurvives(t *testing.T) {
	for _, outputUse := range []string{"holds", "lets go"} {
		dir := t.TempDir()
		c := newTestCommand(t, "behind", dir, outputUse)
		c.AllowBackground, c.Stdin = true, strings.Repeat("text", 1<<18)
		r, stdout, _ := runCommand(t, c)
		processes := openTreeHandles(t, dir, 1)
		if !r.HasBackgroundProcesses || r.EndedLeftoverCount != 0 || r.ExitCode != 0 || stdout != "left" {
			t.Errorf("output %s: the result is %+v, output %q; want a background process", outputUse, r, stdout)
		}
		if countLivingProcesses(processes, 300*time.Millisecond) != 1 {
			t.Errorf("output %s: the background process was ended", outputUse)
		}
	}
}

// If a process cannot be ended, Run returns after SigkillTimeout. AwaitStuckProcesses then waits until the process
// has ended.
func TestRunReturnsDespiteStuckProcess(t *testing.T) {
	for _, role := range []string{"sleep", "behind"} {
		w := NewWorker(nil)
		defer w.Close()
		sys := realSystemCalls
		sys.terminateJob = func(windows.Handle) {}
		w.systemCalls = &sys
		dir := t.TempDir()
		c := newTestCommand(t, role, dir, "holds")
		c.SigkillTimeout = 100 * time.Millisecond
		if role == "sleep" {
			c.Timeout = 100 * time.Millisecond
		}
		r, _, _ := runOnWorker(t, w, c)
		main := role == "sleep"
		if main && (r.StuckPID != r.PID || r.ExitCode != -1 || !r.TimedOut) || !main &&
			(r.StuckPID != int(readPIDFiles(dir)[0]) || r.ExitCode != 0) || r.Error == "" {
			t.Errorf("role %s: the result is %+v, want a stuck process", role, r)
		}
		stop := make(chan struct{})
		close(stop)
		if w.AwaitStuckProcesses(stop); w.stuckTree == nil {
			t.Errorf("role %s: AwaitStuck returned although the process still runs", role)
			continue
		}
		realSystemCalls.terminateJob(w.stuckTree.jobHandle)
		if w.AwaitStuckProcesses(nil); w.stuckTree != nil {
			t.Errorf("role %s: AwaitStuck does not return although the process has ended", role)
		}
		if r, _, _ = runOnWorker(t, w, newTestCommand(t, "exit", "3")); r.ExitCode != 3 {
			t.Errorf("role %s: the result of the next command is %+v", role, r)
		}
	}
}

// To end a command, Run sends CTRL_BREAK once. The command then has its grace period.
func TestEndingCommandGetsCtrlBreakFirst(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	sys := realSystemCalls
	var groups []uint32
	sys.sendCtrlBreak = func(group uint32) error {
		groups = append(groups, group)
		h, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, group)
		if err == nil {
			defer windows.CloseHandle(h)
			// This is the exit code of a process that does not handle CTRL_BREAK.
			err = windows.TerminateProcess(h, 0xC000013A)
		}
		return err
	}
	w.systemCalls = &sys
	c := newTestCommand(t, "sleep")
	c.Timeout, c.KillAfter = time.Second, time.Hour
	r, _, _ := runOnWorker(t, w, c)
	if !slices.Equal(groups, []uint32{uint32(r.PID)}) || r.ExitCode != 3221225786 || !r.TimedOut {
		t.Errorf("CTRL_BREAK was sent to %v; the result is %+v, want a timeout", groups, r)
	}
	c = newTestCommand(t, "sleep")
	groups = nil
	c.OnStarted = func(pid int, _ time.Time) {
		w.Signal(pid+4, "", sigterm)
		w.Signal(pid, "", 1)
		go w.Signal(pid, "", sigterm)
	}
	if r, _, _ = runOnWorker(t, w, c); !slices.Equal(groups, []uint32{uint32(r.PID)}) || r.TimedOut {
		t.Errorf("after SIGTERM, CTRL_BREAK was sent to %v; the result is %+v", groups, r)
	}
	c = newTestCommand(t, "sleep")
	c.OnStarted = func(pid int, _ time.Time) { w.Signal(pid, "", sigkill) }
	if r, _, _ = runOnWorker(t, w, c); r.ExitCode != 1 || r.KillCause != 0 {
		t.Errorf("after SIGKILL the result is %+v, want exit code 1", r)
	}
	// Make sending CTRL_BREAK fail, as in a process without a console.
	sys.sendCtrlBreak = func(uint32) error { return windows.ERROR_INVALID_HANDLE }
	c = newTestCommand(t, "sleep")
	c.Timeout, c.KillAfter = time.Second, time.Hour
	// The command is ended immediately, because CTRL_BREAK could not be sent.
	if r, _, _ = runOnWorker(t, w, c); r.ExitCode != 1 || !r.TimedOut {
		t.Errorf("without CTRL_BREAK the result is %+v, want exit code 1 and a timeout", r)
	}
}

// If a command is ended, its leftover processes have the whole grace period, even after the main process has
// ended. The run ends when the last of them has ended. A later kill can shorten the grace period.
func TestLeftoverProcessesGetWholeGracePeriod(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	dir, gate := "", ""
	sys := realSystemCalls
	sys.sendCtrlBreak = func(group uint32) error {
		h, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, group)
		if err == nil {
			defer windows.CloseHandle(h)
			// This is the exit code of a process that does not handle CTRL_BREAK.
			err = windows.TerminateProcess(h, 0xC000013A)
		}
		// The leftover process ends when this file exists.
		return errors.Join(err, os.WriteFile(filepath.Join(dir, gate), nil, 0o600))
	}
	w.systemCalls = &sys
	for _, handlesBreak := range []bool{true, false} {
		dir, gate = t.TempDir(), "end"
		c := newTestCommand(t, "parent", dir)
		c.LeftoverGracePeriod = time.Millisecond
		c.OnStarted = func(int, time.Time) {
			processes := openTreeHandles(t, dir, 1)
			w.Kill(5, time.Hour)
			if !handlesBreak {
				gate = "none"
				go func() {
					countLivingProcesses(processes, 300*time.Millisecond)
					w.Kill(6, 0)
				}()
			}
		}
		r, stdout, _ := runOnWorker(t, w, c)
		want, left := "saved", 0
		if !handlesBreak {
			want, left = "", 1
		}
		if r.KillCause != 5 || r.ExitCode != 3221225786 || stdout != want || r.EndedLeftoverCount != left ||
			r.EndedAt.Sub(r.StartedAt) < 300*time.Millisecond {
			t.Errorf("handles Ctrl-Break: %v: %+v, %q", handlesBreak, r, stdout)
		}
	}
}

// When a user logs off, Windows ends all processes of the login session. If a command fails or cannot start
// at that time, its result has LoginSessionWasEnding set. If it succeeds or times out, LoginSessionWasEnding is not
// set.
func TestFailureAtLogoffIsReported(t *testing.T) {
	w := NewWorker(nil)
	defer w.Close()
	for _, ends := range []bool{true, false} {
		if sys := realSystemCalls; ends {
			sys.isSessionEnding = func() bool { return true }
			w.systemCalls = &sys
		} else {
			w.systemCalls = &realSystemCalls // with the real system calls, the session is not ending
		}
		fails, succeeds, late, missing := newTestCommand(t, "exit", "1"), newTestCommand(t, "exit", "0"),
			newTestCommand(t, "sleep"),
			newTestCommand(t, "exit", "0")
		late.Timeout = 50 * time.Millisecond
		missing.WorkingDir = filepath.Join(t.TempDir(), "gone")
		for c, want := range map[*Command]bool{fails: ends, succeeds: false, late: false, missing: ends} {
			if r, _, _ := runOnWorker(t, w, c); r.LoginSessionWasEnding != want || r.TimedOut != (c == late) {
				t.Errorf("%q in %q while it ends: %v: %+v", c.Argv[1:], c.WorkingDir, ends, r)
			}
		}
	}
}

// A runner reacts when its user logs off. If the runner is a service, it ignores this event, because Windows
// sends the event to a service whenever any user logs off. It always ignores CTRL_C and CTRL_BREAK, which are
// meant for commands.
func TestRunnerIgnoresCommandConsoleEvents(t *testing.T) {
	for _, c := range []struct {
		event, session uint32
		want           bool
	}{
		{windows.CTRL_C_EVENT, 1, false}, {windows.CTRL_BREAK_EVENT, 1, false}, {windows.CTRL_LOGOFF_EVENT, 1, true},
		{windows.CTRL_SHUTDOWN_EVENT, 2, true},
		{windows.CTRL_BREAK_EVENT, 0, false}, {windows.CTRL_LOGOFF_EVENT, 0, false}, {windows.CTRL_SHUTDOWN_EVENT, 0, false},
	} {
		if got := isConsoleEventForRunner(c.event, c.session); got != c.want {
			t.Errorf("event %d in session %d: got %v", c.event, c.session, got)
		}
	}
}

// A command that handles CTRL_BREAK ends by itself.
func TestCommandHandlesCtrlBreak(t *testing.T) {
	skip.UnderWine(t, "needs Windows, because Wine lacks the feature; tests with a fake job object have the rest")
	c := newTestCommand(t, "break")
	c.Timeout, c.KillAfter = 3*time.Second, 20*time.Second
	if r, stdout, _ := runCommand(t, c); r.ExitCode != 7 || !r.TimedOut || stdout != "ready" {
		t.Errorf("the result is %+v, output %q; want exit code 7 and a timeout", r, stdout)
	}
}
