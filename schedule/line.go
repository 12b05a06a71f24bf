// Package schedule tells when a recurring job is due: the instants that a line of cron
// names in a time zone.
package schedule

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"

	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// Limits of a line.
// See docs/decisions/0021.
const (
	MaxLine  = 1024        // bytes
	MinEvery = time.Second // of @every: the ids of jobs tell seconds
	// searchYears bounds the look for the next instant: a Feb 29 that is a Sunday may take 40.
	searchYears = 50
)

// Line is a line of cron that has been read.
type Line struct {
	every   time.Duration // of @every, else 0
	reboot  bool
	days    *cron.SpecSchedule // of all others; its instants are wall times, as if in UTC
	elapsed bool               // it follows elapsed time: its hours are not fixed
}

// field is one field of a line.
type field struct{ name, allowed, first string }

// fields are those of a line, in its order.
var fields = []field{
	{"second", "0 to 59", "0"},
	{"minute", "0 to 59", "0"},
	{"hour", "0 to 23", "0"},
	{"day of the month", "1 to 31", "1"},
	{"month", "1 to 12 or jan to dec", "1"},
	{"day of the week", "0 to 7 or sun to sat", "0"},
}

// Where some stand among them.
const (
	hour       = 2
	dayOfMonth = 3
	dayOfWeek  = 5
)

// nicknames are words for lines.
var nicknames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

const shapes = `write five fields like "0 3 * * *", six fields with the seconds first, @hourly, @daily, @weekly, @monthly, @yearly, "@every 90s" or @reboot`

// Parse reads a line. Its error is of the field cron and says which part of the line is wrong,
// and what is allowed there.
func Parse(text string) (Line, error) {
	if len(text) > MaxLine {
		return Line{}, queue.Invalid("cron", "too long (%d bytes); the maximum is %d bytes", len(text), MaxLine)
	}
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
		return Line{}, queue.Invalid("cron", "must not be empty; %s", shapes)
	case words[0] == "@reboot" && len(words) == 1:
		return Line{reboot: true}, nil
	case words[0] == "@every":
		return parseEvery(words[1:])
	case strings.HasPrefix(words[0], "@"):
		line, known := nicknames[strings.ToLower(words[0])]
		if !known || len(words) > 1 {
			return Line{}, queue.Invalid("cron", "unknown schedule %q; %s", queue.Clip(text), shapes)
		}
		words = strings.Fields(line)
	case strings.Contains(words[0], "="):
		return Line{}, queue.Invalid("cron", `%q is not a cron field; set the time zone with --tz (parameter "tz")`, queue.Clip(words[0]))
	}
	switch len(words) {
	case len(fields) - 1:
		words = append([]string{"0"}, words...)
	case len(fields):
	default:
		return Line{}, queue.Invalid("cron", "wrong number of fields (%d); %s", len(words), shapes)
	}
	return parseFields(words)
}

// parseEvery reads what stands after @every.
func parseEvery(words []string) (Line, error) {
	if len(words) != 1 {
		return Line{}, queue.Invalid("cron", "@every needs one duration; write it like @every 90s")
	}
	d, err := queue.ParseDuration(words[0])
	switch {
	case err != nil:
		return Line{}, queue.Invalid("cron", "@every: %v", err)
	case d < MinEvery:
		return Line{}, queue.Invalid("cron", "@every %s is too often; use at least %s", queue.Clip(words[0]), queue.FormatDuration(MinEvery))
	}
	return Line{every: d.Truncate(time.Millisecond)}, nil
}

// parser reads six fields. Where both days are given either may match, as everywhere.
var parser = cron.MustNewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom).WithMaxSearchYears(searchYears)

// parseFields reads six fields, each by itself first, so that an error can name it.
func parseFields(words []string) (Line, error) {
	given := words
	words = strings.Fields(strings.ToLower(strings.Join(words, " "))) // the library takes the H of THU for a word of its own
	parts := make([]string, len(words))
	for i, word := range words {
		var ok bool
		if parts[i], ok = parseList(i, word); !ok {
			return Line{}, queue.Invalid("cron", "the %s %q is not valid; use %s, a list (1,2), a range (1-3), a step of 1 or more (*/2) or *", fields[i].name, queue.Clip(given[i]), fields[i].allowed)
		}
	}
	read, err := parser.Parse(strings.Join(parts, " "))
	if err != nil {
		return Line{}, queue.Invalid("cron", "%v", err)
	}
	days, ok := read.(*cron.SpecSchedule)
	if !ok {
		return Line{}, queue.Invalid("cron", "%s", shapes)
	}
	days.Location = time.UTC
	// As crontab(5) has it, a field that begins with * leaves the choice of days to the other one.
	days.DowOrDom = !open(words[dayOfMonth]) && !open(words[dayOfWeek])
	l := Line{days: days, elapsed: strings.ContainsAny(words[hour], "*?/-")}
	if days.Next(time.Unix(0, 0).UTC()).IsZero() {
		return Line{}, queue.Invalid("cron", "the schedule would never start a job: none of its months has that day; change the day or the month")
	}
	return l, nil
}

