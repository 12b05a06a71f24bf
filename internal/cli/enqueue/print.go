package enqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// WarnIfJobExpired warns that a job will not run if the job's expiry time has passed. If expiryUnreported is false,
// another message already reports this, and WarnIfJobExpired prints nothing.
func WarnIfJobExpired(o *term.Output, s *queue.Spec, expiryUnreported bool) {
	if now := time.Now(); expiryUnreported && present.HasExpired(s.ExpiresAt, now) {
		o.PrintMessage("warning: the job %s; to run it, set a later --expires-at",
			present.ExpiryText(s.ExpiresAt.Time(), now))
	}
}

// PrintEnqueueRemarks prints what the service has reported about a new job, for example limits that it does not
// enforce. expiryUnreported has the same meaning as in WarnIfJobExpired.
func PrintEnqueueRemarks(o *term.Output, cmd *cobra.Command, s *queue.Spec, result *control.EnqueueResult,
	expiryUnreported bool) {
	WarnUnenforcedLimits(o, result.UnenforcedLimits)
	PrintNewQueues(o, result.CreatedQueues)
	if result.AlreadyExisted && s.Unique != nil {
		o.PrintMessage("no job was enqueued, because job %s already has the unique key %s", result.JobID, *s.Unique)
	}
	WarnIfJobExpired(o, s, expiryUnreported)
	if result.State != "" { // a dependency has already ended without the required result
		o.PrintMessage("job %s was %s immediately: a job it depends on ended, but not with the required result; details: "+
			"queuectl why %s", result.JobID, result.State, result.JobID)
	}
	PrintServiceNotes(o, cmd, result.Notes)
}

// maxListedJobsNotEnqueued is the highest number of jobs that PrintJobsNotEnqueued names.
const maxListedJobsNotEnqueued = 10

// PrintJobsNotEnqueued prints which jobs were not enqueued because another job has the same unique key. inputPositions
// contains the positions of these jobs in the input. inputUnitName is the unit of the positions, such as "line".
// totalJobCount is the number of all jobs.
func PrintJobsNotEnqueued(o *term.Output, inputUnitName string, inputPositions []int, totalJobCount int) {
	if len(inputPositions) == 0 {
		return
	}
	slices.Sort(inputPositions)
	text := ""
	for _, at := range inputPositions[:min(len(inputPositions), maxListedJobsNotEnqueued)] {
		text += ", " + strconv.Itoa(at)
	}
	if len(inputPositions) > maxListedJobsNotEnqueued {
		text += termtext.TextForLocale(", …")
	}
	o.PrintMessage("%d of %s not enqueued (%s%s), because another job has the same unique key", len(inputPositions),
		present.JobCountText(totalJobCount), inputUnitName, text[1:])
}

// PrintNewQueues warns about queues that contain no unfinished jobs except the new jobs. The user may have mistyped the
// name of such a queue.
func PrintNewQueues(o *term.Output, newQueues []control.CreatedQueue) {
	for _, q := range newQueues {
		hint := ""
		if q.SimilarQueue != "" {
			hint = fmt.Sprintf("; did you mean %s?", q.SimilarQueue)
		}
		o.PrintMessage("queue %s is new (no other waiting or running jobs)%s", q.Queue, hint)
	}
}

// PrintServiceNotes prints the notes of the service about new jobs.
func PrintServiceNotes(o *term.Output, cmd *cobra.Command, notes []string) {
	if o.Quiet || o.WantsJSON() {
		return
	}
	for _, note := range notes {
		if field, text, found := strings.Cut(note, ": "); found && input.FlagsByField(cmd)[field] != "" {
			note = input.FlagsByField(cmd)[field] + ": " + text
		}
		o.PrintMessage("%s", note)
	}
}

// WarnUnenforcedLimits prints a warning about limits of jobs that the machine of the service does not enforce.
func WarnUnenforcedLimits(o *term.Output, limitNames []string) {
	if len(limitNames) == 0 {
		return
	}
	var sentences []string
	if slices.Contains(limitNames, "memory") {
		sentences = append(sentences, "the memory limit applies to each process of a job separately")
	}
	none := slices.DeleteFunc(slices.Clone(limitNames), func(name string) bool { return name == "memory" })
	switch len(none) {
	case 0:
	case 1:
		sentences = append(sentences, "the limit "+none[0]+" is not enforced")
	default:
		sentences = append(sentences, "the limits "+strings.Join(none, " and ")+" are not enforced")
	}
	o.PrintMessage("warning: %s on this machine; see: queuectl doctor", strings.Join(sentences, ", and "))
}

// maxListedExpiredJobs is the highest number of expired jobs that messages name.
const maxListedExpiredJobs = 10

