package top

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// page is a text that covers the whole screen. It consists of paragraphs, or of the output of a job.
type page struct {
	title      string
	paragraphs []string
	job        *control.Job // job whose output the page shows; nil for paragraphs
	firstLine  int          // index of the first visible line
	followEnd  bool         // scroll to the end when output is added
}

// lines returns the lines of the page, wrapped to the window's width.
func (p *page) lines(m *model) (wrappedLines []string) {
	if p.job == nil {
		for _, text := range p.paragraphs {
			wrappedLines = append(wrappedLines, termtext.WrapLines(m.width, text)...)
		}
		return wrappedLines
	}
	if m.output.readError != "" {
		return termtext.WrapLines(m.width, m.output.readError)
	}
	for _, l := range m.output.allLines() {
		wrappedLines = append(wrappedLines, termtext.Truncate(l.text, m.width))
	}
	return wrappedLines
}

// clampScroll replaces the page's job by its newest state and keeps the scroll position within the page.
func (p *page) clampScroll(m *model) {
	if p.job != nil {
		if j := m.job(p.job.ID); j != nil {
			p.job = j
		}
	}
	last := max(len(p.lines(m))-m.pageRows(), 0)
	if p.followEnd {
		p.firstLine = last
	}
	p.firstLine = max(min(p.firstLine, last), 0)
}

// pageRows returns how many lines of a page fit in the window: its height without the title line and the line
// that lists the keys.
func (m *model) pageRows() int { return m.height - 2 }

// handlePageKey handles a key on a page.
func (m *model) handlePageKey(k keyPress) []effect {
	p := m.page
	by := 0
	switch k.name {
	case "j", "down", "enter":
		by = 1
	case "k", "up":
		by = -1
	case "pgdown", "space":
		by = m.pageRows()
	case "pgup":
		by = -m.pageRows()
	case "g", "home":
		by = -p.firstLine
	case "G", "end":
		by = len(p.lines(m))
	case "q", "esc", "?":
		m.page = nil
		return nil
	}
	if by == 0 {
		return nil
	}
	p.firstLine += by
	p.followEnd = p.job != nil && p.firstLine >= len(p.lines(m))-m.pageRows()
	return nil
}
