package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// tableLimit is how many jobs a table shows without --limit.
const tableLimit = 50

type listFlags struct {
	columns []string
	sort    string
	watch   bool
	arrange bool // tables show running jobs first, then waiting jobs in the order in which they will start

	states []string
	failed bool
	labels map[string]string
	queue  string
	batch  string
	user   string
	idGlob string
	since  control.Time
	until  control.Time
	limit  int
}

func (l *listFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	labelsVar(f, &l.labels, "label", "only jobs with the label `NAME=VALUE`")
	f.Var(givenOnce(&l.user), "user", "only jobs that `USER` has enqueued")
	f.VarP(givenOnce(&l.queue), "queue", "Q", "only jobs of this `QUEUE`")
	f.Var(givenOnce(&l.batch), "batch", "only your jobs in the batch `NAME`")
	f.Var(givenOnce(&l.idGlob), "id-glob", "only jobs whose ID matches `PATTERN`, such as build-*")
	instantVar(f, &l.since, "since", "only jobs that ended (or, if unfinished, were enqueued) since `TIME`; 2h means 2 hours ago")
	instantVar(f, &l.until, "until", "only jobs that ended (or, if unfinished, were enqueued) before `TIME`; 2h means 2 hours ago")
	f.IntVar(&l.limit, "limit", 0, "list at most `N` jobs (default: 50 in tables, else all)")
	f.StringSliceVar(&l.columns, "columns", nil, "show these `COLUMNS`, separated by commas: "+strings.Join(columnNames(), ", "))
	f.Var(NonEmpty(&l.sort), "sort", "sort by `COLUMN`, or in descending order with -COLUMN (default: first running jobs, then waiting, failed and finished ones)")
	f.BoolVar(&l.watch, "watch", false, "print the list again after each change, until interrupted")
	for _, flag := range []string{"columns", "sort"} {
		// This call fails only if the flag does not exist.
		cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(columnNames(), cobra.ShellCompDirectiveNoFileComp))
	}
}

func (l *listFlags) params(cmd *cobra.Command) (control.List, error) {
	p := control.List{State: l.states, Failed: l.failed, Label: l.labels, Queue: l.queue, Batch: l.batch, User: l.user, IDGlob: l.idGlob, Since: l.since, Until: l.until}
	if cmd.Flags().Changed("limit") && l.limit < 1 {
		return p, Usage("--limit: %d is too small; use 1 or more, or leave out --limit (50 jobs in a table, otherwise all)", l.limit)
	}
	return p, nil
}

// instantVar adds a flag for a time in the past, like --since.
func instantVar(f *pflag.FlagSet, at *control.Time, name, doc string) {
	f.Func(name, doc, func(text string) (err error) {
		*at, err = sinceWhen(text)
		return err
	})
}

// sinceWhen parses the value of --since: a time, or a duration before now.
func sinceWhen(text string) (control.Time, error) {
	if text == "" {
		return 0, errEmpty
	}
	now := time.Now()
	if s, err := parseStep(text); err == nil {
		return control.Time(queue.MillisOf(s.fromNow(now, backward))), nil
	}
	t, err := parseWhen(text, now, backward)
	return control.Time(queue.MillisOf(t)), err
}

func listVerb(a *App) *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List running, waiting, failed and finished jobs", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l.arrange = true
			return a.list(cmd, &l, (*control.Client).List, jobRow, []string{"ID", "STATE", "QUEUE", "NODE", "WHEN", "RAN", "EXIT", "COMMAND"})
		},
	}
	l.add(cmd)
	cmd.Flags().StringSliceVarP(&l.states, "state", "s", nil, "only jobs in `STATE`; waiting means blocked, held, pending or failed (to be retried); done means completed")
	cmd.Flags().BoolVar(&l.failed, "failed", false, "only dead and failed jobs")
	cmd.RegisterFlagCompletionFunc("state", completeStates) // fails only if the flag does not exist
	return cmd
}

