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
	maxPaneOutputLines = 50      // number of lines kept for the pane below the lists
	maxPageOutputLines = 5000    // number of lines kept for a full-screen page
	maxOutputLineBytes = 4 << 10 // maximum length of a line in bytes; a longer line is truncated
)

// outputSource identifies the output to read: that of the attempt of the job jobID which started at attemptStartedAt.
// If jobID is "", no output is read.
type outputSource struct {
	jobID            string
	attemptStartedAt control.Time
	isRunning        bool // the attempt is running, so more output may follow
	maxKeptLines     int  // number of last lines to keep
}

// outputPiece is a part of an output.
type outputPiece struct {
	stream         string
	time           control.Time
	text           string
	isFromTerminal bool // output from a terminal
	isGapNote      bool // the text is a note about output that cannot be read
}

// outputLine is one line of output in its displayed form.
type outputLine struct {
	time control.Time
	text string
}

// jobOutput contains the last lines of a job's output.
type jobOutput struct {
	source                 outputSource
	lines                  []outputLine
	unfinishedLineByStream [2]outputLine     // unfinished lines of standard output and standard error
	renderer               termtext.Renderer // renders the output of jobs with a terminal
	isComplete             bool              // no more output follows
	connectionLost         bool              // the connection to the service was lost during the read
	readError              string            // why the output cannot be read
}

// appendUpdate appends output.
func (o *jobOutput) appendUpdate(update *outputUpdate) {
	for i := range update.pieces {
		one := &update.pieces[i]
		part := &o.unfinishedLineByStream[0]
		if one.stream == "stderr" {
			part = &o.unfinishedLineByStream[1]
		}
		shown := one.text
		switch {
		case one.isFromTerminal && one.isGapNote:
			if part.text = ""; o.renderer.CurrentLine() != "" {
				shown = o.renderer.CurrentLine() + "\n" + shown
			}
			o.renderer = termtext.Renderer{StartsMidOutput: true}
		case one.isGapNote && part.text != "":
			shown = "\n" + shown
		case one.isFromTerminal:
			part.text = "" // the Write below returns the unfinished line again
			shown = o.renderer.Write(shown) + o.renderer.CurrentLine()
		}
		for text := range strings.SplitAfterSeq(shown, "\n") {
			if part.text == "" {
				part.time = one.time
			}
			if part.text += text; len(part.text) > maxOutputLineBytes {
				part.text = part.text[:maxOutputLineBytes]
			}
			if strings.HasSuffix(text, "\n") {
				o.lines = append(o.lines, outputLine{part.time, termtext.TerminalSafeOutputLine(part.text)})
				part.text = ""
			}
		}
	}
	if excess := len(o.lines) - o.source.maxKeptLines; excess > 0 {
		o.lines = slices.Delete(o.lines, 0, excess)
	}
	if !update.isComplete {
		return
	}
	o.isComplete = true
	switch {
	case update.err == nil:
	case errors.Is(update.err, queue.ErrUnavailable):
		o.connectionLost = true
	default:
		o.readError = errorText(update.err)
	}
}

// allLines returns all lines, including those that are unfinished.
func (o *jobOutput) allLines() []outputLine {
	list := o.lines
	for _, part := range o.unfinishedLineByStream {
		if part.text != "" {
			list = append(slices.Clip(list), outputLine{part.time, termtext.TerminalSafeOutputLine(part.text)})
		}
	}
	return list
}

// followShownOutput starts reading the output that the screen should show, if it is not being read yet.
func (m *model) followShownOutput() []effect {
	if m.outage != nil {
		return nil // without the service, keep the displayed output
	}
	want := m.shownOutputSource()
	if want == m.followedOutput.source {
		return nil
	}
	m.followedOutput = jobOutput{source: want, renderer: termtext.Renderer{StartsMidOutput: true}}
	return []effect{followOutputEffect{want}}
}

// shownOutputSource returns the source of the output that the screen should show, or the zero value for no output.
func (m *model) shownOutputSource() outputSource {
	if m.page != nil {
		if m.page.job == nil {
			return m.followedOutput.source // the page covers the output of the selected job, which is still read
		}
		return newOutputSource(m.page.job, maxPageOutputLines)
	}
	r := m.selectedRow()
	if _, paneHeight := m.paneHeights(); paneHeight == 0 || r == nil || r.job == nil || !m.mayReadOutput(r.job) {
		return outputSource{}
	}
	return newOutputSource(r.job, maxPaneOutputLines)
}

// newOutputSource returns the source of a job's output. It returns the zero value if the job has had no attempt.
func newOutputSource(j *control.Job, maxKeptLines int) outputSource {
	if j.StartedAt == 0 && j.AttemptCount == 0 {
		return outputSource{}
	}
	return outputSource{jobID: j.ID, attemptStartedAt: j.StartedAt, isRunning: j.State == queue.Processing.String(),
		maxKeptLines: maxKeptLines}
}

// mayReadOutput reports whether the user may read a job's output.
func (m *model) mayReadOutput(j *control.Job) bool { return m.mayCallMethod("logs", m.ownsJob(j)) }
