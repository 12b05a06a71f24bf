package cli

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// tmuxPane is a shell in tmux, a terminal emulator. Tests can type in it and resize it.
type tmuxPane struct {
	*testrig.Harness
	tmuxSocket string
}

// newTmuxPane opens a pane of the given size. Its shell runs in the directory of the queue.
func newTmuxPane(q *testrig.Harness, columns, rows int) *tmuxPane {
	q.Helper()
	skip.UnlessProgram(q, "tmux", "needs tmux; .ci/run installs it, and the tests of top have its screens and keys")
	p := &tmuxPane{q, filepath.Join(q.TempDir(), "tmux")}
	p.runTmux("new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows), "env", "PS1=$ ",
		"TERM=screen-256color",
		"sh")
	q.Cleanup(func() { p.runTmux("kill-server") })
	p.waitScreen("a prompt", func(lines []string) bool { return lines[0] == "$" })
	return p
}

// runTmux runs a tmux command for the pane and returns its output. Each pane has a private tmux server.
func (p *tmuxPane) runTmux(args ...string) string {
	p.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.tmuxSocket, "-f", os.DevNull}, args...)...)
	cmd.Env = append(testrig.UserEnvironment(p.StateDir), "QUEUECTL_SOCKET="+p.Path(testrig.SocketName), "PATH="+
		filepath.Dir(p.ClientPath)+":"+
		os.Getenv("PATH"), "TZ=UTC", "LC_ALL=C.UTF-8", "TERM=screen")
	cmd.Dir = p.StateDir
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

func (p *tmuxPane) typeLine(text string) { p.Helper(); p.runTmux("send-keys", "-l", text+"\r") }
func (p *tmuxPane) pressCtrlC()          { p.Helper(); p.runTmux("send-keys", "C-c") }
func (p *tmuxPane) resize(columns, rows int) {
	p.Helper()
	p.runTmux("resize-window", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows))
}

// shownLines returns the lines that the pane shows, without empty lines at the end.
func (p *tmuxPane) shownLines() []string {
	p.Helper()
	return strings.Split(strings.TrimRight(p.runTmux("capture-pane", "-p"), "\n "), "\n")
}

// waitScreen waits until isExpected returns true for the lines that the pane shows. condition describes the expected
// screen in error messages.
func (p *tmuxPane) waitScreen(condition string, isExpected func(lines []string) bool) {
	p.Helper()
	var lastLines []string
	for deadline := time.Now().Add(
		testrig.TimeoutFactor * 10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if lastLines = p.shownLines(); isExpected(lastLines) {
			return
		}
	}
	p.Fatalf("not within 10s: %s; the window shows:\n%s", condition, strings.Join(lastLines, "\n"))
}

func (p *tmuxPane) waitText(text string) {
	p.Helper()
	p.waitScreen(text, func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), text) })
}

// foregroundProgram returns the name of the foreground program.
func (p *tmuxPane) foregroundProgram() string {
	p.Helper()
	return p.runTmux("display", "-p", "#{pane_current_command}")
}

// After Ctrl-C, every command that waits or follows restores the terminal: the modes are as before, the cursor
// is visible, and the alternate screen is off.
func TestCtrlCRestoresTheTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	q.MustRunCLI("enqueue", "--id", "long", "--batch", "b", "echo begun; sleep 600")
	q.MustRunCLI("enqueue", "--id", "next", "--batch", "b", "--in", "1h", "true")
	q.WriteFile("lines", "sleep 600\n")
	// The script replaces itself with sleep, because a shell that starts sleep could miss a Ctrl-C.
	q.WriteFile("editor", "#!/bin/sh\nstty -echo -icanon\nprintf '\\033[?25l'\necho up\nexec sleep 600\n")
	os.Chmod(q.Path("editor"), 0o700)
	p := newTmuxPane(q, 80, 24)
	p.typeLine("trap : INT") // this trap keeps the shell running after Ctrl-C
	for _, c := range []struct{ verb, shows string }{
		{"run 'echo up; sleep 600'", "up"}, {"attach long", "begun"}, {"logs -f long", "begun"}, {"events -f", ""},
		{"list --watch", "long"}, {"status --watch", "long"}, {"wait long", ""},
		{"wait --batch b --progress", "%"}, {"run --private --dir own --lines lines", "%"}, {"worker start --foreground", ""},
		{"edit next", "up"},
		{"run --tty --cancel-on-exit -- sh -c 'trap exit INT; echo up; sleep 600 & wait'", "up"},
	} {
		verb := c.verb
		p.typeLine("clear; stty -g >before; EDITOR=./editor queuectl " + verb + "; stty -g >after; echo back at the shell")
		p.WaitUntil(verb+" is in front", 10*time.Second, func() bool {
			return strings.HasPrefix(p.foregroundProgram(), "queuectl")
		})
		p.waitText(c.shows)
		p.pressCtrlC()
		// In a private run, the first Ctrl-C lets running jobs finish. The second Ctrl-C ends these jobs.
		if strings.Contains(verb, "--private") {
			p.waitText("Ctrl-C again")
			p.pressCtrlC()
		}
		p.WaitUntil(verb+" ends", 20*time.Second, func() bool { return p.foregroundProgram() == "sh" })
		p.waitText("back at the shell\n$")
		if before, after := q.ReadFile("before"), q.ReadFile("after"); before != after || before == "" {
			t.Errorf("%s: the modes are %s, were %s", verb, after, before)
		}
		if state := p.runTmux(
			"display", "-p", "#{cursor_flag} #{alternate_on} #{insert_flag} #{mouse_any_flag}"); state != "1 0 0 0" {
			t.Errorf("%s: flags of cursor, alternate screen, insert and mouse are %s, want 1 0 0 0", verb, state)
		}
		lines := p.shownLines()
		if last := lines[len(lines)-1]; last != "$" || !strings.HasSuffix(lines[len(lines)-2], "back at the shell") {
			t.Errorf("%s: the shell prompt does not start on a new line:\n%s", verb, strings.Join(lines, "\n"))
		}
	}
}

