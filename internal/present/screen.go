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

// ScreenText formats the jobs of a screen, for "queuectl status" and "queuectl top".
type ScreenText struct {
	Screen      *control.Screen
	CurrentTime time.Time
}

// HealthLine returns the status line in two parts: level is the health of the queue, and text is the rest of
// the line. colour is the colour code of level.
func (t ScreenText) HealthLine() (level, text, colour string) {
	level, text = HealthText(&t.Screen.Status)
	return level, strings.TrimPrefix(termtext.SafeText(level+text), level), LevelColour(level)
}

// CountsText returns the number of jobs in each state that has jobs.
func (t ScreenText) CountsText() string { return StatusCountsText(&t.Screen.Status) }

// RunTimeText formats how long a job has been running or paused.
func (t ScreenText) RunTimeText(j *control.Job) string {
	if j.PausedAt != 0 {
		return "paused " + pausedText(j, t.CurrentTime)
	}
	return AgeText(j.StartedAt, t.CurrentTime)
}

// StartText returns when a waiting job starts. If the job is already due, StartText returns what the job
// waits for.
func (t ScreenText) StartText(j *control.Job) string {
	due := queue.Millis(DueTime(j)).Time().Local()
	switch wait := due.Sub(t.CurrentTime); {
	case j.State == queue.Held.String() || j.State == queue.Blocked.String() && len(j.DependsOn) == 0:
		return j.State
	case wait > time.Hour:
		return due.Format(dateLayout(due, t.CurrentTime)+"15:04") + ", in " + RoughDuration(wait)
	case wait > 0:
		return "in " + RoughDuration(wait)
	}
	return cmp.Or(waitsForText(j), "ready")
}

// FailureReason returns why a job failed, and the last line of its output.
func (t ScreenText) FailureReason(j *control.ScreenJob) string {
	text := ErrorText(&j.Job)
	if last := j.LastLine; last != "" {
		text += ": " + last
	}
	return text
}

// AgoText formats how long ago a time was, like "5m ago".
func (t ScreenText) AgoText(at control.Time) string { return agoText(at, t.CurrentTime) }

// stateSign is how a state is displayed: a sign, which also works without colours, and a colour code.
type stateSign struct{ Sign, Colour string }

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
	}[ParseState(state)]
	sign.Sign = termtext.LocaleText(sign.Sign)
	return sign
}

// IDWithSign returns the sign of a job's state followed by the job's id.
func IDWithSign(j *control.Job) string {
	s := SignOfState(j.State)
	if j.PausedAt != 0 {
		s = SignOfState(queue.Held.String())
	}
	return s.Sign + " " + j.ID
}

// LeadingSign returns the sign of the state with which a cell begins. If the cell begins with no sign of a
// state, the result is empty.
func LeadingSign(cell string) stateSign {
	for _, state := range queue.States() {
		if s := SignOfState(state.String()); strings.HasPrefix(cell, s.Sign) {
			return s
		}
	}
	return stateSign{}
}

// LevelColour returns the colour code of a health level.
func LevelColour(level string) string {
	return map[string]string{"ok": "32", "degraded": "33", "failing": "31"}[level]
}

// HealthText returns the health of the queue (ok, degraded or failing) and the text that follows it on the
// status line.
func HealthText(st *control.Status) (level, text string) {
	if st.Health != "ok" {
		level, text, _ = strings.Cut(termtext.OneLine(st.Health), ":")
		return level, ":" + text
	}
	separator := termtext.LocaleText(" · ")
	facts := StatusFacts(st, PlainNumber)
	if n := st.Jobs[queue.Dead.String()]; n > 0 {
		facts = append(facts, DeadText(n, PlainNumber))
	}
	return "ok", separator + strings.Join(facts, separator)
}

// StatusFacts returns the facts for the status line: what the workers do, and how many jobs wait. formatNumber
// formats a number of jobs.
func StatusFacts(st *control.Status, formatNumber func(int64) string) []string {
	facts := []string{"service not running"}
	if st.PID != 0 {
		facts[0] = BusyText(st.Workers)
		if st.Node != "" {
			facts[0] += " on " + st.Node
		}
	}
	text := "nothing waiting"
	if n := st.Jobs[queue.Pending.String()] + st.Jobs[queue.Failed.String()] + st.Jobs[queue.Blocked.String()]; n > 0 {
		text = WaitingText(formatNumber(n))
	}
	facts = append(facts, text)
	if n := st.Jobs[queue.Held.String()]; n > 0 {
		facts = append(facts, formatNumber(n)+" held")
	}
	return facts
}

// BusyText returns how many workers run jobs, like "1 of 2 workers busy".
func BusyText(w control.WorkerSummary) string {
	return fmt.Sprintf("%d of %s busy", w.Busy, WorkersText(w.Total))
}

// DeadText says that n dead jobs need attention. formatNumber formats a number of jobs.
func DeadText(n int64, formatNumber func(int64) string) string {
	if n == 1 {
		return "1 dead job needs attention"
	}
	return formatNumber(n) + " dead jobs need attention"
}

// WaitingText returns the text about the number of waiting jobs. countText is the formatted number.
func WaitingText(countText string) string { return countText + " waiting" }

// StatusCountsText returns the number of jobs in each state that has jobs, and how many attempts end in a
// minute.
func StatusCountsText(st *control.Status) string {
	var texts []string
	for _, s := range queue.States() {
		if n := st.Jobs[s.String()]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s %d", s, n))
		}
	}
	if len(texts) == 0 {
		return "no jobs yet; enqueue the first with: queuectl enqueue 'echo hello'"
	}
	text := strings.Join(texts, termtext.LocaleText(" · "))
	if n := st.ThroughputPerMinute; n > 0 {
		text += fmt.Sprintf("     %d/min", n)
	}
	return text
}
