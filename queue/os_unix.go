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

// plainSigns have no meaning to a POSIX shell.
const plainSigns = "%+,-./:=@_"

// reserved reports whether a word has a meaning to POSIX shells or to bash where the name of a program is expected.
// Reserved words of other characters, such as { and !, are always quoted.
func reserved(word string) bool {
	return slices.Contains([]string{
		"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time", "until", "while",
	}, word)
}

// quoted quotes a text for a POSIX shell. If it has characters that do not print, printf makes the text, so that it
// stays on one line and can be copied from a terminal. A newline at its end would be lost there. Such a text is quoted
// by $'…', which bash, ksh and zsh read, but dash does not.
func quoted(text string) string {
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
		case strconv.IsPrint(r) && r != utf8.RuneError && r != '\'' && r != '!' && (r != '-' || i > 0): // ! is the history's, - an option's
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
