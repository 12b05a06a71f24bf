package term

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// ProgressBar describes the progress of a long operation.
type ProgressBar struct {
	Current, Total int64
	StartValue     int64 // value of Current at StartedAt; the estimate of the time left ignores progress before it
	StartedAt      time.Time
	Suffix         string
	InBytes        bool
	MinTimeLeft    time.Duration // lower bound of the time left
}

// DrawBar shows the bar on a terminal. The bar replaces the previous progress text.
func (o *Output) DrawBar(b ProgressBar) {
	if !IsTerminal(o.Stderr) || o.Quiet {
		return
	}
	of := max(b.Total, b.Current, 1)
	text := fmt.Sprintf("%3d%% %d/%d", b.Current*100/of, b.Current, of)
	if b.InBytes {
		text = fmt.Sprintf("%3d%% %s/%s", b.Current*100/of, present.SizeText(b.Current), present.SizeText(of))
	}
	if b.Suffix != "" {
		text += ", " + b.Suffix
	}
	if took := time.Since(b.StartedAt); b.Current > b.StartValue && b.Current < of && took > time.Second {
		left := time.Duration(float64(took) * float64(of-b.Current) / float64(b.Current-b.StartValue))
		text += ", " + queue.FormatDuration(max(left, b.MinTimeLeft).Round(time.Second)) + " left"
	}
	width := Columns(o.Stderr) - 1 // leave the last column empty, because a full line would wrap
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.Current / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	o.ShowProgress("%s", termtext.Truncate(text, width))
}

// ShowProgress shows the progress of a long operation on a terminal. The text replaces the previous
// progress text. An empty text removes it.
//
// If the window gets narrower, the terminal breaks the line. So the cursor stays at the beginning of
// the line, and the next call clears everything after the cursor. Line wrapping is off while the text
// is printed, because the window may already be narrower than the width that the terminal last
// reported.
func (o *Output) ShowProgress(format string, args ...any) {
	if IsTerminal(o.Stderr) && !o.Quiet && (o.barShown.Swap(format != "") || format != "") {
		text := termtext.Truncate(fmt.Sprintf(format, args...), Columns(o.Stderr)-1)
		if text != "" {
			text = disableWrap + text + "\r" + enableWrap
		}
		fmt.Fprint(o.Stderr, "\r\x1b[J"+text)
	}
}

// disableWrap makes the terminal cut long lines. enableWrap makes the terminal wrap long lines again.
const (
	disableWrap = "\x1b[?7l"
	enableWrap  = "\x1b[?7h"
)
