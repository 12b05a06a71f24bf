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
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// SimulateVerb returns the command "queuectl simulate".
func SimulateVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	var p control.SimulateParams
	cmd := cli.NewCommand("simulate", "List the jobs that would start if workers were free",
		cli.NoArgs, func(ctx context.Context, _ []string) error {
			if a.Cmd.Flags().Changed("next") && p.MaxJobs < 1 {
				return fault.Usagef("--next: %d is too small; use a number from 1 to 100", p.MaxJobs)
			}
			a.MissingQueueIsEmpty = true
			empty := "no job can start now; see why a job waits with: queuectl why ID"
			simulated := func(c *control.Client, ctx context.Context, p control.SimulateParams) ([]control.Job, error) {
				next, err := c.SimulateNextStarts(ctx, p)
				if next.MayBeIncomplete {
					a.PrintMessage("the service checked only some of the many waiting jobs, so the list may lack jobs; see why a " +
						"job waits with: queuectl why ID")
					empty = "none of the waiting jobs that were checked can start now"
				}
				return next.Jobs, err // the JSON output is only the array of jobs
			}
			return cli.CallAndPrint(ctx, a.App, simulated, p, func(jobs []control.Job) error {
				headings := []string{"ID", "QUEUE", "PRIORITY", "COMMAND"}
				return term.PrintTable(&a.Output, jobs, empty, headings, func(j *control.Job) []string {
					return []string{j.ID, j.Queue, present.PriorityWithBonusText(j), present.JobTitle(j)}
				})
			})
		})
	cmd.Flags().IntVar(&p.MaxJobs, "next", 20, "list the next `N` jobs, at most 100")
	return cmd
}

// TreeVerb returns the command "queuectl tree".
func TreeVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	var asDot bool
	cmd := cli.NewCommand("tree ID", "Show the dependencies and dependants of a job as a tree",
		cli.ExactArgs(1, "the id of a job"), func(ctx context.Context, args []string) error {
			return cli.ReadAndPrint(ctx, a.App, (*control.Client).ReadDependencyTree,
				control.DependencyTreeParams{ID: control.JobID(args[0])},
				func(t control.DependencyTree) error {
					if asDot {
						return a.printGraphvizTree(&t)
					}
					return a.printTree(&t)
				})
		})
	a.AcceptJobIDs(cmd)
	cmd.Flags().BoolVar(&asDot, "dot", false, "print the graph in the DOT language of Graphviz")
	return cmd
}

// treeDrawing holds the state of printing a dependency tree.
type treeDrawing struct {
	nodesBySeq      map[int64]*control.DependencyTreeJob // jobs by sequence number
	childEdgesBySeq map[int64][]control.JobDependency    // edges to the dependants of a job, by its sequence number
	// sequence numbers of the jobs already printed with their dependants
	drawnSeqs map[int64]bool
}

// printTree prints each dependant below each of its parents. It begins with the jobs that have no parent.
func (a adminCommands) printTree(t *control.DependencyTree) (err error) {
	d := treeDrawing{nodesBySeq: map[int64]*control.DependencyTreeJob{},
		childEdgesBySeq: map[int64][]control.JobDependency{},
		drawnSeqs:       map[int64]bool{}}
	waits := map[int64]bool{}
	for i := range t.Jobs {
		d.nodesBySeq[t.Jobs[i].Seq] = &t.Jobs[i]
	}
	for _, e := range t.Dependencies {
		d.childEdgesBySeq[e.ParentSeq] = append(d.childEdgesBySeq[e.ParentSeq], e)
		waits[e.ChildSeq] = true
	}
	for _, n := range t.Jobs {
		if !waits[n.Seq] {
			err = a.printSubtree(&d, &n, nil, "", "")
		}
	}
	if t.More {
		a.PrintTerminalMessage("only %d jobs of the tree are shown; there are more", len(t.Jobs))
	}
	return err
}

// printSubtree prints a job and, below it, its dependants. If the job was already printed elsewhere in the tree,
// printSubtree prints only the job's line. linePrefix precedes that line, and childPrefix precedes the lines of the
// dependants.
//
// parentEdge is the edge from the parent below which the job is printed, or nil for a job without parents.
func (a adminCommands) printSubtree(drawing *treeDrawing, n *control.DependencyTreeJob,
	parentEdge *control.JobDependency,
	linePrefix, childPrefix string) error {
	name := cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))
	text := name + "  " + cmp.Or(n.State, "removed")
	if sign := present.SignOfState(n.State); sign.Symbol != "" {
		text = a.Coloured(sign.Symbol, sign.ColourCode) + " " + text
	}
	switch {
	case parentEdge == nil || n.State == queue.Completed.String() || n.State == queue.Dead.String():
	case parentEdge.Status == "failed":
		text += ", its dependency on this parent failed (required: " + parentEdge.Condition + ")"
	case parentEdge.Condition == queue.ParentEnded.String():
		text += ", starts when the parent has ended"
	case parentEdge.Condition != queue.ParentCompleted.String():
		text += ", starts when the parent is " + parentEdge.Condition
	}
	again := drawing.drawnSeqs[n.Seq]
	if again {
		text += "  (shown above)"
	}
	err := a.Println(a.EscapeForStdout(linePrefix + text))
	if again {
		return err
	}
	drawing.drawnSeqs[n.Seq] = true
	list := drawing.childEdgesBySeq[n.Seq]
	for i, e := range list {
		branch, deeper := "├─ ", "│  "
		if i == len(list)-1 {
			branch, deeper = "└─ ", "   "
		}
		err = a.printSubtree(drawing, drawing.nodesBySeq[e.ChildSeq], &e, childPrefix+
			termtext.TextForLocale(branch), childPrefix+termtext.TextForLocale(deeper))
	}
	return err
}

// printGraphvizTree prints the graph in the DOT language of Graphviz.
func (a adminCommands) printGraphvizTree(t *control.DependencyTree) error {
	var b strings.Builder
	b.WriteString("digraph jobs {\n")
	for _, n := range t.Jobs {
		fmt.Fprintf(&b, "  %d [label=%q];\n", n.Seq, cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))+"\n"+cmp.Or(n.State, "removed"))
	}
	for _, e := range t.Dependencies {
		label := ""
		if e.Condition != queue.ParentCompleted.String() {
			label = fmt.Sprintf(" [label=%q]", e.Condition)
		}
		fmt.Fprintf(&b, "  %d -> %d%s;\n", e.ParentSeq, e.ChildSeq, label)
	}
	b.WriteString("}")
	return a.Println(b.String())
}
