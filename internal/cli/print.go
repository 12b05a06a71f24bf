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

func (a *App) Println(line string) error {
	_, err := fmt.Fprintln(a.out(), line)
	return err
}

// out is where data goes.
func (a *App) out() io.Writer {
	if a.frame != nil {
		return a.frame
	}
	return a.Out
}

// PrintJSON prints one value on a line.
func (a *App) PrintJSON(v any) error { return writeJSON(a.out(), v) }

// writeJSON writes one value on a line. What would steer a terminal stands in it as an escape.
func writeJSON(w io.Writer, v any) error { return encodeJSON(w, v, "") }

// encodeJSON is writeJSON, indented.
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

// harmless is JSON with escapes for what is no control character to JSON, but is one to a terminal:
// DEL, those of C1, and what turns the direction of writing. It is the same value.
func harmless(raw []byte) []byte {
	if !bytes.ContainsFunc(raw, steers) {
		return raw
	}
	var b bytes.Buffer
	for _, r := range string(raw) {
		if steers(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// steers reports whether a character may change how a terminal shows others. JSON has escapes for
// those below a space.
func steers(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r >= 0x61c && unicode.Is(unicode.Bidi_Control, r)
}

// array is a JSON array that is printed while its values come.
type array struct {
	to     io.Writer
	before string // the next value: "[", or what parts it from the last one
}

func (p *array) add(v any) error {
	b := bytes.NewBufferString(p.before)
	p.before = ",\n"
	if err := writeJSON(b, v); err != nil {
		return err
	}
	_, err := p.to.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

// end ends the array, also one without a value.
func (p *array) end() error {
	_, err := io.WriteString(p.to, strings.TrimSuffix(p.before, ",\n")+"]\n")
	return err
}

// PrintList prints a list as one array, or a value a line.
func PrintList[T any](a *App, list []T) error {
	if !a.JSONL {
		if list == nil {
			list = []T{}
		}
		return a.PrintJSON(list)
	}
	for _, v := range list {
		if err := a.PrintJSON(v); err != nil {
			return err
		}
	}
	return nil
}

// Structured reports whether JSON is to be printed.
func (a *App) Structured() bool { return a.JSON || a.JSONL }

// Say tells a person at a terminal a sentence.
func (a *App) Say(format string, args ...any) {
	if IsTerminal(a.Err) && !a.Quiet {
		fmt.Fprintln(a.Err, a.Clean(a.Err, fmt.Sprintf(format, args...)))
	}
}

// printDone prints the name of what a command has acted on, for scripts, and a sentence about it, for people. If both
// would appear on one terminal, it prints only the sentence.
func (a *App) printDone(name, sentence string) error {
	if a.Quiet || !IsTerminal(a.Out) || !IsTerminal(a.Err) {
		if err := a.Println(name); err != nil {
			return err
		}
	}
	a.Say("%s", sentence)
	return nil
}

// Tell prints what came of a verb: a value as JSON, or a sentence for a person.
func (a *App) Tell(value any, format string, args ...any) error {
	if a.Structured() {
		return a.PrintJSON(value)
	}
	a.Say(format, args...)
	return nil
}

// Progress shows on a terminal how far something long has come, in place of what was
// shown before; "" takes it away. A window that becomes narrower breaks the line, so the cursor
// stays at its beginning, and what follows the cursor is cleared next time. The terminal wraps
// nothing meanwhile: it may be narrower than it has told us yet.
func (a *App) Progress(format string, args ...any) {
	if IsTerminal(a.Err) && !a.Quiet && (a.progresses.Swap(format != "") || format != "") {
		text := cut(fmt.Sprintf(format, args...), a.width(a.Err)-1)
		if text != "" {
			text = noWrap + text + "\r" + wrap
		}
		fmt.Fprint(a.Err, "\r\x1b[J"+text)
	}
}

// noWrap and wrap have a terminal cut lines that are too long for it, and break them again.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// whileRead does what prints now and then, until nobody reads it any more: with
// nothing to write it would not notice.
func (a *App) whileRead(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the reader, or this process
		if err := readerGone(a.Out); err != nil {
			cancel(err)
		}
	}()
	err := do(ctx)
	if gone := context.Cause(ctx); gone != nil {
		return gone
	}
	return err
}

// width is how many columns a line may fill: the terminal's, else 0, no limit.
func (a *App) width(to *os.File) int {
	if !IsTerminal(to) {
		return 0
	}
	if w, _, err := term.GetSize(int(to.Fd())); err == nil && w > 0 {
		return min(max(w, leastWidth), mostWidth)
	}
	return 80
}

// The sizes that a terminal is believed to have, whatever it reports: what is drawn takes memory in proportion.
const (
	leastWidth = 20
	mostWidth  = 1000
	mostHeight = 500
)

// Clean escapes the control characters and the invisible characters of a text for people to read. On a terminal,
// colours take effect, and are reset at the end of the text. Elsewhere they are escaped too.
func (a *App) Clean(to *os.File, s string) string {
	if to == a.Err { // a message, which the service may have clipped
		s = strings.ReplaceAll(s, "…", Sign("…"))
	}
	if a.raw {
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

// plain removes the colours from a job's text if standard output is a terminal. Otherwise it returns the text
// unchanged, and Clean escapes the colours.
func (a *App) plain(s string) string {
	if a.raw || !IsTerminal(a.Out) {
		return s
	}
	return uncoloured(s)
}

// uncoloured is a text without its colours.
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

// said prepares a job's text for printing within our own text on standard output. It escapes the text as Clean does.
// On a terminal it also removes the job's colours, because our colours show states there.
func (a *App) said(s string) string { return a.Clean(a.Out, a.plain(s)) }

// rows prints names, and their values where there are any.
func (a *App) rows(width int, rows [][2]string) error {
	for _, r := range rows {
		if name, value := r[0], r[1]; value != "" {
			if err := a.Println(fmt.Sprintf("%-*s %s", width, name+":", below(a.Clean(a.Out, value), width+1))); err != nil {
				return err
			}
		}
	}
	return nil
}

// breaks turns all that may begin a new line into one character.
var breaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// below indents all lines of a text but the first, so that none looks like one of ours.
func below(text string, indent int) string {
	text = strings.TrimRight(breaks.Replace(text), "\n")
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent))
}

// oneLine returns a text as one line, with its spaces.
func oneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text))
}

