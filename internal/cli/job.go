package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func jobRow(j *control.Job) []string {
	return []string{j.ID, stateText(j), j.Queue, j.Node, whenOf(j, time.Now()), cmp.Or(ranFor(j.RunTimeMS), "-"), orDash(j.ExitCode), Title(j)}
}

// whenOf describes the relevant time of a job: how long it has been running, when it starts, or how
// long ago it ended.
func whenOf(j *control.Job, now time.Time) string {
	state := stateOf(j.State)
	switch due := queue.Millis(max(j.RunAt, j.NextRetryAt)).Time(); {
	case j.PausedAt != 0:
		return "for " + pausedText(j, now)
	case state == queue.Processing:
		return "for " + ageOf(j.StartedAt, now)
	case state.Ended():
		return agoOf(j.FinishedAt, now)
	case state.Runnable() && due.After(now):
		return "in " + Roughly(due.Sub(now))
	case state.Runnable():
		return cmp.Or(waitsForText(j), "ready")
	}
	return cmp.Or(waitsForText(j), "-")
}

// waitsForText returns why a job that is due does not run, in a few words. It returns "" if the job
// only waits for a free worker, or waits for nothing.
func waitsForText(j *control.Job) string {
	r := orDefault(j.WaitsFor, control.Reason{})
	if len(j.DependsOn) > 0 && r.Kind != "held" {
		return afterText(j)
	}
	full := orDefault(r.Most, 0) > 0
	switch r.Kind {
	case "", "time", "retry":
		return ""
	case "held", "paused", "draining":
		return r.Kind
	case "workers":
		switch {
		case full:
			return ""
		case r.Most == nil:
			return "no service"
		}
		return "no workers"
	case "queue":
		if full {
			return "queue limit"
		}
		return "queue paused"
	case "user":
		if full {
			return "user limit"
		}
		return "no account"
	}
	return r.Kind + " " + r.Key
}

// afterText names the first of a job's dependencies, and how many others it has.
func afterText(j *control.Job) string {
	id, _, _ := strings.Cut(j.DependsOn[0], ":")
	if n := len(j.DependsOn) - 1; n > 0 {
		return fmt.Sprintf("after %s and %d more", id, n)
	}
	return "after " + id
}

// arranged sorts jobs for a table: running jobs, waiting jobs in the order of their start, held and
// blocked jobs, dead jobs, and other ended jobs. Ended jobs are sorted by their end, the latest
// first.
func arranged(jobs []control.Job, now time.Time) {
	place := func(j *control.Job) (group int, at int64) {
		due := max(j.RunAt, j.NextRetryAt)
		switch state := stateOf(j.State); {
		case state == queue.Processing:
			return 0, j.Seq
		case state.Runnable() && queue.Millis(due).Time().After(now):
			return 2, int64(due)
		case state.Runnable():
			return 1, -j.EffectivePriority
		case state == queue.Dead:
			return 4, -int64(j.FinishedAt)
		case state.Ended():
			return 5, -int64(j.FinishedAt)
		}
		return 3, j.Seq
	}
	sortList(jobs, func(a, b *control.Job) int {
		groupA, atA := place(a)
		groupB, atB := place(b)
		return cmp.Or(cmp.Compare(groupA, groupB), cmp.Compare(atA, atB), cmp.Compare(a.Seq, b.Seq))
	})
}

// Attempts returns how many attempts a job has used, including a running one.
func Attempts(j *control.Job) int {
	if j.State == queue.Processing.String() {
		return j.Attempts + 1
	}
	return j.Attempts
}

// AttemptsText returns how many attempts a job has used of its maximum, as tables show it: 2/4.
func AttemptsText(j *control.Job) string {
	return strconv.Itoa(Attempts(j)) + "/" + strconv.Itoa(j.MaxAttempts)
}

// rank formats a job's priority and the bonus for its waiting time.
func rank(j *control.Job) string {
	if j.WaitingTime == 0 {
		return strconv.FormatInt(j.Priority, 10)
	}
	return fmt.Sprintf("%d+%d=%d", j.Priority, j.WaitingTime, j.EffectivePriority)
}

// priorityOf formats a job's effective priority, with the priority that was set and the bonus for
// its waiting time.
func priorityOf(j *control.Job) string {
	if j.WaitingTime == 0 {
		return strconv.FormatInt(j.Priority, 10)
	}
	return fmt.Sprintf("%d (set to %d, plus %d for waiting time)", j.EffectivePriority, j.Priority, j.WaitingTime)
}

// Title returns the job's command as text.
func Title(j *control.Job) string {
	text := cmp.Or(j.Command, "(hidden)") // the command is empty only if the caller may not see it
	if whole, clipped := strings.CutSuffix(text, "…"); clipped {
		text = whole + Sign("…")
	}
	return text
}
