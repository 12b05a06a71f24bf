package top

import (
	"errors"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// These constants bound the output that is kept in memory.
const (
	paneOutputLines = 50      // number of lines kept for the pane below the lists
	pageOutputLines = 5000    // number of lines kept for a full-screen page
	maxLineBytes    = 4 << 10 // maximum length of a line in bytes; a longer line is truncated
)

// outputSource says which output to read: that of the attempt of the job id that started at startedAt. An
// empty id means no output.
type outputSource struct {
	id        string
	startedAt control.Time
	running   bool // the attempt is running, so more output may follow
	lineCount int  // number of last lines to keep
}

// piece is a part of an output.
type piece struct {
	stream     string
	time       control.Time
	text       string
	isTerminal bool // output from a terminal
	isGap      bool // the text is a note about output that cannot be read
}

// line is one line of output in its displayed form.
type line struct {
	time control.Time
	text string
}

// output contains the last lines of a job's output.
type output struct {
	source          outputSource
	lines           []line
	unfinishedLines [2]line           // unfinished lines of standard output and standard error
	renderer        termtext.Renderer // renders the output of jobs with a terminal
	ended           bool              // no more output follows
	connectionLost  bool              // the connection to the service was lost during the read
	readError       string            // why the output cannot be read
}

// add appends output.
func (o *output) add(p *newOutput) {
	for i := range p.pieces {
		one := &p.pieces[i]
		part := &o.unfinishedLines[0]
		if one.stream == "stderr" {
			part = &o.unfinishedLines[1]
		}
		shown := one.text
		switch {
		case one.isTerminal && one.isGap:
			if part.text = ""; o.renderer.Line() != "" {
				shown = o.renderer.Line() + "\n" + shown
			}
			o.renderer = termtext.Renderer{StartsMidway: true}
		case one.isGap && part.text != "":
			shown = "\n" + shown
		case one.isTerminal:
			part.text = "" // the Write below returns the unfinished line again
			shown = o.renderer.Write(shown) + o.renderer.Line()
		}
		for text := range strings.SplitAfterSeq(shown, "\n") {
			if part.text == "" {
				part.time = one.time
			}
			if part.text += text; len(part.text) > maxLineBytes {
				part.text = part.text[:maxLineBytes]
			}
			if strings.HasSuffix(text, "\n") {
				o.lines = append(o.lines, line{part.time, termtext.SafeLine(part.text)})
				part.text = ""
			}
		}
	}
	if excess := len(o.lines) - o.source.lineCount; excess > 0 {
		o.lines = slices.Delete(o.lines, 0, excess)
	}
	if !p.ended {
		return
	}
	o.ended = true
	switch {
	case p.err == nil:
	case errors.Is(p.err, queue.ErrUnavailable):
		o.connectionLost = true
	default:
		o.readError = errorText(p.err)
	}
}

// allLines returns all lines, including those that are unfinished.
func (o *output) allLines() []line {
	list := o.lines
	for _, part := range o.unfinishedLines {
		if part.text != "" {
			list = append(slices.Clip(list), line{part.time, termtext.SafeLine(part.text)})
		}
	}
	return list
}

// followShownOutput starts reading the output that the screen should show, if it is not being read yet.
func (m *model) followShownOutput() []effect {
	if m.outage != nil {
		return nil // without the service, keep the displayed output
	}
	want := m.shownOutput()
	if want == m.output.source {
		return nil
	}
	m.output = output{source: want, renderer: termtext.Renderer{StartsMidway: true}}
	return []effect{followEffect{want}}
}

// shownOutput returns the source of the output that the screen should show, or the zero value for no output.
func (m *model) shownOutput() outputSource {
	if m.page != nil {
		if m.page.job == nil {
			return m.output.source // the page covers the output of the selected job, which is still read
		}
		return outputOf(m.page.job, pageOutputLines)
	}
	r := m.selectedRow()
	if _, paneHeight := m.paneHeights(); paneHeight == 0 || r == nil || r.job == nil || !m.mayReadOutput(r.job) {
		return outputSource{}
	}
	return outputOf(r.job, paneOutputLines)
}

// outputOf returns the source of a job's output. It returns the zero value if the job has had no attempt.
func outputOf(j *control.Job, lines int) outputSource {
	if j.StartedAt == 0 && j.Attempts == 0 {
		return outputSource{}
	}
	return outputSource{id: j.ID, startedAt: j.StartedAt, running: j.State == queue.Processing.String(), lineCount: lines}
}

// mayReadOutput reports whether the user may read a job's output.
func (m *model) mayReadOutput(j *control.Job) bool { return m.isAllowed("logs", m.owns(j)) }