// signalForegroundProgram sends a signal to the foreground program.
func (p *tmuxPane) signalForegroundProgram(s syscall.Signal) {
	p.Helper()
	shell := p.runTmux("display", "-p", "#{pane_pid}")
	child, err := os.ReadFile("/proc/" + shell + "/task/" + shell + "/children")
	if err != nil {
		p.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(child)))
	if err != nil {
		p.Fatal(err)
	}
	syscall.Kill(pid, s)
}

// terminalState returns the state of the terminal as tmux reports it: cursor, keys, mouse, screen,
// margins, tab stops and title.
func (p *tmuxPane) terminalState() string {
	p.Helper()
	return p.runTmux("display", "-p", "cursor #{cursor_flag}, insert #{insert_flag}, keys #{keypad_cursor_flag} "+
		"#{keypad_flag}, origin #{origin_flag}, wrap #{wrap_flag}, mouse #{mouse_any_flag} #{mouse_sgr_flag} "+
		"#{mouse_utf8_flag}, region #{scroll_region_upper} #{scroll_region_lower}, alternate #{alternate_on}, tabs "+
		"#{pane_tabs}, title #{pane_title}")
}

// After a full-screen program has used the terminal of a job, the client restores the user's terminal. This
// holds if the user detaches, if the program is killed without cleaning up, and if the client is terminated.
func TestFullScreenProgramLeavesTheTerminalClean(t *testing.T) {
	q := testrig.StartQueue(t)
	q.MustRunCLI("config", "set", "max_retries", "0")
	changes := `\033[31m\033(0\016\033[22;0t\033]2;of the job\007\033[?1049h\033[2;9r\033[?6h\033[?7l\033[4h` +
		`\033=\033[?1h\033[?25l\033[?1003;1006;1004;2004h\033[5 q\033[>4;2m\033[>1u\033)0\033[1;44m\033[3g\033[2;2Hscreen `
	q.WriteFile("full", "#!/bin/sh\nnoise() { [ \"$1\" ] && head -c $1 /dev/zero | tr '\\0' ' '; }\nnoise $1\nprintf '"+
		changes+"'\nnoise $1\nprintf '\\033]0;unfinished'\ntouch drawn\nuntil test -e go; do sleep 0.02; done\nkill -9 $$\n")
	os.Chmod(q.Path("full"), 0o700)
	p := newTmuxPane(q, 80, 24)
	p.typeLine("PS1='$ '; printf '\\033]2;before\\007'; echo above")
	p.waitText("above\n$")
	before := p.terminalState()
	leave := func() { p.runTmux("send-keys", "Enter", "~", ".") }
	for name, c := range map[string]struct {
		words string
		end   func()
	}{
		"run, and the program is killed": {"queuectl run --tty ./full",
			func() { q.WriteFile("go", "") }},
		"run, and the user leaves": {"queuectl run --tty ./full", leave},
		"run, and the job is cancelled": {"queuectl run --id C --tty ./full",
			func() { q.MustRunCLI("cancel", "C") }},
		"run is terminated": {"queuectl run --tty ./full", func() { p.signalForegroundProgram(syscall.SIGTERM) }},
		"attach, and the user leaves": {"queuectl enqueue --id A --tty ./full; until test -e drawn; do sleep 0.02; " +
			"done; queuectl attach A", leave},
		"attach, and what the program has set is not kept as output": {"queuectl enqueue --id M --tty --output-limit 4K -- " +
			"./full 100000; until test -e drawn; do sleep 0.02; done; queuectl attach M", leave},
	} {
		os.Remove(q.Path("go"))
		os.Remove(q.Path("drawn"))
		p.typeLine("clear; stty -g >before; " + c.words + "; stty -g >after; echo back at lqk")
		p.WaitUntil(name+": the program has drawn", 20*time.Second, func() bool {
			state := p.terminalState()
			return strings.Contains(state, "cursor 0") && strings.Contains(state, "mouse 1") &&
				strings.Contains(state, "alternate 1")
		})
		c.end()
		p.waitText("back at lqk\n$")
		if after := p.terminalState(); after != before {
			t.Errorf("%s: the terminal is\n%s, was\n%s", name, after, before)
		}
		if q.ReadFile("before") != q.ReadFile("after") {
			t.Errorf("%s: stty shows %s, before %s", name, q.ReadFile("after"), q.ReadFile("before"))
		}
		if coloured := p.runTmux("capture-pane", "-p", "-e"); strings.Contains(coloured, "\x1b") {
			t.Errorf("%s: the terminal shows colours: %q", name, coloured)
		}
		p.runTmux("set-buffer", "echo pasted")
		p.runTmux("paste-buffer", "-p")
		p.waitText("\n$ echo pasted")
		p.typeLine("")
		q.WriteFile("go", "")
		q.RunCLI("wait", "--all") // this command fails, because the killed jobs failed; the test ignores that
	}
}

