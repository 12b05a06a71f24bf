package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// QueueVerb returns the command queue. Only queuectld links it, to keep queuectl small.
func QueueVerb(app *App) *cobra.Command {
	a := admin{app}
	return Group("queue", "Configure, pause and list named queues", queueListVerb(a), queueSetVerb(a), queuePauseVerb(a), queueResumeVerb(a), queueRmVerb(a))
}

func queueListVerb(a admin) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List queues that have settings or jobs", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.missingIsEmpty = true
			c, err := a.reader(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			list := []control.QueueView{}
			for after, more := "", true; more; more = after != "" {
				got, err := c.QueueList(cmd.Context(), control.Queues{After: after})
				if err != nil {
					return err
				}
				list, after = append(list, got.Queues...), got.Next
			}
			return a.printQueues(list)
		},
	}
}

// printQueues prints queues as a table.
func (a admin) printQueues(list []control.QueueView) error {
	if a.Structured() {
		return PrintList(&a.Output, list)
	}
	now := time.Now()
	return a.named(len(list), NoQueues, QueueHead(), func(i int) []string { return QueueRow(&list[i], now) })
}

// NoQueues is the text for an empty list of queues.
const NoQueues = "no queues; a job creates one: queuectl enqueue -Q NAME -- program args"

// QueueHead returns the headings of the list of queues.
func QueueHead() []string {
	return []string{"QUEUE", "RUNNING", "WAITING", "OLDEST", "PER MIN", "CONCURRENCY", "WEIGHT", "MAX PENDING", "DEFAULTS", "PAUSED"}
}

// QueueRow returns a queue's row of that list.
func QueueRow(q *control.QueueView, now time.Time) []string {
	return []string{q.Queue, fmt.Sprint(q.Running), fmt.Sprint(q.Waiting), waitedFor(q.Oldest, now), fmt.Sprint(q.Throughput), anyOr(int64(q.Concurrency)), fmt.Sprint(q.Weight), anyOr(q.MaxPending), defaultsText(q.Defaults), pauseText(q)}
}

func anyOr(n int64) string {
	if n == 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func waitedFor(since control.Time, now time.Time) string {
	if since == 0 {
		return "-"
	}
	return ageOf(since, now)
}

// defaultsText formats a queue's defaults as FIELD=VALUE.
func defaultsText(raw json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(raw, &fields) != nil || len(fields) == 0 {
		return "-"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		parts = append(parts, name+"="+typed(fields[name]))
	}
	return strings.Join(parts, " ")
}

// typed formats a JSON value in the syntax of a flag.
func typed(value any) string {
	text := fmt.Sprint(value)
	switch v := value.(type) {
	case []any: // the value is a list of numbers
		return strings.ReplaceAll(text[1:len(text)-1], " ", ",")
	case map[string]any:
		text = ""
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text += "," + name + "=" + fmt.Sprint(v[name])
		}
		return strings.TrimPrefix(text, ",")
	}
	return text
}

// pauseText describes a queue's pause: its end, the user and the reason. It returns "-" if the
// queue is not paused.
func pauseText(q *control.QueueView) string {
	if !q.Paused {
		return "-"
	}
	text := "paused"
	if q.Frozen {
		text = "frozen"
	}
	if q.PausedUntil != 0 {
		text += " until " + clock(queue.Millis(q.PausedUntil).Time(), time.Now())
	}
	if q.PausedBy != nil {
		text += ", by " + *q.PausedBy
	}
	if q.PauseReason != nil {
		text += ": " + *q.PauseReason
	}
	return text
}

// clock formats a time of day with its zone, and with the date unless it is today.
func clock(t, now time.Time) string {
	t = t.Local()
	return t.Format(dateLayout(t, now) + "15:04 MST")
}

// dateLayout returns the layout of a date that precedes a time of day: "" for today, without the
// year for this year.
func dateLayout(t, now time.Time) string {
	switch now = now.In(t.Location()); {
	case t.Format("2006") != now.Format("2006"):
		return "Mon 2 Jan 2006 "
	case t.Format("Jan 2") != now.Format("Jan 2"):
		return "Mon 2 Jan "
	}
	return ""
}

