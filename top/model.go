package top

import (
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
)

// The times of the screen.
// See docs/decisions/0065.
const (
	fetchEvery   = time.Second      // between two looks at the service
	longestRetry = 30 * time.Second // between two tries to reach one that is lost
)

// Messages are what happens, and all that a model learns.
type (
	size struct{ width, height int }
	tick struct{ now time.Time }
	// key is one that was pressed, by name, and the text that it types, "" for none.
	key    struct{ name, text string }
	pasted struct{ text string }
	// fetched is what a look at the service gave.
	fetched struct {
		snapshot
		err error
	}
	// printed is more of the output of a job.
	printed struct {
		of    followed
		text  []piece
		ended bool
		err   error
	}
	// explained is why a job does not run.
	explained struct {
		id  string
		why control.Why
		err error
	}
	// acted is what came of an act.
	acted struct {
		act
		result control.BulkResult
		err    error
	}
	edited struct {
		id  string
		err error
	}
)

// Effects are what a model wants done. Each is told by one message, but for those that have none
// to tell.
type (
	effect any
	// fetch looks at the service.
	fetch struct {
		rows int
		list listID
		find string
		who  bool
	}
	// follow reads the output of a job, in place of what was read before; that of none ends it.
	follow struct{ followed }
	// act carries out a verb.
	act struct {
		verb   *verb
		ids    []string
		number int64
	}
	explain struct{ id string }
	edit    struct{ id string }
	suspend struct{}
	redraw  struct{} // something else has written to the terminal
	quit    struct{}
)

// snapshot is what the service told at one time.
type snapshot struct {
	who       *control.Whoami // nil if it was not asked
	screen    control.Screen
	list      listID // that the others are of
	queues    []control.QueueView
	schedules []control.Schedule
	found     []control.Job // that are called as is looked for
	more      bool          // queues or schedules
}

// model is the screen as values: what is shown follows from the messages that it got. It does
// nothing by itself; what it wants done it returns.
type model struct {
	width, height int
	host          string
	now           time.Time
	who           control.Whoami
	got           snapshot
	heard         time.Time // when that came
	lost          *loss     // nil while the service answers
	fetching      bool
	again         bool // something has changed since what is being fetched was asked for

	list   listID
	places [lists]place
	marked map[string]bool // jobs that a verb is to be carried out on
	find   string
	asks   *question
	page   *page // on the whole screen, nil for the lists
	said   string
	acts   []act // the first is being carried out, the others wait for that
	out    output
}

// loss is a service that does not answer.
type loss struct {
	since, next time.Time
	wait        time.Duration
	why         string
}

// place is where a person stands in a list. The id counts; the index is for when that is gone.
type place struct {
	id            string
	index, offset int
}

// newModel is the screen of a service that has told its first snapshot.
func newModel(host string, now time.Time, s snapshot) *model {
	m := &model{host: host, now: now, heard: now, got: s, marked: map[string]bool{}}
	if s.who != nil {
		m.who = *s.who
	}
	return m
}

// update takes a message, and returns what is to be done then.
func (m *model) update(msg any) []effect {
	var todo []effect
	switch msg := msg.(type) {
	case size:
		m.width, m.height = msg.width, msg.height
	case tick:
		m.now = msg.now
		if m.lost == nil || !m.now.Before(m.lost.next) {
			todo = m.look()
		}
	case key:
		todo = m.press(msg)
	case pasted:
		if m.asks != nil {
			m.asks.typed(msg.text)
			m.seek()
		}
	case fetched:
		todo = m.took(&msg)
	case printed:
		if msg.of == m.out.of {
			m.out.add(&msg)
		}
	case explained:
		m.tellWhy(&msg)
	case acted:
		todo = m.ended(&msg)
	case edited:
		m.said = "job " + cli.Shown(msg.id) + ": editor closed"
		if msg.err != nil {
			m.said = message(msg.err)
		}
		m.again = true
		todo = m.look()
	}
	m.settle()
	return append(todo, m.follows()...)
}

// look asks the service, unless an answer of it is still to come.
func (m *model) look() []effect {
	if m.fetching {
		return nil
	}
	m.fetching, m.again = true, false
	_, rows := m.room()
	return []effect{fetch{rows: min(max(m.places[m.list].offset+2*rows, leastFetched), mostFetched), list: m.list, find: m.find, who: m.lost != nil}}
}

// Jobs of each part that are asked for.
const (
	leastFetched = 20
	mostFetched  = 100
)

// took takes what a look gave. A service that does not answer leaves the picture, and is asked more
// and more seldom.
func (m *model) took(msg *fetched) []effect {
	m.fetching = false
	if msg.err != nil {
		if m.lost == nil {
			m.lost = &loss{since: m.heard, wait: fetchEvery / 2}
		}
		m.lost.why = message(msg.err)
		m.lost.wait = min(2*m.lost.wait, longestRetry)
		m.lost.next = m.now.Add(m.lost.wait)
		return nil
	}
	if m.lost != nil || m.out.broken {
		m.lost, m.out = nil, output{}
	}
	if msg.who != nil {
		m.who = *msg.who
	}
	m.got, m.heard = msg.snapshot, m.now
	if m.again || msg.list != m.list {
		return m.look()
	}
	return nil
}

// settle keeps the place in the list where it was, whatever has come or gone, and forgets marks of
// jobs that are gone.
func (m *model) settle() {
	rows := m.table().rows
	p := &m.places[m.list]
	for i := range rows {
		if rows[i].id == p.id {
			p.index = i
			break
		}
	}
	p.index = max(min(p.index, len(rows)-1), 0)
	p.id = ""
	if len(rows) > 0 {
		p.id = rows[p.index].id
	}
	_, shown := m.room()
	if p.index < p.offset {
		p.offset = p.index
	}
	if most := len(rows) - shown; p.offset > most {
		p.offset = max(most, 0)
	}
	if p.index >= p.offset+shown {
		p.offset = p.index - shown + 1
	}
	if m.page != nil {
		m.page.settle(m)
	}
}

// chosen is the row where a person stands, nil if the list is empty.
func (m *model) chosen() *row {
	rows := m.table().rows
	if p := m.places[m.list]; p.index < len(rows) {
		return &rows[p.index]
	}
	return nil
}

// job is the newest word on a job, nil if it is in no list that was told.
func (m *model) job(id string) *control.Job {
	s := &m.got.screen
	for _, list := range [][]control.ScreenJob{s.Running, s.Dead} {
		for i := range list {
			if list[i].ID == id {
				return &list[i].Job
			}
		}
	}
	for _, list := range [][]control.Job{s.Ready, s.Timed, s.Kept, s.Done, m.got.found} {
		for i := range list {
			if list[i].ID == id {
				return &list[i]
			}
		}
	}
	return nil
}

// may reports whether a method is allowed: on what is the user's own, or another's.
func (m *model) may(method string, own bool) bool {
	return m.who.Right.Covers(control.Needs(method, own))
}

// owns reports whether the user has enqueued a job.
func (m *model) owns(j *control.Job) bool {
	return j.Submitter == m.who.User || j.Submitter == "" && j.User == m.who.User
}

// tellWhy shows why a job does not run.
func (m *model) tellWhy(msg *explained) {
	if m.said = ""; msg.err != nil {
		m.said = message(msg.err)
		return
	}
	p := &page{title: "why job " + cli.Shown(msg.id) + " does not run"}
	for _, line := range cli.WhyLines(&msg.why, m.now) {
		p.paragraphs = append(p.paragraphs, cli.Shown(line))
	}
	m.page = p
}

// message is an error in one line.
func message(err error) string { return cli.Shown(cli.Message(err)) }
