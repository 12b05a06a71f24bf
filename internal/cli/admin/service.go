package admin

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// DrainVerb returns the command drain. Only queuectld links it, to keep queuectl small.
func DrainVerb(app *cli.App) *cobra.Command {
	var p control.Drain
	cmd := cli.RequestVerb(app, "drain [--wait | --off]", "Start no new jobs until drain --off, even after a restart",
		(*control.Client).Drain, &p, func(got control.DrainResult) error {
			switch {
			case !got.Draining:
				return app.PrintInfo("draining is off: jobs start again")
			case got.Running == 0:
				return app.PrintInfo("draining: no new jobs start until queuectl drain --off; nothing is running")
			}
			return app.PrintInfo("draining: no new jobs start until queuectl drain --off; %s still running",
				present.JobsText(got.Running))
		})
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "stop draining, so that jobs start again")
	return cmd
}

// ReloadVerb returns the command reload. Only queuectld links it, to keep queuectl small.
func ReloadVerb(app *cli.App) *cobra.Command {
	return cli.RequestVerb(app, "reload", "Reload the settings file of the service", (*control.Client).Reload,
		&control.NoParams{}, func(got control.ReloadResult) error {
			if len(got.Hidden) > 0 {
				app.Say("settings in the file that have no effect, because stored values, the environment or flags override "+
					"them: %s; see their origin with: queuectl config list", strings.Join(got.Hidden, ", "))
			}
			if got.Note != "" {
				app.Say("settings reloaded, but %s", got.Note)
				return nil
			}
			return app.PrintInfo("settings reloaded")
		})
}

// CleanupVerb returns the command cleanup. Only queuectld links it, to keep queuectl small.
func CleanupVerb(app *cli.App) *cobra.Command {
	var p control.Cleanup
	var yes bool
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove old finished jobs and their history", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return app.WithClient(func(c *control.Client) error {
				if !p.DryRun && !yes && app.CanAsk() {
					dry := p
					dry.DryRun = true
					got, err := c.Cleanup(cmd.Context(), dry, func(control.RemovalCount) error { return nil })
					if err != nil {
						return err
					}
					if n := *got.MatchCount; n > 0 && !app.Confirm("remove %s and their history?", present.JobsText(n)) {
						return nil
					}
				}
				began := time.Now()
				remove := func(c *control.Client, ctx context.Context, p control.Cleanup) (control.RemovalCount, error) {
					defer app.ShowProgress("")
					return c.Cleanup(ctx, p, func(r control.RemovalCount) error {
						app.DrawBar(term.ProgressBar{Current: int64(r.Count), Total: int64(r.Total), StartedAt: began, Suffix: "removed"})
						return nil
					})
				}
				return cli.CallAndPrintWith(cmd.Context(), app, c, remove, p, app.PrintRemoved)
			})
		},
	}
	f := cmd.Flags()
	addOptionalFlag(f, &p.Days, queue.ParseNumber, "days", "remove jobs that ended at least `N` days ago (default 7)")
	f.StringSliceVarP((*[]string)(&p.State), "state", "s", nil,
		"remove jobs in `STATE`: completed, cancelled or dead (default: completed and cancelled)")
	f.Int64Var(&p.Keep, "keep", 0, "never remove the newest `N` of the selected jobs, whatever their state")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	input.CompleteValues(cmd, "state", "completed", "cancelled", "dead")
	return cmd
}
