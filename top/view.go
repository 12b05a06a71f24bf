package top

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
)

// Sizes of windows.
const (
	leastWidth  = 40 // smaller windows show only a message
	leastHeight = 10
	lowWindow   = 16   // height below which empty lines, heads and output are left out
	mostWidth   = 1000 // the screen takes memory in proportion to the size, so a larger one is not believed
	mostHeight  = 500
	mostCells   = 1 << 17 // width times height; such a screen takes about 40 MiB
)

// How texts are painted: parameters of a colour, or of what is no colour.
const (
	bold  = "1"
	faint = "2"
	amber = "33"
)

// uncoloured finds what painted has added.
var uncoloured = regexp.MustCompile("\x1b\\[[0-9;]*m")

func painted(text, as string) string {
	if as == "" || text == "" {
		return text
	}
	return "\x1b[" + as + "m" + text + "\x1b[0m"
}

// tooSmall reports whether the window has no room for the screen.
func (m *model) tooSmall() bool { return m.width < leastWidth || m.height < leastHeight }

// heights are how many lines the list has, its head and the line of what is missing among them, and the output
// below, its title among them.
func (m *model) heights() (list, output int) {
	foot := len(m.foot())
	if m.height < lowWindow {
		return max(m.height-2-foot, 1), 0 // two lines above
	}
	body := m.height - aboveLists - 1 - foot // the one names the lists
	output = max(body/3, leastOutput)
	return body - output, output
}

// leastOutput is how many lines the output has, where it is shown: an empty one, its title, and its end.
const leastOutput = 4

// room is whether the list has a head, and how many rows it shows. One line more tells of those that are not
// shown.
func (m *model) room() (head bool, rows int) {
	list, output := m.heights()
	if head = output > 0; head {
		list--
	}
	return head, max(list-1, 1)
}

// view is the whole screen: as many lines as the window has, none of them wider.
func (m *model) view() string {
	if m.width == 0 {
		return "" // it is not known yet
	}
	if m.tooSmall() {
		return strings.Join(cli.Fold(max(m.width, 1), fmt.Sprintf("top needs a window of %dx%d; this one is %dx%d", leastWidth, leastHeight, m.width, m.height)), "\n")
	}
	var lines []string
	if m.page != nil {
		lines = m.pageView()
	} else {
		lines = m.listView()
	}
	foot := m.foot()
	for len(lines) < m.height-len(foot) {
		lines = append(lines, "")
	}
	lines = lines[:m.height-len(foot)]
	if m.lost != nil {
		for i := range lines {
			lines[i] = painted(uncoloured.ReplaceAllString(lines[i], ""), faint)
		}
		lines[0] = painted(m.lossLine(), amber)
	}
	return strings.Join(append(lines, foot...), "\n")
}

// lossLine says that the service does not answer, and since when.
func (m *model) lossLine() string {
	again := "retrying now"
	if wait := m.lost.next.Sub(m.now); wait > 0 && !m.fetching {
		again = "retrying in " + cli.Span(wait)
	}
	return cli.Cut("no answer since "+m.lost.since.Format("15:04:05")+", "+again+": "+m.lost.why, m.width)
}

// between puts a text at the left of a line and another one at its right; the left one is cut.
func (m *model) between(left, right string) string {
	left = cli.Cut(left, m.width-cli.Room(right)-1)
	return left + strings.Repeat(" ", m.width-cli.Room(left)-cli.Room(right)) + right
}

func (m *model) listView() []string {
	head, rows := m.room()
	lines := m.verdict(head)
	lines = append(lines, m.tabs())
	lines = append(lines, m.tableView(head, rows)...)
	list, output := m.heights()
	above := len(lines)
	if head {
		for ; above < aboveLists+1+list; above++ {
			lines = append(lines, "")
		}
		lines = append(lines, m.outputView(output)...)
	}
	return lines
}

// aboveLists is how many lines stand above the lists, where there is room: the verdict, and how many jobs
// are in each state.
const aboveLists = 3

