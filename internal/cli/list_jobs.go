package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// sortForTable sorts jobs for a table: running jobs, waiting jobs in the order of their start, held and
// blocked jobs, dead jobs, and other ended jobs. Among ended jobs, the job that ended last comes first.
func sortForTable(jobs []control.Job, now time.Time) {
	place := func(j *control.Job) (group int, at int64) {
		due := max(j.RunAt, j.NextRetryAt)
		switch state := present.ParseState(j.State); {
		case state == queue.Processing:
			return 0, j.Seq
		case state.Runnable() && queue.Millis(due).Time().After(now):
			return 2, int64(due)
		case state.Runnable():
			return 1, -j.EffectivePriority
		case state == queue.Dead:
			return 4, -int64(j.FinishedAt)
		case state.Ended():
			return 5, -int64(j.FinishedAt)
		}
		return 3, j.Seq
	}
	sort.Stable(jobOrder{jobs, func(a, b *control.Job) int {
		groupA, atA := place(a)
		groupB, atB := place(b)
		return cmp.Or(cmp.Compare(groupA, groupB), cmp.Compare(atA, atB), cmp.Compare(a.Seq, b.Seq))
	}})
}

// defaultTableRows is how many jobs a table shows without --limit.
const defaultTableRows = 50

// firstJobs returns the first limit jobs of the whole queue, or of some states. It reads them from the
// reply to the request for the status screen. It returns errTooFewJobs if that reply contains too few jobs of
// these states.
func firstJobs(ctx context.Context, c *control.Client, p control.List, limit int) (jobs []control.Job, more bool,
	err error) {
	wanted, err := expandStateNames(&p)
	if err != nil {
		return nil, false, err
	}
	s, err := c.Screen(ctx, control.ScreenParams{Rows: min(limit, maxRows)})
	if err != nil {
		return nil, false, err
	}
	if s.Status.StoreError != "" {
		return nil, false, queue.Errorf(queue.CodeUnavailable, "%s", s.Status.StoreError)
	}
	var total int64
	for _, name := range wanted {
		total += s.Status.Jobs[name]
	}
	of := func(list []control.Job) []control.Job {
		return slices.DeleteFunc(list, func(j control.Job) bool { return !slices.Contains(wanted, j.State) })
	}
	var running, ended []control.Job
	for i := range s.Running {
		running = append(running, s.Running[i].Job)
	}
	for i := range s.Dead {
		ended = append(ended, s.Dead[i].Job)
	}
	open, dead, done := of(slices.Concat(running, s.Ready, s.Delayed, s.HeldOrBlocked)), of(ended), of(s.Done)
	jobs = selectTableJobs(open, dead, done, limit)
	if int64(len(jobs)) < min(total, int64(limit)) && (len(p.State) > 0 || p.Failed) {
		return nil, false, errTooFewJobs
	}
	return jobs, total > int64(len(jobs)), nil
}

// errTooFewJobs means that a reply to the request for the status screen contains too few jobs.
var errTooFewJobs = errors.New("the status screen shows too few of these jobs")

// newestJobs returns the jobs for a table. It reads the newest jobs of each state with a separate
// request. So it finds running and waiting jobs even if very many jobs have ended.
func newestJobs(ctx context.Context, c *control.Client, p control.List, limit int) (jobs []control.Job, more bool,
	err error) {
	wanted, err := expandStateNames(&p)
	if err != nil {
		return nil, false, err
	}
	p.Failed = false
	read := func(states ...queue.State) (list []control.Job) {
		p := p
		p.State = nil
		for _, state := range states {
			if slices.Contains(wanted, state.String()) {
				p.State = append(p.State, state.String())
			}
		}
		for next := len(p.State) > 0; next && len(list) < limit && err == nil; {
			var page control.JobPage
			p.Limit = min(control.MaxSelectedPerRequest, limit-len(list))
			page, err = c.List(ctx, p)
			list = append(list, page.Jobs...)
			if next = page.Next != nil; next {
				p.Cursor = *page.Next
			}
			more = more || next && len(list) >= limit
		}
		sortForTable(list, time.Now())
		return list
	}
	open := append(read(queue.Processing), read(queue.Pending, queue.Failed, queue.Held, queue.Blocked)...)
	dead, done := read(queue.Dead), read(queue.Completed, queue.Cancelled)
	jobs = selectTableJobs(open, dead, done, limit)
	return jobs, more || len(jobs) < len(open)+len(dead)+len(done), err
}

