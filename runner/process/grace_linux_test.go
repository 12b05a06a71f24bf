package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/runner/procfs"
)

// slowCleanupScript is a shell script that cleans up after SIGTERM for longer than the output grace period.
const slowCleanupScript = `exec 2>/dev/null; trap "sleep 0.3; echo saved; exit 0" TERM; echo up; ` +
	`while :; do sleep 0.01; done`

// If a tree is ended, its leftover processes have the whole grace period, even after the main process has ended. The
// run ends when the last leftover process has ended.
func TestLeftoverProcessesGetWholeGracePeriod(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	t.Run("by cookie", func(t *testing.T) { testLeftoverProcessesGetGracePeriod(t, nil) })
	t.Run("by control group", func(t *testing.T) { testLeftoverProcessesGetGracePeriod(t, newTestCgroups(t)) })
}

// testLeftoverProcessesGetGracePeriod runs the test with control groups or, if groups is nil, without them. Without
// control groups, the processes of a tree are found by their cookie.
func testLeftoverProcessesGetGracePeriod(t *testing.T, groups *Cgroups) {
	setSubreaper(t)
	child := "sh -c '" + slowCleanupScript + "'"
	for _, row := range []struct {
		name, line   string
		configure    func(c *Command)
		killsCommand bool
		want         Result
	}{
		{"a child", child + "; echo after", nil, true, Result{KillCause: 4, Signal: 15, ExitCode: -1}},
		{"a grandchild", "sh -c \"sh -c '" + strings.ReplaceAll(slowCleanupScript, `"`, `\"`) + "'; echo after\"; echo after",
			nil, true, Result{KillCause: 4, Signal: 15, ExitCode: -1}},
		{"of a main process that exits", "trap 'exit 3' TERM; " + child + " & wait", nil, true,
			Result{KillCause: 4, ExitCode: 3}},
		{"in another session", "setsid " + child + " & wait", nil, true, Result{KillCause: 4, Signal: 15, ExitCode: -1}},
		{"that holds no output", strings.Replace(child, "echo up;", "exec 3>&1 >/dev/null; echo up >&3; exec 3>&-;", 1) +
			"; echo after", nil, true, Result{KillCause: 4, Signal: 15, ExitCode: -1}},
		{"that might live on", child + "; echo after", func(c *Command) { c.AllowBackground = true }, true,
			Result{KillCause: 4, Signal: 15, ExitCode: -1}},
		{"at the timeout", child + "; echo after", func(c *Command) { c.Timeout = 2 * time.Second }, false,
			Result{TimedOut: true, Signal: 15, ExitCode: -1}},
		{"at its silence", child + "; echo after", func(c *Command) { c.IdleTimeout = 2 * time.Second }, false,
			Result{TimedOut: true, IdleTimedOut: true, Signal: 15, ExitCode: -1}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := NewWorker(groups)
			defer w.Close()
			c, result := newTestCommand(t, "/bin/sh", "-c", row.line), make(chan Result, 1)
			c.LeftoverGracePeriod, c.KillAfter = time.Millisecond, time.Hour
			if row.configure != nil {
				row.configure(c)
			}
			go func() { result <- w.Run(c) }()
			waitUntil(t, "the command has printed a line", func() bool { return strings.Contains(c.output(t), "up\n") })
			if row.killsCommand && !w.Kill(4, time.Hour) {
				t.Error("the kill came too late")
			}
			r := <-result
			want := "up\nsaved\n"
			if strings.Contains(row.line, "exec 3>&1 >/dev/null") {
				want = "up\n"
			}
			took := r.EndedAt.Sub(r.StartedAt)
			if stdout := c.output(t); stdout != want || took < 300*time.Millisecond {
				t.Errorf("the command printed %q and took %v, want %q and at least 300 ms", stdout, took, want)
			}
			got := Result{KillCause: r.KillCause, TimedOut: r.TimedOut, IdleTimedOut: r.IdleTimedOut, Signal: r.Signal,
				ExitCode: r.ExitCode, EndedLeftoverCount: r.EndedLeftoverCount, HasBackgroundProcesses: r.HasBackgroundProcesses,
				Error: r.Error}
			if got != row.want {
				t.Errorf("the result is %+v, want %+v", got, row.want)
			}
		})
	}
}

// A leftover process that ignores SIGTERM is killed after the grace period, even if the main process has
// ended long before. The result counts this process as a leftover.
func TestLeftoverProcessIsKilledAfterGracePeriod(t *testing.T) {
	t.Run("by cookie", func(t *testing.T) { testLeftoverProcessIsKilled(t, nil) })
	t.Run("by control group", func(t *testing.T) { testLeftoverProcessIsKilled(t, newTestCgroups(t)) })
}

// testLeftoverProcessIsKilled runs the test with control groups or, if groups is nil, without.
func testLeftoverProcessIsKilled(t *testing.T, groups *Cgroups) {
	setSubreaper(t)
	w := NewWorker(groups)
	defer w.Close()
	run := func() (c *Command, main int, result chan Result) {
		c, result = newTestCommand(t, "/bin/sh", "-c", `sh -c 'trap "" TERM; echo up $$; exec sleep 4333'; echo after`),
			make(chan Result, 1)
		c.LeftoverGracePeriod = time.Millisecond
		pid := make(chan int, 1)
		c.OnForked = func(p int, _ time.Time) { pid <- p }
		go func() { result <- w.Run(c) }()
		waitUntil(t, "the command has printed a line", func() bool { return strings.HasSuffix(c.output(t), "\n") })
		return c, <-pid, result
	}
	checkEnded := func(c *Command, r Result) {
		t.Helper()
		var child int
		fmt.Sscanf(c.output(t), "up %d", &child)
		if r.KillCause != 4 || r.Signal != 15 || r.EndedLeftoverCount != 1 || r.StuckPID != 0 || isProcessAlive(child) {
			t.Errorf("got %+v, want one process left behind and ended; still running: %v", r, isProcessAlive(child))
		}
	}
	c, _, result := run()
	killedAt := time.Now()
	w.Kill(4, 300*time.Millisecond)
	r := <-result
	checkEnded(c, r)
	if took := r.EndedAt.Sub(killedAt); took < 300*time.Millisecond {
		t.Errorf("the command was ended after %v, before the grace period", took)
	}
	c, main, result := run()
	w.Kill(4, time.Hour)
	waitUntil(t, "the main process has ended", func() bool { return !isProcessAlive(main) })
	if !w.Kill(5, 0) {
		t.Error("a kill without a grace period found no running process")
	}
	checkEnded(c, <-result)
	if w.Kill(5, 0) {
		t.Error("a command was killed after its end")
	}
}

