package daemon

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// maxProgressLineBytes is the maximum length, in bytes, of a line with which an attempt reports progress. See
// docs/decisions/0059.
const maxProgressLineBytes = 1 << 10

// progressInterval is the shortest time between two progress reports of one attempt that the runner sends to
// the service.
const progressInterval = 500 * time.Millisecond

// progressParser parses the lines that an attempt writes to its progress FIFO. A line has the form "N" or "N text",
// where N is a percentage. Only the last valid line counts.
type progressParser struct {
	lastProgress  wire.Progress // progress in the last valid line
	partialLine   []byte        // the part of the current line that has been read
	skipsLongLine bool          // the current line is longer than maxProgressLineBytes and is ignored
	secretTexts   [][]byte      // secret values, which are masked in each line
}

// parse parses the next bytes from the FIFO. It reports whether these bytes complete a valid line.
func (p *progressParser) parse(data []byte) (foundValidLine bool) {
	for part := range bytes.Lines(data) {
		part, ended := bytes.CutSuffix(part, []byte("\n"))
		if p.skipsLongLine = p.skipsLongLine || len(p.partialLine)+len(part) > maxProgressLineBytes; !p.skipsLongLine {
			p.partialLine = append(p.partialLine, part...)
		}
		if ended {
			foundValidLine = p.flush() || foundValidLine
		}
	}
	return foundValidLine
}

// flush parses an incomplete line as if it were complete. It reports whether the line is valid.
func (p *progressParser) flush() (foundValidLine bool) {
	percent, text, ok := parseProgress(string(output.MaskSecrets(p.partialLine, p.secretTexts)))
	if ok = ok && !p.skipsLongLine; ok {
		p.lastProgress = wire.Progress{ReportedAtMillis: time.Now().UnixMilli(), Percent: percent, Text: text}
	}
	p.partialLine, p.skipsLongLine = p.partialLine[:0], false
	return ok
}

// parseProgress parses a line "N" or "N text", with N from 0 to 100. It cuts the text to
// queue.MaxProgressTextBytes bytes.
func parseProgress(line string) (percent int64, text string, ok bool) {
	number, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	percent, err := strconv.ParseInt(strings.TrimSuffix(number, "%"), 10, 64)
	if err != nil || percent < 0 || percent > 100 || number[0] == '+' {
		return 0, "", false
	}
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > queue.MaxProgressTextBytes {
		text = strings.ToValidUTF8(text[:queue.MaxProgressTextBytes], "") // removes a character of which only a part is left
	}
	return percent, text, true
}

// HandleProgress implements process.ProgressHandler. It parses bytes that the command wrote to its FIFO, and
// sends the progress to the service at most once per progressInterval. callAgain is true if the latest progress
// is not sent yet or a line is incomplete. HandleProgress must then be called again, even without new bytes.
func (ws *workspace) HandleProgress(data []byte) (callAgain bool) {
	p := &ws.progress
	if !p.parse(data) && len(data) == 0 && len(p.partialLine) > 0 {
		p.flush() // no more bytes came, so treat a line without a newline as complete
	}
	// Only this goroutine changes lastSentProgress, so reading it does not need mu.
	sent := ws.attempt.lastSentProgress
	if p.lastProgress.ReportedAtMillis == sent.ReportedAtMillis {
		return len(p.partialLine) > 0
	}
	const interval = int64(progressInterval / time.Millisecond)
	if time.Now().UnixMilli()-sent.ReportedAtMillis < interval {
		return true
	}
	ws.server.mu.Lock()
	ws.attempt.lastSentProgress = p.lastProgress
	ws.server.sendFrameLocked(&wire.ProgressReport{Lease: leaseOf(ws.attempt), Progress: p.lastProgress}, false)
	ws.server.mu.Unlock()
	return len(p.partialLine) > 0
}