// parseList checks a field and returns it as the library reads it. The library refuses a step that is
// longer than its range, which crontab(5) defines: it leaves the first value of the range.
func parseList(n int, word string) (list string, ok bool) {
	items := strings.Split(word, ",")
	for i, item := range items {
		span, step, _ := strings.Cut(item, "/")
		if item == "" || strings.Contains(item, "+") {
			return "", false
		}
		if reads(n, item) {
			continue
		}
		if strings.Trim(step, "0") == "" || strings.Trim(step, "0123456789") != "" || !reads(n, span) {
			return "", false
		}
		items[i], _, _ = strings.Cut(span, "-")
		if open(span) {
			items[i] = fields[n].first
		}
	}
	return strings.Join(items, ","), true
}

// reads reports whether the library reads an item of a field.
func reads(n int, item string) bool {
	alone := []string{"0", "0", "0", "*", "*", "*"}
	alone[n] = item
	_, err := parser.Parse(strings.Join(alone, " "))
	return err == nil
}

// open reports whether a field of days leaves them open.
func open(word string) bool { return word[0] == '*' || word[0] == '?' }

// AtBoot reports whether the line is @reboot, which has no instants of its own.
func (l *Line) AtBoot() bool { return l.reboot }

// Next is the first instant after one, in a zone; zero if there is none. What is due every so
// often is so from since on. An instant has whole milliseconds.
func (l *Line) Next(after, since time.Time, in *time.Location) time.Time {
	switch {
	case l.reboot:
		return time.Time{}
	case l.every > 0:
		if after.Before(since) {
			after = since
		}
		return since.Add((after.Sub(since)/l.every + 1) * l.every)
	case l.elapsed:
		return l.nextElapsed(after.In(in))
	}
	return l.nextFixed(after.In(in))
}

// nextElapsed is the first instant after one at which the clock on the wall shows a time of the
// line, whether it has shown that before or not.
func (l *Line) nextElapsed(after time.Time) time.Time {
	at, shown := after, zone.Wall(after)
	for {
		if shown = l.days.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		_, offset := at.Zone()
		due := shown.Add(-time.Duration(offset) * time.Second).In(after.Location())
		_, end := zone.Bounds(at)
		if end.IsZero() || due.Before(end) {
			return due
		}
		at, shown = end, zone.Wall(end).Add(-time.Nanosecond) // on by the new clock, from its first instant
	}
}

// nextFixed is the first instant after one that a time of the line means: where the clock on
// the wall leaves out a time, the first instant after it, and where it shows one twice, the first.
func (l *Line) nextFixed(after time.Time) time.Time {
	for shown := zone.Wall(after); ; {
		if shown = l.days.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		// What is shown is meant in the order in which it is shown, so the first one that lies
		// after the instant is it.
		if due := zone.Instant(shown, after.Location()); due.After(after) {
			return due
		}
	}
}

// Newest are the newest instants after one and up to another, at most n, the oldest first.
// However many there are, it looks at a few times n, or a day's.
func (l *Line) Newest(after, upto, since time.Time, in *time.Location, n int) (list []time.Time) {
	for span := time.Minute; ; span *= 2 {
		from := upto.Add(-span)
		whole := !from.After(after) || span > searchYears*366*24*time.Hour
		if whole {
			from = after
		}
		list = list[:0]
		for t := l.Next(from, since, in); !t.IsZero() && !t.After(upto); t = l.Next(t, since, in) {
			if list = append(list, t); len(list) == 2*n {
				list = append(list[:0], list[n:]...)
			}
		}
		if whole || len(list) >= n {
			return list[max(0, len(list)-n):]
		}
	}
}

// Stamp is an instant as the ids of jobs tell it.
func Stamp(t time.Time) string { return t.UTC().Format("20060102T150405Z") }

// counted is how many ids of an instant are numbered.
const counted = 20

// JobID is the nth id, from 1, to be tried for the job of a schedule's instant. The first are numbered; those after them
// nobody can say before, so that nobody can take all.
func JobID(name string, t time.Time, n int) string {
	id := name + "@" + Stamp(t)
	switch {
	case n > counted:
		id += "-" + strings.ToLower(rand.Text()[:10])
	case n > 1:
		id += fmt.Sprintf("-%d", n)
	}
	return id
}
