package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// PrintOutput prints each stream of a job's output to the stream of the same name. If standard output
// is for JSON, it prints both streams to standard error. If p.ReportAttemptEnds is set, it calls the function
// ended after each attempt except the last.
func (a *App) PrintOutput(ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error) error {
	out := &term.SafeWriter{Output: &a.Output, File: a.Stdout, Live: true}
	errs := &term.SafeWriter{Output: &a.Output, File: a.Stderr, Live: true}
	if a.Structured() {
		out.File = a.Stderr
	}
	job := queue.QuoteShellWord(string(p.ID))
	_, err := c.Logs(ctx, p, func(p control.OutputPiece) error {
		to := out
		if p.Stream == "stderr" {
			to = errs
		}
		switch {
		case p.Ended:
			return ended(p.Attempt)
		case p.DroppedBytes > 0:
			return a.PrintGap(p.GapText() + ": the output exceeded --output-limit, or could not be stored; see: queuectl show " +
				job)
		case p.Damage != nil:
			return a.PrintGap(damagedOutputError(&p).Error())
		}
		_, err := to.File.WriteString(to.Next(p.String()))
		return err
	})
	for _, s := range []*term.SafeWriter{out, errs} {
		if rest := s.End(); rest != "" {
			_, failed := s.File.WriteString(rest)
			err = cmp.Or(err, failed)
		}
	}
	return err
}

// waitReasonDelay is how long a followed job must wait before the program prints why it waits.
const waitReasonDelay = time.Second

// outputPrinter prints a job's output. It calls the function ended after each attempt except the last.
type outputPrinter func(ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error) error

// follow prints a job's output as it arrives and sets a.ExitCode from the job's outcome. If the job was
// just enqueued, follow prints the output of all its attempts, however short they are.
func (a *App) follow(ctx context.Context, c *control.Client, f *followedJob, print outputPrinter) error {
	id := f.id
	waits := time.AfterFunc(waitReasonDelay, func() { a.printWaitReason(ctx, c, id) })
	defer waits.Stop()
	err := print(ctx, c, control.Logs{ID: control.JobID(id), Follow: true, FromFirstAttempt: !f.mayHaveStarted,
		ReportAttemptEnds: true},
		func(attempt int) error {
			waits.Stop() // printAttemptEnd prints the reason when the next attempt starts, so printWaitReason is not needed
			return a.printAttemptEnd(ctx, c, id, attempt)
		})
	if err != nil {
		return a.explainFollowError(ctx, c, id, err)
	}
	job, err := c.Show(ctx, control.Show{ID: control.JobID(id)})
	if err != nil {
		return a.explainFollowError(ctx, c, id, err)
	}
	a.ExitCode = jobExit(&job.Job)
	a.printUnsuccessfulEnd(&job.Job)
	if a.Structured() {
		return a.PrintJSON(&job.Job)
	}
	return nil
}

// printWaitReason prints why a job does not run now and what to do about it, with the same text as show, list
// and why.
func (a *App) printWaitReason(ctx context.Context, c *control.Client, id string) {
	job, err := c.Show(ctx, control.Show{ID: control.JobID(id)})
	if err != nil || isRunning(&job.Job) || present.ParseState(job.State).Ended() {
		return // the caller reports an error of the request and the end of the job
	}
	text := "it can start at any moment"
	if job.WaitsFor != nil {
		text = present.ReasonLine(job.WaitsFor, time.Now())
	}
	a.ShowProgress("")
	a.Say("job %s is waiting: %s", id, text)
}

