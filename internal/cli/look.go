package cli

import (
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// Look formats the jobs of a screen in the same words as the command status.
type Look struct {
	Screen *control.Screen
	Now    time.Time
}

func (l Look) printer() *screenPrinter { return &screenPrinter{a: new(App), s: l.Screen, now: l.Now} }

// Verdict returns the status line in two parts: the health of the queue, with its colour code, and
// the text that follows it.
func (l Look) Verdict() (level, text, colour string) {
	level, text = verdictOf(&l.Screen.Status)
	return level, strings.TrimPrefix(Shown(level+text), level), levelColours[level]
}

// Counts returns the number of jobs in each state that has any.
func (l Look) Counts() string { return countsOf(&l.Screen.Status) }

// Runs formats how long a job has been running or paused.
func (l Look) Runs(j *control.Job) string { return l.printer().runs(j) }

// Starts returns when a waiting job starts, or what it waits for.
func (l Look) Starts(j *control.Job) string { return l.printer().starts(j) }

// Why returns why a job failed, with its last line of output.
func (l Look) Why(j *control.ScreenJob) string { return l.printer().why(j) }

// Ago formats how long ago a time was, in words.
func (l Look) Ago(t control.Time) string { return agoOf(t, l.Now) }

// Marked returns a job's id after the sign of its state, and the state's colour code.
func Marked(j *control.Job) (text, colour string) {
	return marked(j), stateSigns[j.State].colour
}

// Title returns the job's command as text.
func Title(j *control.Job) string { return title(j) }

// Standing returns a job's state, with its reason.
func Standing(j *control.Job) string { return standing(j) }

// Span formats a duration roughly.
func Span(d time.Duration) string { return roughly(d) }

// Shown returns an untrusted text as one line without colours. It escapes control characters and
// takes exactly the columns that Room counts.
func Shown(s string) string { return oneLine(cell(uncoloured(s))) }

// cell escapes the characters of a text without colours that control a terminal. It also removes
// joiners, so that the text takes the columns that Room counts.
func cell(s string) string { return termtext.Unjoined(termtext.Visible(sanitize(s))) }

// tabStop is the distance between tab stops when a job's output is shown, in columns.
const tabStop = 8

// ShownLine prepares a line of output like Shown, but keeps spaces. Of text that carriage returns
// overwrite, it keeps only the last version.
func ShownLine(s string) string {
	s = strings.TrimRight(s, "\r\n")
	s = uncoloured(s[strings.LastIndexByte(s, '\r')+1:])
	var b strings.Builder
	for part := range strings.SplitAfterSeq(s, "\t") {
		text, tab := strings.CutSuffix(part, "\t")
		b.WriteString(cell(strings.ReplaceAll(text, "\n", " ")))
		if tab {
			b.WriteString(strings.Repeat(" ", tabStop-widthOf(b.String())%tabStop))
		}
	}
	return b.String()
}

// Room returns how many columns a text takes on a terminal.
func Room(s string) int { return widthOf(s) }

// Cut shortens a text to n columns.
func Cut(s string, n int) string {
	if n < 1 {
		return ""
	}
	return cut(s, n)
}

// Fold breaks a text into lines of at most width columns, between words if possible.
func Fold(width int, text string) []string { return foldLines(width, text) }

// TableLines returns the lines of a table for a terminal with width columns, the heading first.
// Cells are untrusted text. Long cells are cut. If that is not enough, columns are omitted.
func TableLines(width int, head []string, rows [][]string) []string {
	shown := [][]string{head}
	widths := make([]int, len(head))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Shown(cell)
		}
		shown = append(shown, cells)
	}
	for _, row := range shown {
		for i, cell := range row {
			widths[i] = max(widths[i], widthOf(cell))
		}
	}
	return tableLines(shown, fit(widths, width, false), func(_ int, cell string) string { return cell })
}
