package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
)

// question is a question in the last line of the screen.
type question struct {
	kind   asking
	act    act
	answer string
}

// asking is the kind of a question.
type asking int

// The kinds of questions: a confirmation, a number, or a text to find.
const (
	sure asking = iota
	number
	find
)

// longestAnswer is the maximum length of an answer in bytes.
const longestAnswer = 64

// typed appends text to an answer.
func (q *question) typed(text string) {
	text = cli.Shown(text)
	if q.kind == find && text == "" {
		text = " "
	}
	if q.kind != sure && len(q.answer)+len(text) <= longestAnswer {
		q.answer += text
	}
}

// text returns the question as it is displayed.
func (q *question) text() string {
	switch q.kind {
	case find:
		return "/" + q.answer + cli.Sign(cursor)
	case number:
		return "priority of " + q.act.about() + ": " + q.answer + cli.Sign(cursor)
	}
	return q.act.verb.name + " " + q.act.about() + "? (y/n)"
}

// cursor marks the position where text is typed.
const cursor = "▏"

// press handles a key.
func (m *model) press(k key) []effect {
	switch k.name {
	case "ctrl+c":
		return []effect{quit{}}
	case "ctrl+z":
		return []effect{suspend{}}
	case "ctrl+l":
		return []effect{redraw{}}
	}
	if m.tooSmall() {
		if k.name == "q" {
			return []effect{quit{}}
		}
		return nil
	}
	if m.asks != nil {
		return m.answered(k)
	}
	m.said = ""
	if m.page != nil {
		return m.turn(k)
	}
	return m.chose(k)
}

// answered handles a key while a question is open.
func (m *model) answered(k key) []effect {
	q := m.asks
	switch {
	case k.name == "esc" || q.kind == sure && k.name == "n":
		m.asks = nil
		if q.kind == find {
			m.find = ""
		}
	case q.kind == sure && k.name == "y":
		m.asks = nil
		return m.carryOut(q.act)
	case q.kind == sure: // other keys do not answer a confirmation
	case k.name == "enter":
		m.asks = nil
		if q.kind == find {
			return m.look()
		}
		n, err := strconv.ParseInt(strings.TrimSpace(q.answer), 10, 64)
		if err != nil {
			m.said = fmt.Sprintf("%q is not a priority; type a whole number", q.answer)
			return nil
		}
		q.act.number = n
		return m.carryOut(q.act)
	case k.name == "backspace":
		if runes := []rune(q.answer); len(runes) > 0 {
			q.answer = string(runes[:len(runes)-1])
		}
	default:
		q.typed(k.text)
	}
	m.seek()
	return nil
}

// seek filters the rows while the text to find is being typed.
func (m *model) seek() {
	if m.asks != nil && m.asks.kind == find {
		m.find = m.asks.answer
	}
}

// chose handles a key in the lists.
func (m *model) chose(k key) []effect {
	p := &m.places[m.list]
	_, page := m.room()
	switch k.name {
	case "j", "down":
		m.move(1)
	case "k", "up":
		m.move(-1)
	case "pgdown":
		m.move(page)
	case "pgup":
		m.move(-page)
	case "g", "home":
		m.move(-p.index)
	case "G", "end":
		m.move(len(m.table().rows))
	case "tab":
		return m.turnTo((m.list + 1) % lists)
	case "shift+tab":
		return m.turnTo((m.list + lists - 1) % lists)
	case "1", "2", "3", "4", "5":
		return m.turnTo(listID(k.name[0] - '1'))
	case "x", "space":
		if p.id != "" {
			if m.marked[p.id] = !m.marked[p.id]; !m.marked[p.id] {
				delete(m.marked, p.id)
			}
			m.move(1)
		}
	case "/":
		m.asks = &question{kind: find, answer: m.find}
	case "esc":
		m.find = ""
		clear(m.marked)
	case "?":
		m.page = m.help()
	case "q":
		return []effect{quit{}}
	default:
		return m.does(k)
	}
	return nil
}

