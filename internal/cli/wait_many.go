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

// This file implements "queuectl wait" for any number of jobs. It reads the number of the newest event, then the jobs,
// and then follows the events after that number with a Follower. So it also notices a job that ends between these
// steps. For a few named jobs, wait.go uses the protocol's method wait instead.

// waitFlags are the flags of "queuectl wait" that do not select jobs.
// See docs/decisions/0064.
type waitFlags struct {
	untilAnyJobEnds bool
	timeout         time.Duration // 0 means no timeout
	showProgress    bool
	jobLogPath      string
	batchName       string // name of the batch; "" if the flag --batch is not used
}

// jobsWaiter waits until any number of jobs have ended. A job counts as ended when it ends for the first time,
// even if it runs again later.
type jobsWaiter struct {
	waitFlags
	app                 *App
	client              *control.Client
	startedAt           time.Time
	jobs                []control.Job   // the jobs in the user's order, updated by events
	indexBySeq          map[int64]int   // index of each job in the field jobs, by sequence number
	hasEndedByIndex     []bool          // whether a job has ended, by its index in the field jobs
	failedCount         int             // number of jobs that did not complete
	endedCount          int             // number of jobs that have ended
	initiallyEndedCount int             // number of jobs that had already ended when the wait began
	retryingSeqs        map[int64]bool  // sequence numbers of the failed jobs that will be retried
	waitCtx             context.Context // ends at the timeout, or when the user interrupts the wait
	lastEndedJobIndex   int             // index of the job that ended last, in the field jobs
	unprintedEndedIDs   []string        // ids of ended jobs that were not printed yet, with --jsonl
	jobLog              *JobLog         // nil without --joblog
}

// waitForJobs waits until all jobs have ended or, if waitFlags.untilAnyJobEnds is true, until one job has ended.
// afterEventSeq is the number of an event that occurred before the states in jobs were read, so waitForJobs misses no
// event after these states. The exit code is that of the first job that did not complete.
func (a *App) waitForJobs(ctx context.Context, c *control.Client, jobs []control.Job, afterEventSeq int64,
	f waitFlags) error {
	w := &jobsWaiter{waitFlags: f, app: a, client: c, startedAt: time.Now(), jobs: jobs, indexBySeq: map[int64]int{},
		hasEndedByIndex: make([]bool, len(jobs)), retryingSeqs: map[int64]bool{}}
	if f.jobLogPath != "" {
		var err error
		if w.jobLog, err = OpenJobLog(f.jobLogPath, a.Stdout, false); err != nil {
			return err
		}
	}
	for i := range jobs {
		w.indexBySeq[jobs[i].Seq] = i
		switch state := present.ParseStateOrZero(jobs[i].State); {
		case state.HasEnded():
			w.recordJobEnd(ctx, i)
		case state == queue.Failed:
			w.retryingSeqs[jobs[i].Seq] = true
		}
	}
	w.initiallyEndedCount = w.endedCount
	err := w.printNewlyEndedJobs(ctx)
	if err == nil {
		err = w.follow(ctx, afterEventSeq)
	}
	w.app.ShowProgress("")
	if err = errors.Join(err, w.jobLog.FirstWriteError()); err != nil {
		return err
	}
	return w.printSummary(ctx)
}

// follow waits until the jobs have ended, the timeout has passed, or the user interrupts the wait.
func (w *jobsWaiter) follow(ctx context.Context, afterEventSeq int64) error {
	waiting, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if w.timeout > 0 {
		waiting, stop = context.WithTimeout(waiting, w.timeout)
		defer stop()
	}
	w.waitCtx = waiting
	f := Follower{App: w.app, Client: w.client, CheckDoneNow: waiting.Done()}
	return f.Follow(ctx, w, afterEventSeq)
}

// IsDone implements FollowedJobs. It sets the exit code if the user or the timeout has ended the wait.
func (w *jobsWaiter) IsDone(ctx context.Context, _ bool) (bool, error) {
	switch err := w.waitCtx.Err(); {
	case w.endedCount == len(w.jobs) || w.untilAnyJobEnds && w.endedCount > 0:
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == context.DeadlineExceeded:
		w.app.ExitCode = fault.ExitCodeTimeout
	case err != nil:
		w.app.ExitCode = fault.ExitCodeDetached
	default:
		return false, nil
	}
	return true, nil
}

