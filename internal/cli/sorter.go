package cli

import (
	"cmp"
	"sort"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/internal/present"
)

// findColumn returns the column with a name. The error about an unknown name contains the parameter
// flag.
func findColumn(flag, name string) (present.Column, error) {
	for _, c := range present.Columns() {
		if c.Name == strings.ReplaceAll(name, "-", "_") {
			return c, nil
		}
	}
	return present.Column{}, fault.Usage("--%s: unknown column %q%s", flag, name,
		hints.SimilarWord(name, present.ColumnNames(), "use one of: "+strings.Join(present.ColumnNames(), ", ")))
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
		s.keep()
	}
}

// keep sorts the collected jobs, keeps the first limit of them, and drops the rest.
func (s *sorter) keep() []control.Job {
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
