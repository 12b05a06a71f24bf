//go:build unix

package queue

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The expected values follow from the rules for quoting in POSIX.1-2024, Shell Command Language, 2.2.
func TestCommandTextQuotesForAPOSIXShell(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"cp", "c lip1.mov", "/tmp/a"}, `cp 'c lip1.mov' /tmp/a`},
		{[]string{"echo", ""}, `echo ''`},
		{[]string{"echo", "it's", "a\\b", "$HOME", "*", "~", "a;b", "é"}, `echo 'it'\''s' 'a\b' '$HOME' '*' '~' 'a;b' é`},
		{[]string{"A=b", "C=d"}, `'A=b' C=d`},
		{[]string{"printf", "a\nb\tc'\\\x01\x7f"}, `printf $'a\nb\tc\'\\\x01\x7f'`},
	} {
		if got := CommandText("", c.argv); got != c.want {
			t.Errorf("%q: got %s, want %s", c.argv, got, c.want)
		}
	}
}

func TestCommandTextIsReadBackByTheShell(t *testing.T) {
	words := []string{"a b", "", "it's", `a\b`, "$HOME", "`id`", "*", "~", "a;b", "#", "!", "{a,b}", "[x]", "2>x", "é", "A=b", "-n"}
	out, err := exec.Command("sh", "-c", CommandText("", append([]string{"printf", `%s\0`}, words...))).Output()
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
		t.Errorf("sh reads %q, %v, want %q", got, err, words)
	}
}
