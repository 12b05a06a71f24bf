package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// selection is what the flags of a verb on many jobs say.
type selection struct{ control.Selection }

// add adds the flags; short is the one letter of --state, if that is free.
func (s *selection) add(cmd *cobra.Command, short string) {
	f := cmd.Flags()
	f.StringSliceVarP((*[]string)(&s.State), "state", short, nil, "all jobs in this `STATE`; waiting and done too")
	labelsVar(f, (*map[string]string)(&s.Label), "all jobs that carry the label `NAME=VALUE`")
	f.Var(NonEmpty(&s.User), "user", "all jobs that this `USER` enqueued")
	durationVar(f, "older-than", "all jobs that ended, or else were enqueued, a `DURATION` ago", func(d time.Duration) { s.OlderThan = control.Span(d) })
	f.Var(NonEmpty(&s.IDGlob), "id-glob", "all jobs whose id matches the `PATTERN`, like build-*")
	cmd.RegisterFlagCompletionFunc("state", completeStates) // fails only for a flag that is not there
	f.BoolVar(&s.DryRun, "dry-run", false, "only count them")
}

// of is the selection of these ids, or of what the flags say.
func (s *selection) of(cmd *cobra.Command, ids []string) (control.Selection, error) {
	p := s.Selection
	p.IDs = ids
	if p.Chosen() == (len(ids) > 0) {
		return p, Usage("%s takes ids of jobs, or says which: --state, --label, --user, --older-than, --id-glob; give one of them", cmd.CommandPath())
	}
	return p, nil
}

// bulk is a method on jobs.
type bulk func(*control.Client, context.Context, control.Selection) (control.BulkResult, error)

// jobsVerb is a verb on jobs, by id or selected. become says what they are then; ids are
// completed of jobs in these states.
func jobsVerb(name, short, become string, do bulk, states ...string) Verb {
	return Verb{Name: name, Build: func(a *App) *cobra.Command { return a.jobsCommand(name, short, become, do, states...) }}
}

func (a *App) jobsCommand(name, short, become string, do bulk, states ...string) *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use: name + " ID… | --state STATE …", Short: short,
		RunE: func(cmd *cobra.Command, ids []string) error {
			p, err := s.of(cmd, ids)
			if err != nil {
				return err
			}
			return a.onJobs(become, ids, func(c *control.Client, ids []string, cursor string) (control.BulkResult, error) {
				p.IDs, p.Cursor = ids, cursor
				return do(c, cmd.Context(), p)
			})
		},
	}
	stateShort := "s"
	if name == "kill" {
		stateShort = "" // -s is its signal, as everywhere
	}
	s.add(cmd, stateShort)
	cmd.ValidArgsFunction = a.completeIDs(states...)
	return cmd
}

func killVerb(a *App) *cobra.Command {
	var signal string
	cmd := a.jobsCommand("kill", "Send a signal to all processes of running jobs", "got the signal", func(c *control.Client, ctx context.Context, s control.Selection) (control.BulkResult, error) {
		return c.Kill(ctx, control.Kill{Selection: s, Signal: signal})
	}, "processing")
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "`NAME` or number of the signal")
	return cmd
}

func rmVerb(a *App) *cobra.Command {
	var force bool
	cmd := a.jobsCommand("rm", "Remove jobs with their history", "is removed", func(c *control.Client, ctx context.Context, s control.Selection) (control.BulkResult, error) {
		return c.Remove(ctx, control.Remove{Selection: s, Force: force})
	})
	cmd.Flags().BoolVar(&force, "force", false, "also what runs, after it was ended")
	return cmd
}

func dequeueVerb(a *App) *cobra.Command {
	cmd := rmVerb(a)
	cmd.Use, cmd.Hidden = "dequeue ID… | --state STATE …", true
	return cmd
}

func clearVerb(a *App) *cobra.Command {
	return a.clearCommand("Remove all jobs that do not run, and their history", "jobs that do not run", (*control.Client).Clear)
}

// clearCommand removes all of one kind, if that is meant.
func (a *App) clearCommand(short, what string, do func(*control.Client, context.Context, control.Sure) (control.Removed, error)) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "clear --yes", Short: short, Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return Usage("all %s and their history are removed for good; say so with --yes", what)
			}
			return answer(cmd.Context(), a, do, control.Sure{Yes: true}, func(got control.Removed) error { return a.Println(Jobs(got.Removed) + " removed") })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "really")
	return cmd
}