// If a command is killed at the moment when its main process ends, its leftover processes are ended too. They
// get the grace period, and do not live on even if AllowBackground is set.
func TestKillAtMainProcessEndEndsLeftovers(t *testing.T) {
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	up := filepath.Join(t.TempDir(), "up")
	c := newTestCommand(t, "/bin/sh", "-c", fmt.Sprintf("{ %s; } & while [ ! -e %s ]; do sleep 0.01; done",
		strings.Replace(slowCleanupScript, "echo up", ": >"+up, 1), up))
	c.LeftoverGracePeriod, c.AllowBackground = time.Millisecond, true
	c.OnForked = func(pid int, _ time.Time) {
		waitUntil(t, "the main process has ended", func() bool { return !isProcessAlive(pid) })
		if !w.Kill(4, time.Hour) {
			t.Error("the kill came too late")
		}
	}
	r := w.Run(c)
	if r.KillCause != 4 || r.ExitCode != 0 || r.EndedLeftoverCount != 0 || r.HasBackgroundProcesses ||
		c.output(t) != "saved\n" {
		t.Errorf("the result is %+v, output %q; want cause 4 and the output of the cleanup", r, c.output(t))
	}
}

// A killed command ends soon, even if some other process, of which no tree is known, has the command's output
// open. The run does not wait for this process for the whole grace period.
func TestUnrelatedProcessDoesNotDelayKill(t *testing.T) {
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	c, result := newTestCommand(t, "/bin/sh", "-c", "(setsid env -i sleep 4334 & echo $!); exec sleep 4334"),
		make(chan Result, 1)
	go func() { result <- w.Run(c) }()
	hidden := 0
	waitUntil(t, "it has left", func() bool {
		hidden, _ = strconv.Atoi(strings.TrimSpace(c.output(t)))
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", hidden))
		p, _ := procfs.Stat(hidden)
		return string(raw) == "sleep\x004334\x00" && readCookie(hidden) == "" && p.PPID == os.Getpid()
	})
	defer ReapEndedOrphans()
	defer unix.Kill(hidden, unix.SIGKILL)
	w.Kill(4, time.Hour)
	select {
	case r := <-result:
		if r.KillCause != 4 || r.Signal != 15 || r.EndedLeftoverCount != 0 {
			t.Errorf("the result is %+v, want cause 4, signal 15 and no leftovers", r)
		}
	case <-time.After(10 * time.Second):
		t.Error("the command waits for a process that is not its own")
		unix.Kill(hidden, unix.SIGKILL)
		<-result
	}
}

// All output that a command prints before its end is kept, no matter how late the worker reads it. The output
// grace period limits only what other processes print later. In this test, the grace period is zero, and the
// worker reads nothing until the command has ended.
func TestOutputBeforeExitIsKept(t *testing.T) {
	setSubreaper(t)
	for _, row := range []struct {
		name, line string
		bytes      int
		set        func(c *Command)
	}{
		{"pipe", "seq -w 0 9999", 50_000, nil},
		{"enlarged pipe", "seq -w 0 99999", 600_000, nil},
		{"both streams", "seq -w 0 4999; exec seq -w 5000 9999 >&2", 50_000, nil},
		{"terminal", "stty -onlcr; seq -w 0 1999", 10_000, func(c *Command) { c.TTY = true }},
		{"pipe of a leftover", "sleep 600 & seq -w 0 99999", 600_000, nil},
		{"pipe of a background process", "sleep 600 & seq -w 0 99999", 600_000,
			func(c *Command) { c.AllowBackground = true }},
		{"terminal of a leftover", "trap '' HUP; sleep 600 & stty -onlcr; seq -w 0 1999", 10_000,
			func(c *Command) { c.TTY = true }},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTestCommand(t, "/bin/sh", "-c", row.line)
			c.LeftoverGracePeriod = 0
			if row.set != nil {
				row.set(c)
			}
			c.OnForked = func(pid int, _ time.Time) {
				if row.bytes > 64<<10 {
					enlargePipe(t, fmt.Sprintf("/proc/%d/fd/1", pid))
				}
				waitUntil(t, "the command has ended", func() bool { return !isProcessAlive(pid) })
			}
			w := NewWorker(nil)
			defer w.Close()
			r := w.Run(c)
			EndProcessTrees(DeadRunner{Cookies: []string{c.Cookie}}, time.Second)
			if stdout := c.output(t); r.ExitCode != 0 || len(stdout) != row.bytes {
				t.Errorf("the result is %+v with %d bytes of output, want %d", r, len(stdout), row.bytes)
			}
		})
	}
}

// enlargePipe sets the capacity of a pipe to 1 MiB, which is the maximum for unprivileged accounts.
func enlargePipe(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, 1<<20)
		f.Close()
	}
	if err != nil {
		t.Error(err)
	}
}
