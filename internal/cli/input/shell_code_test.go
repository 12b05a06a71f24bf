package input

import (
	"testing"
)

// findPlaceholderInCode finds a replacement string in code for a shell or another interpreter. It ignores a
// replacement string that is a word after the code, or that is all of the code.
func TestPlaceholderInInterpreterCodeIsFound(t *testing.T) {
	for _, c := range []struct {
		program []string
		place   string
	}{
		{[]string{"sh", "-c", "gzip {}"}, "{}"},
		{[]string{"/bin/bash", "-ec", `cp "{1}" "{1.}.bak"`}, "{1}"},
		{[]string{"bash", "-c", "-e", "gzip '{/.}'"}, "{/.}"},
		{[]string{"env", "LANG=C", "nice", "-n", "5", "dash", "-lc", "x={}"}, "{}"},
		{[]string{"su", "-", "ada", "-c", "gzip {}"}, "{}"},
		{[]string{"python3", "-c", "print('{}')"}, "{}"},
		{[]string{"perl", "-ne", "print if /{}/", "log"}, "{}"},
		{[]string{"cmd.exe", "/C", "type", "{}.txt"}, "{}"},
		{[]string{"powershell", "-NoProfile", "-Command", "Get-Item '{}'"}, "{}"},
		{[]string{"sh", "-c", `gzip "$1"`, "sh", "{}"}, ""},
		{[]string{"sh", "-c", `gzip "$1"`, "sh", "dir/{}"}, ""},
		{[]string{"sh", "-c", "echo {#}"}, ""},
		{[]string{"sh", "-c", "{}"}, ""},
		{[]string{"sh", "script", "{}.log"}, ""},
		{[]string{"cp", "{}", "{}.copy"}, ""},
		{[]string{"grep", "-c", "x {}"}, ""},
		{[]string{"sh"}, ""},
		{[]string{"sh", "-c"}, ""},
	} {
		if _, place, _ := findPlaceholderInCode(c.program); place != c.place {
			t.Errorf("%q: got %q, want %q", c.program, place, c.place)
		}
	}
}
