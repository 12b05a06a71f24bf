package runner

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// Full-screen programs work in a job's terminal. They redraw the screen for each client that attaches later.
func TestFullScreenProgramsRedrawForLaterClients(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		shows   string
		keys    []string
		after   string // text that a client sees when it attaches later
		quit    string
	}{
		"vi":   {"vi -u NONE -i NONE text", "first line", []string{"Gosecond line\x1b"}, "second line", ":wq\r"},
		"less": {"less text", "first line", nil, "first line", "q"},
		"top":  {"top -d 0.5", "load average", nil, "PID", "q"},
	} {
		t.Run(name, func(t *testing.T) {
			skip.UnlessProgram(t, name, "needs a full-screen program; .ci/run installs it")
			q := testrig.StartQueue(t, "--workers", "1")
			q.WriteFile("text", "first line\n")
			s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", name, c.command)
			waitTerminalAttached(s)
			s.WaitForText(c.shows)
			for _, k := range c.keys {
				s.TypeText(k)
			}
			q.WaitUntil("it is drawn", 20*time.Second, func() bool { return strings.Contains(s.Output.String(), c.after) })
			s.TypeText("\r~.")
			s.WaitExit(130)
			s = q.StartOnTerminal(30, 100, "attach", name)
			waitTerminalAttached(s)
			s.WaitForText(c.shows)
			s.WaitForText(c.after)
			s.TypeText(c.quit)
			// The program less ignores a key that arrives together with a change of the window size. Therefore
			// type the key again until the program ends.
			if w := q.DialService(); c.quit == "q" {
				q.WaitUntil("the job has ended", 20*time.Second, func() bool {
					running := w.ShowJob(name).State == "processing"
					if running {
						s.TypeText(c.quit)
					}
					return !running
				})
			}
			text := s.WaitExit(0)
			if on, off := strings.Count(text, "\x1b[?1049h"), strings.Count(text, "\x1b[?1049l"); on != off ||
				strings.LastIndex(text, "\x1b[?25l") > strings.LastIndex(text, "\x1b[?25h") {
				t.Errorf("other screen (%d times on, %d off), or the cursor is hidden: %q", on, off, text[max(0, len(text)-200):])
			}
			if got := q.ReadFile("text"); name == "vi" && got != "first line\nsecond line\n" {
				t.Errorf("the file is %q", got)
			}
		})
	}
}

// The output of a terminal is stored unchanged. `queuectl logs`, `queuectl show` and the last line of output in
// overviews print it as plain text. With --raw or in JSON, it is complete.
func TestLogsPrintTerminalOutputAsPlainText(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	const printed = `\033]0;title\007\033[?25l\033[32m10%%\r\033[K\033[32m100%%\033[0m\033[?25h\n` +
		`\033[?1049hscreen\n\033[2;3Hmore\033[?1049ltypp\bo\n`
	id := w.Enqueue(testrig.JSONFields{"command": "printf '" + printed + "'; exit 3", "tty": true, "max_retries": 0})
	w.WaitJobEnded(id)
	const text = "100%\ntypo\n"
	for _, args := range [][]string{{"logs", id}, {"logs", "-f", id}, {"logs", "--stdout", id}} {
		if r := q.RunCLI(args...); r.ExitCode != 0 || r.Stdout != text {
			t.Errorf("%q in a pipe: %+v, want %q", args, r, text)
		}
		if r := q.RunCLIOnTerminal(args...); r.ExitCode != 0 || r.Stdout != "\x1b[32m100%\x1b[0m\ntypo\n" {
			t.Errorf("%q on a terminal: %+v", args, r)
		}
	}
	other := w.Enqueue(testrig.JSONFields{"command": "true"})
	w.WaitJobEnded(other)
	if r := q.RunCLI("logs", id, other); r.Stdout != id+" | 100%\n"+id+" | typo\n" {
		t.Errorf("logs of two jobs: %+v", r)
	}
	if r := q.RunCLI("show", id); !strings.HasSuffix(r.Stdout, "\nOutput:\n  100%\n  typo\n") {
		t.Errorf("show: %q", r.Stdout)
	}
	if r := q.RunCLIOnTerminal("show", id); !strings.HasSuffix(r.Stdout, "\nOutput:\n  \x1b[32m100%\x1b[0m\n  typo\n") {
		t.Errorf("show on a terminal: %q", r.Stdout)
	}
	for _, args := range [][]string{{"--raw", "logs", id}, {"--raw", "show", id}, {"logs", "--jsonl", id}} {
		if r := q.RunCLI(args...); !strings.Contains(r.Stdout, "title") || !strings.Contains(r.Stdout, "screen") {
			t.Errorf("%q: %q", args, r.Stdout)
		}
	}
	if r := q.RunCLI("status"); !strings.Contains(r.Stdout, ": typo") {
		t.Errorf("the last line of a dead job: %q", r.Stdout)
	}
	w.Enqueue(testrig.JSONFields{"command": `printf 'a\033[2K\rb\033[?25l\bc'; ` + q.CommandAwaitingQueueFile("goes"),
		"tty": true})
	defer q.WriteFile("goes", "")
	q.WaitUntil("the last line of a job that runs is shown", 10*time.Second, func() bool {
		return strings.Contains(q.RunCLI("status").Stdout, "  c\n")
	})
}

// On a terminal, `queuectl logs -f` also shows the unfinished last line, such as a question, and replaces it
// when it changes.
func TestLogsFollowShowsUnfinishedTerminalLine(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	id := q.DialService().Enqueue(testrig.JSONFields{"command": `printf '\033[?2004h10%%'; ` +
		q.CommandAwaitingQueueFile("one") +
		`; printf '\r20%%\r\nReally? '; ` + q.CommandAwaitingQueueFile("two") + `; echo yes`, "tty": true})
	s := testrig.NewPseudoTerminal(t, 80)
	cmd := q.CLICommand("logs", "-f", id)
	cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	for _, step := range [][2]string{{"10%", "one"}, {"Really? ", "two"}} {
		q.WaitUntil(step[0]+" is shown", 20*time.Second, func() bool { return strings.Contains(s.Output.String(), step[0]) })
		q.WriteFile(step[1], "")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	if text := s.WaitOutput(t); text != "10%\r\x1b[K20%\nReally? yes\n" {
		t.Errorf("logs -f on a terminal printed %q", text)
	}
}

// If a signal ends a client, the client restores the terminal settings and leaves the job running.
func TestSignalledClientRestoresTheTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	s := q.StartOnTerminal(24, 80, "run", "--tty", "--id", "t", `printf 'up\033[1;31m\033[?2004h'; exec sleep 600`)
	waitTerminalAttached(s)
	s.WaitForText("\x1b[?2004h")
	s.Cmd.Process.Signal(syscall.SIGTERM)
	if text := s.WaitExit(128 + 15); !strings.Contains(text, "\x1b[?2004l\x1b[m") ||
		!strings.Contains(text, "queuectl attach t") {
		t.Errorf("the client printed %q", text)
	}
	if j := q.ShowJob("t"); j.State != "processing" {
		t.Errorf("the job is %s", j.State)
	}
	q.MustRunCLI("cancel", "t")
}
