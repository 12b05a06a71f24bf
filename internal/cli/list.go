package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// listFlags holds the flags of "queuectl list" and similar commands.
type listFlags struct {
	control.JobListParams
	columns []string
	sort    string
	watch   bool
	// inStartOrder makes a table list running jobs first, then waiting jobs in the order of their start.
	inStartOrder bool
}

func (l *listFlags) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	input.LabelsVar(f, (*map[string]string)(&l.WithLabels), "label", "only jobs with the label `NAME=VALUE`")
	f.Var(input.OnceOnlyValue(&l.Submitter), "user", "only jobs that `USER` has enqueued")
	f.VarP(input.OnceOnlyValue(&l.Queue), "queue", "Q", "only jobs of this `QUEUE`")
	f.Var(input.OnceOnlyValue(&l.Batch), "batch", "only your jobs in the batch `NAME`")
	f.Var(input.OnceOnlyValue(&l.IDGlob), "id-glob", "only jobs whose ID matches `PATTERN`, such as build-*")
	input.PastTimeVar(f, &l.EndedOrEnqueuedSince, "since",
		"only jobs that ended (or, if unfinished, were enqueued) since `TIME`; 2h means 2 hours ago")
	input.PastTimeVar(f, &l.EndedOrEnqueuedBefore, "until",
		"only jobs that ended (or, if unfinished, were enqueued) before `TIME`; 2h means 2 hours ago")
	f.IntVar(&l.PageSize, "limit", 0, "list at most `N` jobs (default: 50 in tables, else all)")
	f.StringSliceVar(&l.columns, "columns", nil, "show these `COLUMNS`, separated by commas: "+
		strings.Join(present.JobColumnNames(), ", "))
	f.Var(input.NonEmptyValue(&l.sort), "sort", "sort by `COLUMN`, or in descending order with -COLUMN (default: first "+
		"running jobs, then waiting, failed and finished ones)")
	f.BoolVar(&l.watch, "watch", false, "print the list again after each change, until interrupted")
	input.CompleteValues(cmd, "columns", present.JobColumnNames()...)
	input.CompleteValues(cmd, "sort", present.JobColumnNames()...)
}

func listVerb(a *App) *cobra.Command {
	var l listFlags
	cmd := NewCommand("list", "List running, waiting, failed and finished jobs",
		NoArgs, func(ctx context.Context, _ []string) error {
			l.inStartOrder = true
			return a.printJobs(ctx, &l, present.JobRow, "ID", "STATE", "QUEUE", "NODE", "WHEN", "RAN", "EXIT", "COMMAND")
		})
	l.addTo(cmd)
	cmd.Flags().StringSliceVarP((*[]string)(&l.States), "state", "s", nil,
		"only jobs in `STATE`; waiting means blocked, held, pending or failed (to be retried); done means completed")
	cmd.Flags().BoolVar(&l.FailedOrDead, "failed", false, "only dead and failed jobs")
	input.CompleteValues(cmd, "state", stateFlagValues()...)
	return cmd
}

// psVerb returns the command "queuectl ps", which lists running jobs.
func psVerb(a *App) *cobra.Command {
	cmd := listVerb(a)
	cmd.Use, cmd.Short = "ps", "List running jobs"
	if err := cmd.Flags().Set("state", queue.Processing.String()); err != nil {
		panic(err) // cannot happen, because the command that listVerb returns has this flag
	}
	return cmd
}

