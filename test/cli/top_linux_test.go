package cli

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// startQueueForTop returns a queue with waiting jobs, a dead job and two running jobs. One of the running
// jobs prints output and reports progress.
func startQueueForTop(t *testing.T) *testrig.Harness {
	q := testrig.StartQueue(t, "--workers", "3")
	q.MustRunCLI("enqueue", "--id", "build",
		`i=0; while :; do i=$((i+1)); echo "compiling $i"; echo "43 linking" >"$QUEUECTL_PROGRESS"; sleep 0.3; done`)
	q.MustRunCLI("enqueue", "--id", "slow", "-Q", "gpu", "echo begun; sleep 600")
	q.MustRunCLI("enqueue", "--id", "broken", "--max-retries", "0", "echo bad header >&2; exit 3")
	q.MustRunCLI("enqueue", "--id", "later", "--in", "7h", "true")
	q.MustRunCLI("enqueue", "--id", "after", "--after", "slow", "true")
	q.WaitUntil("the failure", 10*time.Second, func() bool { return q.ShowJob("broken").State == "dead" })
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob("slow").State == "processing" })
	return q
}

// pressKeys presses keys, given by their names in tmux.
func (p *tmuxPane) pressKeys(keys ...string) {
	p.Helper()
	p.runTmux(append([]string{"send-keys"}, keys...)...)
}

// openTop types the command line that starts `queuectl top`, and waits until top shows its first lines.
func (p *tmuxPane) openTop(commandLine string) {
	p.Helper()
	p.typeLine(commandLine)
	p.waitScreen("top", func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), "▶ build") })
}

// waitTextGone waits until a text is no longer shown in the window.
func (p *tmuxPane) waitTextGone(text string) {
	p.Helper()
	p.waitScreen("no "+text, func(lines []string) bool { return !strings.Contains(strings.Join(lines, "\n"), text) })
}

// waitSelected waits until the row of the given job is selected.
func (p *tmuxPane) waitSelected(id string) {
	p.Helper()
	p.waitScreen("the chosen row "+id, func(lines []string) bool {
		for _, l := range lines {
			if fields := strings.Fields(l); len(fields) > 2 && strings.HasPrefix(fields[0], ">") && fields[2] == id {
				return true
			}
		}
		return false
	})
}

