// Package cmdline encodes the arguments of a program as a Windows command line, so that the program gets
// them unchanged.
package cmdline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// These are the maximum lengths, in UTF-16 code units, of a command line on Windows and of one for cmd.exe.
const (
	maxCommandLineLength = 32_766
	maxCmdExeLineLength  = 8_191
)

// Encode returns the command line for the program argv[0] and its arguments. For cmd.exe and batch files,
// it follows the quoting rules of cmd.exe. For other programs, it follows those of the Windows function
// CommandLineToArgvW. Encode returns an error if an argument cannot be passed unchanged.
func Encode(argv []string) (line string, err error) {
	maxLength := maxCommandLineLength
	for _, a := range argv {
		if strings.ContainsRune(a, 0) {
			return "", errors.New("an argument contains a NUL byte")
		}
	}
	if strings.Contains(argv[0], `"`) {
		return "", errors.New("a program name must not contain quotes")
	}
	text, kind := findShellTextOption(argv)
	switch {
	case IsBatchFile(argv[0]):
		maxLength = maxCmdExeLineLength
		line, err = batchFileLine(argv)
	case kind == cmdExeText:
		maxLength = maxCmdExeLineLength
		line, err = cmdExeLine(argv, text)
	case kind == powershellText:
		line = quoteArgv(addUnattendedPowerShellOptions(argv, text))
	default:
		line = quoteArgv(argv)
	}
	if n := len(utf16.Encode([]rune(line))); err == nil && n > maxLength {
		err = fmt.Errorf("the command line has %d characters; Windows allows at most %d for this program", n, maxLength)
	}
	return line, err
}

// These are the kinds of text that a shell can get as its command.
const (
	noShellText    = iota
	cmdExeText     // a text that cmd.exe parses
	powershellText // a PowerShell script
)

// findShellTextOption finds the option after which a shell takes all further arguments together as one text, such as
// /c. It returns the index of the option in argv, and the kind of the text. If argv has no such option, the kind is
// noShellText.
func findShellTextOption(argv []string) (optionIndex, textKind int) {
	name := argv[0][strings.LastIndexAny(argv[0], `\/:`)+1:]
	name = strings.TrimSuffix(strings.ToLower(name), ".exe")
	for i, a := range argv[1:] {
		isPowerShell := name == "powershell" || name == "pwsh"
		switch {
		case name == "cmd" && (strings.EqualFold(a, "/c") || strings.EqualFold(a, "/k")):
			return i + 1, cmdExeText
		case isPowerShell && (isParameterAbbreviation(a, "-file", 2) || isParameterAbbreviation(a, "-encodedcommand", 2)):
			return 0, noShellText
		case isPowerShell && isParameterAbbreviation(a, "-command", 2):
			return i + 1, powershellText
		}
	}
	return 0, noShellText
}

// isParameterAbbreviation reports whether PowerShell accepts an argument as an abbreviation of a parameter. minLength
// is the length of the shortest abbreviation that is unique.
func isParameterAbbreviation(argument, parameter string, minLength int) bool {
	return len(argument) >= minLength && strings.HasPrefix(strings.ToLower(parameter), strings.ToLower(argument))
}

// cmdExeLine returns a command line with which cmd.exe executes a text unchanged. The text consists of the arguments
// after argv[optionIndex]. In the line, /S makes cmd.exe remove only the first and the last quote, /D disables the
// commands that the registry would run first, and /V:OFF makes the exclamation mark an ordinary character.
func cmdExeLine(argv []string, optionIndex int) (string, error) {
	text := strings.TrimRight(strings.Join(argv[optionIndex+1:], " "), "\r\n")
	if strings.ContainsAny(text, "\r\n") {
		return "", errors.New("cmd.exe reads only one line; join commands with & or use a batch file")
	}
	line := []string{quoteProgram(argv[0])}
	for _, option := range []string{"/D", "/S"} {
		if !slices.ContainsFunc(argv[1:optionIndex], func(a string) bool { return strings.EqualFold(a, option) }) {
			line = append(line, option)
		}
	}
	if !slices.ContainsFunc(argv[1:optionIndex], func(a string) bool {
		return len(a) >= 2 && strings.EqualFold(a[:2], "/V")
	}) {
		line = append(line, "/V:OFF")
	}
	for _, a := range argv[1:optionIndex] {
		line = append(line, quoteArgument(a))
	}
	return strings.Join(append(line, argv[optionIndex], `"`+text+`"`), " "), nil
}

