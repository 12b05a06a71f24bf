//go:build unix

package queue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExitCode is the highest possible exit code of a process.
const maxExitCode = 255

// SameVariable reports whether two names denote the same environment variable.
func SameVariable(a, b string) bool { return a == b }

// unquotedChars contains the characters, except letters and digits, that need no quoting in a POSIX shell.
const unquotedChars = "%+,-./:=@_"

// isShellKeyword reports whether a POSIX shell or bash treats a word as a keyword where it expects a program's
// name. It knows only keywords made of letters, since quoteWord always quotes others, such as { and !.
func isShellKeyword(word string) bool {
	return slices.Contains([]string{
		"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time",
		"until", "while",
	}, word)
}

// quoteWord quotes a text for a POSIX shell. For a text with unprintable characters, it returns a printf
// command in a command substitution. The result stays on one line and can be copied from a terminal. A command
// substitution drops a newline at the end, so a text that ends in a newline is quoted as $'…'. That form works
// in bash, ksh and zsh, but not in dash.
func quoteWord(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\\':
			b.WriteString(`\\`)
		// Escape ! and a leading - too: bash expands ! from its history, and printf takes a leading - as an
		// option.
		case strconv.IsPrint(r) && r != utf8.RuneError && r != '\'' && r != '!' && (r != '-' || i > 0):
			b.WriteRune(r)
		default:
			for _, c := range []byte(text[i : i+n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		}
		i += n
	}
	if strings.HasSuffix(text, "\n") {
		return "$'" + b.String() + "'"
	}
	return `"$(printf '` + strings.ReplaceAll(b.String(), "%", "%%") + `')"`
}
