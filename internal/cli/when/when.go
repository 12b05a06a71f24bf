// Package when parses times and durations as people write them: "tomorrow 3am", "2 hours ago".
//
// Start with ParseTime and ParseDuration.
package when

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// direction says which time an incomplete text like 15:04 means: the next or the previous time with this time of day.
// See docs/decisions/0069.
type direction int

const (
	Forward  direction = iota // the next such time
	Backward                  // the previous such time
)

// ParseTime parses a time as people write it, in the zone of now unless the text names another zone. If the text is
// incomplete, like 15:04, searchDirection selects the next or the previous such time.
//
// It accepts RFC 3339, a date, a day, a time of day, and a day and a time in either order
// (2026-03-01 15:04, noon tomorrow, 0930 UTC Nov 30). It also accepts a duration after one of these
// (4pm + 3 days), a duration from now (in 2 hours, next week) and a duration before now (2 hours
// ago).
func ParseTime(text string, now time.Time, searchDirection direction) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil && hasRealZoneOffset(t) {
		return t, nil
	}
	words := strings.Fields(strings.ToLower(text))
	words, in := cutTimeZone(splitISODateTime(words), now.Location())
	now = now.In(in)
	if from, after, ok := strings.Cut(strings.Join(words, " "), "+"); ok && after != "" {
		return addStepToTime(strings.TrimSpace(from), strings.TrimSpace(after), now, searchDirection)
	}
	if t, ok := parseRelativeTime(words, now, searchDirection); ok {
		return t, nil
	}
	if t, ok := parseDayAndTime(words, now, searchDirection); ok {
		return t, nil
	}
	return time.Time{}, notATimeError(text, searchDirection)
}

// notATimeError returns the error for a text that is not a time. The error contains examples. If
// searchDirection is Backward, these are past times.
func notATimeError(text string, searchDirection direction) error {
	if searchDirection == Backward {
		return fmt.Errorf("%q is not a time; write it like 15:04, 3am, \"yesterday 03:00\", \"Nov 30\", \"2 hours ago\" or "+
			"2026-03-01T15:04:05Z", queue.ClipForMessage(text))
	}
	if span, ok := NormalizeDuration(text); ok {
		return fmt.Errorf("%q is a duration, not a time; write \"in %[1]s\" or +%s", queue.ClipForMessage(text), span)
	}
	return fmt.Errorf("%q is not a time; write it like 15:04, 3am, \"tomorrow 03:00\", \"friday 18:00\", \"Nov 30\", "+
		"\"now + 2 hours\" or 2030-03-01T15:04:05Z", queue.ClipForMessage(text))
}

// splitISODateTime splits the first word in two if it is a date and a time joined by a T, as in ISO 8601.
func splitISODateTime(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	day, clock, found := strings.Cut(words[0], "t")
	if _, ok := parseDate(day); !found || !ok {
		return words
	}
	return append([]string{day, clock}, words[1:]...)
}

// cutTimeZone removes the time zone from words. It returns the other words and the zone: UTC, GMT, Z, or an offset like
// +0100, +01:00 or +01. An offset must follow the time of day. After a space, it must include minutes. If words contain
// no zone, cutTimeZone returns defaultZone.
func cutTimeZone(words []string, defaultZone *time.Location) (remainingWords []string, location *time.Location) {
	location = defaultZone
	for _, word := range words {
		clock := ""
		if at := strings.LastIndexAny(word, "+-z"); at > 0 && endsInTimeOfDay([]string{word[:at]}) {
			clock, word = word[:at], word[at:]
		} else if len(word) >= len("+0100") && endsInTimeOfDay(remainingWords) {
			// The word may be an offset, which parseZoneOffset checks below.
		} else if word != "utc" && word != "gmt" && word != "z" {
			remainingWords = append(remainingWords, word)
			continue
		}
		offset, ok := parseZoneOffset(word)
		switch {
		case !ok:
			remainingWords = append(remainingWords, clock+word)
		case clock != "":
			remainingWords = append(remainingWords, clock)
		}
		if ok {
			location = offset
		}
	}
	return remainingWords, location
}

// endsInTimeOfDay reports whether the last word or the last two words, like "3 pm", are a time of day.
func endsInTimeOfDay(words []string) bool {
	for n := 1; n <= min(2, len(words)); n++ {
		if _, ok := parseTimeOfDay(words[len(words)-n:]); ok {
			return true
		}
	}
	return false
}

// hasRealZoneOffset reports whether the offset of a time is used somewhere on Earth: from -12:00 to +14:00.
func hasRealZoneOffset(t time.Time) bool {
	_, seconds := t.Zone()
	return seconds >= -12*60*60 && seconds <= 14*60*60
}

// parseZoneOffset parses a time zone that follows a time of day.
func parseZoneOffset(word string) (*time.Location, bool) {
	if word == "utc" || word == "gmt" || word == "z" {
		return time.UTC, true
	}
	for _, layout := range []string{"-0700", "-07:00", "-07"} {
		if t, err := time.Parse(layout, word); err == nil && hasRealZoneOffset(t) {
			_, seconds := t.Zone()
			return time.FixedZone("", seconds), true
		}
	}
	return nil, false
}

