package dashboard

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// outputLines converts the pieces of a job's output to lines of a page. It renders terminal output as text,
// each line as it was when the cursor left it. An unfinished line is returned again each time it changes. The
// zero outputLines is ready for use.
type outputLines struct {
	tty            termtext.Renderer
	attempt        int  // attempt of the last piece
	lastUnfinished bool // the last line is unfinished
}

// linesOfPiece returns the new lines that the next piece of output produces.
func (o *outputLines) linesOfPiece(p *control.OutputPiece) (list []line) {
	at := queue.Millis(p.Time).Time().Local().Format("15:04:05.000")
	gap := p.GapText()
	if gap != "" || p.Ended || p.Attempt != o.attempt { // an attempt has started or ended, or output is missing
		if rest := o.tty.End(); rest != "" {
			list = textLines(rest, line{At: at})
		}
		o.attempt, o.lastUnfinished = p.Attempt, false
		o.tty = termtext.Renderer{Colours: true, StartsMidway: true}
	}
	switch {
	case gap != "":
		return append(list, line{At: at, Dropped: gap})
	case p.Ended:
		return list
	case !p.TTY:
		return append(list, textLines(p.String(), line{At: at, IsStderr: p.Stream == "stderr"})...)
	}
	if text := o.tty.Write(p.String()); text != "" {
		list, o.lastUnfinished = append(list, textLines(text, line{At: at})...), false
	}
	if rest := o.tty.Line(); rest != "" || o.lastUnfinished {
		list, o.lastUnfinished = append(list, textLines(rest+"\n", line{At: at, Unfinished: true})...), rest != ""
	}
	return list
}

// appendLine appends a line to a list. If the last line of the list is unfinished, the new line replaces it.
func appendLine(list []line, l line) []line {
	if n := len(list); n > 0 && list[n-1].Unfinished {
		list = list[:n-1]
	}
	return append(list, l)
}

// textLines splits a text into lines. The other fields of each line are copied from prototype.
func textLines(text string, prototype line) (list []line) {
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
		list = append(list, l)
	}
	return list
}

// maxLineBytes is the maximum number of bytes of one output line that a page shows.
const maxLineBytes = 4 << 10