// psVerb returns the command ps, which lists running jobs.
func psVerb(a *App) *cobra.Command {
	cmd := listVerb(a)
	cmd.Use, cmd.Short = "ps", "List running jobs"
	if err := cmd.Flags().Set("state", queue.Processing.String()); err != nil {
		panic(err) // this cannot happen, because the command list has the flag
	}
	return cmd
}

// firstJobs returns the first limit jobs of the whole queue, or of some states, from the screen's
// reply. It returns queue.ErrUnsupported if the reply has too few jobs of these states.
func firstJobs(ctx context.Context, c *control.Client, p control.List, limit int) (jobs []control.Job, more bool, err error) {
	for _, name := range p.State {
		if _, err := queue.ParseStates(name); err != nil {
			return nil, false, err
		}
	}
	s, err := c.Screen(ctx, control.ScreenRows{Rows: min(limit, mostRows)})
	if err != nil {
		return nil, false, err
	}
	if s.Status.Away != "" {
		return nil, false, queue.Errorf(queue.CodeUnavailable, "%s", s.Status.Away)
	}
	if p.Failed {
		p.State = append(slices.Clone(p.State), queue.Dead.String(), queue.Failed.String())
	}
	var total int64
	wanted := stateNames(p.State)
	for name, n := range s.Status.Jobs {
		if slices.Contains(wanted, name) {
			total += n
		}
	}
	of := func(list []control.Job) []control.Job {
		return slices.DeleteFunc(list, func(j control.Job) bool { return !slices.Contains(wanted, j.State) })
	}
	var open []control.Job
	for i := range s.Running {
		open = append(open, s.Running[i].Job)
	}
	open = of(append(append(append(open, s.Ready...), s.Timed...), s.Kept...))
	var ended []control.Job
	for i := range s.Dead {
		ended = append(ended, s.Dead[i].Job)
	}
	dead, done := of(ended), of(s.Done)
	jobs = inOneTable(open, dead, done, limit)
	if int64(len(jobs)) < min(total, int64(limit)) && len(p.State) > 0 {
		return nil, false, queue.ErrUnsupported
	}
	return jobs, total > int64(len(jobs)), nil
}

type pager func(*control.Client, context.Context, control.List) (control.JobPage, error)

// list prints jobs: all of them as JSON or ids, or the first 50 as a table.
func (a *App) list(cmd *cobra.Command, l *listFlags, read pager, row func(*control.Job) []string, head []string) error {
	a.missingIsEmpty = true
	p, err := l.params(cmd)
	if err != nil {
		return err
	}
	table := !a.Structured() && !a.Quiet
	limit := l.limit
	if limit == 0 && table {
		limit = tableLimit
	}
	if len(l.columns) > 0 {
		if !table {
			return Usage("--columns: works only for a table, not with --json, --jsonl or --quiet; leave it out")
		}
		if head, row, err = columnFuncs(l.columns); err != nil {
			return err
		}
		a.ownColumns = true
	}
	var order *sorter
	if l.sort != "" {
		if limit == 0 {
			return Usage("--sort: needs --limit with --json, --jsonl and --quiet; add --limit N")
		}
		if order, err = newSorter(l.sort, limit); err != nil {
			return err
		}
	}
	c, err := a.readerUnless(cmd.Context(), l.watch)
	if err != nil {
		return err
	}
	defer c.Close()
	fixed := limit
	once := func() error {
		if limit = fixed; l.watch && table && l.limit == 0 {
			limit = a.rowsInWindow(limit)
		}
		if l.arrange && table && order == nil {
			return a.listArranged(cmd.Context(), c, p, limit, row, head)
		}
		return a.listOnce(cmd.Context(), c, p, read, limit, order, row, head)
	}
	if l.watch {
		return a.whileRead(cmd.Context(), func(ctx context.Context) error { return a.watch(ctx, once) })
	}
	return once()
}

// watchFrame is the number of lines on a watched screen that show no job: the time, the heading,
// the number of further jobs, and the cursor's line.
const watchFrame = 4

