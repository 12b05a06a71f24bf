package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// DrainVerb returns the command drain. Only queuectld links it, to keep queuectl small.
func DrainVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var p control.Drain
	cmd := &cobra.Command{
		Use: "drain [--wait | --off]", Short: "Start no new jobs until drain --off, even after a restart",
		Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Answer(cmd.Context(), a.App, (*control.Client).Drain, p, func(got control.DrainResult) error {
				switch {
				case !got.Draining:
					a.PrintNote("draining is off: jobs start again")
				case got.Running == 0:
					a.PrintNote("draining: no new jobs start until queuectl drain --off; nothing is running")
				default:
					a.PrintNote("draining: no new jobs start until queuectl drain --off; %s still running", present.Jobs(got.Running))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running")
	cmd.Flags().BoolVar(&p.Off, "off", false, "stop draining, so that jobs start again")
	return cmd
}

// ReloadVerb returns the command reload. Only queuectld links it, to keep queuectl small.
func ReloadVerb(app *cli.App) *cobra.Command {
	a := command{app}
	return &cobra.Command{
		Use: "reload", Short: "Reload the settings file of the service", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Answer(cmd.Context(), a.App, (*control.Client).Reload, control.Nothing{},
				func(got control.ReloadResult) error {
					if len(got.Hidden) > 0 {
						fmt.Fprintf(a.Stderr, "queuectl: settings in the file that have no effect, because stored values, the "+
							"environment "+
							"or flags override them: %s; see their origin with: queuectl config list\n", strings.Join(got.Hidden, ", "))
					}
					if got.Note != "" {
						fmt.Fprintf(a.Stderr, "queuectl: settings reloaded, but %s\n", got.Note)
						return nil
					}
					a.PrintNote("settings reloaded")
					return nil
				})
		},
	}
}

// CleanupVerb returns the command cleanup. Only queuectld links it, to keep queuectl small.
func CleanupVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var p control.Cleanup
	var yes bool
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove old finished jobs and their history", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !p.DryRun && !yes && a.CanAsk() {
				dry := p
				dry.DryRun = true
				got, err := a.wouldClean(cmd.Context(), dry)
				if err != nil {
					return err
				}
				if n := *got.MatchCount; n > 0 && !a.Confirm("remove %s and their history?", present.Jobs(n)) {
					return nil
				}
			}
			began := time.Now()
			remove := func(c *control.Client, ctx context.Context, p control.Cleanup) (control.RemovalCount, error) {
				defer a.Progress("")
				return c.Cleanup(ctx, p, func(r control.RemovalCount) error {
					a.Draw(term.Bar{Current: int64(r.Count), Total: int64(r.Total), StartedAt: began, Note: "removed"})
					return nil
				})
			}
			return cli.Answer(cmd.Context(), a.App, remove, p, func(got control.RemovalCount) error {
				if got.MatchCount != nil {
					return a.Counted(*got.MatchCount)
				}
				return a.Println(present.Jobs(got.Count) + " removed")
			})
		},
	}
	f := cmd.Flags()
	given(f, &p.Days, queue.ReadNumber, "days", "remove jobs that ended at least `N` days ago (default 7)")
	f.StringSliceVarP((*[]string)(&p.State), "state", "s", nil,
		"remove jobs in `STATE`: completed, cancelled or dead (default: completed and cancelled)")
	f.Int64Var(&p.Keep, "keep", 0, "never remove the newest `N` of the selected jobs, whatever their state")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	// This call fails only if the flag does not exist.
	cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"completed", "cancelled", "dead"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// wouldClean counts the jobs that a cleanup would remove.
func (a command) wouldClean(ctx context.Context, p control.Cleanup) (control.RemovalCount, error) {
	c, err := a.Client()
	if err != nil {
		return control.RemovalCount{}, err
	}
	defer c.Close()
	return c.Cleanup(ctx, p, func(control.RemovalCount) error { return nil })
}
