//go:build linux || windows

package cli

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/queuectl/queuectl/internal/testrig"
)

//go:embed script/*.txtar
var scriptFiles embed.FS

// For each command line in a script, the program must give exactly the stdout, stderr and exit code that the
// script shows. The scripts are in the directory script/. Each script starts with an empty home directory and
// its own service, and must leave no process behind.
func TestScriptsGiveExpectedOutput(t *testing.T) {
	bin := testrig.BuiltProgram(t, "")
	dir := "script"
	if !*testrig.UpdateExpectedOutput { // the copies in the test binary always exist, the sources may be missing
		dir = t.TempDir()
		if err := os.CopyFS(dir, scriptFiles); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(dir, "script")
	}
	root, err := os.MkdirTemp("", "qs") // a short name: a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	testscript.Run(t, testscript.Params{
		Dir: dir, WorkdirRoot: root, UpdateScripts: *testrig.UpdateExpectedOutput,
		Setup: func(env *testscript.Env) error {
			s := &testrig.ScriptShell{TB: env.T().(testing.TB), WorkDir: env.WorkDir,
				HomeDir: filepath.Join(env.WorkDir, "home")}
			s.OutputReplacements = replacementsFor(s)
			env.Values["shell"] = s
			env.Defer(s.StopService)
			if err := os.MkdirAll(filepath.Join(s.HomeDir, "bin"), 0o700); err != nil {
				return err
			}
			return s.SetUpHome(bin)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"session": runScriptSession},
	})
}

// runScriptSession executes the lines of a file that begin with "$ ", and prints the file with the actual output. With
// -columns N, the lines run on a terminal with N columns, and no line of a table may be wider.
//
//	$ queuectl show 2
//	! queuectl: there is no job "2"
//	[exit 4]
//
// Lines of stderr start with "! ". ESC is printed as ␛ and CR as ␍. Lines that begin with "# " are
// comments.
func runScriptSession(ts *testscript.TestScript, neg bool, args []string) {
	columns := 0
	if len(args) == 3 && args[0] == "-columns" {
		columns, _ = strconv.Atoi(args[1])
		args = args[2:]
	}
	if neg || len(args) != 1 {
		ts.Fatalf("usage: session [-columns N] FILE")
	}
	s := ts.Value("shell").(*testrig.ScriptShell)
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case typed:
			fmt.Fprint(ts.Stdout(), line, runScriptLine(s, strings.TrimSpace(command), columns), "\n")
		case strings.HasPrefix(line, "# "):
			fmt.Fprint(ts.Stdout(), line)
		}
	}
}

// runScriptLine runs a line and returns its output and exit code in the format of the scripts.
func runScriptLine(s *testrig.ScriptShell, line string, columns int) string {
	cmd := s.Command(s.PlatformScriptLine(line))
	var b strings.Builder
	if columns > 0 {
		text, code := testrig.RunOnTerminal(s, cmd, columns)
		if tableCommandPattern.MatchString(line) {
			checkFitsTerminal(s, line, text, columns)
		}
		b.WriteString(normalizeLines(s, "", text))
		writeExitCode(&b, code)
		return b.String()
	}
	r := testrig.RunCommand(s, cmd)
	b.WriteString(normalizeLines(s, "", r.Stdout))
	b.WriteString(normalizeLines(s, "! ", r.Stderr))
	writeExitCode(&b, r.ExitCode)
	return b.String()
}

func writeExitCode(b *strings.Builder, code int) {
	if code != 0 {
		fmt.Fprintf(b, "[exit %d]\n", code)
	}
}

// tableCommandPattern matches the command lines that print only a table.
var tableCommandPattern = regexp.MustCompile(`\bqueuectl ((dlq |worker |config )?list)\b[^|]*$`)

// checkFitsTerminal checks that no line of text is wider than the terminal.
func checkFitsTerminal(s *testrig.ScriptShell, line, text string, columns int) {
	s.Helper()
	for row := range strings.Lines(text) {
		row = strings.TrimSuffix(testrig.ColourSequencePattern.ReplaceAllString(row, ""), "\n")
		if got := runewidth.StringWidth(row); got > columns {
			s.Errorf("%s: a line takes %d columns of %d: %q", line, got, columns, row)
		}
	}
}

// normalizeLines replaces times, ids and similar parts of a text by placeholders, and puts
// prefix before each line.
func normalizeLines(s *testrig.ScriptShell, prefix, text string) string {
	if text == "" {
		return ""
	}
	text = s.ToUnixOutput(text)
	for _, n := range s.OutputReplacements {
		text = n.Pattern.ReplaceAllString(text, n.NewText)
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(prefix + line)
	}
	if !strings.HasSuffix(text, "\n") {
		b.WriteString("⏎\n") // marks a last line without a newline
	}
	return b.String()
}

// replacementsFor returns the replacements for texts that differ between runs or machines.
func replacementsFor(s *testrig.ScriptShell) (replacements []testrig.OutputReplacement) {
	user := testrig.CurrentUserName(s)
	host, err := os.Hostname()
	if err != nil {
		s.Fatal(err)
	}
	for _, n := range [][2]string{
		{regexp.QuoteMeta(s.HomeDir), "~"},
		{regexp.QuoteMeta(s.WorkDir), "$$WORK"},
		{`\x1b`, "␛"}, {`\r`, "␍"},
		{`to change that: .*`, "to change that: ADVICE"},          // the advice differs between systems
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`, "yyyy-mm-dd hh:mm:ss"}, // a placeholder as wide as a time keeps columns aligned
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`, "yyyy-mm-ddThh:mm:ss.mmmZ"},
		{`not due yet \(until (\w{3} \d+ \w{3} (\d{4} )?)?\d\d:\d\d`, "not due yet (until hh:mm"},
		{`(due|expires) \w{3} \d+ \w{3} (\d{4} )?\d\d:\d\d(:\d\d)? `, "$1 DAY hh:mm "},
		{`\b(for|in) [\d.]+(m?s|m\d\ds|m|h\d*)\b`, "${1} SPAN"}, {`(just now|\b[\d.]+(m?s|m|m\d\ds) ago) *`, "AGO  "},
		{`AGO  [\d.]+m?s +`, "AGO  SPAN  "}, {`(✓ \S+ +)[\d.]+m?s +`, "${1}SPAN  "},
		{`(WHEN|FOR) +`, "${1}  "}, {`\b(for|in) SPAN +`, "${1} SPAN  "},
		{`retrying now +`, "retrying in SPAN  "},
		{`\b(pid |Pid: +)\d+`, "${1}PID"},
		{`"pid":\d+`, `"pid":PID`},
		{`(?m)^Shell: +/bin/sh -c\n`, ""}, // Windows prints this line, because the shell differs from the default
		{`(Waited: +|Ran: +|Typical: +|typically )[\d.]+m?s`, "${1}SPAN"},
		{`RAN +`, "RAN   "}, {`(hh:mm:ss  )[\d.]+m?s +`, "${1}SPAN  "},
		{`"((?:queue_time|(?:usual_)?run_time|cpu)_ms|peak_rss)":\d+`, `"$1":N`},
		{`(User: +|by |"user":")` + user + `\b`, "${1}USER"},
		{`[\d.]+ [KM]iB\b`, "SIZE"}, {`\d+ attempts? in the last minute`, "N attempts in the last minute"},
		{regexp.QuoteMeta(host), "HOST"},
		{`\d\.\d\.\d(-dev)?\b`, "VERSION"},
	} {
		replacements = append(replacements, testrig.OutputReplacement{Pattern: regexp.MustCompile(n[0]), NewText: n[1]})
	}
	return replacements
}
