package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// This file implements "queuectl wait" for any number of jobs. It reads the number of the newest event, then
// the jobs, and then follows the events after that number with a Follower. So it also notices a job that ends
// in between. For a few named jobs, wait.go uses the protocol's method wait instead.

// waitFlags are the flags of "queuectl wait" that do not select jobs.
// See docs/decisions/0064.
type waitFlags struct {
	anyJob     bool
	timeout    time.Duration // 0 means no timeout
	progress   bool
	jobLogPath string
	batch      string // name of the batch; "" if the flag --batch is not used
}

// waiter waits until any number of jobs have ended. A job counts as ended when it ends for the first time,
// even if it runs again later.
type waiter struct {
	waitFlags
	app            *App
	client         *control.Client
	startedAt      time.Time
	jobs           []control.Job   // the jobs in the user's order, updated by events
	indexBySeq     map[int64]int   // index of each job in jobs, by sequence number
	hasEnded       []bool          // whether a job has ended, by its index in jobs
	failedCount    int             // number of jobs that did not complete
	doneCount      int             // number of jobs that have ended
	initiallyEnded int             // number of jobs that had already ended when the wait began
	retryingSeqs   map[int64]bool  // sequence numbers of the failed jobs that will be retried
	waitCtx        context.Context // ends at the timeout, or when the user interrupts the wait
	lastEndedIndex int             // index in jobs of the job that ended last
	unprintedIDs   []string        // ids of ended jobs that were not printed yet, with --jsonl
	jobLog         *JobLog         // nil without --joblog
}

// waitMany waits until all jobs have ended or, if waitFlags.anyJob is true, until one has. afterEvent is the
// number of an event that occurred before the states in jobs were read, so no later event is missed. The exit
// code is that of the first job that did not complete.
func (a *App) waitMany(ctx context.Context, c *control.Client, jobs []control.Job, afterEvent int64,
	f waitFlags) error {
	w := &waiter{waitFlags: f, app: a, client: c, startedAt: time.Now(), jobs: jobs, indexBySeq: map[int64]int{},
		hasEnded: make([]bool, len(jobs)), retryingSeqs: map[int64]bool{}}
	if f.jobLogPath != "" {
		var err error
		if w.jobLog, err = OpenJobLog(f.jobLogPath, a.Stdout, false); err != nil {
			return err
		}
	}
	for i := range jobs {
		w.indexBySeq[jobs[i].Seq] = i
		switch state := present.ParseState(jobs[i].State); {
		case state.Ended():
			w.recordEnd(ctx, i)
		case state == queue.Failed:
			w.retryingSeqs[jobs[i].Seq] = true
		}
	}
	w.initiallyEnded = w.doneCount
	err := w.printNewlyEnded(ctx)
	if err == nil {
		err = w.follow(ctx, afterEvent)
	}
	w.app.ShowProgress("")
	if err = errors.Join(err, w.jobLog.WriteError()); err != nil {
		return err
	}
	return w.printSummary(ctx)
}

// follow waits until the jobs have ended, the timeout has passed, or the user interrupts the wait.
func (w *waiter) follow(ctx context.Context, afterEvent int64) error {
	waiting, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if w.timeout > 0 {
		waiting, stop = context.WithTimeout(waiting, w.timeout)
		defer stop()
	}
	w.waitCtx = waiting
	f := Follower{App: w.app, Client: w.client, Wake: waiting.Done()}
	return f.Follow(ctx, w, afterEvent)
}

// IsDone implements FollowedJobs. It sets the exit code if the user or the timeout has ended the wait.
func (w *waiter) IsDone(ctx context.Context, _ bool) (bool, error) {
	switch err := w.waitCtx.Err(); {
	case w.doneCount == len(w.jobs) || w.anyJob && w.doneCount > 0:
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == context.DeadlineExceeded:
		w.app.ExitCode = fault.ExitTimeout
	case err != nil:
		w.app.ExitCode = fault.ExitDetached
	default:
		return false, nil
	}
	return true, nil
}

// HandleEvent implements FollowedJobs. It updates the job that the event is about, and records when the job
// ends.
func (w *waiter) HandleEvent(ctx context.Context, e *control.Event) (isOurs bool, err error) {
	i, isOurs := w.indexBySeq[e.JobSeq]
	if !isOurs || w.hasEnded[i] {
		return false, nil
	}
	if w.applyEvent(&w.jobs[i], e) {
		w.recordEnd(ctx, i)
	}
	return true, w.printNewlyEnded(ctx)
}

