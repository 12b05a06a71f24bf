// Package present turns jobs, queues, schedules and their states, reasons and times into text. The command
// line, the live screen and the web page all use these texts. The functions of this package have no side
// effects.
//
// Start with ScreenFormatter, and with JobTitle, StateWithReason and WaitExplanationLines.
package present

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// JobRow returns the row of a job in the list of jobs.
func JobRow(j *control.Job) []string {
	return []string{j.ID, stateTextWithPause(j), j.Queue, j.Node, timeTextForState(j, time.Now()),
		cmp.Or(RunTimeText(j.RunTimeMS), "-"),
		DashIfNil(j.ExitCode), JobTitle(j)}
}

// timeTextForState describes the time that matters most for a job's state: how long it has been running, when
// it starts, or how long ago it ended.
func timeTextForState(j *control.Job, now time.Time) string {
	state := ParseStateOrZero(j.State)
	switch due := queue.UnixMillis(DueTime(j)).Time(); {
	case j.PausedAt != 0:
		return "for " + pausedText(j, now)
	case state == queue.Processing:
		return "for " + AgeText(j.StartedAt, now)
	case state.HasEnded():
		return agoText(j.FinishedAt, now)
	case state.IsRunnable() && due.After(now):
		return "in " + RoughDurationText(due.Sub(now))
	case state.IsRunnable():
		return cmp.Or(shortWaitReason(j), "ready")
	}
	return cmp.Or(shortWaitReason(j), "-")
}

// DueTime returns the earliest time at which a waiting job, or its next attempt, can start.
func DueTime(j *control.Job) control.Time { return max(j.RunAt, j.NextRetryAt) }

// WaitReasonOrDue returns why a waiting job does not start, with the same text as "queuectl why". If the job waits only
// for a time, it returns when the job is due. If the job can start now, it returns "ready". If the job is not waiting,
// it returns "".
func WaitReasonOrDue(j *control.Job, now time.Time) string {
	r, due, state := queue.ValueOr(j.MainWaitReason, control.WaitReason{}), DueTime(j), ParseStateOrZero(j.State)
	switch {
	case !state.IsWaiting():
		return ""
	case r.Text != "" && r.Kind != "time" && r.Kind != "retry":
		return r.Text
	case queue.UnixMillis(due).Time().After(now):
		return "due " + ClockTimeText(due, now)
	case state.IsRunnable():
		return "ready"
	}
	return ""
}

// shortWaitReason says in a few words why a job does not start although its time has come. It returns "" if the job
// waits only for a free worker, or for nothing.
func shortWaitReason(j *control.Job) string {
	r := queue.ValueOr(j.MainWaitReason, control.WaitReason{})
	if len(j.DependsOn) > 0 && r.Kind != "held" {
		return dependencySummaryText(j)
	}
	isFull := queue.ValueOr(r.Limit, 0) > 0
	switch r.Kind {
	case "", "time", "retry":
		return ""
	case "held", "paused", "draining":
		return r.Kind
	case "workers":
		if r.Limit == nil {
			return "no service"
		}
		return chooseText(isFull, "", "no workers")
	case "queue":
		return chooseText(isFull, "queue limit", "queue paused")
	case "user":
		return chooseText(isFull, "user limit", "no account")
	}
	return r.Kind + " " + r.CauseKey
}

// chooseText returns textIfTrue if the condition is true, otherwise textIfFalse.
func chooseText(condition bool, textIfTrue, textIfFalse string) string {
	if condition {
		return textIfTrue
	}
	return textIfFalse
}

// dependencySummaryText names the first dependency of a job, and says how many other dependencies the job has.
func dependencySummaryText(j *control.Job) string {
	id, _, _ := strings.Cut(j.DependsOn[0], ":")
	if n := len(j.DependsOn) - 1; n > 0 {
		return fmt.Sprintf("after %s and %d more", id, n)
	}
	return "after " + id
}

// UsedAttemptCount returns how many attempts a job has used, including a running one.
func UsedAttemptCount(j *control.Job) int {
	if j.State == queue.Processing.String() {
		return j.AttemptCount + 1
	}
	return j.AttemptCount
}

// AttemptsText returns the number of used attempts and the maximum, for example "2/4".
func AttemptsText(j *control.Job) string {
	return strconv.Itoa(UsedAttemptCount(j)) + "/" + strconv.Itoa(j.MaxAttempts)
}

// PriorityWithBonusText formats a job's priority and the bonus that the priority gains while the job waits.
func PriorityWithBonusText(j *control.Job) string { return priorityText(j, "%d+%d=%d") }

