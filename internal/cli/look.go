package cli

import (
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// Look describes the jobs of a screen in the same words as the default screen.
type Look struct {
	Screen *control.Screen
	Now    time.Time
}

func (l Look) printer() *screenPrinter { return &screenPrinter{a: new(App), s: l.Screen, now: l.Now} }

// Verdict returns the status line, in two parts: the health of the queue, with the parameters of its colour, and the text
// that follows it.
func (l Look) Verdict() (level, text, colour string) {
	level, text = verdictOf(&l.Screen.Status)
	return level, strings.TrimPrefix(Shown(level+text), level), levelColours[level]
}

// Counts returns the number of jobs in each state that has any.
func (l Look) Counts() string { return countsOf(&l.Screen.Status) }

// Runs is for how long a job has run, or stood still.
func (l Look) Runs(j *control.Job) string { return l.printer().runs(j) }

// Starts returns when a waiting job starts, or what it waits for.
func (l Look) Starts(j *control.Job) string { return l.printer().starts(j) }

// Why returns why a job failed, with its last line of output.
func (l Look) Why(j *control.ScreenJob) string { return l.printer().why(j) }

// Ago is how long ago an instant was, in words.
func (l Look) Ago(t control.Time) string { return agoOf(t, l.Now) }

// Marked is a job's id after the sign of its state, and how that is painted.
func Marked(j *control.Job) (text, colour string) {
	return marked(j), stateSigns[j.State].colour
}

// Title is what a job runs.
func Title(j *control.Job) string { return title(j) }

// Standing is a job's state in words, with its reason.
func Standing(j *control.Job) string { return standing(j) }

// Span is how long something takes, roughly.
func Span(d time.Duration) string { return roughly(d) }

// Shown is what somebody has said as one line that steers no terminal, has no colours of its own and
// takes the columns that it is counted for.
func Shown(s string) string { return oneLine(cell(uncoloured(s))) }

// cell escapes the characters of a text without colours that would steer a terminal. It also removes joiners, so that
// the text takes the columns that it is counted for.
func cell(s string) string { return termtext.Unjoined(termtext.Visible(sanitize(s))) }

// tabStop is how many columns a tab of a job's output is shown as, at most.
const tabStop = 8

// ShownLine is Shown of a line of output, whose spaces stay. Of what was written over itself, by carriage
// returns, the last stays.
func ShownLine(s string) string {
	s = strings.TrimRight(s, "\r\n")
	s = uncoloured(s[strings.LastIndexByte(s, '\r')+1:])
	var b strings.Builder
	for part := range strings.SplitAfterSeq(s, "\t") {
		text, tab := strings.CutSuffix(part, "\t")
		b.WriteString(cell(strings.ReplaceAll(text, "\n", " ")))
		if tab {
			b.WriteString(strings.Repeat(" ", tabStop-room(b.String())%tabStop))
		}
	}
	return b.String()
}

// Room is how many columns a text takes on a terminal.
func Room(s string) int { return room(s) }

// Cut shortens a text to n columns.
func Cut(s string, n int) string {
	if n < 1 {
		return ""
	}
	return cut(s, n)
}

// Fold breaks a text into lines of so many columns at most, between words where there are any.
func Fold(width int, text string) []string { return folded(width, text) }

// TableLines are the lines of a table on a terminal of so many columns, its head first. Cells are what
// anybody may have said: long ones are cut and, where that is not enough, columns left out.
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
			widths[i] = max(widths[i], room(cell))
		}
	}
	return tableLines(shown, fit(widths, width, false), func(_ int, cell string) string { return cell })
}
