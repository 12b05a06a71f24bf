package term

import (
	"os"
	"strings"

	"github.com/queuectl/queuectl/internal/termtext"
)

// JobOutputEscaper converts one stream of a job's output to text that can be printed to File. If File is a
// terminal, it escapes control characters, and keeps back an incomplete character or colour sequence until
// the rest arrives.
type JobOutputEscaper struct {
	Output              *Output
	File                *os.File
	KeepCarriageReturns bool // keep carriage returns, because the output is printed while the job writes it
	partialText         string
}

// ConvertPiece processes the next piece of the stream and returns the text that can be printed now.
func (s *JobOutputEscaper) ConvertPiece(text string) string {
	if s.Output.KeepControlCharacters || !IsTerminal(s.File) {
		return text
	}
	text = s.partialText + text
	whole := len(text) - termtext.TrailingPartialSequenceBytes(text)
	s.partialText = text[whole:]
	return s.escape(text[:whole])
}

// FlushIncompleteText returns the incomplete end of the stream. Call it when the stream has ended.
func (s *JobOutputEscaper) FlushIncompleteText() string {
	part := s.partialText
	s.partialText = ""
	return s.escape(part)
}

func (s *JobOutputEscaper) escape(text string) string {
	if s.KeepCarriageReturns { // programs use carriage returns to redraw a progress line
		return termtext.EscapeControlCharactersExcept(text, "\n\t\r", true)
	}
	return termtext.EscapeControlCharacters(text)
}

// TTYOutputConverter converts the output of a job that has a terminal. The result is the lines of text that such a
// terminal shows in the end.
type TTYOutputConverter struct {
	Renderer           termtext.Renderer
	ShowUnfinishedLine bool   // show the unfinished line, and redraw it when it changes
	unfinishedLine     string // the unfinished line as displayed
}

// ConvertPiece processes the next piece of the output and returns what to print. The parameter escape is a function
// that escapes a text for the file to which the caller prints.
func (t *TTYOutputConverter) ConvertPiece(text string, escape func(string) string) string {
	lines := t.Renderer.Write(text)
	if !t.ShowUnfinishedLine {
		return escape(lines)
	}
	part := t.Renderer.CurrentLine()
	before := t.unfinishedLine
	t.unfinishedLine = part
	if added, ok := strings.CutPrefix(lines+part, before); ok {
		return escape(added)
	}
	return "\r\x1b[K" + escape(lines+part)
}

// FlushUnfinishedLine returns what to print at the end of the output.
func (t *TTYOutputConverter) FlushUnfinishedLine(escape func(string) string) string {
	rest := t.Renderer.Finish()
	if t.ShowUnfinishedLine {
		rest = strings.TrimPrefix(rest, t.unfinishedLine)
	}
	t.unfinishedLine = ""
	return escape(rest)
}
