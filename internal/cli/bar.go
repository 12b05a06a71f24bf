package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Bar is how far something long has come.
type Bar struct {
	Done, Of int64
	from     int64 // what was done before it began
	Since    time.Time
	Note     string
	Bytes    bool
	AtLeast  time.Duration // that it will take still
}

// Draw shows it on a terminal, in place of what was shown before.
func (a *App) Draw(b Bar) {
	if !IsTerminal(a.Err) || a.Quiet {
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
	width := a.width(a.Err) - 1 // a full line would wrap
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.Done / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	a.Progress("%s", cut(text, width))
}

// maxFailures is how many failures are named.
const maxFailures = 100

// sayFailure names a job that did not complete, and why.
func (a *App) sayFailure(j *control.Job) {
	fmt.Fprintf(a.Err, "queuectl: %s: %s\n", oneLine(a.Clean(a.Err, failureText(j))), cut(oneLine(a.Clean(a.Err, title(j))), 60))
}

// sayEnd prints how a job ended. If the job did not complete, it prints that also to a script, with the next step.
// others is how many other jobs failed that no line names.
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

// moreFailures returns how to list the failures that were not named, "" if all were.
func moreFailures(bad int, list string) string {
	if more := bad - maxFailures; more > 0 {
		return fmt.Sprintf("; %d more failed jobs are not shown; list them all with: %s", more, list)
	}
	return ""
}

// howMany is how many jobs ended in each of these states, in words; those that are none are left
// out.
func howMany(all int, by func(state string) int64, states ...string) string {
	var parts []string
	for _, state := range states {
		if n := by(state); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(parts) == 0 {
		return Jobs(all)
	}
	return Jobs(all) + ": " + strings.Join(parts, ", ")
}

// standstill notices that nothing moves. Its zero value begins now.
type standstill struct {
	since time.Time
	told  bool // why, since it last moved
}

// moved notes that something has happened.
func (s *standstill) moved() { *s = standstill{since: time.Now()} }

// tell says once, after a second of it, for what a job waits: in the words of run. waiting names the
// job, "" if one runs or none waits.
func (s *standstill) tell(ctx context.Context, a *App, c *control.Client, waiting func() string) {
	if s.since.IsZero() {
		s.moved()
	}
	if s.told || time.Since(s.since) < sayWhyAfter {
		return
	}
	s.told = true
	if id := waiting(); id != "" {
		a.sayWhy(ctx, c, id)
	}
}

// retryAskEvery is how often it is asked when failed jobs are run again.
const retryAskEvery = time.Second

// retries says when the first of the failed jobs is run again.
type retries struct {
	due     control.Time // as was asked last; 0 if none is
	askedAt time.Time
}

// note is how many failed jobs are run again, and in how long, like "2 retrying in 8s"; "" if there are
// none. Only those of ours count.
func (r *retries) note(ctx context.Context, c *control.Client, n int64, ours func(seq int64) bool) string {
	if n == 0 {
		return ""
	}
	if time.Since(r.askedAt) > retryAskEvery {
		r.askedAt, r.due = time.Now(), 0
		page, err := c.List(ctx, control.List{State: control.Texts{queue.Failed.String()}})
		if err != nil || page.Next != nil {
			page.Jobs = nil // the stream of events says so; the first of more than a page is not known
		}
		for i := range page.Jobs {
			if j := &page.Jobs[i]; ours(j.Seq) && (r.due == 0 || j.NextRetryAt < r.due) {
				r.due = j.NextRetryAt
			}
		}
	}
	note := fmt.Sprintf("%d retrying", n)
	if in := time.Until(queue.Millis(r.due).Time()); r.due != 0 && in > 0 {
		note += " in " + roughly(in)
	}
	return note
}

// wait is how long it is until the first of them, 0 if that is not known.
func (r *retries) wait() time.Duration {
	if r.due == 0 {
		return 0
	}
	return max(0, time.Until(queue.Millis(r.due).Time()))
}

// notes are what a bar says beside its figures; empty ones are left out.
func notes(all ...string) string {
	var list []string
	for _, n := range all {
		if n != "" {
			list = append(list, n)
		}
	}
	return strings.Join(list, ", ")
}

// nOf is "3 dead", or "" for none.
func nOf(n int64, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}
