package admin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/present"
)

// NodeVerb returns the command node. Only queuectld links it, because it is rarely used.
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
	cmd := &cobra.Command{
		Use: "drain NODE [--wait] | NODE --off", Short: "Start no new jobs on a node; other nodes continue",
		Args: cli.ExactArgs(1, "the name of a node"), ValidArgsFunction: a.CompleteNodes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			return cli.CallAndPrint(cmd.Context(), a, (*control.Client).NodeDrain, p, func(n control.NodeView) error {
				switch {
				case p.EndDrain:
					return a.PrintInfo("node %s starts jobs again", n.Name)
				case n.Running == 0:
					return a.PrintInfo("node %s is draining; no jobs are running on it", n.Name)
				}
				return a.PrintInfo("node %s is draining; %s still running", n.Name, present.JobsText(n.Running))
			})
		},
	}
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running on the node")
	cmd.Flags().BoolVar(&p.EndDrain, "off", false, "end the drain: let the node start jobs again")
	return cmd
}

func nodeRemoveVerb(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "rm NODE", Short: "Remove a stopped node; its running jobs are recorded as lost",
		Args: cli.ExactArgs(1, "the name of a node"), ValidArgsFunction: a.CompleteNodes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.CallAndPrint(cmd.Context(), a, (*control.Client).NodeRemove, control.NodeName{Name: args[0]},
				func(n control.NodeView) error { return a.PrintInfo("node %s was removed", n.Name) })
		},
	}
}
