package process

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/runner/procfs"
)

// setCommandPaused pauses or resumes a running command and checks that this succeeded.
func setCommandPaused(t *testing.T, w *Worker, paused bool) {
	t.Helper()
	type answer struct {
		unchangedCount int
		ok             bool
	}
	answers := make(chan answer, 1)
	w.SetPaused(paused, func(unchanged int, ok bool) { answers <- answer{unchanged, ok} })
	if got := <-answers; got != (answer{0, true}) {
		t.Errorf("after Pause(%t) the pause state is %+v", paused, got)
	}
}

// The time of a pause counts neither for the command's timeout nor for its idle timeout. Both timeouts continue after
// the pause. The worker's next command runs normally.
func TestPauseStopsCommandTimeouts(t *testing.T) {
	t.Run("by signals", func(t *testing.T) { testPauseStopsTimeouts(t, nil) })
	t.Run("by control group", func(t *testing.T) { testPauseStopsTimeouts(t, newTestCgroups(t)) })
}

// testPauseStopsTimeouts runs the test with control groups. If groups is nil, it runs the test without them, so that a
// pause sends signals.
func testPauseStopsTimeouts(t *testing.T, groups *Cgroups) {
	setSubreaper(t)
	w := NewWorker(groups)
	defer w.Close()
	const timeout, pauseCount = 500 * time.Millisecond, 3
	for _, set := range []func(c *Command){func(c *Command) { c.Timeout = timeout },
		func(c *Command) { c.IdleTimeout = timeout }} {
		c := newTestCommand(t, "/bin/sh", "-c", "echo up; sleep 600 & wait")
		c.Timeout = 0
		set(c)
		result := make(chan Result, 1)
		go func() { result <- w.Run(c) }()
		waitUntil(t, "the command has printed a line", func() bool { return strings.Contains(c.output(t), "up\n") })
		var pausedFor time.Duration
		for range pauseCount {
			setCommandPaused(t, w, true)
			began := time.Now()
			waitUntil(t, "its timeout would be over", func() bool { return time.Since(began) > timeout+timeout/5 })
			pausedFor += time.Since(began)
			setCommandPaused(t, w, false)
		}
		r := <-result
		if ran := r.EndedAt.Sub(r.StartedAt); !r.TimedOut || ran < pausedFor+timeout ||
			ran > pausedFor+timeout+5*time.Second {
			t.Errorf("the command was paused for %v, and ended after %v: %+v", pausedFor, ran, r)
		}
	}
	if r, stdout := w.runShellLine(t, "echo fine"); r.ExitCode != 0 || stdout != "fine\n" {
		t.Errorf("the next command: %+v, %q", r, stdout)
	}
}

// If another process kills the main process of a paused command, the rest of the tree is resumed. A
// background process continues to run.
func TestEndOfPausedCommandResumesTree(t *testing.T) {
	for name, groups := range map[string]func(*testing.T) *Cgroups{"by signals": func(*testing.T) *Cgroups { return nil },
		"by control group": newTestCgroups} {
		t.Run(name, func(t *testing.T) {
			setSubreaper(t)
			w := NewWorker(groups(t))
			defer w.Close()
			c := newTestCommand(t, "/bin/sh", "-c", "(sleep 0.7; echo child) & echo up; exec sleep 600")
			c.AllowBackground, c.LeftoverGracePeriod = true, 5*time.Second
			pid, result := make(chan int, 1), make(chan Result, 1)
			c.OnForked = func(p int, _ time.Time) { pid <- p }
			go func() { result <- w.Run(c) }()
			waitUntil(t, "the command has printed a line", func() bool { return strings.Contains(c.output(t), "up\n") })
			setCommandPaused(t, w, true)
			main, _ := procfs.Stat(<-pid)
			sendSignal(main, 9, nil)
			if r := <-result; r.Signal != 9 {
				t.Errorf("the result is %+v, want signal 9", r)
			}
			waitUntil(t, "its child continues", func() bool { return strings.Contains(c.output(t), "child\n") })
			w.SetPaused(true, func(unchanged int, ok bool) {
				if ok {
					t.Error("a command was paused after its end")
				}
			})
		})
	}
}

// A command that is being ended cannot be paused.
func TestEndingCommandCannotBePaused(t *testing.T) {
	setSubreaper(t)
	w := NewWorker(nil)
	defer w.Close()
	c, result := newTestCommand(t, "/bin/sh", "-c", "echo up; sleep 600"), make(chan Result, 1)
	go func() { result <- w.Run(c) }()
	waitUntil(t, "the command has printed a line", func() bool { return strings.Contains(c.output(t), "up\n") })
	if !w.Kill(4, time.Hour) {
		t.Error("the kill came too late")
	}
	answers := make(chan bool, 1)
	w.SetPaused(true, func(_ int, ok bool) { answers <- ok })
	if <-answers {
		t.Error("a command was paused while it was being ended")
	}
	if r := <-result; r.KillCause != 4 || r.Signal != 15 {
		t.Errorf("the result is %+v, want cause 4 and signal 15", r)
	}
}
