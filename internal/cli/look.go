package cli

import (
	"cmp"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// ScreenText formats the jobs of a screen, for the command status and for top.
type ScreenText struct {
	Screen *control.Screen
	Now    time.Time
}

// Verdict returns the status line in two parts: the health of the queue, with its colour code, and
// the text that follows it.
func (t ScreenText) Verdict() (level, text, colour string) {
	level, text = verdictOf(&t.Screen.Status)
	return level, strings.TrimPrefix(Shown(level+text), level), levelColour(level)
}

// Counts returns the number of jobs in each state that has any.
func (t ScreenText) Counts() string { return countsOf(&t.Screen.Status) }

// Runs formats how long a job has been running or paused.
func (t ScreenText) Runs(j *control.Job) string {
	if j.PausedAt != 0 {
		return "paused " + pausedText(j, t.Now)
	}
	return ageOf(j.StartedAt, t.Now)
}

// Starts returns when a waiting job starts, or what it waits for.
func (t ScreenText) Starts(j *control.Job) string {
	due := queue.Millis(max(j.RunAt, j.NextRetryAt)).Time().Local()
	switch wait := due.Sub(t.Now); {
	case j.State == queue.Held.String() || j.State == queue.Blocked.String() && len(j.DependsOn) == 0:
		return j.State
	case wait > time.Hour:
		return due.Format(dateLayout(due, t.Now)+"15:04") + ", in " + Roughly(wait)
	case wait > 0:
		return "in " + Roughly(wait)
	}
	return cmp.Or(waitsForText(j), "ready")
}

// Why returns why a job failed, with its last line of output.
func (t ScreenText) Why(j *control.ScreenJob) string {
	text := orDefault(j.Error, Standing(&j.Job))
	if last := j.LastLine; last != "" {
		text += ": " + last
	}
	return text
}

// Ago formats how long ago a time was, in words.
func (t ScreenText) Ago(at control.Time) string { return agoOf(at, t.Now) }

// Marked returns a job's id after the sign of its state, and the state's colour code.
func Marked(j *control.Job) (text, colour string) {
	return marked(j), signOf(j.State).colour
}

// Shown returns an untrusted text as one line without colours. It escapes control characters and
// takes exactly the columns that Width counts.
func Shown(s string) string { return oneLine(cell(uncoloured(s))) }

// cell escapes the characters of a text without colours that control a terminal. It also removes
// joiners, so that the text takes the columns that Width counts.
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
			b.WriteString(strings.Repeat(" ", tabStop-Width(b.String())%tabStop))
		}
	}
	return b.String()
}

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
			widths[i] = max(widths[i], Width(cell))
		}
	}
	return tableLines(shown, fit(widths, width, false), func(_ int, cell string) string { return cell })
}
