//go:build unix

package queue

import (
	"strconv"
	"strings"
)

// maxExitCode is the highest exit code of a process.
const maxExitCode = 255

// plainSigns have no meaning to a POSIX shell.
const plainSigns = "%+,-./:=@_"

// quoted quotes a text for a POSIX shell. Characters that do not print are escapes within $'…', so that the text stays on
// one line and can be copied from a terminal.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		escaped := strconv.Quote(text)
		return "$'" + strings.ReplaceAll(escaped[1:len(escaped)-1], "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
