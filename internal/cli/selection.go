package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// selection holds the flags that select jobs for a bulk command.
type selection struct {
	control.Selection
	labelFlag string   // name of the label flag; "" means "label"
	states    []string // states that --state accepts; nil for all
	yes       bool
}

// add adds the flags that select jobs. short is the one-letter form of --state; "" for none.
func (s *selection) add(cmd *cobra.Command, short string) {
	f := cmd.Flags()
	f.BoolVar(&s.All, "all", false, "select every job that the command can act on")
	f.StringSliceVarP((*[]string)(&s.State), "state", short, nil, "select jobs in `STATE`"+s.statesUsage())
	failed, older, hidden := s.usage()
	f.BoolVar(&s.Failed, "failed", false, failed)
	f.Lookup("failed").Hidden = hidden
	labelsVar(f, (*map[string]string)(&s.Label), cmp.Or(s.labelFlag, "label"), "select jobs with the label `NAME=VALUE`")
	letter, name := "Q", "queue"
	if s.labelFlag != "" {
		letter, name = "", "where-queue"
	}
	f.VarP(givenOnce(&s.Queue), name, letter, "select jobs of this `QUEUE`")
	setsField(f.Lookup(name), "queue")
	setsField(f.Lookup(cmp.Or(s.labelFlag, "label")), "label")
	f.Var(givenOnce(&s.Batch), "batch", "select your jobs in the batch `NAME`")
	f.Var(givenOnce(&s.User), "user", "select jobs that `USER` has enqueued")
	f.Func("older-than", older, func(text string) error {
		d, err := parseSpan(text)
		if err == nil && d == 0 { // a zero duration counts as not set, so 0s would be no selection
			err = errors.New("0s is too short; give a longer duration")
		}
		s.OlderThan = control.Span(d)
		return err
	})
	f.Var(givenOnce(&s.IDGlob), "id-glob", "select jobs whose ID matches `PATTERN`, such as build-*")
	complete := completeStates
	if s.states != nil {
		complete = cobra.FixedCompletions(s.states, cobra.ShellCompDirectiveNoFileComp)
	}
	cmd.RegisterFlagCompletionFunc("state", complete) // this call fails only if the flag does not exist
}

// statesUsage returns the end of the description of --state: the states that it accepts.
func (s *selection) statesUsage() string {
	const waiting = "; waiting means blocked, held, pending or failed (to be retried)"
	if s.states == nil {
		return waiting + "; done means completed"
	}
	text := ": " + strings.Join(s.states, ", ")
	if len(s.states) == 1 {
		text = "; the only value is " + s.states[0]
	}
	if s.states[0] == "waiting" {
		text += waiting
	}
	return text
}

// usage returns the descriptions of --failed and --older-than, which depend on the states of the
// jobs that the command acts on. The help hides --failed if the command acts on neither dead nor
// failed jobs.
func (s *selection) usage() (failed, older string, hidden bool) {
	failed, older = "select dead and failed jobs", "select jobs that were enqueued at least `DURATION` ago"
	switch {
	case s.states == nil:
		older = "select jobs that ended (or, if unfinished, were enqueued) at least `DURATION` ago"
	case slices.Contains(s.states, "dead"):
		older = "select jobs that ended (or, if in state failed, were enqueued) at least `DURATION` ago"
	case slices.Contains(s.states, "failed"), slices.Contains(s.states, "waiting"):
		failed = "select dead and failed jobs; each dead job is reported as refused"
	default:
		hidden = true
	}
	return failed, older, hidden
}

// isQueue reports whether the flags select a whole queue, without a condition on states, users or
// ids.
func (s *selection) isQueue() bool {
	return s.Queue != "" && !s.All && !s.Failed && len(s.State) == 0 && s.Batch == "" && s.User == "" && s.IDGlob == "" && s.OlderThan == 0
}

// act adds the flags of a command that changes jobs.
func (s *selection) act(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.DryRun, "dry-run", false, "only count the jobs; change nothing")
	cmd.Flags().BoolVar(&s.yes, "yes", false, "do not ask for confirmation")
}

// of returns the selection for a request: the given ids, or the conditions of the flags if no ids
// are given.
func (s *selection) of(cmd *cobra.Command, ids []string) (control.Selection, error) {
	p := s.Selection
	p.IDs = ids
	for _, name := range p.State {
		if _, err := queue.ParseStates(name); err != nil {
			return p, err
		}
	}
	if p.Chosen() && len(ids) > 0 {
		return p, Usage("%s: cannot be combined with job ids; use one of them", s.chosenBy(cmd))
	}
	if !p.Chosen() && len(ids) == 0 {
		return p, Usage("%s: no jobs given; give job ids, or select jobs with --state, --failed, --%s, --queue, --batch, --user, --older-than, --id-glob or --all", cmd.CommandPath(), cmp.Or(s.labelFlag, "label"))
	}
	return p, nil
}

// chosenBy returns the first flag that selects jobs.
func (s *selection) chosenBy(cmd *cobra.Command) string {
	for _, name := range []string{"all", "state", "failed", cmp.Or(s.labelFlag, "label"), "queue", "where-queue", "batch", "user", "older-than"} {
		if cmd.Flags().Changed(name) {
			return "--" + name
		}
	}
	return "--id-glob"
}

