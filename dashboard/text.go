package dashboard

import (
	"cmp"
	"fmt"
	"html/template"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// templateFuncs lists the functions that templates call.
var templateFuncs = template.FuncMap{
	"path":     jobPath,
	"attempt":  attemptPath,
	"verbs":    actionsForJob,
	"states":   queue.States,
	"number":   withCommas,
	"plural":   pluralWithCommas,
	"facts":    func(st *control.Status) string { return strings.Join(present.StatusLineFacts(st, withCommas), " · ") },
	"busy":     present.BusyWorkersText,
	"age":      ageElement,
	"clock":    func(at control.Time) string { return present.ClockTimeText(at, time.Now()) },
	"span":     present.DurationText,
	"rate":     present.PercentageText,
	"waiting":  waitingJobCount,
	"state":    escapedText(present.StateWithReason),
	"attempts": escapedText(present.AttemptsText),
	"rank":     escapedText(present.PriorityWithBonusText),
	"progress": escapedText(present.ProgressText),
	"failure":  escapedText(present.JobErrorText),
	"waits": func(j control.Job, now time.Time) string {
		return escapeInvisibleCharacters(present.WaitReasonOrDue(&j, now))
	},
	"detail":   jobReasonText,
	"moment":   narrowListTimeText,
	"rows":     jobProperties,
	"ended":    attemptEndText,
	"why":      present.WaitExplanationLines,
	"pause":    escapedText(present.QueuePauseText),
	"schedule": escapedText(present.ScheduleStateText),
	"cron":     escapedText(present.ScheduleTimesText),

	"noWorkers":   emptyListHint(present.NoWorkersText),
	"noSchedules": emptyListHint(present.NoSchedulesText),
	"noQueues":    emptyListHint(present.NoQueuesText),
	"command":     func(text string) string { return escapeInvisibleCharacters(present.CommandOrHidden(text)) },
	"text":        func(s *string) string { return escapeInvisibleCharacters(present.EmptyIfNil(s)) },
	"visible":     escapeInvisibleCharacters,
}

// escapedText converts a function that describes a value, such as a job, to a function that templates can call.
func escapedText[T any](describe func(*T) string) func(T) string {
	return func(v T) string { return escapeInvisibleCharacters(describe(&v)) }
}

// escapeInvisibleCharacters replaces characters that are invisible or change the display order by escapes.
func escapeInvisibleCharacters(text string) string {
	hides := func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || termtext.IsInvisible(r) &&
			!termtext.IsJoinerOrVariationSelector(r)
	}
	if !strings.ContainsFunc(text, hides) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hides(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// withCommas formats a number with commas between the thousands.
func withCommas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// pluralWithCommas formats a number and its noun, like "1 job" or "1,200 jobs".
func pluralWithCommas(n int64, noun string) string {
	return present.PluralWithFormat(n, noun, withCommas)
}

// ageElement returns an HTML element that shows how long ago a time is. The browser keeps the age up to date:
// the function age in page.js uses the same format.
func ageElement(pastTime control.Time, now time.Time) template.HTML {
	if pastTime == 0 {
		return ""
	}
	return template.HTML(fmt.Sprintf(`<time data-s="%d">%s</time>`,
		max(0, now.Sub(queue.UnixMillis(pastTime).Time()))/time.Second, present.AgeText(pastTime, now)))
}

// emptyListHint returns a function that returns the HTML of a text about an empty list. The command in the text is
// marked as code.
func emptyListHint(text string) func() template.HTML {
	text, command, _ := strings.Cut(text, ": queuectl ")
	return func() template.HTML {
		return template.HTML(fmt.Sprintf(`<p class="none">%s: <code>queuectl %s</code></p>`,
			template.HTMLEscapeString(text), template.HTMLEscapeString(command)))
	}
}

// jobReasonText returns what a list says about a job: the reason why the job waits, followed by the error or
// the reason of the last attempt.
func jobReasonText(j control.Job, now time.Time) string {
	text, why := cmp.Or(present.EmptyIfNil(j.Error), present.EmptyIfNil(j.Reason)), present.WaitReasonOrDue(&j, now)
	if text != "" && why != "" {
		why += ": "
	}
	return escapeInvisibleCharacters(why + text)
}

// narrowListTimeText returns the one time that a narrow list shows for a job: when the job ended; else when the job is
// due, if that is in the future; else when the job started; else when the job was created.
func narrowListTimeText(j control.Job, now time.Time) string {
	due := present.DueTime(&j)
	if !queue.UnixMillis(due).Time().After(now) {
		due = 0
	}
	return present.ClockTimeText(cmp.Or(j.FinishedAt, due, j.StartedAt, j.CreatedAt), now)
}

// jobProperties returns those properties of a job that have a value. It leaves out the queue and the run time of a
// running job, because the page shows them elsewhere. It also leaves out a waiting time that still grows.
func jobProperties(j control.JobDetail) [][2]string {
	if j.FinishedAt == 0 {
		j.RunTimeMS = nil
	}
	return slices.DeleteFunc(present.JobDetailRows(&j), func(row [2]string) bool {
		return row[1] == "" || row[0] == "Queue" || row[0] == "Waited" && present.ParseStateOrZero(j.State).IsWaiting()
	})
}

// attemptEndText returns a text that says how an attempt ended, or that it is still running.
func attemptEndText(attempt control.Attempt, j control.JobDetail) string {
	text := present.AttemptRemarks(&attempt, j.Spec["allow_background"] == true)
	switch {
	case attempt.FinishedAt == 0:
		return "running"
	case attempt.Error == nil && text != "":
		text = "; " + text
		fallthrough
	case attempt.Error == nil:
		text = "exit code " + present.EmptyIfNil(attempt.ExitCode) + text
	}
	return escapeInvisibleCharacters(text)
}

// waitingJobCount returns the number of jobs in all states of waiting jobs together.
func waitingJobCount(countByState map[string]int64) (n int64) {
	for state, count := range countByState {
		if present.ParseStateOrZero(state).IsWaiting() {
			n += count
		}
	}
	return n
}

// outputLine is one line of a job's output. It consists of runs, that is, pieces of text of one colour.
type outputLine struct {
	At       string `json:"at"`
	IsStderr bool   `json:"err,omitempty"`
	// ColourRuns contains pairs of a text and its colour. The colour is "" or the last digit of the terminal's
	// colour code, 30 to 37 (SGR).
	ColourRuns [][2]string `json:"runs,omitempty"`
	// First means that this line begins a batch that replaces all lines shown before.
	First        bool   `json:"first,omitempty"`
	IsUnfinished bool   `json:"part,omitempty"`    // the line is unfinished, and the next line replaces it
	Dropped      string `json:"dropped,omitempty"` // text to show instead of output that was not stored
}

// memoryBytes returns the approximate memory use of a line in bytes.
func (l *outputLine) memoryBytes() int {
	n := lineOverheadBytes + len(l.At) + len(l.Dropped)
	for _, r := range l.ColourRuns {
		n += colourRunOverheadBytes + len(r[0])
	}
	return n
}

// These constants are estimates of the memory that a line and a run use without their texts, in bytes.
const (
	lineOverheadBytes      = 72
	colourRunOverheadBytes = 32
)

// maxColourRuns is the maximum number of runs of a line that have colours. If a line has more runs, one additional run
// contains the rest of the line, without its colours.
const maxColourRuns = 200

// These expressions match control sequences (ECMA-48), and control characters except tabs.
var (
	controlSequencePattern = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ " +
		"-~]?|[\x00-\x08\x0b-\x1f\x7f]|[\u202a-\u202e\u2066-\u2069]")
	colourSequencePattern = regexp.MustCompile("^\x1b\\[([0-9;]*)m$")
)

// splitColourRuns splits a line into runs of one colour. It removes the control sequences that do not set a
// colour.
func splitColourRuns(text string) (runs [][2]string) {
	colour, last := "", 0
	var run strings.Builder // text of the current run
	end := func() {
		if run.Len() > 0 {
			runs = append(runs, [2]string{run.String(), colour})
			run = strings.Builder{}
		}
	}
	startRun := func(newColour string) {
		if newColour != colour && len(runs) < maxColourRuns-1 {
			end()
			colour = newColour
		}
	}
	for _, match := range controlSequencePattern.FindAllStringIndex(text, -1) {
		run.WriteString(text[last:match[0]])
		last = match[1]
		if codes := colourSequencePattern.FindStringSubmatch(text[match[0]:match[1]]); codes != nil {
			for code := range strings.SplitSeq(codes[1], ";") {
				switch n, _ := strconv.Atoi(code); {
				case n >= 30 && n <= 37:
					startRun(strconv.Itoa(n - 30))
				case n >= 90 && n <= 97:
					startRun(strconv.Itoa(n - 90))
				case n == 0, n == 39:
					startRun("")
				}
			}
		}
	}
	run.WriteString(text[last:])
	end()
	return runs
}