func queueSetVerb(a admin) *cobra.Command {
	var p control.QueueSet
	var spec queue.Spec
	var unset []string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Configure a queue, even before its first job", Args: Exactly(1, "the name of a queue"), ValidArgsFunction: a.completeQueues,
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			if setsNothing(cmd) {
				return Usage("%s: no changes given; use flags such as --concurrency N, --weight N or --default FIELD=VALUE; example: queuectl queue set %s --concurrency 1", cmd.CommandPath(), queue.Word(queue.Clip(p.Name)))
			}
			if fields := spec.Given(); len(fields) > 0 || len(unset) > 0 {
				for _, name := range unset {
					field := strings.ReplaceAll(name, "-", "_")
					if err := queue.CheckField(field); err != nil {
						return Usage("--no-default: %v", err)
					}
					fields[field] = nil
				}
				raw, err := json.Marshal(fields)
				if err != nil {
					return err
				}
				p.Default = raw
			}
			c, err := a.clientStarting(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return answerOf(cmd.Context(), a.App, c, (*control.Client).QueueSet, p, func(got control.QueueView) error { return a.printQueues([]control.QueueView{got}) })
		},
	}
	f := cmd.Flags()
	given(f, &p.Concurrency, readInt, "concurrency", "run at most `N` jobs of the queue at the same time; 0 means no limit")
	given(f, &p.Weight, readInt, "weight", "weight of the queue: with weight 2 it starts twice as many jobs as with 1; `N` from 1 to 1000 (default 1)")
	given(f, &p.MaxPending, queue.ReadInteger, "max-pending", "reject new jobs while `N` jobs of the queue are waiting; 0 means no limit")
	f.Func("default", "set the default `FIELD=VALUE` for jobs of the queue that do not set FIELD, such as timeout=2h", func(text string) error {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("%q is not FIELD=VALUE; write it like timeout=2h", queue.Clip(text))
		}
		if err := spec.SetText(strings.ReplaceAll(name, "-", "_"), value); err != nil {
			// The text already names the field, so the field of the error is dropped.
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	given(f, &p.Retention, retentionAge, "retention", "when to remove completed and cancelled jobs: after `DURATION`, never, or default (settings retention_completed, retention_cancelled)")
	given(f, &p.RetentionMaxJobs, queue.ReadInteger, "retention-max-jobs", "keep only the newest `N` completed and cancelled jobs; 0: use the setting retention_max_jobs")
	given(f, &p.RetentionOutput, queue.ParseSize, "retention-output", "keep only the newest `SIZE` of output of completed and cancelled jobs; 0: use the setting retention_output")
	f.StringSliceVar(&unset, "no-default", nil, "remove the queue's default for `FIELD`")
	return cmd
}

// setsNothing reports whether a command line contains none of the command's own flags.
func setsNothing(cmd *cobra.Command) bool {
	nothing := true
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { nothing = nothing && !f.Changed })
	return nothing
}

// given adds a flag that allocates *to and sets it. If the user does not use the flag, *to stays
// nil.
func given[T any](f *pflag.FlagSet, to **T, parse func(string) (T, error), name, usage string) {
	f.Func(name, usage, func(text string) error {
		value, err := parse(text)
		*to = &value
		return err
	})
}

func readInt(text string) (int, error) {
	n, err := queue.ReadInteger(text)
	return int(n), err
}

func retentionAge(text string) (age control.Age, err error) {
	if text != "never" && text != "default" {
		if short, ok := shortSpan(text); ok {
			text = short
		}
	}
	raw, _ := json.Marshal(text) // json.Marshal cannot fail for a string
	return age, age.UnmarshalJSON(raw)
}

func queuePauseVerb(a admin) *cobra.Command {
	var p control.QueuePause
	cmd := &cobra.Command{
		Use: "pause NAME… | --all", Short: "Stop starting jobs of a queue; running jobs continue", ValidArgsFunction: a.completeQueues,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onQueues(cmd, args, p.All, func(c *control.Client, ctx context.Context, name string) (control.QueueList, error) {
				p.Name = name
				return c.QueuePause(ctx, p)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&p.All, "all", false, "pause all queues")
	f.Var(NonEmpty(&p.Reason), "reason", "`REASON` to show for the pause")
	f.BoolVar(&p.Freeze, "freeze", false, "also freeze running jobs until the queue is resumed")
	durationVar(f, "for", "resume the queue after `DURATION`", func(d time.Duration) { p.For = control.Span(d) })
	f.Func("until", "resume the queue at `TIME`", func(text string) error {
		at, err := parseWhen(text, time.Now(), forward)
		p.Until = control.Time(queue.MillisOf(at))
		return err
	})
	return cmd
}

func queueResumeVerb(a admin) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "resume NAME… | --all", Short: "Resume paused queues", ValidArgsFunction: a.completeQueues,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onQueues(cmd, args, all, func(c *control.Client, ctx context.Context, name string) (control.QueueList, error) {
				return c.QueueResume(ctx, control.QueueName{Name: name, All: all})
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "resume all queues")
	return cmd
}

func queueRmVerb(a admin) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Remove the configuration of an empty queue", ValidArgsFunction: a.completeQueues,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onQueues(cmd, args, false, func(c *control.Client, ctx context.Context, name string) (control.QueueList, error) {
				return c.QueueRemove(ctx, control.QueueRemove{Name: name})
			})
		},
	}
}

