package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// direction is where an instant lies that a text leaves open, like 15:04.
type direction int

const (
	forward  direction = iota // the next one
	backward                  // the last one
)

// wholeInstants are the layouts of instants that leave nothing open but the zone.
var wholeInstants = []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// parseWhen reads an instant as a person names it, in the zone of now: RFC 3339,
// 2026-03-01 15:04, 15:04 or 3am, a day (today, tomorrow, yesterday, friday) with or
// without a time of day, +2h, "in 2 hours", "2 hours ago", now.
func parseWhen(text string, now time.Time, open direction) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	if after, ok := strings.CutPrefix(text, "+"); ok {
		d, err := queue.ParseDuration(after)
		return now.Add(d), err
	}
	for _, layout := range wholeInstants {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	words := strings.Fields(strings.ToLower(text))
	if t, ok := apartFrom(words, now); ok {
		return t, nil
	}
	if t, ok := dayAndClock(words, now, open); ok {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time; write it like 2026-03-01T15:04:05Z, 15:04, 3am, \"tomorrow 03:00\", \"friday 18:00\", +2h or \"2 hours ago\"", queue.Clip(text))
}

// apartFrom reads an instant that is named by how far it is from now.
func apartFrom(words []string, now time.Time) (time.Time, bool) {
	switch n := len(words); {
	case n == 1 && words[0] == "now":
		return now, true
	case n > 1 && words[0] == "in":
		d, ok := wordySpan(words[1:])
		return now.Add(d), ok
	case n > 1 && words[n-1] == "ago":
		d, ok := wordySpan(words[:n-1])
		return now.Add(-d), ok
	}
	return now, false
}

// wordySpan reads a duration like 2h, 2 hours, or 1 hour 30 minutes.
func wordySpan(words []string) (time.Duration, bool) {
	short := make([]string, len(words))
	for i, w := range words {
		if w == "a" || w == "an" {
			w = "1"
		}
		switch strings.TrimSuffix(w, "s") {
		case "second", "sec", "minute", "min", "hour", "hr", "day", "week", "wk":
			w = w[:1]
		}
		short[i] = w
	}
	d, err := queue.ParseDuration(strings.Join(short, ""))
	return d, err == nil
}

// dayAndClock reads a day, a time of day, or both.
func dayAndClock(words []string, now time.Time, open direction) (time.Time, bool) {
	day, weekly := 0, false // from today; weekly: any week's
	dated := false
	if len(words) > 0 {
		switch name := words[0]; {
		case name == "today", name == "tomorrow", name == "yesterday":
			day, dated = map[string]int{"tomorrow": 1, "yesterday": -1}[name], true
		default:
			for w := time.Sunday; w <= time.Saturday; w++ {
				if full := strings.ToLower(w.String()); name == full || name == full[:3] {
					day, weekly, dated = int(w-now.Weekday()), true, true
				}
			}
		}
	}
	if dated {
		words = words[1:]
		if len(words) > 1 && words[0] == "at" {
			words = words[1:]
		}
	}
	var clock time.Time
	switch at, ok := timeOfDay(words); {
	case ok:
		clock = at
	case !dated || len(words) > 0:
		return now, false
	}
	on := func(day int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+day, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
	}
	step := 1
	if weekly {
		step = 7
	}
	t := on(day)
	switch fixed := dated && !weekly; {
	case fixed:
	case open == forward:
		if weekly && day < 0 || !t.After(now) {
			t = on(day + step)
		}
	case t.After(now):
		t = on(day - step)
	}
	return t, true
}

// timeOfDay reads a time of day: 15:04, 15:04:05, 3am, 3:30 pm, noon, midnight.
func timeOfDay(words []string) (time.Time, bool) {
	text := strings.Join(words, "")
	if i := slices.Index([]string{"midnight", "noon"}, text); i >= 0 {
		return time.Time{}.Add(time.Duration(i) * 12 * time.Hour), true
	}
	for _, layout := range []string{"15:04", "15:04:05", "3pm", "3:04pm"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// dueText says when something is due, in full, and how far that is from now.
func dueText(due, now time.Time) string {
	due = due.In(now.Location())
	layout := "Mon 2 Jan 15:04 MST"
	switch wait := due.Sub(now); {
	case due.Year() != now.Year():
		layout = "Mon 2 Jan 2006 15:04 MST"
	case max(wait, -wait) < time.Hour:
		layout = "Mon 2 Jan 15:04:05 MST"
	}
	text := "due " + due.Format(layout)
	if wait := due.Sub(now); wait > 0 {
		return text + ", in " + roughly(wait)
	}
	return text + ", which has passed: it may run now"
}

// roughly is a duration in one unit, or two where there are few of the first: 1.2s, 45s,
// 3m12s, 41m, 6h48, 3d4h, 41d.
func roughly(d time.Duration) string {
	pair := func(a time.Duration, large string, b time.Duration, small string) string {
		rest := d % a / b
		if rest == 0 || d >= 10*a {
			return fmt.Sprintf("%d%s", d/a, large)
		}
		return fmt.Sprintf("%d%s%02d%s", d/a, large, rest, small)
	}
	switch {
	case d < 10*time.Second:
		return queue.FormatDuration(d.Round(time.Second / 10))
	case d < time.Minute:
		return queue.FormatDuration(d.Round(time.Second))
	case d < time.Hour:
		return pair(time.Minute, "m", time.Second, "s")
	case d < 48*time.Hour:
		return pair(time.Hour, "h", time.Minute, "")
	}
	return strings.Replace(pair(24*time.Hour, "d", time.Hour, "h"), "d0", "d", 1)
}