// printJobs prints jobs: all of them as JSON or ids, or the first 50 as a table. headings and makeRow define the
// columns of the table, unless the user chooses the columns.
func (a *App) printJobs(ctx context.Context, l *listFlags, makeRow func(*control.Job) []string,
	headings ...string) error {
	a.MissingQueueIsEmpty = true
	if a.Cmd.Flags().Changed("limit") && l.PageSize < 1 {
		return fault.Usagef("--limit: %d is too small; use 1 or more (without --limit, a table shows 50 jobs, and other "+
			"formats all)", l.PageSize)
	}
	table := !a.WantsJSON() && !a.Quiet
	limit := l.PageSize
	if limit == 0 && table {
		limit = defaultTableRows
	}
	var err error
	if len(l.columns) > 0 {
		if !table {
			return fault.Usagef("--columns: cannot be combined with --json, --jsonl or --quiet; use one of them")
		}
		if headings, makeRow, err = selectTableColumns(l.columns); err != nil {
			return err
		}
		a.ColumnsChosenByUser = true
	}
	var order *jobSorter
	if l.sort != "" {
		if limit == 0 {
			return fault.Usagef("--sort: with --json, --jsonl or --quiet, the number of jobs must be limited; add --limit N")
		}
		if order, err = newJobSorter(l.sort, limit); err != nil {
			return err
		}
	}
	return a.WithReadOnlyClient(ctx, l.watch, func(c *control.Client) error {
		once := func() error {
			shown := limit
			if l.watch && table && l.PageSize == 0 {
				shown = a.rowsThatFitTerminal(limit)
			}
			var jobs []control.Job // jobs for a table
			var hasMore bool       // the service has jobs that the table does not show
			var err error
			if l.inStartOrder && table && order == nil {
				jobs, hasMore, err = jobsInStartOrder(ctx, c, l.JobListParams, shown)
			} else {
				jobs, hasMore, err = a.readOrPrintJobs(ctx, c, l.JobListParams, shown, order)
			}
			if err != nil || !table {
				return err
			}
			return a.printTruncatedTable(ctx, c, jobs, makeRow, headings, l.JobListParams, hasMore)
		}
		if l.watch {
			return a.RunUntilStdoutReaderGone(ctx, func(ctx context.Context) error {
				return a.redrawOnChanges(ctx, once)
			})
		}
		return once()
	})
}

// watchNonJobLines is how many lines of a screen with a watched list show no job: the time, the headings, the number of
// jobs that are not listed, and the line with the cursor.
const watchNonJobLines = 4

// rowsThatFitTerminal returns how many of the given number of rows fit on the terminal, at least 1.
func (a *App) rowsThatFitTerminal(rowCount int) int {
	if height := term.TerminalLines(a.Stdout); height > 0 {
		return max(1, min(rowCount, height-watchNonJobLines))
	}
	return rowCount
}

// jobsInStartOrder returns up to limit jobs for a table, in the order of sortJobsForTable. hasMore reports whether
// there are more jobs.
func jobsInStartOrder(ctx context.Context, c *control.Client, p control.JobListParams, limit int) (
	jobs []control.Job, hasMore bool, err error) {
	if !hasNonStateFilter(p) && limit <= maxSectionRows {
		if jobs, hasMore, err = firstJobsFromScreen(ctx, c, p, limit); !errors.Is(err, errTooFewScreenJobs) {
			return jobs, hasMore, err
		}
	}
	return newestJobsByState(ctx, c, p, limit)
}

