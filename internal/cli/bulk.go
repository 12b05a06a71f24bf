package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// bulkMethod is a client method that acts on all jobs of a selection.
type bulkMethod = ClientMethod[control.JobSelection, control.BulkResult]

func retryVerb(a *App) *cobra.Command {
	var withoutDependants bool
	cmd := a.jobsCommand("retry", "Run failed or finished jobs again", "is pending again",
		func(c *control.Client, ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return c.RetryJobs(ctx, control.JobRetryParams{JobSelection: s, WithoutDependants: withoutDependants})
		}, "failed", "dead", "cancelled", "completed")
	cmd.Flags().BoolVar(&withoutDependants, "only", false,
		"retry only the selected jobs, not the cancelled jobs that depend on them")
	return cmd
}

func cancelVerb(a *App) *cobra.Command {
	return a.jobsCommand("cancel", "Cancel waiting jobs and stop running ones", "is cancelled",
		(*control.Client).CancelJobs,
		"waiting", "processing")
}

func holdVerb(a *App) *cobra.Command {
	return a.jobsCommand("hold", "Keep waiting jobs from starting until they are released", "is held",
		(*control.Client).HoldJobs, "pending", "failed", "blocked")
}

func releaseVerb(a *App) *cobra.Command {
	return a.jobsCommand("release", "Release held jobs", "is released", (*control.Client).ReleaseJobs, "held")
}

func requeueVerb(a *App) *cobra.Command {
	return a.jobsCommand("requeue", "Stop and requeue running jobs; the attempt does not count", "is pending again",
		(*control.Client).RequeueJobs, "processing")
}

// destructiveVerbs lists the commands that end or remove jobs. If flags select the jobs, these commands ask for
// confirmation on a terminal.
var destructiveVerbs = []string{"cancel", "kill", "requeue", "rm", "dequeue"}

// jobsCommand builds a command for jobs that the user names by id or selects with flags. acceptedStates lists the job
// states that the command accepts; nil means all. outcomeText is the text in messages for a job that the command has
// changed, for example "is held".
func (a *App) jobsCommand(name, short, outcomeText string, method bulkMethod, acceptedStates ...string) *cobra.Command {
	return a.selectionCommand(name+" ID… | --state STATE …", short, &SelectionFlags{AcceptedStates: acceptedStates},
		outcomeText, method)
}

// selectionCommand builds a command that calls method for the jobs of a selection. outcomeText is the text in messages
// for a job that the command has changed.
func (a *App) selectionCommand(use, short string, s *SelectionFlags, outcomeText string,
	method bulkMethod) *cobra.Command {
	cmd := NewCommand(use, short, nil, func(ctx context.Context, ids []string) error {
		return a.ActOnSelection(ctx, s, ids, outcomeText, method)
	})
	a.AcceptJobIDs(cmd, s.AcceptedStates...)
	stateShort := "s"
	if cmd.Name() == "kill" {
		stateShort = "" // in "queuectl kill", -s is short for --signal, as in kill(1)
	}
	s.AddFlags(cmd, stateShort)
	s.AddActionFlags(cmd)
	return cmd
}

func pauseVerb(a *App) *cobra.Command {
	return a.pauseOrResumeCommand("pause", "Pause running jobs, including their timeouts", "is paused",
		(*control.Client).PauseJobs,
		"pause all running jobs and start no new jobs until queuectl resume --all",
		"everything is paused: no job runs or starts until queuectl resume --all")
}

func resumeVerb(a *App) *cobra.Command {
	return a.pauseOrResumeCommand("resume", "Resume paused jobs", "is resumed", (*control.Client).ResumeJobs,
		"undo pause --all; jobs that were paused individually stay paused",
		"everything is resumed: paused jobs continue and new jobs start")
}

// pauseOrResumeCommand builds the command pause or resume: for running jobs or, with --all, for the whole queue.
// allFlagUsage describes the flag --all in the help. With --all, the command prints wholeQueueText.
func (a *App) pauseOrResumeCommand(
	name, short, outcomeText string, method bulkMethod, allFlagUsage, wholeQueueText string,
) *cobra.Command {
	s := &SelectionFlags{AcceptedStates: []string{"processing"}, wholeQueueText: wholeQueueText}
	cmd := a.selectionCommand(name+" ID… | --label NAME=VALUE … | --all", short, s, outcomeText, method)
	cmd.Flags().Lookup("all").Usage = allFlagUsage
	return cmd
}

func killVerb(a *App) *cobra.Command {
	var signal string
	cmd := a.jobsCommand("kill", "Send a signal to all processes of running jobs", "got the signal",
		func(c *control.Client, ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return c.KillJobs(ctx, control.JobKillParams{JobSelection: s, Signal: signal})
		}, "processing")
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "signal to send: `NAME` or number")
	return cmd
}

