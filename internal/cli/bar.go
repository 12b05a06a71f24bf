package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Bar describes the progress of a long operation.
type Bar struct {
	Done, Of int64
	from     int64 // value of Done at the time Since; the estimate of the time left ignores that part
	Since    time.Time
	Note     string
	Bytes    bool
	AtLeast  time.Duration // lower bound of the time left
}

// Draw shows the bar on a terminal, instead of the previous progress text.
func (o *Output) Draw(b Bar) {
	if !IsTerminal(o.Err) || o.Quiet {
		return
	}
	of := max(b.Of, b.Done, 1)
	text := fmt.Sprintf("%3d%% %d/%d", b.Done*100/of, b.Done, of)
	if b.Bytes {
		text = fmt.Sprintf("%3d%% %s/%s", b.Done*100/of, size(b.Done), size(of))
	}
	if b.Note != "" {
		text += ", " + b.Note
	}
	if took := time.Since(b.Since); b.Done > b.from && b.Done < of && took > time.Second {
		left := time.Duration(float64(took) * float64(of-b.Done) / float64(b.Done-b.from))
		text += ", " + queue.FormatDuration(max(left, b.AtLeast).Round(time.Second)) + " left"
	}
	width := columnCount(o.Err) - 1 // the bar is one column shorter than the line, because a full line would wrap
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.Done / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	o.Progress("%s", Cut(text, width))
}

// maxFailures is how many failed jobs a progress display names while it runs.
const maxFailures = 100

// sayFailure prints that a job did not complete, and why.
func (a *App) sayFailure(j *control.Job) {
	fmt.Fprintf(a.Err, "queuectl: %s: %s\n", oneLine(a.Clean(a.Err, failureText(j))), Cut(oneLine(a.Clean(a.Err, Title(j))), 60))
}

// sayEnd prints how a job ended. If the job did not complete, it prints even if standard error is
// not a terminal, and adds the next step. The parameter others is the number of further failed jobs
// that no line names.
func (a *App) sayEnd(j *control.Job, others int) {
	switch {
	case j.State == queue.Completed.String():
		a.Say("job %s is completed", j.ID)
		return
	case a.Quiet:
		return
	}
	text := oneLine(a.Clean(a.Err, failureText(j)))
	if j.State != "removed" {
		text += "; details: queuectl show " + j.ID
	}
	if others > 0 {
		text += fmt.Sprintf("; %d more failed", others)
	}
	fmt.Fprintf(a.Err, "queuectl: %s\n", text)
}

// moreFailures returns how to list the failures that were not named, or "" if all were.
func moreFailures(bad int, list string) string {
	if more := bad - maxFailures; more > 0 {
		return fmt.Sprintf("; %d more failed jobs are not shown; list them all with: %s", more, list)
	}
	return ""
}

// countsText describes how many jobs are in each of these states. It omits states without jobs.
func countsText(all int, count func(state string) int64, states ...string) string {
	var parts []string
	for _, state := range states {
		if n := count(state); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(parts) == 0 {
		return Jobs(all)
	}
	return Jobs(all) + ": " + strings.Join(parts, ", ")
}

// stallNotice prints why no job makes progress. Its zero value is ready for use; the time without
// progress begins at the first call of print.
type stallNotice struct {
	since   time.Time
	printed bool // the reason has been printed since there was progress
}

// reset records that there was progress.
func (s *stallNotice) reset() { *s = stallNotice{since: time.Now()} }

// print prints why a job waits if there was no progress for sayWhyAfter. It prints that only once.
// The function waiting returns the id of a job that waits, or "" if a job runs or none waits.
func (s *stallNotice) print(ctx context.Context, a *App, c *control.Client, waiting func() string) {
	if s.since.IsZero() {
		s.reset()
	}
	if s.printed || time.Since(s.since) < sayWhyAfter {
		return
	}
	s.printed = true
	if id := waiting(); id != "" {
		a.sayWhy(ctx, c, id)
	}
}

// retryPollEvery is how often the times of retries are queried.
const retryPollEvery = time.Second

// retries tracks when the first failed job is retried.
type retries struct {
	due      control.Time // time of the first retry, as of the last query; 0 if no job will be retried
	polledAt time.Time
}

// describe returns how many failed jobs will be retried and when, like "2 retrying in 8s". It
// returns "" if n is 0. include selects the jobs to consider.
func (r *retries) describe(ctx context.Context, c *control.Client, n int64, include func(seq int64) bool) string {
	if n == 0 {
		return ""
	}
	if time.Since(r.polledAt) > retryPollEvery {
		r.polledAt, r.due = time.Now(), 0
		page, err := c.List(ctx, control.List{State: control.Texts{queue.Failed.String()}})
		if err != nil || page.Next != nil {
			// The stream of events reports an error, so it is ignored here. If the list has more than one
			// page, it is unknown which retry is first.
			page.Jobs = nil
		}
		for i := range page.Jobs {
			if j := &page.Jobs[i]; include(j.Seq) && (r.due == 0 || j.NextRetryAt < r.due) {
				r.due = j.NextRetryAt
			}
		}
	}
	note := fmt.Sprintf("%d retrying", n)
	if in := time.Until(queue.Millis(r.due).Time()); r.due != 0 && in > 0 {
		note += " in " + Roughly(in)
	}
	return note
}

// wait returns the time until the first retry, or 0 if it is unknown.
func (r *retries) wait() time.Duration {
	if r.due == 0 {
		return 0
	}
	return max(0, time.Until(queue.Millis(r.due).Time()))
}

// notes joins the texts of a bar. It omits empty ones.
func notes(all ...string) string {
	var list []string
	for _, n := range all {
		if n != "" {
			list = append(list, n)
		}
	}
	return strings.Join(list, ", ")
}

// nOf returns a text like "3 dead", or "" if n is 0.
func nOf(n int64, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}
