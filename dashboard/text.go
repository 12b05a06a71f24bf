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
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// functions are those that templates call.
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
	"used":    used,
	"detail":  detail,
	"moment":  moment,
	"text":    func(s *string) string { return visible(deref(s)) },
	"visible": visible,
	"code":    codeText,
	"part":    partText,
}

// waits are the states of jobs that wait.
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

// partText is a part as percent.
func partText(part *float64) string {
	if part == nil {
		return ""
	}
	return strconv.FormatFloat(*part*100, 'f', 1, 64) + " %"
}

// title is what a job runs, "" if that may not be seen.
func title(j control.Job) string {
	if slices.Contains(j.Hidden, "command") {
		return ""
	}
	return visible(j.Command)
}

// visible is a text with escapes in place of what does not show, or has others show in another order.
func visible(text string) string {
	hides := func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || termtext.Invisible(r) && !termtext.Joins(r)
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

// grouped is a number with commas between its thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// jobsText is so many jobs, of a kind unless that is "".
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

// age is how long something has lasted by now, as a clock that goes on in the browser.
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

// brief is a duration in at most two units.
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

// clock is a time of the server's zone: of today the time of day, of this year without that.
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

// detail returns what matters about a job in a list: when a waiting job is due, or else what it waits for, or its last
// error or the reason for its state.
func detail(j control.Job, now time.Time) string {
	said := visible(cmp.Or(deref(j.Error), deref(j.Reason)))
	due := dueAt(j, now)
	switch {
	case due == 0 && j.WaitsFor != nil:
		return visible(j.WaitsFor.Text)
	case due == 0:
		return said
	case said == "":
		return "due " + clockAt(due, now)
	}
	return "due " + clockAt(due, now) + ": " + said
}

// dueAt returns when a waiting job is due, 0 if it is due already or does not wait for a time.
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

// moment returns the time that a narrow list shows for a job: its end, its start or due time, or else its creation.
func moment(j control.Job, now time.Time) string {
	return clockAt(cmp.Or(j.FinishedAt, dueAt(j, now), j.StartedAt, j.CreatedAt), now)
}

// counted is how many jobs are in a state, waiting how many wait.
func counted(jobs map[string]int64, state any) int64 { return jobs[fmt.Sprint(state)] }

func waiting(jobs map[string]int64) (n int64) {
	for _, s := range waits {
		n += jobs[s]
	}
	return n
}

// used is how many of its attempts a job has used, the one that runs too.
func used(j control.Job) int {
	if j.State == queue.Processing.String() {
		return j.Attempts + 1
	}
	return j.Attempts
}

// line is a line that a job has printed, in runs of one colour each.
type line struct {
	At      string      `json:"at"`
	Err     bool        `json:"err,omitempty"`
	Runs    [][2]string `json:"runs,omitempty"`    // text and its colour, "" or the digit of SGR's 30 to 37
	First   bool        `json:"first,omitempty"`   // the lines before this one are sent again, beginning with it
	Part    bool        `json:"part,omitempty"`    // it is unfinished: the next line takes its place
	Dropped string      `json:"dropped,omitempty"` // shown instead of output that was not kept
}

// size is how many bytes of memory a line takes.
func (l *line) size() int {
	n := lineCost + len(l.At) + len(l.Dropped)
	for _, r := range l.Runs {
		n += runCost + len(r[0])
	}
	return n
}

// What a line and a run of it take beside their texts, in bytes.
const (
	lineCost = 72
	runCost  = 32
)

// maxRuns is how many runs a line has at most; what comes after has the last one's colour.
const maxRuns = 200

// control sequences as ECMA-48 has them, and single control characters but tabs.
var (
	sequences = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -~]?|[\x00-\x08\x0b-\x1f\x7f]|[\u202a-\u202e\u2066-\u2069]")
	colours   = regexp.MustCompile("^\x1b\\[([0-9;]*)m$")
)

// runsOf are the runs of a line; control sequences other than colours are left out.
func runsOf(text string) (runs [][2]string) {
	colour, last := "", 0
	var run strings.Builder // of one colour
	end := func() {
		if run.Len() > 0 {
			runs = append(runs, [2]string{run.String(), colour})
			run = strings.Builder{}
		}
	}
	become := func(next string) {
		if next != colour && len(runs) < maxRuns-1 {
			end()
			colour = next
		}
	}
	for _, at := range sequences.FindAllStringIndex(text, -1) {
		run.WriteString(text[last:at[0]])
		last = at[1]
		if is := colours.FindStringSubmatch(text[at[0]:at[1]]); is != nil {
			for code := range strings.SplitSeq(is[1], ";") {
				switch n, _ := strconv.Atoi(code); {
				case n >= 30 && n <= 37:
					become(strconv.Itoa(n - 30))
				case n >= 90 && n <= 97:
					become(strconv.Itoa(n - 90))
				case n == 0, n == 39:
					become("")
				}
			}
		}
	}
	run.WriteString(text[last:])
	end()
	return runs
}
