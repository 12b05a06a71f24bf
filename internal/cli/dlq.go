package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func dlqVerb(a *App) *cobra.Command {
	var l listFlags
	list := &cobra.Command{
		Use: "list", Short: "List dead jobs, newest first", Args: ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l.State = []string{queue.Dead.String()}
			return a.list(cmd, &l, deadRow, "ID", "ATTEMPTS", "WHEN"+termtext.ZoneMark, "ERROR", "COMMAND")
		},
	}
	l.add(list)
	clear := a.clearCommand("Remove all dead jobs and their history", "dead jobs", (*control.Client).DLQClear)
	return GroupCommand("dlq", "List, retry or remove dead jobs (jobs that failed for good)", list, a.dlqRetryVerb(),
		clear)
}

func (a *App) dlqRetryVerb() *cobra.Command {
	var p control.DLQRetry
	var yes bool
	cmd := &cobra.Command{
		Use: "retry ID… | --all | --batch NAME", Short: "Put dead jobs back in the queue",
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case p.All && p.Batch != "":
				return fault.Usagef("--all: cannot be combined with --batch; use one of them")
			case len(ids) > 0 && p.All:
				return fault.Usagef("--all: cannot be combined with job ids; use one of them")
			case len(ids) > 0 && p.Batch != "":
				return fault.Usagef("--batch: cannot be combined with job ids; use one of them")
			case len(ids) == 0 && !p.All && p.Batch == "":
				return fault.Usagef("%s: no jobs given; give job ids, --batch NAME or --all", cmd.CommandPath())
			}
			step := func(c *control.Client, ids []string, cursor string, dryRun bool) (control.BulkResult, error) {
				p := p
				p.IDs, p.Cursor, p.DryRun = ids, cursor, p.DryRun || dryRun
				return c.DLQRetry(cmd.Context(), p)
			}
			return a.confirmBulk(cmd, "is pending again", "", ids, p.DryRun, p.All && !yes, step)
		},
	}
	cmd.ValidArgsFunction = a.CompleteIDs(queue.Dead.String())
	f := cmd.Flags()
	f.BoolVar(&p.All, "all", false, "retry all dead jobs")
	f.Var(input.OnceOnlyValue(&p.Batch), "batch", "retry your dead jobs in the batch `NAME`")
	input.DurationVar(f, "timeout", "set the timeout of the retried jobs to `DURATION`",
		func(d time.Duration) { p.Timeout = (*control.Duration)(&d) })
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func deadRow(j *control.Job) []string {
	return []string{j.ID, present.AttemptsText(j), present.LocalTime(j.FinishedAt), present.DashIfNil(j.Error),
		present.JobTitle(j)}
}