// printAttemptEnd prints how an attempt ended, and when the job is retried.
func (a *App) printAttemptEnd(ctx context.Context, c *control.Client, id string, n int) error {
	job, err := c.Show(ctx, control.Show{ID: control.JobID(id), HistoryBefore: n + 1})
	if err != nil || len(job.History) == 0 {
		return err
	}
	h := job.History[len(job.History)-1]
	text := fmt.Sprintf("attempt %d failed", n)
	switch reason := queue.Reason(queue.ValueOr(h.Reason, "")); {
	case reason == queue.ReasonDeferred:
		text = fmt.Sprintf("attempt %d postponed the job", n)
	case reason == queue.ReasonLost, reason == queue.ReasonInterrupted:
		text = fmt.Sprintf("attempt %d was lost", n)
	case reason == queue.ReasonStopped && !h.Counted:
		text = fmt.Sprintf("attempt %d was stopped by a user or the service, and does not count", n)
		h.Reason = nil // the text already contains the reason
	case !h.Counted:
		text = fmt.Sprintf("attempt %d ended and does not count", n)
	}
	switch {
	case h.Error != nil:
		text += ": " + *h.Error
	case h.Reason != nil:
		text += ": " + *h.Reason
	}
	next := max(job.NextRetryAt, job.RunAt)
	switch wait := time.Until(queue.Millis(next).Time()); {
	case job.State == queue.Held.String():
		text += "; the job is held; check what it did, then run it again with: queuectl release " + id
	case wait > time.Second/20:
		text += "; retrying in " + queue.FormatDuration(max(wait.Round(time.Second/10), time.Second/10))
	default:
		text += "; retrying now"
	}
	a.Say("%s", termtext.OneLine(a.EscapeFor(a.Stderr, fmt.Sprintf("%s (%s left)", text,
		present.Plural(job.MaxAttempts-job.Attempts+job.HistoryTotal-n, "attempt")))))
	return nil
}

// printUnsuccessfulEnd prints how a job ended that did not complete. It always prints if the job's exit code does
// not explain the end: the job has a field reason, or is cancelled. Otherwise it prints only on a
// terminal.
func (a *App) printUnsuccessfulEnd(j *control.Job) {
	text := fmt.Sprintf("job %s is %s", j.ID, present.StateWithReason(j))
	switch {
	case j.Error != nil:
		text += ": " + *j.Error
	case present.EndedByExpiry(j):
		text += ": " + present.ExpiredText
	}
	text = termtext.OneLine(a.EscapeFor(a.Stderr, text))
	switch {
	case a.ExitCode == 0:
	case j.Reason != nil, j.State == queue.Cancelled.String():
		a.Say("%s", text)
	default:
		a.PrintInfo("%s", text)
	}
}

// explainFollowError extends an error that occurred while following a job. It adds whether the job is still in
// the queue, and how to follow the job again. If only the output is lost, it returns the error
// unchanged.
func (a *App) explainFollowError(ctx context.Context, c *control.Client, id string, err error) error {
	if errors.Is(err, queue.ErrNotFound) {
		if _, shown := c.Show(ctx, control.Show{ID: control.JobID(id)}); shown == nil {
			return err
		}
		return fmt.Errorf("job %s was removed (%w)", id, err)
	}
	return fmt.Errorf("job %s is still in the queue, but cannot be followed (%w); follow it again "+
		"with: queuectl attach %s", id, err, id)
}

// jobExit returns the exit code of the command run for a job that has ended.
func jobExit(j *control.Job) int {
	switch reason := queue.Reason(queue.ValueOr(j.Reason, "")); {
	case j.State == queue.Completed.String():
		return 0
	case reason == queue.ReasonTimedOut:
		return fault.ExitTimeout
	case reason == queue.ReasonExpired, reason == queue.ReasonDependency, reason == queue.ReasonLost,
		reason == queue.ReasonInterrupted, reason == queue.ReasonUnkillable, reason == queue.ReasonPoison:
		return fault.ExitFailure
	case j.State == queue.Cancelled.String():
		return fault.ExitDetached
	case j.Signal != nil:
		return 128 + *j.Signal
	case j.ExitCode != nil && *j.ExitCode != 0:
		return int(*j.ExitCode)
	}
	return fault.ExitFailure
}
