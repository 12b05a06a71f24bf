package admin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// GateVerb returns the command "queuectl gate".
func GateVerb(a *cli.App) *cobra.Command {
	gates := func(ctx context.Context, c *control.Client, cursor string) ([]control.GateView, string, error) {
		page, err := c.ListGates(ctx, control.GateListParams{Cursor: cursor})
		return page.Gates, page.NextCursor, err
	}
	list := cli.ListVerb(a, "List locks, rate limits and resources (shared and your own)",
		"there are no locks, rate limits or resources; a job creates a lock by using it: queuectl enqueue --lock "+
			"KEY -- program args", present.GateHeadings, false, gates, present.GateRow)
	return cli.GroupCommand("gate", "List locks, rate limits and resources; set shared limits", list, gateSetVerb(a))
}

func gateSetVerb(a *cli.App) *cobra.Command {
	var p control.SetGateRuleParams
	cmd := cli.NewCommand("set @KEY --lock N | --rate N/PERIOD | --unset lock|rate",
		"Set a lock or rate limit that all users share", cli.ExactArgs(1, "a key that begins with @"),
		func(ctx context.Context, args []string) error {
			p.Key = args[0]
			if err := control.CheckParamText("sharedKey", "key", p.Key); err != nil {
				return err
			}
			if hasNoLocalFlagsSet(a.Cmd) {
				return fault.Usagef("%s: no limit given; use --lock N, --rate N/PERIOD or --unset lock|rate; example: queuectl "+
					"gate set %s --lock 3", a.Cmd.CommandPath(), queue.QuoteShellWord(queue.ClipForMessage(p.Key)))
			}
			return cli.CallAndPrint(ctx, a, (*control.Client).SetGateRule, p, func(g control.GateView) error {
				if a.Quiet {
					return a.Println(g.Key)
				}
				if !g.RuleIsExplicit {
					if g.UnfinishedJobs != nil && *g.UnfinishedJobs > 0 {
						a.PrintMessage("%s %s keeps its limit until the jobs that use it have finished (%s)", g.Kind, g.Key,
							present.JobCountText(int(*g.UnfinishedJobs)))
						return nil
					}
					return a.PrintTerminalMessage("the %s limit of %s was removed for all users; list the other limits with: "+
						"queuectl gate "+
						"list", g.Kind, g.Key)
				}
				return a.PrintTable(present.GateHeadings[:4], [][]string{present.GateRow(&g)[:4]})
			})
		})
	f := cmd.Flags()
	input.OptionalVar(f, &p.LockLimit, input.ParseInt, "lock", "", "run at most `N` jobs with KEY at the same time")
	input.OptionalVar(f, &p.RateLimit, parseNonEmptyText, "rate", "",
		"start at most `N/PERIOD` jobs with KEY, such as 5/m (5 per minute); PERIOD is s, m, h or d")
	f.Var(input.NonEmptyValue(&p.RuleToRemove), "unset", "`KIND` of limit to remove: lock or rate")
	input.CompleteValues(cmd, "unset", "lock", "rate")
	return cmd
}
