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
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

func waitVerb(a *App) *cobra.Command {
	var f waitFlags
	var s SelectionFlags
	cmd := NewCommand("wait ID… | --batch NAME …", "Wait for jobs to end, then exit with their exit code",
		nil, func(ctx context.Context, ids []string) error {
			if len(ids) == 0 && !s.UsesFilters() {
				return AtLeastOneArg("job ids, or a selection such as --batch NAME, --label NAME=VALUE or --state STATE")(a.Cmd,
					ids)
			}
			if len(ids) > 0 && len(ids) <= control.MaxWaitOrFollowJobIDs && !f.showProgress && f.jobLogPath == "" &&
				!s.UsesFilters() {
				return a.waitAndPrintEndedJobs(ctx, control.JobWaitParams{IDs: ids, ReturnAfterFirst: f.untilAnyJobEnds,
					MaxWait: control.Duration(f.timeout)})
			}
			return a.waitForSelectedJobs(ctx, &s, ids, f)
		})
	a.AcceptJobIDs(cmd, "waiting", "processing")
	s.AddFlags(cmd, "s")
	cmd.Flags().BoolVar(&f.untilAnyJobEnds, "any", false, "return when the first of the jobs has ended")
	cmd.Flags().BoolVar(&f.showProgress, "progress", false, "show a progress bar, each failed job and a summary")
	cmd.Flags().Var(input.NonEmptyValue(&f.jobLogPath), "joblog",
		"write one line per ended job to `FILE`, in the format of GNU parallel; - is standard output")
	cmd.Flags().Func("timeout", "give up after `DURATION` with exit code 124", func(text string) error {
		d, err := when.ParseDuration(text)
		f.timeout = max(d, time.Nanosecond)
		return err
	})
	return cmd
}

// waitForSelectedJobs waits until jobs have ended: the jobs with the given ids, or the jobs that the flags select when
// the command starts.
func (a *App) waitForSelectedJobs(ctx context.Context, s *SelectionFlags, ids []string, f waitFlags) error {
	if _, err := s.SelectionParams(a.Cmd, ids); err != nil {
		return err
	}
	a.MissingQueueIsEmpty = len(ids) == 0 // if no queue exists yet, the flags select no jobs
	return a.WithClient(func(c *control.Client) error {
		st, err := c.Status(ctx, control.NoParams{})
		if err != nil {
			return err
		}
		if (s.AllJobs || s.Submitter != "") && len(s.States) == 0 && !s.FailedOrDead && s.Batch == "" &&
			len(s.WithLabels) == 0 && s.IDGlob == "" {
			// If the user gives neither ids nor conditions that select few jobs, wait only for jobs that have not ended yet.
			// Otherwise a job that failed days ago would make every wait fail.
			s.States = control.TextList{"waiting", queue.Processing.String()}
		}
		jobs, err := s.ResolveJobs(a.Cmd, c, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			job, err := ShowJob(ctx, c, id)
			if err != nil {
				return err
			}
			jobs[i] = job.Job
		}
		seen := map[int64]bool{} // count a job once even if the user names it twice
		jobs = slices.DeleteFunc(jobs, func(j control.Job) bool {
			twice := seen[j.Seq]
			seen[j.Seq] = true
			return twice
		})
		if len(jobs) == 0 {
			if a.WantsJSON() {
				if err := term.PrintJSONList(&a.Output, jobs); err != nil {
					return err
				}
			}
			a.PrintNoJobsSelected()
			return nil
		}
		f.batchName = s.Batch
		return a.waitForJobs(ctx, c, jobs, st.LastEventSeq, f)
	})
}

// maxWaitReasonJobs bounds how many jobs printReasonIfNoneRuns reads from the service.
const maxWaitReasonJobs = 20

// printReasonIfNoneRuns checks the given jobs. If none of them runs, it prints why the first waiting job waits.
func (a *App) printReasonIfNoneRuns(ctx context.Context, c *control.Client, ids []string) {
	waiting := ""
	for _, id := range ids[:min(len(ids), maxWaitReasonJobs)] {
		job, err := ShowJob(ctx, c, id)
		if err != nil || isRunning(&job.Job) {
			return // a running job needs no explanation, and the caller's wait reports an error of the service
		}
		if waiting == "" && !present.ParseStateOrZero(job.State).HasEnded() {
			waiting = id
		}
	}
	if waiting != "" {
		a.printWaitReason(ctx, c, waiting)
	}
}

// isRunning reports whether a job is processing and not paused.
func isRunning(j *control.Job) bool { return j.State == queue.Processing.String() && j.PausedAt == 0 }

// timeoutReplyMargin is how much longer than the timeout in the request the client waits for the reply. In this time,
// the service can report the timeout.
const timeoutReplyMargin = time.Second

// waitAndPrintEndedJobs sends the request p, prints the jobs that have ended, and sets the exit code according to their
// outcomes.
func (a *App) waitAndPrintEndedJobs(ctx context.Context, p control.JobWaitParams) error {
	return a.WithClient(func(c *control.Client) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		asked := ctx
		if p.MaxWait > 0 { // end the command in time even if the service hangs
			over, end := context.WithTimeout(ctx, time.Duration(p.MaxWait)+timeoutReplyMargin)
			defer end()
			asked = over
		}
		if a.ShowsInfo() {
			defer time.AfterFunc(waitReasonDelay, func() { a.printReasonIfNoneRuns(asked, c, p.IDs) }).Stop()
		}
		ended := map[string]*control.Job{}
		waited, err := c.WaitForJobs(asked, p, func(e control.JobEndNotice) error {
			ended[e.Job.ID] = &e.Job
			if a.JSONL {
				return a.PrintJSON(e.Job)
			}
			return nil
		})
		if ctx.Err() != nil {
			a.ExitCode = fault.ExitCodeDetached
			a.PrintTerminalMessage("stopped waiting; the jobs continue")
			return nil
		}
		if asked.Err() != nil {
			waited.TimedOut, err = true, nil
		}
		if err != nil {
			return err
		}
		var endedJobs []control.Job
		for _, id := range p.IDs {
			if j := ended[id]; j != nil {
				endedJobs = append(endedJobs, *j)
				if a.ExitCode == 0 {
					a.ExitCode = jobExitCode(j)
				}
				if !a.WantsJSON() {
					a.printJobEnd(j, 0)
				}
			}
		}
		if waited.TimedOut {
			a.ExitCode = fault.ExitCodeTimeout
			if !a.Quiet {
				a.PrintMessage("not all jobs finished within %s", queue.FormatDuration(time.Duration(p.MaxWait)))
			}
		}
		if a.JSON {
			return term.PrintJSONList(&a.Output, endedJobs)
		}
		return nil
	})
}
