package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// SelectionFlags holds the flags that select jobs for a bulk command.
type SelectionFlags struct {
	control.JobSelection
	LabelFlagName  string   // name of the flag for labels; "" means "label"
	AcceptedStates []string // states that --state accepts; nil for all
	// wholeQueueText is "" unless --all makes the command act on the whole queue, instead of on each of its jobs. Such a
	// command prints wholeQueueText, and succeeds even if the queue contains no jobs.
	wholeQueueText  string
	confirmedByFlag bool
}

// AddFlags adds the flags that select jobs. stateShorthand is the one-letter form of --state, or "" for none.
func (s *SelectionFlags) AddFlags(cmd *cobra.Command, stateShorthand string) {
	f := cmd.Flags()
	f.BoolVar(&s.AllJobs, "all", false, "all jobs to which the command applies")
	f.StringSliceVarP((*[]string)(&s.States), "state", stateShorthand, nil, "select jobs in `STATE`"+s.statesUsage())
	failed, older, hidden := s.failedAndOlderUsages()
	f.BoolVar(&s.FailedOrDead, "failed", false, failed)
	f.Lookup("failed").Hidden = hidden
	input.LabelsVar(f, (*map[string]string)(&s.WithLabels), cmp.Or(s.LabelFlagName, "label"),
		"select jobs with the label `NAME=VALUE`")
	letter, name := "Q", "queue"
	if s.LabelFlagName != "" {
		letter, name = "", "where-queue"
	}
	f.VarP(input.OnceOnlyValue(&s.Queue), name, letter, "select jobs of this `QUEUE`")
	input.AnnotateFlagWithField(f, name, "queue")
	input.AnnotateFlagWithField(f, cmp.Or(s.LabelFlagName, "label"), "label")
	f.Var(input.OnceOnlyValue(&s.Batch), "batch", "select your jobs in the batch `NAME`")
	f.Var(input.OnceOnlyValue(&s.Submitter), "user", "select jobs that `USER` has enqueued")
	f.Func("older-than", older, func(text string) error {
		d, err := when.ParseDuration(text)
		if err == nil && d == 0 { // reject the value 0s, because OlderThan 0 means that the flag is not set
			err = errors.New("0s is too short; give a longer duration")
		}
		s.OlderThan = control.Duration(d)
		return err
	})
	f.Var(input.OnceOnlyValue(&s.IDGlob), "id-glob", "select jobs whose ID matches `PATTERN`, such as build-*")
	states := s.AcceptedStates
	if states == nil {
		states = stateFlagValues()
	}
	input.CompleteValues(cmd, "state", states...)
}

// statesUsage returns the end of the description of --state, which lists the accepted states.
func (s *SelectionFlags) statesUsage() string {
	const waitingUsage = "; waiting means blocked, held, pending or failed (to be retried)"
	if s.AcceptedStates == nil {
		return waitingUsage + "; done means completed"
	}
	text := ": " + strings.Join(s.AcceptedStates, ", ")
	if len(s.AcceptedStates) == 1 {
		text = "; the only value is " + s.AcceptedStates[0]
	}
	if s.AcceptedStates[0] == "waiting" {
		text += waitingUsage
	}
	return text
}

// failedAndOlderUsages returns the descriptions of the flags --failed and --older-than, which depend on the states that
// the command accepts. hideFailed is true if the command accepts neither dead nor failed jobs: --failed would then
// select no job.
func (s *SelectionFlags) failedAndOlderUsages() (failedUsage, olderUsage string, hideFailed bool) {
	failedUsage, olderUsage = "select dead and failed jobs", "select jobs that were enqueued at least `DURATION` ago"
	switch {
	case s.AcceptedStates == nil:
		olderUsage = "select jobs that ended (or, if unfinished, were enqueued) at least `DURATION` ago"
	case slices.Contains(s.AcceptedStates, "dead"):
		olderUsage = "select jobs that ended at least `DURATION` ago; jobs in state failed count from when they were enqueued"
	case slices.Contains(s.AcceptedStates, "failed"), slices.Contains(s.AcceptedStates, "waiting"):
		failedUsage = "select failed jobs (to be retried) and dead jobs; each dead job causes an error; " +
			"to leave them out, use --state failed"
	default:
		hideFailed = true
	}
	return failedUsage, olderUsage, hideFailed
}

