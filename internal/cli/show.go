package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func showVerb(a *App) *cobra.Command {
	var beforeAttempt int
	var s SelectionFlags
	cmd := NewCommand("show ID… | --state STATE …", "Show jobs with their attempts and last lines of output",
		nil, func(ctx context.Context, ids []string) error {
			a.MissingQueueIsEmpty = len(ids) == 0 // if no queue exists yet, the flags select no jobs
			return a.WithReadOnlyClient(ctx, false, func(c *control.Client) error {
				ids = UniqueIDs(ids)
				named, err := s.ResolveJobs(a.Cmd, c, ids)
				if err != nil {
					return err
				}
				return a.showJobs(ctx, c, named, beforeAttempt, len(ids) == 1)
			})
		})
	a.AcceptJobIDs(cmd)
	s.AddFlags(cmd, "s")
	cmd.Flags().BoolVar(&a.PrintJobEnvironments, "full", false, "with --json: include the environment")
	cmd.Flags().IntVar(&beforeAttempt, "history-before", 0, "show the attempts before attempt `N`")
	return cmd
}

// showJobs prints jobs. As JSON, it prints an object if printAsObject is true, otherwise an array. If beforeAttempt is
// not 0, it prints only attempts with numbers below beforeAttempt. After it has printed the existing jobs, it reports
// the jobs that do not exist.
func (a *App) showJobs(ctx context.Context, c *control.Client, jobs []control.Job, beforeAttempt int,
	printAsObject bool) error {
	list := term.NewJSONListPrinter(a.Stdout, a.JSONL || printAsObject)
	var missingJobs []control.Refusal
	shown := 0
	for i := range jobs {
		job, err := c.ShowJob(ctx, control.JobShowParams{ID: control.JobID(jobs[i].ID), AttemptsBelowNumber: beforeAttempt})
		switch {
		case errors.Is(err, queue.ErrNotFound):
			missingJobs = append(missingJobs, control.Refusal{JobID: jobs[i].ID, Code: queue.CodeNotFound,
				Message: fault.UserMessage(err)})
			continue
		case err != nil:
			return err
		case a.Quiet:
			err = a.Println(job.ID)
		case a.WantsJSON():
			err = list.Add(a.jobForJSON(job))
		default:
			if shown > 0 {
				a.Println("")
			}
			err = a.showJob(&job)
		}
		if err != nil {
			return err
		}
		shown++
	}
	var joinedErr error
	for _, line := range refusalLines(a.Cmd, missingJobs) {
		joinedErr = errors.Join(joinedErr, queue.Errorf(queue.CodeNotFound, "%s", line))
	}
	if a.WantsJSON() && !a.Quiet {
		joinedErr = errors.Join(joinedErr, list.End())
	}
	if len(jobs) == 0 {
		a.PrintNoJobsSelected()
	}
	return joinedErr
}

// jobForJSON returns a job for JSON output. It omits the environment, unless --full is set.
func (a *App) jobForJSON(job control.JobDetail) control.JobDetail {
	if !a.PrintJobEnvironments {
		job.Spec = maps.Clone(job.Spec)
		delete(job.Spec, "env")
		delete(job.Spec, "env_secret")
	}
	return job
}

// maxShownOutputLines is how many lines of a job's output "queuectl show" prints.
const maxShownOutputLines = 20

func (a *App) showJob(j *control.JobDetail) error {
	failure, code, signal := "Error", "Exit code", "Signal"
	// The current attempt has not ended, so the error, the exit code and the signal are those of the previous attempt.
	if j.State == queue.Processing.String() {
		failure, code, signal = "Last error", "Last exit", "Last signal"
	}
	rows := [][2]string{
		{"Job", j.ID}, {"Command", present.JobTitle(&j.Job)}, {"State", present.StateWithReason(&j.Job)},
		{"Reason", present.WaitReason(&j.Job)}, {"Paused", present.PausedSinceText(&j.Job)},
		{"Progress", a.StripColoursOnTerminal(present.ProgressText(&j.Job))}, {failure,
			a.StripColoursOnTerminal(present.EmptyIfNil(j.Error))},
		{code, present.EmptyIfNil(j.ExitCode)}, {signal, present.JobSignalName(&j.Job, "")},
	}
	rows = append(rows, present.JobDetailRows(j)...)
	err := a.PrintNameValuePairs(11, rows)
	if len(j.History) > 0 {
		err = a.showAttemptHistory(j)
	}
	result := ""
	if len(j.Result) > 0 && string(j.Result) != "null" {
		result = string(j.Result)
	}
	for _, out := range []struct{ name, text string }{{"Result", result}, {"Output", a.ttyToPlainText(j, j.StdoutTail)},
		{"Error output", a.ttyToPlainText(j, j.StderrTail)}} {
		if out.text != "" {
			text := termtext.LastLines(a.EscapeForStdout(strings.TrimRight(out.text, "\n")), maxShownOutputLines)
			err = a.Println("\n" + out.name + ":\n  " + termtext.IndentAfterFirstLine(text, 2))
		}
	}
	return err
}

// showAttemptHistory prints the attempts that the reply contains, and how to show earlier attempts.
func (a *App) showAttemptHistory(j *control.JobDetail) error {
	a.Println("")
	if first := j.History[0].Attempt; first > 1 {
		a.Println(fmt.Sprintf("%d attempts in total; show earlier ones with: --history-before %d", j.TotalAttempts, first))
	}
	var table [][]string
	for _, h := range j.History {
		ended := present.DashIfNil(h.ExitCode)
		switch {
		case h.Signal != nil:
			ended = queue.SignalName(*h.Signal)
		case h.FinishedAt == 0:
			ended = "running"
		}
		node := ""
		if j.Node != "" { // if the queue has only one node, j.Node is empty
			node = h.Node
		}
		table = append(table, []string{fmt.Sprint(h.Attempt), present.LocalTimeText(h.StartedAt),
			present.RunTimeText(h.RunTimeMS), ended,
			h.Worker, node, present.AttemptRemarks(&h, j.Spec["allow_background"] == true)})
	}
	return a.PrintTable(present.DropUninformativeColumns([]string{"ATTEMPT", "STARTED" + termtext.HeadingZonePlaceholder,
		"RAN", "EXIT",
		"WORKER",
		"NODE", "ERROR"}, table))
}

// ttyToPlainText converts the output of a job with a terminal to plain text. It returns the output of other jobs
// unchanged.
func (a *App) ttyToPlainText(j *control.JobDetail, text string) string {
	if tty, _ := j.Spec["tty"].(bool); !tty || a.KeepControlCharacters {
		return text
	}
	return termtext.RenderText(text, term.UsesColours(a.Stdout))
}

func whyVerb(a *App) *cobra.Command {
	cmd := NewCommand("why ID", "Explain why a job is not running",
		ExactArgs(1, "the id of a job"), func(ctx context.Context, args []string) error {
			return ReadAndPrint(ctx, a, (*control.Client).ExplainWaiting,
				control.ExplainWaitingParams{ID: control.JobID(args[0])}, a.printWaitingExplanation)
		})
	a.AcceptJobIDs(cmd, "waiting")
	return cmd
}

// printWaitingExplanation prints the reasons why a job does not run, one per line, and what the user can do about each
// reason.
func (a *App) printWaitingExplanation(w control.WaitingExplanation) (err error) {
	for _, line := range present.WaitExplanationLines(&w, time.Now()) {
		err = a.Println(a.EscapeForStdout(line))
	}
	return err
}
