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

// MaxDuration is the longest duration that is accepted anywhere: ten years of
// 365 days. It keeps every sum of an instant and a duration far from overflow.
const MaxDuration = 10 * 365 * 24 * time.Hour

// unit is one of a duration. A slice of them is there at once, where a map is made before main.
type unit struct {
	name string
	is   time.Duration
}

var units = []unit{
	{"ns", time.Nanosecond}, {"us", time.Microsecond}, {"µs", time.Microsecond}, {"ms", time.Millisecond},
	{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}, {"w", 7 * 24 * time.Hour},
}

// ParseDuration reads a duration such as 90, 90s, 1.5h, 1h30m or 7d; a number
// alone is seconds. Negative durations and those above MaxDuration are refused.
func ParseDuration(text string) (time.Duration, error) {
	if seconds, err := parseDecimal(text); err == nil {
		return Seconds(seconds)
	}
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		if _, err := ParseDuration(rest); err == nil {
			return 0, ErrNegative
		}
	}
	var total time.Duration // exact: nanoseconds in a float would be lost above 104 days
	rest := text
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if n <= 0 {
			return 0, fmt.Errorf("%q is not a duration; write it like 90s, 1h30m or 7d", Clip(text))
		}
		number, err := strconv.ParseFloat(rest[:n], 64)
		rest = rest[n:]
		u := strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' })
		if u < 0 {
			u = len(rest)
		}
		i := slices.IndexFunc(units, func(o unit) bool { return o.name == rest[:u] })
		if err != nil || i < 0 {
			return 0, fmt.Errorf("%q is not a duration; write it like 90s, 1h30m or 7d", Clip(text))
		}
		part, err := Seconds(number * float64(units[i].is) / float64(time.Second))
		if err != nil {
			return 0, err
		}
		if total += part; total > MaxDuration {
			return 0, ErrTooLong
		}
		rest = rest[u:]
	}
	if text == "" {
		return 0, fmt.Errorf("must not be empty; write a duration like 90s, 1h30m or 7d")
	}
	return total, nil
}

// parseDecimal reads a number in decimal notation. It returns an infinity for a number that does not fit into a
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

// ParseDuration returns these errors for a duration that is out of range.
var (
	ErrTooLong  = errors.New("too long; the maximum is 3650d (ten years)")
	ErrNegative = errors.New("cannot be negative; use 0 or more")
)

// ReadInteger reads a whole number. Its error says what is wrong and what to write instead.
func ReadInteger(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, strconv.ErrRange):
		return 0, outOfRange(text)
	}
	return 0, fmt.Errorf("%q is not a whole number; use digits only, for example 10", Clip(text))
}

// ReadNumber reads a number. Its error says what is wrong and what to write instead.
func ReadNumber(text string) (float64, error) {
	n, err := parseDecimal(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a number; write it like 0.5", Clip(text))
	case math.IsInf(n, 0):
		return 0, outOfRange(text)
	}
	return n, nil
}

// outOfRange returns the error for a number that is too large or too small for its type.
func outOfRange(text string) error {
	if strings.HasPrefix(text, "-") {
		return fmt.Errorf("%s is too small; use a larger number", Clip(text))
	}
	return fmt.Errorf("%s is too large; use a smaller number", Clip(text))
}

// Seconds turns seconds into a duration, within 0 and MaxDuration.
func Seconds(seconds float64) (time.Duration, error) {
	switch {
	case seconds < 0:
		return 0, ErrNegative
	case seconds > MaxDuration.Seconds():
		return 0, ErrTooLong
	}
	return time.Duration(math.Round(seconds * float64(time.Second))), nil
}

// FormatDuration writes a duration so that ParseDuration reads it back: whole
// days, hours, minutes, and seconds with their fraction.
func FormatDuration(d time.Duration) string {
	if d <= 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / u.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.size
		}
	}
	switch {
	case d == 0:
	case d < time.Second && b.Len() == 0:
		b.WriteString(strings.Replace(d.String(), "µs", "us", 1))
	case d < time.Second:
		b.WriteString(strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s")
	default: // without what a floating-point number of seconds lacks
		b.WriteString(d.String())
	}
	return b.String()
}

