package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// column is a column of a list of jobs. A list can also be sorted by it.
type column struct {
	name    string
	title   string
	show    func(*control.Job) string
	compare func(a, b *control.Job) int
}

func number[N cmp.Ordered](name string, get func(*control.Job) N) column {
	return column{name, strings.ToUpper(name), func(j *control.Job) string { return fmt.Sprint(get(j)) }, asc(get)}
}

// instant returns a column of times. A job without the time has "-" and sorts first.
func instant(name string, get func(*control.Job) control.Time) column {
	return column{name, strings.ToUpper(name) + zonePlaceholder, func(j *control.Job) string { return local(get(j)) }, asc(get)}
}

func asc[N cmp.Ordered](get func(*control.Job) N) func(a, b *control.Job) int {
	return func(a, b *control.Job) int { return cmp.Compare(get(a), get(b)) }
}

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
	list := []column{
		number("id", func(j *control.Job) string { return j.ID }),
		number("seq", func(j *control.Job) int64 { return j.Seq }),
		{"state", "STATE", stateText, asc(func(j *control.Job) string { return j.State })},
		number("queue", func(j *control.Job) string { return j.Queue }),
		{"when", "WHEN", func(j *control.Job) string { return whenOf(j, time.Now()) }, asc(func(j *control.Job) control.Time { return max(j.FinishedAt, j.StartedAt, j.RunAt) })},
		{"reason", "REASON", func(j *control.Job) string { return orDashText(reasonOf(j)) }, asc(reasonOf)},
		{"priority", "PRIORITY", rank, asc(func(j *control.Job) int64 { return j.EffectivePriority })},
		{"attempts", "ATTEMPTS", AttemptsText, asc(Attempts)},
		instant("created", func(j *control.Job) control.Time { return j.CreatedAt }),
		instant("updated", func(j *control.Job) control.Time { return j.UpdatedAt }),
		instant("run_at", func(j *control.Job) control.Time { return j.RunAt }),
		instant("retry", func(j *control.Job) control.Time { return j.NextRetryAt }),
		instant("started", func(j *control.Job) control.Time { return j.StartedAt }),
		instant("finished", func(j *control.Job) control.Time { return j.FinishedAt }),
		{"waited", "WAITED", func(j *control.Job) string { return span(j.QueueTimeMS) }, asc(func(j *control.Job) int64 { return j.QueueTimeMS })},
		{"ran", "RAN", func(j *control.Job) string { return cmp.Or(ranFor(j.RunTimeMS), "-") }, asc(func(j *control.Job) int64 { return orDefault(j.RunTimeMS, -1) })},
		{"typical", "TYPICAL", typicalRun, asc(func(j *control.Job) int64 { return orDefault(j.UsualRunTimeMS, -1) })},
		{"progress", "PROGRESS", func(j *control.Job) string { return orDashText(progressOf(j)) }, asc(func(j *control.Job) int { return orDefault(j.Progress, control.JobProgress{Percent: -1}).Percent })},
		{"exit_code", "EXIT", func(j *control.Job) string { return orDash(j.ExitCode) }, asc(func(j *control.Job) int64 { return orDefault(j.ExitCode, -1) })},
		{"signal", "SIGNAL", func(j *control.Job) string { return signalOf(j, "-") }, asc(func(j *control.Job) int { return orDefault(j.Signal, -1) })},
		{"worker", "WORKER", func(j *control.Job) string { return orDash(j.WorkerID) }, asc(func(j *control.Job) string { return orDefault(j.WorkerID, "") })},
		number("node", func(j *control.Job) string { return j.Node }),
		{"pid", "PID", func(j *control.Job) string { return orDash(j.PID) }, asc(func(j *control.Job) int { return orDefault(j.PID, -1) })},
		number("user", func(j *control.Job) string { return j.User }),
		{"labels", "LABELS", func(j *control.Job) string { return cmp.Or(labels(j.Labels), "-") }, asc(func(j *control.Job) string { return labels(j.Labels) })},
		{"error", "ERROR", func(j *control.Job) string { return orDash(j.Error) }, asc(func(j *control.Job) string { return orDefault(j.Error, "") })},
		{"command", "COMMAND", title, asc(title)},
	}
	return list
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
			cells[i] = c.show(j)
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
		order := c.compare(a, b)
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
func (a *App) draw(list func() error) error {
	if !IsTerminal(a.Out) {
		return list()
	}
	a.frame = bytes.NewBufferString(time.Now().Format("15:04:05") + "\n")
	defer func() { a.frame = nil }()
	if err := list(); err != nil {
		return err
	}
	width, drawn := a.width(a.Out), "\x1b[H"
	for _, line := range foldLines(width, strings.Split(strings.TrimSuffix(a.frame.String(), "\n"), "\n")...) {
		// \x1b[K erases from the cursor on; after a full line, the cursor is still on the last character.
		if drawn += line; widthOf(line) < width {
			drawn += "\x1b[K"
		}
		drawn += "\r\n"
	}
	_, err := a.Out.WriteString(drawn + "\x1b[J")
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