// progressBarLines returns the lines that contain a progress bar.
func progressBarLines(lines []string) (bars []string) {
	for _, l := range lines {
		if strings.Contains(l, "%") {
			bars = append(bars, l)
		}
	}
	return bars
}

// The progress bar of `queuectl wait` and of a private run stays on one line while the window is resized. The bar shows
// when failed jobs will be retried. At the end, a summary that names the failed jobs replaces the bar.
func TestProgressBarSurvivesResizing(t *testing.T) {
	const list = "true\nfalse\nexit 3\nuntil test -e go; do sleep 0.02; done\n"
	for name, c := range map[string]struct{ words, counts string }{
		"wait": {"wait --batch b --progress", "4 jobs: 2 completed, 2 dead, in "},
		"private": {"run --private --dir own --workers 4 --max-retries 1 --backoff-base 20 --lines lines",
			"4 jobs: 2 completed, 2 dead, in "},
	} {
		t.Run(name, func(t *testing.T) {
			q := testrig.StartQueue(t, "--workers", "4")
			q.WriteFile("lines", list)
			p := newTmuxPane(q, 100, 24)
			dir := q.StateDir
			if name == "wait" {
				q.MustRunCLI("enqueue", "--batch", "b", "--max-retries", "1", "--backoff-base", "20", "--cwd", q.StateDir,
					"--lines",
					q.Path("lines"))
			} else {
				dir = q.Path("own")
			}
			p.typeLine("clear; queuectl " + c.words)
			p.waitText("2 retrying in 1")
			for _, columns := range []int{60, 30, 120, 80, 45} {
				p.resize(columns, 24)
				p.waitScreen(fmt.Sprintf("one bar in %d columns", columns), func(lines []string) bool {
					b := progressBarLines(lines)
					room := columns - 1
					return len(b) == 1 && len(lines) <= 5 && len([]rune(b[0])) <= room &&
						(columns < 60 || strings.Contains(b[0], "2 retrying in "))
				})
			}
			p.resize(100, 24)
			for _, id := range strings.Fields(q.MustRunCLI("--dir", dir, "list", "-q", "--state", "failed")) {
				q.MustRunCLI("--dir", dir, "edit", id, "--run-at", "now")
			}
			q.WriteFile("go", "")
			p.waitText(c.counts)
			p.waitScreen("a prompt", func(lines []string) bool { return lines[len(lines)-1] == "$" })
			text := strings.Join(p.shownLines(), "\n")
			if len(progressBarLines(p.shownLines())) != 0 || strings.Count(text, "is dead: exit code 1 (false)") != 1 ||
				strings.Count(text, "is dead: exit code 3 (exit 3)") != 1 {
				t.Errorf("the window after the end of the jobs:\n%s", text)
			}
		})
	}
}

// wantScreens is the expected output of TestOverviewAndListsFitTerminal.
//
//go:embed testdata/screens.txt
var wantScreens string

