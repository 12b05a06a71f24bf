package cli

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// column is a column of a list of jobs. A list can also be sorted by it.
type column struct {
	name  string
	title string
	value func(*control.Job) cellValue
}

// cellValue is the value of a column for one job: its text, and what it is sorted by. Cells are sorted
// by number, and cells with equal numbers by key.
type cellValue struct {
	text   string
	number int64
	key    string
}

// compareCells compares two values of a column.
func compareCells(a, b cellValue) int {
	return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.key, b.key))
}

// textCell is a text that is sorted by itself.
func textCell(text string) cellValue { return cellValue{text: text, key: text} }

// orDashCell is a text that is sorted by itself and is shown as "-" if it is empty.
func orDashCell(text string) cellValue { return cellValue{text: orDashText(text), key: text} }

// numberCell is a number.
func numberCell(n int64) cellValue { return cellValue{text: strconv.FormatInt(n, 10), number: n} }

// timeCell is a time. A job without the time has "-" and is sorted first.
func timeCell(t control.Time) cellValue { return cellValue{text: local(t), number: int64(t)} }

// signalOf returns the name of the signal that ended a job, or the parameter absent if no signal
// did.
func signalOf(j *control.Job, absent string) string {
	if j.Signal == nil {
		return absent
	}
	return queue.SignalName(*j.Signal)
}

// orDefault returns *p, or the parameter none if p is nil.
func orDefault[N any](p *N, none N) N {
	if p == nil {
		return none
	}
	return *p
}

// columns returns the table of columns, in the order of the help.
func columns() []column {
	return []column{
		{"id", "ID", func(j *control.Job) cellValue { return textCell(j.ID) }},
		{"seq", "SEQ", func(j *control.Job) cellValue { return numberCell(j.Seq) }},
		{"state", "STATE", func(j *control.Job) cellValue { return cellValue{text: stateText(j), key: j.State} }},
		{"queue", "QUEUE", func(j *control.Job) cellValue { return textCell(j.Queue) }},
		{"when", "WHEN", func(j *control.Job) cellValue {
			return cellValue{text: whenOf(j, time.Now()), number: int64(max(j.FinishedAt, j.StartedAt, j.RunAt))}
		}},
		{"reason", "REASON", func(j *control.Job) cellValue { return orDashCell(reasonOf(j)) }},
		{"priority", "PRIORITY", func(j *control.Job) cellValue { return cellValue{text: rank(j), number: j.EffectivePriority} }},
		{"attempts", "ATTEMPTS", func(j *control.Job) cellValue { return cellValue{text: AttemptsText(j), number: int64(Attempts(j))} }},
		{"created", "CREATED" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.CreatedAt) }},
		{"updated", "UPDATED" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.UpdatedAt) }},
		{"run_at", "RUN_AT" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.RunAt) }},
		{"retry", "RETRY" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.NextRetryAt) }},
		{"started", "STARTED" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.StartedAt) }},
		{"finished", "FINISHED" + zonePlaceholder, func(j *control.Job) cellValue { return timeCell(j.FinishedAt) }},
		{"waited", "WAITED", func(j *control.Job) cellValue { return cellValue{text: span(j.QueueTimeMS), number: j.QueueTimeMS} }},
		{"ran", "RAN", func(j *control.Job) cellValue {
			return cellValue{text: orDashText(ranFor(j.RunTimeMS)), number: orDefault(j.RunTimeMS, -1)}
		}},
		{"typical", "TYPICAL", func(j *control.Job) cellValue {
			return cellValue{text: typicalRun(j), number: orDefault(j.UsualRunTimeMS, -1)}
		}},
		{"progress", "PROGRESS", func(j *control.Job) cellValue {
			return cellValue{text: orDashText(progressOf(j)), number: percentKey(j)}
		}},
		{"exit_code", "EXIT", func(j *control.Job) cellValue {
			return cellValue{text: orDash(j.ExitCode), number: orDefault(j.ExitCode, -1)}
		}},
		{"signal", "SIGNAL", func(j *control.Job) cellValue {
			return cellValue{text: signalOf(j, "-"), number: int64(orDefault(j.Signal, -1))}
		}},
		{"worker", "WORKER", func(j *control.Job) cellValue {
			return cellValue{text: orDash(j.WorkerID), key: orDefault(j.WorkerID, "")}
		}},
		{"node", "NODE", func(j *control.Job) cellValue { return textCell(j.Node) }},
		{"pid", "PID", func(j *control.Job) cellValue {
			return cellValue{text: orDash(j.PID), number: int64(orDefault(j.PID, -1))}
		}},
		{"user", "USER", func(j *control.Job) cellValue { return textCell(j.User) }},
		{"labels", "LABELS", func(j *control.Job) cellValue { return orDashCell(labels(j.Labels)) }},
		{"error", "ERROR", func(j *control.Job) cellValue { return cellValue{text: orDash(j.Error), key: orDefault(j.Error, "")} }},
		{"command", "COMMAND", func(j *control.Job) cellValue { return textCell(Title(j)) }},
	}
}