func rmVerb(a *App) *cobra.Command {
	var force bool
	cmd := a.jobsCommand("rm", "Remove jobs and their history", "is removed",
		func(c *control.Client, ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return c.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: s, EndRunningJobs: force})
		})
	cmd.Flags().BoolVar(&force, "force", false, "also stop and remove running jobs")
	return cmd
}

func dequeueVerb(a *App) *cobra.Command {
	cmd := rmVerb(a)
	cmd.Use, cmd.Hidden = "dequeue ID… | --state STATE …", true
	return cmd
}

func clearVerb(a *App) *cobra.Command {
	return a.clearCommand("Remove all jobs that are not running, and their history", "jobs that are not running",
		(*control.Client).RemoveNonRunningJobs)
}

// clearCommand builds a command that removes all jobs of one kind, such as dead jobs. The user may restrict it to the
// jobs of a batch. jobsText names the jobs of this kind in messages.
func (a *App) clearCommand(
	short, jobsText string, method ClientMethod[control.JobClearParams, control.RemovalCount],
) *cobra.Command {
	var p control.JobClearParams
	cmd := NewCommand("clear --yes", short, NoArgs, func(ctx context.Context, _ []string) error {
		asks := !p.Confirmed && !p.DryRun
		if asks && !a.CanAskUser() {
			return fault.Usagef("%s: permanently removes all %s and their history; confirm with --yes",
				a.Cmd.CommandPath(), jobsText)
		}
		return a.WithClient(func(c *control.Client) error {
			if asks {
				got, err := method(c, ctx, control.JobClearParams{Batch: p.Batch, DryRun: true})
				if err != nil {
					return err
				}
				if !a.Confirm("permanently remove %s and their history?", present.JobCountText(*got.SelectedCount)) {
					return nil
				}
				p.Confirmed = true
			}
			return CallClientAndPrint(ctx, a, c, method, p, a.PrintRemovedCount)
		})
	})
	cmd.Flags().BoolVar(&p.Confirmed, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	cmd.Flags().Var(input.OnceOnlyValue(&p.Batch), "batch", "remove only your jobs in the batch `NAME`")
	return cmd
}

// RunBulkRequests executes a command on many jobs in requests of bounded size. It prints which jobs were changed and
// which were refused. outcomeText describes a changed job, for example "is held".
//
// wholeQueueText is "" unless the command acts on the whole queue. Such a command prints wholeQueueText and
// succeeds even if there are no jobs.
func (a *App) RunBulkRequests(outcomeText, wholeQueueText string, ids []string,
	sendRequest func(ids []string, cursor string) (control.BulkResult, error)) error {
	ids = UniqueIDs(ids)
	all := control.BulkResult{ChangedJobIDs: []string{}, Refusals: []control.Refusal{}}
	seen := 0
	for cursor, more := "", true; more; {
		step := ids[:min(len(ids), control.MaxJobIDs)]
		v, err := sendRequest(step, cursor)
		if err != nil {
			return err
		}
		ids = ids[len(step):]
		if v.NextCursor != nil {
			cursor = *v.NextCursor
		}
		more = v.NextCursor != nil || len(ids) > 0
		seen += len(v.ChangedJobIDs) + len(v.Refusals)
		if err := a.printBulkResult(&v, &all, outcomeText); err != nil {
			return err
		}
	}
	if wholeQueueText == "" && seen == 0 && all.SelectedCount == nil {
		a.PrintNoJobsSelected()
	}
	switch {
	case a.JSON && !a.JSONL:
		return a.PrintJSON(all)
	case a.WantsJSON():
		return nil
	case all.SelectedCount != nil:
		return a.printDryRunCount(*all.SelectedCount)
	case wholeQueueText != "":
		return a.PrintTerminalMessage("%s", wholeQueueText)
	}
	return nil
}

// PrintRemovedCount prints how many jobs were removed, or how many a dry run counted.
func (a *App) PrintRemovedCount(count control.RemovalCount) error {
	if count.SelectedCount != nil {
		return a.printDryRunCount(*count.SelectedCount)
	}
	return a.Println(present.JobCountText(count.RemovedJobs) + " removed")
}

// printDryRunCount prints the number of jobs that a dry run counted. With --quiet, standard output may contain only
// ids, so it prints to standard error.
func (a *App) printDryRunCount(n int) error {
	to := a.Stdout
	if a.Quiet {
		to = a.Stderr
	}
	_, err := fmt.Fprintln(to, present.JobCountText(n)+" selected; nothing was changed")
	return err
}

// printBulkResult prints the result of one request: one line of JSON with --jsonl, otherwise the ids and the refusals.
// With --json it prints nothing, and only adds the result to *combinedResult.
func (a *App) printBulkResult(result, combinedResult *control.BulkResult, outcomeText string) error {
	if result.SelectedCount != nil {
		if combinedResult.SelectedCount == nil {
			combinedResult.SelectedCount = new(int)
		}
		*combinedResult.SelectedCount += *result.SelectedCount
	}
	for _, r := range result.Refusals {
		if a.ExitCode == 0 {
			a.ExitCode = control.ErrorCodeInfoOf(&queue.Error{Code: r.Code}).ExitStatus
		}
	}
	if combinedResult.UnenforcedLimits == nil { // print the list only once: every reply contains the same list
		combinedResult.UnenforcedLimits = result.UnenforcedLimits
		enqueue.WarnUnenforcedLimits(&a.Output, result.UnenforcedLimits)
	}
	if combinedResult.Notes == nil { // print the notes only once: every reply contains the same notes
		combinedResult.Notes = result.Notes
		enqueue.PrintServiceNotes(&a.Output, a.Cmd, result.Notes)
	}
	switch {
	case a.JSONL:
		result.NextCursor = nil
		return a.PrintJSON(result)
	case a.JSON:
		combinedResult.ChangedJobIDs, combinedResult.Refusals = append(combinedResult.ChangedJobIDs, result.ChangedJobIDs...),
			append(combinedResult.Refusals, result.Refusals...)
		return nil
	}
	for _, line := range refusalLines(a.Cmd, result.Refusals) {
		a.PrintMessage("%s", line)
	}
	var err error
	for _, id := range result.ChangedJobIDs {
		err = a.PrintActionResult(id, "job "+id+" "+outcomeText)
	}
	return err
}

func dlqVerb(a *App) *cobra.Command {
	var l listFlags
	list := NewCommand("list", "List dead jobs, newest first", NoArgs, func(ctx context.Context, _ []string) error {
		l.States = []string{queue.Dead.String()}
		return a.printJobs(ctx, &l, deadJobRow, "ID", "ATTEMPTS", "WHEN"+termtext.HeadingZonePlaceholder, "ERROR", "COMMAND")
	})
	l.addTo(list)
	clear := a.clearCommand("Remove all dead jobs and their history", "dead jobs", (*control.Client).RemoveDeadJobs)
	return GroupCommand("dlq", "List, retry or remove dead jobs (jobs that failed for good)", list, a.dlqRetryVerb(),
		clear)
}

func (a *App) dlqRetryVerb() *cobra.Command {
	var p control.JobSelection
	var timeout *control.Duration
	var yes bool
	retry := func(c *control.Client, ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
		return c.RetryDeadJobs(ctx, control.DeadJobRetryParams{IDs: p.IDs, AllDeadJobs: p.AllJobs, Batch: p.Batch,
			NewTimeout: timeout, DryRun: p.DryRun, Cursor: p.Cursor})
	}
	cmd := NewCommand("retry ID… | --all | --batch NAME", "Put dead jobs back in the queue",
		nil, func(ctx context.Context, ids []string) error {
			switch {
			case p.AllJobs && p.Batch != "":
				return fault.Usagef("--all: cannot be combined with --batch; use one of them")
			case len(ids) > 0 && p.AllJobs:
				return fault.Usagef("--all: cannot be combined with job ids; use one of them")
			case len(ids) > 0 && p.Batch != "":
				return fault.Usagef("--batch: cannot be combined with job ids; use one of them")
			case len(ids) == 0 && !p.AllJobs && p.Batch == "":
				return fault.Usagef("%s: no jobs given; give job ids, --batch NAME or --all", a.Cmd.CommandPath())
			}
			p.IDs = ids
			return a.confirmAndRunRequests(ctx, p, p.AllJobs && !yes, "is pending again", "", retry)
		})
	a.AcceptJobIDs(cmd, queue.Dead.String())
	f := cmd.Flags()
	f.BoolVar(&p.AllJobs, "all", false, "retry all dead jobs")
	f.Var(input.OnceOnlyValue(&p.Batch), "batch", "retry your dead jobs in the batch `NAME`")
	input.OptionalVar(f, &timeout, input.ParseDuration, "timeout", "",
		"set the timeout of the retried jobs to `DURATION`")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// deadJobRow returns the row of a job in the table of dead jobs.
func deadJobRow(j *control.Job) []string {
	return []string{j.ID, present.AttemptsText(j), present.LocalTimeText(j.FinishedAt), present.DashIfNil(j.Error),
		present.JobTitle(j)}
}