// selectTableJobs selects the jobs for a table with limit rows. If there are enough dead and ended jobs, the
// running and waiting jobs (open) get at most half of the rows.
func selectTableJobs(open, dead, done []control.Job, limit int) (jobs []control.Job) {
	room := max(limit/2, limit-len(dead)-len(done), 1)
	jobs = append(jobs, open[:min(len(open), room)]...)
	room = limit - len(jobs)
	jobs = append(jobs, dead[:min(len(dead), max(room/2, room-len(done)))]...)
	return append(jobs, done[:min(len(done), limit-len(jobs))]...)
}

// hasFilter reports whether anything except states restricts a list.
func hasFilter(p control.List) bool {
	return len(p.Label) > 0 || p.User != "" || p.Queue != "" || p.Since != 0 || p.Until != 0 || p.Batch != "" ||
		p.IDGlob != ""
}

// expandStateNames returns the names of the states that a list selects, each once.
func expandStateNames(p *control.List) (names []string, err error) {
	var selected []queue.State
	for _, name := range p.State {
		states, err := queue.ParseStates(name)
		if err != nil {
			return nil, err
		}
		selected = append(selected, states...)
	}
	if p.Failed {
		selected = append(selected, queue.Dead, queue.Failed)
	}
	for _, s := range queue.States() {
		if len(selected) == 0 || slices.Contains(selected, s) {
			names = append(names, s.String())
		}
	}
	return names, nil
}

// findColumn returns the column with a name. The error about an unknown name contains the parameter
// flag.
func findColumn(flag, name string) (present.Column, error) {
	for _, c := range present.Columns() {
		if c.Name == strings.ReplaceAll(name, "-", "_") {
			return c, nil
		}
	}
	return present.Column{}, fault.Usagef("--%s: unknown column %q%s", flag, name,
		hints.SimilarWordHint(name, present.ColumnNames(), "use one of: "+strings.Join(present.ColumnNames(), ", ")))
}

// columnFuncs returns the headings of the named columns, and a function that returns a job's row.
func columnFuncs(names []string) (head []string, row func(*control.Job) []string, err error) {
	list := make([]present.Column, len(names))
	for i, name := range names {
		if list[i], err = findColumn("columns", name); err != nil {
			return nil, nil, err
		}
		head = append(head, list[i].Title)
	}
	return head, func(j *control.Job) []string {
		cells := make([]string, len(list))
		for i, c := range list {
			cells[i] = c.Value(j).Text
		}
		return cells
	}, nil
}

// sorter collects jobs in an order. Its memory use is bounded, because it keeps only the first limit
// jobs.
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
		order := present.CompareCells(c.Value(a), c.Value(b))
		if down {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(b.Seq, a.Seq))
	}}, nil
}

func (s *sorter) add(jobs []control.Job) {
	s.jobs = append(s.jobs, jobs...)
	if len(s.jobs) > 2*s.limit+1000 {
		s.trim()
	}
}

// trim sorts the collected jobs, keeps the first limit of them, and drops the rest.
func (s *sorter) trim() []control.Job {
	sort.Stable(jobOrder{s.jobs, s.compare})
	s.jobs = s.jobs[:min(len(s.jobs), s.limit)]
	return s.jobs
}

// jobOrder sorts jobs in place with sort.Stable. The functions sort.SliceStable and slices.SortStableFunc
// would add kilobytes to queuectl.
type jobOrder struct {
	jobs    []control.Job
	compare func(a, b *control.Job) int
}

func (o jobOrder) Len() int { return len(o.jobs) }

func (o jobOrder) Less(i, j int) bool { return o.compare(&o.jobs[i], &o.jobs[j]) < 0 }

func (o jobOrder) Swap(i, j int) { o.jobs[i], o.jobs[j] = o.jobs[j], o.jobs[i] }
