// Package term prints results and messages so that their text fits the terminal and cannot control the
// terminal.
//
// Start with Output. Package internal/termtext handles the text itself, without a terminal.
package term

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	xterm "golang.org/x/term"

	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// Output prints the results and the messages of one command.
type Output struct {
	Stdin          *os.File
	Stdout, Stderr *os.File

	JSON, JSONL           bool // print results as JSON, or as one JSON object per line
	Quiet                 bool // print only ids
	KeepControlCharacters bool // print control characters unchanged
	ColumnsChosenByUser   bool // the user chose the columns of the table

	firstPrintErr error       // the first error of Println
	progressShown atomic.Bool // a progress text is on the screen
	// frame collects a full screen, so that it is written in one piece. If frame is nil, output goes directly
	// to Stdout.
	pendingScreenFrame *bytes.Buffer
}

// Println prints a line. If printing fails, all later calls print nothing and return the same error. So a caller that
// prints several lines need only check the error of the last call.
func (o *Output) Println(line string) error {
	if o.firstPrintErr == nil {
		_, o.firstPrintErr = fmt.Fprintln(o.Writer(), line)
	}
	return o.firstPrintErr
}

// Writer returns the writer for results: the frame while a full screen is being drawn, otherwise standard
// output.
func (o *Output) Writer() io.Writer {
	if o.pendingScreenFrame != nil {
		return o.pendingScreenFrame
	}
	return o.Stdout
}

// WantsJSON reports whether the user asked for JSON, with --json or --jsonl.
func (o *Output) WantsJSON() bool { return o.JSON || o.JSONL }

// PrintMessage prints a message on standard error.
func (o *Output) PrintMessage(format string, args ...any) {
	fmt.Fprintln(o.Stderr, "queuectl: "+o.EscapeForFile(o.Stderr, fmt.Sprintf(format, args...)))
}

// ShowsInfo reports whether standard error is a terminal and --quiet is not set.
func (o *Output) ShowsInfo() bool { return IsTerminal(o.Stderr) && !o.Quiet }

// PrintTerminalMessage prints a sentence on standard error if ShowsInfo returns true. It always returns nil, because a
// command has succeeded even if the sentence cannot be printed.
func (o *Output) PrintTerminalMessage(format string, args ...any) error {
	if o.ShowsInfo() {
		fmt.Fprintln(o.Stderr, o.EscapeForFile(o.Stderr, fmt.Sprintf(format, args...)))
	}
	return nil
}

// PrintActionResult prints the result of a command that has acted on an object: objectName for scripts, and a sentence
// for people. If standard output and standard error are the same terminal, it prints only the sentence.
func (o *Output) PrintActionResult(objectName, sentence string) error {
	if o.Quiet || !IsTerminal(o.Stdout) || !IsTerminal(o.Stderr) {
		if err := o.Println(objectName); err != nil {
			return err
		}
	}
	return o.PrintTerminalMessage("%s", sentence)
}

// PrintResult prints the result of a command: the value as JSON, or a sentence on the terminal.
func (o *Output) PrintResult(value any, format string, args ...any) error {
	if o.WantsJSON() {
		return o.PrintJSON(value)
	}
	return o.PrintTerminalMessage(format, args...)
}

// RunUntilStdoutReaderGone calls action with a context that it cancels when no process reads standard output any more.
// Without the cancellation, an action that seldom prints would not notice for a long time that the pipe is closed.
func (o *Output) RunUntilStdoutReaderGone(ctx context.Context, action func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // this goroutine ends when the reader is gone, or when the process ends
		if err := awaitPipeReaderGone(o.Stdout); err != nil {
			cancel(err)
		}
	}()
	err := action(ctx)
	if gone := context.Cause(ctx); gone != nil {
		return gone
	}
	return err
}

