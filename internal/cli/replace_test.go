package cli

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Replacement strings take of an argument what GNU parallel takes, and other braces stay.
func TestReplacementStrings(t *testing.T) {
	for _, c := range []struct {
		word string
		args []string
		want string
	}{
		{"{}", []string{"dir/a b.tar.gz"}, "dir/a b.tar.gz"}, {"{.}", []string{"dir/a b.tar.gz"}, "dir/a b.tar"}, {"{/}", []string{"dir/a.gz"}, "a.gz"}, {"{//}", []string{"dir/sub/a.gz"}, "dir/sub"}, {"{/.}", []string{"dir.d/a.gz"}, "a"},
		{"{.}", []string{"dir.d/a"}, "dir.d/a"}, {"{.}", []string{".profile"}, ""}, {"{.}", []string{"a."}, "a"}, {"{/}", []string{"dir/"}, ""},
		{"{//}", []string{"a"}, "."}, {"{//}", []string{"/a"}, "/"}, {"{//}", []string{"/"}, "/"}, {"{//}", []string{"//a//b//"}, "//a"}, {"{//}", []string{"a/b/"}, "a"}, {"{//}", []string{""}, "."},
		{"{#}:{}", []string{"x"}, "7:x"}, {"<{2/.}-{1//}>", []string{"a/b.c", "d/e.f"}, "<e-a>"}, {"{} {.}", []string{"a.b", "c.d"}, "a.b c.d a c"},
		{"{x} {} {{}} {", []string{"1"}, "{x} 1 {1} {"}, {"{}", []string{"{.}"}, "{.}"}, {"plain", []string{"a"}, "plain"}, {"{10} {0}", []string{"a"}, "{10} {0}"},
	} {
		if got := replaced(pieces(c.word), c.args, 7); got != c.want {
			t.Errorf("%s of %q: got %q, want %q", c.word, c.args, got, c.want)
		}
	}
}

// The number of a job is its place among the jobs, and arguments come at the end where no
// replacement string stands.
func TestJobsOfArguments(t *testing.T) {
	of := func(m many) (list [][]string) {
		err := m.each(nil, func(raw []byte, _ int) error {
			s, err := m.spec(&queue.Spec{}, raw)
			if err == nil {
				list = append(list, s.Argv)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return list
	}
	words := [][]string{{"a", "b"}, {"1"}}
	for _, c := range []struct{ program, want []string }{
		{[]string{"echo"}, []string{"echo", "b", "1"}}, {[]string{"echo", "{#}"}, []string{"echo", "2"}}, {[]string{"{1}", "x{2}"}, []string{"b", "x1"}},
	} {
		got := of(many{program: c.program, words: words})
		if len(got) != 2 || !slices.Equal(got[1], c.want) {
			t.Errorf("%q: got %q, want %q last", c.program, got, c.want)
		}
	}
}

// Replacement strings of GNU parallel's man page that are not known here are refused, rather than left
// in the program; the braces of awk, JSON, sh and regular expressions stay as they are.
func TestForeignPlace(t *testing.T) {
	for text, want := range map[string]string{
		"{%}": "{%}", "{0}": "{0}", "{10}": "{10}", "{-1}": "{-1}", "{..}": "{..}", "{...}": "{...}", "{/..}": "{/..}", "{/...}": "{/...}", "{+/}": "{+/}", "{+.}": "{+.}", "{:}": "{:}", "{::}": "{::}", "{##}": "{##}", "{0.}": "{0.}", "a{%}b": "{%}", "{ {%}": "{%}", "{= $_=1 =}": "{= $_=1 =}", "{}{%}": "{%}",
		"{print $1}": "", "{1,3}": "", `{"a":1}`: "", "{a,b}": "", "${HOME}": "", "${#x}": "", "{ echo; }": "", "{": "", "}{": "", "": "", "{name}": "",
	} {
		var got string
		for _, p := range pieces(text) {
			if place, found := foreignPlace(p.text); found && got == "" {
				got = place
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
