package admin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// GateVerb returns the command gate. Only queuectld links it, because it is rarely used.
func GateVerb(app *cli.App) *cobra.Command {
	a := command{app}
	return cli.Group("gate", "List locks, rate limits and resources; set shared limits", gateListVerb(a), gateSetVerb(a))
}

func gateListVerb(a command) *cobra.Command {
	return allVerb(a.App, "List locks, rate limits and resources (shared and your own)",
		"there are no locks, rate limits or resources; a job creates a lock by using it: queuectl enqueue --lock "+
			"KEY -- program args", present.GateColumns, allGates, present.GateRow)
}

// allVerb builds a command that prints a table of all objects of one kind, such as gates.
func allVerb[T any](a *cli.App, short, empty string, head []string,
	all func(context.Context, *control.Client) ([]T, error), row func(*T) []string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: short, Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.MissingIsEmpty = true
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := all(cmd.Context(), c)
			if err != nil {
				return err
			}
			if a.Structured() {
				return term.PrintList(&a.Output, list)
			}
			return a.NamedTable(len(list), empty, head, func(i int) []string { return row(&list[i]) })
		},
	}
}

// allGates reads all pages of the list of gates.
func allGates(ctx context.Context, c *control.Client) (list []control.GateView, err error) {
	list = []control.GateView{}
	for p, more := (control.Gates{}), true; more; more = p.Cursor != "" {
		page, err := c.GateList(ctx, p)
		if err != nil {
			return nil, err
		}
		list, p.Cursor = append(list, page.Gates...), page.Next
	}
	return list, nil
}

func gateSetVerb(a command) *cobra.Command {
	var p control.GateSet
	var lock int
	var rate string
	cmd := &cobra.Command{
		Use:   "set @KEY --lock N | --rate N/PERIOD | --unset lock|rate",
		Short: "Set a lock or rate limit that all users share", Args: cli.ExactArgs(1, "a key that begins with @"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Key = args[0]
			if setsNothing(cmd) {
				return fault.Usage("%s: no limit given; use --lock N, --rate N/PERIOD or --unset lock|rate; example: queuectl "+
					"gate set %s --lock 3", cmd.CommandPath(), queue.ShellWord(queue.Clip(p.Key)))
			}
			if cmd.Flags().Changed("lock") {
				p.Lock = &lock
			}
			if cmd.Flags().Changed("rate") {
				p.Rate = &rate
			}
			return cli.Answer(cmd.Context(), a.App, (*control.Client).GateSet, p, func(g control.GateView) error {
				if a.Quiet {
					return a.Println(g.Key)
				}
				if !g.Set {
					if g.Jobs != nil && *g.Jobs > 0 {
						fmt.Fprintf(a.Stderr, "queuectl: %s %s keeps its limit until the jobs that use it have finished (%s)\n", g.Kind,
							g.Key, present.Jobs(int(*g.Jobs)))
						return nil
					}
					a.PrintNote("the %s limit of %s was removed for all users; list the other limits with: queuectl gate list",
						g.Kind, g.Key)
					return nil
				}
				return a.Table(present.GateColumns[:4], [][]string{present.GateRow(&g)[:4]})
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&lock, "lock", 0, "run at most `N` jobs with KEY at the same time")
	f.Var(input.NonEmpty(&rate), "rate", "start at most `N/PERIOD` jobs with KEY, such as 5/m (5 per minute); "+
		"PERIOD is s, m, h or d")
	f.Var(input.NonEmpty(&p.Unset), "unset", "`KIND` of limit to remove: lock or rate")
	// This call fails only if the flag does not exist.
	cmd.RegisterFlagCompletionFunc("unset", cobra.FixedCompletions([]string{"lock", "rate"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