var sizes = []struct {
	suffix string
	bytes  int64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40}, {"pib", 1 << 50},
	{"kb", 1 << 10}, {"mb", 1 << 20}, {"gb", 1 << 30}, {"tb", 1 << 40}, {"pb", 1 << 50},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"p", 1 << 50}, {"b", 1}, {"", 1},
}

// ParseSize reads a number of bytes such as 4096, 64K, 1MiB or 2G; every
// suffix is a power of 1024.
func ParseSize(text string) (int64, error) {
	lower := strings.ToLower(strings.Trim(text, " "))
	for _, s := range sizes {
		number, found := strings.CutSuffix(lower, s.suffix)
		if !found || number == "" {
			continue
		}
		n, err := parseDecimal(strings.TrimRight(number, " "))
		switch {
		case err != nil:
			return 0, notSize(text)
		case n < 0:
			return 0, ErrNegative
		case n*float64(s.bytes) > 1<<50:
			return 0, fmt.Errorf("too large; the maximum is 1PiB")
		}
		return int64(n * float64(s.bytes)), nil
	}
	return 0, notSize(text)
}

func notSize(text string) error {
	return fmt.Errorf("%q is not a size; write it like 4096, 64K or 1MiB", Clip(text))
}

// FormatSize writes a number of bytes so that ParseSize reads it back exactly.
func FormatSize(n int64) string {
	for _, s := range []struct {
		suffix string
		bytes  int64
	}{{"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= s.bytes && n%s.bytes == 0 {
			return strconv.FormatInt(n/s.bytes, 10) + s.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// DescribeSize returns a number of bytes for a message, always with a unit, such as 64KiB or 1000 bytes.
func DescribeSize(n int64) string {
	switch {
	case n == 1:
		return "1 byte"
	case n%(1<<10) != 0 || n == 0:
		return strconv.FormatInt(n, 10) + " bytes"
	}
	return FormatSize(n)
}

// Millis is an instant: milliseconds since 1970 UTC. 0 means none.
type Millis int64

// MillisOf is the instant of t, rounded down.
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time is the instant as a time in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// String is the instant in RFC 3339, UTC, with milliseconds; "" for none.
func (m Millis) String() string {
	if m == 0 {
		return ""
	}
	return m.Time().Format("2006-01-02T15:04:05.000Z07:00")
}

// Add moves the instant by d; a fraction of a millisecond is rounded up so
// that nothing is due early.
func (m Millis) Add(d time.Duration) Millis {
	return m + Millis((d+time.Millisecond-1)/time.Millisecond)
}

// ParseInstant reads an RFC 3339 instant between the years 1970 and 9999.
func ParseInstant(text string) (Millis, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	_, offset := t.Zone()
	const day, hours = 24 * 60 * 60, len("2006-01-02T15") // time.Parse also accepts one-digit hours and a comma
	if err != nil || text[hours] != ':' || strings.Contains(text, ",") || offset <= -day || offset >= day {
		return 0, fmt.Errorf("%q is not an RFC 3339 time; write it like 2026-03-01T15:04:05Z", Clip(text))
	}
	if t.Year() < 1970 || t.Year() > 9999 || t.UnixMilli() <= 0 {
		return 0, fmt.Errorf("%q is out of range; use a year from 1970 to 9999", Clip(text))
	}
	return MillisOf(t), nil
}

// CommandText returns the command if there is one. Otherwise it returns the program and its arguments as one line
// from which a shell reads the same words back. A line that takes more than MaxCommand bytes as JSON is cut and ends
// in ….
func CommandText(command string, argv []string) string {
	if command != "" || len(argv) == 0 {
		return command
	}
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = Word(word)
	}
	// Unquoted, it would assign a variable or begin a compound command.
	if words[0] == argv[0] && (strings.Contains(argv[0], "=") || reserved(argv[0])) {
		words[0] = quoted(argv[0])
	}
	return ClipJSON(strings.Join(words, " "), MaxCommand)
}

// Word returns a text as one word of a shell's line.
func Word(text string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(plainSigns, r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return quoted(text)
}
