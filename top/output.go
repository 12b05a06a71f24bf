package top

import (
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// What is kept of an output.
const (
	shortOutput = 50      // lines, below the lists
	wholeOutput = 5000    // lines, on the whole screen
	longestLine = 4 << 10 // bytes; the rest of a longer one is left out
)

// followed names an output: that of the attempt of a job which began then. It is none without an id.
type followed struct {
	id    string
	since control.Time
	runs  bool // more may come
	lines int
}

// piece is a part of an output.
type piece struct {
	stream string
	at     control.Time
	text   string
	tty    bool // it comes from a terminal
	gap    bool // it replaces output that cannot be read
}

// line is one line of an output, as it is shown.
type line struct {
	at   control.Time
	text string
}

// output is the end of the output of a job.
type output struct {
	of     followed
	lines  []line
	parts  [2]line           // of lines that are not whole, of standard output and standard error
	tty    termtext.Renderer // of output that comes from a terminal, which is read from its last lines on
	ended  bool
	broken bool   // the service went away meanwhile
	why    string // there is none
}

// add adds what was printed.
func (o *output) add(p *printed) {
	for i := range p.text {
		one := &p.text[i]
		part := &o.parts[0]
		if one.stream == "stderr" {
			part = &o.parts[1]
		}
		shown := one.text
		switch {
		case one.tty && one.gap:
			if part.text = ""; o.tty.Line() != "" {
				shown = o.tty.Line() + "\n" + shown
			}
			o.tty = termtext.Renderer{Midway: true}
		case one.gap && part.text != "":
			shown = "\n" + shown
		case one.tty:
			part.text = "" // which it makes again
			shown = o.tty.Write(shown) + o.tty.Line()
		}
		for text := range strings.SplitAfterSeq(shown, "\n") {
			if part.text == "" {
				part.at = one.at
			}
			if part.text += text; len(part.text) > longestLine {
				part.text = part.text[:longestLine]
			}
			if strings.HasSuffix(text, "\n") {
				o.lines = append(o.lines, line{part.at, cli.ShownLine(part.text)})
				part.text = ""
			}
		}
	}
	if over := len(o.lines) - o.of.lines; over > 0 {
		o.lines = slices.Delete(o.lines, 0, over)
	}
	if !p.ended {
		return
	}
	o.ended = true
	switch {
	case p.err == nil:
	case isAway(p.err):
		o.broken = true
	default:
		o.why = message(p.err)
	}
}

// shown is all lines, also those that are not whole yet.
func (o *output) shown() []line {
	list := o.lines
	for _, part := range o.parts {
		if part.text != "" {
			list = append(slices.Clip(list), line{part.at, cli.ShownLine(part.text)})
		}
	}
	return list
}

// follows begins to read the output that is shown now, if that is another one.
func (m *model) follows() []effect {
	if m.lost != nil {
		return nil // what is shown stays
	}
	want := m.shownOutput()
	if want == m.out.of {
		return nil
	}
	m.out = output{of: want, tty: termtext.Renderer{Midway: true}}
	return []effect{follow{want}}
}

// shownOutput is the output that is to be seen.
func (m *model) shownOutput() followed {
	if m.page != nil {
		if m.page.job == nil {
			return m.out.of // it is read on behind the page
		}
		return outputOf(m.page.job, wholeOutput)
	}
	r := m.chosen()
	if _, pane := m.heights(); pane == 0 || r == nil || r.job == nil || !m.reads(r.job) {
		return followed{}
	}
	return outputOf(r.job, shortOutput)
}

// outputOf is the output of a job, none before its first attempt.
func outputOf(j *control.Job, lines int) followed {
	if j.StartedAt == 0 && j.Attempts == 0 {
		return followed{}
	}
	return followed{id: j.ID, since: j.StartedAt, runs: j.State == queue.Processing.String(), lines: lines}
}

// reads reports whether the user may read a job's output.
func (m *model) reads(j *control.Job) bool { return m.may("logs", m.owns(j)) }
