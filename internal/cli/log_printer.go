package cli

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// damagedOutputError returns the error for a piece of output that is damaged on disk.
func damagedOutputError(p *control.OutputPiece) error {
	which := "stdout, stderr or both cannot be read"
	if p.Stream != "" {
		which = fmt.Sprintf("%s, from byte %d on, cannot be read", p.Stream, p.Damage.Offset)
	}
	return fmt.Errorf("the output of attempt %d of job %s is damaged: %d bytes of %s; check all files with: "+
		"queuectl doctor --verify", p.Attempt, p.ID, p.Damage.Bytes, which)
}

// logPrinter prints the pieces of one job's output. If lines have a prefix, it buffers an incomplete
// line, so that the lines of several jobs do not mix.
type logPrinter struct {
	a           *App
	writers     [2]term.SafeWriter // one for standard output and one for standard error
	ttyOutputs  [2]term.TTYOutput
	attempt     int            // number of the attempt whose output is being printed
	list        *term.JSONList // the JSON list to print to; nil for text
	prefix      string
	timestamps  bool
	atLineStart bool   // the next text begins a new line
	partialLine string // buffered beginning of a line
}

// maxPartialLineBytes bounds a buffered line, in bytes. A longer line is printed in pieces.
const maxPartialLineBytes = 64 << 10

// newLogPrinter returns a logPrinter. If lines have a prefix or a time, the logPrinter escapes carriage
// returns. Otherwise the text after a carriage return would overwrite the prefix or the time.
func newLogPrinter(a *App, prefix string, stamps bool) *logPrinter {
	live := prefix == "" && !stamps
	l := &logPrinter{a: a, prefix: prefix, timestamps: stamps, atLineStart: true}
	for i := range l.writers {
		l.writers[i] = term.SafeWriter{Output: &a.Output, File: a.Stdout, Live: live}
		l.ttyOutputs[i].Renderer.Colours = term.UsesColours(a.Stdout)
	}
	return l
}

func (l *logPrinter) printPiece(p *control.OutputPiece) error {
	if l.list != nil {
		return l.list.Add(p)
	}
	i := 0
	if p.Stream == "stderr" {
		i = 1
	}
	from, tty := &l.writers[i], &l.ttyOutputs[i]
	text := ""
	// Each attempt has its own terminal, so a new attempt starts with an empty line.
	if p.Attempt != l.attempt {
		text, l.attempt = tty.End(from.Next), p.Attempt
	}
	if p.TTY && !l.a.Raw {
		text += tty.Next(p.String(), from.Next)
	} else {
		text += from.Next(p.String())
	}
	if gap := p.GapText(); gap != "" {
		if line := tty.End(from.Next); line != "" {
			text += line + "\n"
		}
		text += from.End() + gap + "\n"
		tty.Renderer.StartsMidway = true
		if !l.atLineStart || l.partialLine != "" {
			text = "\n" + text
		}
	}
	if l.prefix != "" {
		text = l.partialLine + text
		whole := strings.LastIndexByte(text, '\n') + 1
		text, l.partialLine = text[:whole], text[whole:]
		if len(l.partialLine) > maxPartialLineBytes {
			text, l.partialLine = text+l.partialLine+"\n", ""
		}
	}
	return l.print(text, p.Time)
}

func (l *logPrinter) print(text string, at control.Time) error {
	before := l.prefix
	if l.timestamps {
		before += formatLocalMillis(at) + " "
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if l.atLineStart {
			b.WriteString(before)
		}
		b.WriteString(line)
		l.atLineStart = strings.HasSuffix(line, "\n")
	}
	_, err := l.a.Stdout.WriteString(b.String())
	return err
}

// flush prints the buffered text.
func (l *logPrinter) flush() error {
	text := l.partialLine
	for i := range l.writers {
		text += l.ttyOutputs[i].End(l.writers[i].Next) + l.writers[i].End()
	}
	if text == "" {
		return nil
	}
	if l.prefix != "" {
		text = l.prefix + text + "\n"
	}
	_, err := l.a.Stdout.WriteString(text)
	return err
}

func formatLocalMillis(t control.Time) string {
	return queue.Millis(t).Time().Local().Format("2006-01-02T15:04:05.000Z07:00")
}
