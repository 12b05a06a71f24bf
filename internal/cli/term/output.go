// Package term prints results and messages so that their text fits the terminal and cannot control the
// terminal.
//
// Start with Output. Package internal/termtext handles the text itself, without a terminal.
package term

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/queuectl/queuectl/internal/termtext"
)

// Output prints the results and the messages of one command.
type Output struct {
	Stdin          *os.File
	Stdout, Stderr *os.File

	JSON, JSONL bool // print results as JSON, or as one JSON object per line
	Quiet       bool // print only ids
	Raw         bool // print control characters unchanged
	OwnColumns  bool // the user chose the table's columns

	barShown atomic.Bool // a progress line is on the screen
	// frame collects a full screen, which is then written in one piece. If frame is nil, output goes directly
	// to Stdout.
	frame *bytes.Buffer
}

func (o *Output) Println(line string) error {
	_, err := fmt.Fprintln(o.Writer(), line)
	return err
}

// Writer returns the writer for data: the frame while a full screen is being drawn, otherwise standard
// output.
func (o *Output) Writer() io.Writer {
	if o.frame != nil {
		return o.frame
	}
	return o.Stdout
}

// Structured reports whether the user asked for JSON, with --json or --jsonl.
func (o *Output) Structured() bool { return o.JSON || o.JSONL }

// PrintNote prints a sentence on standard error if that is a terminal and --quiet is not set.
func (o *Output) PrintNote(format string, args ...any) {
	if IsTerminal(o.Stderr) && !o.Quiet {
		fmt.Fprintln(o.Stderr, o.Clean(o.Stderr, fmt.Sprintf(format, args...)))
	}
}

// PrintDone prints the result of a command for an object: the object's name for scripts, and a sentence
// for people. If standard output and standard error are the same terminal, it prints only the sentence.
func (o *Output) PrintDone(name, sentence string) error {
	if o.Quiet || !IsTerminal(o.Stdout) || !IsTerminal(o.Stderr) {
		if err := o.Println(name); err != nil {
			return err
		}
	}
	o.PrintNote("%s", sentence)
	return nil
}

// PrintResult prints the result of a command: the value as JSON, or a sentence on the terminal.
func (o *Output) PrintResult(value any, format string, args ...any) error {
	if o.Structured() {
		return o.PrintJSON(value)
	}
	o.PrintNote(format, args...)
	return nil
}

// WhileRead calls the function in the parameter do, and cancels the function's context when no process
// reads standard output any more. Without WhileRead, a function that seldom prints would notice a
// closed pipe only at its next write.
func (o *Output) WhileRead(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // this goroutine ends when the reader is gone, or when the process ends
		if err := readerGone(o.Stdout); err != nil {
			cancel(err)
		}
	}()
	err := do(ctx)
	if gone := context.Cause(ctx); gone != nil {
		return gone
	}
	return err
}

// Clean prepares a text for people: it escapes control characters and invisible characters. On a
// terminal, it keeps colours and resets them at the end of the text. Elsewhere it escapes colours too.
func (o *Output) Clean(to *os.File, s string) string {
	if to == o.Stderr { // the text is a message, which the service may have shortened with an ellipsis
		s = strings.ReplaceAll(s, "…", termtext.LocaleText("…"))
	}
	if o.Raw {
		return s
	}
	terminal := IsTerminal(to)
	if terminal && os.Getenv("NO_COLOR") != "" {
		s = termtext.WithoutColours(s)
	}
	s = termtext.Visible(termtext.EscapeExcept(s, "\n\t", terminal))
	if last := strings.LastIndex(s, "\x1b["); last >= 0 && !strings.HasPrefix(s[last:], termtext.ResetColours) {
		s += termtext.ResetColours
	}
	return s
}

// Plain removes the colours from a job's text if standard output is a terminal. Otherwise it keeps
// them, and Clean escapes them.
func (o *Output) Plain(s string) string {
	if o.Raw || !IsTerminal(o.Stdout) {
		return s
	}
	return termtext.WithoutColours(s)
}

// CleanText prepares a job's text for printing within queuectl's own text on standard output. It
// escapes the text as Clean does. On a terminal it also removes the job's colours, because colours in
// queuectl's text show states.
func (o *Output) CleanText(s string) string { return o.Clean(o.Stdout, o.Plain(s)) }

// Rows prints one "name: value" line for each pair whose value is not empty.
func (o *Output) Rows(width int, rows [][2]string) error {
	for _, r := range rows {
		if name, value := r[0], r[1]; value != "" {
			if err := o.Println(fmt.Sprintf("%-*s %s", width, name+":",
				termtext.Indent(o.Clean(o.Stdout, value), width+1))); err != nil {
				return err
			}
		}
	}
	return nil
}

// SayGap prints a message that some output is missing.
func (o *Output) SayGap(text string) error {
	begin := ""
	if IsTerminal(o.Stderr) {
		begin = "\n" // begin a new line, because the job may have printed an incomplete line
	}
	_, err := fmt.Fprintf(o.Stderr, "%squeuectl: %s\n", begin, text)
	return err
}

// SayNoneSelected prints that no job is selected. It prints even if standard error is not a terminal,
// because otherwise the author of a script might assume that jobs were selected.
func (o *Output) SayNoneSelected() {
	if !IsTerminal(o.Stderr) || o.Quiet {
		fmt.Fprintln(o.Stderr, "queuectl: no job matches the selection")
		return
	}
	o.PrintNote("no job matches the selection")
}

// Coloured returns a text in a colour if standard output is a terminal and NO_COLOR is not set.
func (o *Output) Coloured(text, colour string) string {
	if colour == "" || !IsTerminal(o.Stdout) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + termtext.ResetColours
}

// ColoursOn reports whether colours may be written to a file.
func ColoursOn(to *os.File) bool { return IsTerminal(to) && os.Getenv("NO_COLOR") == "" }