// readOrPrintJobs reads up to limit jobs, or all jobs if limit is 0. If jobOrder is nil, it reads the newest jobs,
// otherwise the first jobs in this order. For a table, it returns the jobs in tableJobs. For any other format, it
// prints the jobs as JSON or ids. hasMore reports whether there are more jobs.
func (a *App) readOrPrintJobs(ctx context.Context, c *control.Client, p control.JobListParams, limit int,
	jobOrder *jobSorter) (tableJobs []control.Job, hasMore bool, err error) {
	printed, seen := 0, 0
	out := bufio.NewWriter(a.Writer())
	list := term.NewJSONListPrinter(out, a.JSONL)
	print := func(jobs []control.Job) (err error) {
		for i := range jobs {
			switch {
			case a.Quiet:
				_, err = fmt.Fprintln(out, jobs[i].ID)
			case a.WantsJSON():
				err = list.Add(&jobs[i])
			default:
				tableJobs = append(tableJobs, jobs[i])
			}
			if err != nil {
				return err
			}
			printed++
		}
		return nil
	}
	for hasMore = true; hasMore && (limit == 0 || jobOrder != nil || printed < limit); {
		p.PageSize = control.MaxJobsPerSelection
		if limit > 0 && jobOrder == nil {
			p.PageSize = min(control.MaxJobsPerSelection, limit-printed)
		}
		page, err := c.ListJobs(ctx, p)
		if err != nil {
			return nil, false, err
		}
		if hasMore = page.NextCursor != nil; hasMore {
			p.Cursor = *page.NextCursor
		}
		seen += len(page.Jobs)
		if jobOrder != nil {
			jobOrder.add(page.Jobs)
		} else if err := print(page.Jobs); err != nil {
			return nil, false, err
		}
	}
	if jobOrder != nil {
		if err := print(jobOrder.sortAndTrim()); err != nil {
			return nil, false, err
		}
		jobOrder.jobs, hasMore = nil, seen > printed
	}
	if a.WantsJSON() && !a.Quiet {
		list.End() // ignore the error, because Flush below returns it
	}
	return tableJobs, hasMore, out.Flush()
}

// printTruncatedTable prints a table of jobs. If hasMore is true, it also prints how many more jobs there are.
func (a *App) printTruncatedTable(ctx context.Context, c *control.Client, jobs []control.Job,
	makeRow func(*control.Job) []string, headings []string, p control.JobListParams, hasMore bool) error {
	if len(jobs) == 0 {
		return a.PrintTerminalMessage("no jobs")
	}
	rows := make([][]string, len(jobs))
	for i := range jobs {
		rows[i] = makeRow(&jobs[i])
	}
	if !a.ColumnsChosenByUser {
		headings, rows = present.DropUninformativeColumns(present.InsertProgressColumn(headings, rows, jobs))
	}
	if err := a.printJobsTable(headings, rows); err != nil {
		return err
	}
	if !hasMore {
		return nil
	}
	st, err := c.Status(ctx, control.NoParams{})
	if err != nil {
		return err
	}
	if hasNonStateFilter(p) {
		return a.Println(termtext.TextForLocale("… and more jobs (use --limit N)"))
	}
	var total int64
	names, _ := expandStateNames(&p) // ignore the error: the service has already accepted the states
	for _, name := range names {
		total += st.Jobs[name]
	}
	return a.Println(termtext.TextForLocale("…") + " and " +
		present.Plural(int(max(1, total-int64(len(rows)))), "more job") + " (use --limit N)")
}

// sortJobsForTable sorts jobs for a table: running jobs, waiting jobs in the order in which they will start, held
// and blocked jobs, dead jobs, other ended jobs. Among ended jobs, the last one to end comes first.
func sortJobsForTable(jobs []control.Job, now time.Time) {
	place := func(j *control.Job) (group int, sortKey int64) {
		due := max(j.RunAt, j.NextRetryAt)
		switch state := present.ParseStateOrZero(j.State); {
		case state == queue.Processing:
			return 0, j.Seq
		case state.IsRunnable() && queue.UnixMillis(due).Time().After(now):
			return 2, int64(due)
		case state.IsRunnable():
			return 1, -j.EffectivePriority
		case state == queue.Dead:
			return 4, -int64(j.FinishedAt)
		case state.HasEnded():
			return 5, -int64(j.FinishedAt)
		}
		return 3, j.Seq
	}
	sort.Stable(sortableJobs{jobs, func(a, b *control.Job) int {
		groupA, atA := place(a)
		groupB, atB := place(b)
		return cmp.Or(cmp.Compare(groupA, groupB), cmp.Compare(atA, atB), cmp.Compare(a.Seq, b.Seq))
	}})
}

// defaultTableRows is how many jobs a table shows without --limit.
const defaultTableRows = 50