func cleanupVerb(a *App) *cobra.Command {
	var p control.Cleanup
	var days float64
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove old jobs that have ended, and their history", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("days") {
				p.Days = &days
			}
			began := time.Now()
			remove := func(c *control.Client, ctx context.Context, p control.Cleanup) (control.Removed, error) {
				defer a.Progress("")
				return c.Cleanup(ctx, p, func(r control.Removed) error {
					a.Draw(Bar{Done: int64(r.Removed), Of: int64(r.Of), Since: began, Note: "removed"})
					return nil
				})
			}
			return answer(cmd.Context(), a, remove, p, func(got control.Removed) error {
				if p.DryRun {
					return a.Println(Jobs(got.Removed) + "; nothing was changed")
				}
				return a.Println(Jobs(got.Removed) + " removed")
			})
		},
	}
	f := cmd.Flags()
	f.Float64Var(&days, "days", 7, "that ended `N` days ago")
	f.StringSliceVarP((*[]string)(&p.State), "state", "s", nil, "in this `STATE`: completed, cancelled, dead (default: completed and cancelled)")
	f.Int64Var(&p.Keep, "keep", 0, "but keep the newest `N` at least")
	f.BoolVar(&p.DryRun, "dry-run", false, "only count them")
	cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"completed", "cancelled", "dead"}, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that is not there
	return cmd
}

// Jobs is a number of jobs in words.
func Jobs(n int) string {
	if n == 1 {
		return "1 job"
	}
	return fmt.Sprintf("%d jobs", n)
}

// onJobs carries a verb out, as many ids or selected jobs at a time as one request may be
// about, and tells on which jobs it was, and on which not.
func (a *App) onJobs(become string, ids []string, do func(c *control.Client, ids []string, cursor string) (control.BulkResult, error)) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	all := control.BulkResult{Done: []string{}, Refused: []control.Refusal{}}
	seen := 0
	for cursor, more := "", true; more; {
		step := ids[:min(len(ids), control.MaxNames)]
		v, err := do(c, step, cursor)
		if err != nil {
			return err
		}
		ids = ids[len(step):]
		if v.Next != nil {
			cursor = *v.Next
		}
		more = v.Next != nil || len(ids) > 0
		seen += len(v.Done) + len(v.Refused)
		if err := a.tellVerdict(&v, &all, become); err != nil {
			return err
		}
	}
	switch {
	case a.JSON && !a.JSONL:
		return a.PrintJSON(all)
	case a.Structured():
	case all.Matched != nil:
		return a.Println(Jobs(*all.Matched) + "; nothing was changed")
	case seen == 0:
		a.Say("no job matches")
	}
	return nil
}

// tellVerdict tells of one step: a line of JSON, or ids and what was refused; one
// JSON object of all steps is gathered.
func (a *App) tellVerdict(v, all *control.BulkResult, become string) error {
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
	switch {
	case a.JSONL:
		v.Next = nil
		return a.PrintJSON(v)
	case a.JSON:
		all.Done, all.Refused = append(all.Done, v.Done...), append(all.Refused, v.Refused...)
		return nil
	}
	for _, r := range v.Refused {
		fmt.Fprintf(a.Err, "queuectl: %s\n", a.Clean(a.Err, Message(&queue.Error{Code: r.Code, Message: r.Message})))
	}
	for _, id := range v.Done {
		if err := a.Println(id); err != nil {
			return err
		}
		a.Say("job %s %s", id, become)
	}
	return nil
}

func editVerb(a *App) *cobra.Command {
	var s selection
	var spec queue.Spec
	cmd := &cobra.Command{
		Use: "edit ID… [FLAGS | '{JSON}']", Short: "Change jobs that wait: by flags, by JSON, or in $EDITOR",
		RunE: func(cmd *cobra.Command, ids []string) error {
			var set json.RawMessage
			if n := len(ids); n > 0 && strings.HasPrefix(ids[n-1], "{") {
				set, ids = json.RawMessage(ids[n-1]), ids[:n-1]
				if err := queue.CheckJSON(set); err != nil {
					return Usage("the fields to change: %v", err)
				}
			}
			p, err := s.of(cmd, ids)
			if err != nil {
				return err
			}
			given := spec.Given()
			switch {
			case len(given) > 0 && set != nil:
				return Usage("give the fields to change as flags or as JSON, not both")
			case len(given) > 0:
				if set, err = json.Marshal(given); err != nil {
					return err
				}
			case set == nil && len(ids) != 1:
				return Usage("%s needs the fields to change, as flags or as JSON; without, it edits one job in $EDITOR", cmd.CommandPath())
			case set == nil:
				if set, err = a.editText(cmd.Context(), ids[0]); set == nil || err != nil {
					return err
				}
			}
			return a.onJobs("is changed", ids, func(c *control.Client, ids []string, cursor string) (control.BulkResult, error) {
				p.IDs, p.Cursor = ids, cursor
				return c.Edit(cmd.Context(), control.Edit{Selection: p, Set: set})
			})
		},
	}
	specFlags(cmd, &spec, "id", "env_pass", "labels", "user") // --label and --user select; they are changed by JSON
	s.add(cmd, "s")
	cmd.ValidArgsFunction = a.completeIDs("waiting")
	return cmd
}
