package when

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// ParseDuration parses a duration in the syntax of queue.ParseDuration, or in words: 2 hours, 5min, an hour and
// 30 minutes. The protocol accepts only the syntax of queue.ParseDuration.
func ParseDuration(text string) (time.Duration, error) {
	if text == "" {
		return 0, fault.ErrEmptyFlagValue
	}
	d, err := queue.ParseDuration(text)
	if err == nil || errors.Is(err, queue.ErrDurationNegative) || errors.Is(err, queue.ErrDurationTooLong) {
		return d, err
	}
	if short, ok := NormalizeDuration(text); ok {
		return queue.ParseDuration(short)
	}
	return 0, fmt.Errorf("%q is not a duration; write it like 90s, 1h30m, 7d, 5min or \"2 hours\"",
		queue.ClipForMessage(text))
}

// NormalizeDuration converts a duration in words to the syntax of queue.ParseDuration, such as 1h30m. It
// returns false if the text is not a duration in words.
func NormalizeDuration(text string) (string, bool) {
	var normalized strings.Builder
	number := ""
	for _, w := range durationWords(text) {
		switch {
		case number == "" && (w == "a" || w == "an"):
			number = "1"
		case number == "" && w == "and" && normalized.Len() > 0:
		case number == "" && w[0] >= '0' && w[0] <= '9':
			number = w
		case number != "" && durationUnitOfWord(w) != "":
			normalized.WriteString(number + durationUnitOfWord(w))
			number = ""
		default:
			return "", false
		}
	}
	return normalized.String(), number == "" && normalized.Len() > 0
}

// durationWords splits a text into numbers and words, even if no space separates them.
func durationWords(text string) (words []string) {
	isNumber := func(r rune) bool { return r == '.' || r >= '0' && r <= '9' }
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r == ',' }) {
		for word != "" {
			first := isNumber([]rune(word)[0])
			n := strings.IndexFunc(word, func(r rune) bool { return isNumber(r) != first })
			if n < 0 {
				n = len(word)
			}
			words = append(words, word[:n])
			word = word[n:]
		}
	}
	return words
}

// durationUnitOfWord returns the short name of a unit of time, or "" if the word is not a unit. Single letters are
// case-sensitive, because M means months in some programs and minutes in others.
func durationUnitOfWord(word string) string {
	switch word {
	case "s", "m", "h", "d", "w", "ms", "us", "µs", "ns":
		return word
	}
	return map[string]string{
		"millisecond": "ms", "msec": "ms", "second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "hr": "h",
		"day": "d", "week": "w", "wk": "w",
	}[strings.TrimSuffix(strings.ToLower(word), "s")]
}

// calendarStep is a distance between two times: a number of calendar months plus a duration. One calendar month after a
// time is the same day of the next month, at the same time of day.
type calendarStep struct {
	months   int
	duration time.Duration
}

// maxStepMonths is the longest step in months: ten years, like the longest duration.
const maxStepMonths = 120

// ParseCalendarStep parses a step: a duration, or a number of months or years.
func ParseCalendarStep(text string) (s calendarStep, err error) {
	words := durationWords(text)
	perUnit := map[string]int{"month": 1, "months": 1, "mo": 1, "year": 12, "years": 12, "yr": 12, "yrs": 12}
	if len(words) != 2 || perUnit[words[1]] == 0 {
		s.duration, err = ParseDuration(text)
		return s, err
	}
	n := 1
	if words[0] != "a" && words[0] != "an" {
		n, err = strconv.Atoi(words[0])
	}
	s.months = n * perUnit[words[1]]
	if err != nil || s.months > maxStepMonths {
		return s, fmt.Errorf("%q is not supported as a duration; months and years must be whole numbers, at most 10 years",
			queue.ClipForMessage(text))
	}
	return s, nil
}

// addTo returns t plus stepCount steps. If the step is a number of whole days, the result has the same time of day as
// t, even if the clocks change between the two.
func (s calendarStep) addTo(t time.Time, stepCount int) time.Time {
	const day = 24 * time.Hour
	days := int(s.duration / day)
	if s.months != 0 || days != 0 {
		t = zone.TimeOfWallClock(zone.WallClockAsUTC(t).AddDate(0, stepCount*s.months, stepCount*days), t.Location())
	}
	return t.Add(time.Duration(stepCount) * (s.duration % day))
}

// FromNow returns the time that is one step after or before now. Here a day is always 24 hours, even if the clocks
// change.
func (s calendarStep) FromNow(now time.Time, stepDirection direction) time.Time {
	steps := 1
	if stepDirection == Backward {
		steps = -1
	}
	if s.months != 0 {
		return s.addTo(now, steps)
	}
	return now.Add(time.Duration(steps) * s.duration)
}
