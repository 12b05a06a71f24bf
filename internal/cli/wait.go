package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

func waitVerb(a *App) *cobra.Command {
	var f waitFlags
	var s Selection
	cmd := &cobra.Command{
		Use: "wait ID… | --batch NAME …", Short: "Wait for jobs to end, then exit with their exit code",
		RunE: func(cmd *cobra.Command, ids []string) error {
			a.FailureCode = fault.ExitFailure
			if len(ids) == 0 && !s.Chosen() {
				return AtLeastOne("job ids, or a selection such as --batch NAME, --label NAME=VALUE or --state STATE")(cmd, ids)
			}
			if len(ids) > 0 && len(ids) <= control.MaxWaits && !f.progress && f.log == "" && !s.Chosen() {
				return a.wait(cmd.Context(), control.Wait{IDs: ids, Any: f.any, Timeout: control.Span(f.timeout)})
			}
			return a.waitSelected(cmd, &s, ids, f)
		},
	}
	cmd.ValidArgsFunction = a.CompleteIDs("waiting", "processing")
	s.Add(cmd, "s")
	cmd.Flags().BoolVar(&f.any, "any", false, "return as soon as one of the jobs has ended")
	cmd.Flags().BoolVar(&f.progress, "progress", false, "show a progress bar, each failed job and a summary")
	cmd.Flags().Var(input.NonEmpty(&f.log), "joblog",
		"write one line per ended job to `FILE`, in the format of GNU parallel; - is standard output")
	input.DurationVar(cmd.Flags(), "timeout", "give up after `DURATION` with exit code 124",
		func(d time.Duration) { f.timeout = max(d, time.Nanosecond) })
	a.ownExit(cmd)
	return cmd
}

// waitSelected waits for the jobs that are selected or named when it is called.
func (a *App) waitSelected(cmd *cobra.Command, s *Selection, ids []string, f waitFlags) error {
	ctx := cmd.Context()
	if _, err := s.Of(cmd, ids); err != nil {
		return err
	}
	a.MissingIsEmpty = len(ids) == 0 // without a queue, the flags select no jobs
	return a.WithClient(func(c *control.Client) error {
		st, err := c.Status(ctx, control.Nothing{})
		if err != nil {
			return err
		}
		if (s.All || s.User != "") && len(s.State) == 0 && !s.Failed && s.Batch == "" && len(s.Label) == 0 && s.IDGlob == "" {
			// A selection with only broad conditions includes only jobs that have not ended. Otherwise a job that
			// failed days ago would make every wait fail.
			s.State = control.Texts{"waiting", queue.Processing.String()}
		}
		jobs, err := s.Resolved(cmd, c, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			job, err := c.Show(ctx, control.Show{ID: control.Name(id)})
			if err != nil {
				return err
			}
			jobs[i] = job.Job
		}
		seen := map[int64]bool{} // count a job only once even if the user names it twice
		jobs = slices.DeleteFunc(jobs, func(j control.Job) bool {
			twice := seen[j.Seq]
			seen[j.Seq] = true
			return twice
		})
		if len(jobs) == 0 {
			if a.Structured() {
				if err := term.PrintList(&a.Output, jobs); err != nil {
					return err
				}
			}
			a.SayNoneSelected()
			return nil
		}
		f.batch = s.Batch
		return a.waitMany(ctx, c, jobs, st.LastEvent, f)
	})
}

// maxWhyJobs bounds how many of the named jobs sayWhyNoneRuns requests from the service.
const maxWhyJobs = 20

// sayWhyNoneRuns prints why the first of these jobs waits, if none of them runs.
func (a *App) sayWhyNoneRuns(ctx context.Context, c *control.Client, ids []string) {
	waiting := ""
	for _, id := range ids[:min(len(ids), maxWhyJobs)] {
		job, err := c.Show(ctx, control.Show{ID: control.Name(id)})
		if err != nil || runs(&job.Job) {
			return // a running job needs no explanation, and the method wait reports an error
		}
		if waiting == "" && !present.StateOf(job.State).Ended() {
			waiting = id
		}
	}
	if waiting != "" {
		a.sayWhy(ctx, c, waiting)
	}
}

// runs reports whether a job is processing and not paused.
func runs(j *control.Job) bool { return j.State == queue.Processing.String() && j.PausedAt == 0 }

// waitMargin is how long the client waits, after the timeout has passed, for the service to report the
// timeout.
const waitMargin = time.Second

func (a *App) wait(ctx context.Context, p control.Wait) error {
	return a.WithClient(func(c *control.Client) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		asked := ctx
		if p.Timeout > 0 { // end the command in time even if the service hangs
			over, end := context.WithTimeout(ctx, time.Duration(p.Timeout)+waitMargin)
			defer end()
			asked = over
		}
		if term.IsTerminal(a.Stderr) && !a.Quiet {
			defer time.AfterFunc(sayWhyAfter, func() { a.sayWhyNoneRuns(asked, c, p.IDs) }).Stop()
		}
		ended := map[string]*control.Job{}
		waited, err := c.Wait(asked, p, func(e control.JobEndNotice) error {
			ended[e.Job.ID] = &e.Job
			if a.JSONL {
				return a.PrintJSON(e.Job)
			}
			return nil
		})
		if ctx.Err() != nil {
			a.Exit = fault.ExitDetached
			a.PrintNote("stopped waiting; the jobs continue")
			return nil
		}
		if asked.Err() != nil {
			waited.TimedOut, err = true, nil
		}
		if err != nil {
			return err
		}
		var list []control.Job
		for _, id := range p.IDs {
			if j := ended[id]; j != nil {
				list = append(list, *j)
				if a.Exit == 0 {
					a.Exit = jobExit(j)
				}
				if !a.Structured() {
					a.sayEnd(j, 0)
				}
			}
		}
		if waited.TimedOut {
			a.Exit = fault.ExitTimeout
			if !a.Quiet {
				a.Say("not all jobs finished within %s", queue.FormatDuration(time.Duration(p.Timeout)))
			}
		}
		if a.JSON {
			return term.PrintList(&a.Output, list)
		}
		return nil
	})
}
