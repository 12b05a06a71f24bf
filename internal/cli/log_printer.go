package cli

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// damaged returns the error for a piece of output that is damaged on disk.
func damaged(p *control.Piece) error {
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
	a         *App
	screen    [2]term.SafeWriter // one for standard output and one for standard error
	ttys      [2]term.TTYOutput
	number    int         // number of the attempt whose output is being printed
	list      *term.Array // the JSON array to print to; nil for text or JSON lines
	prefix    string
	stamps    bool
	lineStart bool   // the next text begins a new line
	part      string // buffered beginning of a line
}

// maxPart bounds a buffered line, in bytes. A longer line is printed in pieces.
const maxPart = 64 << 10

// newLogPrinter returns a logPrinter. If lines have a prefix or a time, the logPrinter escapes carriage
// returns. Otherwise the text after a carriage return would overwrite the prefix or the time.
func newLogPrinter(a *App, prefix string, stamps bool) *logPrinter {
	live := prefix == "" && !stamps
	l := &logPrinter{a: a, prefix: prefix, stamps: stamps, lineStart: true}
	for i := range l.screen {
		l.screen[i] = term.SafeWriter{Output: &a.Output, File: a.Stdout, Live: live}
		l.ttys[i].Renderer.Colours = term.ColoursOn(a.Stdout)
	}
	return l
}

func (l *logPrinter) piece(p *control.Piece) error {
	switch {
	case l.list != nil:
		return l.list.Add(p)
	case l.a.Structured():
		return l.a.PrintJSON(p)
	}
	i := 0
	if p.Stream == "stderr" {
		i = 1
	}
	from, tty := &l.screen[i], &l.ttys[i]
	text := ""
	// Each attempt has its own terminal, so a new attempt starts with an empty line.
	if p.Attempt != l.number {
		text, l.number = tty.End(from.Safe), p.Attempt
	}
	if p.TTY && !l.a.Raw {
		text += tty.Next(p.String(), from.Safe)
	} else {
		text += from.Safe(p.String())
	}
	if gap := p.Gap(); gap != "" {
		if line := tty.End(from.Safe); line != "" {
			text += line + "\n"
		}
		text += from.Rest() + gap + "\n"
		tty.Renderer.StartsMidway = true
		if !l.lineStart || l.part != "" {
			text = "\n" + text
		}
	}
	if l.prefix != "" {
		text = l.part + text
		whole := strings.LastIndexByte(text, '\n') + 1
		text, l.part = text[:whole], text[whole:]
		if len(l.part) > maxPart {
			text, l.part = text+l.part+"\n", ""
		}
	}
	return l.print(text, p.Time)
}

func (l *logPrinter) print(text string, at control.Time) error {
	before := l.prefix
	if l.stamps {
		before += local2(at) + " "
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if l.lineStart {
			b.WriteString(before)
		}
		b.WriteString(line)
		l.lineStart = strings.HasSuffix(line, "\n")
	}
	_, err := l.a.Stdout.WriteString(b.String())
	return err
}

// end prints the buffered text.
func (l *logPrinter) end() error {
	text := l.part
	for i := range l.screen {
		text += l.ttys[i].End(l.screen[i].Safe) + l.screen[i].Rest()
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

func local2(t control.Time) string {
	return queue.Millis(t).Time().Local().Format("2006-01-02T15:04:05.000Z07:00")
}
