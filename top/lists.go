package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// listID identifies one of the lists of the screen.
type listID int

// These constants are the lists, in the order of the screen.
const (
	runningList listID = iota
	waitingList
	failedList
	queueList
	scheduleList
	listCount // number of lists
)

// listDefinition defines a list: its names, the states of its jobs, and the function that builds it.
type listDefinition struct {
	name, shortName string
	jobStates       []queue.State // states of the jobs in the list; nil if the list contains no jobs
	buildTable      func(*model) listTable
	emptyText       string // text shown instead of an empty list
	printAllCommand string // command of queuectl that prints the whole list
}

// listDefinitions returns the definitions of all lists.
func listDefinitions() [listCount]listDefinition {
	return [listCount]listDefinition{
		{"Running", "run", []queue.State{queue.Processing}, (*model).runningTable, "nothing running",
			"queuectl ps"},
		{"Waiting", "wait", []queue.State{queue.Pending, queue.Failed, queue.Held, queue.Blocked}, (*model).waitingTable,
			"nothing waiting", "queuectl list -s waiting"},
		{"Failed", "fail", []queue.State{queue.Failed, queue.Dead}, (*model).failedTable, "nothing failed",
			"queuectl list --failed"},
		{"Queues", "queues", nil, (*model).queuesTable, present.NoQueuesText, "queuectl queue list"},
		{"Schedules", "cron", nil, (*model).schedulesTable, present.NoSchedulesText,
			"queuectl schedule list"},
	}
}

// narrowWindowWidth is the width in characters below which only the most important columns are shown. From the
// width wideWindowWidth on, all columns are shown.
const (
	narrowWindowWidth = 60
	wideWindowWidth   = 100
)

// listRow is one line of a list. It is about a job, a queue or a schedule.
type listRow struct {
	id         string // id of the job, or name of the queue or schedule
	objectKind string // "job", "queue" or "schedule"
	job        *control.Job
	isPaused   bool
	isOwn      bool // the row's object belongs to the user; true for every queue
	cells      []string
	colour     string
}

// listTable is a list in its displayed form.
type listTable struct {
	headings       []string
	rows           []listRow
	hiddenRowCount int64 // number of entries of the list that are not in rows, or unknownHiddenRowCount
}

// unknownHiddenRowCount is the value of listTable.hiddenRowCount if there are more rows but the service does not say
// how many.
const unknownHiddenRowCount = -1

// jobCountOfList returns the number of jobs in a list, including jobs that were not fetched from the service.
func (m *model) jobCountOfList(id listID) (n int64) {
	for _, s := range listDefinitions()[id].jobStates {
		n += m.snapshot.screen.Status.Jobs[s.String()]
	}
	return n
}

// currentTable returns the current list, with only the rows that contain the search text.
func (m *model) currentTable() listTable {
	l := listDefinitions()[m.currentList]
	t := l.buildTable(m)
	if l.jobStates == nil && m.snapshot.hasMoreRows {
		t.hiddenRowCount = unknownHiddenRowCount
	}
	if m.searchText == "" {
		return t
	}
	t.rows = slices.DeleteFunc(t.rows, func(r listRow) bool { return !r.containsText(m.searchText) })
	return t
}

// containsText reports whether a row or its job contains a text.
func (r *listRow) containsText(text string) bool {
	in := r.id + "\x00" + strings.Join(r.cells, "\x00")
	if r.job != nil {
		in += "\x00" + present.JobTitle(r.job) + "\x00" + r.job.Queue + "\x00" + r.job.User
		for name, value := range r.job.Labels {
			in += "\x00" + name + "=" + value
		}
	}
	return strings.Contains(strings.ToLower(in), strings.ToLower(text))
}

// cellFormatter returns the formatter for cell texts, such as run times, of the snapshot at the current time.
func (m *model) cellFormatter() present.ScreenFormatter {
	return present.ScreenFormatter{Screen: &m.snapshot.screen, CurrentTime: m.currentTime}
}

// jobColumn is a column in a list of jobs: its heading, the widths of windows that show it, and its content.
type jobColumn struct {
	heading string
	// The column is shown if the width of the window is at least shownFromWidth and less than hiddenFromWidth.
	// A hiddenFromWidth of 0 means no upper limit.
	shownFromWidth, hiddenFromWidth int
	cellText                        func(*control.Job) string
}

