package queue

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// MaxDuration is the longest accepted duration: ten years of 365 days. This limit prevents an overflow when a
// duration is added to a time.
const MaxDuration = 10 * 365 * 24 * time.Hour

// durationUnit is a unit of a duration.
type durationUnit struct {
	name     string
	duration time.Duration
}

// durationUnits is a slice instead of a map, because a map would be built at every start of the program.
var durationUnits = []durationUnit{
	{"ns", time.Nanosecond}, {"us", time.Microsecond}, {"µs", time.Microsecond}, {"ms", time.Millisecond},
	{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}, {"w", 7 * 24 * time.Hour},
}

// ParseDuration parses a duration such as 90, 90s, 1.5h, 1h30m or 7d. A number without a unit is in seconds. Negative
// durations, and durations above MaxDuration, are rejected.
func ParseDuration(text string) (time.Duration, error) {
	if seconds, err := parseDecimal(text); err == nil {
		return DurationOfSeconds(seconds)
	}
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		if _, err := ParseDuration(rest); err == nil {
			return 0, ErrDurationNegative
		}
	}
	// Add up integers. A float64 of nanoseconds would be inexact above 104 days.
	var total time.Duration
	rest := text
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if n <= 0 {
			return 0, invalidDurationError(text)
		}
		number, err := strconv.ParseFloat(rest[:n], 64)
		rest = rest[n:]
		u := strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' })
		if u < 0 {
			u = len(rest)
		}
		i := slices.IndexFunc(durationUnits, func(o durationUnit) bool { return o.name == rest[:u] })
		if err != nil || i < 0 {
			return 0, invalidDurationError(text)
		}
		part, err := DurationOfSeconds(number * float64(durationUnits[i].duration) / float64(time.Second))
		if err != nil {
			return 0, err
		}
		if total += part; total > MaxDuration {
			return 0, ErrDurationTooLong
		}
		rest = rest[u:]
	}
	if text == "" {
		return 0, fmt.Errorf("must not be empty; write a duration like 90s, 1h30m or 7d")
	}
	return total, nil
}

func invalidDurationError(text string) error {
	return fmt.Errorf("%q is not a duration; write it like 90s, 1h30m or 7d", ClipForMessage(text))
}

// parseDecimal parses a number in decimal notation. It returns an infinity if the number is too large for a
// float64.
func parseDecimal(text string) (float64, error) {
	if strings.Trim(text, "+-.0123456789eE") != "" || strings.HasPrefix(text, "+") {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseFloat(text, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil
	}
	return n, err
}

// These are the errors of ParseDuration for a duration that is negative or too long.
var (
	ErrDurationTooLong  = errors.New("too long; the maximum is 3650d (ten years)")
	ErrDurationNegative = errors.New("cannot be negative; use 0 or more")
)

// ParseInteger parses a whole number. The error says what to write instead.
func ParseInteger(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, strconv.ErrRange):
		return 0, outOfRangeError(text)
	}
	return 0, fmt.Errorf("%q is not a whole number; use digits only, for example 10", ClipForMessage(text))
}

// ParseNumber parses a number. The error says what to write instead.
func ParseNumber(text string) (float64, error) {
	n, err := parseDecimal(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a number; write it like 0.5", ClipForMessage(text))
	case math.IsInf(n, 0):
		return 0, outOfRangeError(text)
	}
	return n, nil
}

// outOfRangeError returns the error for a number that its type cannot hold.
func outOfRangeError(text string) error {
	if strings.HasPrefix(text, "-") {
		return fmt.Errorf("%s is too small; use a larger number", ClipForMessage(text))
	}
	return fmt.Errorf("%s is too large; use a smaller number", ClipForMessage(text))
}

// DurationOfSeconds converts seconds to a duration. It rejects values below 0 and above MaxDuration.
func DurationOfSeconds(seconds float64) (time.Duration, error) {
	switch {
	case seconds < 0:
		return 0, ErrDurationNegative
	case seconds > MaxDuration.Seconds():
		return 0, ErrDurationTooLong
	}
	return time.Duration(math.Round(seconds * float64(time.Second))), nil
}

// FormatDuration formats a duration so that ParseDuration can parse it: in whole days, hours and minutes, and
// in seconds with a fraction.
func FormatDuration(d time.Duration) string {
	if d <= 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range []durationUnit{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / u.duration; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.duration
		}
	}
	switch {
	case d == 0:
	case d < time.Second && b.Len() == 0:
		b.WriteString(strings.Replace(d.String(), "µs", "us", 1))
	case d < time.Second:
		b.WriteString(strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s")
	default: // Duration.String computes with integers, so the fraction is exact
		b.WriteString(d.String())
	}
	return b.String()
}