// applyEvent applies an event to a job. It reports whether the job has ended.
func (w *waiter) applyEvent(j *control.Job, e *control.Event) (ended bool) {
	delete(w.retryingSeqs, j.Seq)
	j.PausedAt = 0
	state := present.ParseState(e.State)
	switch {
	case e.Kind == string(queue.EventRemoved):
		j.State, j.Reason = "removed", nil
	case state == queue.Failed && e.Kind == string(queue.EventEnded):
		w.retryingSeqs[j.Seq], j.State = true, e.State
		return false
	case !state.Ended():
		j.State = e.State
		if e.Kind == string(queue.EventPaused) {
			j.PausedAt = e.Time
		}
		return false
	default:
		j.State, j.Reason, j.Signal, j.ExitCode, j.Error = e.State, nil, nil, e.ExitCode, nil
		if e.Reason != "" {
			j.Reason = &e.Reason
		}
		if e.Signal != 0 {
			j.Signal = &e.Signal
		}
		j.StartedAt, j.FinishedAt = e.StartedAt, e.Time
	}
	return true
}

// recordEnd records that a job has ended, and prints it if it failed.
func (w *waiter) recordEnd(ctx context.Context, i int) {
	j := &w.jobs[i]
	w.hasEnded[i], w.lastEndedIndex = true, i
	w.doneCount++
	if w.jobLog != nil {
		// Show fails if the job was removed or the service is busy. In this case the log contains 0 as the
		// number of bytes, because a line with a wrong number is better than no line.
		detail, _ := w.client.Show(ctx, control.Show{ID: control.JobID(j.ID), WithoutEnv: true})
		w.jobLog.Add(i+1, j, detail.StdoutBytes)
	}
	if w.app.JSONL && j.State != "removed" {
		w.unprintedIDs = append(w.unprintedIDs, j.ID)
	}
	if j.State == queue.Completed.String() {
		return
	}
	if w.failedCount++; w.progress && w.failedCount <= MaxNamedFailures && !w.app.Structured() {
		w.app.ShowProgress("")
		w.app.PrintFailure(j)
	}
}

// printNewlyEnded prints the jobs that have ended since the previous call. It prints only with --jsonl.
func (w *waiter) printNewlyEnded(ctx context.Context) error {
	if len(w.unprintedIDs) == 0 {
		return nil
	}
	defer func() { w.unprintedIDs = w.unprintedIDs[:0] }()
	w.app.ShowProgress("")
	return enqueue.PrintJobs(ctx, &w.app.Output, w.client, w.unprintedIDs)
}

// WaitingJobID implements FollowedJobs. It prefers a job that is due for its first attempt, then one that is not
// due, blocked or held, then one that is paused or will be retried. If a job is running, it returns "".
func (w *waiter) WaitingJobID(context.Context) string {
	if !w.progress && (w.app.Quiet || !term.IsTerminal(w.app.Stderr)) {
		return ""
	}
	ready, other, later := "", "", ""
	now := control.Time(queue.MillisOf(time.Now()))
	for i := range w.jobs {
		switch j := &w.jobs[i]; {
		case w.hasEnded[i]:
		case isRunning(j):
			return ""
		case w.retryingSeqs[j.Seq] && w.drawsBar(): // the progress bar already shows when this job is retried
		case w.retryingSeqs[j.Seq] || j.State == queue.Processing.String():
			later = cmp.Or(later, j.ID)
		case j.State == queue.Pending.String() && j.RunAt <= now:
			ready = cmp.Or(ready, j.ID)
		default:
			other = cmp.Or(other, j.ID)
		}
	}
	return cmp.Or(ready, other, later)
}

// drawsBar reports whether the waiter draws its progress as a bar.
func (w *waiter) drawsBar() bool { return w.progress && term.IsTerminal(w.app.Stderr) }

// Progress implements FollowedJobs.
func (w *waiter) Progress() *JobsProgress {
	if !w.progress {
		return nil
	}
	return &JobsProgress{term.ProgressBar{Current: int64(w.doneCount), Total: int64(len(w.jobs)),
		StartValue: int64(w.initiallyEnded),
		StartedAt:  w.startedAt,
		Suffix:     present.CountText(int64(w.failedCount), "failed")}, int64(len(w.retryingSeqs)),
		func(seq int64) bool { return w.retryingSeqs[seq] }}
}

