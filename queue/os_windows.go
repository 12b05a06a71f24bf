package queue

import (
	"slices"
	"strings"
)

// maxExitCode is the highest possible exit code of a process.
const maxExitCode = 1<<32 - 1

// SameVariableName reports whether two names denote the same environment variable.
func SameVariableName(a, b string) bool { return strings.EqualFold(a, b) }

// unquotedChars contains the characters, except letters and digits, that need no quoting in cmd.exe.
const unquotedChars = `+,-./:=@_\~`

// isShellKeyword reports whether cmd.exe treats a word as a keyword at the beginning of a command.
func isShellKeyword(word string) bool {
	return slices.Contains([]string{"for", "if", "rem"}, strings.ToLower(word))
}

// quoteWord quotes a text so that it reaches a program unchanged: cmd.exe passes it on, and CommandLineToArgvW
// parses it as one argument. A backslash needs escaping only before a quote.
func quoteWord(text string) string {
	var b strings.Builder
	backslashes := 0
	for i := range len(text) {
		switch text[i] {
		case '\\':
			backslashes++
		case '"':
			b.WriteString(strings.Repeat(`\`, backslashes+1))
			backslashes = 0
		default:
			backslashes = 0
		}
		b.WriteByte(text[i])
	}
	return `"` + b.String() + strings.Repeat(`\`, backslashes) + `"`
}
