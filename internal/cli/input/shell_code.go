package input

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/internal/cli/term"
)

// This file finds arguments that an interpreter would run as code. In
//
//	queuectl enqueue -- sh -c 'gzip {}' ::: *.log
//
// the shell reads the file name as a part of its command line, so a file named "x; rm -r ~" would run
// rm. The safe way is to pass the file name after the command line: sh -c 'gzip "$1"' sh {}. The commands
// xargs -I and find -exec have the same problem. GNU parallel quotes the argument, but only for the shell that it
// starts itself, not for a shell that the command line starts.

// interpreters lists programs that take code as an argument.
var interpreters = []struct {
	names         string // names of programs, separated by spaces
	option        string // option before the code; one letter may also end a group of letters, as in -ec
	takesAllWords bool   // all words after the option are code; otherwise only the first word after it
	argForm       string // how the code can refer to the first argument after it; "" if it cannot
}{
	{"sh ash bash dash ksh mksh yash zsh", "-c", false, `… "$1"`},
	{"su runuser", "-c", false, ""},
	{"python python3", "-c", false, ""},
	{"perl ruby node lua", "-e", false, ""},
	{"fish csh tcsh", "-c", false, ""},
	{"cmd", "/c", true, ""},
	{"powershell pwsh", "-command", true, ""},
}

// WarnPlaceholderInCode prints a warning if an interpreter would run an argument of a job as code.
func (src *Source) WarnPlaceholderInCode(o *term.Output) {
	shell, place, form := findPlaceholderInCode(src.CommandTemplate)
	if place == "" {
		return
	}
	text := fmt.Sprintf("%s is inside the code that %s runs, so %[2]s would run code in an argument", place, shell)
	if form != "" {
		text += fmt.Sprintf(", such as $(reboot); pass %[3]s as an argument: %[1]s -c '%[2]s' %[1]s %[3]s", shell, form,
			place)
	} else {
		text += "; use only arguments that you trust"
	}
	o.PrintMessage("warning: %s", o.MessageLine(text))
}

// findPlaceholderInCode finds the first replacement string inside code for an interpreter, and returns the interpreter
// and the replacement string. argReference is how the code can refer to an argument after the code, such as "$1", or ""
// if it cannot.
//
// findPlaceholderInCode ignores a word that consists only of a replacement string, because the user then wants the
// whole argument to be code.
func findPlaceholderInCode(argv []string) (interpreter, placeholder, argReference string) {
	for i, word := range argv {
		name := strings.TrimSuffix(strings.ToLower(baseName(word)), ".exe")
		for _, in := range interpreters {
			if !slices.Contains(strings.Fields(in.names), name) {
				continue
			}
			for _, code := range interpreterCodeWords(argv[i+1:], in.option, in.takesAllWords) {
				list := SplitAtPlaceholders(code)
				if at := slices.IndexFunc(list, func(p wordPiece) bool { return p.transform != nil }); at >= 0 && len(list) > 1 {
					return word, list[at].placeholderText, in.argForm
				}
			}
		}
	}
	return "", "", ""
}

// interpreterCodeWords returns the words that an interpreter runs as code. words are the words after the interpreter's
// name. codeOption and takesAllWords are the fields option and takesAllWords of a row of the table interpreters.
func interpreterCodeWords(words []string, codeOption string, takesAllWords bool) []string {
	group := len(codeOption) == len("-c") && codeOption[0] == '-'
	for i, word := range words {
		lower := strings.ToLower(word)
		switch found := lower == codeOption || group && strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") &&
			strings.HasSuffix(word, codeOption[1:]); {
		case word == "--" || !found:
		case takesAllWords:
			return words[i+1:]
		default:
			words = words[i+1:]
			// Skip options between -c and the code.
			for len(words) > 1 && (strings.HasPrefix(words[0], "-") || strings.HasPrefix(words[0], "+")) {
				words = words[1:]
			}
			return words[:min(1, len(words))]
		}
	}
	return nil
}
