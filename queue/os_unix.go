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

// SameVariableName reports whether two names denote the same environment variable.
func SameVariableName(a, b string) bool { return a == b }

// unquotedChars contains the characters, except letters and digits, that need no quoting in a POSIX shell.
const unquotedChars = "%+,-./:=@_"

// isShellKeyword reports whether a POSIX shell or bash treats a word as a keyword at the beginning of a command. It
// knows only keywords that consist of letters. Other keywords, such as { and !, contain characters that are always
// quoted.
func isShellKeyword(word string) bool {
	return slices.Contains([]string{
		"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time",
		"until", "while",
	}, word)
}

// quoteWord quotes a text for a POSIX shell. The result is one line of printable characters, which users can copy. If
// the text contains unprintable characters, the result has the form "$(printf '…')".
//
// A shell removes newlines from the end of the output of "$(printf '…')". So a text that ends in a newline is quoted as
// $'…' instead. This works in bash, ksh and zsh, but not in dash.
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
		// Also escape ! and a leading -. Otherwise bash would replace ! by a command from its history, and printf would
		// interpret - as the beginning of an option.
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
