package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// question is a question to the user in the last line of the screen.
type question struct {
	kind          questionKind
	pendingAction actionEffect // action to start after the answer
	typedAnswer   string       // text that the user has typed
}

// questionKind says what the user must answer.
type questionKind int

// These constants are the kinds of questions: a confirmation, a number, or a text to find.
const (
	askConfirmation questionKind = iota
	askNumber
	askSearch
)

// maxAnswerBytes is the maximum length of an answer in bytes.
const maxAnswerBytes = 64

// appendText appends typed text to an answer, if the answer stays short enough.
func (q *question) appendText(text string) {
	text = termtext.TerminalSafeText(text)
	if q.kind == askSearch && text == "" {
		text = " "
	}
	if q.kind != askConfirmation && len(q.typedAnswer)+len(text) <= maxAnswerBytes {
		q.typedAnswer += text
	}
}

// displayText returns the question in its displayed form.
func (q *question) displayText() string {
	prompt := "/"
	switch q.kind {
	case askConfirmation:
		return q.pendingAction.verb.name + " " + q.pendingAction.describeObjects() + "? (y/n)"
	case askNumber:
		prompt = "priority of " + q.pendingAction.describeObjects() + ": "
	}
	return prompt + q.typedAnswer + termtext.TextForLocale(answerCursor)
}

// answerCursor marks the position in an answer at which typed text is inserted.
const answerCursor = "▏"

// handleKey handles a key and returns the effects (requests to the shell) that the key causes.
func (m *model) handleKey(k keyPress) []effect {
	switch k.name {
	case "ctrl+c":
		return []effect{quitEffect{}}
	case "ctrl+z":
		return []effect{suspendEffect{}}
	case "ctrl+l":
		return []effect{redrawEffect{}}
	}
	if m.isTooSmall() {
		if k.name == "q" {
			return []effect{quitEffect{}}
		}
		return nil
	}
	if m.question != nil {
		return m.handleAnswerKey(k)
	}
	m.notice = ""
	if m.page != nil {
		return m.handlePageKey(k)
	}
	return m.handleListKey(k)
}

// handleAnswerKey handles a key that the user presses while a question is on the screen.
func (m *model) handleAnswerKey(k keyPress) []effect {
	q := m.question
	switch {
	case k.name == "esc" || q.kind == askConfirmation && k.name == "n":
		m.question = nil
		if q.kind == askSearch {
			m.searchText = ""
		}
	case q.kind == askConfirmation && k.name == "y":
		m.question = nil
		return m.addPendingAction(q.pendingAction)
	case q.kind == askConfirmation: // ignore all other keys: none of them answers a confirmation
	case k.name == "enter":
		m.question = nil
		if q.kind == askSearch {
			return m.requestFetch()
		}
		n, err := strconv.ParseInt(strings.TrimSpace(q.typedAnswer), 10, 64)
		if err != nil {
			m.notice = fmt.Sprintf("%q is not a priority; type a whole number", q.typedAnswer)
			return nil
		}
		q.pendingAction.newPriority = n
		return m.addPendingAction(q.pendingAction)
	case k.name == "backspace":
		if runes := []rune(q.typedAnswer); len(runes) > 0 {
			q.typedAnswer = string(runes[:len(runes)-1])
		}
	default:
		q.appendText(k.text)
	}
	m.applySearch()
	return nil
}

// applySearch filters the rows by the search text while the user types it.
func (m *model) applySearch() {
	if m.question != nil && m.question.kind == askSearch {
		m.searchText = m.question.typedAnswer
	}
}

// handleListKey handles a key that moves in a list or between lists.
func (m *model) handleListKey(k keyPress) []effect {
	p := &m.selectionByList[m.currentList]
	_, page := m.listLayout()
	switch k.name {
	case "j", "down":
		m.moveSelection(1)
	case "k", "up":
		m.moveSelection(-1)
	case "pgdown":
		m.moveSelection(page)
	case "pgup":
		m.moveSelection(-page)
	case "g", "home":
		m.moveSelection(-p.rowIndex)
	case "G", "end":
		m.moveSelection(len(m.currentTable().rows))
	case "tab":
		return m.switchList((m.currentList + 1) % listCount)
	case "shift+tab":
		return m.switchList((m.currentList + listCount - 1) % listCount)
	case "1", "2", "3", "4", "5":
		return m.switchList(listID(k.name[0] - '1'))
	case "x", "space":
		if p.rowID != "" {
			if m.markedIDs[p.rowID] = !m.markedIDs[p.rowID]; !m.markedIDs[p.rowID] {
				delete(m.markedIDs, p.rowID)
			}
			m.moveSelection(1)
		}
	case "/":
		m.question = &question{kind: askSearch, typedAnswer: m.searchText}
	case "esc":
		m.searchText = ""
		clear(m.markedIDs)
	case "?":
		m.page = m.helpPage()
	case "q":
		return []effect{quitEffect{}}
	default:
		return m.handleActionKey(k)
	}
	return nil
}

