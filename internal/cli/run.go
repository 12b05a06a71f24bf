package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// secondInterruptWindow is how long the program waits for a second Ctrl-C, which cancels the job. Without a second
// Ctrl-C, the program detaches from the job.
const secondInterruptWindow = time.Second

func runVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var runInHomeDir, detach, cancelOnExit bool
	var privateFlags PrivateFlags
	cmd := NewCommand("run ['COMMAND' | -- PROGRAM ARGS…]", "Add a job to the queue, follow it, exit with its exit code",
		nil, func(ctx context.Context, args []string) error {
			if privateFlags.isPrivate {
				if a.Program.ServePrivate == nil {
					return a.execQueuectld()
				}
				count, err := privateFlags.check(a.Cmd.Flags(), args, a.Cmd.ArgsLenAtDash())
				if err != nil {
					return err
				}
				return a.Program.RunPrivate(ctx, a, privateFlags, &spec, runInHomeDir, count)
			}
			for _, name := range []string{"workers", "file", "lines", "arg-file", "null", "joblog", "retry-dead", "add-new"} {
				if a.Cmd.Flags().Changed(name) {
					return fault.Usagef("--%s: works only with --private; add --private", name)
				}
			}
			if i := slices.Index(args, ":::"); i >= 0 {
				program := QuoteArgv(args[:i])
				return fault.Usagef("run takes one job; to run several in a separate queue: queuectl run --private -- %s ::: …; "+
					"to add them to this queue: queuectl enqueue -- %[1]s ::: …", program)
			}
			batch, err := input.ParseSpecArgs(a.Stdin, "run", &spec, args, a.Cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			if batch != nil {
				return fault.Usagef("run takes one job; add several with: queuectl enqueue")
			}
			if spec.MaxRetries == nil && spec.MaxAttempts == nil {
				spec.MaxRetries = new(int64)
			}
			if detach {
				return a.enqueueOneJob(ctx, &spec, runInHomeDir, "")
			}
			return a.enqueueAndFollow(ctx, &spec, runInHomeDir, cancelOnExit)
		})
	input.AddSpecFlags(cmd, &spec)
	refusePast := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if privateFlags.isPrivate && files.Exists(filepath.Join(a.PrivateQueueDir(), connect.PrivateRunManifestName)) {
			return nil // accept past times: this run continues an earlier one, and the time in a flag may have passed since then
		}
		return refusePast(cmd, args)
	}
	f := cmd.Flags()
	privateFlags.addTo(f)
	a.AddRequireLimitsFlag(f)
	f.BoolVar(&runInHomeDir, "no-cwd", false, "run in your home directory, not in the current one")
	f.BoolVarP(&detach, "detach", "d", false, "print the ID of the job and do not follow it")
	f.BoolVar(&cancelOnExit, "cancel-on-exit", false, "cancel the job when this command is interrupted")
	return cmd
}

// QuoteArgv returns a program and its arguments, quoted for the shell. It does not quote replacement strings
// like {}.
func QuoteArgv(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		if words[i] = word; len(input.SplitAtPlaceholders(word)) < 2 && !strings.HasPrefix(word, "{") {
			words[i] = queue.QuoteShellWord(word)
		}
	}
	return strings.Join(words, " ")
}

// enqueueAndFollow enqueues a job and follows it.
func (a *App) enqueueAndFollow(ctx context.Context, s *queue.Spec, runInHomeDir, cancelOnExit bool) error {
	tty := s.TTY != nil && *s.TTY
	if a.shouldJoinJobTerminal(tty) && a.Program.JoinTerminal == nil {
		return a.execQueuectld()
	}
	if err := input.CompleteAndCheckSpec(s, runInHomeDir); err != nil {
		return err
	}
	return a.WithStartedService(ctx, func(c *control.Client) error {
		interrupts := watchInterrupts()
		if s.OutputLimit == nil {
			s.OutputLimit = new(followedJobOutputLimitBytes)
		}
		got, err := c.Enqueue(ctx, control.EnqueueParams{JobSpec: *s, RequireEnforceableLimits: a.RequireEnforcedLimits})
		if err != nil {
			return err
		}
		enqueue.PrintEnqueueRemarks(&a.Output, a.Cmd, s, &got, true)
		return a.followOrDetach(ctx, c, &followedJob{id: got.JobID, hasTTY: tty, cancelOnExit: cancelOnExit}, interrupts)
	})
}