// verdict returns the lines above the lists: the status line and, if whole is set, the counts. The clock is at the right
// end of the first line that has room for it.
func (m *model) verdict(whole bool) []string {
	words := m.words()
	level, text, colour := words.Verdict()
	said, clock := painted(level, colour)+text, m.now.Format("15:04:05")
	if !whole {
		return []string{m.between(said, clock)}
	}
	if right := clock + " " + cli.Cut(cli.Shown(m.who.User+"@"+m.host), m.width/4); cli.Room(said)+1+cli.Room(right) <= m.width {
		clock = right
	}
	lines := append(cli.Fold(m.width, said), cli.Fold(m.width, words.Counts())...)
	lines = append(lines, make([]string, aboveLists)...)[:aboveLists]
	at := slices.IndexFunc(lines, func(l string) bool { return cli.Room(l)+1+cli.Room(clock) <= m.width })
	lines[max(at, 0)] = m.between(lines[max(at, 0)], clock)
	return lines
}

// tabs names the lists, the chosen one in brackets, with how many jobs they are of.
func (m *model) tabs() string {
	var b strings.Builder
	for id, l := range listings() {
		text := fmt.Sprintf("%d %s", id+1, l.name)
		if m.width < narrowWindow {
			text = l.short
		}
		if l.states != nil {
			text += fmt.Sprintf(" %d", m.counted(listID(id)))
		}
		if listID(id) == m.list {
			b.WriteString("[" + painted(text, bold) + "]")
			continue
		}
		b.WriteString(" " + text + " ")
	}
	return cli.Cut(strings.TrimRight(b.String(), " "), m.width)
}

// tableView is the chosen list, and a line that tells what is not shown of it.
func (m *model) tableView(head bool, most int) (lines []string) {
	t := m.table()
	p := m.places[m.list]
	to := min(p.offset+most, len(t.rows))
	shown := t.rows[p.offset:to]
	cells := make([][]string, len(shown))
	for i := range shown {
		cells[i] = shown[i].cells
	}
	const marks = 2 // columns before the table
	list := cli.TableLines(m.width-marks, t.head, cells)
	if len(shown) == 0 {
		empty := listings()[m.list].empty
		if m.find != "" {
			empty = "no match for " + cli.Shown(m.find)
			if t.more != 0 { // rows that were not fetched
				empty = "no match for " + cli.Shown(m.find) + " in the rows shown; all: " + t.all
			}
		}
		return []string{cli.Cut("  "+empty, m.width)}
	}
	if head {
		lines = append(lines, "  "+painted(list[0], faint))
	}
	for i, line := range list[1:] {
		r := &shown[i]
		mark := []byte("  ")
		if p.offset+i == p.index {
			mark[0] = '>'
		}
		if m.marked[r.id] {
			mark[1] = '*'
		}
		if p.offset+i == p.index {
			line = painted(string(mark)+line, strings.Trim(bold+";"+r.colour, ";"))
		} else {
			line = string(mark) + painted(line, r.colour)
		}
		lines = append(lines, line)
	}
	if text := m.moreText(&t, p.offset, to); text != "" {
		lines = append(lines, cli.Cut("  "+text, m.width))
	}
	return lines
}

// moreText tells what is not shown of a list.
func (m *model) moreText(t *table, from, to int) string {
	var parts []string
	if m.find != "" {
		parts = append(parts, "matching "+cli.Shown(m.find)+"; Esc shows all")
	}
	if from > 0 {
		parts = append(parts, fmt.Sprintf("%d above", from))
	}
	if below := len(t.rows) - to; below > 0 {
		parts = append(parts, fmt.Sprintf("%d below", below))
	}
	switch {
	case t.more == unknown:
		parts = append(parts, "more: "+t.all)
	case t.more > 0 && m.find != "":
		parts = append(parts, fmt.Sprintf("%d jobs not searched: %s", t.more, t.all))
	case t.more > 0:
		parts = append(parts, fmt.Sprintf("%d more: %s", t.more, t.all))
	}
	return strings.Join(parts, ", ")
}