// rowsInWindow returns the parameter rows, or the number of rows that fit the terminal if fewer do.
func (a *App) rowsInWindow(rows int) int {
	if height := lineCount(a.Out); height > 0 {
		return max(1, min(rows, height-watchFrame))
	}
	return rows
}

// listArranged prints a table of up to limit jobs, the most interesting ones first.
func (a *App) listArranged(ctx context.Context, c *control.Client, p control.List, limit int, row func(*control.Job) []string, head []string) error {
	var jobs []control.Job
	var more bool
	var err error
	if !filtered(p) && limit <= mostRows {
		jobs, more, err = firstJobs(ctx, c, p, limit)
	} else {
		err = queue.ErrUnsupported
	}
	if errors.Is(err, queue.ErrUnsupported) { // firstJobs or an older service returned this error
		jobs, more, err = newestJobs(ctx, c, p, limit)
	}
	if err != nil {
		return err
	}
	rows := make([][]string, len(jobs))
	for i := range jobs {
		rows[i] = row(&jobs[i])
	}
	if !a.ownColumns {
		head, rows = withProgress(head, rows, jobs)
	}
	return a.endTable(ctx, c, rows, head, p, more)
}

// newestJobs returns the jobs for a table, read state by state. Reading each state separately finds
// running and waiting jobs even if very many jobs have ended. Of each state it reads the newest
// jobs.
func newestJobs(ctx context.Context, c *control.Client, p control.List, limit int) (jobs []control.Job, more bool, err error) {
	for _, name := range p.State {
		if _, err := queue.ParseStates(name); err != nil {
			return nil, false, err
		}
	}
	if p.Failed {
		p.State, p.Failed = append(slices.Clone(p.State), queue.Dead.String(), queue.Failed.String()), false
	}
	wanted := stateNames(p.State)
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
			p.Limit = min(control.SelectStep, limit-len(list))
			page, err = c.List(ctx, p)
			list = append(list, page.Jobs...)
			if next = page.Next != nil; next {
				p.Cursor = *page.Next
			}
			more = more || next && len(list) >= limit
		}
		arranged(list, time.Now())
		return list
	}
	open := append(read(queue.Processing), read(queue.Pending, queue.Failed, queue.Held, queue.Blocked)...)
	dead, done := read(queue.Dead), read(queue.Completed, queue.Cancelled)
	jobs = inOneTable(open, dead, done, limit)
	return jobs, more || len(jobs) < len(open)+len(dead)+len(done), err
}

// inOneTable selects the jobs for a table with limit rows. Running and waiting jobs (open) get at
// most half of the rows if dead and ended jobs can fill the other half.
func inOneTable(open, dead, done []control.Job, limit int) (jobs []control.Job) {
	room := max(limit/2, limit-len(dead)-len(done), 1)
	jobs = append(jobs, open[:min(len(open), room)]...)
	room = limit - len(jobs)
	jobs = append(jobs, dead[:min(len(dead), max(room/2, room-len(done)))]...)
	return append(jobs, done[:min(len(done), limit-len(jobs))]...)
}

// filtered reports whether a list is restricted by anything except states.
func filtered(p control.List) bool {
	return len(p.Label) > 0 || p.User != "" || p.Queue != "" || p.Since != 0 || p.Until != 0 || p.Batch != "" || p.IDGlob != ""
}

// withoutPlain removes columns without information: QUEUE if every job is in the default queue, and
// NODE and TYPICAL if no value is known.
func withoutPlain(head []string, rows [][]string) ([]string, [][]string) {
	for name, plain := range map[string][]string{"QUEUE": {queue.DefaultQueue, ""}, "NODE": {"", "-"}, "TYPICAL": {"-"}} {
		at := slices.Index(head, name)
		if at < 0 || slices.ContainsFunc(rows, func(row []string) bool { return !slices.Contains(plain, row[at]) }) {
			continue
		}
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
		head = slices.Delete(slices.Clone(head), at, at+1)
	}
	return head, rows
}

