package cli

import (
	"os"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// ttyOutput prints what a job has printed on its terminal as text: each line as it was in the end.
type ttyOutput struct {
	r     termtext.Renderer
	live  bool   // show the unfinished line, and show it again when it changes
	shown string // the unfinished line as it is shown
}

// next returns what to print for the next piece. safe makes text safe for where it is printed.
func (t *ttyOutput) next(text string, safe func(string) string) string {
	lines := t.r.Write(text)
	if !t.live {
		return safe(lines)
	}
	part := t.r.Line()
	before := t.shown
	t.shown = part
	if added, ok := strings.CutPrefix(lines+part, before); ok {
		return safe(added)
	}
	return "\r\x1b[K" + safe(lines+part)
}

// end returns what to print when no more comes.
func (t *ttyOutput) end(safe func(string) string) string {
	rest := t.r.End()
	if t.live {
		rest = strings.TrimPrefix(rest, t.shown)
	}
	t.shown = ""
	return safe(rest)
}

// coloursOn reports whether colours may go to a stream.
func coloursOn(to *os.File) bool { return IsTerminal(to) && os.Getenv("NO_COLOR") == "" }

// ttyText returns text from a job's terminal as it can be read.
func (a *App) ttyText(j *control.JobDetail, text string) string {
	if tty, _ := j.Spec["tty"].(bool); !tty || a.raw {
		return text
	}
	return termtext.Text(text, coloursOn(a.Out))
}