// onQueues calls the function in the parameter do once for each named queue and prints the results.
// If all queues are meant, it makes a single call.
func (a admin) onQueues(cmd *cobra.Command, names []string, all bool, do func(*control.Client, context.Context, string) (control.QueueList, error)) error {
	switch {
	case all && len(names) > 0:
		return Usage("--all: cannot be combined with queue names; use one of them")
	case all:
		names = []string{""}
	case len(names) == 0:
		return Usage("%s: no queue given; list the queues with: queuectl queue list", cmd.CommandPath())
	}
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	done := []control.QueueView{}
	for _, name := range names {
		got, err := do(c, cmd.Context(), name)
		if err != nil {
			return err
		}
		done = append(done, got.Queues...)
	}
	if a.Structured() {
		return PrintList(&a.Output, done)
	}
	for i := range done {
		q := &done[i]
		if a.Quiet {
			if err := a.Println(q.Queue); err != nil {
				return err
			}
			continue
		}
		state := "is not paused"
		if q.Paused {
			state = "is " + pauseText(q)
		}
		switch cmd.Name() {
		case "rm":
			state = "was removed"
		case "resume":
			state = "is resumed"
		}
		a.Say("queue %s %s", q.Queue, state)
	}
	return nil
}

// completeQueues completes names of queues.
func (a *App) completeQueues(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeNames(a, cmd, typed, func(ctx context.Context, c *control.Client) ([]control.QueueView, error) {
		list, err := c.QueueList(ctx, control.Queues{})
		return list.Queues, err
	}, func(q *control.QueueView) string { return q.Queue })
}

