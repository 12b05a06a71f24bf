package cli

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// piece is a part of a word of a program that is run for each argument: text as it stands or, if
// whole is set, what takes the place of a replacement string as GNU parallel has them.
type piece struct {
	text  string
	arg   int                 // the number of the argument, 0 for all of them
	of    func(string) string // what is taken of an argument
	whole string              // the replacement string, "" for text
}

// replacements are what may stand between { and }, after the number of an argument if there is one,
// and what it takes of that.
var replacements = []struct {
	name string
	of   func(string) string
}{
	{"", func(arg string) string { return arg }},
	{".", withoutExtension},
	{"/", baseOf},
	{"//", folderOf},
	{"/.", func(arg string) string { return withoutExtension(baseOf(arg)) }},
}

// numberOf stands for the number of the job, 1 for the first.
const numberOf = "{#}"

// mostPlaces is the highest number of an argument that a replacement string may name.
const mostPlaces = 9

// pieces are the parts of a word.
func pieces(word string) (list []piece) {
	begin := 0
	for i := 0; i < len(word); i++ {
		p, ok := replacementAt(word[i:])
		if !ok {
			continue
		}
		if i > begin {
			list = append(list, piece{text: word[begin:i]})
		}
		list = append(list, p)
		begin = i + len(p.whole)
		i = begin - 1
	}
	if begin < len(word) {
		list = append(list, piece{text: word[begin:]})
	}
	return list
}

// replacementAt is the replacement string that a text begins with.
func replacementAt(text string) (p piece, ok bool) {
	if !strings.HasPrefix(text, "{") {
		return p, false
	}
	if strings.HasPrefix(text, numberOf) {
		return piece{whole: numberOf}, true
	}
	inside, _, closed := strings.Cut(text[1:], "}")
	if !closed {
		return p, false
	}
	p.whole = text[:len(inside)+2]
	if inside != "" && inside[0] >= '1' && inside[0] <= '0'+mostPlaces {
		p.arg = int(inside[0] - '0')
		inside = inside[1:]
	}
	for _, r := range replacements {
		if r.name == inside {
			p.of = r.of
			return p, true
		}
	}
	return p, false
}

// parallelPlaces lists the text between { and } of the replacement strings of GNU parallel, also of its option
// --plus, after the number of an argument if there is one.
var parallelPlaces = []string{"", ".", "/", "//", "/.", "#", "%", "##", "..", "...", "/..", "/...", "+/", "+.", "+..", "+...", ":", "::"}

// foreignPlace finds a replacement string of GNU parallel in a text that has none of ours, or a Perl expression
// between {= and =}. Other braces are text, like {1..3} of bash, {2,3} of regular expressions, and those of awk and
// JSON.
func foreignPlace(text string) (place string, found bool) {
	for {
		before, rest, opened := strings.Cut(text, "{")
		inside, after, closed := strings.Cut(rest, "}")
		if !opened || !closed {
			return "", false
		}
		name := strings.TrimLeft(strings.TrimPrefix(inside, "-"), "0123456789")
		switch {
		case name == "" && repeats(before):
		case inside != "" && inside != "-" && slices.Contains(parallelPlaces, name), strings.HasPrefix(inside, "="):
			return "{" + inside + "}", true
		}
		if i := strings.Index(rest, "{"); i >= 0 && i < len(inside) {
			after = rest // the first one was never closed
		}
		text = after
	}
}

// repeats reports whether {10} after this text repeats a part of a regular expression, as in [0-9]{10}. GNU parallel
// would replace it all the same, by nothing if there is no such argument.
func repeats(before string) bool {
	return strings.HasSuffix(before, "]") || strings.HasSuffix(before, ")")
}

// replaced is a word for the arguments of the nth job.
func replaced(list []piece, args []string, n int) string {
	var b strings.Builder
	for _, p := range list {
		switch {
		case p.whole == "":
			b.WriteString(p.text)
		case p.of == nil:
			b.WriteString(strconv.Itoa(n))
		case p.arg > len(args):
			b.WriteString(p.whole)
		case p.arg > 0:
			b.WriteString(p.of(args[p.arg-1]))
		default:
			for i, arg := range args {
				if i > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(p.of(arg))
			}
		}
	}
	return b.String()
}

// withoutExtension is a path up to the last dot of its last part.
func withoutExtension(path string) string {
	for i := len(path) - 1; i >= 0 && !os.IsPathSeparator(path[i]); i-- {
		if path[i] == '.' {
			return path[:i]
		}
	}
	return path
}

// baseOf is what follows the last separator of a path.
func baseOf(path string) string {
	i := len(path)
	for i > 0 && !os.IsPathSeparator(path[i-1]) {
		i--
	}
	return path[i:]
}

// folderOf is the folder that a path is in, as dirname(1) has it.
func folderOf(path string) string {
	trimmed := trimSeparators(path)
	if trimmed == "" && path != "" {
		return path[:1] // the root
	}
	folder := trimmed[:len(trimmed)-len(baseOf(trimmed))]
	if folder == "" {
		return "."
	}
	if trimmed = trimSeparators(folder); trimmed == "" {
		return folder[:1]
	}
	return trimmed
}

// trimSeparators is a path without the separators at its end.
func trimSeparators(path string) string {
	for path != "" && os.IsPathSeparator(path[len(path)-1]) {
		path = path[:len(path)-1]
	}
	return path
}
