package dashboard

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// outputLines converts the pieces of a job's output to lines for a page. It renders terminal output as text:
// each line as it looks when the cursor leaves it. A line that the job has not finished is returned each time it
// changes. The zero outputLines is ready for use.
type outputLines struct {
	renderer       termtext.Renderer
	attempt        int  // attempt of the last piece
	lastUnfinished bool // the last returned line was unfinished
}

// linesOfPiece returns the lines that a piece of output adds, or replaces if the last line was unfinished.
func (o *outputLines) linesOfPiece(p *control.OutputPiece) (lines []line) {
	at := queue.Millis(p.Time).Time().Local().Format("15:04:05.000")
	gap := p.GapText()
	if gap != "" || p.Ended || p.Attempt != o.attempt { // an attempt has started or ended, or output is missing
		if rest := o.renderer.End(); rest != "" {
			lines = textLines(rest, line{At: at})
		}
		o.attempt, o.lastUnfinished = p.Attempt, false
		o.renderer = termtext.Renderer{Colours: true, StartsMidway: true}
	}
	switch {
	case gap != "":
		return append(lines, line{At: at, Dropped: gap})
	case p.Ended:
		return lines
	case !p.TTY:
		return append(lines, textLines(p.String(), line{At: at, IsStderr: p.Stream == "stderr"})...)
	}
	if text := o.renderer.Write(p.String()); text != "" {
		lines, o.lastUnfinished = append(lines, textLines(text, line{At: at})...), false
	}
	if rest := o.renderer.Line(); rest != "" || o.lastUnfinished {
		lines, o.lastUnfinished = append(lines, textLines(rest+"\n", line{At: at, Unfinished: true})...), rest != ""
	}
	return lines
}

// appendLine appends a line to a list. If the last line in the list is unfinished, the new line replaces it.
func appendLine(lines []line, l line) []line {
	if n := len(lines); n > 0 && lines[n-1].Unfinished {
		lines = lines[:n-1]
	}
	return append(lines, l)
}

// textLines splits a text into lines, which are copies of prototype with their own text.
func textLines(text string, prototype line) (lines []line) {
	for text := range strings.Lines(text) {
		rest := 0
		if len(text) > maxLineBytes {
			end := maxLineBytes - output.TrailingPartial([]byte(text[:maxLineBytes]))
			text, rest = text[:end], len(text)-end
		}
		l := prototype
		l.ColourRuns = splitColourRuns(strings.TrimRight(strings.ToValidUTF8(text, "\ufffd"), "\r\n"))
		if rest > 0 {
			l.ColourRuns = append(l.ColourRuns, [2]string{fmt.Sprintf(" … %d bytes more", rest), ""})
		}
		lines = append(lines, l)
	}
	return lines
}

// maxLineBytes is how many bytes of one output line a page shows.
const maxLineBytes = 4 << 10
