// Package schedule computes when recurring jobs are due: the occurrences (planned times) of a cron line in a
// time zone.
//
// Start with Parse and CronLine.NextOccurrence. A cron line describes times as a wall clock shows them. When a time
// zone changes its offset, for example for summer time, the clock skips some times and shows others twice. How a line
// treats these times depends on its hour field:
//
// If the hour field is a number or a list of numbers, as in "30 2 * * *", each matching wall-clock time has exactly one
// occurrence, even a time that the clock skips or shows twice (nextWallClockOccurrence). If the hour field contains *,
// a step or a range, an occurrence happens whenever the clock shows a matching time (nextElapsedOccurrence).
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

// These constants are limits of a cron line. See docs/decisions/0021.
const (
	MaxCronLineBytes = 1024        // maximum length in bytes
	MinEveryInterval = time.Second // shortest interval of @every; job ids contain times in whole seconds
	// maxSearchYears limits how far ahead NextOccurrence searches, in years. For example, the next February 29 that is a
	// Sunday may be 40 years away.
	maxSearchYears = 50
)

// CronLine is a parsed cron line.
type CronLine struct {
	everyInterval time.Duration // interval of @every; 0 for other lines
	runsAtBoot    bool          // the line is @reboot
	// timeFields finds wall-clock times that match the line. Wall-clock times are passed to the cron library as times in
	// UTC, so that the library applies no time zone.
	timeFields      *cron.SpecSchedule
	usesElapsedTime bool // NextOccurrence uses nextElapsedOccurrence instead of nextWallClockOccurrence
}

// cronField describes one field of a cron line.
type cronField struct{ name, allowedValues, lowestValueText string }

// cronFields lists the fields of a cron line in their order. A line may omit the first one, the seconds.
var cronFields = []cronField{
	{"second", "0 to 59", "0"},
	{"minute", "0 to 59", "0"},
	{"hour", "0 to 23", "0"},
	{"day of the month", "1 to 31", "1"},
	{"month", "1 to 12 or jan to dec", "1"},
	{"day of the week", "0 to 7 or sun to sat", "0"},
}

// These constants are indexes of fields in cronFields.
const (
	hourField       = 2
	dayOfMonthField = 3
	dayOfWeekField  = 5
)

// cronNicknames maps words such as @daily to the cron lines that they represent.
var cronNicknames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// syntaxHint is advice in errors about a cron line: it lists the accepted forms.
const syntaxHint = `write five fields like "0 3 * * *", six fields with the seconds first, @hourly, ` +
	`@daily, @weekly, @monthly, @yearly, "@every 90s" or @reboot`

// ParseCronLine parses a cron line. If the line is invalid, the error is about the field cron of the schedule, and
// names the invalid part of the line and the accepted values.
func ParseCronLine(text string) (CronLine, error) {
	if len(text) > MaxCronLineBytes {
		return CronLine{}, queue.InvalidFieldError("cron", "too long (%d bytes); the maximum is %d bytes", len(text),
			MaxCronLineBytes)
	}
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
		return CronLine{}, queue.InvalidFieldError("cron", "must not be empty; %s", syntaxHint)
	case words[0] == "@reboot" && len(words) == 1:
		return CronLine{runsAtBoot: true}, nil
	case words[0] == "@every":
		return parseEveryInterval(words[1:])
	case strings.HasPrefix(words[0], "@"):
		line, known := cronNicknames[strings.ToLower(words[0])]
		if !known || len(words) > 1 {
			return CronLine{}, queue.InvalidFieldError("cron", "unknown schedule %q; %s", queue.ClipForMessage(text), syntaxHint)
		}
		words = strings.Fields(line)
	case strings.Contains(words[0], "="):
		return CronLine{}, queue.InvalidFieldError("cron",
			`%q is not a cron field; set the time zone with --tz (parameter "tz")`,
			queue.ClipForMessage(words[0]))
	}
	switch len(words) {
	case len(cronFields) - 1:
		words = append([]string{"0"}, words...)
	case len(cronFields):
	default:
		return CronLine{}, queue.InvalidFieldError("cron", "wrong number of fields (%d); %s", len(words), syntaxHint)
	}
	return parseCronFields(words)
}

