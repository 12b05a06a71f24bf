package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func (o *Output) Println(line string) error {
	_, err := fmt.Fprintln(o.out(), line)
	return err
}

// out returns the writer for data: the frame while a full screen is being drawn, otherwise standard
// output.
func (o *Output) out() io.Writer {
	if o.frame != nil {
		return o.frame
	}
	return o.Out
}

// PrintJSON prints one value as JSON on one line.
func (o *Output) PrintJSON(v any) error { return writeJSON(o.out(), v) }

// writeJSON writes one value as JSON on one line. It escapes characters that could control a
// terminal.
func writeJSON(w io.Writer, v any) error { return encodeJSON(w, v, "") }

// encodeJSON writes one value as JSON with the given indentation, and escapes characters that could
// control a terminal.
func encodeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(harmless(b.Bytes()))
	return err
}

// harmless escapes the characters of JSON text that control a terminal, but that JSON does not
// escape. These are DEL, the C1 control characters and the bidirectional controls. The JSON value
// is unchanged.
func harmless(raw []byte) []byte {
	if !bytes.ContainsFunc(raw, isControl) {
		return raw
	}
	var b bytes.Buffer
	for _, r := range string(raw) {
		if isControl(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// isControl reports whether a character may change how a terminal shows other characters. It need
// not cover characters below U+0020, which JSON always escapes.
func isControl(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r >= 0x61c && unicode.Is(unicode.Bidi_Control, r)
}

// array prints a JSON array element by element.
type array struct {
	to     io.Writer
	before string // text to print before the next element: "[" before the first one, ",\n" before all others
}

// newArray returns an empty array, which is printed to a writer.
func newArray(to io.Writer) *array { return &array{to, "["} }

// add prints the next element.
func (p *array) add(v any) error {
	b := bytes.NewBufferString(p.before)
	p.before = ",\n"
	if err := writeJSON(b, v); err != nil {
		return err
	}
	_, err := p.to.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

// end prints the end of the array. If the array is empty, it prints the beginning too.
func (p *array) end() error {
	_, err := io.WriteString(p.to, strings.TrimSuffix(p.before, ",\n")+"]\n")
	return err
}

// PrintList prints a list as one JSON array or, with --jsonl, one element per line.
func PrintList[T any](o *Output, list []T) error {
	if !o.JSONL {
		if list == nil {
			list = []T{}
		}
		return o.PrintJSON(list)
	}
	for _, v := range list {
		if err := o.PrintJSON(v); err != nil {
			return err
		}
	}
	return nil
}

// Structured reports whether the user asked for JSON, with --json or --jsonl.
func (o *Output) Structured() bool { return o.JSON || o.JSONL }

// Say prints a sentence on standard error if that is a terminal and --quiet is not set.
func (o *Output) Say(format string, args ...any) {
	if IsTerminal(o.Err) && !o.Quiet {
		fmt.Fprintln(o.Err, o.Clean(o.Err, fmt.Sprintf(format, args...)))
	}
}

// printDone prints the name of the object that a command acted on, for scripts, and a sentence
// about it, for people. If standard output and standard error are the same terminal, it prints only
// the sentence.
func (o *Output) printDone(name, sentence string) error {
	if o.Quiet || !IsTerminal(o.Out) || !IsTerminal(o.Err) {
		if err := o.Println(name); err != nil {
			return err
		}
	}
	o.Say("%s", sentence)
	return nil
}

// Tell prints the result of a command: value as JSON, or a sentence on the terminal.
func (o *Output) Tell(value any, format string, args ...any) error {
	if o.Structured() {
		return o.PrintJSON(value)
	}
	o.Say(format, args...)
	return nil
}

// Progress shows the progress of a long operation on a terminal and replaces the previous progress
// text. An empty text removes it.
//
// If the window gets narrower, the terminal breaks the line. So the cursor stays at the line's
// beginning, and the next call clears everything after the cursor. Line wrapping is switched off
// while the text is printed, because the window may already be narrower than the width that the
// terminal last reported.
func (o *Output) Progress(format string, args ...any) {
	if IsTerminal(o.Err) && !o.Quiet && (o.barShown.Swap(format != "") || format != "") {
		text := Cut(fmt.Sprintf(format, args...), columnCount(o.Err)-1)
		if text != "" {
			text = noWrap + text + "\r" + wrap
		}
		fmt.Fprint(o.Err, "\r\x1b[J"+text)
	}
}

// noWrap and wrap make the terminal cut long lines, and wrap them again.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// whileRead calls the function in the parameter do, which prints only from time to time. It cancels
// the function's context when the reader of standard output is gone. Without whileRead, the
// function would notice a closed pipe only at its next write.
func (o *Output) whileRead(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // this goroutine ends when the reader is gone, or when the process ends
		if err := readerGone(o.Out); err != nil {
			cancel(err)
		}
	}()
	err := do(ctx)
	if gone := context.Cause(ctx); gone != nil {
		return gone
	}
	return err
}

// columnCount returns how many columns a line may fill. It returns 0, which means no limit, if to is not
// a terminal.
func columnCount(to *os.File) int {
	if !IsTerminal(to) {
		return 0
	}
	if w, _, err := term.GetSize(int(to.Fd())); err == nil && w > 0 {
		return min(max(w, leastWidth), mostWidth)
	}
	return 80
}

// leastWidth is the least width for which lines are laid out. If the window is narrower, the terminal
// breaks the lines.
const leastWidth = 20

// These constants bound the size that a terminal reports, because a drawing takes memory in
// proportion to it.
const (
	mostWidth  = 1000
	mostHeight = 500
)

// Clean escapes the control characters and the invisible characters of a text for people to read.
// On a terminal, colours take effect, and are reset at the end of the text. Elsewhere they are
// escaped too.
func (o *Output) Clean(to *os.File, s string) string {
	if to == o.Err { // the text is a message, which the service may have cut and marked with an ellipsis
		s = strings.ReplaceAll(s, "…", Sign("…"))
	}
	if o.raw {
		return s
	}
	terminal := IsTerminal(to)
	if terminal && os.Getenv("NO_COLOR") != "" {
		s = uncoloured(s)
	}
	s = termtext.Visible(escape(s, "\n\t", terminal))
	if last := strings.LastIndex(s, "\x1b["); last >= 0 && !strings.HasPrefix(s[last:], uncolour) {
		s += uncolour
	}
	return s
}

// plain removes the colours from a job's text if standard output is a terminal. Otherwise it
// returns the text unchanged, and Clean escapes the colours.
func (o *Output) plain(s string) string {
	if o.raw || !IsTerminal(o.Out) {
		return s
	}
	return uncoloured(s)
}

// uncoloured returns a text without its colour sequences.
func uncoloured(s string) string {
	if !strings.Contains(s, "\x1b") {
		return s
	}
	var b strings.Builder
	whole := len(s) - unfinished(s)
	for i := 0; i < whole; {
		n := termtext.Colour(s[i:])
		if n == 0 {
			n = 1
			b.WriteByte(s[i])
		}
		i += n
	}
	return b.String()
}

// cleanText prepares a job's text for printing within queuectl's own text on standard output. It
// escapes the text as Clean does. On a terminal it also removes the job's colours, because
// queuectl's colours show states there.
func (o *Output) cleanText(s string) string { return o.Clean(o.Out, o.plain(s)) }

// rows prints one "name: value" line for each pair whose value is not empty.
func (o *Output) rows(width int, rows [][2]string) error {
	for _, r := range rows {
		if name, value := r[0], r[1]; value != "" {
			if err := o.Println(fmt.Sprintf("%-*s %s", width, name+":", indented(o.Clean(o.Out, value), width+1))); err != nil {
				return err
			}
		}
	}
	return nil
}

// lineBreaks replaces every sequence that may begin a new line with "\n".
var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// indented indents all lines of a text except the first, so that none looks like a line of
// queuectl's own.
func indented(text string, indent int) string {
	text = strings.TrimRight(lineBreaks.Replace(text), "\n")
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent))
}

// oneLine returns a text as one line: each white-space character turns into a space.
func oneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text))
}

