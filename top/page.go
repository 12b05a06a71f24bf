package top

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// fullScreenPage is a text that covers the whole screen. It consists of paragraphs, or of the output of a job.
type fullScreenPage struct {
	title            string
	paragraphs       []string
	job              *control.Job // job whose output the page shows; nil for paragraphs
	firstVisibleLine int          // index of the first visible line
	followsEnd       bool         // scroll to the end when output is added
}

// wrappedLines returns the lines of the page, wrapped to the window's width.
func (p *fullScreenPage) wrappedLines(m *model) (wrappedLines []string) {
	if p.job == nil {
		for _, text := range p.paragraphs {
			wrappedLines = append(wrappedLines, termtext.WrapLines(m.width, text)...)
		}
		return wrappedLines
	}
	if m.followedOutput.readError != "" {
		return termtext.WrapLines(m.width, m.followedOutput.readError)
	}
	for _, l := range m.followedOutput.allLines() {
		wrappedLines = append(wrappedLines, termtext.Truncate(l.text, m.width))
	}
	return wrappedLines
}

// refreshAndClampScroll updates the job of the page, if the page shows one, to the job's newest state. It also keeps
// the scroll position within the page.
func (p *fullScreenPage) refreshAndClampScroll(m *model) {
	if p.job != nil {
		if j := m.findJob(p.job.ID); j != nil {
			p.job = j
		}
	}
	last := max(len(p.wrappedLines(m))-m.visiblePageLineCount(), 0)
	if p.followsEnd {
		p.firstVisibleLine = last
	}
	p.firstVisibleLine = max(min(p.firstVisibleLine, last), 0)
}

// visiblePageLineCount returns how many lines of a page fit in the window: its height without the title line and the
// line that lists the keys.
func (m *model) visiblePageLineCount() int { return m.height - 2 }

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
		by = m.visiblePageLineCount()
	case "pgup":
		by = -m.visiblePageLineCount()
	case "g", "home":
		by = -p.firstVisibleLine
	case "G", "end":
		by = len(p.wrappedLines(m))
	case "q", "esc", "?":
		m.page = nil
		return nil
	}
	if by == 0 {
		return nil
	}
	p.firstVisibleLine += by
	p.followsEnd = p.job != nil && p.firstVisibleLine >= len(p.wrappedLines(m))-m.visiblePageLineCount()
	return nil
}
