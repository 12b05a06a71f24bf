package private

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// runFollower follows the jobs of a private run until no more of them will run.
type runFollower struct {
	*cli.App
	client       *control.Client
	startedAt    time.Time
	isStopping   *atomic.Bool    // the user has stopped the run, so bad health needs no warning
	noJobRunning <-chan struct{} // closed once the user has stopped the run and no job is running
	jobLog       *cli.JobLog     // nil without --joblog

	lastStatus           control.Status // status of the queue, from the latest request
	initialEndedCount    int64          // number of jobs that had ended in earlier runs
	jobsUntilStatusCheck int64          // number of jobs that must end before IsDone requests the status again
	lastEventSeq         int64          // number of the last event that was handled
	sawNoJobRunning      bool           // IsDone has seen that noJobRunning is closed
	hasNewEvents         bool           // events have arrived since the last status request
	healthWarningPrinted bool           // a warning about the service's bad health was printed
}

// readInitialStatus reads the status of the queue before the first job starts. The follower handles only the events
// after this status.
func (f *runFollower) readInitialStatus(ctx context.Context) (err error) {
	if f.lastStatus, err = f.client.Status(ctx, control.NoParams{}); err != nil {
		return err
	}
	f.lastEventSeq, f.hasNewEvents = f.lastStatus.LastEventSeq, true
	_, f.initialEndedCount = f.countJobs()
	return nil
}

// countJobs counts the jobs in the last status: those that have not ended and can run, and those that have ended. It
// does not count held jobs.
func (f *runFollower) countJobs() (unfinishedCount, endedCount int64) {
	for _, s := range queue.States() {
		switch n := f.lastStatus.Jobs[s.String()]; {
		case s == queue.Held: // only a user can make a held job run
		case s.HasEnded():
			endedCount += n
		default:
			unfinishedCount += n
		}
	}
	return unfinishedCount, endedCount
}

// followJobs prints the output of each job that ends, until no more jobs will run. From time to time it requests the
// status, which shows how many jobs are left.
func (f *runFollower) followJobs(ctx context.Context) error {
	follower := cli.Follower{App: f.App, Client: f.client, CheckDoneNow: f.noJobRunning}
	err := follower.Follow(ctx, f, f.lastEventSeq)
	if !term.IsClosedPipeError(err) {
		return err
	}
	if f.lastStatus, err = f.client.Status(ctx, control.NoParams{}); err != nil {
		return err
	}
	if open, _ := f.countJobs(); open > 0 {
		f.ExitCode = fault.ExitCodeDetached
		f.PrintMessage("stopped with %s unfinished, because the output pipe is closed; to continue, repeat the command",
			present.JobCountText(int(open)))
	}
	return nil
}

// IsDone implements cli.FollowedJobs. It requests the status only if there are new events and, unless slowCheckAllowed
// is true, only after jobsUntilStatusCheck jobs have ended. A request after each of very many short jobs would be slow.
func (f *runFollower) IsDone(ctx context.Context, slowCheckAllowed bool) (bool, error) {
	select {
	case <-f.noJobRunning:
		f.hasNewEvents, f.sawNoJobRunning = f.hasNewEvents || !f.sawNoJobRunning, true
	default:
	}
	if !f.hasNewEvents || !slowCheckAllowed && f.jobsUntilStatusCheck > 0 {
		return false, nil
	}
	f.hasNewEvents = false
	return f.checkStatus(ctx)
}

// checkStatus requests the status. done reports whether no more jobs will run.
func (f *runFollower) checkStatus(ctx context.Context) (done bool, err error) {
	if f.lastStatus, err = f.client.Status(ctx, control.NoParams{}); err != nil {
		return false, err
	}
	if unhealthy := f.lastStatus.Health != "ok"; unhealthy != f.healthWarningPrinted {
		if f.healthWarningPrinted = unhealthy; unhealthy && !f.isStopping.Load() {
			f.ShowProgress("")
			f.PrintMessage("%s", f.lastStatus.Health)
		}
	}
	open, ended := f.countJobs()
	f.jobsUntilStatusCheck = open
	switch {
	case f.lastEventSeq < f.lastStatus.LastEventSeq || open > 0 && !f.sawNoJobRunning:
		return false, nil
	case open > 0:
		f.ShowProgress("")
		if !f.WantsJSON() && !f.Quiet {
			f.PrintMessage("%d of %s finished, %d left", ended, present.JobCountText(int(open+ended)), open)
		}
		return true, nil
	}
	f.ShowProgress("")
	return true, f.printSummary(ctx, ended)
}