// followedJobOutputLimitBytes is how many bytes of each output stream the service keeps for a job that "queuectl run"
// follows. The user can set another limit. If the limit is too low and the job prints faster than queuectl
// reads, output is lost. See docs/decisions/0070.
const followedJobOutputLimitBytes int64 = 64 << 20

// shouldJoinJobTerminal reports whether this command connects the user's terminal to the job's terminal. hasTTY says
// whether the job has a terminal.
func (a *App) shouldJoinJobTerminal(hasTTY bool) bool {
	return hasTTY && !a.WantsJSON() && term.IsTerminal(os.Stdin) && term.IsTerminal(a.Stdout)
}

// warnIfTerminalIsViewOnly reports whether the caller may not type into a job's terminal. If so, it prints the reason.
// In that case, the program shows the job's output without connecting the user's terminal to the job.
func (a *App) warnIfTerminalIsViewOnly(ctx context.Context, c *control.Client, id string) bool {
	_, err := c.AttachTerminal(ctx, control.AttachTerminalParams{ID: control.JobID(id)})
	if !errors.Is(err, queue.ErrDenied) && !errors.Is(err, queue.ErrUnsupported) {
		return false // followOrDetach reports any other error
	}
	a.printViewOnlyReason(err)
	return true
}

// printViewOnlyReason prints why the program does not send the user's input to the job.
func (a *App) printViewOnlyReason(err error) {
	a.PrintMessage("view only (your input is not sent to the job): %s",
		a.MessageLine(err.Error()))
}

// followedJob is a job whose output this process prints until the job ends.
type followedJob struct {
	id             string
	hasTTY         bool // the job has a terminal
	mayHaveStarted bool // the job may have started before this process began to follow it
	cancelOnExit   bool // cancel the job when the user interrupts this process
}

// watchInterrupts returns a channel that receives a value at each Ctrl-C.
func watchInterrupts() <-chan os.Signal {
	interrupts := make(chan os.Signal, 4)
	signal.Notify(interrupts, os.Interrupt)
	return interrupts
}