// addUnattendedPowerShellOptions adds options before argv[optionIndex] that make PowerShell load no profile and ask no
// questions. It returns the changed argv.
func addUnattendedPowerShellOptions(argv []string, optionIndex int) []string {
	var addedOptions []string
	for option, minLength := range map[string]int{"-NoProfile": len("-nop"), "-NonInteractive": len("-noni")} {
		isGiven := func(a string) bool { return isParameterAbbreviation(a, option, minLength) }
		if !slices.ContainsFunc(argv[1:optionIndex], isGiven) {
			addedOptions = append(addedOptions, option)
		}
	}
	slices.Sort(addedOptions)
	return slices.Concat(argv[:optionIndex], addedOptions, argv[optionIndex:])
}

// IsBatchFile reports whether path is a batch file, which Windows runs with cmd.exe. Windows ignores dots and
// spaces at the end of a name.
func IsBatchFile(path string) bool {
	path = strings.ToLower(strings.TrimRight(path, ". "))
	return strings.HasSuffix(path, ".bat") || strings.HasSuffix(path, ".cmd")
}

// batchFileLine returns a command line with which cmd.exe runs a batch file. It rejects arguments with quotes, percent
// signs or line breaks, because cmd.exe interprets these characters even inside quotes. The batch file itself may still
// interpret other characters.
func batchFileLine(argv []string) (string, error) {
	var words []string
	for i, a := range argv {
		if strings.ContainsAny(a, "\"%\r\n") {
			return "", fmt.Errorf("%q: a quote, percent sign or line break cannot be passed to a batch file; use a "+
				"cmd.exe command instead", a)
		}
		if i > 0 && a != "" && strings.Trim(a, cmdUnquotedChars) == "" {
			words = append(words, a)
			continue
		}
		// Double the backslashes at the end. Otherwise a program to which the batch file passes the argument
		// would read \" as part of the text.
		tail := len(a) - len(strings.TrimRight(a, `\`))
		words = append(words, `"`+a+strings.Repeat(`\`, tail)+`"`)
	}
	return `cmd.exe /D /E:ON /V:OFF /S /C "` + strings.Join(words, " ") + `"`, nil
}

// cmdUnquotedChars lists the characters that an argument for cmd.exe may contain without quotes.
const cmdUnquotedChars = `ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789#$*+-./:?@\_`

// quoteArgv returns a command line that CommandLineToArgvW splits into argv.
func quoteArgv(argv []string) string {
	line := []string{quoteProgram(argv[0])}
	for _, a := range argv[1:] {
		line = append(line, quoteArgument(a))
	}
	return strings.Join(line, " ")
}

// quoteProgram quotes the name of the program. In this first argument, backslashes have no special meaning.
func quoteProgram(name string) string {
	if name == "" || strings.ContainsAny(name, " \t\r\n") {
		return `"` + name + `"`
	}
	return name
}

// quoteArgument quotes an argument. A backslash has a special meaning only before a quote.
func quoteArgument(argument string) string {
	if argument != "" && !strings.ContainsAny(argument, " \t\r\n\v\"") {
		return argument
	}
	b := []byte{'"'}
	slashes := 0
	for i := range len(argument) {
		switch argument[i] {
		case '\\':
			slashes++
		case '"':
			b = append(b, strings.Repeat(`\`, slashes+1)...)
			slashes = 0
		default:
			slashes = 0
		}
		b = append(b, argument[i])
	}
	return string(append(append(b, strings.Repeat(`\`, slashes)...), '"'))
}