// priorityText formats a job's priority, its bonus for waiting, and the sum of the two. sumFormat has one verb for
// each, in this order. If the bonus is 0, priorityText returns only the priority.
func priorityText(j *control.Job, sumFormat string) string {
	if j.PriorityGainedByWaiting == 0 {
		return strconv.FormatInt(j.Priority, 10)
	}
	return fmt.Sprintf(sumFormat, j.Priority, j.PriorityGainedByWaiting, j.EffectivePriority)
}

// CommandOrHidden returns a command for display. command is empty if the caller may not see it.
func CommandOrHidden(command string) string { return cmp.Or(command, "(hidden)") }

// JobTitle returns the command of a job for display. The service may have shortened it.
func JobTitle(j *control.Job) string {
	text := CommandOrHidden(j.Command)
	if whole, clipped := strings.CutSuffix(text, "…"); clipped {
		text = whole + termtext.TextForLocale("…")
	}
	return text
}

// stateTextWithPause returns a job's state, and whether the job is paused.
func stateTextWithPause(j *control.Job) string {
	return j.State + chooseText(j.PausedAt != 0, " (paused)", "")
}

// ProgressPercentText formats the progress of a job, or returns "" if it has not reported any.
func ProgressPercentText(j *control.Job) string {
	if j.Progress == nil {
		return ""
	}
	return fmt.Sprintf("%d %%", j.Progress.Percent)
}

// ProgressText formats the progress of a job with its message.
func ProgressText(j *control.Job) string {
	text := ProgressPercentText(j)
	if j.Progress != nil && j.Progress.Text != "" {
		text += ", " + termtext.OneLine(j.Progress.Text)
	}
	return text
}

// InsertProgressColumn inserts the column PROGRESS before the last column, if any of the jobs has reported progress.
func InsertProgressColumn(headings []string, rows [][]string, jobs []control.Job) (newHeadings []string,
	newRows [][]string) {
	if !slices.ContainsFunc(jobs, func(j control.Job) bool { return j.Progress != nil }) || len(headings) == 0 {
		return headings, rows
	}
	last := len(headings) - 1
	insert := func(row []string, cell string) []string { return slices.Insert(slices.Clone(row), last, cell) }
	for i := range rows {
		newRows = append(newRows, insert(rows[i], DashIfEmpty(ProgressPercentText(&jobs[i]))))
	}
	return insert(headings, "PROGRESS"), newRows
}

// EndedByExpiry reports whether a job ended because it had not started before the time in its field
// expires_at.
func EndedByExpiry(j *control.Job) bool {
	return queue.ValueOr(j.Reason, "") == string(queue.ReasonExpired)
}

// ExpiryExplanation explains why a job expired.
const ExpiryExplanation = "it did not start before the time in its field expires_at"

// usedAttemptsText returns how many of its attempts a job has used. It also says how many further attempts the job had
// that do not count, for example because they were interrupted.
func usedAttemptsText(j *control.JobDetail) string {
	text := AttemptsText(&j.Job)
	before := j.TotalAttempts - j.AttemptCount
	if j.State == queue.Processing.String() {
		before-- // the running attempt will count, but is not in j.Attempts yet
	}
	if before > 0 {
		text += fmt.Sprintf(" (+%d not counted)", before)
	}
	return text
}

// StateWithReason returns a job's state, followed by the reason if the reason differs from the state.
func StateWithReason(j *control.Job) string {
	if j.PausedAt != 0 {
		return stateTextWithPause(j)
	}
	// The reason of a running job is from its previous attempt, so omit it.
	if j.Reason == nil || *j.Reason == j.State || j.State == queue.Processing.String() {
		return j.State
	}
	return j.State + " (" + *j.Reason + ")"
}

// LabelsText formats labels as NAME=VALUE, separated by spaces.
func LabelsText(labels map[string]string) string { return formatNameValues(labels, " ") }

// ParseStateOrZero returns the state with the given name, or 0 if no state has this name.
func ParseStateOrZero(name string) queue.State {
	i := slices.IndexFunc(queue.States(), func(s queue.State) bool { return s.String() == name })
	if i < 0 {
		return 0
	}
	return queue.States()[i]
}

// JobErrorText returns why a job failed: its error or, if it has no error, its state and reason.
func JobErrorText(j *control.Job) string { return queue.ValueOr(j.Error, StateWithReason(j)) }

// JobFailureText describes how a job failed.
func JobFailureText(j *control.Job) string {
	text := "job " + j.ID + " is " + StateWithReason(j)
	switch {
	case j.Error != nil:
		text += ": " + *j.Error
	case EndedByExpiry(j):
		text += ": " + ExpiryExplanation
	case j.Signal != nil:
		text += ": ended by " + queue.SignalText(*j.Signal)
	case j.ExitCode != nil && *j.ExitCode != 0:
		text += fmt.Sprintf(": exit code %d", *j.ExitCode)
	}
	return text
}
