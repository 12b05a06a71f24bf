package input

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// queuectl replaces replacement strings as GNU parallel does, and leaves other braces unchanged.
func TestPlaceholdersAreReplacedLikeGNUParallel(t *testing.T) {
	for _, c := range []struct {
		word string
		args []string
		want string
	}{
		{"{}", []string{"dir/a b.tar.gz"}, "dir/a b.tar.gz"}, {"{.}", []string{"dir/a b.tar.gz"}, "dir/a b.tar"},
		{"{/}", []string{"dir/a.gz"}, "a.gz"}, {"{//}", []string{"dir/sub/a.gz"}, "dir/sub"},
		{"{/.}", []string{"dir.d/a.gz"}, "a"},
		{"{.}", []string{"dir.d/a"}, "dir.d/a"}, {"{.}", []string{".profile"}, ""}, {"{.}", []string{"a."}, "a"},
		{"{/}", []string{"dir/"}, ""},
		{"{//}", []string{"a"}, "."}, {"{//}", []string{"/a"}, "/"}, {"{//}", []string{"/"}, "/"},
		{"{//}", []string{"//a//b//"}, "//a"}, {"{//}", []string{"a/b/"}, "a"}, {"{//}", []string{""}, "."},
		{"{#}:{}", []string{"x"}, "7:x"}, {"<{2/.}-{1//}>", []string{"a/b.c", "d/e.f"}, "<e-a>"},
		{"{} {.}", []string{"a.b", "c.d"}, "a.b c.d a c"},
		{"{x} {} {{}} {", []string{"1"}, "{x} 1 {1} {"}, {"{}", []string{"{.}"}, "{.}"}, {"plain", []string{"a"}, "plain"},
		{"{10} {0}", []string{"a"}, "{10} {0}"},
	} {
		if got := replacePlaceholders(SplitAtPlaceholders(c.word), c.args, 7); got != c.want {
			t.Errorf("%s of %q: got %q, want %q", c.word, c.args, got, c.want)
		}
	}
}

// The replacement string {#} is the number of the job, counted from 1. If the program contains no replacement string,
// the arguments are appended to the program.
func TestArgumentsFillPlaceholdersOrAreAppended(t *testing.T) {
	of := func(m Source) (list [][]string) {
		err := m.EachJob(nil, func(raw []byte, _ int) error {
			s, err := m.JobSpec(&queue.Spec{}, raw)
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
		{[]string{"echo"}, []string{"echo", "b", "1"}}, {[]string{"echo", "{#}"}, []string{"echo", "2"}},
		{[]string{"{1}", "x{2}"}, []string{"b", "x1"}},
	} {
		got := of(Source{CommandTemplate: c.program, argLists: words})
		if len(got) != 2 || !slices.Equal(got[1], c.want) {
			t.Errorf("%q: got %q, want %q last", c.program, got, c.want)
		}
	}
}

// Replacement strings in GNU parallel's man page that queuectl does not support are rejected. Braces of awk,
// JSON, sh and regular expressions are accepted.
func TestUnsupportedPlaceholdersAreRejected(t *testing.T) {
	for text, want := range map[string]string{
		"{%}": "{%}", "{0}": "{0}", "{-1}": "{-1}", "{..}": "{..}", "{...}": "{...}", "{/..}": "{/..}", "{/...}": "{/...}",
		"{+/}": "{+/}", "{+.}": "{+.}", "{:}": "{:}", "{::}": "{::}", "{##}": "{##}", "{0.}": "{0.}", "a{%}b": "{%}",
		"{ {%}": "{%}", "{= $_=1 =}": "{= $_=1 =}", "{}{%}": "{%}",
		"{0#}": "{0#}", "{-2}": "{-2}", "{2..}": "{2..}", "{-1/.}": "{-1/.}", "{0%}": "{0%}", "{01}": "{01}", "{10}": "{10}",
		"a{12.}": "{12.}",
		"{1..3}": "", "{01..10}": "", "{5..1..2}": "", "[0-9]{10}": "", "(ab){12}": "", "{5,}": "", "{0,3}": "",
		"{-5..5}": "", "{1..10..-2}": "", "{:3}": "", "{1.5}": "", "{--}": "", "{+/.}": "",
		"{print $1}": "", "{1,3}": "", `{"a":1}`: "", "{a,b}": "", "${HOME}": "", "${#x}": "", "{ echo; }": "", "{": "",
		"}{": "", "": "", "{name}": "",
	} {
		var got string
		for _, p := range SplitAtPlaceholders(text) {
			if place, found := findUnsupportedPlaceholder(p.text); found && got == "" {
				got = place
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Braces that repeat a part of a regular expression, such as {4}, are not replaced. The argument is appended
// as usual.
func TestRegexpRepetitionIsNotReplaced(t *testing.T) {
	m := Source{CommandTemplate: []string{"grep", "-E", "[0-9]{4}-(ab){2}"}, argLists: [][]string{{"f"}}}
	if err := m.checkPlaceholders(); err != nil {
		t.Fatal(err)
	}
	s, err := m.JobSpec(&queue.Spec{}, []byte("f"))
	if want := []string{"grep", "-E", "[0-9]{4}-(ab){2}", "f"}; err != nil || !slices.Equal(s.Argv, want) {
		t.Errorf("got %q, %v, want %q", s.Argv, err, want)
	}
	for _, word := range []string{"{3}", "a{3}", "[0-9]{3/}"} {
		if err := (&Source{CommandTemplate: []string{word}, argLists: m.argLists}).checkPlaceholders(); err == nil {
			t.Errorf("%s: accepted, want refused", word)
		}
	}
}

// --lines uses each line unchanged as the command, like GNU parallel. A blank at the end of the line is kept, because a
// backslash may precede and escape it.
func TestLinesFlagKeepsTrailingBlanks(t *testing.T) {
	for _, line := range []string{`touch a\ `, "\techo x", "  echo  a  b  "} {
		s, err := (&Source{CommandsFile: "list"}).JobSpec(&queue.Spec{}, []byte(line))
		if err != nil || s.Command == nil || *s.Command != line {
			t.Errorf("%q: got %+v, %v", line, s, err)
		}
	}
}
