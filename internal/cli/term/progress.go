package term

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// Bar describes the progress of a long operation.
type Bar struct {
	Done, Of int64
	From     int64 // value of Done at the time Since; the estimate of the time left ignores that part
	Since    time.Time
	Note     string
	Bytes    bool
	AtLeast  time.Duration // lower bound of the time left
}

// Draw shows the bar on a terminal, instead of the previous progress text.
func (o *Output) Draw(b Bar) {
	if !IsTerminal(o.Err) || o.Quiet {
		return
	}
	of := max(b.Of, b.Done, 1)
	text := fmt.Sprintf("%3d%% %d/%d", b.Done*100/of, b.Done, of)
	if b.Bytes {
		text = fmt.Sprintf("%3d%% %s/%s", b.Done*100/of, present.Size(b.Done), present.Size(of))
	}
	if b.Note != "" {
		text += ", " + b.Note
	}
	if took := time.Since(b.Since); b.Done > b.From && b.Done < of && took > time.Second {
		left := time.Duration(float64(took) * float64(of-b.Done) / float64(b.Done-b.From))
		text += ", " + queue.FormatDuration(max(left, b.AtLeast).Round(time.Second)) + " left"
	}
	width := Columns(o.Err) - 1 // the bar is one column shorter than the line, because a full line would wrap
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.Done / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	o.Progress("%s", termtext.Truncate(text, width))
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
		text := termtext.Truncate(fmt.Sprintf(format, args...), Columns(o.Err)-1)
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
