//go:build unix

package queue

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// CommandText quotes by the rules of POSIX.1-2024 (Shell Command Language, section 2.2, and the formats of
// printf).
func TestCommandTextQuotesForAPOSIXShell(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"cp", "c lip1.mov", "/tmp/a"}, `cp 'c lip1.mov' /tmp/a`},
		{[]string{"echo", ""}, `echo ''`},
		{[]string{"echo", "it's", "a\\b", "$HOME", "*", "~", "a;b", "é"}, `echo 'it'\''s' 'a\b' '$HOME' '*' '~' 'a;b' é`},
		{[]string{"A=b", "C=d"}, `'A=b' C=d`},
		{[]string{"time", "if", "time"}, `'time' if time`},
		{[]string{"printf", "a\nb\tc'\\%\x01\x7f\xff!"}, `printf "$(printf 'a\nb\tc\047\\%%\001\177\377\041')"`},
		{[]string{"echo", "-\u200b\u00a0é"}, `echo "$(printf '\055\342\200\213\302\240é')"`},
		{[]string{"sh", "-c", "make all %\n"}, `sh -c $'make all %\n'`},
	} {
		if got := CommandText("", c.argv); got != c.want {
			t.Errorf("%q: got %s, want %s", c.argv, got, c.want)
		}
	}
}

// shellUnsafeWords lists words that a shell would change or misinterpret if they were not quoted.
var shellUnsafeWords = []string{
	"a b", "", "it's", `a\b`, "$HOME", "`id`", "*", "~", "a;b", "#", "!", "!!", "a!b", "{a,b}", "[x]", "2>x", "é", "A=b",
	"-n", "%s", `\n`, `\101`,
	"two\nlines", "\n\nx", "tab\tbed", "\x1b[31mred", "a\u200bb", "no\u00a0break", "👩\u200d💻", "\xff\xfe", "-n\nx",
	"it's\n!!\n$HOME `id` \"x\" 100%", "1\r2", "\x011", "\\\n\\",
}

// installedShells returns the names of the installed shells. The value for each name is text to send to the shell
// before a command line. With this text, the shell treats the line like one that a user types: for example, the text
// turns on bash's history expansion. dash is included because it supports only POSIX.1-2017.
func installedShells(t *testing.T) map[string]string {
	found := map[string]string{"sh": ""}
	for name, first := range map[string]string{"dash": "", "bash": "set -o history -o histexpand\n"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Logf("no %s here", name)
			continue
		}
		found[name] = first
	}
	return found
}

// A shell splits the line that CommandText returns into the original words. The line contains only printable
// characters.
func TestCommandTextIsReadBackByTheShell(t *testing.T) {
	line := CommandText("", append([]string{"printf", `%s\0`}, shellUnsafeWords...))
	if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%q does not print at byte %d", line, i)
	}
	for shell, first := range installedShells(t) {
		cmd := exec.Command(shell)
		cmd.Stdin = strings.NewReader(first + line + "\n")
		out, err := cmd.Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil ||
			!slices.Equal(got, shellUnsafeWords) {
			t.Errorf("%s reads %q, %v, want %q", shell, got, err, shellUnsafeWords)
		}
	}
}

// CommandText quotes the name of a program so that the shell runs it, even if the name is a keyword of the
// shell or looks like an assignment.
func TestCommandTextRunsAnyProgram(t *testing.T) {
	names := []string{
		"A=b", "a b", "two\nlines", "if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until",
		"do", "done", "in",
		"function", "time", "coproc", "{", "}", "!", "[[", "]]",
	}
	for shell, first := range installedShells(t) {
		for _, name := range names {
			cmd := exec.Command(shell)
			cmd.Env = []string{"PATH=/nowhere"}
			cmd.Stdin = strings.NewReader(first + CommandText("", []string{name, "x"}) + "\n")
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 127 || !strings.Contains(string(out), "not found") {
				t.Errorf("%s, for the program %q: got %q, %v, want that it is not found", shell, name, out, err)
			}
		}
	}
}

// CommandText quotes a word that ends with a newline so that bash reads it back. No form of quotes for such a word
// works in every POSIX shell on one line.
func TestCommandTextQuotesFinalNewline(t *testing.T) {
	want := []string{"a\n", "it's\n\n", "%!\x1b\\\n"}
	out, err := exec.Command("bash", "-c", CommandText("", append([]string{"printf", `%s\0`}, want...))).Output()
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, want) {
		t.Errorf("bash reads %q, %v, want %q", got, err, want)
	}
}
