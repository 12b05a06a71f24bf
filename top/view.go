package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// These constants are sizes of windows in columns and lines.
const (
	minWindowWidth  = 40 // smaller windows show only a message
	minWindowHeight = 10
	lowWindowHeight = 16   // below this height, empty lines, headings and output are omitted
	maxScreenWidth  = 1000 // larger sizes are reduced, because the memory of the screen grows with its size
	maxScreenHeight = 500
	maxScreenCells  = 1 << 17 // maximum of width times height; a screen of that size uses about 40 MiB
)

// These constants are the SGR parameters of colours and styles.
const (
	sgrBold  = "1"
	sgrFaint = "2"
	sgrAmber = "33"
)

// applyStyle returns a text in a style, which consists of SGR parameters.
func applyStyle(text, sgrParams string) string {
	if sgrParams == "" || text == "" {
		return text
	}
	return "\x1b[" + sgrParams + "m" + text + "\x1b[0m"
}

// isTooSmall reports whether the window is too small to show the lists.
func (m *model) isTooSmall() bool { return m.width < minWindowWidth || m.height < minWindowHeight }

// paneHeights returns the height of the list and of the output pane below it. The list's height includes its
// heading and the line about rows that are not shown. The pane's height includes its title.
func (m *model) paneHeights() (listHeight, outputHeight int) {
	footerHeight := len(m.footerLines())
	if m.height < lowWindowHeight {
		return max(m.height-2-footerHeight, 1), 0 // 2 lines are above the list
	}
	body := m.height - linesAboveLists - 1 - footerHeight // 1 line contains the names of the lists
	outputHeight = max(body/3, minOutputHeight)
	return body - outputHeight, outputHeight
}

// minOutputHeight is the minimum height of the output pane: an empty line, the title and two lines of output.
const minOutputHeight = 4

// listLayout reports whether the list has a heading, and how many rows fit in the list. One line below the rows is kept
// free for a text that contains the number of hidden rows.
func (m *model) listLayout() (hasHeading bool, rowCount int) {
	list, output := m.paneHeights()
	if hasHeading = output > 0; hasHeading {
		list--
	}
	return hasHeading, max(list-1, 1)
}

// view returns the whole screen. The screen has exactly as many lines as the window, and no line is
// wider than the window.
func (m *model) view() string {
	if m.width == 0 {
		return "" // the size is still unknown
	}
	if m.isTooSmall() {
		return strings.Join(termtext.WrapLines(max(m.width, 1),
			fmt.Sprintf("top needs a window of %dx%d; this one is %dx%d", minWindowWidth, minWindowHeight, m.width, m.height)),
			"\n")
	}
	var lines []string
	if m.page != nil {
		lines = m.pageView()
	} else {
		lines = m.listView()
	}
	footer := m.footerLines()
	for len(lines) < m.height-len(footer) {
		lines = append(lines, "")
	}
	lines = lines[:m.height-len(footer)]
	if m.outage != nil {
		for i := range lines {
			lines[i] = applyStyle(termtext.RemoveColours(lines[i]), sgrFaint)
		}
		lines[0] = applyStyle(m.outageLine(), sgrAmber)
	}
	return strings.Join(append(lines, footer...), "\n")
}

// outageLine returns the line about a service that does not reply. The line says since when there is no reply,
// and when the next attempt is.
func (m *model) outageLine() string {
	retry := "retrying now"
	if wait := m.outage.retryAt.Sub(m.currentTime); wait > 0 && !m.isFetching {
		retry = "retrying in " + present.RoughDurationText(wait)
	}
	return termtext.Truncate("no answer since "+m.outage.startedAt.Format("15:04:05")+", "+retry+": "+m.outage.reason,
		m.width)
}

// alignEnds returns a line as wide as the window, with left at its start and right at its end. It shortens
// left if both do not fit.
func (m *model) alignEnds(left, right string) string {
	left = termtext.Truncate(left, m.width-termtext.DisplayWidth(right)-1)
	return left + strings.Repeat(" ", m.width-termtext.DisplayWidth(left)-termtext.DisplayWidth(right)) + right
}

func (m *model) listView() []string {
	head, rows := m.listLayout()
	lines := m.statusLines(head)
	lines = append(lines, m.tabsLine())
	lines = append(lines, m.tableView(head, rows)...)
	list, output := m.paneHeights()
	if head {
		for len(lines) < linesAboveLists+1+list {
			lines = append(lines, "")
		}
		lines = append(lines, m.outputView(output)...)
	}
	return lines
}

// linesAboveLists is the number of lines above the lists in windows that are high enough. These lines show the
// status line and the number of jobs in each state.
const linesAboveLists = 3