// completeNames completes a name of an object. The function in the parameter all returns the
// objects to choose from.
func completeNames[T any](a *App, cmd *cobra.Command, typed string, all func(context.Context, *control.Client) ([]T, error), name func(*T) string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	c, err := a.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	list, err := all(ctx, c)
	for i := range list {
		if text := name(&list[i]); err == nil && strings.HasPrefix(text, typed) {
			names = append(names, text)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printNewQueues warns about queues that contain only the new jobs, because the name may be a
// typing error.
func printNewQueues(o *Output, list []control.NewQueue) {
	for _, q := range list {
		hint := ""
		if q.Near != "" {
			hint = fmt.Sprintf("; did you mean %s?", q.Near)
		}
		fmt.Fprintf(o.Err, "queuectl: queue %s is new (no other waiting or running jobs)%s\n", q.Queue, hint)
	}
}

// afterFlags adds the flags that are shorter forms of --depends-on.
func afterFlags(f *pflag.FlagSet, s *queue.Spec) {
	list := func(name, how, doc string) {
		f.Func(name, doc, func(text string) error {
			for id := range strings.SplitSeq(text, ",") {
				if !queue.ValidID(id) && (how != "" || !strings.Contains(id, ":")) {
					return fmt.Errorf("%q is not a job id; list the jobs with: queuectl list", queue.Clip(id))
				}
				if err := s.SetText("depends_on", id+how); err != nil {
					return err
				}
			}
			return nil
		})
		f.Lookup(name).Annotations = map[string][]string{themeOf: {themeOrder}}
		setsField(f.Lookup(name), "depends_on")
	}
	list("after", "", "start when all jobs in the list `ID,ID` have succeeded")
	list("after-any", ":ended", "start when all jobs in the list `ID,ID` have ended in any way")
}

// afterBatch makes a job depend on all jobs of one of the user's batches.
func (a *App) afterBatch(ctx context.Context, s *queue.Spec, name string) error {
	if name == "" {
		return nil
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	p := control.List{Batch: name}
	for {
		page, err := c.List(ctx, p)
		if e, wrong := errors.AsType[*queue.Error](err); wrong && e.Field == "batch" {
			return Usage("--after-batch: %s", e.Message)
		}
		if err != nil {
			return err
		}
		for i := range page.Jobs {
			s.DependsOn = append(s.DependsOn, page.Jobs[i].ID)
		}
		if page.Next == nil {
			break
		}
		p.Cursor = *page.Next
	}
	if len(s.DependsOn) == 0 {
		return Usage("--after-batch: you have no jobs in batch %q; find the batch with: queuectl list --columns id,labels", name)
	}
	return nil
}

func whyVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "why ID", Short: "Explain why a job is not running", Args: Exactly(1, "the id of a job"), ValidArgsFunction: a.completeIDs("waiting"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return readAnswer(cmd.Context(), a, (*control.Client).Why, control.WhyParams{ID: control.Name(args[0])}, a.printWhy)
		},
	}
}

// printWhy prints one reason per line, with what to do about it.
func (a *App) printWhy(w control.Why) error {
	for _, line := range WhyLines(&w, time.Now()) {
		if err := a.Println(a.Clean(a.Out, line)); err != nil {
			return err
		}
	}
	return nil
}

// WhyLines explains why a job does not run: one reason per line, with what to do about it.
func WhyLines(w *control.Why, now time.Time) (lines []string) {
	switch state := stateOf(w.State); {
	case len(w.Reasons) > 0:
	case state == queue.Processing:
		return []string{fmt.Sprintf("job %s is running", w.ID)}
	case state.Ended():
		return []string{fmt.Sprintf("job %s is %s; run it again with: queuectl retry %s", w.ID, w.State, w.ID)}
	case before(w) == "":
		return []string{fmt.Sprintf("job %s is next in line: it starts when a worker is free", w.ID)}
	default:
		return []string{fmt.Sprintf("job %s is waiting for a free worker: %s", w.ID, before(w))}
	}
	for i := range w.Reasons {
		lines = append(lines, reasonLine(&w.Reasons[i], now))
	}
	if text := before(w); text != "" {
		lines = append(lines, text)
	}
	return lines
}

// reasonLine formats the reason why a job waits, with the time when the reason ends, if known, and
// with what the user can do about it.
func reasonLine(r *control.Reason, now time.Time) string {
	text := r.Text
	if at := queue.Millis(r.At).Time(); r.At != 0 {
		text += fmt.Sprintf(": %s, in %s", clock(at, now), Roughly(at.Sub(now)))
	}
	return text + "; " + r.Next
}

// before describes how many jobs start before this one, and which users own them. It returns "" if
// no job starts before it.
func before(w *control.Why) string {
	n := orDefault(w.Ahead, w.AheadAtLeast)
	if n == 0 {
		return ""
	}
	text := plural(n, "job") + " ahead in line"
	if w.Ahead == nil {
		text = "at least " + text
	}
	parts := make([]string, 0, len(w.AheadByUser))
	for _, a := range w.AheadByUser {
		parts = append(parts, a.Text)
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// simulatedInPart is the warning for an incomplete simulation.
const simulatedInPart = "queuectl: the list is incomplete, because the service had to check too many waiting jobs; " +
	"see why a job waits with: queuectl why ID"

// SimulateVerb returns the command simulate. Only queuectld links it, to keep queuectl small.
func SimulateVerb(app *App) *cobra.Command {
	a := admin{app}
	var p control.Simulate
	cmd := &cobra.Command{
		Use: "simulate", Short: "List the jobs that would start if workers were free", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("next") && p.Next < 1 {
				return Usage("--next: %d is too small; use a number from 1 to 100", p.Next)
			}
			a.missingIsEmpty = true
			empty := "no job can start now; see why a job waits with: queuectl why ID"
			simulated := func(c *control.Client, ctx context.Context, p control.Simulate) ([]control.Job, error) {
				next, err := c.Simulate(ctx, p)
				if next.Incomplete {
					fmt.Fprintln(a.Err, simulatedInPart)
					empty = "the jobs that start next are not known"
				}
				return next.Jobs, err // the JSON output is only the array of jobs
			}
			return answer(cmd.Context(), a.App, simulated, p, func(jobs []control.Job) error {
				return a.named(len(jobs), empty, []string{"ID", "QUEUE", "PRIORITY", "COMMAND"}, func(i int) []string {
					j := &jobs[i]
					return []string{j.ID, j.Queue, rank(j), Title(j)}
				})
			})
		},
	}
	cmd.Flags().IntVar(&p.Next, "next", 20, "list the next `N` jobs, at most 100")
	return cmd
}

// TreeVerb returns the command tree. Only queuectld links it, to keep queuectl small.
func TreeVerb(app *App) *cobra.Command {
	a := admin{app}
	var dot bool
	cmd := &cobra.Command{
		Use: "tree ID", Short: "Show the dependencies and dependants of a job as a tree", Args: Exactly(1, "the id of a job"), ValidArgsFunction: a.completeIDs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return readAnswer(cmd.Context(), a.App, (*control.Client).Tree, control.Tree{ID: control.Name(args[0])}, func(t control.TreeView) error {
				if dot {
					return a.printDot(&t)
				}
				return a.printTree(&t)
			})
		},
	}
	cmd.Flags().BoolVar(&dot, "dot", false, "print the graph in the DOT language of Graphviz")
	return cmd
}

// drawing holds a dependency tree while it is printed.
type drawing struct {
	nodes map[int64]*control.TreeNode
	next  map[int64][]control.TreeEdge
	drawn map[int64]bool
}

// printTree prints each dependant below its parents. It begins with the jobs that have no parent.
func (a admin) printTree(t *control.TreeView) error {
	d := drawing{nodes: map[int64]*control.TreeNode{}, next: map[int64][]control.TreeEdge{}, drawn: map[int64]bool{}}
	waits := map[int64]bool{}
	for i := range t.Nodes {
		d.nodes[t.Nodes[i].Seq] = &t.Nodes[i]
	}
	for _, e := range t.Edges {
		d.next[e.Parent] = append(d.next[e.Parent], e)
		waits[e.Child] = true
	}
	for i := range t.Nodes {
		if n := &t.Nodes[i]; !waits[n.Seq] {
			if err := a.drawNode(&d, n, nil, "", ""); err != nil {
				return err
			}
		}
	}
	if t.More {
		a.Say("only %d jobs of the tree are shown; there are more", len(t.Nodes))
	}
	return nil
}

// drawNode prints a job and its dependants. If the job was printed before, it prints only the job's
// line.
func (a admin) drawNode(d *drawing, n *control.TreeNode, by *control.TreeEdge, lead, below string) error {
	name := cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))
	text := name + "  " + cmp.Or(n.State, "removed")
	if sign := signOf(n.State); sign.sign != "" {
		text = a.coloured(sign.sign, sign.colour) + " " + text
	}
	switch {
	case by == nil || n.State == queue.Completed.String() || n.State == queue.Dead.String():
	case by.Met == "failed":
		text += ", dependency failed: the parent had to be " + by.How
	case by.How == queue.ParentEnded.String():
		text += ", starts when the parent has ended"
	case by.How != queue.ParentCompleted.String():
		text += ", starts when the parent is " + by.How
	}
	again := d.drawn[n.Seq]
	if again {
		text += "  (shown above)"
	}
	if err := a.Println(a.Clean(a.Out, lead+text)); err != nil || again {
		return err
	}
	d.drawn[n.Seq] = true
	list := d.next[n.Seq]
	for i := range list {
		branch, deeper := "├─ ", "│  "
		if i == len(list)-1 {
			branch, deeper = "└─ ", "   "
		}
		if err := a.drawNode(d, d.nodes[list[i].Child], &list[i], below+Sign(branch), below+Sign(deeper)); err != nil {
			return err
		}
	}
	return nil
}

// printDot prints the graph in the DOT language of Graphviz.
func (a admin) printDot(t *control.TreeView) error {
	var b strings.Builder
	b.WriteString("digraph jobs {\n")
	for _, n := range t.Nodes {
		fmt.Fprintf(&b, "  %d [label=%q];\n", n.Seq, cmp.Or(n.ID, fmt.Sprintf("#%d", n.Seq))+"\n"+cmp.Or(n.State, "removed"))
	}
	for _, e := range t.Edges {
		label := ""
		if e.How != queue.ParentCompleted.String() {
			label = fmt.Sprintf(" [label=%q]", e.How)
		}
		fmt.Fprintf(&b, "  %d -> %d%s;\n", e.Parent, e.Child, label)
	}
	b.WriteString("}")
	return a.Println(b.String())
}
