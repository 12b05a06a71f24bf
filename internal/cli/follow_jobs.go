package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// This file follows a set of jobs until all of them have ended, for "queuectl wait" and "queuectl run --private". A
// Follower receives the events of the queue and draws the progress. If there is no progress for some time, it prints
// what a job waits for. An implementation of FollowedJobs knows which jobs belong to the set, what to print about each
// job, and when all of them have ended. See docs/decisions/0109.

// FollowedJobs is a set of jobs that a Follower follows.
type FollowedJobs interface {
	// HandleEvent processes an event. isRelevant reports whether the event is about a job of the set that had not ended
	// before.
	HandleEvent(ctx context.Context, e *control.Event) (isRelevant bool, err error)
	// IsDone reports whether the Follower must stop. The Follower calls it with slowCheckAllowed true at the start, every
	// ProgressInterval, and when Follower.CheckDoneNow is closed. These calls may be slow. After each event, it calls
	// IsDone with slowCheckAllowed false.
	IsDone(ctx context.Context, slowCheckAllowed bool) (bool, error)
	// WaitingJobID returns the id of a waiting job. The Follower prints why that job waits. WaitingJobID
	// returns "" if the Follower must print nothing: a job runs, no job waits, or the user already knows the
	// reason.
	WaitingJobID(ctx context.Context) string
	// Progress returns the progress to draw, or nil to draw nothing.
	Progress() *JobsProgress
}

// JobsProgress describes how much of a set of jobs has ended.
type JobsProgress struct {
	term.ProgressBar
	RetryingJobCount int64 // number of failed jobs that will be retried
	// reports whether the set contains a job, given a failed job's sequence number
	IncludesRetryingJob func(seq int64) bool
}

// Follower follows a set of jobs.
type Follower struct {
	App          *App
	Client       *control.Client
	CheckDoneNow <-chan struct{} // closing this channel makes the Follower call IsDone immediately

	firstRetryAt   control.Time // time of the next retry, as of the last query; 0 if unknown or if no job will be retried
	retryQueriedAt time.Time    // time of the last query of firstRetryAt
	// time of the last event about the set, or of the call of Follow if no such event has arrived
	lastProgressAt    time.Time
	waitReasonPrinted bool // the reason for the wait was already printed since lastProgressAt
}

// ProgressInterval is how often the progress is drawn.
const ProgressInterval = 100 * time.Millisecond

// Follow processes all events with a number higher than afterEventSeq. It returns when FollowedJobs.IsDone returns
// true, on an error, or when the connection is lost.
func (f *Follower) Follow(ctx context.Context, jobs FollowedJobs, afterEventSeq int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, lost := openEventChannel(ctx, f.Client, control.EventsParams{AfterSeq: &afterEventSeq})
	tick := time.NewTicker(ProgressInterval)
	defer tick.Stop()
	wake := f.CheckDoneNow
	f.lastProgressAt = time.Now()
	for isDue := true; ; {
		if done, err := jobs.IsDone(ctx, isDue); done || err != nil {
			return err
		}
		if isDue {
			f.showProgress(ctx, jobs)
		}
		isDue = false
		select {
		case e := <-events:
			isOurs, err := jobs.HandleEvent(ctx, &e)
			if err != nil {
				return err
			}
			if isOurs {
				f.lastProgressAt, f.waitReasonPrinted = time.Now(), false
			}
		case <-tick.C:
			isDue = true
		case <-wake:
			wake, isDue = nil, true
		case err := <-lost:
			return err
		}
	}
}

// showProgress draws the progress on a terminal. If there was no progress for waitReasonDelay, it first prints why a
// job waits, but only once until the next progress.
func (f *Follower) showProgress(ctx context.Context, jobs FollowedJobs) {
	if !f.waitReasonPrinted && time.Since(f.lastProgressAt) >= waitReasonDelay {
		f.waitReasonPrinted = true
		if id := jobs.WaitingJobID(ctx); id != "" {
			f.App.printWaitReason(ctx, f.Client, id)
		}
	}
	if !term.IsTerminal(f.App.Stderr) {
		return
	}
	if p := jobs.Progress(); p != nil {
		p.TextAfterNumbers = present.JoinNonEmptyTexts(p.TextAfterNumbers,
			f.describeRetries(ctx, p.RetryingJobCount, p.IncludesRetryingJob))
		p.MinTimeLeft = f.timeUntilFirstRetry()
		f.App.DrawProgressBar(p.ProgressBar)
	}
}

