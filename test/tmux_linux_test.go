package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pane is a shell in a window of tmux.
type pane struct {
	*queue
	env []string
}

// newPane opens a window of a size whose shell has the queue's client as q.
func newPane(q *queue, columns, rows int) *pane {
	if _, err := exec.LookPath("tmux"); err != nil {
		q.Skip("needs tmux")
	}
	sockets, err := os.MkdirTemp("", "tm") // a socket's path has to be short
	if err != nil {
		q.Fatal(err)
	}
	link := filepath.Join(q.dir, "q")
	if _, err := os.Lstat(link); err != nil {
		if err := os.WriteFile(link, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' --dir '%s' \"$@\"\n", q.bin, q.dir), 0o755); err != nil {
			q.Fatal(err)
		}
	}
	p := &pane{q, append(environment(q.dir), "TMUX_TMPDIR="+sockets, "LC_ALL=C.UTF-8", "TZ=UTC", "TERM=xterm", "PATH="+q.dir+":"+os.Getenv("PATH"))}
	p.Cleanup(func() {
		p.tmux("kill-server")
		os.RemoveAll(sockets)
	})
	p.tmux("-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows), "-c", q.dir, "sh")
	p.keys("PS1='> '; clear") // which root's shell does not take from its environment
	p.until("the prompt is there", 10*time.Second, func() bool { return p.shown() == ">" })
	return p
}

func (p *pane) tmux(args ...string) string {
	p.Helper()
	cmd := exec.Command("tmux", append([]string{"-u"}, args...)...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

// keys types a line.
func (p *pane) keys(line string) { p.tmux("send-keys", line, "Enter") }

// shown is what the window shows, spaces that align columns made one and spans of time T.
func (p *pane) shown() string {
	text := p.tmux("capture-pane", "-p")
	for find, put := range map[string]string{`just now|[\d.]+(ms|s|m\d\ds|m) ago`: "T ago"} {
		text = regexp.MustCompile(find).ReplaceAllString(text, put)
	}
	text = regexp.MustCompile(`\d\d:\d\d(:\d\d)?`).ReplaceAllString(text, "hh:mm")
	text = regexp.MustCompile(`\b\d[\d.]*(ms|s|m\d\ds|h\d*)\b`).ReplaceAllString(text, "T")
	text = regexp.MustCompile(` {2,}\d+/min`).ReplaceAllString(text, "")
	text = regexp.MustCompile(` +`).ReplaceAllString(text, " ")
	return strings.TrimRight(regexp.MustCompile(`(?m) $`).ReplaceAllString(text, ""), "\n")
}

// shows waits until the window shows a text.
func (p *pane) shows(want string) {
	p.Helper()
	p.until("the window shows "+want+"; it shows:\n"+p.shown(), 10*time.Second, func() bool { return strings.Contains(p.shown(), want) })
}

// ofEach has a queue with a job of each kind that a screen tells apart.
func ofEach(q *queue) {
	w := q.dial()
	w.end(w.enqueue(fields{"id": "done", "command": "echo ok"}))
	w.end(w.enqueue(fields{"id": "dead", "command": "echo bad; exit 3", "max_retries": 0}))
	w.enqueue(fields{"id": "build", "command": "echo compiling 1/9; exec sleep 600"})
	w.until("job build runs", 20*time.Second, func() bool { return strings.Contains(w.show("build").Output, "compiling") })
	w.enqueue(fields{"id": "docs", "command": "make docs"})
	w.enqueue(fields{"id": "night", "command": "./backup.sh", "delay": "7h"})
	w.enqueue(fields{"id": "keep", "command": "./deploy.sh", "delay": "8h"}) // which a free worker does not take
	q.must("hold", "keep")
}

// The default screen fits windows of any size, its first line at the top.
func TestScreenInWindows(t *testing.T) {
	q := serving(t, "--workers", "1")
	ofEach(q)
	const wide = `ok: 1 of 1 worker runs, 2 jobs wait, 1 held; 1 dead job wants a look

RUNNING FOR COMMAND LAST LINE
▶ build T echo compiling 1/9; exec sleep 600 compiling 1/9
NEXT WHEN COMMAND
○ docs now make docs
○ night hh:mm, in T ./backup.sh
‖ keep held ./deploy.sh
FAILED ATTEMPTS WHEN COMMAND WHY
✗ dead 1 of 1 T ago echo bad; exit 3 exit code 3
DONE RAN WHEN COMMAND
✓ done T T ago echo ok

held 1 · pending 2 · processing 1 · completed 1 · dead 1
>`
	const small = `ok: 1 of 1 worker runs, 2 jobs wait, 1 h
eld; 1 dead job wants a look
RUNNING FOR LAST LINE
▶ build T compiling 1/9
NEXT WHEN COMMAND
○ docs now make docs
 2 more wait: queuectl list -s waiting
held 1 · pending 2 · processing 1 · comp
leted 1 · dead 1`
	for _, c := range []struct {
		columns, rows int
		want          string
	}{{80, 24, wide}, {200, 60, wide}, {40, 10, small}} {
		p := newPane(q, c.columns, c.rows)
		p.keys("clear; q")
		p.shows("held 1")
		p.shows("\n>")
		got := p.shown()
		if c.rows == 10 { // how fast jobs end stands in the last line, as far as there is room
			got = regexp.MustCompile(`dead 1[^\n]*\n>$`).ReplaceAllString(got, "dead 1")
		}
		if c.columns == 40 { // the command is shown beside it for as long as the time is short
			got = regexp.MustCompile(`(FOR|build T) (COMMAND|echo \S+) `).ReplaceAllString(got, "$1 ")
		}
		if got != c.want {
			t.Errorf("%d by %d:\n%s\nwant:\n%s", c.columns, c.rows, got, c.want)
		}
	}
}

// What is shown again and again fits a window that changes its size meanwhile, and nothing of
// what stood there before is left.
func TestWatchInAWindowThatChanges(t *testing.T) {
	q := serving(t, "--workers", "1")
	ofEach(q)
	p := newPane(q, 80, 24)
	p.keys("q list --watch")
	p.shows("done completed")
	p.tmux("resize-window", "-x", "44", "-y", "10")
	q.must("release", "keep") // something happens
	p.until("it is shown anew, as wide as the window; it shows:\n"+p.shown(), 10*time.Second, func() bool {
		text := p.tmux("capture-pane", "-p")
		return strings.Contains(text, "keep") && !strings.Contains(text, "held") && strings.Count(text, "build") == 1 && strings.Contains(text, "…")
	})
	p.tmux("resize-window", "-x", "120", "-y", "30")
	q.must("hold", "keep")
	p.until("it is shown anew in the larger window", 10*time.Second, func() bool {
		text := p.shown()
		return strings.Contains(text, "held") && strings.Count(text, "build") == 1 && strings.Contains(text, "exec sleep 600")
	})
	p.tmux("send-keys", "C-c")
	p.shows("\n>")
}

// Ctrl-C ends whatever waits or follows, and leaves the terminal as it was.
func TestCtrlCLeavesTheTerminalAsItWas(t *testing.T) {
	q := serving(t, "--workers", "2")
	ofEach(q)
	q.write("lines", "sleep 600\n")
	p := newPane(q, 80, 24)
	p.keys("stty -g >before")
	for _, verb := range []string{"attach build", "logs -f build", "events -f", "list --watch", "status --watch", "wait build", "wait build --progress",
		"worker start --foreground", "run --id mine 'sleep 600'", "run --tty --cancel-on-exit -- sh -c 'trap exit INT; sleep 600'", "run --private --dir own --lines lines --workers 1"} {
		p.keys("clear; q " + verb)
		p.until(verb+" runs", 20*time.Second, func() bool {
			now := p.tmux("display", "-p", "#{pane_current_command}")
			return strings.HasPrefix(now, "queuectl")
		})
		if strings.Contains(verb, "--private") {
			p.shows("1 running")
		}
		p.tmux("send-keys", "C-c")
		if strings.Contains(verb, "--private") { // what runs may finish, unless one says it again
			p.shows("those that run may finish")
			p.tmux("send-keys", "C-c")
		}
		p.until("the shell is back after "+verb, 30*time.Second, func() bool {
			return p.tmux("display", "-p", "#{pane_current_command}") == "sh"
		})
		os.Remove(q.path("after"))
		p.keys("clear; stty -g >after; echo fin$((1+1))")
		p.shows("fin2")
		before, after := read(t, q.path("before")), read(t, q.path("after"))
		if before != after {
			t.Errorf("%s: the terminal was %s, is %s", verb, before, after)
		}
		if got := p.tmux("display", "-p", "#{cursor_flag} #{alternate_on} #{mouse_any_flag} #{keypad_flag}"); got != "1 0 0 0" {
			t.Errorf("%s: cursor, other screen, mouse, keypad: %s", verb, got)
		}
	}
}

// read is the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