// parseEveryInterval parses the words after @every.
func parseEveryInterval(words []string) (CronLine, error) {
	if len(words) != 1 {
		return CronLine{}, queue.InvalidFieldError("cron", "@every needs one duration; write it like @every 90s")
	}
	d, err := queue.ParseDuration(words[0])
	switch {
	case err != nil:
		return CronLine{}, queue.InvalidFieldError("cron", "@every: %v", err)
	case d < MinEveryInterval:
		return CronLine{}, queue.InvalidFieldError("cron", "@every %s is too often; use at least %s",
			queue.ClipForMessage(words[0]),
			queue.FormatDuration(MinEveryInterval))
	}
	return CronLine{everyInterval: d.Truncate(time.Millisecond)}, nil
}

// cronParser parses lines with six fields. If a line restricts both the day of the month and the day of the week,
// a day needs to match only one of them, as in other implementations of cron.
var cronParser = cron.MustNewParser(
	cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom).WithMaxSearchYears(
	maxSearchYears)

// parseCronFields parses the six fields of a line. It also parses each field separately, so that an error can
// name the field.
func parseCronFields(fieldTexts []string) (CronLine, error) {
	given := fieldTexts
	// The library gives a capital H, as in THU, a special meaning, so use lower case.
	fieldTexts = strings.Fields(strings.ToLower(strings.Join(fieldTexts, " ")))
	parts := make([]string, len(fieldTexts))
	for i, word := range fieldTexts {
		var ok bool
		if parts[i], ok = parseFieldList(i, word); !ok {
			return CronLine{},
				queue.InvalidFieldError("cron", "the %s %q is not valid; use %s, a list (1,2), a range (1-3), a step of "+
					"1 or more (*/2) or *", cronFields[i].name, queue.ClipForMessage(given[i]), cronFields[i].allowedValues)
		}
	}
	read, err := cronParser.Parse(strings.Join(parts, " "))
	if err != nil {
		return CronLine{}, queue.InvalidFieldError("cron", "%v", err)
	}
	days, ok := read.(*cron.SpecSchedule)
	if !ok {
		return CronLine{}, queue.InvalidFieldError("cron", "%s", syntaxHint)
	}
	days.Location = time.UTC
	// As in crontab(5), a day must match both day fields if one of the fields begins with *.
	days.DowOrDom = !startsWithWildcard(fieldTexts[dayOfMonthField]) && !startsWithWildcard(fieldTexts[dayOfWeekField])
	l := CronLine{timeFields: days, usesElapsedTime: strings.ContainsAny(fieldTexts[hourField], "*?/-")}
	if days.Next(time.Unix(0, 0).UTC()).IsZero() {
		return CronLine{}, queue.InvalidFieldError("cron",
			"the schedule would never start a job: the given day does not exist in any of "+
				"the given months; change the day or the month")
	}
	return l, nil
}

// parseFieldList checks the comma-separated list in a field, and returns the list in a form that the library accepts.
// The library rejects a step that is longer than its range. In crontab(5), such a step selects only the first value of
// the range, so parseFieldList replaces the range and the step by this value.
func parseFieldList(fieldIndex int, fieldText string) (normalizedList string, ok bool) {
	items := strings.Split(fieldText, ",")
	for i, item := range items {
		span, step, _ := strings.Cut(item, "/")
		if item == "" || strings.Contains(item, "+") {
			return "", false
		}
		if cronLibraryAccepts(fieldIndex, item) {
			continue
		}
		if strings.Trim(step, "0") == "" || strings.Trim(step, "0123456789") != "" || !cronLibraryAccepts(fieldIndex, span) {
			return "", false
		}
		items[i], _, _ = strings.Cut(span, "-")
		if startsWithWildcard(span) {
			items[i] = cronFields[fieldIndex].lowestValueText
		}
	}
	return strings.Join(items, ","), true
}

// cronLibraryAccepts reports whether the cron library accepts an item of the list in a field.
func cronLibraryAccepts(fieldIndex int, listItem string) bool {
	line := []string{"0", "0", "0", "*", "*", "*"}
	line[fieldIndex] = listItem
	_, err := cronParser.Parse(strings.Join(line, " "))
	return err == nil
}

// startsWithWildcard reports whether a field or range begins with * or ?. As in crontab(5), this includes */2.
func startsWithWildcard(fieldText string) bool { return fieldText[0] == '*' || fieldText[0] == '?' }

// RunsAtBoot reports whether the line is @reboot, whose occurrences are the boots of the machine.
func (l *CronLine) RunsAtBoot() bool { return l.runsAtBoot }