// selectsWholeQueue reports whether the flags select all jobs of a queue: they name a queue, and set no
// condition on the jobs' states, users, ids, batches or ages.
func (s *SelectionFlags) selectsWholeQueue() bool {
	return s.Queue != "" && !s.AllJobs && !s.FailedOrDead && len(s.States) == 0 && s.Batch == "" && s.Submitter == "" &&
		s.IDGlob == "" &&
		s.OlderThan == 0
}

// AddActionFlags adds the flags of a command that changes jobs.
func (s *SelectionFlags) AddActionFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.DryRun, "dry-run", false, "only count the jobs; change nothing")
	cmd.Flags().BoolVar(&s.confirmedByFlag, "yes", false, "do not ask for confirmation")
}

// SelectionParams returns the selection for a request. If there are ids, the selection contains only the ids. Otherwise
// it contains the conditions that the flags set.
func (s *SelectionFlags) SelectionParams(cmd *cobra.Command, ids []string) (control.JobSelection, error) {
	p := s.JobSelection
	p.IDs = ids
	for _, name := range p.States {
		if _, err := queue.ParseStates(name); err != nil {
			return p, err
		}
	}
	if p.UsesFilters() && len(ids) > 0 {
		return p, fault.Usagef("%s: cannot be combined with job ids; use one of them", s.firstSelectingFlag(cmd))
	}
	if !p.UsesFilters() && len(ids) == 0 {
		return p, fault.Usagef("%s: no jobs given; give job ids, or select jobs with --state, --failed, --%s, --queue, "+
			"--batch, --user, --older-than, --id-glob or --all", cmd.CommandPath(), cmp.Or(s.LabelFlagName, "label"))
	}
	return p, nil
}

// firstSelectingFlag returns the first flag with which the user selected jobs.
func (s *SelectionFlags) firstSelectingFlag(cmd *cobra.Command) string {
	for _, name := range []string{"all", "state", "failed", cmp.Or(s.LabelFlagName, "label"), "queue", "where-queue",
		"batch",
		"user", "older-than"} {
		if cmd.Flags().Changed(name) {
			return "--" + name
		}
	}
	return "--id-glob"
}

// maxJobTitleColumns is the maximum width of the title that listAllJobs keeps of each job, in columns.
const maxJobTitleColumns = 200

// ResolveJobs returns the jobs with the given ids, in the order of the ids. Without ids, it returns the jobs that the
// flags select, in the order in which they were enqueued. It omits jobs whose command the caller may not see.
func (s *SelectionFlags) ResolveJobs(cmd *cobra.Command, c *control.Client, ids []string) ([]control.Job, error) {
	p, err := s.SelectionParams(cmd, ids)
	if err != nil {
		return nil, err
	}
	list := control.JobListParams{States: p.States, FailedOrDead: p.FailedOrDead, WithLabels: p.WithLabels, Queue: p.Queue,
		Batch: p.Batch, Submitter: p.Submitter,
		IDGlob: p.IDGlob}
	if p.OlderThan != 0 {
		list.EndedOrEnqueuedBefore = control.Time(time.Now().Add(-time.Duration(p.OlderThan)).UnixMilli())
	}
	var jobs []control.Job
	for _, id := range ids {
		jobs = append(jobs, control.Job{ID: id})
	}
	if len(ids) == 0 {
		jobs, err = listAllJobs(cmd.Context(), c, list)
		slices.Reverse(jobs)
	}
	return jobs, err
}