// firstJobsFromScreen returns up to limit jobs in the states that p selects. It takes them from the status screen,
// which contains only some jobs of each state. If the screen contains too few jobs, it returns errTooFewScreenJobs.
func firstJobsFromScreen(ctx context.Context, c *control.Client, p control.JobListParams,
	limit int) (jobs []control.Job,
	hasMore bool, err error) {
	wanted, err := expandStateNames(&p)
	if err != nil {
		return nil, false, err
	}
	s, err := c.ReadOverviewScreen(ctx, control.OverviewScreenParams{JobsPerSection: min(limit, maxSectionRows)})
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
	wantedOnly := func(list []control.Job) []control.Job {
		return slices.DeleteFunc(list, func(j control.Job) bool { return !slices.Contains(wanted, j.State) })
	}
	var running, ended []control.Job
	for _, j := range s.Running {
		running = append(running, j.Job)
	}
	for _, j := range s.Dead {
		ended = append(ended, j.Job)
	}
	open := wantedOnly(slices.Concat(running, s.Ready, s.Delayed, s.HeldOrBlocked))
	dead, done := wantedOnly(ended), wantedOnly(s.Done)
	jobs = selectTableJobs(open, dead, done, limit)
	if int64(len(jobs)) < min(total, int64(limit)) && (len(p.States) > 0 || p.FailedOrDead) {
		return nil, false, errTooFewScreenJobs
	}
	return jobs, total > int64(len(jobs)), nil
}

// errTooFewScreenJobs means that the status screen contains fewer jobs of the requested states than the table can
// show.
var errTooFewScreenJobs = errors.New("the status screen shows too few of these jobs")

// newestJobsByState returns the jobs for a table. It reads the newest jobs of each group of states with separate
// requests. So it finds running and waiting jobs even if very many newer jobs have ended.
func newestJobsByState(ctx context.Context, c *control.Client, p control.JobListParams, limit int) (jobs []control.Job,
	hasMore bool, err error) {
	wanted, err := expandStateNames(&p)
	if err != nil {
		return nil, false, err
	}
	p.FailedOrDead = false
	read := func(states ...queue.State) (list []control.Job) {
		p := p
		p.States = nil
		for _, state := range states {
			if slices.Contains(wanted, state.String()) {
				p.States = append(p.States, state.String())
			}
		}
		for next := len(p.States) > 0; next && len(list) < limit && err == nil; {
			var page control.JobPage
			p.PageSize = min(control.MaxJobsPerSelection, limit-len(list))
			page, err = c.ListJobs(ctx, p)
			list = append(list, page.Jobs...)
			if next = page.NextCursor != nil; next {
				p.Cursor = *page.NextCursor
			}
			hasMore = hasMore || next && len(list) >= limit
		}
		sortJobsForTable(list, time.Now())
		return list
	}
	open := append(read(queue.Processing), read(queue.Pending, queue.Failed, queue.Held, queue.Blocked)...)
	dead, done := read(queue.Dead), read(queue.Completed, queue.Cancelled)
	jobs = selectTableJobs(open, dead, done, limit)
	return jobs, hasMore || len(jobs) < len(open)+len(dead)+len(done), err
}

// selectTableJobs selects the jobs for a table with limit rows. The running and waiting jobs (unfinishedJobs) get at
// most half of the rows, or more if there are not enough dead and other ended jobs to fill the other half.
func selectTableJobs(unfinishedJobs, deadJobs, otherEndedJobs []control.Job, limit int) (jobs []control.Job) {
	room := max(limit/2, limit-len(deadJobs)-len(otherEndedJobs), 1)
	jobs = append(jobs, unfinishedJobs[:min(len(unfinishedJobs), room)]...)
	room = limit - len(jobs)
	jobs = append(jobs, deadJobs[:min(len(deadJobs), max(room/2, room-len(otherEndedJobs)))]...)
	return append(jobs, otherEndedJobs[:min(len(otherEndedJobs), limit-len(jobs))]...)
}

// hasNonStateFilter reports whether a list has any filter other than states.
func hasNonStateFilter(p control.JobListParams) bool {
	return len(p.WithLabels) > 0 || p.Submitter != "" || p.Queue != "" || p.EndedOrEnqueuedSince != 0 ||
		p.EndedOrEnqueuedBefore != 0 || p.Batch != "" || p.IDGlob != ""
}