// followOrDetach follows a job until it ends or the user detaches. The user detaches with Ctrl-C or, if the terminal is
// connected to the job's terminal, with the keys that keyParser recognizes.
func (a *App) followOrDetach(ctx context.Context, c *control.Client, f *followedJob,
	interrupts <-chan os.Signal) error {
	if a.shouldJoinJobTerminal(f.hasTTY) && !(f.mayHaveStarted && a.warnIfTerminalIsViewOnly(ctx, c, f.id)) {
		if a.Program.JoinTerminal == nil {
			return a.execQueuectld()
		}
		return a.Program.JoinTerminal(a, ctx, c, f, interrupts)
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	// This goroutine ends when the job ends or this function returns.
	go func() { done <- a.followJob(follow, c, f, a.PrintOutput) }()
	select {
	case err := <-done:
		return err
	case <-interrupts:
	}
	if f.cancelOnExit || a.awaitSecondInterrupt(f.id, interrupts, done) {
		return a.cancelAndExit(c, f.id)
	}
	a.ExitCode = fault.ExitCodeDetached
	return nil
}

func attachVerb(a *App) *cobra.Command {
	cmd := NewCommand("attach ID", "Follow a job or join its terminal; exit with its exit code",
		ExactArgs(1, "the id of a job"), func(ctx context.Context, args []string) error {
			return a.WithClient(func(c *control.Client) error {
				job, err := ShowJob(ctx, c, args[0])
				if err != nil {
					return err
				}
				tty, _ := job.Spec["tty"].(bool)
				return a.followOrDetach(ctx, c, &followedJob{id: job.ID, hasTTY: tty, mayHaveStarted: true},
					watchInterrupts())
			})
		})
	a.AcceptJobIDs(cmd, "processing", "waiting")
	return cmd
}

// jobContinuesText returns a message that says that a job continues to run, and names the command that follows the job
// again.
func jobContinuesText(id string) string {
	return fmt.Sprintf("queuectl: job %s continues; return to it with: queuectl attach %s", id, id)
}

// awaitSecondInterrupt prints how to attach to the job again. Then it waits for a second Ctrl-C for at most
// secondInterruptWindow, and reports whether the user has pressed it.
func (a *App) awaitSecondInterrupt(id string, interrupts <-chan os.Signal, done <-chan error) bool {
	fmt.Fprintf(a.Stderr, "\n%s; press Ctrl-C again to cancel it\n", jobContinuesText(id))
	select {
	case <-interrupts:
		return true
	case <-done:
		return false
	case <-time.After(secondInterruptWindow):
		return false
	}
}

// cancelAndExit cancels a job and sets the exit code of an interrupted command.
func (a *App) cancelAndExit(c *control.Client, id string) error {
	a.ExitCode = fault.ExitCodeDetached
	// Use a new connection: on the connection of c, the reply would have to wait until the stream of the job's output
	// ends.
	c = c.Clone()
	defer c.Close()
	verdict, err := c.CancelJobs(context.Background(), control.JobSelection{IDs: []string{id}})
	if err != nil {
		return err
	}
	if len(verdict.Refusals) > 0 {
		a.PrintMessage("%s", verdict.Refusals[0].AsError())
		return nil
	}
	a.PrintMessage("job %s cancelled", id)
	return nil
}

// PrintOutput prints a job's standard output to standard output, and its standard error to standard error.
// With --json, it prints both to standard error. If p.ReportAttemptEnds is set, it calls onAttemptEnd after
// each attempt except the last.
func (a *App) PrintOutput(ctx context.Context, c *control.Client, p control.JobOutputParams,
	onAttemptEnd func(attempt int) error) error {
	out := &term.JobOutputEscaper{Output: &a.Output, File: a.Stdout, KeepCarriageReturns: true}
	errs := &term.JobOutputEscaper{Output: &a.Output, File: a.Stderr, KeepCarriageReturns: true}
	if a.WantsJSON() {
		out.File = a.Stderr
	}
	job := queue.QuoteShellWord(string(p.ID))
	_, err := c.StreamOutput(ctx, p, func(p control.OutputPiece) error {
		to := out
		if p.Stream == "stderr" {
			to = errs
		}
		switch {
		case p.AttemptEnded:
			return onAttemptEnd(p.Attempt)
		case p.DroppedBytes > 0:
			return a.PrintMissingOutputMessage(p.MissingOutputText() +
				": the output exceeded --output-limit, or could not be stored; see: queuectl show " + job)
		case p.Damage != nil:
			return a.PrintMissingOutputMessage(damagedOutputError(&p).Error())
		}
		_, err := to.File.WriteString(to.ConvertPiece(p.String()))
		return err
	})
	for _, s := range []*term.JobOutputEscaper{out, errs} {
		if rest := s.FlushIncompleteText(); rest != "" {
			_, failed := s.File.WriteString(rest)
			err = cmp.Or(err, failed)
		}
	}
	return err
}

// waitReasonDelay is how long a followed job must wait before the program prints why the job waits.
const waitReasonDelay = time.Second

// outputPrinter is a function that prints a job's output. It calls onAttemptEnd after each attempt except the last.
type outputPrinter func(ctx context.Context, c *control.Client, p control.JobOutputParams,
	onAttemptEnd func(attempt int) error) error

// followJob prints a job's output as it arrives, by calling printOutput. At the end it sets a.ExitCode according to the
// outcome of the job. If the job was just enqueued, followJob prints the output of all its attempts, even of very short
// ones.
func (a *App) followJob(ctx context.Context, c *control.Client, f *followedJob, printOutput outputPrinter) error {
	id := f.id
	waits := time.AfterFunc(waitReasonDelay, func() { a.printWaitReason(ctx, c, id) })
	defer waits.Stop()
	err := printOutput(ctx, c, control.JobOutputParams{ID: control.JobID(id), Follow: true,
		FollowFromFirstAttempt: !f.mayHaveStarted, ReportAttemptEnds: true},
		func(attempt int) error {
			waits.Stop() // printAttemptEnd prints why the job waits for its next attempt
			return a.printAttemptEnd(ctx, c, id, attempt)
		})
	if err != nil {
		return a.explainFollowError(ctx, c, id, err)
	}
	job, err := ShowJob(ctx, c, id)
	if err != nil {
		return a.explainFollowError(ctx, c, id, err)
	}
	a.ExitCode = jobExitCode(&job.Job)
	a.printUnsuccessfulEnd(&job.Job)
	if a.WantsJSON() {
		return a.PrintJSON(&job.Job)
	}
	return nil
}

// printWaitReason prints why a job does not run now, and what the user can do about it. The text is the same as in the
// output of "queuectl show", "queuectl list" and "queuectl why".
func (a *App) printWaitReason(ctx context.Context, c *control.Client, id string) {
	job, err := ShowJob(ctx, c, id)
	if err != nil || isRunning(&job.Job) || present.ParseStateOrZero(job.State).HasEnded() {
		return // the caller reports errors and the end of the job
	}
	text := "it can start at any moment"
	if job.MainWaitReason != nil {
		text = present.WaitReasonLine(job.MainWaitReason, time.Now())
	}
	a.ShowProgress("")
	a.PrintMessage("job %s is waiting: %s", id, text)
}

// printAttemptEnd prints how an attempt ended, and when the job is retried.
func (a *App) printAttemptEnd(ctx context.Context, c *control.Client, id string, attempt int) error {
	job, err := c.ShowJob(ctx, control.JobShowParams{ID: control.JobID(id), AttemptsBelowNumber: attempt + 1})
	if err != nil || len(job.History) == 0 {
		return err
	}
	h := job.History[len(job.History)-1]
	outcome := "failed"
	switch reason := queue.Reason(queue.ValueOr(h.Reason, "")); {
	case reason == queue.ReasonDeferred:
		outcome = "postponed the job"
	case reason == queue.ReasonLost, reason == queue.ReasonInterrupted:
		outcome = "was lost"
	case reason == queue.ReasonStopped && !h.CountsTowardsMaxAttempts:
		outcome = "was stopped by a user or the service, and does not count"
		h.Reason = nil // the outcome already contains the reason
	case !h.CountsTowardsMaxAttempts:
		outcome = "ended and does not count"
	}
	text := fmt.Sprintf("attempt %d %s", attempt, outcome)
	switch {
	case h.Error != nil:
		text += ": " + *h.Error
	case h.Reason != nil:
		text += ": " + *h.Reason
	}
	next := max(job.NextRetryAt, job.RunAt)
	switch wait := time.Until(queue.UnixMillis(next).Time()); {
	case job.State == queue.Held.String():
		text += "; the job is held; check what it did, then run it again with: queuectl release " + id
	case wait > time.Second/20:
		text += "; retrying in " + queue.FormatDuration(max(wait.Round(time.Second/10), time.Second/10))
	default:
		text += "; retrying now"
	}
	a.PrintMessage("%s", a.MessageLine(fmt.Sprintf("%s (%s left)", text,
		present.Plural(job.MaxAttempts-job.AttemptCount+job.TotalAttempts-attempt, "attempt"))))
	return nil
}

// printUnsuccessfulEnd prints how a job ended, if the job did not complete. On a terminal it always prints this.
// Elsewhere it prints this only if the job has a reason or is cancelled, because the exit code alone does not explain
// such an end.
func (a *App) printUnsuccessfulEnd(j *control.Job) {
	text := fmt.Sprintf("job %s is %s", j.ID, present.StateWithReason(j))
	switch {
	case j.Error != nil:
		text += ": " + *j.Error
	case present.EndedByExpiry(j):
		text += ": " + present.ExpiryExplanation
	}
	text = a.MessageLine(text)
	switch {
	case a.ExitCode == 0:
	case j.Reason != nil, j.State == queue.Cancelled.String():
		a.PrintMessage("%s", text)
	default:
		a.PrintTerminalMessage("%s", text)
	}
}

// explainFollowError extends an error that occurred while following a job. It adds whether the job is still in the
// queue, and how to follow the job again. If the error is about lost output, explainFollowError returns it unchanged.
func (a *App) explainFollowError(ctx context.Context, c *control.Client, id string, err error) error {
	if errors.Is(err, queue.ErrNotFound) {
		if _, shown := ShowJob(ctx, c, id); shown == nil {
			return err
		}
		return fmt.Errorf("job %s was removed (%w)", id, err)
	}
	return fmt.Errorf("job %s is still in the queue, but cannot be followed (%w); follow it again "+
		"with: queuectl attach %s", id, err, id)
}

// jobExitCode returns the exit code of "queuectl run" for a job that has ended.
func jobExitCode(j *control.Job) int {
	switch reason := queue.Reason(queue.ValueOr(j.Reason, "")); {
	case j.State == queue.Completed.String():
		return 0
	case reason == queue.ReasonTimedOut:
		return fault.ExitCodeTimeout
	case reason == queue.ReasonExpired, reason == queue.ReasonDependency, reason == queue.ReasonLost,
		reason == queue.ReasonInterrupted, reason == queue.ReasonUnkillable, reason == queue.ReasonPoison:
		return fault.ExitCodeFailure
	case j.State == queue.Cancelled.String():
		return fault.ExitCodeDetached
	case j.Signal != nil:
		return 128 + *j.Signal
	case j.ExitCode != nil && *j.ExitCode != 0:
		return int(*j.ExitCode)
	}
	return fault.ExitCodeFailure
}