// HandleEvent implements FollowedJobs. It updates the job that the event is about, and records when the job
// ends.
func (w *jobsWaiter) HandleEvent(ctx context.Context, e *control.Event) (isRelevant bool, err error) {
	i, isRelevant := w.indexBySeq[e.JobSeq]
	if !isRelevant || w.hasEndedByIndex[i] {
		return false, nil
	}
	if w.applyEvent(&w.jobs[i], e) {
		w.recordJobEnd(ctx, i)
	}
	return true, w.printNewlyEndedJobs(ctx)
}

// applyEvent applies an event to a job. It reports whether the job has ended.
func (w *jobsWaiter) applyEvent(j *control.Job, e *control.Event) (ended bool) {
	delete(w.retryingSeqs, j.Seq)
	j.PausedAt = 0
	state := present.ParseStateOrZero(e.State)
	switch {
	case e.Kind == string(queue.EventRemoved):
		j.State, j.Reason = "removed", nil
	case state == queue.Failed && e.Kind == string(queue.EventEnded):
		w.retryingSeqs[j.Seq], j.State = true, e.State
		return false
	case !state.HasEnded():
		j.State = e.State
		if e.Kind == string(queue.EventPaused) {
			j.PausedAt = e.OccurredAt
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
		j.StartedAt, j.FinishedAt = e.StartedAt, e.OccurredAt
	}
	return true
}

// recordJobEnd records that a job has ended, and prints it if it failed.
func (w *jobsWaiter) recordJobEnd(ctx context.Context, jobIndex int) {
	j := &w.jobs[jobIndex]
	w.hasEndedByIndex[jobIndex], w.lastEndedJobIndex = true, jobIndex
	w.endedCount++
	if w.jobLog != nil {
		// ShowJob fails if the job was removed or the service is busy. In this case the log contains 0 as the number of
		// bytes: a line with a wrong number is better than no line.
		detail, _ := w.client.ShowJob(ctx, control.JobShowParams{ID: control.JobID(j.ID), HideEnv: true})
		w.jobLog.AddJob(jobIndex+1, j, detail.StdoutBytes)
	}
	if w.app.JSONL && j.State != "removed" {
		w.unprintedEndedIDs = append(w.unprintedEndedIDs, j.ID)
	}
	if j.State == queue.Completed.String() {
		return
	}
	if w.failedCount++; w.showProgress && w.failedCount <= MaxListedFailures && !w.app.WantsJSON() {
		w.app.ShowProgress("")
		w.app.PrintJobFailure(j)
	}
}

// printNewlyEndedJobs prints the jobs that have ended since the previous call. It prints only with --jsonl.
func (w *jobsWaiter) printNewlyEndedJobs(ctx context.Context) error {
	if len(w.unprintedEndedIDs) == 0 {
		return nil
	}
	defer func() { w.unprintedEndedIDs = w.unprintedEndedIDs[:0] }()
	w.app.ShowProgress("")
	return enqueue.PrintJobsAsJSON(ctx, &w.app.Output, w.client, w.unprintedEndedIDs)
}

// WaitingJobID implements FollowedJobs. It prefers a job that is due for its first attempt. If there is no such job, it
// chooses a job that is not due yet, blocked or held, and otherwise a job that is paused or will be retried. If a job
// is running, it returns "".
func (w *jobsWaiter) WaitingJobID(context.Context) string {
	if !w.showProgress && !w.app.ShowsInfo() {
		return ""
	}
	ready, other, later := "", "", ""
	now := control.Time(queue.UnixMillisOf(time.Now()))
	for i := range w.jobs {
		switch j := &w.jobs[i]; {
		case w.hasEndedByIndex[i]:
		case isRunning(j):
			return ""
		case w.retryingSeqs[j.Seq] && w.drawsProgressBar(): // the progress bar already shows when this job is retried
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

// drawsProgressBar reports whether the waiter draws its progress as a bar.
func (w *jobsWaiter) drawsProgressBar() bool { return w.showProgress && term.IsTerminal(w.app.Stderr) }

// Progress implements FollowedJobs.
func (w *jobsWaiter) Progress() *JobsProgress {
	if !w.showProgress {
		return nil
	}
	return &JobsProgress{term.ProgressBar{Current: int64(w.endedCount), Total: int64(len(w.jobs)),
		CurrentAtStart: int64(w.initiallyEndedCount), StartedAt: w.startedAt,
		TextAfterNumbers: present.CountWithLabel(int64(w.failedCount), "failed")}, int64(len(w.retryingSeqs)),
		func(seq int64) bool { return w.retryingSeqs[seq] }}
}

// printSummary prints how the jobs ended. It sets the exit code to that of the first job that did not complete.
func (w *jobsWaiter) printSummary(ctx context.Context) error {
	// stopped is ExitCodeTimeout or ExitCodeDetached if the wait ended before all jobs had ended, otherwise 0.
	stopped := w.app.ExitCode
	failed := -1
	for i := range w.jobs {
		if code := jobExitCode(&w.jobs[i]); failed < 0 && w.hasEndedByIndex[i] && code != 0 &&
			(!w.untilAnyJobEnds || i == w.lastEndedJobIndex) {
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
			if w.hasEndedByIndex[i] && w.jobs[i].State != "removed" {
				ids = append(ids, w.jobs[i].ID)
			}
		}
		return enqueue.PrintJobsAsJSON(ctx, &w.app.Output, w.client, ids)
	}
	if failed >= 0 && !w.showProgress {
		w.app.printJobEnd(&w.jobs[failed], w.failedCount-1)
	}
	text := w.stateCountsText()
	switch stopped {
	case fault.ExitCodeTimeout:
		text += fmt.Sprintf("; timed out after %s", queue.FormatDuration(w.timeout))
	case fault.ExitCodeDetached:
		text += "; stopped waiting, the jobs continue"
	}
	if w.showProgress || stopped == fault.ExitCodeTimeout && !w.app.Quiet {
		w.app.PrintMessage("%s", text)
		return nil
	}
	return w.app.PrintTerminalMessage("%s", text)
}

// stateCountsText describes how many jobs have ended in each final state, and how many have not ended.
func (w *jobsWaiter) stateCountsText() string {
	by := map[string]int64{"not finished": int64(len(w.jobs) - w.endedCount)}
	for i := range w.jobs {
		if w.hasEndedByIndex[i] {
			by[w.jobs[i].State]++
		}
	}
	text := present.JobCountsText(len(w.jobs), func(state string) int64 { return by[state] }, "completed", "dead",
		"cancelled", "removed", "not finished")
	text += ", in " + present.MillisecondsText(time.Since(w.startedAt).Milliseconds())
	if w.showProgress {
		text += UnlistedFailuresText(w.failedCount, "failed jobs",
			strings.TrimSpace("queuectl list --failed "+w.quotedBatchFlag()))
	}
	if dead := by[queue.Dead.String()]; dead > 0 && w.batchName != "" {
		text += "; retry failed jobs with: queuectl retry --failed " + w.quotedBatchFlag()
	}
	return text
}

// quotedBatchFlag returns the flag --batch with the name of the batch, quoted for the shell, or "" without a batch.
func (w *jobsWaiter) quotedBatchFlag() string {
	if w.batchName == "" {
		return ""
	}
	return "--batch " + queue.QuoteShellWord(w.batchName)
}

// MaxListedFailures is the highest number of failed jobs that a command names one by one.
const MaxListedFailures = 100

// PrintJobFailure prints that a job did not complete, and why.
func (a *App) PrintJobFailure(j *control.Job) {
	a.PrintMessage("%s (%s)", a.MessageLine(present.JobFailureText(j)),
		termtext.Truncate(a.MessageLine(present.JobTitle(j)), 60))
}

// printJobEnd prints how a job ended. It prints the end of a completed job only on a terminal. For any other
// job it adds what the user can do, and how many other jobs failed.
func (a *App) printJobEnd(j *control.Job, otherFailureCount int) {
	switch {
	case j.State == queue.Completed.String():
		a.PrintTerminalMessage("job %s is completed", j.ID)
		return
	case a.Quiet:
		return
	}
	text := a.MessageLine(present.JobFailureText(j))
	if j.State != "removed" {
		text += "; details: queuectl show " + j.ID
	}
	if otherFailureCount > 0 {
		text += fmt.Sprintf("; %d more failed", otherFailureCount)
	}
	a.PrintMessage("%s", text)
}

// UnlistedFailuresText returns a text that says how to list the failed jobs that the command has not named one by one.
// It returns "" if the command has named all failed jobs. failedCount is the number of all failed jobs, jobsWord is the
// word for them, and listCommand is the command that lists them.
func UnlistedFailuresText(failedCount int, jobsWord, listCommand string) string {
	if failedCount > MaxListedFailures {
		return fmt.Sprintf("; only %d of the %d %s are named above; list them all with: %s", MaxListedFailures,
			failedCount, jobsWord, listCommand)
	}
	return ""
}
