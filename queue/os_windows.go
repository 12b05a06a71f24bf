package queue

// maxExitCode is the highest exit code of a process.
const maxExitCode = 1<<32 - 1

// plainSigns mean nothing to the shell.
const plainSigns = `+,-./:=@_\~`

// quoted is a text between quotes of the shell's; no path has one in it.
func quoted(text string) string { return `"` + text + `"` }
