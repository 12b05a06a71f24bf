//go:build unix

package queue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExitCode is the highest exit code of a process.
const maxExitCode = 255

// SameVariable reports whether two names denote the same environment variable.
func SameVariable(a, b string) bool { return a == b }

// unquotedChars contains the characters, except letters and digits, that need no quoting in a POSIX shell.
const unquotedChars = "%+,-./:=@_"

// isShellKeyword reports whether a POSIX shell or bash treats a word as a keyword where it expects a program's
// name. It lists only keywords made of letters. Others, such as { and !, are always quoted.
func isShellKeyword(word string) bool {
	return slices.Contains([]string{
		"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time",
		"until", "while",
	}, word)
}

// quoteWord quotes a text for a POSIX shell. If it contains unprintable characters, quoteWord writes a
// printf command instead, so that the text stays on one line and can be copied from a terminal.
// Command substitution would drop a newline at the end of the text. Such a text is therefore quoted
// as $'…', which bash, ksh and zsh support, but dash does not.
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
		// bash expands ! from its history, and printf takes a leading - as an option.
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
