//go:build unix

package queue

import "strings"

// maxExitCode is the highest exit code of a process.
const maxExitCode = 255

// plainSigns mean nothing to the shell.
const plainSigns = "%+,-./:=@_"

// quoted is a text between quotes of the shell's.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
