package process

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// The longest command lines in UTF-16 units: what Windows takes, and what cmd.exe reads.
const (
	maxLine    = 32_766
	maxCmdLine = 8_191
)

// CommandLine is the one text by which Windows hands a program its arguments. Which
// rules the program reads it by, argv[0] says: those of cmd.exe for cmd.exe and for
// batch files, else those of CommandLineToArgvW. What cannot be handed over unchanged
// is refused.
func CommandLine(argv []string) (line string, err error) {
	most := maxLine
	for _, a := range argv {
		if strings.ContainsRune(a, 0) {
			return "", errors.New("an argument contains a NUL byte")
		}
	}
	if strings.Contains(argv[0], `"`) {
		return "", errors.New("a program name must not contain quotes")
	}
	text, kind := textAt(argv)
	switch {
	case isBatch(argv[0]):
		most = maxCmdLine
		line, err = batchLine(argv)
	case kind == cmdText:
		most = maxCmdLine
		line, err = cmdLine(argv, text)
	case kind == powershellText:
		line = plainLine(quiet(argv, text))
	default:
		line = plainLine(argv)
	}
	if n := len(utf16.Encode([]rune(line))); err == nil && n > most {
		err = fmt.Errorf("the command line has %d characters; Windows allows at most %d for this program", n, most)
	}
	return line, err
}

// What follows textAt's argument.
const (
	noText         = iota
	cmdText        // one text that cmd.exe reads
	powershellText // one script
)

// textAt finds the argument of a shell that says that a text follows.
func textAt(argv []string) (at, kind int) {
	name := argv[0][strings.LastIndexAny(argv[0], `\/:`)+1:]
	name = strings.TrimSuffix(strings.ToLower(name), ".exe")
	for i, a := range argv[1:] {
		a = strings.ToLower(a)
		switch name {
		case "cmd":
			if a == "/c" || a == "/k" {
				return i + 1, cmdText
			}
		case "powershell", "pwsh":
			if short(a, "-file", 2) || short(a, "-encodedcommand", 2) {
				return 0, noText
			}
			if short(a, "-command", 2) {
				return i + 1, powershellText
			}
		}
	}
	return 0, noText
}

// short reports whether PowerShell takes a for a parameter, of which so many letters
// tell it from others.
func short(a, parameter string, least int) bool {
	return len(a) >= least && strings.HasPrefix(parameter, a)
}

// cmdLine has cmd.exe read a text as it is: with /S it takes away the first and the
// last quote and nothing else, with /D it runs no commands from the registry, and with
// /V:OFF an exclamation mark is one, whatever the registry says.
func cmdLine(argv []string, at int) (string, error) {
	text := strings.TrimRight(strings.Join(argv[at+1:], " "), "\r\n")
	if strings.ContainsAny(text, "\r\n") {
		return "", errors.New("cmd.exe reads only one line; join commands with & or use a batch file")
	}
	line := []string{program(argv[0])}
	for _, must := range []string{"/D", "/S"} {
		if !slices.ContainsFunc(argv[1:at], func(a string) bool { return strings.EqualFold(a, must) }) {
			line = append(line, must)
		}
	}
	if !slices.ContainsFunc(argv[1:at], func(a string) bool { return len(a) >= 2 && strings.EqualFold(a[:2], "/V") }) {
		line = append(line, "/V:OFF")
	}
	for _, a := range argv[1:at] {
		line = append(line, quote(a))
	}
	return strings.Join(append(line, argv[at], `"`+text+`"`), " "), nil
}

// quiet has PowerShell run a script with no profile and no questions.
func quiet(argv []string, at int) []string {
	var add []string
	for must, least := range map[string]int{"-NoProfile": len("-nop"), "-NonInteractive": len("-noni")} {
		if !slices.ContainsFunc(argv[1:at], func(a string) bool { return short(strings.ToLower(a), strings.ToLower(must), least) }) {
			add = append(add, must)
		}
	}
	slices.Sort(add)
	return slices.Concat(argv[:at], add, argv[at:])
}

// isBatch reports whether Windows has cmd.exe run a file. It ignores dots and spaces at
// the end of a name.
func isBatch(path string) bool {
	path = strings.ToLower(strings.TrimRight(path, ". "))
	return strings.HasSuffix(path, ".bat") || strings.HasSuffix(path, ".cmd")
}

// batchLine has cmd.exe run a batch file. Quoted, cmd.exe takes all but a percent sign
// and a quote for what it is; a batch file's own lines may do otherwise.
func batchLine(argv []string) (string, error) {
	var line []string
	for i, a := range argv {
		if strings.ContainsAny(a, "\"%\r\n") {
			return "", fmt.Errorf("%q: a quote, percent sign or line break cannot be passed to a batch file; use a cmd.exe command instead", a)
		}
		if i > 0 && a != "" && strings.Trim(a, plainInCmd) == "" {
			line = append(line, a)
			continue
		}
		tail := len(a) - len(strings.TrimRight(a, `\`)) // a program that gets it from the batch file would take \" for a quote
		line = append(line, `"`+a+strings.Repeat(`\`, tail)+`"`)
	}
	return `cmd.exe /D /E:ON /V:OFF /S /C "` + strings.Join(line, " ") + `"`, nil
}

// plainInCmd needs no quotes in cmd.exe.
const plainInCmd = `ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789#$*+-./:?@\_`

// plainLine quotes by the rules of CommandLineToArgvW.
func plainLine(argv []string) string {
	line := []string{program(argv[0])}
	for _, a := range argv[1:] {
		line = append(line, quote(a))
	}
	return strings.Join(line, " ")
}

// program quotes the first argument, in which a backslash is only that.
func program(name string) string {
	if name == "" || strings.ContainsAny(name, " \t\r\n") {
		return `"` + name + `"`
	}
	return name
}

// quote quotes an argument: a backslash is only that unless a quote follows.
func quote(a string) string {
	if a != "" && !strings.ContainsAny(a, " \t\r\n\v\"") {
		return a
	}
	b := []byte{'"'}
	slashes := 0
	for i := range len(a) {
		switch a[i] {
		case '\\':
			slashes++
		case '"':
			b = append(b, strings.Repeat(`\`, slashes+1)...)
			slashes = 0
		default:
			slashes = 0
		}
		b = append(b, a[i])
	}
	return string(append(append(b, strings.Repeat(`\`, slashes)...), '"'))
}
