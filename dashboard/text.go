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

// functions lists the functions that templates call.
var functions = template.FuncMap{
	"title":   title,
	"path":    pathOf,
	"attempt": attemptPath,
	"verbs":   verbsFor,
	"states":  queue.States,
	"number":  grouped,
	"jobs":    jobsText,
	"age":     age,
	"span":    spanText,
	"clock":   clock,
	"count":   counted,
	"waiting": waiting,
	"used":    func(j control.Job) int { return present.Attempts(&j) },
	"detail":  detail,
	"moment":  moment,
	"text":    func(s *string) string { return visible(deref(s)) },
	"visible": visible,
	"code":    codeText,
	"part":    partText,
}

// waits lists the states of waiting jobs.
var waits = []string{queue.Blocked.String(), queue.Held.String(), queue.Pending.String(), queue.Failed.String()}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func codeText(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// partText formats a fraction as a percentage.
func partText(part *float64) string {
	if part == nil {
		return ""
	}
	return strconv.FormatFloat(*part*100, 'f', 1, 64) + " %"
}

// title returns the command of a job, or "" if the visitor may not see it.
func title(j control.Job) string {
	if slices.Contains(j.Hidden, "command") {
		return ""
	}
	return visible(j.Command)
}

// visible replaces characters by escapes if they are invisible or change the display order.
func visible(text string) string {
	hides := func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || termtext.IsInvisible(r) && !termtext.IsJoiner(r)
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

// grouped formats a number with commas between thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// jobsText returns a text like "5 dead jobs", in which kind may be empty.
func jobsText(n int64, kind string) string {
	text := grouped(n)
	if n == 0 {
		text = "no"
	}
	if kind != "" {
		text += " " + kind
	}
	if n == 1 {
		return text + " job"
	}
	return text + " jobs"
}

// age returns the time since at, as a clock that the browser advances.
func age(at control.Time, now time.Time) template.HTML {
	if at == 0 {
		return ""
	}
	d := max(0, now.Sub(queue.Millis(at).Time()))
	return template.HTML(fmt.Sprintf(`<time data-s="%d">%s</time>`, d/time.Second, brief(d.Truncate(time.Second))))
}

func spanText(ms *int64) string {
	if ms == nil {
		return ""
	}
	return brief(time.Duration(*ms) * time.Millisecond)
}

// brief formats a duration in at most two units.
func brief(d time.Duration) string {
	switch {
	case d == 0:
		return "0s"
	case d < time.Second:
		return d.Truncate(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// clock formats a time in the server's time zone: times of today without the date, others with it.
func clock(at control.Time) string { return clockAt(at, time.Now()) }

func clockAt(at control.Time, now time.Time) string {
	if at == 0 {
		return ""
	}
	t := queue.Millis(at).Time().Local()
	switch now = now.Local(); {
	case t.Year() != now.Year():
		return t.Format("2006-01-02 15:04")
	case t.YearDay() != now.YearDay():
		return t.Format("Mon 2 Jan 15:04")
	}
	return t.Format("15:04:05")
}

// detail returns the most useful text about a job in a list. That is when the job is due, if it waits for a
// time, or else what it waits for. For other jobs, it is the last error or the reason for the state.
func detail(j control.Job, now time.Time) string {
	text := visible(cmp.Or(deref(j.Error), deref(j.Reason)))
	due := dueAt(j, now)
	switch {
	case due == 0 && j.WaitsFor != nil:
		return visible(j.WaitsFor.Text)
	case due == 0:
		return text
	case text == "":
		return "due " + clockAt(due, now)
	}
	return "due " + clockAt(due, now) + ": " + text
}

// dueAt returns when a waiting job is due. It returns 0 if the job is already due or does not wait for a
// time.
func dueAt(j control.Job, now time.Time) control.Time {
	if !slices.Contains(waits, j.State) {
		return 0
	}
	due := cmp.Or(j.NextRetryAt, j.RunAt)
	if !queue.Millis(due).Time().After(now) {
		return 0
	}
	return due
}

// moment returns the time that a narrow list shows for a job: its end, its due time, its start or its
// creation, whichever exists first in this order.
func moment(j control.Job, now time.Time) string {
	return clockAt(cmp.Or(j.FinishedAt, dueAt(j, now), j.StartedAt, j.CreatedAt), now)
}

// counted returns the number of jobs in a state. waiting returns the number of waiting jobs.
func counted(jobs map[string]int64, state any) int64 { return jobs[fmt.Sprint(state)] }

func waiting(jobs map[string]int64) (n int64) {
	for _, s := range waits {
		n += jobs[s]
	}
	return n
}

// line is one line of a job's output, split into runs of one colour.
type line struct {
	At  string `json:"at"`
	Err bool   `json:"err,omitempty"`
	// Runs holds pairs of a text and its colour. The colour is "" or the last digit of an SGR code from 30 to
	// 37.
	Runs [][2]string `json:"runs,omitempty"`
	// First means that this line starts a batch, which replaces all previous lines.
	First   bool   `json:"first,omitempty"`
	Part    bool   `json:"part,omitempty"`    // unfinished: the next line replaces it
	Dropped string `json:"dropped,omitempty"` // text to show instead of output that was not kept
}

// size returns the approximate memory use of a line in bytes.
func (l *line) size() int {
	n := lineCost + len(l.At) + len(l.Dropped)
	for _, r := range l.Runs {
		n += runCost + len(r[0])
	}
	return n
}

// Overhead of a line and of one of its runs, in bytes, in addition to their texts.
const (
	lineCost = 72
	runCost  = 32
)

// maxRuns is the maximum number of runs of a line. The last run contains the rest of the line.
const maxRuns = 200

// Control sequences as defined by ECMA-48, and single control characters except tabs.
var (
	sequences = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ " +
		"-~]?|[\x00-\x08\x0b-\x1f\x7f]|[\u202a-\u202e\u2066-\u2069]")
	colours = regexp.MustCompile("^\x1b\\[([0-9;]*)m$")
)

// runsOf splits a line into runs of one colour. It removes all other control sequences.
func runsOf(text string) (runs [][2]string) {
	colour, last := "", 0
	var run strings.Builder // text of the current run
	end := func() {
		if run.Len() > 0 {
			runs = append(runs, [2]string{run.String(), colour})
			run = strings.Builder{}
		}
	}
	startRun := func(next string) {
		if next != colour && len(runs) < maxRuns-1 {
			end()
			colour = next
		}
	}
	for _, match := range sequences.FindAllStringIndex(text, -1) {
		run.WriteString(text[last:match[0]])
		last = match[1]
		if codes := colours.FindStringSubmatch(text[match[0]:match[1]]); codes != nil {
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