// statusLines returns the lines above the lists: the status line and, if withJobCounts is true, the numbers of jobs.
// The clock is at the right end of the first line that has space for it.
func (m *model) statusLines(withJobCounts bool) []string {
	level, text, colour := m.cellFormatter().HealthLine()
	status, clock := applyStyle(level, colour)+text, m.currentTime.Format("15:04:05")
	if !withJobCounts {
		return []string{m.alignEnds(status, clock)}
	}
	user := termtext.Truncate(termtext.TerminalSafeText(m.whoami.User+"@"+m.hostName), m.width/4)
	if right := clock + " " + user; termtext.DisplayWidth(status)+1+termtext.DisplayWidth(right) <= m.width {
		clock = right
	}
	lines := append(termtext.WrapLines(m.width, status),
		termtext.WrapLines(m.width, present.StatusJobCountsText(&m.snapshot.screen.Status))...)
	lines = append(lines, make([]string, linesAboveLists)...)[:linesAboveLists]
	free := slices.IndexFunc(lines, func(l string) bool {
		return termtext.DisplayWidth(l)+1+
			termtext.DisplayWidth(clock) <= m.width
	})
	lines[max(free, 0)] = m.alignEnds(lines[max(free, 0)], clock)
	return lines
}

// tabsLine returns the line of tabs: the name of each list and its number of jobs. The current list is in
// brackets.
func (m *model) tabsLine() string {
	var b strings.Builder
	for id, l := range listDefinitions() {
		text := fmt.Sprintf("%d %s", id+1, l.name)
		if m.width < narrowWindowWidth {
			text = l.shortName
		}
		if l.jobStates != nil {
			text += fmt.Sprintf(" %d", m.jobCountOfList(listID(id)))
		}
		if listID(id) == m.currentList {
			b.WriteString("[" + applyStyle(text, sgrBold) + "]")
			continue
		}
		b.WriteString(" " + text + " ")
	}
	return termtext.Truncate(strings.TrimRight(b.String(), " "), m.width)
}

// tableView returns the lines of the current list: a heading if hasHeading is true, at most maxRows rows, and a
// line about the rows that are not shown.
func (m *model) tableView(hasHeading bool, maxRows int) (lines []string) {
	t := m.currentTable()
	p := m.selectionByList[m.currentList]
	to := min(p.firstVisibleIndex+maxRows, len(t.rows))
	shown := t.rows[p.firstVisibleIndex:to]
	cells := make([][]string, len(shown))
	for i := range shown {
		cells[i] = shown[i].cells
	}
	const marksWidth = 2 // columns before the table, which show the selected row and marked rows
	list := termtext.TableLines(m.width-marksWidth, t.headings, cells)
	if len(shown) == 0 {
		empty := listDefinitions()[m.currentList].emptyText
		if m.searchText != "" {
			empty = "no match for " + termtext.TerminalSafeText(m.searchText)
			if t.hiddenRowCount != 0 { // some rows were not fetched
				empty += " in the rows shown; to see all: " + listDefinitions()[m.currentList].printAllCommand
			}
		}
		return []string{termtext.Truncate("  "+empty, m.width)}
	}
	if hasHeading {
		lines = append(lines, "  "+applyStyle(list[0], sgrFaint))
	}
	for i, line := range list[1:] {
		r := &shown[i]
		mark := " "
		if m.markedIDs[r.id] {
			mark = "*"
		}
		if p.firstVisibleIndex+i == p.rowIndex {
			line = applyStyle(">"+mark+line, strings.Trim(sgrBold+";"+r.colour, ";"))
		} else {
			line = " " + mark + applyStyle(line, r.colour)
		}
		lines = append(lines, line)
	}
	if text := m.hiddenRowsText(&t, p.firstVisibleIndex, to); text != "" {
		lines = append(lines, termtext.Truncate("  "+text, m.width))
	}
	return lines
}

// hiddenRowsText says how many rows of a list are not shown. The rows t.rows[firstShown:endShown] are shown.
func (m *model) hiddenRowsText(t *listTable, firstShown, endShown int) string {
	var parts []string
	if m.searchText != "" {
		parts = append(parts, "matching \""+termtext.TerminalSafeText(m.searchText)+"\" (Esc: all)")
	}
	if firstShown > 0 {
		parts = append(parts, fmt.Sprintf("%d more above", firstShown))
	}
	if below := len(t.rows) - endShown; below > 0 {
		parts = append(parts, fmt.Sprintf("%d more below", below))
	}
	switch command := listDefinitions()[m.currentList].printAllCommand; {
	case t.hiddenRowCount == unknownHiddenRowCount:
		parts = append(parts, "more: "+command)
	case t.hiddenRowCount > 0 && m.searchText != "":
		parts = append(parts, fmt.Sprintf("%d not searched; see: %s", t.hiddenRowCount, command))
	case t.hiddenRowCount > 0:
		parts = append(parts, fmt.Sprintf("%d more: %s", t.hiddenRowCount, command))
	}
	return strings.Join(parts, termtext.TextForLocale(" · "))
}