// addStepToTime adds the duration in stepText to the time in baseText, or to now if baseText is "". Like the command
// at(1), it keeps the time of day when it adds days. A number without a unit is accepted only if baseText is the word
// now.
func addStepToTime(baseText, stepText string, now time.Time, searchDirection direction) (time.Time, error) {
	s, err := ParseCalendarStep(stepText)
	if err != nil {
		return now, err
	}
	if baseText == "" {
		return s.FromNow(now, Forward), nil
	}
	if _, err := strconv.ParseFloat(stepText, 64); err == nil {
		return now, fmt.Errorf("+%s has no time unit; write it like \"now + 2 hours\"", queue.ClipForMessage(stepText))
	}
	t, err := ParseTime(baseText, now, searchDirection)
	return s.addTo(t, 1), err
}

// parseRelativeTime parses a time that is given as a distance from now or from another time, such as "in 2
// hours". Like at(1), it takes "next week" as one week from now. It returns false for any other text.
func parseRelativeTime(words []string, now time.Time, searchDirection direction) (time.Time, bool) {
	n := len(words)
	switch {
	case n == 1 && words[0] == "now":
		return now, true
	case n > 1 && words[0] == "in":
		s, err := ParseCalendarStep(strings.Join(words[1:], " "))
		return s.FromNow(now, Forward), err == nil
	case n > 1 && words[n-1] == "ago":
		s, err := ParseCalendarStep(strings.Join(words[:n-1], " "))
		return s.FromNow(now, Backward), err == nil
	case n < 2 || words[n-2] != "next" && (words[0] != "last" || n > 2):
		return now, false
	}
	s, err := ParseCalendarStep("1 " + words[n-1])
	switch {
	case err != nil: // a word that is not a unit of time, as in "next friday"
		return now, false
	case words[0] == "last":
		return s.addTo(now, -1), true
	case n == 2:
		return s.addTo(now, 1), true
	}
	t, err := ParseTime(strings.Join(words[:n-2], " "), now, searchDirection)
	return s.addTo(t, 1), err == nil
}

// namedDay is a day as people write it. Some days recur: friday recurs every repeatIntervalDays days, and Nov 30 recurs
// every repeatIntervalYears years. If a day does not recur, repeatIntervalDays and repeatIntervalYears are 0.
type namedDay struct {
	year                int
	month               time.Month
	day                 int
	repeatIntervalDays  int
	repeatIntervalYears int
	isTonight           bool // the user wrote "tonight", so a time of day before noon is an error
}

// dayOf returns the day of a time.
func dayOf(t time.Time) namedDay { return namedDay{year: t.Year(), month: t.Month(), day: t.Day()} }

// maxYearsToLeapDay is how many years namedDay.timeAt tries until it finds a year that has the day. February 29
// may not occur for eight years, for example from 2096 to 2104.
const maxYearsToLeapDay = 8

// parseDayAndTime parses a day, a time of day, or both in either order. For searchDirection, see ParseTime.
func parseDayAndTime(words []string, now time.Time, searchDirection direction) (time.Time, bool) {
	today := dayOf(now)
	if clock, ok := parseTimeOfDay(words); ok {
		today.repeatIntervalDays = 1
		return today.timeAt(clock, now, searchDirection)
	}
	if len(words) == 1 && words[0] == "tonight" {
		return today.timeAt(time.Time{}.Add(tonightTimeOfDay), now, searchDirection)
	}
	for i := range words {
		if d, ok := parseDay(words[i:], now); ok && i > 0 {
			clock, ok := parseTimeOfDay(removeFillerWordAt("on", words[:i], i-1))
			if !ok || d.repeatIntervalYears != 0 && looksLikeYear(words[0]) {
				return now, false
			}
			return d.timeAt(clock, now, searchDirection)
		}
		d, ok := parseDay(words[:len(words)-i], now)
		if !ok {
			continue
		}
		rest := removeFillerWordAt("at", words[len(words)-i:], 0)
		clock, ok := parseTimeOfDay(rest)
		if !ok && len(rest) > 0 {
			return now, false
		}
		return d.timeAt(clock, now, searchDirection)
	}
	return now, false
}

// looksLikeYear reports whether a word may be a year. A word like 2026 may also be the time of day 20:26.
func looksLikeYear(word string) bool {
	year, err := strconv.Atoi(word)
	return err == nil && len(word) == len("2006") && year >= 1970
}

// tonightTimeOfDay is the time of day that the word "tonight" means if no time of day follows it.
const tonightTimeOfDay = 20 * time.Hour

// removeFillerWordAt removes the word at index i if it is fillerWord, for example the optional word "at". It never
// removes the only word.
func removeFillerWordAt(fillerWord string, words []string, i int) []string {
	if len(words) > 1 && words[i] == fillerWord {
		return slices.Delete(slices.Clone(words), i, i+1)
	}
	return words
}

