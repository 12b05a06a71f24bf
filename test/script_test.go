//go:build linux || windows

package test

import (
	"embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/rogpeppe/go-internal/testscript"
)

//go:embed script/*.txtar
var scripts embed.FS

// With -update the scripts are given what the program prints now. What changed is
// to be read, line by line, before it is kept.
var update = flag.Bool("update", false, "write what is printed into the scripts")

// What a person types, right or wrong, from an empty home on, is answered as each
// script in the folder script says: every byte on both streams, and the exit code.
// Each script has a home and a service of its own, and leaves no process behind.
func TestScripts(t *testing.T) {
	bin := binary(t, "")
	dir := "script"
	if !*update { // elsewhere there is the compiled test alone
		dir = t.TempDir()
		if err := os.CopyFS(dir, scripts); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(dir, "script")
	}
	root, err := os.MkdirTemp("", "qs") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	testscript.Run(t, testscript.Params{
		Dir: dir, WorkdirRoot: root, UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			s := &shell{TB: env.T().(testing.TB), work: env.WorkDir, home: filepath.Join(env.WorkDir, "home")}
			s.normal = normalities(s)
			env.Values["shell"] = s
			env.Defer(s.end)
			if err := os.MkdirAll(filepath.Join(s.home, "bin"), 0o700); err != nil {
				return err
			}
			return s.settle(bin)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"session": session},
	})
}

// session runs the lines of a file that begin with "$ ", and prints the file anew
// with what they print now. With -columns N that is what a terminal of so many
// columns shows, on which no line of a table may be wider.
//
//	$ queuectl show 2
//	! queuectl: there is no job "2"
//	[exit 4]
//
// What goes to stderr has "! " before it, ESC is shown as ␛, CR as ␍, and lines that begin
// with "# " are comments.
func session(ts *testscript.TestScript, neg bool, args []string) {
	columns := 0
	if len(args) == 3 && args[0] == "-columns" {
		columns, _ = strconv.Atoi(args[1])
		args = args[2:]
	}
	if neg || len(args) != 1 {
		ts.Fatalf("usage: session [-columns N] FILE")
	}
	s := ts.Value("shell").(*shell)
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case typed:
			fmt.Fprint(ts.Stdout(), line, s.answer(strings.TrimSpace(command), columns), "\n")
		case strings.HasPrefix(line, "# "):
			fmt.Fprint(ts.Stdout(), line)
		}
	}
}

// shell is where the lines of one script are typed.
type shell struct {
	testing.TB
	work, home string
	env        []string
	normal     []normality
}

// end stops the service of the script and sees that nothing is left of it.
func (s *shell) end() {
	s.command("queuectl service stop").Run() // it may not run any more
	for deadline := time.Now().Add(10 * time.Second); len(processes(s.work)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Errorf("left behind: %q", processes(s.work))
			return
		}
	}
}

func (s *shell) command(line string) *exec.Cmd {
	cmd := s.shellOf(line)
	cmd.Env, cmd.Dir = s.env, s.work
	return cmd
}

// answer is what a line prints and how it ends, as scripts have it.
func (s *shell) answer(line string, columns int) string {
	cmd := s.command(s.typed(line))
	var b strings.Builder
	if columns > 0 {
		text, code := onScreen(s, cmd, columns)
		if isTable.MatchString(line) {
			s.fits(line, text, columns)
		}
		b.WriteString(s.lines("", text))
		exited(&b, code)
		return b.String()
	}
	r := ran(s, cmd)
	b.WriteString(s.lines("", r.out))
	b.WriteString(s.lines("! ", r.err))
	exited(&b, r.code)
	return b.String()
}

func exited(b *strings.Builder, code int) {
	if code != 0 {
		fmt.Fprintf(b, "[exit %d]\n", code)
	}
}

// isTable are the lines whose whole answer is a table.
var isTable = regexp.MustCompile(`\bqueuectl ((dlq |worker |config )?list)\b[^|]*$`)

// fits wants every line to take no more columns than there are.
func (s *shell) fits(line, text string, columns int) {
	s.Helper()
	for shown := range strings.Lines(text) {
		shown = strings.TrimSuffix(colours.ReplaceAllString(shown, ""), "\n")
		if got := runewidth.StringWidth(shown); got > columns {
			s.Errorf("%s: a line takes %d columns of %d: %q", line, got, columns, shown)
		}
	}
}

// lines are the lines of a text, each with a mark before it, in normal form.
func (s *shell) lines(mark, text string) string {
	if text == "" {
		return ""
	}
	text = s.seen(text)
	for _, n := range s.normal {
		text = n.find.ReplaceAllString(text, n.put)
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(mark + line)
	}
	if !strings.HasSuffix(text, "\n") {
		b.WriteString("⏎\n") // there is no end of line
	}
	return b.String()
}

// normality is what differs from run to run, and what is put in its place.
type normality struct {
	find *regexp.Regexp
	put  string
}

func normalities(s *shell) (list []normality) {
	user := userName(s)
	host, err := os.Hostname()
	if err != nil {
		s.Fatal(err)
	}
	for _, n := range [][2]string{
		{regexp.QuoteMeta(s.home), "~"},
		{regexp.QuoteMeta(s.work), "$$WORK"},
		{`\x1b`, "␛"}, {`\r`, "␍"},
		{`to change that: .*`, "to change that: ADVICE"},          // systems differ
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`, "yyyy-mm-dd hh:mm:ss"}, // as wide as it was
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`, "yyyy-mm-ddThh:mm:ss.mmmZ"},
		{`not due yet: (\w{3} \d+ \w{3} (\d{4} )?)?\d\d:\d\d`, "not due yet: hh:mm"},
		{`(due|expires) \w{3} \d+ \w{3} (\d{4} )?\d\d:\d\d(:\d\d)? `, "$1 DAY hh:mm "},
		{`\b(for|in) [\d.]+(m?s|m\d\ds|m|h\d*)\b`, "${1} SPAN"}, {`(just now|\b[\d.]+(m?s|m|m\d\ds) ago) *`, "AGO  "}, {`AGO  [\d.]+m?s +`, "AGO  SPAN  "}, {`(✓ \S+ +)[\d.]+m?s +`, "${1}SPAN  "},
		{`(WHEN|FOR) +`, "${1}  "}, {`\b(for|in) SPAN +`, "${1} SPAN  "},
		{`retrying now +`, "retrying in SPAN  "},
		{`\b(pid |Pid: +)\d+`, "${1}PID"},
		{`"pid":\d+`, `"pid":PID`},
		{`(?m)^Shell: +/bin/sh -c\n`, ""}, // said on Windows, where another one is the default
		{`(Waited: +|Ran: +|Typical: +|typically )[\d.]+m?s`, "${1}SPAN"},
		{`RAN +`, "RAN   "}, {`(hh:mm:ss  )[\d.]+m?s +`, "${1}SPAN  "},
		{`"((?:queue_time|(?:usual_)?run_time|cpu)_ms|peak_rss)":\d+`, `"$1":N`},
		{`(User: +|by |"user":")` + user + `\b`, "${1}USER"},
		{`[\d.]+ [KM]iB\b`, "SIZE"}, {`\d+ attempts? in the last minute`, "N attempts in the last minute"},
		{regexp.QuoteMeta(host), "HOST"},
		{`\d\.\d\.\d(-dev)?\b`, "VERSION"},
	} {
		list = append(list, normality{regexp.MustCompile(n[0]), n[1]})
	}
	return list
}