// Each key has its documented effect in `queuectl top`, the interactive screen.
func TestTopKeysHaveDocumentedEffects(t *testing.T) {
	testrig.SkipIfShort(t)
	q := startQueueForTop(t)
	q.WriteFile("editor", "#!/bin/sh\nsed -i 's/\"priority\": 5/\"priority\": 77/' \"$1\"\nprintf "+
		"'editing\\r\\n'\nread line\n")
	if err := os.Chmod(q.Path("editor"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := newTmuxPane(q, 100, 24)
	p.openTop("EDITOR=./editor queuectl ui")
	state := func(id, want string) {
		t.Helper()
		q.WaitUntil(id+" is "+want, 10*time.Second, func() bool { return q.ShowJob(id).State == want })
	}
	p.waitSelected("build")
	p.waitText("████░░░░░░ 43 %")
	p.waitText("compiling")
	p.pressKeys("j")
	p.waitSelected("slow")
	p.waitText("begun")
	p.pressKeys("k")
	p.waitSelected("build")
	p.pressKeys("Down")
	p.waitSelected("slow")
	p.pressKeys("p")
	p.waitText("pause job slow? (y/n)")
	p.pressKeys("n")
	p.waitTextGone("pause job slow?")
	p.pressKeys("p", "y")
	p.waitText("job slow: paused")
	p.waitText("‖ slow")
	p.pressKeys("p")
	p.waitText("resume job slow? (y/n)")
	p.pressKeys("y")
	p.waitText("▶ slow")
	p.pressKeys("f")
	p.waitScreen("the output on the whole screen",
		func(lines []string) bool { return strings.HasPrefix(lines[0], "▶ slow") && lines[1] == "begun" })
	p.pressKeys("q")
	p.waitSelected("slow")
	p.pressKeys("c", "y")
	state("slow", "cancelled")
	p.waitText("[1 Running 1]")

	p.pressKeys("2")
	p.waitSelected("later")
	p.waitText("[2 Waiting 1]")
	p.pressKeys("Tab", "BTab")
	p.waitSelected("later")
	p.pressKeys("w")
	p.waitText(`why job "later" does not run`)
	p.pressKeys("Escape")
	p.waitSelected("later")
	p.pressKeys("h", "y")
	state("later", "held")
	p.waitText("‖ later")
	p.pressKeys("h", "y")
	state("later", "pending")
	p.waitText("○ later")
	p.pressKeys("P")
	p.waitText("priority of job later:")
	p.pressKeys("1", "2", "Enter")
	p.waitText("job later: changed")
	p.waitText("12")
	q.MustRunCLI("edit", "later", "--priority", "5")
	p.pressKeys("e")
	p.waitText("editing")
	p.pressKeys("Enter")
	p.waitText("job later: editor closed")
	if got := q.MustRunCLI("list", "--state", "waiting", "--columns", "id,priority"); !strings.Contains(got, "77") {
		t.Errorf("waiting jobs after the priority was edited: %s", got)
	}
	q.MustRunCLI("enqueue", "--in", "1h", "--id", "other", "true")
	p.waitText("other")
	p.pressKeys("/", "l", "a", "t")
	p.waitTextGone("other")
	p.pressKeys("Enter", "Escape")
	p.waitText("other")
	p.pressKeys("g", "x", "x")
	p.pressKeys("c")
	p.waitText("cancel 2 jobs")
	p.pressKeys("y")
	state("later", "cancelled")
	state("other", "cancelled")

	p.pressKeys("3")
	p.waitSelected("broken")
	p.waitText("exit code 3: bad header")
	p.pressKeys("r", "y")
	q.WaitUntil("its second run", 10*time.Second, func() bool {
		return strings.Count(q.MustRunCLI("events", "broken"), "started") > 1 || q.ShowJob("broken").State == "dead"
	})
	p.pressKeys("+", "+", "-")
	q.WaitUntil("one worker more", 10*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("status", "--verbose"), "4 (")
	})
	p.waitText("of 4 workers")
	p.pressKeys("-")
	p.waitText("of 3 workers")
	p.pressKeys("4")
	p.waitText("PER MIN")
	p.pressKeys("p", "y")
	p.waitText("queue default: paused")
	p.pressKeys("p", "y")
	p.waitText("queue default: resumed")
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "true")
	p.pressKeys("5")
	p.waitText("nightly")
	p.pressKeys("r", "y")
	p.waitText("schedule nightly: job enqueued")
	p.pressKeys("?")
	p.waitText("Ctrl-Z")
	p.pressKeys("q")
	p.waitText("nightly")
	p.pressKeys("q")
	p.waitScreen("a prompt", func(lines []string) bool { return lines[len(lines)-1] == "$" })
}

// The screen of `queuectl top` fits any window of at least 40x10 and is redrawn when the size changes. In a
// smaller window, top prints the size that it needs.
func TestTopFitsWindowSize(t *testing.T) {
	testrig.SkipIfShort(t)
	q := startQueueForTop(t)
	p := newTmuxPane(q, 80, 24)
	p.openTop("queuectl top")
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}, {30, 8}, {40, 10}, {120, 30}, {80, 24}} {
		p.resize(size[0], size[1])
		if size[0] < 40 {
			p.waitText("40x10")
			continue
		}
		p.waitScreen(fmt.Sprintf("top in %dx%d", size[0], size[1]), func(lines []string) bool {
			if len(lines) != size[1] || !strings.HasPrefix(lines[0], "ok · 2 of 3 workers busy") ||
				!strings.Contains(lines[len(lines)-1], "q quit") {
				return false
			}
			rows, tabs := 0, 0
			for _, l := range lines {
				if strings.Contains(l, "▶ build  ") || strings.Contains(l, "▶ slow ") {
					rows++
				}
				if strings.Contains(l, "[run 2]") || strings.Contains(l, "[1 Running 2]") {
					tabs++
				}
			}
			return rows == 2 && tabs == 1
		})
	}
	p.pressKeys("f")
	p.waitText("q back")
	p.resize(60, 15)
	p.waitScreen("the output", func(lines []string) bool {
		return len(lines) == 15 &&
			strings.HasPrefix(lines[13], "compiling")
	})
}