// retryPollInterval is how often the client requests the times of retries from the service.
const retryPollInterval = time.Second

// describeRetries returns how many failed jobs will be retried and when, like "2 retrying in 8s". retryingJobCount is
// the number of these jobs; if it is 0, describeRetries returns "". To find the time of the first retry,
// describeRetries considers only the failed jobs for which includesJob returns true.
func (f *Follower) describeRetries(ctx context.Context, retryingJobCount int64,
	includesJob func(seq int64) bool) string {
	if retryingJobCount == 0 {
		return ""
	}
	if time.Since(f.retryQueriedAt) > retryPollInterval {
		f.retryQueriedAt, f.firstRetryAt = time.Now(), 0
		page, err := f.Client.ListJobs(ctx, control.JobListParams{States: control.TextList{queue.Failed.String()}})
		if err != nil || page.NextCursor != nil {
			// Ignore the error, because the stream of events reports it. If the list has several pages, the time of the first
			// retry stays unknown.
			page.Jobs = nil
		}
		for _, j := range page.Jobs {
			if includesJob(j.Seq) && (f.firstRetryAt == 0 || j.NextRetryAt < f.firstRetryAt) {
				f.firstRetryAt = j.NextRetryAt
			}
		}
	}
	note := fmt.Sprintf("%d retrying", retryingJobCount)
	if in := f.timeUntilFirstRetry(); in > 0 {
		note += " in " + present.RoughDurationText(in)
	}
	return note
}

// timeUntilFirstRetry returns the time until the first retry, or 0 if the time of this retry is unknown.
func (f *Follower) timeUntilFirstRetry() time.Duration {
	return max(0, time.Until(queue.UnixMillis(f.firstRetryAt).Time()))
}

// JobLog is a file with one line for each ended job, in the format of GNU parallel.
type JobLog struct {
	file *os.File
	err  error // first error of a write to file
}

// OpenJobLog opens a log for writing. If appendToExisting is true, it appends to an existing log. The name - means
// standard output. The file stays open until the process ends.
func OpenJobLog(name string, stdout *os.File, appendToExisting bool) (*JobLog, error) {
	l := &JobLog{file: stdout}
	if name != "-" {
		how := os.O_TRUNC
		if appendToExisting {
			how = os.O_APPEND
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|how, 0o666)
		if err != nil {
			return nil, fault.Usagef("--joblog: cannot %v; choose a file that you can write to", err)
		}
		l.file = f
		if info, err := f.Stat(); err != nil || info.Size() > 0 {
			return l, err
		}
	}
	_, l.err = l.file.WriteString("Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n")
	return l, l.err
}

// AddJob writes the line of a job. inputPosition is the position of the job in the input, from 1. stdoutBytes is the
// number of bytes that the job has written to standard output; GNU parallel does not count standard error.
func (l *JobLog) AddJob(inputPosition int, j *control.Job, stdoutBytes int64) {
	if l.err != nil {
		return
	}
	code, sig := queue.ValueOr(j.ExitCode, 0), queue.ValueOr(j.Signal, 0)
	if j.State != queue.Completed.String() && code == 0 && sig == 0 {
		code = int64(jobExitCode(j))
	}
	start, took := float64(j.StartedAt)/1000, 0.0
	if j.StartedAt != 0 {
		took = max(0, float64(j.FinishedAt-j.StartedAt)/1000)
	}
	// Write the command as the last column, so that tabs and spaces in the command cannot be mistaken for separators of
	// columns.
	command := strings.ReplaceAll(present.JobTitle(j), "\n", " ")
	_, l.err = fmt.Fprintf(l.file, "%d\t:\t%.3f\t%10.3f\t0\t%d\t%d\t%d\t%s\n", inputPosition, start, took, stdoutBytes,
		code, sig, command)
}

// FirstWriteError returns the first error of a write to the log. On a nil JobLog it returns nil.
func (l *JobLog) FirstWriteError() error {
	if l == nil {
		return nil
	}
	return l.err
}
