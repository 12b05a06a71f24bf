package cli

import (
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
	"github.com/queuectl/queuectl/queue"
)

// These are the exit codes of run and wait for outcomes that have no exit code of the job.
const (
	exitTimeout  = 124
	exitFailure  = 125 // queuectl itself has failed
	exitDetached = 130
)

// detachAfter is how long after a first Ctrl-C a second one still cancels the job.
const detachAfter = time.Second

func runVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var noCwd, detach, cancelOnExit bool
	var private privateFlags
	cmd := &cobra.Command{
		Use:   "run ['COMMAND' | -- PROGRAM ARGS…]",
		Short: "Add a job to the queue, follow it, exit with its exit code",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.FailureCode = exitFailure
			if private.enabled {
				if a.program.Private == nil {
					return a.execDaemon()
				}
				count, err := private.check(cmd.Flags(), args, cmd.ArgsLenAtDash())
				if err != nil {
					return err
				}
				return a.program.PrivateRun(cmd.Context(), a, private, &spec, noCwd, count)
			}
			for _, name := range []string{"workers", "file", "lines", "arg-file", "null", "joblog", "retry-dead", "add-new"} {
				if cmd.Flags().Changed(name) {
					return Usage("--%s: works only with --private; add --private", name)
				}
			}
			if i := slices.Index(args, ":::"); i >= 0 {
				return manyJobsError(args[:i])
			}
			batch, err := readWords(a.In, "run", &spec, args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			if batch != nil {
				return Usage("run takes one job; add several with: queuectl enqueue")
			}
			if spec.MaxRetries == nil && spec.MaxAttempts == nil {
				spec.MaxRetries = new(int64)
			}
			if detach {
				return a.enqueueOne(cmd.Context(), &spec, noCwd, "")
			}
			return a.run(cmd.Context(), &spec, noCwd, cancelOnExit)
		},
	}
	specFlags(cmd, &spec)
	refusePast := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		a.FailureCode = exitFailure
		if private.enabled && exists(filepath.Join(a.privateDir(), manifestName)) {
			return nil // this run resumes an earlier one, so a time in its flags may have passed since then
		}
		return refusePast(cmd, args)
	}
	private.add(cmd.Flags())
	a.requireFlag(cmd.Flags())
	cmd.Flags().BoolVar(&noCwd, "no-cwd", false, "run in your home directory, not in the current one")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the ID of the job and do not follow it")
	cmd.Flags().BoolVar(&cancelOnExit, "cancel-on-exit", false, "cancel the job when this command is interrupted")
	a.ownExit(cmd)
	return cmd
}

// manyJobsError returns the error for a run with many jobs (":::"). It names the commands that
// can run them.
func manyJobsError(program []string) error {
	line := programText(program)
	return Usage("run takes one job; to run several in a separate queue: queuectl run --private -- %s ::: …; to add them to this queue: queuectl enqueue -- %s ::: …", line, line)
}

// programText returns a program and its arguments quoted for the shell, except words with
// replacement strings like {}.
func programText(program []string) string {
	words := make([]string, len(program))
	for i, word := range program {
		if words[i] = word; len(pieces(word)) < 2 && !strings.HasPrefix(word, "{") {
			words[i] = queue.Word(word)
		}
	}
	return strings.Join(words, " ")
}

// ownExit makes usage errors of a command end with the exit code for queuectl's own failures. The
// usual exit code for usage errors could be that of a job.
func (a *App) ownExit(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		a.FailureCode = exitFailure
		return a.flagError(cmd, err)
	})
}