// expandStateNames returns the names of the states that p selects, each name once. A name in p, such as "waiting", may
// select several states.
func expandStateNames(p *control.JobListParams) (names []string, err error) {
	var selected []queue.State
	for _, name := range p.States {
		states, err := queue.ParseStates(name)
		if err != nil {
			return nil, err
		}
		selected = append(selected, states...)
	}
	if p.FailedOrDead {
		selected = append(selected, queue.Dead, queue.Failed)
	}
	for _, s := range queue.States() {
		if len(selected) == 0 || slices.Contains(selected, s) {
			names = append(names, s.String())
		}
	}
	return names, nil
}

// findJobColumn returns the column with a name. flagName is the flag that the error about an unknown name names.
func findJobColumn(flagName, name string) (present.JobColumn, error) {
	for _, c := range present.JobColumns() {
		if c.Name == strings.ReplaceAll(name, "-", "_") {
			return c, nil
		}
	}
	return present.JobColumn{}, fault.Usagef("--%s: unknown column %q%s", flagName, name,
		hints.SimilarWordHint(name, present.JobColumnNames(), "use one of: "+strings.Join(present.JobColumnNames(), ", ")))
}

// selectTableColumns returns the headings of the named columns, and a function that returns a job's row.
func selectTableColumns(names []string) (headings []string, makeRow func(*control.Job) []string, err error) {
	list := make([]present.JobColumn, len(names))
	for i, name := range names {
		if list[i], err = findJobColumn("columns", name); err != nil {
			return nil, nil, err
		}
		headings = append(headings, list[i].Heading)
	}
	return headings, func(j *control.Job) []string {
		cells := make([]string, len(list))
		for i, c := range list {
			cells[i] = c.CellOf(j).Text
		}
		return cells
	}, nil
}

// jobSorter collects the first jobs in the order of compare. From time to time, it drops all jobs after the first limit
// jobs, so its memory use is bounded.
type jobSorter struct {
	compare func(a, b *control.Job) int
	limit   int
	jobs    []control.Job
}

// newJobSorter parses the value of --sort: COLUMN for ascending order, or -COLUMN for descending order. limit is how
// many jobs the sorter returns in the end.
func newJobSorter(sortFlag string, limit int) (*jobSorter, error) {
	name, down := strings.CutPrefix(sortFlag, "-")
	c, err := findJobColumn("sort", name)
	if err != nil {
		return nil, err
	}
	return &jobSorter{limit: limit, compare: func(a, b *control.Job) int {
		order := present.CompareCells(c.CellOf(a), c.CellOf(b))
		if down {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(b.Seq, a.Seq))
	}}, nil
}

func (s *jobSorter) add(jobs []control.Job) {
	s.jobs = append(s.jobs, jobs...)
	if len(s.jobs) > 2*s.limit+1000 {
		s.sortAndTrim()
	}
}

// sortAndTrim sorts the collected jobs, keeps the first limit jobs and returns them.
func (s *jobSorter) sortAndTrim() []control.Job {
	sort.Stable(sortableJobs{s.jobs, s.compare})
	s.jobs = s.jobs[:min(len(s.jobs), s.limit)]
	return s.jobs
}

// sortableJobs implements sort.Interface, so that sort.Stable can sort jobs in place. Calls of sort.SliceStable or
// slices.SortStableFunc would make queuectl several kilobytes larger.
type sortableJobs struct {
	jobs    []control.Job
	compare func(a, b *control.Job) int
}

func (o sortableJobs) Len() int { return len(o.jobs) }

func (o sortableJobs) Less(i, j int) bool { return o.compare(&o.jobs[i], &o.jobs[j]) < 0 }

func (o sortableJobs) Swap(i, j int) { o.jobs[i], o.jobs[j] = o.jobs[j], o.jobs[i] }
