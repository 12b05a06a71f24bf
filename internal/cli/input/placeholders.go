package input

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// wordPiece is a piece of a word of a job's program: literal text, or a replacement string as in GNU parallel, such as
// {}.
type wordPiece struct {
	text string
	// number of the argument that replaces the placeholder, from 1; 0 means all arguments
	argNumber       int
	transform       func(string) string // converts an argument to its replacement; nil for {#}
	placeholderText string              // the replacement string; "" for literal text
}

// placeholderFuncs lists what may be between { and }, after an optional argument number, with the function that
// computes the replacement.
var placeholderFuncs = []struct {
	name      string
	transform func(string) string
}{
	{"", func(arg string) string { return arg }},
	{".", withoutExtension},
	{"/", baseName},
	{"//", dirName},
	{"/.", func(arg string) string { return withoutExtension(baseName(arg)) }},
}

// jobNumberPlaceholder is the replacement string for the number of the job, from 1.
const jobNumberPlaceholder = "{#}"

// maxArgNumber is the highest argument number in a replacement string.
const maxArgNumber = 9

// SplitAtPlaceholders splits a word into its pieces.
func SplitAtPlaceholders(word string) (pieces []wordPiece) {
	begin := 0
	for i := 0; i < len(word); i++ {
		p, ok := parseLeadingPlaceholder(word[i:])
		if !ok {
			continue
		}
		if i > begin {
			pieces = append(pieces, wordPiece{text: word[begin:i]})
		}
		pieces = append(pieces, p)
		begin = i + len(p.placeholderText)
		i = begin - 1
	}
	if begin < len(word) {
		pieces = append(pieces, wordPiece{text: word[begin:]})
	}
	return pieces
}

// parseLeadingPlaceholder parses the replacement string at the beginning of a text. ok is false if the text does not
// begin with one.
func parseLeadingPlaceholder(text string) (p wordPiece, ok bool) {
	if !strings.HasPrefix(text, "{") {
		return p, false
	}
	if strings.HasPrefix(text, jobNumberPlaceholder) {
		return wordPiece{placeholderText: jobNumberPlaceholder}, true
	}
	inside, _, closed := strings.Cut(text[1:], "}")
	if !closed {
		return p, false
	}
	p.placeholderText = text[:len(inside)+2]
	if inside != "" && inside[0] >= '1' && inside[0] <= '0'+maxArgNumber {
		p.argNumber = int(inside[0] - '0')
		inside = inside[1:]
	}
	for _, r := range placeholderFuncs {
		if r.name == inside {
			p.transform = r.transform
			return p, true
		}
	}
	return p, false
}

// gnuParallelPlaceholders lists the texts that GNU parallel allows between { and }, after an optional argument number.
// It includes the texts that GNU parallel's option --plus allows.
var gnuParallelPlaceholders = []string{"", ".", "/", "//", "/.", "#", "%", "##", "..", "...", "/..", "/...", "+/", "+.",
	"+..",
	"+...", ":", "::"}

// findUnsupportedPlaceholder finds a replacement string of GNU parallel that queuectl does not support, or a Perl
// expression between {= and =}. It ignores other uses of braces: {1..3} in bash, {2,3} in regular expressions, and
// braces of awk and JSON.
func findUnsupportedPlaceholder(text string) (placeholder string, found bool) {
	for {
		before, rest, opened := strings.Cut(text, "{")
		inside, after, closed := strings.Cut(rest, "}")
		if !opened || !closed {
			return "", false
		}
		name := strings.TrimLeft(strings.TrimPrefix(inside, "-"), "0123456789")
		switch {
		case name == "" && allowsRegexpRepetition(before):
		case inside != "" && inside != "-" && slices.Contains(gnuParallelPlaceholders, name), strings.HasPrefix(inside, "="):
			return "{" + inside + "}", true
		}
		if i := strings.Index(rest, "{"); i >= 0 && i < len(inside) {
			after = rest // another brace opens before this brace is closed, so continue with the inner brace
		}
		text = after
	}
}

// allowsRegexpRepetition reports whether {10} after this text is a repetition in a regular expression, as in [0-9]{10}.
// GNU parallel replaces {10} even in this place, by nothing if there is no tenth argument.
func allowsRegexpRepetition(precedingText string) bool {
	return strings.HasSuffix(precedingText, "]") || strings.HasSuffix(precedingText, ")")
}

// replacePlaceholders returns a word in which the arguments of the job replace the replacement strings.
func replacePlaceholders(pieces []wordPiece, args []string, jobNumber int) string {
	var b strings.Builder
	for _, p := range pieces {
		switch {
		case p.placeholderText == "":
			b.WriteString(p.text)
		case p.transform == nil:
			b.WriteString(strconv.Itoa(jobNumber))
		case p.argNumber > len(args):
			b.WriteString(p.placeholderText)
		case p.argNumber > 0:
			b.WriteString(p.transform(args[p.argNumber-1]))
		default:
			for i, arg := range args {
				if i > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(p.transform(arg))
			}
		}
	}
	return b.String()
}

// withoutExtension returns a path up to the last dot of its last part.
func withoutExtension(path string) string {
	base := baseName(path)
	if dot := strings.LastIndexByte(base, '.'); dot >= 0 {
		return path[:len(path)-len(base)+dot]
	}
	return path
}

// baseName returns the part of a path after its last separator.
func baseName(path string) string { return path[strings.LastIndexFunc(path, isPathSeparator)+1:] }

func isPathSeparator(r rune) bool { return r <= unicode.MaxASCII && os.IsPathSeparator(uint8(r)) }

// dirName returns the directory of a path, like dirname(1).
func dirName(path string) string {
	trimmed := trimPathSeparators(path)
	if trimmed == "" && path != "" {
		return path[:1] // the path is the root directory
	}
	dir := trimmed[:len(trimmed)-len(baseName(trimmed))]
	if dir == "" {
		return "."
	}
	if trimmed = trimPathSeparators(dir); trimmed == "" {
		return dir[:1]
	}
	return trimmed
}

// trimPathSeparators returns a path without its trailing separators.
func trimPathSeparators(path string) string { return strings.TrimRightFunc(path, isPathSeparator) }