// While the service is gone, `queuectl top` keeps showing the last data and reports since when it gets no
// reply. Once the service is back, top continues and shows new output of the selected job.
func TestTopOutlivesTheService(t *testing.T) {
	testrig.SkipIfShort(t)
	q := startQueueForTop(t)
	p := newTmuxPane(q, 100, 24)
	p.openTop("queuectl top")
	p.waitText("compiling")
	// Do this twice, because top must also reconnect after a second crash.
	for range 2 {
		q.KillService()
		p.waitText("no answer since ")
		p.waitScreen("the last picture", func(lines []string) bool {
			all := strings.Join(lines, "\n")
			return regexp.MustCompile(
				`no answer since \d\d:\d\d:\d\d, (retrying in|retrying now).*: the service is not running`).MatchString(all) &&
				strings.Contains(all, "▶ build") && strings.Contains(all, "compiling")
		})
		p.pressKeys("j")
		p.waitSelected("slow")
		p.pressKeys("c", "y")
		p.waitText("the service is not running")
		p.pressKeys("k")
		q.StartService("--workers", "3")
		p.waitTextGone("no answer since")
		before := ""
		for _, l := range p.shownLines() {
			if strings.Contains(l, " compiling ") {
				before = l
			}
		}
		p.waitScreen("more output", func(lines []string) bool {
			all := strings.Join(lines, "\n")
			return strings.Contains(all, " compiling ") && !strings.Contains(all, before)
		})
	}
	if q.ShowJob("slow").State != "processing" {
		t.Error("the refused action changed the job")
	}
}

