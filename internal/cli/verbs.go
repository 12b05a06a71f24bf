package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// bulkFunc is a client method that acts on several jobs.
type bulkFunc func(*control.Client, context.Context, control.Selection) (control.BulkResult, error)

func retryVerb(a *App) *cobra.Command {
	var only bool
	cmd := a.jobsCommand("retry", "Run failed or finished jobs again", "is pending again", func(c *control.Client, ctx context.Context, s control.Selection) (control.BulkResult, error) {
		return c.Retry(ctx, control.Retry{Selection: s, Only: only})
	}, "failed", "dead", "cancelled", "completed")
	cmd.Flags().BoolVar(&only, "only", false, "retry only the selected jobs, not the cancelled jobs that depend on them")
	return cmd
}

func cancelVerb(a *App) *cobra.Command {
	return a.jobsCommand("cancel", "Cancel waiting jobs and stop running ones", "is cancelled", (*control.Client).Cancel, "waiting", "processing")
}

func holdVerb(a *App) *cobra.Command {
	return a.jobsCommand("hold", "Hold waiting jobs", "is held", (*control.Client).Hold, "pending", "failed", "blocked")
}

func releaseVerb(a *App) *cobra.Command {
	return a.jobsCommand("release", "Release held jobs", "is released", (*control.Client).Release, "held")
}

func requeueVerb(a *App) *cobra.Command {
	return a.jobsCommand("requeue", "Stop and requeue running jobs; the attempt does not count", "is pending again", (*control.Client).Requeue, "processing")
}

// endsMany lists the commands that end or remove jobs. With selection flags, they ask for
// confirmation on a terminal.
var endsMany = []string{"cancel", "kill", "requeue", "rm", "dequeue"}

// jobsCommand builds a command for jobs that are named by id or selected. The parameter outcome
// describes a changed job in messages, like "is held". The parameter states lists the job states
// that the command accepts; nil means all.
func (a *App) jobsCommand(name, short, outcome string, do bulkFunc, states ...string) *cobra.Command {
	var s selection
	s.states = states
	cmd := &cobra.Command{
		Use: name + " ID… | --state STATE …", Short: short,
		RunE: func(cmd *cobra.Command, ids []string) error { return a.onSelection(cmd, &s, ids, outcome, do) },
	}
	stateShort := "s"
	if name == "kill" {
		stateShort = "" // -s is the short form of --signal, as in kill(1)
	}
	s.add(cmd, stateShort)
	s.act(cmd)
	cmd.ValidArgsFunction = a.completeIDs(states...)
	return cmd
}

func killVerb(a *App) *cobra.Command {
	var signal string
	cmd := a.jobsCommand("kill", "Send a signal to all processes of running jobs", "got the signal", func(c *control.Client, ctx context.Context, s control.Selection) (control.BulkResult, error) {
		return c.Kill(ctx, control.Kill{Selection: s, Signal: signal})
	}, "processing")
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "signal to send: `NAME` or number")
	return cmd
}

func rmVerb(a *App) *cobra.Command {
	var force bool
	cmd := a.jobsCommand("rm", "Remove jobs and their history", "is removed", func(c *control.Client, ctx context.Context, s control.Selection) (control.BulkResult, error) {
		return c.Remove(ctx, control.Remove{Selection: s, Force: force})
	})
	cmd.Flags().BoolVar(&force, "force", false, "also stop and remove running jobs")
	return cmd
}

func dequeueVerb(a *App) *cobra.Command {
	cmd := rmVerb(a)
	cmd.Use, cmd.Hidden = "dequeue ID… | --state STATE …", true
	return cmd
}

func clearVerb(a *App) *cobra.Command {
	return a.clearCommand("Remove all jobs that are not running, and their history", "jobs that are not running", (*control.Client).Clear)
}

