package admin

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
)

// EventsVerb returns the command "queuectl events".
func EventsVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var p control.Events
	var since string
	var s cli.Selection
	cmd := &cobra.Command{
		Use: "events [ID…]", Short: "Print past events, or follow new ones with -f",
		RunE: func(cmd *cobra.Command, ids []string) error {
			// If no queue exists yet, there are no past events and no batches. In this case the command
			// prints nothing and succeeds, unless it waits for future events of the whole queue.
			p.IDs, a.MissingQueueIsEmpty = ids, !p.Follow || s.Batch != ""
			if seq, err := strconv.ParseInt(since, 10, 64); err == nil {
				p.Since = &seq
			} else if since != "" {
				if p.FromTime, err = input.ParseSince(since); err != nil {
					return fault.Usagef("--since: %v", err)
				}
			}
			if s.Batch != "" {
				if found, err := a.restrictToBatch(cmd, &s, &p); !found {
					return err
				}
			}
			return a.WhileOutputRead(cmd.Context(), func(ctx context.Context) error { return a.printEvents(ctx, p) })
		},
	}
	cmd.ValidArgsFunction = a.CompleteIDs()
	cmd.Flags().BoolVar(&p.Audit, "audit", false,
		"print the audit log: which user ran which command on which job or setting (for admins)")
	cmd.Flags().BoolVarP(&p.Follow, "follow", "f", false,
		"print new events as they happen (with --since: past events first)")
	cmd.Flags().StringSliceVar((*[]string)(&p.Kinds), "event", nil, "only events of this `KIND`, such as ended")
	cmd.Flags().Var(input.OnceOnlyValue(&s.Batch), "batch",
		"only events of the jobs that your batch `NAME` contains now")
	cmd.Flags().Var(input.NonEmptyValue(&since), "since",
		"only events since `TIME` (2h: 2 hours ago); a number N means: after event N")
	input.TimeVar(cmd.Flags(), &p.Until, "until", "only events before `TIME`; 2h means 2 hours ago")
	return cmd
}

// restrictToBatch restricts the events in p to the jobs of the batch that the flags name. found reports
// whether the batch has jobs.
func (a command) restrictToBatch(cmd *cobra.Command, s *cli.Selection, p *control.Events) (found bool, err error) {
	c, err := a.ReadOrWaitClient(cmd.Context(), p.Follow)
	if err != nil {
		return false, err
	}
	defer c.Close()
	jobs, err := s.ResolveJobs(cmd, c, p.IDs)
	switch n := len(jobs); {
	case err != nil:
		return false, err
	case n > control.MaxJobIDs:
		return false, fault.Usagef("--batch: the batch has %d jobs, but queuectl events accepts at most %d; give some of "+
			"the job ids instead", n, control.MaxJobIDs)
	case n == 0:
		a.PrintNoneSelected()
		if a.JSON && !a.JSONL && !p.Follow {
			return false, term.PrintList(&a.Output, jobs)
		}
		return false, nil
	}
	for i := range jobs {
		p.IDs = append(p.IDs, jobs[i].ID)
	}
	return true, nil
}

// printEvents prints events as they arrive, one per line as text or JSON. With --json but without --follow,
// it prints one JSON array.
func (a command) printEvents(ctx context.Context, p control.Events) error {
	return a.WithReader(ctx, p.Follow, func(c *control.Client) error {
		list := term.NewJSONList(a.Stdout, a.JSONL || p.Follow)
		_, err := c.Events(ctx, p, func(e control.Event) error {
			switch {
			case a.Structured():
				return list.Add(&e)
			case a.Quiet:
				return a.Println(strconv.FormatInt(e.Seq, 10))
			}
			return a.Println(a.EscapeJobText(present.EventLine(&e)))
		})
		if err != nil || !a.Structured() {
			return err
		}
		return list.End()
	})
}
