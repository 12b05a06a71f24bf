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

// DrainVerb returns the command "queuectl drain".
func DrainVerb(app *cli.App) *cobra.Command {
	var p control.Drain
	cmd := cli.RequestVerb(app, "drain [--wait | --off]", "Start no new jobs until drain --off, even after a restart",
		(*control.Client).Drain, &p, func(reply control.DrainResult) error {
			switch {
			case !reply.Draining:
				return app.PrintInfo("draining is off: jobs start again")
			case reply.Running == 0:
				return app.PrintInfo("draining: no new jobs start until queuectl drain --off; nothing is running")
			}
			return app.PrintInfo("draining: no new jobs start until queuectl drain --off; %s still running",
				present.JobsText(reply.Running))
		})
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "stop draining, so that jobs start again")
	return cmd
}

// ReloadVerb returns the command "queuectl reload".
func ReloadVerb(app *cli.App) *cobra.Command {
	return cli.RequestVerb(app, "reload", "Reload the settings file of the service", (*control.Client).Reload,
		&control.NoParams{}, func(reply control.ReloadResult) error {
			if len(reply.Hidden) > 0 {
				app.Say("settings in the file that have no effect, because stored values, the environment or flags override "+
					"them: %s; see their origin with: queuectl config list", strings.Join(reply.Hidden, ", "))
			}
			if reply.Note != "" {
				app.Say("settings reloaded, but %s", reply.Note)
				return nil
			}
			return app.PrintInfo("settings reloaded")
		})
}

// CleanupVerb returns the command "queuectl cleanup".
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
						app.DrawBar(term.ProgressBar{Current: int64(r.Count), Total: int64(r.TotalJobs), StartedAt: began,
							Suffix: "removed"})
						return nil
					})
				}
				return cli.CallAndPrintWith(cmd.Context(), app, c, remove, p, app.PrintRemoved)
			})
		},
	}
	f := cmd.Flags()
	input.OptionalVar(f, &p.Days, queue.ParseNumber, "days", "",
		"remove jobs that ended at least `N` days ago (default 7)")
	f.StringSliceVarP((*[]string)(&p.State), "state", "s", nil,
		"remove jobs in `STATE`: completed, cancelled or dead (default: completed and cancelled)")
	f.Int64Var(&p.Keep, "keep", 0, "never remove the newest `N` of the selected jobs, whatever their state")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	input.CompleteValues(cmd, "state", "completed", "cancelled", "dead")
	return cmd
}

// NodeVerb returns the command "queuectl node".
func NodeVerb(a *cli.App) *cobra.Command {
	nodes := func(ctx context.Context, c *control.Client, cursor string) ([]control.NodeView, string, error) {
		page, err := c.NodeList(ctx, control.NodeListParams{Cursor: cursor})
		return page.Nodes, page.Next, err
	}
	list := cli.ListVerb(a, "List nodes with their state, running jobs and labels", "", present.NodeColumns, false, nodes,
		present.NodeRow)
	return cli.GroupCommand("node", "List, drain and remove the nodes that share a queue", list, nodeDrainVerb(a),
		nodeRemoveVerb(a))
}

func nodeDrainVerb(a *cli.App) *cobra.Command {
	var p control.NodeDrain
	cmd := cli.NamedRequestVerb(a, "drain NODE [--wait] | NODE --off", "Start no new jobs on a node; other nodes continue",
		"the name of a node", &p.Name, (*control.Client).NodeDrain, &p, func(n control.NodeView) error {
			switch {
			case p.EndDrain:
				return a.PrintInfo("node %s starts jobs again", n.Name)
			case n.Running == 0:
				return a.PrintInfo("node %s is draining; no jobs are running on it", n.Name)
			}
			return a.PrintInfo("node %s is draining; %s still running", n.Name, present.JobsText(n.Running))
		})
	cmd.ValidArgsFunction = a.CompleteNodes()
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running on the node")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "end the drain: let the node start jobs again")
	return cmd
}

func nodeRemoveVerb(a *cli.App) *cobra.Command {
	var p control.NodeRemoveParams
	cmd := cli.NamedRequestVerb(a, "rm NODE", "Remove a stopped node; its running jobs are recorded as lost",
		"the name of a node", &p.Name, (*control.Client).NodeRemove, &p,
		func(n control.NodeView) error { return a.PrintInfo("node %s was removed", n.Name) })
	cmd.ValidArgsFunction = a.CompleteNodes()
	return cmd
}

// WebVerb returns the command "queuectl web".
func WebVerb(a *cli.App) *cobra.Command {
	var p control.WebStart
	start := cli.RequestVerb(a, "start", "Start the web dashboard and print its address", (*control.Client).WebStart, &p,
		func(v control.WebState) error {
			a.PrintInfo("the web dashboard listens on %s; get a sign-in link with: queuectl web open", v.Listen)
			return a.Println(v.Listen)
		})
	start.Flags().Var(input.NonEmptyValue(&p.Listen), "listen",
		"listen on `ADDRESS:PORT` or unix:/PATH (default: the setting web.listen, or 127.0.0.1:7070)")
	stop := cli.RequestVerb(a, "stop", "Stop the web dashboard", (*control.Client).WebStop, &control.NoParams{},
		func(control.WebState) error { return a.PrintInfo("the web dashboard is off") })
	open := cli.RequestVerb(a, "open", "Print a sign-in link, valid once and for one minute", (*control.Client).WebOpen,
		&control.NoParams{}, func(v control.WebLink) error {
			a.PrintInfo("open this link within a minute; it works once:")
			return a.Println(v.URL)
		})
	return cli.GroupCommand("web", "Start, stop and open the web dashboard", start, stop, open)
}

// WhoamiVerb returns the command "queuectl whoami".
func WhoamiVerb(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show your identity and rights", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.MissingQueueIsEmpty = true
			return cli.CallAndPrint(cmd.Context(), a, (*control.Client).Whoami, control.NoParams{},
				func(w control.Whoami) error { return a.PrintPairs(13, present.WhoamiRows(&w)) })
		},
	}
}

// HookVerb returns the command "queuectl hook".
func HookVerb(a *cli.App) *cobra.Command {
	var p control.HookTestParams
	test := cli.NamedRequestVerb(a, "test NAME", "Test a hook or webhook; print the ID of the job that runs it",
		"the name of a webhook or of a hook setting such as on_dead", &p.Name, (*control.Client).HookTest, &p,
		func(reply control.EnqueueResult) error {
			a.PrintInfo("job %s enqueued; follow it with: queuectl attach %s", reply.ID, reply.ID)
			return a.Println(reply.ID)
		})
	return cli.GroupCommand("hook", "Test hooks and webhooks", test)
}