// printSummary prints how the jobs ended. It sets the exit code to that of the first job that did not complete.
func (w *waiter) printSummary(ctx context.Context) error {
	// stopped is ExitTimeout or ExitDetached if the wait ended before the jobs did, otherwise 0.
	stopped := w.app.ExitCode
	failed := -1
	for i := range w.jobs {
		if code := jobExitCode(&w.jobs[i]); failed < 0 && w.hasEnded[i] && code != 0 && (!w.anyJob || i == w.lastEndedIndex) {
			if failed = i; stopped == 0 {
				w.app.ExitCode = code
			}
		}
	}
	switch {
	case w.app.JSONL:
		return nil
	case w.app.JSON:
		var ids []string
		for i := range w.jobs {
			if w.hasEnded[i] && w.jobs[i].State != "removed" {
				ids = append(ids, w.jobs[i].ID)
			}
		}
		return enqueue.PrintJobs(ctx, &w.app.Output, w.client, ids)
	}
	if failed >= 0 && !w.progress {
		w.app.printJobEnd(&w.jobs[failed], w.failedCount-1)
	}
	text := w.countsText()
	switch stopped {
	case fault.ExitTimeout:
		text += fmt.Sprintf("; timed out after %s", queue.FormatDuration(w.timeout))
	case fault.ExitDetached:
		text += "; stopped waiting, the jobs continue"
	}
	if w.progress || stopped == fault.ExitTimeout && !w.app.Quiet {
		w.app.Say("%s", text)
		return nil
	}
	return w.app.PrintInfo("%s", text)
}

// countsText describes how many jobs are in each final state, and how many have not ended.
func (w *waiter) countsText() string {
	by := map[string]int64{"not finished": int64(len(w.jobs) - w.doneCount)}
	for i := range w.jobs {
		if w.hasEnded[i] {
			by[w.jobs[i].State]++
		}
	}
	text := present.CountsText(len(w.jobs), func(state string) int64 { return by[state] }, "completed", "dead",
		"cancelled", "removed", "not finished")
	text += ", in " + present.ApproxDuration(time.Since(w.startedAt).Milliseconds())
	if w.progress {
		text += MoreFailuresText(w.failedCount, "failed jobs", strings.TrimSpace("queuectl list --failed "+w.batchFlag()))
	}
	if dead := by[queue.Dead.String()]; dead > 0 && w.batch != "" {
		text += "; retry failed jobs with: queuectl retry --failed " + w.batchFlag()
	}
	return text
}

// batchFlag returns the flag --batch with the name of the batch, quoted for the shell, or "" without a batch.
func (w *waiter) batchFlag() string {
	if w.batch == "" {
		return ""
	}
	return "--batch " + queue.QuoteShellWord(w.batch)
}

// MaxNamedFailures is the highest number of failed jobs that a command names one by one.
const MaxNamedFailures = 100

// PrintFailure prints that a job did not complete, and why.
func (a *App) PrintFailure(j *control.Job) {
	a.Say("%s (%s)", termtext.OneLine(a.EscapeFor(a.Stderr, present.FailureText(j))),
		termtext.Truncate(termtext.OneLine(a.EscapeFor(a.Stderr, present.JobTitle(j))), 60))
}

// printJobEnd prints how a job ended. It prints the end of a completed job only on a terminal. For any other
// job it adds what the user can do, and how many other jobs failed.
func (a *App) printJobEnd(j *control.Job, otherFailures int) {
	switch {
	case j.State == queue.Completed.String():
		a.PrintInfo("job %s is completed", j.ID)
		return
	case a.Quiet:
		return
	}
	text := termtext.OneLine(a.EscapeFor(a.Stderr, present.FailureText(j)))
	if j.State != "removed" {
		text += "; details: queuectl show " + j.ID
	}
	if otherFailures > 0 {
		text += fmt.Sprintf("; %d more failed", otherFailures)
	}
	a.Say("%s", text)
}

// MoreFailuresText returns how to list the failed jobs that were not named one by one, or "" if all were.
// failedCount is the number of all failed jobs, jobsWord is the word for them, and listCommand is the command
// that lists them.
func MoreFailuresText(failedCount int, jobsWord, listCommand string) string {
	if failedCount > MaxNamedFailures {
		return fmt.Sprintf("; only %d of the %d %s are named above; list them all with: %s", MaxNamedFailures,
			failedCount, jobsWord, listCommand)
	}
	return ""
}
