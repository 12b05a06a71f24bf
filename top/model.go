package top

import (
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

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
// model. The messages of Bubble Tea about the size of the window and about pasted text are messages too.
type (
	clockTick struct{ time time.Time } // the current time; the shell sends it each second
	// keyPress contains the name of the key and the text that the key types, which may be "".
	keyPress struct{ name, text string }
	// fetchSnapshotResult is the result of a fetchSnapshotEffect.
	fetchSnapshotResult struct {
		snapshot
		err error
	}
	// outputUpdate is new output of the job that the screen follows.
	outputUpdate struct {
		source     outputSource
		pieces     []outputPiece
		isComplete bool // no more output follows
		err        error
	}
	// explainJobResult is the result of an explainJobEffect. The field reasons contains the reasons for which a job does
	// not run.
	explainJobResult struct {
		id      string
		reasons control.WaitingExplanation
		err     error
	}
	// actionResult is the result of an actionEffect.
	actionResult struct {
		actionEffect
		result control.BulkResult
		err    error
	}
	// editJobResult is the result of an editJobEffect.
	editJobResult struct {
		id  string
		err error
	}
)

// These types are effects. An effect is a request of the model to the shell, which executes it. If the effect has a
// result, the shell then sends one message with this result.
type (
	effect any
	// fetchSnapshotEffect reads the state of the queue from the service.
	fetchSnapshotEffect struct {
		maxRows       int // maximum number of jobs for each part of the screen
		list          listID
		searchText    string
		fetchesWhoami bool // also fetch the name and the rights of the user
	}
	// followOutputEffect starts reading the output of a job and stops reading the previous output. With an
	// empty id, it only stops.
	followOutputEffect struct{ outputSource }
	// actionEffect executes a verb (an action of the user) on the objects whose ids are in objectIDs.
	actionEffect struct {
		verb        *verb
		objectIDs   []string
		newPriority int64 // new priority, if the verb needs a number
	}
	explainJobEffect struct{ id string } // request the reasons for which a job does not run
	editJobEffect    struct{ id string } // open a job in an editor
	suspendEffect    struct{}
	redrawEffect     struct{} // another program has written to the terminal, so draw the whole screen again
	quitEffect       struct{}
)

// snapshot is the state of the queue as the service has returned it in one fetch.
type snapshot struct {
	whoami        *control.WhoamiResult // nil if it was not fetched
	screen        control.OverviewScreen
	list          listID // list for which queues, schedules, searchMatches and hasMoreRows were fetched
	queues        []control.QueueView
	schedules     []control.Schedule
	searchMatches []control.Job // jobs whose ids match the search text
	hasMoreRows   bool          // there are more queues or schedules
}

// model is the state of the screen. It changes only by messages, which the method update handles. The model
// has no side effects: update returns effects, which the shell executes.
type model struct {
	width, height      int
	hostName           string
	currentTime        time.Time
	whoami             control.WhoamiResult
	snapshot           snapshot
	snapshotReceivedAt time.Time // time at which snapshot was received
	outage             *outage   // nil while the service replies
	isFetching         bool      // the reply to a fetch is pending
	mustFetchAgain     bool      // fetch again after the pending reply, because the state has changed since that request

	currentList     listID
	selectionByList [listCount]rowSelection // selected row, by list
	markedIDs       map[string]bool         // ids of the rows to which the next verb applies
	searchText      string
	question        *question
	page            *fullScreenPage // page that covers the screen; nil while the lists are shown
	notice          string          // message in the last lines of the screen
	pendingActions  []actionEffect  // actions that are not finished: the first one is being executed, the others wait
	followedOutput  jobOutput
}

// outage describes a service that does not reply.
type outage struct {
	startedAt, retryAt time.Time
	retryInterval      time.Duration // current interval between attempts to fetch
	reason             string
}

// rowSelection records which row of a list is selected: the row with the id rowID or, if the list has no such row, the
// row at rowIndex.
type rowSelection struct {
	rowID                       string
	rowIndex, firstVisibleIndex int // firstVisibleIndex is the index of the first visible row
}

// newModel returns the model for a service that has returned its first snapshot.
func newModel(hostName string, now time.Time, s snapshot) *model {
	m := &model{hostName: hostName, currentTime: now, snapshotReceivedAt: now, snapshot: s, markedIDs: map[string]bool{}}
	if s.whoami != nil {
		m.whoami = *s.whoami
	}
	return m
}

// update handles a message and returns the effects (requests to the shell) that the message causes.
func (m *model) update(msg any) []effect {
	var effects []effect
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case clockTick:
		m.currentTime = msg.time
		if m.outage == nil || !m.currentTime.Before(m.outage.retryAt) {
			effects = m.requestFetch()
		}
	case keyPress:
		effects = m.handleKey(msg)
	case tea.PasteMsg:
		if m.question != nil {
			m.question.appendText(msg.Content)
			m.applySearch()
		}
	case fetchSnapshotResult:
		effects = m.handleFetchResult(&msg)
	case outputUpdate:
		if msg.source == m.followedOutput.source {
			m.followedOutput.appendUpdate(&msg)
		}
	case explainJobResult:
		m.showWaitReasons(&msg)
	case actionResult:
		effects = m.handleActionResult(&msg)
	case editJobResult:
		m.notice = "job " + termtext.TerminalSafeText(msg.id) + ": editor closed; your changes, if any, are stored"
		if msg.err != nil {
			m.notice = errorText(msg.err)
		}
		m.mustFetchAgain = true
		effects = m.requestFetch()
	}
	m.keepSelectionVisible()
	return append(effects, m.followShownOutput()...)
}