// EscapeForFile returns the text s for printing to file. It escapes control characters and invisible characters.
// If the file is a terminal, it keeps colours and resets them at the end of the text. For any other file it
// escapes colours too.
func (o *Output) EscapeForFile(file *os.File, s string) string {
	if file == o.Stderr { // a message may come from the service, which shortens texts with an ellipsis
		s = strings.ReplaceAll(s, "…", termtext.TextForLocale("…"))
	}
	if o.KeepControlCharacters {
		return s
	}
	terminal := IsTerminal(file)
	if terminal && os.Getenv("NO_COLOR") != "" {
		s = termtext.RemoveColours(s)
	}
	s = termtext.EscapeInvisibleCharacters(termtext.EscapeControlCharactersExcept(s, "\n\t", terminal))
	if last := strings.LastIndex(s, "\x1b["); last >= 0 && !strings.HasPrefix(s[last:], termtext.ResetColours) {
		s += termtext.ResetColours
	}
	return s
}

// EscapeForStdout is EscapeForFile for standard output.
func (o *Output) EscapeForStdout(s string) string { return o.EscapeForFile(o.Stdout, s) }

// MessageLine returns a text as one line for a message on standard error, escaped like EscapeForFile.
func (o *Output) MessageLine(s string) string { return termtext.OneLine(o.EscapeForFile(o.Stderr, s)) }

// StripColoursOnTerminal removes the colours from a job's text if standard output is a terminal. For any other output
// it returns the text unchanged, because EscapeForFile then escapes the colours.
func (o *Output) StripColoursOnTerminal(s string) string {
	if o.KeepControlCharacters || !IsTerminal(o.Stdout) {
		return s
	}
	return termtext.RemoveColours(s)
}

// EscapeJobText prepares a job's text for printing between other text on standard output. It escapes the text
// like EscapeForFile. On a terminal it also removes the job's colours, because queuectl marks states with
// colours.
func (o *Output) EscapeJobText(s string) string {
	return o.EscapeForStdout(o.StripColoursOnTerminal(s))
}

// PrintNameValuePairs prints one "name: value" line for each pair whose value is not empty.
func (o *Output) PrintNameValuePairs(nameWidth int, rows [][2]string) (err error) {
	for _, r := range rows {
		if name, value := r[0], r[1]; value != "" {
			value = termtext.IndentAfterFirstLine(o.EscapeForStdout(value), nameWidth+1)
			err = o.Println(fmt.Sprintf("%-*s %s", nameWidth, name+":", value))
		}
	}
	return err
}

// PrintMissingOutputMessage prints a message that some output is missing.
func (o *Output) PrintMissingOutputMessage(text string) error {
	begin := ""
	if IsTerminal(o.Stderr) {
		begin = "\n" // the job may have printed an incomplete line, so begin a new one
	}
	_, err := fmt.Fprintf(o.Stderr, "%squeuectl: %s\n", begin, text)
	return err
}

// PrintNoJobsSelected prints that no job is selected, even if standard error is not a terminal or --quiet is set.
// Otherwise the author of a script might assume that jobs were selected.
func (o *Output) PrintNoJobsSelected() {
	if !o.ShowsInfo() {
		o.PrintMessage("no job matches the selection")
		return
	}
	o.PrintTerminalMessage("no job matches the selection")
}

// Coloured returns a text in a colour if standard output is a terminal and NO_COLOR is not set.
func (o *Output) Coloured(text, colourCode string) string {
	if colourCode == "" || !UsesColours(o.Stdout) {
		return text
	}
	return "\x1b[" + colourCode + "m" + text + termtext.ResetColours
}

// UsesColours reports whether colours may be written to a file.
func UsesColours(file *os.File) bool { return IsTerminal(file) && os.Getenv("NO_COLOR") == "" }

// CanAskUser reports whether the user can be asked for confirmation.
func (o *Output) CanAskUser() bool {
	return IsTerminal(o.Stdin) && IsTerminal(o.Stderr) && !o.WantsJSON()
}