// ExpiredJobs collects the jobs of a list whose expiry time has passed.
type ExpiredJobs struct {
	// sharedExpiresAt is the expires_at that flags set for all jobs, and that a message has already reported. 0 means that
	// no flag sets this time.
	sharedExpiresAt     queue.UnixMillis
	expiryMessages      []string // messages about expired jobs, at most maxListedExpiredJobs
	otherExpiryJobCount int      // number of expired jobs with an expiry time other than sharedExpiresAt
	UnrunnableJobCount  int      // number of jobs that will not run, including those with sharedExpiresAt
}

// AddIfExpired records a job if its expiry time has passed. inputPosition is the position of the job in the input.
// inputUnitName is the unit of the position, such as "line" or "entry".
func (e *ExpiredJobs) AddIfExpired(inputUnitName string, inputPosition int, expiresAt *queue.UnixMillis) {
	now := time.Now()
	if !present.HasExpired(expiresAt, now) {
		return
	}
	if e.UnrunnableJobCount++; *expiresAt == e.sharedExpiresAt {
		return
	}
	if e.otherExpiryJobCount++; e.otherExpiryJobCount <= maxListedExpiredJobs {
		text, _ := present.FullTimeText(expiresAt.Time(), now)
		e.expiryMessages = append(e.expiryMessages,
			fmt.Sprintf("%s %d: this job will not run, because its expiry time is %s; to run "+
				"it, add it again with a later expires_at", inputUnitName, inputPosition, text))
	}
}

// PrintExpiredJobs prints warnings about the expired jobs that e has recorded.
func PrintExpiredJobs(o *term.Output, e *ExpiredJobs) {
	for _, line := range e.expiryMessages {
		o.PrintMessage("warning: %s", line)
	}
	if more := e.otherExpiryJobCount - len(e.expiryMessages); more > 0 {
		o.PrintMessage("warning: %d more jobs will not run, because their expiry time has passed", more)
	}
}

// PrintEnqueuedJobs prints new jobs in the order of the request: their ids, or the jobs as JSON.
func PrintEnqueuedJobs(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	if !o.WantsJSON() {
		_, err := io.WriteString(o.Stdout, strings.Join(append(ids[:len(ids):len(ids)], ""), "\n"))
		return err
	}
	if err := PrintJobsAsJSON(ctx, o, c, ids); err != nil {
		return enqueuedNotPrintedError{err}
	}
	return nil
}

// enqueuedNotPrintedError says that jobs are enqueued but could not be printed. Its text omits the advice that the
// cause contains: the advice might be to repeat the command, which would enqueue the jobs again.
type enqueuedNotPrintedError struct{ cause error }

func (e enqueuedNotPrintedError) Error() string {
	cause, _, _ := strings.Cut(e.cause.Error(), "; ")
	return "the jobs are enqueued, but cannot be shown: " + cause +
		"; do not repeat the command, but use: queuectl list"
}

func (e enqueuedNotPrintedError) Unwrap() error { return e.cause }

// PrintJobsAsJSON prints jobs as JSON: as one array, or one per line. It reads one page at a time, so its
// memory use is bounded. It omits jobs that were removed.
func PrintJobsAsJSON(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	out := bufio.NewWriter(o.Writer())
	list := term.NewJSONListPrinter(out, o.JSONL)
	for page := range slices.Chunk(ids, control.MaxJobsPerSelection) {
		jobs, err := fetchJobsByID(ctx, c, page)
		if err != nil {
			return err
		}
		for i := range jobs {
			if err := list.Add(&jobs[i]); err != nil {
				return err
			}
		}
	}
	list.End() // ignore the error, because Flush below returns it
	return out.Flush()
}

// fetchJobsByID returns the jobs with the given ids, in the same order. It omits jobs that were removed. The caller may
// pass at most control.MaxJobsPerSelection ids.
//
// It first reads one page of the list of jobs, because jobs that were enqueued together are usually next to each other
// in the list. It reads the jobs that are not on this page one by one.
func fetchJobsByID(ctx context.Context, c *control.Client, ids []string) ([]control.Job, error) {
	known := map[string]control.Job{}
	last, err := c.ShowJob(ctx, control.JobShowParams{ID: control.JobID(ids[len(ids)-1])})
	switch {
	case err == nil:
		page, err := c.ListJobs(ctx, control.JobListParams{Cursor: strconv.FormatInt(last.Seq+1, 10), PageSize: len(ids)})
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			known[page.Jobs[i].ID] = page.Jobs[i]
		}
	case !errors.Is(err, queue.ErrNotFound):
		return nil, err
	}
	var jobs []control.Job
	for _, id := range ids {
		job, ok := known[id]
		if !ok {
			one, err := c.ShowJob(ctx, control.JobShowParams{ID: control.JobID(id)})
			if errors.Is(err, queue.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			job = one.Job
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}
