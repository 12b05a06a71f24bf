package top

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
)

// These constants are the timing of the screen. See docs/decisions/0065.
const (
	fetchInterval    = time.Second      // interval between two fetches from the service
	maxRetryInterval = 30 * time.Second // maximum interval between two attempts to reach an unavailable service
)

// These types are messages. A message describes an event, such as a key press. Messages are the only input of a
// model.
type (
	windowSize struct{ width, height int } // new size of the window in characters
	tick       struct{ time time.Time }    // the current time; the shell sends it each second
	// keyPress contains the name of the key and the text that the key types, which may be "".
	keyPress   struct{ name, text string }
	pastedText struct{ text string }
	// fetchResult is the result of a fetchEffect.
	fetchResult struct {
		snapshot
		err error
	}
	// newOutput is new output of the job that the screen follows.
	newOutput struct {
		source outputSource
		pieces []piece
		ended  bool // no more output follows
		err    error
	}
	// explainResult is the result of an explainEffect. The field why contains the reasons for which a job
	// does not run.
	explainResult struct {
		id  string
		why control.Why
		err error
	}
	// actResult is the result of an actEffect.
	actResult struct {
		actEffect
		result control.BulkResult
		err    error
	}
	// editResult is the result of an editEffect.
	editResult struct {
		id  string
		err error
	}
)

// These types are effects. An effect is a request of the model to the shell, which executes it. The shell then
// sends one message with the result, if the effect has one.
type (
	effect any
	// fetchEffect reads the state of the queue from the service.
	fetchEffect struct {
		rows     int // maximum number of jobs for each part of the screen
		list     listID
		search   string
		withUser bool // also fetch the name and the rights of the user
	}
	// followEffect starts reading the output of a job and stops reading the previous output. With an
	// empty id, it only stops.
	followEffect struct{ outputSource }
	// actEffect executes a verb on the objects with these ids.
	actEffect struct {
		verb   *verb
		ids    []string
		number int64 // new priority, if the verb needs a number
	}
	explainEffect struct{ id string } // request the reasons for which a job does not run
	editEffect    struct{ id string } // open a job in an editor
	suspendEffect struct{}
	redrawEffect  struct{} // another program has written to the terminal, so draw the whole screen again
	quitEffect    struct{}
)

// snapshot is the state of the queue as the service has returned it in one fetch.
type snapshot struct {
	whoami    *control.Whoami // nil if it was not fetched
	screen    control.Screen
	list      listID // list to which queues, schedules, matches and hasMore belong
	queues    []control.QueueView
	schedules []control.Schedule
	matches   []control.Job // jobs whose ids match the search text
	hasMore   bool          // there are more queues or schedules
}

// model is the state of the screen. It changes only by messages, which the method update handles. The model
// has no side effects: update returns effects, which the shell executes.
type model struct {
	width, height  int
	host           string
	currentTime    time.Time
	whoami         control.Whoami
	snapshot       snapshot
	receivedAt     time.Time // time at which snapshot was received
	outage         *outage   // nil while the service replies
	isFetching     bool      // the reply to a fetch is pending
	mustFetchAgain bool      // fetch again after the pending reply, because the state has changed since that request

	list        listID
	selections  [listCount]selection // selected row, by list
	markedIDs   map[string]bool      // ids of the rows to which the next verb applies
	search      string
	question    *question
	page        *page       // page that covers the screen; nil while the lists are shown
	notice      string      // message in the last lines of the screen
	pendingActs []actEffect // actions that are not finished: the first one is being executed, the others wait
	output      output
}

// outage describes a service that does not reply.
type outage struct {
	startedAt, retryAt time.Time
	retryInterval      time.Duration // current interval between attempts to fetch
	reason             string
}

// selection says which row of a list is selected: the row with this id or, if no row has it, the row at this
// index.
type selection struct {
	id            string
	index, offset int // offset is the index of the first visible row
}

// newModel returns the model for a service that has returned its first snapshot.
func newModel(host string, now time.Time, s snapshot) *model {
	m := &model{host: host, currentTime: now, receivedAt: now, snapshot: s, markedIDs: map[string]bool{}}
	if s.whoami != nil {
		m.whoami = *s.whoami
	}
	return m
}

