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
	var p control.DrainParams
	cmd := cli.RequestVerb(app, "drain [--wait | --off]", "Start no new jobs until drain --off, even after a restart",
		(*control.Client).StartOrEndDrain, &p, func(reply control.DrainResult) error {
			switch {
			case !reply.Draining:
				return app.PrintTerminalMessage("draining is off: jobs start again")
			case reply.RunningJobs == 0:
				return app.PrintTerminalMessage("draining: no new jobs start until queuectl drain --off; nothing is running")
			}
			return app.PrintTerminalMessage("draining: no new jobs start until queuectl drain --off; %s still running",
				present.JobCountText(reply.RunningJobs))
		})
	cmd.Flags().BoolVar(&p.WaitUntilIdle, "wait", false, "wait until no job is running")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "stop draining, so that jobs start again")
	return cmd
}

// ReloadVerb returns the command "queuectl reload".
func ReloadVerb(app *cli.App) *cobra.Command {
	return cli.RequestVerb(app, "reload", "Reload the settings file of the service", (*control.Client).ReloadSettingsFile,
		&control.NoParams{}, func(reply control.ReloadResult) error {
			if len(reply.OverriddenSettings) > 0 {
				app.PrintMessage("settings in the file that have no effect, because stored values, the environment or flags "+
					"override them: %s; see their origin with: queuectl config list", strings.Join(reply.OverriddenSettings, ", "))
			}
			if reply.PendingChangesNote != "" {
				app.PrintMessage("settings reloaded, but %s", reply.PendingChangesNote)
				return nil
			}
			return app.PrintTerminalMessage("settings reloaded")
		})
}

// CleanupVerb returns the command "queuectl cleanup".
func CleanupVerb(app *cli.App) *cobra.Command {
	var p control.CleanupParams
	var yes bool
	cmd := cli.NewCommand("cleanup", "Remove old finished jobs and their history",
		cli.NoArgs, func(ctx context.Context, _ []string) error {
			return app.WithClient(func(c *control.Client) error {
				if !p.DryRun && !yes && app.CanAskUser() {
					dry := p
					dry.DryRun = true
					got, err := c.RemoveOldJobs(ctx, dry, func(control.RemovalCount) error { return nil })
					if err != nil {
						return err
					}
					if n := *got.SelectedCount; n > 0 && !app.Confirm("remove %s and their history?", present.JobCountText(n)) {
						return nil
					}
				}
				began := time.Now()
				remove := func(c *control.Client, ctx context.Context, p control.CleanupParams) (control.RemovalCount, error) {
					defer app.ShowProgress("")
					return c.RemoveOldJobs(ctx, p, func(r control.RemovalCount) error {
						app.DrawProgressBar(term.ProgressBar{Current: int64(r.RemovedJobs), Total: int64(r.JobsToRemove),
							StartedAt: began, TextAfterNumbers: "removed"})
						return nil
					})
				}
				return cli.CallClientAndPrint(ctx, app, c, remove, p, app.PrintRemovedCount)
			})
		})
	f := cmd.Flags()
	input.OptionalVar(f, &p.MinAgeDays, queue.ParseNumber, "days", "",
		"remove jobs that ended at least `N` days ago (default 7)")
	f.StringSliceVarP((*[]string)(&p.States), "state", "s", nil,
		"remove jobs in `STATE`: completed, cancelled or dead (default: completed and cancelled)")
	f.Int64Var(&p.KeepNewestJobs, "keep", 0, "never remove the newest `N` of the selected jobs, whatever their state")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	input.CompleteValues(cmd, "state", "completed", "cancelled", "dead")
	return cmd
}

// NodeVerb returns the command "queuectl node".
func NodeVerb(a *cli.App) *cobra.Command {
	nodes := func(ctx context.Context, c *control.Client, cursor string) ([]control.NodeView, string, error) {
		page, err := c.ListNodes(ctx, control.NodeListParams{Cursor: cursor})
		return page.Nodes, page.NextCursor, err
	}
	list := cli.ListVerb(a, "List nodes with their state, running jobs and labels", "", present.NodeHeadings, false, nodes,
		present.NodeRow)
	return cli.GroupCommand("node", "List, drain and remove the nodes that share a queue", list, nodeDrainVerb(a),
		nodeRemoveVerb(a))
}