// jobsTable returns a table with a row for each of jobs, which are jobs of the current list, and the columns that fit
// in the window and are useful. It then adds rows for jobs that the service has found for the search text and that are
// not in jobs.
func (m *model) jobsTable(jobs []*control.Job, columns []jobColumn) (t listTable) {
	t.hiddenRowCount = m.jobCountOfList(m.currentList) - int64(len(jobs))
	for _, j := range jobPointers(m.snapshot.searchMatches) {
		if m.searchText != "" && m.snapshot.list == m.currentList &&
			!slices.ContainsFunc(jobs, func(other *control.Job) bool { return other.ID == j.ID }) {
			jobs = append(jobs, j)
		}
	}
	// These columns are left out if they have the same text for all jobs.
	usualText := map[string]string{"QUEUE": queue.DefaultQueue, "USER": m.whoami.User, "PROGRESS": "", "%": ""}
	columns = slices.DeleteFunc(columns, func(c jobColumn) bool {
		usual, optional := usualText[c.heading]
		return m.width < c.shownFromWidth || c.hiddenFromWidth > 0 && m.width >= c.hiddenFromWidth ||
			optional && !slices.ContainsFunc(jobs, func(j *control.Job) bool { return c.cellText(j) != usual })
	})
	for _, c := range columns {
		t.headings = append(t.headings, c.heading)
	}
	for _, j := range jobs {
		r := listRow{id: j.ID, objectKind: "job", job: j, isPaused: j.PausedAt != 0, isOwn: m.ownsJob(j),
			colour: present.SignOfState(j.State).ColourCode}
		for _, c := range columns {
			r.cells = append(r.cells, c.cellText(j))
		}
		t.rows = append(t.rows, r)
	}
	return t
}

// These columns occur in several lists.
var (
	idColumn    = jobColumn{heading: "JOB", cellText: present.JobIDWithStateSign}
	queueColumn = jobColumn{heading: "QUEUE", shownFromWidth: narrowWindowWidth,
		cellText: func(j *control.Job) string { return j.Queue }}
	userColumn = jobColumn{heading: "USER", shownFromWidth: narrowWindowWidth,
		cellText: func(j *control.Job) string { return j.User }}
	commandColumn = jobColumn{heading: "COMMAND", cellText: present.JobTitle}
)

func (m *model) runningTable() listTable {
	jobs, lastLines := overviewJobs(m.snapshot.screen.Running)
	for _, j := range jobs {
		if lastLines[j.ID] == "" && j.Progress != nil {
			lastLines[j.ID] = j.Progress.Text
		}
	}
	worker := jobColumn{"WORKER", wideWindowWidth, 0,
		func(j *control.Job) string { return present.DashIfNil(j.WorkerID) }}
	if slices.ContainsFunc(jobs, func(j *control.Job) bool { return j.Node != "" }) {
		// If several nodes share the queue, this column shows the job's node instead of its worker, because the node is more
		// useful.
		worker = jobColumn{"NODE", 0, 0, func(j *control.Job) string { return cmp.Or(j.Node, "-") }}
	}
	barWidth := longBarWidth
	if m.width < wideWindowWidth {
		barWidth = shortBarWidth
	}
	return m.jobsTable(jobs, []jobColumn{
		idColumn, worker, queueColumn, userColumn,
		{"FOR", 0, 0, m.runTimeText},
		{"%", 0, narrowWindowWidth, present.ProgressPercentText},
		{"PROGRESS", narrowWindowWidth, 0, func(j *control.Job) string { return progressBar(j, barWidth) }},
		commandColumn,
		{"LAST LINE", narrowWindowWidth, 0, func(j *control.Job) string { return lastLines[j.ID] }},
	})
}

// overviewJobs returns the jobs in a list, and the last line of each job's output, by the job's id.
func overviewJobs(list []control.OverviewJob) (jobs []*control.Job, lastLines map[string]string) {
	lastLines = map[string]string{}
	for i := range list {
		jobs = append(jobs, &list[i].Job)
		lastLines[list[i].ID] = list[i].LastLine
	}
	return jobs, lastLines
}

// jobPointers returns pointers to all jobs in the lists.
func jobPointers(lists ...[]control.Job) (jobs []*control.Job) {
	for _, list := range lists {
		for i := range list {
			jobs = append(jobs, &list[i])
		}
	}
	return jobs
}