// uncolour is the sequence that ends all colours.
const uncolour = "\x1b[0m"

// sanitize shows control characters other than tab, newline and colours as
// escapes, and so characters that turn the direction of writing.
func sanitize(s string) string { return escape(s, "\n\t", true) }

// onScreen is sanitize for the output of a job as it comes: a carriage return, by which
// programs show how far they have come, stays.
func onScreen(s string) string { return escape(s, "\n\t\r", true) }

// escape replaces control characters by escapes, except those in plain. If colours is true, it leaves colour
// sequences that take effect as they are.
func escape(s, plain string, colours bool) string {
	var stays [256]bool // skips the slow path for plain ASCII, which is most of what jobs print
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

// unfinished is how many bytes at the end of a text may be the beginning of a
// character or colour.
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

// zonePlaceholder marks the head of a column of times; NameZones replaces it.
const zonePlaceholder = " (ZONE)"

// NameZones moves the zone of the times in a column to the head of the column. Where the zones of a column differ,
// as those of summer and winter do, each time keeps its own. It changes rows and returns the new head.
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

// commonZone returns the zone that ends each time of a column, "" if the zones differ or there is no time.
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

// local formats an instant with the caller's zone; it returns "-" for none.
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

// span is a number of milliseconds as a person reads it.
func span(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%dms", ms)
	}
	return queue.FormatDuration((time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond))
}

// PrintFinding prints what doctor found.
func (a *App) PrintFinding(f *control.Finding) error {
	level := f.Level
	if level != "ok" {
		level = strings.ToUpper(level)
	}
	text := f.Message
	if f.Next != "" {
		text += "\n" + f.Next
	}
	return a.Println(fmt.Sprintf("%-7s  %-11s  %s", level, f.Check, below(a.Clean(a.Out, text), 22)))
}