// listAllJobs reads all pages of a list. It omits jobs whose command the caller may not see.
func listAllJobs(ctx context.Context, c *control.Client, filter control.JobListParams) (jobs []control.Job, err error) {
	for page, err := range JobPages(ctx, c, filter) {
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			if j := &page.Jobs[i]; !slices.Contains(j.HiddenParts, "command") {
				// Keep only a short title of each job, because there may be very many jobs.
				j.Command, j.Argv, j.Cwd, j.Labels = termtext.Truncate(present.JobTitle(j), maxJobTitleColumns), nil, "", nil
				jobs = append(jobs, *j)
			}
		}
	}
	return jobs, nil
}

// UniqueIDs returns the ids without duplicates.
func UniqueIDs(ids []string) (uniqueIDs []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			uniqueIDs = append(uniqueIDs, id)
		}
		seen[id] = true
	}
	return uniqueIDs
}

// ActOnSelection executes a bulk command for the jobs that ids or the flags select. On a terminal it asks for
// confirmation if the command ends or removes jobs, or if --all selects all jobs. outcomeText is the text in messages
// for a job that the command has changed.
func (a *App) ActOnSelection(ctx context.Context, s *SelectionFlags, ids []string, outcomeText string,
	method bulkMethod) error {
	p, err := s.SelectionParams(a.Cmd, ids)
	if err != nil {
		return err
	}
	wholeQueueText := ""
	if p.AllJobs {
		wholeQueueText = s.wholeQueueText
	}
	if p.AllJobs && wholeQueueText == "" && !p.DryRun && !s.confirmedByFlag && !a.CanAskUser() {
		return fault.Usagef("--all: selects every job; confirm with --yes, or count the jobs with --dry-run")
	}
	asks := p.UsesFilters() && !s.confirmedByFlag && wholeQueueText == "" &&
		(p.AllJobs || slices.Contains(destructiveVerbs, a.Cmd.Name()))
	return a.confirmAndRunRequests(ctx, p, asks, outcomeText, wholeQueueText, method)
}

// confirmAndRunRequests executes a bulk command for the jobs in p. If asksConfirmation is true, p must contain no ids.
// confirmAndRunRequests then first counts the jobs with dry runs, and asks the user for confirmation on a terminal. For
// outcomeText and wholeQueueText, see RunBulkRequests.
func (a *App) confirmAndRunRequests(ctx context.Context, p control.JobSelection, asksConfirmation bool,
	outcomeText, wholeQueueText string, method bulkMethod) error {
	c, err := a.Client()
	// If no queue exists yet, the flags select no jobs, so print an empty result instead of an error.
	if err == error(connect.ErrNoQueue) && len(p.IDs) == 0 && wholeQueueText == "" {
		return a.RunBulkRequests("", "", nil, func([]string, string) (v control.BulkResult, _ error) {
			if p.DryRun {
				v.SelectedCount = new(int)
			}
			return v, nil
		})
	}
	return callAndCloseClient(c, err, func(c *control.Client) error {
		if asksConfirmation && !p.DryRun && a.CanAskUser() {
			n, count := 0, p
			count.DryRun = true
			for more := true; more; {
				v, err := method(c, ctx, count)
				if err != nil {
					return err
				}
				n += queue.ValueOr(v.SelectedCount, 0)
				count.Cursor, more = queue.ValueOr(v.NextCursor, ""), v.NextCursor != nil
			}
			if n > 0 && !a.Confirm("%s %s?", a.Cmd.Name(), present.JobCountText(n)) {
				return nil
			}
		}
		return a.RunBulkRequests(outcomeText, wholeQueueText, p.IDs,
			func(ids []string, cursor string) (control.BulkResult, error) {
				p.IDs, p.Cursor = ids, cursor
				return method(c, ctx, p)
			})
	})
}

// Confirm asks the user for confirmation and reports whether the user agrees. If the user declines, Confirm sets the
// exit code to 1.
func (a *App) Confirm(format string, args ...any) bool {
	if a.AskYesNo(format, args...) {
		return true
	}
	fmt.Fprintln(a.Stderr, "nothing was changed")
	a.ExitCode = 1
	return false
}
