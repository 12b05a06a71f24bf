package cli

import (
	"os"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// ttyOutput converts a job's terminal output to text. It prints each line in the state that a
// terminal would finally show.
type ttyOutput struct {
	r        termtext.Renderer
	live     bool   // show the unfinished line, and redraw it when it changes
	lastText string // the unfinished line as displayed
}

// next processes the next piece of the output and returns what to print. The function safe escapes
// text for its destination.
func (t *ttyOutput) next(text string, safe func(string) string) string {
	lines := t.r.Write(text)
	if !t.live {
		return safe(lines)
	}
	part := t.r.Line()
	before := t.lastText
	t.lastText = part
	if added, ok := strings.CutPrefix(lines+part, before); ok {
		return safe(added)
	}
	return "\r\x1b[K" + safe(lines+part)
}

// end returns what to print at the end of the output.
func (t *ttyOutput) end(safe func(string) string) string {
	rest := t.r.End()
	if t.live {
		rest = strings.TrimPrefix(rest, t.lastText)
	}
	t.lastText = ""
	return safe(rest)
}

// coloursOn reports whether colours may be written to a file.
func coloursOn(to *os.File) bool { return IsTerminal(to) && os.Getenv("NO_COLOR") == "" }

// ttyText converts terminal output of a job to plain text. It returns the output of other jobs
// unchanged.
func (a *App) ttyText(j *control.JobDetail, text string) string {
	if tty, _ := j.Spec["tty"].(bool); !tty || a.raw {
		return text
	}
	return termtext.Text(text, coloursOn(a.Out))
}