// longestTitle is how much of a selected job's command is kept, in columns.
const longestTitle = 200

// resolved returns the named or selected jobs, in the given order or in the order of enqueueing. It
// omits jobs whose command the caller may not see.
func (s *selection) resolved(cmd *cobra.Command, c *control.Client, ids []string) ([]control.Job, error) {
	p, err := s.of(cmd, ids)
	if err != nil {
		return nil, err
	}
	list := control.List{State: p.State, Failed: p.Failed, Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User, IDGlob: p.IDGlob}
	if p.OlderThan != 0 {
		list.Until = control.Time(time.Now().Add(-time.Duration(p.OlderThan)).UnixMilli())
	}
	var jobs []control.Job
	for _, id := range ids {
		jobs = append(jobs, control.Job{ID: id})
	}
	if len(ids) == 0 {
		jobs, err = allPages(cmd.Context(), c, list)
		slices.Reverse(jobs)
	}
	return jobs, err
}

// allPages reads all pages of a list. It omits jobs whose command is hidden from the caller.
func allPages(ctx context.Context, c *control.Client, list control.List) (jobs []control.Job, err error) {
	for more := true; more; {
		page, err := c.List(ctx, list)
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			if j := &page.Jobs[i]; !slices.Contains(j.Hidden, "command") {
				// There may be very many jobs, so only a short title of each is kept in memory.
				j.Command, j.Argv, j.Cwd, j.Labels = Cut(Title(j), longestTitle), nil, "", nil
				jobs = append(jobs, *j)
			}
		}
		if more = page.Next != nil; more {
			list.Cursor = *page.Next
		}
	}
	return jobs, nil
}

// unique returns the ids without duplicates.
func unique(ids []string) (list []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			list = append(list, id)
		}
		seen[id] = true
	}
	return list
}

// sayNone prints that no job is selected. It prints even if standard error is not a terminal,
// because the author of a script would otherwise assume that jobs were selected.
func (o *Output) sayNone() {
	if !IsTerminal(o.Err) || o.Quiet {
		fmt.Fprintln(o.Err, "queuectl: no job matches the selection")
		return
	}
	o.Say("no job matches the selection")
}

// onSelection executes a bulk command for the named or selected jobs. On a terminal it asks for
// confirmation before a command that ends or removes jobs, and for --all.
func (a *App) onSelection(cmd *cobra.Command, s *selection, ids []string, outcome string, do bulkFunc) error {
	p, err := s.of(cmd, ids)
	if err != nil {
		return err
	}
	if p.All && !p.DryRun && !s.yes && !a.canAsk() {
		return Usage("--all: selects every job; confirm with --yes, or count the jobs with --dry-run")
	}
	c, err := a.Client()
	if err == error(errNoQueue) && p.Chosen() {
		return a.onNone(p.DryRun)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	step := func(p control.Selection) func(ids []string, cursor string) (control.BulkResult, error) {
		return func(ids []string, cursor string) (control.BulkResult, error) {
			p.IDs, p.Cursor = ids, cursor
			return do(c, cmd.Context(), p)
		}
	}
	if p.Chosen() && !p.DryRun && !s.yes && a.canAsk() && (p.All || slices.Contains(endsMany, cmd.Name())) {
		counted := p
		counted.DryRun = true
		n, err := a.count(cmd.Context(), step(counted))
		if err != nil {
			return err
		}
		if n > 0 && !a.confirm("%s %s?", cmd.Name(), Jobs(n)) {
			return nil
		}
	}
	return a.runBulk(outcome, ids, step(p))
}

// onNone prints the result of a command for an empty selection.
func (a *App) onNone(dryRun bool) error {
	return a.runBulk("", nil, func([]string, string) (v control.BulkResult, _ error) {
		if dryRun {
			v.Matched = new(int)
		}
		return v, nil
	})
}

// count counts the jobs that a dry run matches.
func (a *App) count(ctx context.Context, dry func(ids []string, cursor string) (control.BulkResult, error)) (n int, err error) {
	for cursor := ""; ; {
		v, err := dry(nil, cursor)
		if err != nil {
			return 0, err
		}
		if v.Matched != nil {
			n += *v.Matched
		}
		if v.Next == nil {
			return n, ctx.Err()
		}
		cursor = *v.Next
	}
}

// canAsk reports whether the user can be asked for confirmation.
func (o *Output) canAsk() bool { return IsTerminal(o.In) && IsTerminal(o.Err) && !o.Structured() }

// confirm asks the user for confirmation. If the user declines, the exit code is 1.
func (a *App) confirm(format string, args ...any) bool {
	if a.askYesNo(format, args...) {
		return true
	}
	fmt.Fprintln(a.Err, "nothing was changed")
	a.Exit = 1
	return false
}

// askYesNo asks the user a question. Every answer except yes means no.
func (o *Output) askYesNo(format string, args ...any) bool {
	fmt.Fprintf(o.Err, format+" [y/N] ", args...)
	line, _ := bufio.NewReader(o.In).ReadString('\n') // if reading fails, the answer is no
	word := strings.ToLower(strings.TrimSpace(line))
	return word == "y" || word == "yes"
}