// run enqueues a job and follows it.
func (a *App) run(ctx context.Context, s *queue.Spec, noCwd, cancelOnExit bool) error {
	tty := s.TTY != nil && *s.TTY
	if a.joinsTTY(tty) && a.program.Join == nil {
		return a.execDaemon()
	}
	if err := Prepare(s, noCwd); err != nil {
		return err
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	interrupts := watchInterrupts()
	if s.OutputLimit == nil {
		s.OutputLimit = new(followedOutput)
	}
	got, err := c.Enqueue(ctx, control.Enqueue{Spec: *s, RequireLimits: a.requireLimits})
	if err != nil {
		return err
	}
	warnUnenforced(&a.Output, got.Unenforced)
	printNewQueues(&a.Output, got.NewQueues)
	warnExpired(&a.Output, s, true)
	printUnique(&a.Output, s, got.ID, got.Duplicate)
	printCancelled(&a.Output, &got)
	printNotes(&a.Output, a.cmd, got.Notes)
	return a.attached(ctx, c, &followedJob{id: got.ID, tty: tty, cancelOnExit: cancelOnExit}, interrupts)
}

// followedOutput is how many bytes of each output stream the service keeps for a job that run
// follows, unless the user sets a limit. Without it, output that the job prints faster than run
// reads it would be lost.
// See docs/decisions/0070.
const followedOutput int64 = 64 << 20

// joinsTTY reports whether the command run connects the user's terminal to the job's terminal.
func (a *App) joinsTTY(tty bool) bool {
	return tty && !a.Structured() && IsTerminal(os.Stdin) && IsTerminal(a.Out)
}

// viewOnly reports whether the caller may not type into a job's terminal, and prints a
// message if so. The job's output is then shown with control characters escaped, like that of any
// job.
func (a *App) viewOnly(ctx context.Context, c *control.Client, id string) bool {
	_, err := c.Attach(ctx, control.Attach{ID: control.Name(id)})
	if !errors.Is(err, queue.ErrDenied) && !errors.Is(err, queue.ErrUnsupported) {
		return false // any other error is reported when the job is followed
	}
	fmt.Fprintf(a.Err, "queuectl: view only, input is not sent to the job: %s\n", oneLine(a.Clean(a.Err, err.Error())))
	return true
}

// followedJob is a job that this process follows to its end.
type followedJob struct {
	id           string
	tty          bool // the job has a terminal
	later        bool // the job may already have started, because attach follows an existing job
	cancelOnExit bool // cancel the job when the user interrupts this process
}

// watchInterrupts returns a channel that gets each Ctrl-C from now on.
func watchInterrupts() <-chan os.Signal {
	interrupts := make(chan os.Signal, 4)
	signal.Notify(interrupts, os.Interrupt)
	return interrupts
}

// attached follows a job until it ends or the user detaches, with Ctrl-C or with the keys of the
// joined terminal.
func (a *App) attached(ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error {
	if a.joinsTTY(f.tty) && !(f.later && a.viewOnly(ctx, c, f.id)) {
		if a.program.Join == nil {
			return a.execDaemon()
		}
		return a.program.Join(a, ctx, c, f, interrupts)
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	// The goroutine ends when the job ends or stop is called.
	go func() { done <- a.follow(follow, c, f, a.printOutput) }()
	select {
	case err := <-done:
		return err
	case <-interrupts:
	}
	if f.cancelOnExit || a.detachOrCancel(f.id, interrupts, done) {
		return a.cancelAndExit(c, f.id)
	}
	a.Exit = exitDetached
	return nil
}

func attachVerb(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach ID", Short: "Follow a job or join its terminal; exit with its exit code",
		Args: func(cmd *cobra.Command, args []string) error {
			a.FailureCode = exitFailure
			return Exactly(1, "the id of a job")(cmd, args)
		},
		ValidArgsFunction: a.completeIDs("processing", "waiting"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			job, err := c.Show(cmd.Context(), control.Show{ID: control.Name(args[0])})
			if err != nil {
				return err
			}
			tty, _ := job.Spec["tty"].(bool)
			return a.attached(cmd.Context(), c, &followedJob{id: job.ID, tty: tty, later: true}, watchInterrupts())
		},
	}
	a.ownExit(cmd)
	return cmd
}

// continuesText returns the message that a job continues to run. It names the command that attaches
// to the job again.
func continuesText(id string) string {
	return fmt.Sprintf("queuectl: job %s continues; return to it with: queuectl attach %s", id, id)
}

// sayGap prints a message that some output is missing.
func (o *Output) sayGap(text string) error {
	begin := ""
	if IsTerminal(o.Err) {
		begin = "\n" // the message must begin a new line, because the job may have printed part of a line
	}
	_, err := fmt.Fprintf(o.Err, "%squeuectl: %s\n", begin, text)
	return err
}

// detachOrCancel prints how to attach to the job again. It reports whether a second Ctrl-C follows
// within detachAfter, which cancels the job.
func (a *App) detachOrCancel(id string, interrupts <-chan os.Signal, done <-chan error) bool {
	fmt.Fprintf(a.Err, "\n%s; press Ctrl-C again to cancel it\n", continuesText(id))
	select {
	case <-interrupts:
		return true
	case <-done:
		return false
	case <-time.After(detachAfter):
		return false
	}
}

func (a *App) cancelAndExit(c *control.Client, id string) error {
	a.Exit = exitDetached
	// A new connection is necessary. On the old one, the answer would come after job output that this
	// process may no longer read.
	c = control.NewClient(c.Path())
	defer c.Close()
	verdict, err := c.Cancel(context.Background(), control.Selection{IDs: []string{id}})
	if err != nil {
		return err
	}
	if len(verdict.Refused) > 0 {
		fmt.Fprintf(a.Err, "queuectl: %s\n", verdict.Refused[0].Err())
		return nil
	}
	fmt.Fprintf(a.Err, "queuectl: job %s cancelled\n", id)
	return nil
}

// printOutput prints each stream of a job's output to the stream of the same name, or both streams
// to standard error if standard output is for JSON. If p.Ends is set, it calls the function ended
// after each attempt except the last.
func (a *App) printOutput(ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error) error {
	out, errs := newSafeWriter(&a.Output, a.Out, true), newSafeWriter(&a.Output, a.Err, true)
	if a.Structured() {
		out.to = a.Err
	}
	job := queue.Word(string(p.ID))
	_, err := c.Logs(ctx, p, func(p control.Piece) error {
		to := out
		if p.Stream == "stderr" {
			to = errs
		}
		switch {
		case p.Ended:
			return ended(p.Attempt)
		case p.Dropped > 0:
			return a.sayGap(p.Gap() + ": the output exceeded --output-limit, or could not be stored; see: queuectl show " + job)
		case p.Damage != nil:
			return a.sayGap(damaged(&p).Error())
		}
		_, err := to.to.WriteString(to.safe(p.String()))
		return err
	})
	for _, s := range []*safeWriter{out, errs} {
		if rest := s.rest(); rest != "" {
			if _, failed := s.to.WriteString(rest); err == nil {
				err = failed
			}
		}
	}
	return err
}

// sayWhyAfter is how long a followed job waits before the reason is printed.
const sayWhyAfter = time.Second

// printer prints a job's output. It calls the function ended after each attempt except the last.
type printer func(ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error) error

// follow prints a job's output as it arrives and sets a.Exit from the job's outcome. If the job was
// just enqueued, follow misses no attempt, however short.
func (a *App) follow(ctx context.Context, c *control.Client, f *followedJob, print printer) error {
	id := f.id
	waits := time.AfterFunc(sayWhyAfter, func() { a.sayWhy(ctx, c, id) })
	defer waits.Stop()
	err := print(ctx, c, control.Logs{ID: control.Name(id), Follow: true, All: !f.later, Ends: true}, func(attempt int) error {
		waits.Stop() // sayWhy is no longer needed, because printAttempt prints when the next attempt starts
		return a.printAttempt(ctx, c, id, attempt)
	})
	if err != nil {
		return a.lostError(ctx, c, id, err)
	}
	job, err := c.Show(ctx, control.Show{ID: control.Name(id)})
	if err != nil {
		return a.lostError(ctx, c, id, err)
	}
	a.Exit = jobExit(&job.Job)
	a.printEnd(&job.Job)
	if a.Structured() {
		return a.PrintJSON(&job.Job)
	}
	return nil
}

// sayWhy prints why a job does not run now and what to do about it, in the words of show, list and
// why.
func (a *App) sayWhy(ctx context.Context, c *control.Client, id string) {
	job, err := c.Show(ctx, control.Show{ID: control.Name(id)})
	if err != nil || runs(&job.Job) || stateOf(job.State).Ended() {
		return // the caller reports an error of the request and the end of the job
	}
	text := "it can start at any moment"
	if job.WaitsFor != nil {
		text = reasonLine(job.WaitsFor, time.Now())
	}
	a.Progress("")
	fmt.Fprintf(a.Err, "queuectl: job %s is waiting: %s\n", id, a.Clean(a.Err, text))
}

// printAttempt prints how an attempt ended, and when the job is retried.
func (a *App) printAttempt(ctx context.Context, c *control.Client, id string, n int) error {
	job, err := c.Show(ctx, control.Show{ID: control.Name(id), HistoryBefore: n + 1})
	if err != nil || len(job.History) == 0 {
		return err
	}
	h := job.History[len(job.History)-1]
	text := fmt.Sprintf("attempt %d failed", n)
	if !h.Counted {
		text = fmt.Sprintf("attempt %d does not use up a retry", n)
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
		text += "; the job is held; release it with: queuectl release " + id
	case wait > time.Second/20:
		text += "; retrying in " + queue.FormatDuration(max(wait.Round(time.Second/10), time.Second/10))
	default:
		text += "; retrying now"
	}
	fmt.Fprintf(a.Err, "queuectl: %s\n", oneLine(a.Clean(a.Err, fmt.Sprintf("%s (%s left)", text, plural(job.MaxAttempts-job.Attempts+job.HistoryTotal-n, "attempt")))))
	return nil
}

// printEnd prints how a job ended that did not complete. If the job's exit code does not explain it
// (the job has a field reason, or is cancelled), printEnd always prints; otherwise it prints only
// on a terminal.
func (a *App) printEnd(j *control.Job) {
	text := fmt.Sprintf("job %s is %s", j.ID, Standing(j))
	switch {
	case j.Error != nil:
		text += ": " + *j.Error
	case expired(j):
		text += ": " + didNotStart
	}
	text = oneLine(a.Clean(a.Err, text))
	switch {
	case a.Exit == 0:
	case j.Reason != nil, j.State == queue.Cancelled.String():
		fmt.Fprintf(a.Err, "queuectl: %s\n", text)
	default:
		a.Say("%s", text)
	}
}

// expired reports whether a job ended because it had not started before the time in its field
// expires_at.
func expired(j *control.Job) bool { return orDefault(j.Reason, "") == string(queue.ReasonExpired) }

// didNotStart explains why a job expired.
const didNotStart = "it did not start before the time in its field expires_at"

// lostError extends an error that occurred while following a job: it adds whether the job is
// still in the queue, and how to follow it again. If only the output is gone, it returns the error
// unchanged.
func (a *App) lostError(ctx context.Context, c *control.Client, id string, err error) error {
	if errors.Is(err, queue.ErrNotFound) {
		if _, shown := c.Show(ctx, control.Show{ID: control.Name(id)}); shown == nil {
			return err
		}
		return fmt.Errorf("job %s was removed: %w", id, err)
	}
	return fmt.Errorf("job %s is still in the queue, but cannot be followed (%w); follow it again with: queuectl attach %s", id, err, id)
}

// safeWriter prepares one stream of a job's output for a file. On a terminal it escapes control
// characters, and keeps an incomplete character or colour sequence until its rest arrives.
type safeWriter struct {
	o    *Output
	to   *os.File
	live bool // the output is printed while the job writes it, so carriage returns are kept
	part string
}

// newSafeWriter returns a safeWriter for a file. If live is true, carriage returns are kept.
func newSafeWriter(o *Output, to *os.File, live bool) *safeWriter {
	return &safeWriter{o: o, to: to, live: live}
}

// safe processes the next piece of the stream and returns the text that can be printed now.
func (s *safeWriter) safe(text string) string {
	if s.o.raw || !IsTerminal(s.to) {
		return text
	}
	text = s.part + text
	whole := len(text) - unfinished(text)
	s.part = text[whole:]
	return s.escape(text[:whole])
}

// rest returns the incomplete end of the stream. The caller calls it when the stream has ended.
func (s *safeWriter) rest() string {
	part := s.part
	s.part = ""
	return s.escape(part)
}

func (s *safeWriter) escape(text string) string {
	if s.live {
		return onScreen(text)
	}
	return sanitize(text)
}

// jobExit returns the exit code of run for a job that has ended.
func jobExit(j *control.Job) int {
	reason := ""
	if j.Reason != nil {
		reason = *j.Reason
	}
	switch {
	case j.State == queue.Completed.String():
		return 0
	case reason == string(queue.ReasonTimedOut):
		return exitTimeout
	case reason == string(queue.ReasonExpired), reason == string(queue.ReasonDependency), reason == string(queue.ReasonLost), reason == string(queue.ReasonInterrupted), reason == string(queue.ReasonUnkillable), reason == string(queue.ReasonPoison):
		return exitFailure
	case j.State == queue.Cancelled.String():
		return exitDetached
	case j.Signal != nil:
		return 128 + *j.Signal
	case j.ExitCode != nil && *j.ExitCode != 0:
		return int(*j.ExitCode)
	}
	return exitFailure
}
