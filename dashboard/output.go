package dashboard

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// outputLineConverter converts the pieces of a job's output to lines for a page. It renders the output of a terminal as
// text: each line as it looks when the cursor leaves the line. While the job has not finished a line,
// outputLineConverter returns the line again each time the line changes. The zero outputLineConverter is ready for use.
type outputLineConverter struct {
	renderer           termtext.Renderer
	lastAttempt        int  // attempt of the last piece
	lastLineUnfinished bool // the last returned line was unfinished
}

// convertPiece returns the lines that a piece of output adds. If the last returned line was unfinished, the first of
// the new lines replaces it.
func (o *outputLineConverter) convertPiece(p *control.OutputPiece) (lines []outputLine) {
	at := queue.UnixMillis(p.PrintedAt).Time().Local().Format("15:04:05.000")
	gap := p.MissingOutputText()
	if gap != "" || p.AttemptEnded || p.Attempt != o.lastAttempt { // an attempt has started or ended, or output is missing
		if rest := o.renderer.Finish(); rest != "" {
			lines = splitTextLines(rest, outputLine{At: at})
		}
		o.lastAttempt, o.lastLineUnfinished = p.Attempt, false
		o.renderer = termtext.Renderer{KeepColours: true, StartsMidOutput: true}
	}
	switch {
	case gap != "":
		return append(lines, outputLine{At: at, Dropped: gap})
	case p.AttemptEnded:
		return lines
	case !p.FromTerminal:
		return append(lines, splitTextLines(p.String(), outputLine{At: at, IsStderr: p.Stream == "stderr"})...)
	}
	if text := o.renderer.Write(p.String()); text != "" {
		lines, o.lastLineUnfinished = append(lines, splitTextLines(text, outputLine{At: at})...), false
	}
	if rest := o.renderer.CurrentLine(); rest != "" || o.lastLineUnfinished {
		lines, o.lastLineUnfinished = append(lines, splitTextLines(rest+"\n", outputLine{At: at, IsUnfinished: true})...),
			rest != ""
	}
	return lines
}

// appendOrReplaceLine appends a line to a list. If the last line in the list is unfinished, the new line replaces it.
func appendOrReplaceLine(lines []outputLine, newLine outputLine) []outputLine {
	if n := len(lines); n > 0 && lines[n-1].IsUnfinished {
		lines = lines[:n-1]
	}
	return append(lines, newLine)
}

// splitTextLines splits a text into lines. Each result is a copy of lineTemplate that contains the text of one line.
func splitTextLines(text string, lineTemplate outputLine) (lines []outputLine) {
	for text := range strings.Lines(text) {
		rest := 0
		if len(text) > maxShownLineBytes {
			end := maxShownLineBytes - output.TrailingPartialCharacterBytes([]byte(text[:maxShownLineBytes]))
			text, rest = text[:end], len(text)-end
		}
		l := lineTemplate
		l.ColourRuns = splitColourRuns(strings.TrimRight(strings.ToValidUTF8(text, "\ufffd"), "\r\n"))
		if rest > 0 {
			l.ColourRuns = append(l.ColourRuns, [2]string{fmt.Sprintf(" … %d bytes more", rest), ""})
		}
		lines = append(lines, l)
	}
	return lines
}

// maxShownLineBytes is the maximum number of bytes of one output line that a page shows.
const maxShownLineBytes = 4 << 10