// uncolour is the sequence that resets all colours.
const uncolour = "\x1b[0m"

// sanitize escapes control characters other than tab, newline and colours, and the bidirectional
// controls.
func sanitize(s string) string { return escape(s, "\n\t", true) }

// onScreen sanitizes a job's live output. It keeps carriage returns, with which programs redraw a
// progress line.
func onScreen(s string) string { return escape(s, "\n\t\r", true) }

// escape replaces control characters with escape sequences that can be read, except the characters
// in plain. If colours is true, it keeps colour sequences that take effect.
func escape(s, plain string, colours bool) string {
	// stays holds which ASCII bytes are kept. A table makes the test fast, because jobs print mostly
	// these bytes.
	var stays [256]bool
	for c := ' '; c <= '~'; c++ {
		stays[c] = true
	}
	for i := range len(plain) {
		stays[plain[i]] = true
	}
	first := 0
	for first < len(s) && stays[s[first]] {
		first++
	}
	if first == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:first])
	for i := first; i < len(s); {
		shown := i
		for i < len(s) && stays[s[i]] {
			i++
		}
		b.WriteString(s[shown:i])
		if i == len(s) {
			break
		}
		if n := termtext.Colour(s[i:]); n > 0 && colours {
			b.WriteString(s[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsControl(r) && r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.Is(unicode.Bidi_Control, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// unfinished returns how many bytes at the end of a text may be an incomplete character or colour
// sequence.
func unfinished(s string) int {
	end := s[max(0, len(s)-31):]
	if at := strings.LastIndexByte(end, 0x1b); at >= 0 {
		if rest := end[at+1:]; rest == "" || rest[0] == '[' && strings.Trim(rest[1:], "0123456789;") == "" {
			return len(end) - at
		}
	}
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if b := s[len(s)-n]; utf8.RuneStart(b) {
			if !utf8.FullRuneInString(s[len(s)-n:]) {
				return n
			}
			break
		}
	}
	return 0
}

// zonePlaceholder marks the heading of a column of times. NameZones replaces it.
const zonePlaceholder = " (ZONE)"

// NameZones moves the time zone of a column's times to the column's heading. If the zones of a
// column differ, for example in summer and winter, each time keeps its own zone. NameZones changes
// rows and returns the new headings.
func NameZones(head []string, rows [][]string) []string {
	head = slices.Clone(head)
	for i := range head {
		name, ok := strings.CutSuffix(head[i], zonePlaceholder)
		if !ok {
			continue
		}
		head[i] = name
		if zone := commonZone(rows, i); zone != "" {
			head[i] += " (" + zone + ")"
			for _, row := range rows {
				row[i] = strings.TrimSuffix(row[i], " "+zone)
			}
		}
	}
	return head
}

// commonZone returns the zone that ends every time of a column. It returns "" if the zones differ
// or the column has no time.
func commonZone(rows [][]string, column int) (zone string) {
	for _, row := range rows {
		cell := row[column]
		if cell == "-" {
			continue
		}
		own := cell[strings.LastIndexByte(cell, ' ')+1:]
		if zone != "" && own != zone {
			return ""
		}
		zone = own
	}
	return zone
}

// local formats a time in the caller's zone. It returns "-" for 0.
func local(t control.Time) string {
	if t == 0 {
		return "-"
	}
	return queue.Millis(t).Time().Local().Format("2006-01-02 15:04:05 MST")
}

func orDash[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

// span formats a number of milliseconds for people.
func span(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%dms", ms)
	}
	return queue.FormatDuration((time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond))
}

// PrintFinding prints one finding of doctor.
func (a *App) PrintFinding(f *control.Finding) error {
	level := f.Level
	if level != "ok" {
		level = strings.ToUpper(level)
	}
	text := f.Message
	if f.Next != "" {
		text += "\n" + f.Next
	}
	return a.Println(fmt.Sprintf("%-7s  %-11s  %s", level, f.Check, indented(a.Clean(a.Out, text), 22)))
}