// AskYesNo asks the user a question. Every answer except yes means no.
func (o *Output) AskYesNo(format string, args ...any) bool {
	fmt.Fprintf(o.Stderr, format+" [y/N] ", args...)
	line, _ := bufio.NewReader(o.Stdin).ReadString('\n') // if reading fails, the answer is no
	word := strings.ToLower(strings.TrimSpace(line))
	return word == "y" || word == "yes"
}

// TerminalColumns returns how many columns a line on the file's terminal may fill. If the file is not a terminal, it
// returns 0, which means that lines have no limit.
func TerminalColumns(file *os.File) int {
	if !IsTerminal(file) {
		return 0
	}
	if w, _, err := xterm.GetSize(int(file.Fd())); err == nil && w > 0 {
		return min(max(w, termtext.MinTableWidth), maxTerminalColumns)
	}
	return 80
}

// These constants limit the terminal size that this package uses. A terminal can report any size, and memory use grows
// with it.
const (
	maxTerminalColumns = 1000
	maxTerminalLines   = 500
)

// TerminalLines returns the number of lines of a terminal, or 0 for any other file.
func TerminalLines(file *os.File) int {
	if !IsTerminal(file) {
		return 0
	}
	if _, h, err := xterm.GetSize(int(file.Fd())); err == nil && h > 0 {
		return min(h, maxTerminalLines)
	}
	return 24
}

// ProgressBar describes the progress of a long operation.
type ProgressBar struct {
	Current, Total   int64
	CurrentAtStart   int64 // value of Current at StartedAt; the estimate of the time left counts only progress after it
	StartedAt        time.Time
	TextAfterNumbers string        // text after the numbers
	ValuesAreBytes   bool          // Current and Total are sizes in bytes
	MinTimeLeft      time.Duration // lower bound of the time left
}

// DrawProgressBar shows the bar on a terminal. The bar replaces the previous progress text.
func (o *Output) DrawProgressBar(b ProgressBar) {
	if !o.ShowsInfo() {
		return
	}
	of := max(b.Total, b.Current, 1)
	text := fmt.Sprintf("%3d%% %d/%d", b.Current*100/of, b.Current, of)
	if b.ValuesAreBytes {
		text = fmt.Sprintf("%3d%% %s/%s", b.Current*100/of, present.SizeText(b.Current), present.SizeText(of))
	}
	if b.TextAfterNumbers != "" {
		text += ", " + b.TextAfterNumbers
	}
	if took := time.Since(b.StartedAt); b.Current > b.CurrentAtStart && b.Current < of && took > time.Second {
		left := time.Duration(float64(took) * float64(of-b.Current) / float64(b.Current-b.CurrentAtStart))
		text += ", " + queue.FormatDuration(max(left, b.MinTimeLeft).Round(time.Second)) + " left"
	}
	width := TerminalColumns(o.Stderr) - 1 // a full line would wrap, so leave the last column empty
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.Current / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	o.ShowProgress("%s", termtext.Truncate(text, width))
}

// ShowProgress shows a progress text on a terminal, instead of the previous progress text. An empty format only removes
// the previous text.
//
// The user may make the terminal narrower at any time. The terminal then wraps the progress text onto more lines. So
// ShowProgress leaves the cursor at the beginning of the text, and the next call clears everything after the cursor.
// Line wrapping is off while ShowProgress prints, because the terminal may already be narrower than the width that
// ShowProgress has read.
func (o *Output) ShowProgress(format string, args ...any) {
	if o.ShowsInfo() && (o.progressShown.Swap(format != "") || format != "") {
		text := termtext.Truncate(fmt.Sprintf(format, args...), TerminalColumns(o.Stderr)-1)
		if text != "" {
			text = disableLineWrapCode + text + "\r" + enableLineWrapCode
		}
		fmt.Fprint(o.Stderr, "\r\x1b[J"+text)
	}
}

// disableLineWrapCode makes the terminal cut long lines, and enableLineWrapCode makes it wrap them again.
const (
	disableLineWrapCode = "\x1b[?7l"
	enableLineWrapCode  = "\x1b[?7h"
)
