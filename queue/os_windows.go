package queue

// plainSigns mean nothing to the shell.
const plainSigns = `+,-./:=@_\~`

// quoted is a text between quotes of the shell's; no path has one in it.
func quoted(text string) string { return `"` + text + `"` }