// outputView returns the pane about the selected job, with the last lines of the job's output.
func (m *model) outputView(height int) []string {
	r := m.selectedRow()
	if r == nil || r.job == nil {
		return nil
	}
	lines := []string{"", termtext.Truncate(m.jobStateLine(r.job), m.width)}
	var texts []string
	switch {
	case !m.mayReadOutput(r.job):
		texts = []string{"you may not read the output of this job"}
	// while the service does not reply, the followed output may still be that of a job that was selected earlier
	case m.followedOutput.source.jobID != r.job.ID:
	case m.followedOutput.readError != "":
		texts = []string{m.followedOutput.readError}
	default:
		list := m.followedOutput.allLines()
		for _, l := range list[max(len(list)-height+len(lines), 0):] {
			texts = append(texts, m.outputLineWithTime(l))
		}
	}
	for _, text := range texts {
		lines = append(lines, termtext.Truncate("  "+text, m.width))
	}
	return lines
}

// outputLineWithTime returns a line of output. In wide windows, the time of the line precedes it.
func (m *model) outputLineWithTime(l outputLine) string {
	if m.width < narrowWindowWidth || l.time == 0 {
		return l.text
	}
	return applyStyle(queue.UnixMillis(l.time).Time().In(m.currentTime.Location()).Format("15:04:05"), sgrFaint) + " " +
		l.text
}

// jobStateLine describes the state and the progress of a job in one line.
func (m *model) jobStateLine(j *control.Job) string {
	text := termtext.TerminalSafeText(present.StateWithReason(j))
	if j.StartedAt != 0 {
		text += fmt.Sprintf(", attempt %d of %d", max(present.UsedAttemptCount(j), 1), j.MaxAttempts)
	}
	if j.PausedAt != 0 {
		text += ", " + m.cellFormatter().RunTimeText(j)
	}
	if j.PID != nil {
		text += fmt.Sprintf(", pid %d", *j.PID)
	}
	if j.Error != nil {
		text += ", " + termtext.TerminalSafeText(*j.Error)
	}
	if j.Progress != nil {
		text += "  " + progressBar(j, longBarWidth) + " " + termtext.TerminalSafeText(j.Progress.Text)
	}
	id := applyStyle(termtext.TerminalSafeText(present.JobIDWithStateSign(j)), present.SignOfState(j.State).ColourCode)
	return id + " " + text + "  " + applyStyle(termtext.TerminalSafeText(present.JobTitle(j)), sgrFaint)
}

// pageView returns the lines of a full-screen page.
func (m *model) pageView() []string {
	p := m.page
	title := applyStyle(termtext.Truncate(p.title, m.width), sgrBold)
	if p.job != nil {
		title = termtext.Truncate(m.jobStateLine(p.job), m.width)
	}
	lines := p.wrappedLines(m)
	return append([]string{title}, lines[min(p.firstVisibleLine, len(lines)):min(p.firstVisibleLine+
		m.visiblePageLineCount(), len(lines))]...)
}

// maxFooterLines is the maximum number of lines of a question or message at the bottom.
const maxFooterLines = 3

// footerLines returns the last lines of the screen: a question, a message about the last key, or the
// list of keys.
func (m *model) footerLines() []string {
	text, style := "", ""
	switch {
	case m.question != nil:
		text, style = m.question.displayText(), sgrBold
	case len(m.pendingActions) > 0:
		text = strings.TrimSpace(m.pendingActions[0].verb.name+" "+m.pendingActions[0].describeObjects()) +
			termtext.TextForLocale(" …")
	case m.notice != "":
		text = m.notice
	case m.page != nil:
		return []string{m.keyHelpLine([]keyHelp{{"j k", "scroll"}, {"g G", "top, end"}}, keyHelp{"q", "back"})}
	default:
		return []string{m.keyHelpLine(append([]keyHelp{{"j k", "select"}}, m.availableKeys()...),
			keyHelp{"?", "keys"},
			keyHelp{"q", "quit"})}
	}
	lines := termtext.WrapLines(m.width, text)
	if len(lines) > maxFooterLines {
		lines = append(lines[:maxFooterLines-1], termtext.Truncate(strings.Join(lines[maxFooterLines-1:], " "), m.width))
	}
	for i := range lines {
		lines[i] = applyStyle(lines[i], style)
	}
	return lines
}

// keyHelpLine returns a line that explains keys. It contains all of requiredLastKeys, at the end, and before them as
// many keys of the list as fit.
func (m *model) keyHelpLine(optionalKeys []keyHelp, requiredLastKeys ...keyHelp) string {
	const gap = "  "
	texts := func(list []keyHelp) (texts []string) {
		for _, o := range list {
			texts = append(texts, o.key+" "+o.action)
		}
		return texts
	}
	end := strings.Join(texts(requiredLastKeys), gap)
	text := ""
	for _, one := range texts(optionalKeys) {
		if termtext.DisplayWidth(text)+termtext.DisplayWidth(one)+len(gap)+termtext.DisplayWidth(end) > m.width {
			break
		}
		text += one + gap
	}
	return text + end
}
