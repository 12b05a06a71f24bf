package present

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// ScreenFormatter formats the jobs of a screen, for "queuectl status" and "queuectl top".
type ScreenFormatter struct {
	Screen      *control.OverviewScreen
	CurrentTime time.Time
}

// HealthLine returns the status line in two parts: level is the health of the queue, and text is the rest of the line.
// colourCode is the colour of level.
func (t ScreenFormatter) HealthLine() (level, text, colourCode string) {
	level, text = HealthText(&t.Screen.Status)
	return level, strings.TrimPrefix(termtext.TerminalSafeText(level+text), level), HealthColourCode(level)
}

// RunTimeText formats how long a job has been running or paused.
func (t ScreenFormatter) RunTimeText(j *control.Job) string {
	if j.PausedAt != 0 {
		return "paused " + pausedText(j, t.CurrentTime)
	}
	return AgeText(j.StartedAt, t.CurrentTime)
}

// StartOrWaitText returns when a waiting job starts. If the job is already due, StartOrWaitText returns what the job
// waits for.
func (t ScreenFormatter) StartOrWaitText(j *control.Job) string {
	due := queue.UnixMillis(DueTime(j)).Time().Local()
	switch wait := due.Sub(t.CurrentTime); {
	case j.State == queue.Held.String() || j.State == queue.Blocked.String() && len(j.DependsOn) == 0:
		return j.State
	case wait > time.Hour:
		return due.Format(dateLayoutUnlessToday(due, t.CurrentTime)+"15:04") + ", in " + RoughDurationText(wait)
	case wait > 0:
		return "in " + RoughDurationText(wait)
	}
	return cmp.Or(shortWaitReason(j), "ready")
}

// FailureReason returns why a job failed, and the last line of its output.
func (t ScreenFormatter) FailureReason(j *control.OverviewJob) string {
	text := JobErrorText(&j.Job)
	if last := j.LastLine; last != "" {
		text += ": " + last
	}
	return text
}

// AgoText formats how long ago a time was, like "5m ago".
func (t ScreenFormatter) AgoText(at control.Time) string { return agoText(at, t.CurrentTime) }

// stateSign is how a state is displayed: a symbol, which is distinct even without colours, and a colour code.
type stateSign struct{ Symbol, ColourCode string }

// SignOfState returns the sign and colour of a state. The sign is ASCII if the locale requires it.
func SignOfState(state string) stateSign {
	sign := [...]stateSign{
		queue.Blocked:    {"◇", ""},
		queue.Held:       {"‖", ""},
		queue.Pending:    {"○", ""},
		queue.Failed:     {"↻", "33"},
		queue.Processing: {"▶", "34"},
		queue.Completed:  {"✓", "32"},
		queue.Dead:       {"✗", "31"},
		queue.Cancelled:  {"–", ""},
	}[ParseStateOrZero(state)]
	sign.Symbol = termtext.TextForLocale(sign.Symbol)
	return sign
}

// JobIDWithStateSign returns the sign of a job's state followed by the job's id.
func JobIDWithStateSign(j *control.Job) string {
	s := SignOfState(j.State)
	if j.PausedAt != 0 {
		s = SignOfState(queue.Held.String())
	}
	return s.Symbol + " " + j.ID
}

// LeadingStateSign returns the sign with which a cell begins. If the cell does not begin with the sign of a state, the
// result is empty.
func LeadingStateSign(cellText string) stateSign {
	for _, state := range queue.States() {
		if s := SignOfState(state.String()); strings.HasPrefix(cellText, s.Symbol) {
			return s
		}
	}
	return stateSign{}
}

// HealthColourCode returns the colour code of a health level.
func HealthColourCode(healthLevel string) string {
	return map[string]string{"ok": "32", "degraded": "33", "failing": "31"}[healthLevel]
}

// HealthText returns the health of the queue (ok, degraded or failing) and the text that follows it on the
// status line.
func HealthText(st *control.Status) (level, text string) {
	if st.Health != "ok" {
		level, text, _ = strings.Cut(termtext.OneLine(st.Health), ":")
		return level, ":" + text
	}
	separator := termtext.TextForLocale(" · ")
	facts := StatusLineFacts(st, PlainNumberText)
	if n := st.Jobs[queue.Dead.String()]; n > 0 {
		facts = append(facts, DeadJobsText(n, PlainNumberText))
	}
	return "ok", separator + strings.Join(facts, separator)
}

// StatusLineFacts returns the facts for the status line: what the workers do, and how many jobs wait. formatJobCount
// formats a number of jobs.
func StatusLineFacts(st *control.Status, formatJobCount func(int64) string) []string {
	facts := []string{"service not running"}
	if st.PID != 0 {
		facts[0] = BusyWorkersText(st.Workers)
		if st.Node != "" {
			facts[0] += " on " + st.Node
		}
	}
	text := "nothing waiting"
	if n := st.Jobs[queue.Pending.String()] + st.Jobs[queue.Failed.String()] + st.Jobs[queue.Blocked.String()]; n > 0 {
		text = WaitingJobsText(formatJobCount(n))
	}
	facts = append(facts, text)
	if n := st.Jobs[queue.Held.String()]; n > 0 {
		facts = append(facts, formatJobCount(n)+" held")
	}
	if len(st.PausedQueues) > 0 {
		facts = append(facts, PausedQueuesText(st))
	}
	return facts
}

// PausedQueuesText returns how many queues are paused, like "2 queues paused".
func PausedQueuesText(st *control.Status) string {
	text := Plural(len(st.PausedQueues), "queue") + " paused"
	if len(st.PausedQueues) == control.MaxListedPausedQueues { // the list may be incomplete
		text = "at least " + text
	}
	return text
}

// BusyWorkersText returns how many workers run jobs, like "1 of 2 workers busy".
func BusyWorkersText(workers control.WorkerSummary) string {
	return fmt.Sprintf("%d of %s busy", workers.Busy, WorkerCountText(workers.Total))
}

// DeadJobsText says that deadJobs jobs are dead and need attention. formatJobCount formats a number of jobs.
func DeadJobsText(deadJobs int64, formatJobCount func(int64) string) string {
	if deadJobs == 1 {
		return "1 dead job needs attention"
	}
	return formatJobCount(deadJobs) + " dead jobs need attention"
}

// WaitingJobsText returns the text about the number of waiting jobs. countText is the formatted number.
func WaitingJobsText(countText string) string { return countText + " waiting" }

// StatusJobCountsText returns the number of jobs in each state, without states that have no jobs, and the number of
// attempts that end in a minute.
func StatusJobCountsText(st *control.Status) string {
	var texts []string
	for _, s := range queue.States() {
		if n := st.Jobs[s.String()]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s %d", s, n))
		}
	}
	if len(texts) == 0 {
		return "no jobs yet; enqueue the first with: queuectl enqueue 'echo hello'"
	}
	text := strings.Join(texts, termtext.TextForLocale(" · "))
	if n := st.ThroughputPerMinute; n > 0 {
		text += fmt.Sprintf("     %d/min", n)
	}
	return text
}