// timeReplacements replaces times, and the spaces that align them, so that each run of the
// test gives the same text.
var timeReplacements = []struct{ pattern, replacement string }{
	{`(\w{3} \d+ \w{3} (\d{4} )?)?\d\d:\d\d(:\d\d)?`, "CLOCK"}, {`\b(\d+m)?\d+(\.\d+)?m?s ago\b|\bjust now\b`, "T ago"},
	{`\b(\d+m)?\d+(\.\d+)?m?s\b`, "T"},
	{`in \d+h(\d\dm?)?`, "in T"}, {`\d+ in the last hour|\d+/min`, "RATE"}, {`  +`, "  "}, {` +\n`, "\n"},
}

func hideTimes(text string) string {
	for _, s := range timeReplacements {
		text = regexp.MustCompile(s.pattern).ReplaceAllString(text, s.replacement)
	}
	return text
}

// queuectl without a command prints an overview. The overview and the lists with --watch fit in
// windows of three sizes and are redrawn when the size changes. The expected text is in screens.txt,
// which the flag -update writes.
func TestOverviewAndListsFitTerminal(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	for name, script := range map[string]string{"lint": "echo ok", "conv": "echo bad png >&2; exit 1",
		"mk": "echo 61/140; sleep 600"} {
		q.WriteFile(name, "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(q.Path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Keep each command so short that it is not cut even if the column of times is wide.
	enqueue := func(id, command string, flags ...string) {
		q.MustRunCLI(append([]string{"enqueue", "--cwd", q.StateDir, "--id", id, command}, flags...)...)
	}
	enqueue("lint", "./lint", "--batch", "b")
	enqueue("97.png", "./conv", "--max-retries", "0")
	q.MustRunCLI("wait", "--any", "lint")
	q.WaitUntil("the failure", 10*time.Second, func() bool { return q.ShowJob("97.png").State == "dead" })
	enqueue("build", "./mk")
	q.WaitUntil("the job runs", 10*time.Second, func() bool {
		return strings.Contains(q.ShowJob("build").Output, "61/140")
	})
	q.MustRunCLI("worker", "scale", "1")
	enqueue("docs", "./docs")
	enqueue("deploy", "./dep")
	enqueue("backup", "./bak", "--in", "7h")
	q.MustRunCLI("enqueue", "--id", "kept", "true")
	q.MustRunCLI("hold", "kept")
	var got strings.Builder
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}} {
		for _, words := range []string{"", "list --watch", "status --watch"} {
			p := newTmuxPane(q, size[0], size[1])
			p.typeLine("clear; queuectl " + words)
			what := strings.TrimSpace("queuectl " + words)
			if words == "" {
				p.waitScreen(what, func(lines []string) bool { return len(lines) > 5 && lines[len(lines)-1] == "$" })
				fmt.Fprintf(&got, "-- %dx%d %s --\n%s\n", size[0], size[1], what,
					hideTimes(strings.Join(p.shownLines(), "\n")+"\n"))
				continue
			}
			p.waitScreen(what, func(lines []string) bool { return len(lines) > 5 })
			for _, to := range [][2]int{{50, 20}, size} {
				p.resize(to[0], to[1])
				p.waitScreen(what+" without remnants", func(lines []string) bool {
					clocks := 0
					for _, l := range lines {
						if regexp.MustCompile(`^\d\d:\d\d:\d\d`).MatchString(l) {
							clocks++
						}
					}
					return clocks == 1 && len(lines) > 5 || size[1] < 20 && len(lines) > 5
				})
			}
			// The displayed run time of the job must change: the list is still updated after the change of the size.
			for range 2 {
				before := strings.Join(p.shownLines(), "\n")
				p.waitScreen(what+" keeps updating", func(lines []string) bool { return strings.Join(lines, "\n") != before })
			}
			lines := p.shownLines()
			// In 40 columns, the widths of the times determine which columns fit. So compare only the
			// first word of each line.
			if size[0] == 40 && words == "list --watch" {
				for i, l := range lines {
					if lines[i], _, _ = strings.Cut(l, " "); len([]rune(l)) > size[0] {
						t.Errorf("a line is %d columns wide, which is more than the window: %q", len([]rune(l)), l)
					}
				}
			}
			fmt.Fprintf(&got, "-- %dx%d %s --\n%s\n", size[0], size[1], what, hideTimes(strings.Join(lines, "\n")+"\n"))
			p.pressCtrlC()
		}
	}
	const golden = "testdata/screens.txt"
	if *testrig.UpdateExpectedOutput {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got.String() != wantScreens && !*testrig.UpdateExpectedOutput {
		t.Errorf("the screens are\n%s\nwant\n%s", &got, wantScreens)
	}
}
