package queue

import (
	"strings"
	"testing"
	"time"
)

// Durations and sizes are decimal numbers with a unit. Other notations, such as hexadecimal, are rejected,
// although strconv accepts them.
func TestDurationsAndSizesAreDecimal(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "1.5": 1500 * time.Millisecond, ".5h": 30 * time.Minute, "5.": 5 * time.Second,
		"1e3": 1000 * time.Second, "1h30m": 90 * time.Minute, "007s": 7 * time.Second,
	} {
		if got, err := ParseDuration(text); got != want || err != nil {
			t.Errorf("the duration %q is %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]int64{"64K": 65536, " 1.5 kib ": 1536, ".5k": 512, "1e3": 1000, "2b": 2} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("the size %q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "+5", "-5", "0x1p3", "Inf", "NaN", "1_0", "1e", "e3", ".", "1e999", "1\n"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("the duration %q is %v", text, got)
		}
		if got, err := ParseSize(text); err == nil {
			t.Errorf("the size %q is %d", text, got)
		}
	}
}

// A time must be strict RFC 3339: hours have two digits, and a fraction begins with a point. Other forms are
// rejected, although time.Parse accepts them.
func TestTimesMustBeStrictRFC3339(t *testing.T) {
	for text, want := range map[string]bool{
		"2026-03-01T15:04:05Z": true, "2026-03-01T15:04:05.123456789+01:00": true,
		"2026-03-01T5:04:05Z": false, "2026-03-01T15:04:05,5Z": false, "2026-03-01T15:04:05+24:00": false,
		"1969-12-31T23:59:59Z": false, "2026-02-30T00:00:00Z": false,
	} {
		if _, err := ParseTime(text); (err == nil) != want {
			t.Errorf("%s: got %v, want it accepted: %t", text, err, want)
		}
	}
}

// The first moment of 1970 is the zero value, which means no time. The error for it and for other times out of range
// names the allowed times.
func TestTimesOutOfRangeAreNamed(t *testing.T) {
	for text, inRange := range map[string]bool{
		"1970-01-01T00:00:00.001Z": true, "9999-12-31T23:59:59.999Z": true, "1970-01-01T00:00:01+00:00": true,
		"1970-01-01T00:00:00Z": false, "1970-01-01T00:00:00.000999Z": false, "1970-01-01T00:30:00+01:00": false,
		"1969-12-31T23:00:00-02:00": true, "9999-12-31T23:59:59-01:00": false, "1969-01-01T00:00:00Z": false,
	} {
		_, err := ParseTime(text)
		const want = "is out of range; use a time after 1970-01-01T00:00:00Z and before the year 10000"
		if (err == nil) != inRange || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("ParseTime(%q) returned %v, want in range: %t", text, err, inRange)
		}
	}
}