// percentKey returns the progress of a job in percent, or -1 if it has not reported any.
func percentKey(j *control.Job) int64 {
	if j.Progress == nil {
		return -1
	}
	return int64(j.Progress.Percent)
}

// reasonOf returns why a job ended as it did, or else what it waits for.
func reasonOf(j *control.Job) string {
	r := orDefault(j.WaitsFor, control.Reason{})
	return cmp.Or(orDefault(j.Reason, ""), strings.TrimSpace(r.Kind+" "+r.Key))
}

// typicalRun returns the typical run time of a job's command, or "-" if it is unknown.
func typicalRun(j *control.Job) string { return orDashText(took(j.UsualRunTimeMS)) }

// columnNames returns the names of all columns.
func columnNames() (names []string) {
	for _, c := range columns() {
		names = append(names, c.name)
	}
	return names
}

// findColumn returns the column with a name. flag is the flag to name in the error.
func findColumn(flag, name string) (column, error) {
	for _, c := range columns() {
		if c.name == strings.ReplaceAll(name, "-", "_") {
			return c, nil
		}
	}
	return column{}, Usage("--%s: unknown column %q%s", flag, name, near(name, columnNames(), "use one of: "+strings.Join(columnNames(), ", ")))
}

// columnFuncs returns the headings of the named columns, and a function that makes a row.
func columnFuncs(names []string) (head []string, row func(*control.Job) []string, err error) {
	list := make([]column, len(names))
	for i, name := range names {
		if list[i], err = findColumn("columns", name); err != nil {
			return nil, nil, err
		}
		head = append(head, list[i].title)
	}
	return head, func(j *control.Job) []string {
		cells := make([]string, len(list))
		for i, c := range list {
			cells[i] = c.value(j).text
		}
		return cells
	}, nil
}

// sorter collects jobs and keeps only the first limit of them in an order, so that its memory use
// is bounded.
type sorter struct {
	compare func(a, b *control.Job) int
	limit   int
	jobs    []control.Job
}

// newSorter parses the value of --sort: COLUMN for ascending order, or -COLUMN for descending
// order.
func newSorter(text string, limit int) (*sorter, error) {
	name, down := strings.CutPrefix(text, "-")
	c, err := findColumn("sort", name)
	if err != nil {
		return nil, err
	}
	return &sorter{limit: limit, compare: func(a, b *control.Job) int {
		order := compareCells(c.value(a), c.value(b))
		if down {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(b.Seq, a.Seq))
	}}, nil
}

func (s *sorter) add(jobs []control.Job) {
	s.jobs = append(s.jobs, jobs...)
	if len(s.jobs) > 2*s.limit+1000 {
		s.keep()
	}
}

// keep sorts the collected jobs and drops all except the first limit of them.
func (s *sorter) keep() []control.Job {
	sortList(s.jobs, s.compare)
	if len(s.jobs) > s.limit {
		s.jobs = slices.Delete(s.jobs, s.limit, len(s.jobs))
	}
	return s.jobs
}

// draw prints a list. On a terminal it draws over the previous list in one write, so that the
// screen does not flicker.
func (o *Output) draw(list func() error) error {
	if !IsTerminal(o.Out) {
		return list()
	}
	o.frame = bytes.NewBufferString(time.Now().Format("15:04:05") + "\n")
	defer func() { o.frame = nil }()
	if err := list(); err != nil {
		return err
	}
	width, drawn := columnCount(o.Out), "\x1b[H"
	for _, line := range Fold(width, strings.Split(strings.TrimSuffix(o.frame.String(), "\n"), "\n")...) {
		// \x1b[K erases from the cursor on; after a full line, the cursor is still on the last character.
		if drawn += line; Width(line) < width {
			drawn += "\x1b[K"
		}
		drawn += "\r\n"
	}
	_, err := o.Out.WriteString(drawn + "\x1b[J")
	return err
}

// watchEvery is the shortest time between two prints of a watched list.
const watchEvery = 500 * time.Millisecond

// watch prints a list again after each change, until the user presses Ctrl-C or the service ends.
// On a terminal it redraws the list in place.
func (a *App) watch(ctx context.Context, list func() error) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, control.Nothing{})
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The stream begins with the events since the status was read, so a change before the first print
	// is not missed.
	ended := stream(ctx, c, control.Events{Since: &st.LastEvent}, func(control.Event) error {
		select {
		case changed <- struct{}{}:
		default: // the list is already about to be printed again
		}
		return nil
	})
	for {
		if err := a.draw(list); err != nil {
			return err
		}
		pause := time.After(watchEvery)
		// On a terminal the list shows how old things are, so it is redrawn every second.
		var older <-chan time.Time
		if IsTerminal(a.Out) {
			older = time.After(time.Second)
		}
		select {
		case <-older:
		case <-changed:
		case err := <-ended:
			return err
		}
		<-pause
		if !IsTerminal(a.Out) {
			if err := a.Println(""); err != nil {
				return err
			}
		}
	}
}