// update handles a message and returns the effects that it causes.
func (m *model) update(msg any) []effect {
	var effects []effect
	switch msg := msg.(type) {
	case windowSize:
		m.width, m.height = msg.width, msg.height
	case tick:
		m.currentTime = msg.time
		if m.outage == nil || !m.currentTime.Before(m.outage.retryAt) {
			effects = m.requestFetch()
		}
	case keyPress:
		effects = m.handleKey(msg)
	case pastedText:
		if m.question != nil {
			m.question.appendText(msg.text)
			m.applySearch()
		}
	case fetchResult:
		effects = m.handleFetched(&msg)
	case newOutput:
		if msg.source == m.output.source {
			m.output.add(&msg)
		}
	case explainResult:
		m.showReasons(&msg)
	case actResult:
		effects = m.handleActed(&msg)
	case editResult:
		m.notice = "job " + termtext.SafeText(msg.id) + ": editor closed; your changes, if any, are stored"
		if msg.err != nil {
			m.notice = errorText(msg.err)
		}
		m.mustFetchAgain = true
		effects = m.requestFetch()
	}
	m.keepSelection()
	return append(effects, m.followShownOutput()...)
}

// requestFetch requests a fetch, unless the reply to a fetch is still pending.
func (m *model) requestFetch() []effect {
	if m.isFetching {
		return nil
	}
	m.isFetching, m.mustFetchAgain = true, false
	_, rows := m.listLayout()
	return []effect{fetchEffect{rows: min(max(m.selections[m.list].offset+2*rows, minFetchedRows), maxFetchedRows),
		list: m.list, search: m.search, withUser: m.outage != nil}}
}

// A fetch requests at least minFetchedRows and at most maxFetchedRows jobs for each part of the status screen.
const (
	minFetchedRows = 20
	maxFetchedRows = 100
)

// handleFetched handles the reply to a fetch. If the service does not reply, the old state stays on the screen,
// and the interval between fetches grows.
func (m *model) handleFetched(msg *fetchResult) []effect {
	m.isFetching = false
	if msg.err != nil {
		if m.outage == nil {
			m.outage = &outage{startedAt: m.receivedAt, retryInterval: fetchInterval / 2}
		}
		m.outage.reason = errorText(msg.err)
		m.outage.retryInterval = min(2*m.outage.retryInterval, maxRetryInterval)
		m.outage.retryAt = m.currentTime.Add(m.outage.retryInterval)
		return nil
	}
	if m.outage != nil || m.output.connectionLost {
		m.outage, m.output = nil, output{}
	}
	if msg.whoami != nil {
		m.whoami = *msg.whoami
	}
	m.snapshot, m.receivedAt = msg.snapshot, m.currentTime
	if m.mustFetchAgain || msg.list != m.list {
		return m.requestFetch()
	}
	return nil
}

// keepSelection keeps the selection on its row when rows are added or removed. It scrolls the list
// so that the row is visible.
func (m *model) keepSelection() {
	rows := m.table().rows
	p := &m.selections[m.list]
	if i := slices.IndexFunc(rows, func(r row) bool { return r.id == p.id }); i >= 0 {
		p.index = i
	}
	m.move(0)
	_, shown := m.listLayout()
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
		m.page.clampScroll(m)
	}
}

// selectedRow returns the selected row, or nil if the list is empty.
func (m *model) selectedRow() *row {
	rows := m.table().rows
	if p := m.selections[m.list]; p.index < len(rows) {
		return &rows[p.index]
	}
	return nil
}

// job returns the newest known state of a job, or nil if the snapshot does not contain the job.
func (m *model) job(id string) *control.Job {
	s := &m.snapshot.screen
	others := jobRows(s.Ready, s.Delayed, s.HeldOrBlocked, s.Done, m.snapshot.matches)
	for _, r := range append(screenRows(s.Running, s.Dead), others...) {
		if r.job.ID == id {
			return r.job
		}
	}
	return nil
}

// isAllowed reports whether the user may call a method. isOwn says whether the method acts on the user's own
// objects or on those of others.
func (m *model) isAllowed(method string, isOwn bool) bool {
	return m.whoami.Right.Covers(control.RequiredRight(method, isOwn))
}

// owns reports whether the user has enqueued a job.
func (m *model) owns(j *control.Job) bool {
	return j.EnqueuedBy(m.whoami.User)
}

// showReasons shows the reasons for which a job does not run.
func (m *model) showReasons(msg *explainResult) {
	if m.notice = ""; msg.err != nil {
		m.notice = errorText(msg.err)
		return
	}
	p := &page{title: "why job \"" + termtext.SafeText(msg.id) + "\" does not run"}
	for _, line := range present.WhyLines(&msg.why, m.currentTime) {
		p.paragraphs = append(p.paragraphs, termtext.SafeText(line))
	}
	m.page = p
}

// errorText returns an error as one line.
func errorText(err error) string { return termtext.SafeText(fault.Message(err)) }
