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

// WarnExpired warns that a job will not run, if its expiry time has passed. If isUnreported is false, another
// message already says so, and WarnExpired prints nothing.
func WarnExpired(o *term.Output, s *queue.Spec, isUnreported bool) {
	if now := time.Now(); isUnreported && present.HasExpired(s.ExpiresAt, now) {
		o.Say("warning: the job %s; to run it, set a later --expires-at", present.ExpiryText(s.ExpiresAt.Time(), now))
	}
}

// PrintRemarks prints what the service has reported about a new job, for example limits that it does not
// enforce. isUnreported has the same meaning as in WarnExpired.
func PrintRemarks(o *term.Output, cmd *cobra.Command, s *queue.Spec, result *control.EnqueueResult, isUnreported bool) {
	WarnUnenforced(o, result.UnenforcedLimits)
	PrintNewQueues(o, result.NewQueues)
	if result.Duplicate && s.Unique != nil {
		o.Say("no job was enqueued, because job %s already has the unique key %s", result.ID, *s.Unique)
	}
	WarnExpired(o, s, isUnreported)
	if result.State != "" { // a dependency has already ended without the required result
		o.Say("job %s was %s immediately: a job it depends on ended, but not with the required result; details: queuectl "+
			"why %s", result.ID, result.State, result.ID)
	}
	PrintNotes(o, cmd, result.Notes)
}

// maxNotEnqueuedListed is the highest number of jobs that PrintNotEnqueued names.
const maxNotEnqueuedListed = 10

// PrintNotEnqueued prints which jobs were not enqueued because another job has the same unique key. positions
// contains the line numbers or indexes of these jobs, and inputUnit says which of the two, such as "line".
// jobCount is the number of all jobs.
func PrintNotEnqueued(o *term.Output, inputUnit string, positions []int, jobCount int) {
	if len(positions) == 0 {
		return
	}
	slices.Sort(positions)
	text := ""
	for _, at := range positions[:min(len(positions), maxNotEnqueuedListed)] {
		text += ", " + strconv.Itoa(at)
	}
	if len(positions) > maxNotEnqueuedListed {
		text += termtext.LocaleText(", …")
	}
	o.Say("%d of %s not enqueued (%s%s), because another job has the same unique key", len(positions),
		present.JobsText(jobCount), inputUnit, text[1:])
}

// PrintNewQueues warns about queues in which only the new jobs wait or run. The user may have mistyped the
// name of such a queue.
func PrintNewQueues(o *term.Output, newQueues []control.NewQueue) {
	for _, q := range newQueues {
		hint := ""
		if q.SimilarQueue != "" {
			hint = fmt.Sprintf("; did you mean %s?", q.SimilarQueue)
		}
		o.Say("queue %s is new (no other waiting or running jobs)%s", q.Queue, hint)
	}
}

// PrintNotes prints the notes of the service about new jobs.
func PrintNotes(o *term.Output, cmd *cobra.Command, notes []string) {
	if o.Quiet || o.Structured() {
		return
	}
	for _, note := range notes {
		if field, text, found := strings.Cut(note, ": "); found && input.FlagsByField(cmd)[field] != "" {
			note = input.FlagsByField(cmd)[field] + ": " + text
		}
		o.Say("%s", note)
	}
}

// WarnUnenforced prints a warning about limits of jobs that the machine of the service does not enforce.
func WarnUnenforced(o *term.Output, limitNames []string) {
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
	o.Say("warning: %s on this machine; see: queuectl doctor", strings.Join(sentences, ", and "))
}

// maxNamedExpired is the highest number of expired jobs that messages name.
const maxNamedExpired = 10

// ExpiredJobs collects the jobs of a list whose expiry time has passed.
type ExpiredJobs struct {
	// sharedExpiry is the expires_at that flags set for all jobs, and that a message has already reported. 0
	// means that no flag sets it.
	sharedExpiry     queue.Millis
	messages         []string // messages about expired jobs, at most maxNamedExpired
	otherExpiryCount int      // number of expired jobs with another expiry time
	NotRunCount      int      // number of jobs that will not run, including those with sharedExpiry
}

// Add records a job if it has expired. position is its line in a list, or its index in a JSON array. inputUnit says
// which of the two: "line" or "entry".
func (e *ExpiredJobs) Add(inputUnit string, position int, expiresAt *queue.Millis) {
	now := time.Now()
	if !present.HasExpired(expiresAt, now) {
		return
	}
	if e.NotRunCount++; *expiresAt == e.sharedExpiry {
		return
	}
	if e.otherExpiryCount++; e.otherExpiryCount <= maxNamedExpired {
		text, _ := present.FullTime(expiresAt.Time(), now)
		e.messages = append(e.messages, fmt.Sprintf("%s %d: this job will not run, because its expiry time is %s; to run "+
			"it, add it again with a later expires_at", inputUnit, position, text))
	}
}

// PrintExpired prints the jobs that will not run.
func PrintExpired(o *term.Output, e *ExpiredJobs) {
	for _, line := range e.messages {
		o.Say("warning: %s", line)
	}
	if more := e.otherExpiryCount - len(e.messages); more > 0 {
		o.Say("warning: %d more jobs will not run, because their expiry time has passed", more)
	}
}

// PrintEnqueued prints new jobs in the order of the request: their ids, or the jobs as JSON.
func PrintEnqueued(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	if !o.Structured() {
		_, err := io.WriteString(o.Stdout, strings.Join(append(ids[:len(ids):len(ids)], ""), "\n"))
		return err
	}
	if err := PrintJobs(ctx, o, c, ids); err != nil {
		return notPrintedError{err}
	}
	return nil
}

// notPrintedError says that jobs are enqueued but could not be printed. Its text omits the advice of the
// cause. That advice might be to repeat the command, which would enqueue the jobs again.
type notPrintedError struct{ cause error }

func (e notPrintedError) Error() string {
	cause, _, _ := strings.Cut(e.cause.Error(), "; ")
	return "the jobs are enqueued, but cannot be shown: " + cause +
		"; do not repeat the command, but use: queuectl list"
}

func (e notPrintedError) Unwrap() error { return e.cause }

// PrintJobs prints jobs as JSON: as one array, or one per line. It reads one page at a time, so its
// memory use is bounded. It omits jobs that were removed.
func PrintJobs(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	out := bufio.NewWriter(o.Writer())
	list := term.NewJSONList(out, o.JSONL)
	for page := range slices.Chunk(ids, control.MaxSelectedPerRequest) {
		jobs, err := jobsByID(ctx, c, page)
		if err != nil {
			return err
		}
		for i := range jobs {
			if err := list.Add(&jobs[i]); err != nil {
				return err
			}
		}
	}
	list.End() // Flush returns the error of this write
	return out.Flush()
}

// jobsByID returns the jobs with these ids, in this order, without those that were removed. The caller may
// pass at most control.MaxSelectedPerRequest ids.
//
// It first reads one page of the list of jobs, because jobs that were enqueued together are usually next to
// each other in that list. It reads the remaining jobs one by one.
func jobsByID(ctx context.Context, c *control.Client, ids []string) ([]control.Job, error) {
	known := map[string]control.Job{}
	last, err := c.Show(ctx, control.Show{ID: control.JobID(ids[len(ids)-1])})
	switch {
	case err == nil:
		page, err := c.List(ctx, control.List{Cursor: strconv.FormatInt(last.Seq+1, 10), Limit: len(ids)})
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
			one, err := c.Show(ctx, control.Show{ID: control.JobID(id)})
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
