package present

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// WaitExplanationLines explains why a job does not run. Each line contains one reason, and what the user can do about
// it.
func WaitExplanationLines(w *control.WaitingExplanation, now time.Time) (lines []string) {
	switch state := ParseStateOrZero(w.State); {
	case len(w.Reasons) > 0:
	case state == queue.Processing:
		return []string{fmt.Sprintf("job %s is running", w.ID)}
	case state.HasEnded():
		return []string{fmt.Sprintf("job %s is %s; run it again with: queuectl retry %s", w.ID, w.State, w.ID)}
	case jobsAheadText(w) == "":
		return []string{fmt.Sprintf("job %s is next in line: it starts when a worker is free", w.ID)}
	default:
		return []string{fmt.Sprintf("job %s is waiting for a free worker: %s", w.ID, jobsAheadText(w))}
	}
	for i := range w.Reasons {
		lines = append(lines, WaitReasonLine(&w.Reasons[i], now))
	}
	if text := jobsAheadText(w); text != "" {
		lines = append(lines, text)
	}
	return lines
}

// WaitReasonLine formats a reason why a job waits. It adds what the user can do about the reason and, if known, when
// the reason ends.
func WaitReasonLine(r *control.WaitReason, now time.Time) string {
	text := r.Text
	if at := queue.UnixMillis(r.EndsAt).Time(); r.EndsAt != 0 {
		text += fmt.Sprintf(" (until %s, in %s)", clockTimeWithZone(at, now), RoughDurationText(at.Sub(now)))
	}
	if r.Kind == "retry" || r.Kind == "time" {
		return text + "; to run it now: " + r.Advice
	}
	return text + "; next step: " + r.Advice
}

// jobsAheadText says how many jobs start before this one, and which users own those jobs. It returns "" if no job
// starts before this one.
func jobsAheadText(w *control.WaitingExplanation) string {
	n := queue.ValueOr(w.JobsAhead, w.MinJobsAhead)
	if n == 0 {
		return ""
	}
	text := Plural(n, "job") + " ahead in line"
	if w.JobsAhead == nil {
		text = "at least " + text
	}
	parts := make([]string, 0, len(w.JobsAheadByUser))
	for _, a := range w.JobsAheadByUser {
		parts = append(parts, a.Text)
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}