func nodeDrainVerb(a *cli.App) *cobra.Command {
	var p control.NodeDrainParams
	cmd := cli.NamedRequestVerb(a, "drain NODE [--wait] | NODE --off", "Start no new jobs on a node; other nodes continue",
		"the name of a node", &p.Name, (*control.Client).SetNodeDraining, &p, func(n control.NodeView) error {
			switch {
			case p.EndDrain:
				return a.PrintTerminalMessage("node %s starts jobs again", n.Name)
			case n.RunningJobs == 0:
				return a.PrintTerminalMessage("node %s is draining; no jobs are running on it", n.Name)
			}
			return a.PrintTerminalMessage("node %s is draining; %s still running", n.Name, present.JobCountText(n.RunningJobs))
		})
	a.AcceptNames(cmd, "node", a.CompleteNodes())
	cmd.Flags().BoolVar(&p.WaitUntilIdle, "wait", false, "wait until no job is running on the node")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "end the drain: let the node start jobs again")
	return cmd
}

func nodeRemoveVerb(a *cli.App) *cobra.Command {
	var p control.NodeRemoveParams
	cmd := cli.NamedRequestVerb(a, "rm NODE", "Remove a stopped node; its running jobs are recorded as lost",
		"the name of a node", &p.Name, (*control.Client).RemoveNode, &p,
		func(n control.NodeView) error { return a.PrintTerminalMessage("node %s was removed", n.Name) })
	a.AcceptNames(cmd, "node", a.CompleteNodes())
	return cmd
}

// WebVerb returns the command "queuectl web".
func WebVerb(a *cli.App) *cobra.Command {
	var p control.WebStartParams
	start := cli.RequestVerb(a, "start", "Start the web dashboard and print its address", (*control.Client).StartWebPage,
		&p,
		func(v control.WebState) error {
			a.PrintTerminalMessage("the web dashboard listens on %s; get a sign-in link with: queuectl web open",
				v.ListenAddress)
			return a.Println(v.ListenAddress)
		})
	start.Flags().Var(input.NonEmptyValue(&p.ListenAddress), "listen",
		"listen on `ADDRESS:PORT` or unix:/PATH (default: the setting web.listen, or 127.0.0.1:7070)")
	stop := cli.RequestVerb(a, "stop", "Stop the web dashboard", (*control.Client).StopWebPage, &control.NoParams{},
		func(control.WebState) error { return a.PrintTerminalMessage("the web dashboard is off") })
	open := cli.RequestVerb(a, "open", "Print a sign-in link, valid once and for one minute",
		(*control.Client).CreateWebLink,
		&control.NoParams{}, func(v control.WebLink) error {
			a.PrintTerminalMessage("open this link within a minute; it works once:")
			return a.Println(v.URL)
		})
	return cli.GroupCommand("web", "Start, stop and open the web dashboard", start, stop, open)
}

// WhoamiVerb returns the command "queuectl whoami".
func WhoamiVerb(a *cli.App) *cobra.Command {
	return cli.RequestVerb(a, "whoami", "Show your identity and rights", (*control.Client).Whoami, &control.NoParams{},
		func(w control.WhoamiResult) error { return a.PrintNameValuePairs(13, present.WhoamiRows(&w)) })
}

// HookVerb returns the command "queuectl hook".
func HookVerb(a *cli.App) *cobra.Command {
	var p control.HookTestParams
	test := cli.NamedRequestVerb(a, "test NAME", "Test a hook or webhook; print the ID of the job that runs it",
		"the name of a webhook or of a hook setting such as on_dead", &p.HookName, (*control.Client).EnqueueHookTest, &p,
		func(reply control.EnqueueResult) error {
			a.PrintTerminalMessage("job %s enqueued; follow it with: queuectl attach %s", reply.JobID, reply.JobID)
			return a.Println(reply.JobID)
		})
	return cli.GroupCommand("hook", "Test hooks and webhooks", test)
}
