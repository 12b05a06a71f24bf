package top

import (
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// Limits of the output that is kept.
const (
	shortOutput = 50      // lines below the lists
	wholeOutput = 5000    // lines on a full-screen page
	longestLine = 4 << 10 // bytes of a line; the rest of a longer line is dropped
)

// followed identifies the output of the attempt of a job that began at since. An empty id means no output.
type followed struct {
	id    string
	since control.Time
	runs  bool // more output may follow
	lines int
}

// piece is a part of an output.
type piece struct {
	stream string
	at     control.Time
	text   string
	tty    bool // output from a terminal
	gap    bool // a note that replaces output that cannot be read
}

// line is one line of an output as it is displayed.
type line struct {
	at   control.Time
	text string
}

// output holds the last lines of a job's output.
type output struct {
	of     followed
	lines  []line
	parts  [2]line           // unfinished lines of standard output and standard error
	tty    termtext.Renderer // renders output from a terminal, of which only the last lines are read
	ended  bool
	broken bool   // the connection to the service was lost during the read
	why    string // why the output cannot be read
}

// add appends output.
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
			part.text = "" // Write returns the unfinished line again
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

// shown returns all lines, including unfinished ones.
func (o *output) shown() []line {
	list := o.lines
	for _, part := range o.parts {
		if part.text != "" {
			list = append(slices.Clip(list), line{part.at, cli.ShownLine(part.text)})
		}
	}
	return list
}

// follows starts reading the output that is now displayed, if it has changed.
func (m *model) follows() []effect {
	if m.lost != nil {
		return nil // keep the displayed output
	}
	want := m.shownOutput()
	if want == m.out.of {
		return nil
	}
	m.out = output{of: want, tty: termtext.Renderer{Midway: true}}
	return []effect{follow{want}}
}

// shownOutput returns which output is displayed.
func (m *model) shownOutput() followed {
	if m.page != nil {
		if m.page.job == nil {
			return m.out.of // continue reading it behind the page
		}
		return outputOf(m.page.job, wholeOutput)
	}
	r := m.chosen()
	if _, pane := m.heights(); pane == 0 || r == nil || r.job == nil || !m.reads(r.job) {
		return followed{}
	}
	return outputOf(r.job, shortOutput)
}

// outputOf returns the output of a job. A job without an attempt has none.
func outputOf(j *control.Job, lines int) followed {
	if j.StartedAt == 0 && j.Attempts == 0 {
		return followed{}
	}
	return followed{id: j.ID, since: j.StartedAt, runs: j.State == queue.Processing.String(), lines: lines}
}

// reads reports whether the user may read a job's output.
func (m *model) reads(j *control.Job) bool { return m.may("logs", m.owns(j)) }
