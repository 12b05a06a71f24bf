package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// SimulateVerb returns the command "queuectl simulate".
func SimulateVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var p control.Simulate
	cmd := &cobra.Command{
		Use: "simulate", Short: "List the jobs that would start if workers were free", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("next") && p.JobCount < 1 {
				return fault.Usagef("--next: %d is too small; use a number from 1 to 100", p.JobCount)
			}
			a.MissingQueueIsEmpty = true
			empty := "no job can start now; see why a job waits with: queuectl why ID"
			simulated := func(c *control.Client, ctx context.Context, p control.Simulate) ([]control.Job, error) {
				next, err := c.Simulate(ctx, p)
				if next.Incomplete {
					a.Say("the service checked only some of the many waiting jobs, so the list may lack jobs; see why a job " +
						"waits with: queuectl why ID")
					empty = "none of the waiting jobs that were checked can start now"
				}
				return next.Jobs, err // the JSON output is only the array of jobs
			}
			return cli.CallAndPrint(cmd.Context(), a.App, simulated, p, func(jobs []control.Job) error {
				return a.PrintTableOrIDs(len(jobs), empty, []string{"ID", "QUEUE", "PRIORITY", "COMMAND"}, func(i int) []string {
					j := &jobs[i]
					return []string{j.ID, j.Queue, present.RankText(j), present.JobTitle(j)}
				})
			})
		},
	}
	cmd.Flags().IntVar(&p.JobCount, "next", 20, "list the next `N` jobs, at most 100")
	return cmd
}

// TreeVerb returns the command "queuectl tree".
func TreeVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var asDot bool
	cmd := &cobra.Command{
		Use: "tree ID", Short: "Show the dependencies and dependants of a job as a tree",
		Args: cli.ExactArgs(1, "the id of a job"), ValidArgsFunction: a.CompleteIDs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.ReadAndPrint(cmd.Context(), a.App, (*control.Client).Tree, control.Tree{ID: control.JobID(args[0])},
				func(t control.TreeView) error {
					if asDot {
						return a.printDot(&t)
					}
					return a.printTree(&t)
				})
		},
	}
	cmd.Flags().BoolVar(&asDot, "dot", false, "print the graph in the DOT language of Graphviz")
	return cmd
}

// treeDrawing holds the state of printing a dependency tree.
type treeDrawing struct {
	nodes      map[int64]*control.TreeNode  // jobs by sequence number
	childEdges map[int64][]control.TreeEdge // edges to the dependants of a job, by its sequence number
	drawnSeqs  map[int64]bool               // sequence numbers of the printed jobs
}

// printTree prints each dependant below its parents. It begins with the jobs that have no parent.
func (a command) printTree(t *control.TreeView) (err error) {
	d := treeDrawing{nodes: map[int64]*control.TreeNode{}, childEdges: map[int64][]control.TreeEdge{},
		drawnSeqs: map[int64]bool{}}
	waits := map[int64]bool{}
	for i := range t.Nodes {
		d.nodes[t.Nodes[i].Seq] = &t.Nodes[i]
	}
	for _, e := range t.Edges {
		d.childEdges[e.Parent] = append(d.childEdges[e.Parent], e)
		waits[e.Child] = true
	}
	for i := range t.Nodes {
		if n := &t.Nodes[i]; !waits[n.Seq] {
			err = a.drawNode(&d, n, nil, "", "")
		}
	}
	if t.More {
		a.PrintInfo("only %d jobs of the tree are shown; there are more", len(t.Nodes))
	}
	return err
}

// drawNode prints a job and, below it, its dependants. If the job was printed before, drawNode prints only
// the job's line. linePrefix precedes that line, and childPrefix precedes the lines of the dependants.
//
// edge is the edge from the parent to the job, or nil for a job without parents.
func (a command) drawNode(d *treeDrawing, n *control.TreeNode, edge *control.TreeEdge,
	linePrefix, childPrefix string) error {
	name := cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))
	text := name + "  " + cmp.Or(n.State, "removed")
	if sign := present.SignOfState(n.State); sign.Sign != "" {
		text = a.Coloured(sign.Sign, sign.Colour) + " " + text
	}
	switch {
	case edge == nil || n.State == queue.Completed.String() || n.State == queue.Dead.String():
	case edge.Status == "failed":
		text += ", its dependency on this parent failed (required: " + edge.Condition + ")"
	case edge.Condition == queue.ParentEnded.String():
		text += ", starts when the parent has ended"
	case edge.Condition != queue.ParentCompleted.String():
		text += ", starts when the parent is " + edge.Condition
	}
	again := d.drawnSeqs[n.Seq]
	if again {
		text += "  (shown above)"
	}
	err := a.Println(a.EscapeFor(a.Stdout, linePrefix+text))
	if again {
		return err
	}
	d.drawnSeqs[n.Seq] = true
	list := d.childEdges[n.Seq]
	for i := range list {
		branch, deeper := "├─ ", "│  "
		if i == len(list)-1 {
			branch, deeper = "└─ ", "   "
		}
		err = a.drawNode(d, d.nodes[list[i].Child], &list[i], childPrefix+termtext.LocaleText(branch),
			childPrefix+termtext.LocaleText(deeper))
	}
	return err
}

// printDot prints the graph in the DOT language of Graphviz.
func (a command) printDot(t *control.TreeView) error {
	var b strings.Builder
	b.WriteString("digraph jobs {\n")
	for _, n := range t.Nodes {
		fmt.Fprintf(&b, "  %d [label=%q];\n", n.Seq, cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))+"\n"+cmp.Or(n.State, "removed"))
	}
	for _, e := range t.Edges {
		label := ""
		if e.Condition != queue.ParentCompleted.String() {
			label = fmt.Sprintf(" [label=%q]", e.Condition)
		}
		fmt.Fprintf(&b, "  %d -> %d%s;\n", e.Parent, e.Child, label)
	}
	b.WriteString("}")
	return a.Println(b.String())
}