// However `queuectl top` ends, it restores the terminal's modes, cursor and main screen. It also restores them when it
// is suspended and when it starts an editor.
func TestTopRestoresTheTerminal(t *testing.T) {
	q := startQueueForTop(t)
	q.WriteFile("editor", "#!/bin/sh\nstty -echo -icanon\necho $$ >editor.pid\nprintf "+
		"'\\033[?25lediting'\nexec sleep 600\n")
	if err := os.Chmod(q.Path("editor"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := newTmuxPane(q, 80, 24)
	p.typeLine("stty -g >before")
	front := func() {
		t.Helper()
		p.WaitUntil("top is in front", 10*time.Second, func() bool {
			return strings.HasPrefix(p.foregroundProgram(), "queuectl")
		})
		p.waitText("▶ build")
	}
	same := func(name string) {
		t.Helper()
		p.WaitUntil(name+" ends it", 20*time.Second, func() bool { return p.foregroundProgram() == "sh" })
		p.typeLine("stty -g >after; echo back after " + name)
		p.waitText("back after " + name + "\n$")
		if before, after := q.ReadFile("before"), q.ReadFile("after"); before != after || before == "" {
			t.Errorf("after %s the modes are %s, were %s", name, after, before)
		}
		if state := p.runTmux(
			"display", "-p",
			"#{cursor_flag} #{alternate_on} #{insert_flag} #{mouse_any_flag} #{keypad_flag}"); state != "1 0 0 0 0" {
			t.Errorf("after %s the flags of cursor, alternate screen, insert, mouse and keypad are %s, want 1 0 0 0 0",
				name, state)
		}
	}
	signal := func(name string) func() {
		return func() { p.runTmux("run-shell", "kill -"+name+" $(pgrep -f 'queuectl[d]* .*to[p]$' -P #{pane_pid})") }
	}
	for _, c := range []struct {
		name string
		end  func()
	}{
		{"q", func() { p.pressKeys("q") }}, {"Ctrl-C", func() { p.pressKeys("C-c") }},
		{"Ctrl-C on a page", func() { p.pressKeys("f", "C-c") }},
		{"SIGTERM", signal("TERM")}, {"SIGHUP", signal("HUP")}, {"SIGINT", signal("INT")},
		{"SIGTERM in the editor", func() {
			p.pressKeys("2", "e")
			p.waitText("editing")
			signal("TERM")()
		}},
	} {
		p.typeLine("clear; EDITOR=./editor queuectl --dir . top")
		front()
		c.end()
		same(c.name)
		if pid, err := strconv.Atoi(strings.TrimSpace(q.ReadFile("editor.pid"))); err == nil {
			// The editor keeps running after the top process that started it has ended, but it cannot use the
			// terminal. So kill the editor.
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	p.typeLine("clear; EDITOR=./editor queuectl --dir . top")
	front()
	p.pressKeys("2", "e")
	p.waitText("editing")
	p.pressKeys("C-c") // the editor receives this Ctrl-C
	p.waitText("editor ./editor: signal: interrupt; nothing was changed")
	p.pressKeys("1")
	p.waitText("▶ build")
	p.pressKeys("C-z")
	same("Ctrl-Z")
	p.typeLine("fg")
	front()
	p.pressKeys("2")
	p.waitText("[2 Waiting 2]")
	p.pressKeys("q")
	same("q after fg")
}

// Names and output of jobs cannot control the terminal.
func TestJobsCannotControlTop(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	q.MustRunCLI("enqueue", "--id", "build",
		`printf '\033]2;owned\007\033[2J\033[?1049l\033[31mred\033[0m \302\233 名前 end\n'; sleep 600`)
	q.MustRunCLI("enqueue", "--id", "wide", "--label", "a=\x1b[2J",
		": \x1b]2;owned\x07 長い長い長い長い長い長い長い長い長い長い長い長い長い長い長い長い長い; exec sleep 600")
	p := newTmuxPane(q, 80, 24)
	title := p.runTmux("display", "-p", "#{pane_title}")
	p.openTop("NO_COLOR=1 queuectl top")
	p.waitText(`\x1b]2;owned\x07\x1b[2J\x1b[?1049lred \x9b 名前 end`)
	p.pressKeys("j")
	p.waitSelected("wide")
	if got := p.runTmux("display", "-p", "#{pane_title} #{alternate_on}"); got != title+" 1" {
		t.Errorf("title and alternate screen flag are %s, want %s 1", got, title)
	}
	if captured := p.runTmux(
		"capture-pane", "-p", "-e"); regexp.MustCompile(`\x1b\[[0-9;]*[34][0-7]m`).MatchString(captured) {
		t.Errorf("the screen has colours although NO_COLOR is set: %q", captured)
	}
	for _, l := range p.shownLines() {
		if n := len([]rune(l)); n > 80 {
			t.Errorf("a line has %d characters, want at most 80: %q", n, l)
		}
	}
}

// If a terminal reports an impossible size, `queuectl top` still draws, ends on the key q, and does not use
// more memory. When the terminal reports a usual size, top uses all of it.
func TestTopLimitsReportedTerminalSize(t *testing.T) {
	q := startQueueForTop(t)
	for _, size := range [][2]int{{60000, 60000}, {1000, 1000}} {
		s := q.StartOnTerminal(size[0], size[1], "top")
		s.WaitForText("▶ build")
		drawn := len(s.Output.String())
		s.Resize(t, 24, 80)
		s.WaitForText("▶ build")
		s.WaitForTextAfter(drawn, "q quit")
		// Measure before top ends. Afterwards, /proc has no value, and the maximum that the kernel reports for an ended
		// process includes the memory that the test used before the exec.
		used := testrig.PeakMemoryBytes(t, s.Cmd.Process.Pid)
		s.TypeText("q")
		s.WaitExit(0)
		if used > 100<<20 {
			t.Errorf("on a terminal of size %v top used %d KiB of memory", size, used>>10)
		}
	}
}

// Without a terminal, or on one that can only print lines, the error of `queuectl top`
// names another command to use.
func TestTopNeedsATerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for _, words := range [][]string{{"top"}, {"ui"}, {"top", "--json"}} {
		if r := q.RunCLI(words...); r.ExitCode != 2 || r.Stdout != "" ||
			!strings.Contains(r.Stderr, "queuectl status --watch") {
			t.Errorf("%v: %+v", words, r)
		}
	}
	p := newTmuxPane(q, 120, 24)
	p.typeLine("TERM=dumb queuectl top; echo \"exit code $?\"")
	p.waitText("queuectl status --watch")
	p.waitText("exit code 2")
	q.StopService()
	p.typeLine("clear; queuectl --dir . top; echo \"exit code $?\"")
	p.waitText("start it with")
	p.waitText("exit code ")
}
