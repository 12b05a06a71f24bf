package top

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
)

// page is text on the whole screen: that of paragraphs, or the output of a job.
type page struct {
	title      string
	paragraphs []string
	job        *control.Job
	top        int  // the first line that is shown
	end        bool // the last line stays in sight
}

// lines are the page, in a window of a width.
func (p *page) lines(m *model) (list []string) {
	if p.job == nil {
		for _, text := range p.paragraphs {
			list = append(list, cli.Fold(m.width, text)...)
		}
		return list
	}
	if m.out.why != "" {
		return cli.Fold(m.width, m.out.why)
	}
	for _, l := range m.out.shown() {
		list = append(list, cli.Cut(l.text, m.width))
	}
	return list
}

// settle keeps the page within its lines, and knows the job as it is now.
func (p *page) settle(m *model) {
	if p.job != nil {
		if j := m.job(p.job.ID); j != nil {
			p.job = j
		}
	}
	last := max(len(p.lines(m))-m.pageRows(), 0)
	if p.end {
		p.top = last
	}
	p.top = max(min(p.top, last), 0)
}

// pageRows is how many lines of a page are shown: all but its title and the keys.
func (m *model) pageRows() int { return m.height - 2 }

// turn takes a key on a page.
func (m *model) turn(k key) []effect {
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
		by = -p.top
	case "G", "end":
		by = len(p.lines(m))
	case "q", "esc", "?":
		m.page = nil
		return nil
	}
	if by == 0 {
		return nil
	}
	p.top += by
	p.end = p.job != nil && p.top >= len(p.lines(m))-m.pageRows()
	return nil
}