// Progress implements cli.FollowedJobs. It computes the progress from the last status.
func (f *runFollower) Progress() *cli.JobsProgress {
	if f.sawNoJobRunning {
		return nil
	}
	count := func(s queue.State) int64 { return f.lastStatus.Jobs[s.String()] }
	open, ended := f.countJobs()
	return &cli.JobsProgress{
		ProgressBar: term.ProgressBar{Current: ended, Total: open + ended + count(queue.Held), StartedAt: f.startedAt,
			CurrentAtStart: f.initialEndedCount,
			TextAfterNumbers: present.JoinNonEmptyTexts(fmt.Sprintf("%d running", f.lastStatus.Workers.Busy),
				present.CountWithLabel(count(queue.Dead), "dead"))},
		RetryingJobCount: count(queue.Failed), IncludesRetryingJob: func(int64) bool { return true }}
}

// WaitingJobID implements cli.FollowedJobs. It returns the next job that will start for the first time. It ignores jobs
// that will be retried, because the progress bar shows when their retry is due.
func (f *runFollower) WaitingJobID(ctx context.Context) string {
	if f.sawNoJobRunning || f.isStopping.Load() {
		return ""
	}
	s, err := f.client.ReadOverviewScreen(ctx, control.OverviewScreenParams{JobsPerSection: 1})
	if err != nil || len(s.Running) > 0 { // the stream of events reports the same failure, so ignore err
		return ""
	}
	for _, list := range [][]control.Job{s.Ready, s.Delayed} {
		for i := range list {
			if list[i].StartedAt == 0 {
				return list[i].ID
			}
		}
	}
	return ""
}

// HandleEvent implements cli.FollowedJobs. If the event says that a job has ended and will not run again, HandleEvent
// prints the job's output.
func (f *runFollower) HandleEvent(ctx context.Context, e *control.Event) (isRelevant bool, err error) {
	f.lastEventSeq, f.hasNewEvents = e.Seq, true
	if e.Kind != string(queue.EventEnded) || e.State != queue.Completed.String() && e.State != queue.Dead.String() {
		return true, nil
	}
	f.jobsUntilStatusCheck--
	// ErrNotFound means that a user has removed the job.
	if err := f.printJobOfEvent(ctx, e); !errors.Is(err, queue.ErrNotFound) {
		return true, err
	}
	return true, nil
}

// printJobOfEvent adds the job of an event to the job log. With --jsonl it prints the job, otherwise the job's
// output.
func (f *runFollower) printJobOfEvent(ctx context.Context, e *control.Event) error {
	var job control.JobDetail
	if f.jobLog != nil || f.JSONL {
		var err error
		if job, err = cli.ShowJob(ctx, f.client, e.JobID); err != nil {
			return err
		}
	}
	if f.jobLog != nil {
		line, _, _ := strings.Cut(e.JobID, "-")
		n, _ := strconv.Atoi(line) // the id of a job in a private run begins with its line number
		f.jobLog.AddJob(n, &job.Job, job.StdoutBytes)
	}
	switch {
	case f.JSONL:
		return f.PrintJSON(&job.Job)
	case f.JSON || f.Quiet || !e.HasOutput:
		return nil
	}
	f.ShowProgress("")
	return f.PrintOutput(ctx, f.client, control.JobOutputParams{ID: control.JobID(e.JobID), Attempt: e.Attempt}, nil)
}

// printSummary prints how many jobs are in each state. endedCount is the number of ended jobs, including those that
// ended in earlier runs.
func (f *runFollower) printSummary(ctx context.Context, endedCount int64) error {
	count := func(s queue.State) int64 { return f.lastStatus.Jobs[s.String()] }
	dead, held := count(queue.Dead), count(queue.Held)
	if dead > 0 || held > 0 {
		f.ExitCode = 1
	}
	took := time.Since(f.startedAt)
	if f.JSON {
		return f.PrintJSON(map[string]any{"jobs": f.lastStatus.Jobs, "ended_now": endedCount - f.initialEndedCount,
			"elapsed_ms": took.Milliseconds()})
	}
	if f.WantsJSON() || f.Quiet {
		return nil
	}
	text := present.JobCountsText(int(endedCount+held), func(state string) int64 { return f.lastStatus.Jobs[state] },
		"completed",
		"dead", "cancelled", "held")
	text += ", in " + present.MillisecondsText(took.Milliseconds())
	if f.initialEndedCount > 0 {
		text += fmt.Sprintf(" (%s ended in earlier runs)", present.JobCountText(int(f.initialEndedCount)))
	}
	f.PrintMessage("%s", text)
	if dead == 0 {
		return nil
	}
	page, err := f.client.ListJobs(ctx, control.JobListParams{States: control.TextList{queue.Dead.String()},
		PageSize: cli.MaxListedFailures})
	if err != nil {
		return err
	}
	for i := range page.Jobs {
		f.PrintJobFailure(&page.Jobs[i])
	}
	list := "queuectl list --failed --dir " + queue.QuoteShellWord(f.ServiceDir)
	again := "to retry the dead jobs, repeat the command with --retry-dead"
	f.PrintMessage("%s%s", again, cmp.Or(cli.UnlistedFailuresText(int(dead), "dead jobs", list), "; list them with: "+
		list))
	return nil
}