func (m *model) waitingTable() listTable {
	s := &m.snapshot.screen
	return m.jobsTable(jobPointers(s.Ready, s.Delayed, s.HeldOrBlocked), []jobColumn{
		idColumn, queueColumn, userColumn,
		{"WHEN", 0, 0, m.cellFormatter().StartOrWaitText},
		{"PRIORITY", narrowWindowWidth, 0, func(j *control.Job) string { return fmt.Sprint(j.EffectivePriority) }},
		commandColumn,
	})
}

func (m *model) failedTable() listTable {
	s := &m.snapshot.screen
	retried := slices.DeleteFunc(jobPointers(s.Ready, s.Delayed),
		func(j *control.Job) bool { return j.State != queue.Failed.String() })
	dead, lastLines := overviewJobs(s.Dead)
	texts := m.cellFormatter()
	return m.jobsTable(append(retried, dead...), []jobColumn{
		idColumn, queueColumn, userColumn,
		{"ATTEMPTS", narrowWindowWidth, 0, present.AttemptsText},
		{"WHEN", 0, 0, func(j *control.Job) string {
			if j.State == queue.Failed.String() {
				return texts.StartOrWaitText(j)
			}
			return texts.AgoText(j.FinishedAt)
		}},
		{"COMMAND", narrowWindowWidth, 0, present.JobTitle},
		{"WHY", 0, 0, func(j *control.Job) string {
			return texts.FailureReason(&control.OverviewJob{Job: *j, LastLine: lastLines[j.ID]})
		}},
	})
}

func (m *model) queuesTable() listTable {
	t := listTable{headings: m.cellsForWidth(present.QueueHeadings(), 0, 1, 2, 9)}
	for i := range m.snapshot.queues {
		q := &m.snapshot.queues[i]
		t.addPausableRow(listRow{id: q.Queue, objectKind: "queue", isPaused: q.Paused, isOwn: true,
			cells: m.cellsForWidth(present.QueueRow(q, m.currentTime), 0, 1, 2, 9)})
	}
	return t
}

func (m *model) schedulesTable() listTable {
	rows := make([][]string, len(m.snapshot.schedules))
	for i := range rows {
		rows[i] = present.ScheduleRow(&m.snapshot.schedules[i])
	}
	t := listTable{headings: m.cellsForWidth(termtext.MoveZonesToHeadings(present.ScheduleHeadings(), rows), 0, 3, 4)}
	for i := range m.snapshot.schedules {
		s := &m.snapshot.schedules[i]
		t.addPausableRow(listRow{id: s.Name, objectKind: "schedule", isPaused: s.Paused, isOwn: s.User == m.whoami.User,
			cells: m.cellsForWidth(rows[i], 0, 3, 4)})
	}
	return t
}

// addPausableRow adds the row of a queue or schedule, in amber if it is paused.
func (t *listTable) addPausableRow(r listRow) {
	if r.isPaused {
		r.colour = sgrAmber
	}
	t.rows = append(t.rows, r)
}

// cellsForWidth returns all cells in a wide window. In a narrow window, it returns only the cells with the
// indexes in narrowCellIndexes.
func (m *model) cellsForWidth(cells []string, narrowCellIndexes ...int) (shownCells []string) {
	if m.width >= narrowWindowWidth {
		return cells
	}
	for _, i := range narrowCellIndexes {
		shownCells = append(shownCells, cells[i])
	}
	return shownCells
}

// runTimeText returns how long a job has been running or paused. If the job is paused, runTimeText leaves out the
// user who paused it, because the text below the list names this user.
func (m *model) runTimeText(j *control.Job) string {
	text, _, _ := strings.Cut(m.cellFormatter().RunTimeText(j), " by ")
	return text
}

// These constants are the widths of a progress bar in columns: in wide windows and in other
// windows.
const (
	longBarWidth  = 10
	shortBarWidth = 4
)

// progressBar returns a progress bar followed by the percentage.
func progressBar(j *control.Job, width int) string {
	if j.Progress == nil {
		return ""
	}
	full := width * min(max(j.Progress.Percent, 0), 100) / 100
	return termtext.TextForLocale(strings.Repeat("█", full)+strings.Repeat("░", width-full)) + " " +
		present.ProgressPercentText(j)
}
