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
	a := adminCommands{app}
	var p control.EventsParams
	var since string
	var s cli.SelectionFlags
	cmd := cli.NewCommand("events [ID…]", "Print past events, or follow new ones with -f",
		nil, func(ctx context.Context, ids []string) error {
			// If no queue exists yet, there are no past events and no batches. In this case the command
			// prints nothing and succeeds, unless it waits for future events of the whole queue, or names jobs.
			p.JobIDs, a.MissingQueueIsEmpty = ids, len(ids) == 0 && (!p.Follow || s.Batch != "")
			if seq, err := strconv.ParseInt(since, 10, 64); err == nil {
				p.AfterSeq = &seq
			} else if since != "" {
				if p.FromTime, err = input.ParseSinceTime(since); err != nil {
					return fault.Usagef("--since: %v", err)
				}
			}
			if s.Batch != "" {
				if found, err := a.restrictEventsToBatch(ctx, &s, &p); !found {
					return err
				}
			}
			return a.RunUntilStdoutReaderGone(ctx, func(ctx context.Context) error { return a.printEvents(ctx, p) })
		})
	a.AcceptJobIDs(cmd)
	f := cmd.Flags()
	f.BoolVar(&p.WithAuditFields, "audit", false,
		"print the audit log: which user ran which command on which job or setting (for admins)")
	f.BoolVarP(&p.Follow, "follow", "f", false,
		"print new events as they happen (with --since: past events first)")
	f.StringSliceVar((*[]string)(&p.EventKinds), "event", nil, "only events of this `KIND`, such as ended")
	f.Var(input.OnceOnlyValue(&s.Batch), "batch",
		"only events of the jobs that your batch `NAME` contains now")
	f.Var(input.NonEmptyValue(&since), "since",
		"only events since `TIME` (2h: 2 hours ago); a number N means: after event N")
	input.PastTimeVar(f, &p.UntilTime, "until", "only events before `TIME`; 2h means 2 hours ago")
	return cmd
}

// restrictEventsToBatch restricts the events in p to the jobs of the batch that the flags name. found reports whether
// the batch contains any jobs.
func (a adminCommands) restrictEventsToBatch(ctx context.Context, s *cli.SelectionFlags,
	p *control.EventsParams) (batchHasJobs bool, err error) {
	err = a.WithReadOnlyClient(ctx, p.Follow, func(c *control.Client) error {
		jobs, err := s.ResolveJobs(a.Cmd, c, p.JobIDs)
		switch n := len(jobs); {
		case err != nil:
			return err
		case n > control.MaxJobIDs:
			return fault.Usagef("--batch: the batch has %d jobs, but queuectl events accepts at most %d; give some of "+
				"the job ids instead", n, control.MaxJobIDs)
		case n == 0:
			a.PrintNoJobsSelected()
			if a.JSON && !a.JSONL && !p.Follow {
				return term.PrintJSONList(&a.Output, jobs)
			}
			return nil
		}
		for _, j := range jobs {
			p.JobIDs = append(p.JobIDs, j.ID)
		}
		batchHasJobs = true
		return nil
	})
	return batchHasJobs, err
}

// printEvents prints events as they arrive, one per line as text or JSON. With --json but without --follow,
// it prints one JSON array.
func (a adminCommands) printEvents(ctx context.Context, p control.EventsParams) error {
	return a.WithReadOnlyClient(ctx, p.Follow, func(c *control.Client) error {
		list := term.NewJSONListPrinter(a.Stdout, a.JSONL || p.Follow)
		_, err := c.StreamEvents(ctx, p, func(e control.Event) error {
			switch {
			case a.WantsJSON():
				return list.Add(&e)
			case a.Quiet:
				return a.Println(strconv.FormatInt(e.Seq, 10))
			}
			return a.Println(a.EscapeJobText(present.EventLine(&e)))
		})
		if err != nil || !a.WantsJSON() {
			return err
		}
		return list.End()
	})
}
