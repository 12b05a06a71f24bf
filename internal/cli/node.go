package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// NodeVerb returns the command node. Only queuectld links it, because it is rarely used.
func NodeVerb(app *App) *cobra.Command {
	a := admin{app}
	return Group("node", "List, drain and remove the nodes that share a queue", nodeListVerb(a), nodeDrainVerb(a), nodeRemoveVerb(a))
}

func nodeListVerb(a admin) *cobra.Command {
	return allVerb(a.App, "List nodes with their state, running jobs and labels", "", nodeColumns, allNodes, nodeRow)
}

// allNodes reads all pages of the list of nodes.
func allNodes(ctx context.Context, c *control.Client) (list []control.NodeView, err error) {
	for p, more := (control.Nodes{}), true; more; more = p.Cursor != "" {
		page, err := c.NodeList(ctx, p)
		if err != nil {
			return nil, err
		}
		list, p.Cursor = append(list, page.Nodes...), page.Next
	}
	return list, nil
}

var nodeColumns = []string{"NODE", "STATE", "WORKERS", "RUNNING", "LAST SEEN", "LABELS", "RESOURCES", "VERSION"}

// nodeRow formats a node as a row of the table.
func nodeRow(n *control.NodeView) []string {
	state := n.State
	if n.This {
		state += " (this node)"
	}
	return []string{n.Name, state, fmt.Sprint(n.Workers), fmt.Sprint(n.Running), agoOf(n.LastHeartbeat, time.Now()), pairs(n.Labels), pairs(n.Resources), n.Version}
}

// completeNodes completes the names of nodes.
func (a *App) completeNodes(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeNames(a, cmd, typed, allNodes, func(n *control.NodeView) string { return n.Name })
}

// pairs formats the entries of a map in order, or "-" if it is empty.
func pairs[V any](of map[string]V) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, fmt.Sprintf("%s=%v", name, of[name]))
	}
	if list == nil {
		return "-"
	}
	return strings.Join(list, " ")
}

func nodeDrainVerb(a admin) *cobra.Command {
	var p control.NodeDrain
	cmd := &cobra.Command{
		Use: "drain NODE [--wait] | NODE --off", Short: "Start no new jobs on a node; other nodes continue", Args: Exactly(1, "the name of a node"), ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			return answer(cmd.Context(), a.App, (*control.Client).NodeDrain, p, func(n control.NodeView) error {
				switch {
				case p.Off:
					a.Say("node %s starts jobs again", n.Name)
				case n.Running == 0:
					a.Say("node %s is draining; no jobs are running on it", n.Name)
				default:
					a.Say("node %s is draining; %s still running", n.Name, Jobs(n.Running))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running on the node")
	cmd.Flags().BoolVar(&p.Off, "off", false, "end the drain: let the node start jobs again")
	return cmd
}

func nodeRemoveVerb(a admin) *cobra.Command {
	return &cobra.Command{
		Use: "rm NODE", Short: "Remove a stopped node; its running jobs are recorded as lost", Args: Exactly(1, "the name of a node"), ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).NodeRemove, control.NodeName{Name: args[0]}, func(n control.NodeView) error {
				a.Say("node %s was removed", n.Name)
				return nil
			})
		},
	}
}