// handleActionKey handles a key for an action on the selected row or on the service.
func (m *model) handleActionKey(k keyPress) []effect {
	r := m.selectedRow()
	key := k.name
	if key == "enter" {
		key = "f"
	}
	for _, h := range m.availableKeys() {
		if h.key != key {
			continue
		}
		switch h.key {
		case "f":
			m.page = &fullScreenPage{job: r.job, followsEnd: true}
			return nil
		case "w":
			m.notice = "why " + termtext.TerminalSafeText(r.id) + termtext.TextForLocale(" …")
			return []effect{explainJobEffect{r.id}}
		case "e":
			return []effect{editJobEffect{r.id}}
		}
	}
	if v := m.verbForKey(k.name); v != nil {
		return m.confirmOrStartVerb(v)
	}
	if k.text != "" {
		m.notice = termtext.TerminalSafeText(k.text) + " does nothing here; ? shows the keys"
	}
	return nil
}

// moveSelection moves the selection down by a number of rows. If the number is negative, it moves up.
func (m *model) moveSelection(rowOffset int) {
	rows := m.currentTable().rows
	p := &m.selectionByList[m.currentList]
	p.rowIndex = max(min(p.rowIndex+rowOffset, len(rows)-1), 0)
	p.rowID = ""
	if len(rows) > 0 {
		p.rowID = rows[p.rowIndex].id
	}
}

// switchList shows another list.
func (m *model) switchList(l listID) []effect {
	m.currentList, m.searchText = l, ""
	clear(m.markedIDs)
	m.mustFetchAgain = m.isFetching // the pending reply is for the list that was shown before
	return m.requestFetch()
}

// keyHelp is a key and its action, as the screen shows them.
type keyHelp struct{ key, action string }

// availableKeys returns the keys that work in the current state and that the user may use, the most
// useful first.
func (m *model) availableKeys() (keys []keyHelp) {
	r := m.selectedRow()
	if r != nil && r.job != nil {
		if m.mayReadOutput(r.job) && newOutputSource(r.job, 1).jobID != "" {
			keys = append(keys, keyHelp{"f", "follow"})
		}
		if m.mayCallMethod("why", m.ownsJob(r.job)) && jobStateFilter(queue.VerbEdit.StatesWithEffect()...)(r) {
			keys = append(keys, keyHelp{"w", "why"})
		}
	}
	for _, name := range []string{"r", "c", "p", "h"} {
		if v := m.verbForKey(name); v != nil {
			keys = append(keys, keyHelp{name, v.name})
		}
	}
	if v := m.verbForKey("P"); v != nil {
		keys = append(keys, keyHelp{"e", "edit"}, keyHelp{"P", v.name})
	}
	keys = append(keys, keyHelp{"/", "find"})
	if m.verbForKey("+") != nil {
		keys = append(keys, keyHelp{"+ -", "workers"})
	}
	return keys
}

// helpPage returns a page with all keys that the user may use in any list.
func (m *model) helpPage() *fullScreenPage {
	p := &fullScreenPage{title: "keys"}
	addKey := func(key, description string) {
		p.paragraphs = append(p.paragraphs, fmt.Sprintf("%-9s %s", key, description))
	}
	addKey(termtext.TextForLocale("j k ↓ ↑"), "select a row; also PgUp PgDn g G")
	addKey("1-5 Tab", "show another list")
	for _, h := range []struct{ method, key, description string }{
		{"logs", "f Enter", "follow the job's output in full screen"}, {"why", "w", "show why the job does not run"},
		{"cancel", "x Space", "mark a row; r c p h P then apply to all marked rows"},
		{"retry", "r", "retry the job; run a schedule now"}, {"cancel", "c", "cancel the job"},
		{"pause", "p", "pause or resume a running job, a queue or a schedule"},
		{"hold", "h", "hold or release a waiting job"}, {"edit", "e", "edit a waiting job in $EDITOR"},
		{"edit", "P", "change the priority of a waiting job"}, {"worker.scale", "+ -", "add or remove a worker"},
	} {
		if m.mayCallMethod(h.method, true) {
			addKey(h.key, h.description)
		}
	}
	addKey("/", "find: show only matching rows; Esc shows all")
	addKey("Ctrl-Z", "suspend; return with fg")
	addKey("Ctrl-L", "redraw the screen")
	addKey("q Ctrl-C", "quit")
	return p
}