// sizeUnits lists the units of sizes. ParseSize accepts all of them, in upper and lower case. FormatSize uses
// only the first five, from the largest to the smallest.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"kb", 1 << 10}, {"mb", 1 << 20}, {"gb", 1 << 30}, {"tb", 1 << 40}, {"pb", 1 << 50},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"p", 1 << 50}, {"b", 1}, {"", 1},
}

// ParseSize parses a number of bytes such as 4096, 64K, 1MiB or 2G. Every suffix is a power of
// 1024.
func ParseSize(text string) (int64, error) {
	lower := strings.ToLower(strings.Trim(text, " "))
	for _, s := range sizeUnits {
		number, found := strings.CutSuffix(lower, strings.ToLower(s.suffix))
		if !found || number == "" {
			continue
		}
		n, err := parseDecimal(strings.TrimRight(number, " "))
		switch {
		case err != nil:
			return 0, invalidSizeError(text)
		case n < 0:
			return 0, ErrDurationNegative
		case n*float64(s.bytes) > 1<<50:
			return 0, fmt.Errorf("too large; the maximum is 1PiB")
		}
		return int64(n * float64(s.bytes)), nil
	}
	return 0, invalidSizeError(text)
}

func invalidSizeError(text string) error {
	return fmt.Errorf("%q is not a size; write it like 4096, 64K or 1MiB", ClipForMessage(text))
}

// FormatSize formats a number of bytes so that ParseSize returns exactly the same number.
func FormatSize(n int64) string {
	for _, s := range sizeUnits[:5] {
		if n >= s.bytes && n%s.bytes == 0 {
			return strconv.FormatInt(n/s.bytes, 10) + s.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// DescribeSize formats a number of bytes for a message. The text always has a unit, such as 64KiB or 1000
// bytes.
func DescribeSize(n int64) string {
	switch {
	case n == 1:
		return "1 byte"
	case n%(1<<10) != 0 || n == 0:
		return strconv.FormatInt(n, 10) + " bytes"
	}
	return FormatSize(n)
}

// UnixMillis is a time in milliseconds since 1970 UTC. 0 means no time.
type UnixMillis int64

// UnixMillisOf converts t to UnixMillis. It rounds down.
func UnixMillisOf(t time.Time) UnixMillis { return UnixMillis(t.UnixMilli()) }

// Time converts m to a time in UTC.
func (m UnixMillis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// String returns the time in RFC 3339 format, in UTC with milliseconds. It returns "" for 0.
func (m UnixMillis) String() string {
	if m == 0 {
		return ""
	}
	return m.Time().Format("2006-01-02T15:04:05.000Z07:00")
}

// Add returns m plus d. It rounds up to a full millisecond, so that nothing is due too early.
func (m UnixMillis) Add(d time.Duration) UnixMillis {
	return m + UnixMillis((d+time.Millisecond-1)/time.Millisecond)
}

// ParseTime parses an RFC 3339 time after 1970-01-01T00:00:00Z and before the year 10000.
func ParseTime(text string) (UnixMillis, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	_, offset := t.Zone()
	const daySeconds, hourEndIndex = 24 * 60 * 60, len("2006-01-02T15")
	// time.Parse also accepts one-digit hours and a comma, so reject them here.
	if err != nil || text[hourEndIndex] != ':' || strings.Contains(text, ",") ||
		offset <= -daySeconds || offset >= daySeconds {
		return 0, fmt.Errorf("%q is not an RFC 3339 time; write it like 2026-03-01T15:04:05Z", ClipForMessage(text))
	}
	return UnixMillisOfParsedTime(t, text)
}

// UnixMillisOfParsedTime converts a time that was parsed from text. It returns an error if the time is
// 1970-01-01T00:00:00Z, which would mean no time, or earlier, or if its year in UTC has more than four digits.
func UnixMillisOfParsedTime(t time.Time, text string) (UnixMillis, error) {
	if t.UnixMilli() <= 0 || t.UTC().Year() > 9999 {
		return 0, fmt.Errorf("%q is out of range; use a time after 1970-01-01T00:00:00Z and before the year 10000",
			ClipForMessage(text))
	}
	return UnixMillisOf(t), nil
}

// CommandText returns command. If command is "", it returns a line that a shell splits into the words of argv. If that
// line takes more than MaxCommandBytes bytes in JSON, CommandText cuts the line and appends "…".
func CommandText(command string, argv []string) string {
	if command != "" || len(argv) == 0 {
		return command
	}
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = QuoteShellWord(word)
	}
	// Quote a first word that the shell would take for an assignment or a keyword.
	if words[0] == argv[0] && (strings.Contains(argv[0], "=") || isShellKeyword(argv[0])) {
		words[0] = quoteWord(argv[0])
	}
	return ClipJSON(strings.Join(words, " "), MaxCommandBytes)
}

// QuoteShellWord returns a text in the form in which a shell reads it as one word. It adds quotes only if they
// are needed.
func QuoteShellWord(text string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(unquotedChars, r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return quoteWord(text)
}
