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

// ScreenText formats the jobs of a screen, for the command status and for top.
type ScreenText struct {
	Screen *control.Screen
	Now    time.Time
}

// Verdict returns the status line in two parts: the health of the queue, with its colour code, and
// the text that follows it.
func (t ScreenText) Verdict() (level, text, colour string) {
	level, text = VerdictOf(&t.Screen.Status)
	return level, strings.TrimPrefix(termtext.SafeText(level+text), level), LevelColour(level)
}

// Counts returns the number of jobs in each state that has any.
func (t ScreenText) Counts() string { return CountsOf(&t.Screen.Status) }

// Runs formats how long a job has been running or paused.
func (t ScreenText) Runs(j *control.Job) string {
	if j.PausedAt != 0 {
		return "paused " + pausedText(j, t.Now)
	}
	return ageOf(j.StartedAt, t.Now)
}

// Starts returns when a waiting job starts, or what it waits for.
func (t ScreenText) Starts(j *control.Job) string {
	due := queue.Millis(max(j.RunAt, j.NextRetryAt)).Time().Local()
	switch wait := due.Sub(t.Now); {
	case j.State == queue.Held.String() || j.State == queue.Blocked.String() && len(j.DependsOn) == 0:
		return j.State
	case wait > time.Hour:
		return due.Format(dateLayout(due, t.Now)+"15:04") + ", in " + Roughly(wait)
	case wait > 0:
		return "in " + Roughly(wait)
	}
	return cmp.Or(waitsForText(j), "ready")
}

// Why returns why a job failed, with its last line of output.
func (t ScreenText) Why(j *control.ScreenJob) string {
	text := Or(j.Error, StateText(&j.Job))
	if last := j.LastLine; last != "" {
		text += ": " + last
	}
	return text
}

// Ago formats how long ago a time was, in words.
func (t ScreenText) Ago(at control.Time) string { return agoOf(at, t.Now) }

// MarkedID returns a job's id after the sign of its state, and the state's colour code.
func MarkedID(j *control.Job) (text, colour string) {
	return WithSign(j), SignOf(j.State).Colour
}

// stateSign holds how a state is displayed: a symbol, for terminals without colours, and a colour
// code.
type stateSign struct{ Sign, Colour string }

// SignOf returns the sign and colour of a state. The sign is ASCII if the locale requires it.
func SignOf(state string) stateSign {
	sign := stateSign{}
	switch StateOf(state) {
	case queue.Blocked:
		sign = stateSign{"◇", ""}
	case queue.Held:
		sign = stateSign{"‖", ""}
	case queue.Pending:
		sign = stateSign{"○", ""}
	case queue.Failed:
		sign = stateSign{"↻", "33"}
	case queue.Processing:
		sign = stateSign{"▶", "34"}
	case queue.Completed:
		sign = stateSign{"✓", "32"}
	case queue.Dead:
		sign = stateSign{"✗", "31"}
	case queue.Cancelled:
		sign = stateSign{"–", ""}
	}
	sign.Sign = termtext.LocaleText(sign.Sign)
	return sign
}

// WithSign returns a job's id after the sign of its state.
func WithSign(j *control.Job) string {
	s := SignOf(j.State)
	if j.PausedAt != 0 {
		s = SignOf(queue.Held.String())
	}
	return s.Sign + " " + j.ID
}

// LeadingSign returns the sign of a state that a cell begins with. The sign is empty if it begins
// with none.
func LeadingSign(cell string) stateSign {
	for _, state := range queue.States() {
		if s := SignOf(state.String()); strings.HasPrefix(cell, s.Sign) {
			return s
		}
	}
	return stateSign{}
}

// LevelColour returns the colour code of a health level.
func LevelColour(level string) string {
	switch level {
	case "ok":
		return "32"
	case "degraded":
		return "33"
	case "failing":
		return "31"
	}
	return ""
}

// VerdictOf returns the health of the queue (ok, degraded or failing) and the text that follows it
// on the status line.
func VerdictOf(st *control.Status) (level, text string) {
	if st.Health != "ok" {
		level, text, _ = strings.Cut(termtext.OneLine(st.Health), ":")
		return level, ":" + text
	}
	var b strings.Builder
	separator := termtext.LocaleText(" · ")
	if st.PID == 0 {
		b.WriteString(separator + "service not running")
	} else {
		fmt.Fprintf(&b, "%s%d of %s busy", separator, st.Workers.Busy, Workers(st.Workers.Total))
		if st.Node != "" {
			fmt.Fprintf(&b, " on %s", st.Node)
		}
	}
	if n := st.Jobs[queue.Pending.String()] + st.Jobs[queue.Failed.String()] + st.Jobs[queue.Blocked.String()]; n > 0 {
		b.WriteString(separator + WaitText(n))
	} else {
		b.WriteString(separator + "nothing waiting")
	}
	if n := st.Jobs[queue.Held.String()]; n > 0 {
		fmt.Fprintf(&b, "%s%d held", separator, n)
	}
	switch n := st.Jobs[queue.Dead.String()]; {
	case n == 1:
		b.WriteString(separator + "1 dead job needs attention")
	case n > 1:
		fmt.Fprintf(&b, "%s%d dead jobs need attention", separator, n)
	}
	return "ok", b.String()
}

func WaitText(n int64) string { return fmt.Sprintf("%d waiting", n) }

// CountsOf returns the number of jobs in each state that has any, and how many attempts end per
// minute.
func CountsOf(st *control.Status) string {
	var list []string
	for _, s := range queue.States() {
		if n := st.Jobs[s.String()]; n > 0 {
			list = append(list, fmt.Sprintf("%s %d", s, n))
		}
	}
	if len(list) == 0 {
		return "no jobs yet; enqueue the first with: queuectl enqueue 'echo hello'"
	}
	text := strings.Join(list, termtext.LocaleText(" · "))
	if n := st.Throughput; n > 0 {
		text += fmt.Sprintf("     %d/min", n)
	}
	return text
}