// requestFetch requests a fetch, unless the reply to a fetch is still pending.
func (m *model) requestFetch() []effect {
	if m.isFetching {
		return nil
	}
	m.isFetching, m.mustFetchAgain = true, false
	_, rows := m.listLayout()
	return []effect{fetchSnapshotEffect{maxRows: min(max(m.selectionByList[m.currentList].firstVisibleIndex+2*rows,
		minFetchedRows), maxFetchedRows),
		list: m.currentList, searchText: m.searchText, fetchesWhoami: m.outage != nil}}
}

// A fetch requests at least minFetchedRows and at most maxFetchedRows jobs for each part of the status screen.
const (
	minFetchedRows = 20
	maxFetchedRows = 100
)

// handleFetchResult handles the reply to a fetch. If the service does not reply, the old state stays on the screen,
// and the interval between fetches grows.
func (m *model) handleFetchResult(msg *fetchSnapshotResult) []effect {
	m.isFetching = false
	if msg.err != nil {
		if m.outage == nil {
			m.outage = &outage{startedAt: m.snapshotReceivedAt, retryInterval: fetchInterval / 2}
		}
		m.outage.reason = errorText(msg.err)
		m.outage.retryInterval = min(2*m.outage.retryInterval, maxRetryInterval)
		m.outage.retryAt = m.currentTime.Add(m.outage.retryInterval)
		return nil
	}
	if m.outage != nil || m.followedOutput.connectionLost {
		m.outage, m.followedOutput = nil, jobOutput{}
	}
	if msg.whoami != nil {
		m.whoami = *msg.whoami
	}
	m.snapshot, m.snapshotReceivedAt = msg.snapshot, m.currentTime
	if m.mustFetchAgain || msg.list != m.currentList {
		return m.requestFetch()
	}
	return nil
}

// keepSelectionVisible keeps the selection on its row when rows are added or removed. It scrolls the list
// so that the row is visible.
func (m *model) keepSelectionVisible() {
	rows := m.currentTable().rows
	p := &m.selectionByList[m.currentList]
	if i := slices.IndexFunc(rows, func(r listRow) bool { return r.id == p.rowID }); i >= 0 {
		p.rowIndex = i
	}
	m.moveSelection(0)
	_, shown := m.listLayout()
	if p.rowIndex < p.firstVisibleIndex {
		p.firstVisibleIndex = p.rowIndex
	}
	if most := len(rows) - shown; p.firstVisibleIndex > most {
		p.firstVisibleIndex = max(most, 0)
	}
	if p.rowIndex >= p.firstVisibleIndex+shown {
		p.firstVisibleIndex = p.rowIndex - shown + 1
	}
	if m.page != nil {
		m.page.refreshAndClampScroll(m)
	}
}

// selectedRow returns the selected row, or nil if the list is empty.
func (m *model) selectedRow() *listRow {
	rows := m.currentTable().rows
	if p := m.selectionByList[m.currentList]; p.rowIndex < len(rows) {
		return &rows[p.rowIndex]
	}
	return nil
}

// findJob returns the newest known state of a job, or nil if the snapshot does not contain the job.
func (m *model) findJob(id string) *control.Job {
	s := &m.snapshot.screen
	running, _ := overviewJobs(s.Running)
	dead, _ := overviewJobs(s.Dead)
	for _, j := range slices.Concat(running, dead,
		jobPointers(s.Ready, s.Delayed, s.HeldOrBlocked, s.Done, m.snapshot.searchMatches)) {
		if j.ID == id {
			return j
		}
	}
	return nil
}

// mayCallMethod reports whether the user may call a method. If onOwnObject is true, the method acts on the user's own
// objects, otherwise on objects of other users.
func (m *model) mayCallMethod(method string, onOwnObject bool) bool {
	return m.whoami.Right.Covers(control.RequiredRight(method, onOwnObject))
}

// ownsJob reports whether the user has enqueued a job.
func (m *model) ownsJob(j *control.Job) bool {
	return j.EnqueuedBy(m.whoami.User)
}

// showWaitReasons shows the reasons for which a job does not run.
func (m *model) showWaitReasons(msg *explainJobResult) {
	if m.notice = ""; msg.err != nil {
		m.notice = errorText(msg.err)
		return
	}
	p := &fullScreenPage{title: "why job \"" + termtext.TerminalSafeText(msg.id) + "\" does not run"}
	for _, line := range present.WaitExplanationLines(&msg.reasons, m.currentTime) {
		p.paragraphs = append(p.paragraphs, termtext.TerminalSafeText(line))
	}
	m.page = p
}

// errorText returns an error as one line.
func errorText(err error) string { return termtext.TerminalSafeText(fault.UserMessage(err)) }