// clearCommand builds a command that removes all jobs of one kind, or those of a batch.
func (a *App) clearCommand(short, what string, do func(*control.Client, context.Context, control.Sure) (control.Removed, error)) *cobra.Command {
	var p control.Sure
	cmd := &cobra.Command{
		Use: "clear --yes", Short: short, Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asks := !p.Yes && !p.DryRun
			if asks && !a.canAsk() {
				return Usage("%s: permanently removes all %s and their history; confirm with --yes", cmd.CommandPath(), what)
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			if asks {
				got, err := do(c, cmd.Context(), control.Sure{Batch: p.Batch, DryRun: true})
				if err != nil {
					return err
				}
				if !a.confirm("permanently remove %s and their history?", Jobs(*got.Matched)) {
					return nil
				}
				p.Yes = true
			}
			return answerOf(cmd.Context(), a, c, do, p, func(got control.Removed) error {
				if got.Matched != nil {
					return a.counted(*got.Matched)
				}
				return a.Println(Jobs(got.Removed) + " removed")
			})
		},
	}
	cmd.Flags().BoolVar(&p.Yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	cmd.Flags().Var(givenOnce(&p.Batch), "batch", "remove only your jobs in the batch `NAME`")
	return cmd
}

// CleanupVerb returns the command cleanup. Only queuectld links it, to keep queuectl small.
func CleanupVerb(app *App) *cobra.Command {
	a := admin{app}
	var p control.Cleanup
	var yes bool
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove old finished jobs and their history", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !p.DryRun && !yes && a.canAsk() {
				dry := p
				dry.DryRun = true
				got, err := a.wouldClean(cmd.Context(), dry)
				if err != nil {
					return err
				}
				if n := *got.Matched; n > 0 && !a.confirm("remove %s and their history?", Jobs(n)) {
					return nil
				}
			}
			began := time.Now()
			remove := func(c *control.Client, ctx context.Context, p control.Cleanup) (control.Removed, error) {
				defer a.Progress("")
				return c.Cleanup(ctx, p, func(r control.Removed) error {
					a.Draw(Bar{Done: int64(r.Removed), Of: int64(r.Of), Since: began, Note: "removed"})
					return nil
				})
			}
			return answer(cmd.Context(), a.App, remove, p, func(got control.Removed) error {
				if got.Matched != nil {
					return a.counted(*got.Matched)
				}
				return a.Println(Jobs(got.Removed) + " removed")
			})
		},
	}
	f := cmd.Flags()
	given(f, &p.Days, queue.ReadNumber, "days", "remove jobs that ended at least `N` days ago (default 7)")
	f.StringSliceVarP((*[]string)(&p.State), "state", "s", nil, "remove jobs in `STATE`: completed, cancelled or dead (default: completed and cancelled)")
	f.Int64Var(&p.Keep, "keep", 0, "never remove the newest `N` of the selected jobs, whatever their state")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count the jobs; change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	// This call fails only if the flag does not exist.
	cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"completed", "cancelled", "dead"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// wouldClean counts the jobs that a cleanup would remove.
func (a admin) wouldClean(ctx context.Context, p control.Cleanup) (control.Removed, error) {
	c, err := a.Client()
	if err != nil {
		return control.Removed{}, err
	}
	defer c.Close()
	return c.Cleanup(ctx, p, func(control.Removed) error { return nil })
}

// Jobs formats a number of jobs.
func Jobs(n int) string {
	return plural(n, "job")
}

// runBulk executes a bulk command in requests of bounded size, and prints which jobs were changed
// or refused.
func (a *App) runBulk(outcome string, ids []string, do func(ids []string, cursor string) (control.BulkResult, error)) error {
	ids = unique(ids)
	all := control.BulkResult{Done: []string{}, Refused: []control.Refusal{}}
	seen := 0
	for cursor, more := "", true; more; {
		step := ids[:min(len(ids), control.MaxNames)]
		v, err := do(step, cursor)
		if err != nil {
			return err
		}
		ids = ids[len(step):]
		if v.Next != nil {
			cursor = *v.Next
		}
		more = v.Next != nil || len(ids) > 0
		seen += len(v.Done) + len(v.Refused)
		if err := a.printResult(&v, &all, outcome); err != nil {
			return err
		}
	}
	if seen == 0 && all.Matched == nil {
		a.sayNone()
	}
	switch {
	case a.JSON && !a.JSONL:
		return a.PrintJSON(all)
	case a.Structured() || all.Matched == nil:
		return nil
	}
	return a.counted(*all.Matched)
}

// counted prints the result of a dry run. With --quiet it prints to standard error, since standard
// output holds only ids.
func (a *App) counted(n int) error {
	to := a.Out
	if a.Quiet {
		to = a.Err
	}
	_, err := fmt.Fprintln(to, Jobs(n)+" selected; nothing was changed")
	return err
}

// printResult prints the result of one request: one line of JSON with --jsonl, or the ids and the
// refusals. With --json it prints nothing and adds the result to *all.
func (a *App) printResult(v, all *control.BulkResult, outcome string) error {
	if v.Matched != nil {
		if all.Matched == nil {
			all.Matched = new(int)
		}
		*all.Matched += *v.Matched
	}
	for _, r := range v.Refused {
		if a.Exit == 0 {
			a.Exit = control.RowOf(&queue.Error{Code: r.Code}).Exit
		}
	}
	if all.Unenforced == nil { // every reply contains the same list
		all.Unenforced = v.Unenforced
		warnUnenforced(&a.Output, v.Unenforced)
	}
	if all.Notes == nil { // every reply contains the same list
		all.Notes = v.Notes
		printNotes(&a.Output, a.cmd, v.Notes)
	}
	switch {
	case a.JSONL:
		v.Next = nil
		return a.PrintJSON(v)
	case a.JSON:
		all.Done, all.Refused = append(all.Done, v.Done...), append(all.Refused, v.Refused...)
		return nil
	}
	for _, line := range refusals(a.cmd, v.Refused) {
		fmt.Fprintf(a.Err, "queuectl: %s\n", a.Clean(a.Err, line))
	}
	for _, id := range v.Done {
		if err := a.printDone(id, "job "+id+" "+outcome); err != nil {
			return err
		}
	}
	return nil
}