// timeAt returns the time on day d that has the time of day of timeOfDay. If the day recurs, searchDirection selects
// the next or the previous such time. The function returns false if no such time exists.
func (d namedDay) timeAt(timeOfDay, now time.Time, searchDirection direction) (time.Time, bool) {
	step := 1
	if searchDirection == Backward {
		step = -1
	}
	for n := 0; n != step*(maxYearsToLeapDay+1); n += step {
		year, day := d.year+n*d.repeatIntervalYears, d.day+n*d.repeatIntervalDays
		t := zone.TimeOfWallClock(time.Date(year, d.month, day, timeOfDay.Hour(), timeOfDay.Minute(),
			timeOfDay.Second(), timeOfDay.Nanosecond(), time.UTC), now.Location())
		// exists is false if the year has no such day, like February 29.
		exists := d.repeatIntervalDays != 0 || time.Date(year, d.month, day, 0, 0, 0, 0, time.UTC).Day() == day
		switch {
		case d.repeatIntervalDays == 0 && d.repeatIntervalYears == 0:
			return t, exists && !(d.isTonight && timeOfDay.Hour() < 12)
		case !exists:
		case t.After(now) == (searchDirection == Forward):
			return t, true
		}
	}
	return now, false
}

// parseDay parses a day: today, tonight, tomorrow, yesterday, friday, next friday, last friday, Nov
// 30, 30 Nov 2026, 2026-11-30.
func parseDay(words []string, now time.Time) (d namedDay, ok bool) {
	inDays := func(n int) namedDay {
		return dayOf(time.Date(now.Year(), now.Month(), now.Day()+n, 0, 0, 0, 0, time.UTC))
	}
	const daysPerWeek = 7
	switch n := len(words); {
	case n == 1 && words[0] == "tonight":
		d = inDays(0)
		d.isTonight = true
		return d, true
	case n == 1:
		if i := slices.Index([]string{"yesterday", "today", "tomorrow"}, words[0]); i >= 0 {
			return inDays(i - 1), true
		}
		if t, ok := parseDate(words[0]); ok {
			return dayOf(t), true
		}
		w, ok := parseWeekday(words[0])
		d = inDays(int(w - now.Weekday()))
		d.repeatIntervalDays = daysPerWeek
		return d, ok
	case n == 2 && (words[0] == "next" || words[0] == "last"):
		w, ok := parseWeekday(words[1])
		away := (int(w-now.Weekday()) + daysPerWeek) % daysPerWeek
		if words[0] == "last" {
			return inDays(away - daysPerWeek), ok
		}
		return inDays(cmp.Or(away, daysPerWeek)), ok
	case n == 2 || n == 3:
		return parseDayOfMonth(words, now)
	}
	return d, false
}

// parseWeekday parses a day of the week, written in full or as its first three letters.
func parseWeekday(word string) (time.Weekday, bool) {
	for w := time.Sunday; w <= time.Saturday; w++ {
		if full := strings.ToLower(w.String()); word == full || word == full[:3] {
			return w, true
		}
	}
	return 0, false
}

// parseDate parses a date in digits, in the forms of at(1): 2026-11-30, 11/30/2026 and 30.11.2026, with
// a year of two or four digits.
func parseDate(word string) (time.Time, bool) {
	for _, layout := range []string{"2006-1-2", "1/2/2006", "2.1.2006", "06-1-2", "1/2/06", "2.1.06"} {
		if t, err := time.Parse(layout, word); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// parseDayOfMonth parses a day of a month. If the text contains no year, the day recurs every year.
func parseDayOfMonth(words []string, now time.Time) (d namedDay, ok bool) {
	text := words[0] + " " + strings.TrimSuffix(words[1], ",")
	for _, layout := range []string{"Jan 2", "January 2", "2 Jan", "2 January"} {
		// Parse the year separately. With a year in the layout, time.Parse would reject Feb 29 2027, and the
		// caller would take 2027 as a time of day.
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
			continue
		case len(words) == 2:
			return namedDay{year: now.Year(), month: t.Month(), day: t.Day(), repeatIntervalYears: 1}, true
		}
		year, _ := strconv.Atoi(words[2])
		d = namedDay{year: year, month: t.Month(), day: t.Day()}
		return d, looksLikeYear(words[2])
	}
	return d, false
}

// parseTimeOfDay parses a time of day: 15:04, 15:04:05, 1504, 3am, 3:30 pm, 0330pm, noon, midnight, teatime. It
// rejects a bare hour like 12, because that is ambiguous.
func parseTimeOfDay(words []string) (time.Time, bool) {
	text := strings.Join(words, "")
	if hour, named := map[string]time.Duration{"midnight": 0, "noon": 12, "teatime": 16}[text]; named {
		return time.Time{}.Add(hour * time.Hour), true
	}
	for _, layout := range []string{"15:04", "15:04:05", "1504", "3pm", "3:04pm", "0304pm"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