// outputView is what the chosen row is about: a job with the end of its output.
func (m *model) outputView(height int) []string {
	r := m.chosen()
	if r == nil || r.job == nil {
		return nil
	}
	lines := []string{"", cli.Cut(m.jobLine(r.job), m.width)}
	room := height - len(lines)
	switch {
	case !m.reads(r.job):
		return append(lines, cli.Cut("  you may not read the output of this job", m.width))
	case m.out.why != "" && m.out.of.id == r.job.ID:
		return append(lines, cli.Cut("  "+m.out.why, m.width))
	}
	if m.out.of.id != r.job.ID { // that of a job which was chosen before the service was lost
		return lines
	}
	list := m.out.shown()
	for _, l := range list[max(len(list)-room, 0):] {
		lines = append(lines, cli.Cut("  "+m.timed(l), m.width))
	}
	return lines
}

// timed is a line of output, after its time where there is room for that.
func (m *model) timed(l line) string {
	if m.width < narrowWindow || l.at == 0 {
		return l.text
	}
	return painted(queue.Millis(l.at).Time().In(m.now.Location()).Format("15:04:05"), faint) + " " + l.text
}

// jobLine is one job in a line: how it is, and how far.
func (m *model) jobLine(j *control.Job) string {
	mark, colour := cli.Marked(j)
	text := cli.Shown(cli.Standing(j))
	if j.StartedAt != 0 {
		text += fmt.Sprintf(", attempt %d of %d", max(cli.Attempts(j), 1), j.MaxAttempts)
	}
	if j.PausedAt != 0 {
		text += ", " + m.words().Runs(j)
	}
	if j.PID != nil {
		text += fmt.Sprintf(", pid %d", *j.PID)
	}
	if j.Error != nil {
		text += ", " + cli.Shown(*j.Error)
	}
	if j.Progress != nil {
		text += "  " + bar(j, longBar) + " " + cli.Shown(j.Progress.Text)
	}
	return painted(cli.Shown(mark), colour) + " " + text + "  " + painted(cli.Shown(cli.Title(j)), faint)
}

// pageView is the page that is on the whole screen.
func (m *model) pageView() []string {
	p := m.page
	title := painted(cli.Cut(p.title, m.width), bold)
	if p.job != nil {
		title = cli.Cut(m.jobLine(p.job), m.width)
	}
	lines := p.lines(m)
	return append([]string{title}, lines[min(p.top, len(lines)):min(p.top+m.pageRows(), len(lines))]...)
}

// mostFoot is how many lines a question, or what came of a key, has at most.
const mostFoot = 3

// foot are the last lines: a question, what came of the last key, or the keys.
func (m *model) foot() []string {
	text, as := "", ""
	switch {
	case m.asks != nil:
		text, as = m.asks.text(), bold
	case len(m.acts) > 0:
		text = strings.TrimSpace(m.acts[0].verb.name+" "+m.acts[0].about()) + cli.Sign(" …")
	case m.said != "":
		text = m.said
	case m.page != nil:
		return []string{m.keys([]offer{{"j k", "", "scroll"}, {"g G", "", "top, end"}}, offer{"q", "", "back"})}
	default:
		return []string{m.keys(append([]offer{{"j k", "", "select"}}, m.offers()...), offer{"?", "", "keys"}, offer{"q", "", "quit"})}
	}
	lines := cli.Fold(m.width, text)
	if len(lines) > mostFoot {
		lines = append(lines[:mostFoot-1], cli.Cut(strings.Join(lines[mostFoot-1:], " "), m.width))
	}
	for i := range lines {
		lines[i] = painted(lines[i], as)
	}
	return lines
}

// keys are the keys that are offered, as many as there is room for before the last ones.
func (m *model) keys(list []offer, last ...offer) string {
	const gap = "  "
	texts := func(list []offer) (texts []string) {
		for _, o := range list {
			texts = append(texts, o.key+" "+o.does)
		}
		return texts
	}
	end := strings.Join(texts(last), gap)
	text := ""
	for _, one := range texts(list) {
		if cli.Room(text)+cli.Room(one)+len(gap)+cli.Room(end) > m.width {
			break
		}
		text += one + gap
	}
	return text + end
}