// maxRefusedNamed is the highest number of ids that one line about refused jobs lists.
const maxRefusedNamed = 5

// refusals returns lines that say why jobs were refused, one line for each reason. They refer to
// fields by the flags that the user typed.
func refusals(cmd *cobra.Command, list []control.Refusal) (lines []string) {
	ids := map[string][]string{} // maps each reason to the ids of the jobs that were refused for it
	var reasons []string
	first := map[string]string{}
	for _, r := range list {
		withoutID := strings.NewReplacer("job "+r.ID+" ", "\x00", `"`+r.ID+`"`, "\x00", " "+r.ID+",", "\x00").Replace(r.Message + ",")
		reason := string(r.Code) + r.Field + withoutID
		if ids[reason] == nil {
			reasons = append(reasons, reason)
			first[reason] = Message(nameFlags(cmd, r.Err()))
		}
		ids[reason] = append(ids[reason], r.ID)
	}
	for _, reason := range reasons {
		line, others := first[reason], ids[reason][1:]
		switch n := len(others); {
		case len(list) > 1 && !strings.Contains(reason, "\x00"): // the message names no job
			line += "; jobs refused: " + firstIDs(ids[reason])
		case n > 0:
			line += fmt.Sprintf("; the same applies to %d more: %s", n, firstIDs(others))
		}
		lines = append(lines, line)
	}
	return lines
}

// firstIDs lists the ids, at most maxRefusedNamed of them.
func firstIDs(ids []string) string {
	text := strings.Join(ids[:min(len(ids), maxRefusedNamed)], ", ")
	if len(ids) > maxRefusedNamed {
		text += Sign(" …")
	}
	return text
}

// EditVerb returns the command edit. Only queuectld links it, to keep queuectl small.
func EditVerb(app *App) *cobra.Command {
	a := admin{app}
	var s selection
	var spec queue.Spec
	cmd := &cobra.Command{
		Use: "edit ID… [FLAGS | '{JSON}']", Short: "Change waiting jobs with flags, JSON or $EDITOR",
		RunE: func(cmd *cobra.Command, ids []string) error {
			var set json.RawMessage
			if n := len(ids); n > 0 && strings.HasPrefix(ids[n-1], "{") {
				set, ids = json.RawMessage(ids[n-1]), ids[:n-1]
				if err := queue.CheckJSON(set); err != nil {
					return Usage("cannot read the changes: %v", err)
				}
			}
			if err := wholePaths(&spec); err != nil {
				return err
			}
			given := spec.Given()
			for _, name := range []string{"lock", "rate_limit", "on", "unique"} {
				if given[name] == "" { // an empty value removes the field
					given[name] = nil
				}
			}
			var err error
			switch {
			case len(given) > 0 && set != nil:
				return Usage("give the changes as flags or as JSON, not both")
			case len(given) > 0:
				if set, err = json.Marshal(given); err != nil {
					return err
				}
			case set == nil && len(ids) != 1:
				return Usage("%s: no changes given; give them as flags or as JSON, or give one job id to edit that job in $EDITOR", cmd.CommandPath())
			case set == nil && !(IsTerminal(a.In) && IsTerminal(a.Out)):
				return Usage("%s: no changes given; give them as flags or as JSON (editing in $EDITOR needs a terminal)", cmd.CommandPath())
			case set == nil:
				p, err := s.of(cmd, ids)
				if err != nil {
					return err
				}
				return a.editInEditor(cmd.Context(), p, ids[0])
			}
			var changed queue.Spec
			// An error is ignored here, because the service reports invalid fields.
			_ = changed.UnmarshalJSON(set)
			warnExpired(&a.Output, &changed, a.Quiet || !IsTerminal(a.Err))
			namedFiles{}.warn(&a.Output, a.cmd, &changed)
			return a.onSelection(cmd, &s, ids, "is changed"+whenDue(&changed, time.Now()), func(c *control.Client, ctx context.Context, p control.Selection) (control.BulkResult, error) {
				return c.Edit(ctx, control.Edit{Selection: p, Set: set})
			})
		},
	}
	// The flag --user selects jobs, so a job's user can be changed only with JSON.
	specFlags(cmd, &spec, "id", "env_pass", "user")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		// Omit the default, because a field that no flag sets keeps its value.
		f.Usage, _, _ = strings.Cut(f.Usage, " (default: ")
	})
	cmd.Flags().Lookup("queue").Usage = "move the job to this queue, which is created if it does not exist"
	s.labelFlag = "where-label" // --label changes a job's labels, so the selection needs another flag
	s.states = []string{"waiting"}
	s.add(cmd, "s")
	s.act(cmd)
	cmd.ValidArgsFunction = a.completeIDs("waiting")
	return cmd
}