// does handles a key that acts on the selected row or on the service.
func (m *model) does(k key) []effect {
	r := m.chosen()
	for _, h := range m.offers() {
		if h.key != k.name && h.also != k.name {
			continue
		}
		switch h.key {
		case "f":
			m.page = &page{job: r.job, end: true}
			return nil
		case "w":
			m.said = "why " + cli.Shown(r.id) + cli.Sign(" …")
			return []effect{explain{r.id}}
		case "e":
			return []effect{edit{r.id}}
		}
	}
	if v := m.offered(k.name); v != nil {
		return m.begin(v)
	}
	if k.text != "" {
		m.said = cli.Shown(k.text) + " does nothing here; ? shows the keys"
	}
	return nil
}

// move moves the selection down by a number of rows, or up if it is negative.
func (m *model) move(by int) {
	rows := m.table().rows
	p := &m.places[m.list]
	p.index = max(min(p.index+by, len(rows)-1), 0)
	p.id = ""
	if len(rows) > 0 {
		p.id = rows[p.index].id
	}
}

// turnTo shows another list.
func (m *model) turnTo(l listID) []effect {
	m.list, m.find = l, ""
	clear(m.marked)
	m.again = m.fetching // the pending reply belongs to the previous list
	return m.look()
}

// offer is a key that is displayed with its action.
type offer struct{ key, also, does string }

// offers returns the keys that work in the current state and that the user may use, most useful first.
func (m *model) offers() (list []offer) {
	r := m.chosen()
	if r != nil && r.job != nil {
		if m.reads(r.job) && outputOf(r.job, 1).id != "" {
			list = append(list, offer{"f", "enter", "follow"})
		}
		if m.may("why", m.owns(r.job)) && inStates(queue.VerbEdit.Takes()...)(r) {
			list = append(list, offer{"w", "", "why"})
		}
	}
	for _, name := range []string{"r", "c", "p", "h"} {
		if v := m.offered(name); v != nil {
			list = append(list, offer{name, "", v.name})
		}
	}
	if v := m.offered("P"); v != nil {
		list = append(list, offer{"e", "", "edit"}, offer{"P", "", v.name})
	}
	list = append(list, offer{"/", "", "find"})
	if m.offered("+") != nil {
		list = append(list, offer{"+ -", "", "workers"})
	}
	return list
}

// help returns a page of all keys that the user may use, in any list.
func (m *model) help() *page {
	rows := [][2]string{{cli.Sign("j k ↓ ↑"), "select a row; also PgUp PgDn g G"}, {"1-5 Tab", "show another list"}}
	for _, h := range []struct{ method, key, does string }{
		{"logs", "f Enter", "follow the job's output in full screen"}, {"why", "w", "show why the job does not run"},
		{"cancel", "x Space", "mark a row; r c p h P then apply to all marked rows"}, {"retry", "r", "retry the job; run a schedule now"}, {"cancel", "c", "cancel the job"}, {"pause", "p", "pause or resume a running job, a queue or a schedule"},
		{"hold", "h", "hold or release a waiting job"}, {"edit", "e", "edit a waiting job in $EDITOR"}, {"edit", "P", "change the priority of a waiting job"}, {"worker.scale", "+ -", "add or remove a worker"},
	} {
		if m.may(h.method, true) {
			rows = append(rows, [2]string{h.key, h.does})
		}
	}
	rows = append(rows, [][2]string{{"/", "find: show only matching rows; Esc shows all"}, {"Ctrl-Z", "suspend; return with fg"}, {"Ctrl-L", "redraw the screen"}, {"q Ctrl-C", "quit"}}...)
	p := &page{title: "keys"}
	for _, r := range rows {
		p.paragraphs = append(p.paragraphs, fmt.Sprintf("%-9s %s", r[0], r[1]))
	}
	return p
}