// listOnce prints up to limit jobs, or all if limit is 0. Without --sort it prints the newest jobs,
// with --sort the first ones in that order.
func (a *App) listOnce(ctx context.Context, c *control.Client, p control.List, read pager, limit int, order *sorter, row func(*control.Job) []string, head []string) error {
	var rows [][]string
	var inTable []control.Job
	printed, seen, more := 0, 0, true
	whole := a.JSON && !a.JSONL && !a.Quiet
	out := bufio.NewWriter(a.out())
	list := newArray(out)
	print := func(jobs []control.Job) (err error) {
		for i := range jobs {
			switch j := &jobs[i]; {
			case a.Quiet:
				_, err = fmt.Fprintln(out, j.ID)
			case whole:
				err = list.add(j)
			case a.Structured():
				err = writeJSON(out, j)
			default:
				rows, inTable = append(rows, row(j)), append(inTable, *j)
			}
			if err != nil {
				return err
			}
			printed++
		}
		return nil
	}
	for more && (limit == 0 || order != nil || printed < limit) {
		p.Limit = control.SelectStep
		if limit > 0 && order == nil {
			p.Limit = min(control.SelectStep, limit-printed)
		}
		page, err := read(c, ctx, p)
		if err != nil {
			return err
		}
		if more = page.Next != nil; more {
			p.Cursor = *page.Next
		}
		seen += len(page.Jobs)
		if order != nil {
			order.add(page.Jobs)
		} else if err := print(page.Jobs); err != nil {
			return err
		}
	}
	if order != nil {
		if err := print(order.keep()); err != nil {
			return err
		}
		order.jobs, more = nil, seen > printed
	}
	if whole {
		list.end() // an error of this write is returned by Flush
	}
	if err := out.Flush(); err != nil || a.Structured() || a.Quiet {
		return err
	}
	if !a.ownColumns {
		head, rows = withProgress(head, rows, inTable)
	}
	return a.endTable(ctx, c, rows, head, p, more)
}

// jobsTable prints a table of jobs. On a terminal each state has its sign and colour.
func (a *App) jobsTable(head []string, rows [][]string) error {
	state := slices.Index(head, "STATE")
	if state < 0 || !IsTerminal(a.Out) {
		return a.table(head, rows)
	}
	for _, row := range rows {
		row[state] = signOf(row[state]).sign + " " + row[state]
	}
	return a.paintedTable(head, rows, func(column int, cell string) string {
		if column == state {
			cell = a.signed(cell, true)
		}
		return cell
	})
}

// endTable prints the table, and how many more jobs there are.
func (a *App) endTable(ctx context.Context, c *control.Client, rows [][]string, head []string, p control.List, more bool) error {
	if len(rows) == 0 {
		a.Say("no jobs")
		return nil
	}
	if !a.ownColumns {
		head, rows = withoutPlain(head, rows)
	}
	if err := a.jobsTable(head, rows); err != nil {
		return err
	}
	if !more {
		return nil
	}
	st, err := c.Status(ctx, control.Nothing{})
	if err != nil {
		return err
	}
	if filtered(p) {
		return a.Println(Sign("… and more jobs (use --limit N)"))
	}
	var total int64
	if p.Failed {
		p.State = append(p.State, queue.Dead.String(), queue.Failed.String())
	}
	for _, name := range stateNames(p.State) {
		total += st.Jobs[name]
	}
	return a.Println(Sign("…") + " and " + plural(int(max(1, total-int64(len(rows)))), "more job") + " (use --limit N)")
}

func stateNames(asked []string) (names []string) {
	if len(asked) == 0 {
		for _, s := range queue.States() {
			names = append(names, s.String())
		}
		return names
	}
	for _, name := range asked {
		if states, err := queue.ParseStates(name); err == nil {
			for _, s := range states {
				names = append(names, s.String())
			}
		}
	}
	return names
}