// NextOccurrence returns the first occurrence after afterTime in a time zone, or the zero time if no occurrence exists.
// scheduleCreatedAt is when the schedule was created, and the first interval of @every starts at this time. Every
// occurrence is a whole number of milliseconds.
func (l *CronLine) NextOccurrence(afterTime, scheduleCreatedAt time.Time, zone *time.Location) time.Time {
	switch {
	case l.runsAtBoot:
		return time.Time{}
	case l.everyInterval > 0:
		if afterTime.Before(scheduleCreatedAt) {
			afterTime = scheduleCreatedAt
		}
		return scheduleCreatedAt.Add((afterTime.Sub(scheduleCreatedAt)/l.everyInterval + 1) * l.everyInterval)
	case l.usesElapsedTime:
		return l.nextElapsedOccurrence(afterTime.In(zone))
	}
	return l.nextWallClockOccurrence(afterTime.In(zone))
}

// nextElapsedOccurrence returns the first time after afterTime at which the wall clock shows a matching time. A time
// that the clock shows twice can match twice.
func (l *CronLine) nextElapsedOccurrence(afterTime time.Time) time.Time {
	at, shown := afterTime, zone.WallClockAsUTC(afterTime)
	for {
		if shown = l.timeFields.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		_, offset := at.Zone()
		due := shown.Add(-time.Duration(offset) * time.Second).In(afterTime.Location())
		_, end := zone.ConstantOffsetPeriod(at)
		if end.IsZero() || due.Before(end) {
			return due
		}
		// The offset of the time zone changes at end, and no matching time comes before end. Continue at end, which may
		// match, with the new offset.
		at, shown = end, zone.WallClockAsUTC(end).Add(-time.Nanosecond)
	}
}

// nextWallClockOccurrence returns the first occurrence after afterTime. Every matching wall-clock time has exactly one
// occurrence. If the clock skips this time, the occurrence is at the end of the skipped period. If the clock
// shows it twice, the first time counts.
func (l *CronLine) nextWallClockOccurrence(afterTime time.Time) time.Time {
	for shown := zone.WallClockAsUTC(afterTime); ; {
		if shown = l.timeFields.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		// Occurrences are in the order of their wall-clock times, so the first one after afterTime is the
		// result.
		if due := zone.TimeOfWallClock(shown, afterTime.Location()); due.After(afterTime) {
			return due
		}
	}
}

// NewestOccurrences returns the newest occurrences after afterTime and until untilTime, at most maxCount, oldest first.
// The other parameters are as in NextOccurrence. NewestOccurrences searches a short period before untilTime first, then
// longer ones, so it is fast even if many more occurrences exist.
func (l *CronLine) NewestOccurrences(afterTime, untilTime, scheduleCreatedAt time.Time, zone *time.Location,
	maxCount int) (occurrences []time.Time) {
	for span := time.Minute; ; span *= 2 {
		start := untilTime.Add(-span)
		complete := !start.After(afterTime) || span > maxSearchYears*366*24*time.Hour
		if complete {
			start = afterTime
		}
		occurrences = occurrences[:0]
		for t := l.NextOccurrence(start, scheduleCreatedAt, zone); !t.IsZero() &&
			!t.After(untilTime); t = l.NextOccurrence(t, scheduleCreatedAt, zone) {
			if occurrences = append(occurrences, t); len(occurrences) == 2*maxCount {
				occurrences = append(occurrences[:0], occurrences[maxCount:]...)
			}
		}
		if complete || len(occurrences) >= maxCount {
			return occurrences[max(0, len(occurrences)-maxCount):]
		}
	}
}

// lastNonRandomCandidate is the number of the last id that CandidateJobID returns without a random suffix.
const lastNonRandomCandidate = 20

// CandidateJobID returns an id to try for the job of an occurrence. The caller tries candidateNumber 1, 2 and so on
// until an id is free. The first id has no suffix, the next ones end in a number. The ids after lastNonRandomCandidate
// end in random characters, so that no user can take all of them in advance.
func CandidateJobID(scheduleName string, plannedAt time.Time, candidateNumber int) string {
	id := scheduleName + "@" + plannedAt.UTC().Format("20060102T150405Z")
	switch {
	case candidateNumber > lastNonRandomCandidate:
		id += "-" + strings.ToLower(rand.Text()[:10])
	case candidateNumber > 1:
		id += fmt.Sprintf("-%d", candidateNumber)
	}
	return id
}
