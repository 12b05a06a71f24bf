package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func TestMain(m *testing.M) {
	os.Setenv("LC_ALL", "C.UTF-8") // the tests expect Unicode
	os.Exit(m.Run())
}

// Times in the formats that people use are parsed in the caller's zone.
func TestTimesAreReadInTheCallersZone(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	india := time.FixedZone("IST", 5*3600+1800)
	for _, c := range []struct {
		text string
		zone *time.Location
		want string
	}{
		{"2026-03-01T15:04:05Z", berlin, "2026-03-01T15:04:05Z"}, {"2026-03-01T15:04:05.5+02:00", berlin, "2026-03-01T13:04:05.5Z"},
		{"2026-03-01 15:04", berlin, "2026-03-01T14:04:00Z"}, {"2026-03-01T15:04:05", india, "2026-03-01T09:34:05Z"}, {"2026-03-01", berlin, "2026-02-28T23:00:00Z"},
		{"13:00", berlin, "2026-03-10T12:00:00Z"}, {"12:00", berlin, "2026-03-11T11:00:00Z"}, {"11:59:59", berlin, "2026-03-11T10:59:59Z"},
		{"today 11:00", berlin, "2026-03-10T10:00:00Z"}, {"tomorrow 03:00", berlin, "2026-03-11T02:00:00Z"}, {"tomorrow", india, "2026-03-10T18:30:00Z"}, {"today", berlin, "2026-03-09T23:00:00Z"},
		{"3am", berlin, "2026-03-11T02:00:00Z"}, {"3pm", berlin, "2026-03-10T14:00:00Z"}, {"3:30 PM", berlin, "2026-03-10T14:30:00Z"}, {"noon", berlin, "2026-03-11T11:00:00Z"}, {"midnight", india, "2026-03-10T18:30:00Z"},
		{"friday 18:00", berlin, "2026-03-13T17:00:00Z"}, {"tue 13:00", berlin, "2026-03-10T12:00:00Z"}, {"Tuesday 11am", berlin, "2026-03-17T10:00:00Z"}, {"monday", berlin, "2026-03-15T23:00:00Z"}, {"sunday at noon", berlin, "2026-03-15T11:00:00Z"},
		{"yesterday", berlin, "2026-03-08T23:00:00Z"}, {"yesterday 14:00", berlin, "2026-03-09T13:00:00Z"}, {"2 hours ago", berlin, "2026-03-10T09:00:00Z"}, {"an hour ago", berlin, "2026-03-10T10:00:00Z"}, {"in 90 minutes", berlin, "2026-03-10T12:30:00Z"}, {"in 1 day 2 hrs", berlin, "2026-03-11T13:00:00Z"}, {"3d ago", india, "2026-03-07T11:00:00Z"}, {"now", berlin, "2026-03-10T11:00:00Z"},
		{"+2h", india, "2026-03-10T13:00:00Z"}, {"+0", berlin, "2026-03-10T11:00:00Z"}, {"+1d", berlin, "2026-03-11T11:00:00Z"},
		{"+2 hours", india, "2026-03-10T13:00:00Z"}, {"now + 2 hours", berlin, "2026-03-10T13:00:00Z"}, {"now +1h30m", berlin, "2026-03-10T12:30:00Z"}, {"now+ 3 days", berlin, "2026-03-13T11:00:00Z"}, {"4pm + 3 days", berlin, "2026-03-13T15:00:00Z"},
		{"3am tomorrow", berlin, "2026-03-11T02:00:00Z"}, {"noon tomorrow", berlin, "2026-03-11T11:00:00Z"}, {"9pm monday", berlin, "2026-03-16T20:00:00Z"}, {"9:30 PM on Friday", berlin, "2026-03-13T20:30:00Z"}, {"noon friday", berlin, "2026-03-13T11:00:00Z"}, {"3:30 Nov 30", berlin, "2026-11-30T02:30:00Z"}, {"3:00 pm Nov 30", berlin, "2026-11-30T14:00:00Z"}, {"2:15 PM 30 Nov", berlin, "2026-11-30T13:15:00Z"},
		{"tonight", berlin, "2026-03-10T19:00:00Z"}, {"tonight 23:00", berlin, "2026-03-10T22:00:00Z"}, {"teatime", berlin, "2026-03-10T15:00:00Z"}, {"teatime tomorrow", berlin, "2026-03-11T15:00:00Z"},
		{"Nov 30", berlin, "2026-11-29T23:00:00Z"}, {"30 November", berlin, "2026-11-29T23:00:00Z"}, {"Mar 9", berlin, "2027-03-08T23:00:00Z"}, {"mar 10 3pm", berlin, "2026-03-10T14:00:00Z"}, {"3pm Nov 30, 2027", berlin, "2027-11-30T14:00:00Z"}, {"feb 29 noon", berlin, "2028-02-29T11:00:00Z"},
		{"next friday", berlin, "2026-03-12T23:00:00Z"}, {"next tuesday", berlin, "2026-03-16T23:00:00Z"}, {"noon next tue", berlin, "2026-03-17T11:00:00Z"}, {"last friday", berlin, "2026-03-05T23:00:00Z"},
	} {
		now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.UTC).In(c.zone)
		got, err := parseWhen(c.text, now, forward)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != c.want {
			t.Errorf("%q in %s: got %v, %v, want %s", c.text, c.zone, got.UTC(), err, c.want)
		}
	}
	for _, bad := range []string{"", "25:00", "12:60", "tomorrow 25:00", "+", "+-1h", "+x", "2026-02-30", "12", "today12", "13am", "friday the 13th", "ago", "in", "in friday", "2 moons ago", "now +", "now + 5", "3am 4am", "Feb 30", "Feb 30 2026", "Nov 31", "Nov 0", "Nov 30 26", "30", "nov", "tonight 3am", "next", "next 3am", "on friday", "3am on", "friday at", ",", "1 ,"} {
		if got, err := parseWhen(bad, time.Now(), forward); err == nil {
			t.Errorf("%q: got %v, want refused", bad, got)
		}
	}
}

// parseWhen accepts the forms of at(1): those of its man page, of the examples in POSIX, and
// similar ones. It rejects a bare hour and a date of digits only, which other programs interpret
// differently.
func TestTimesParseLikeAt(t *testing.T) {
	// This day is this day is a Tuesday.
	now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.FixedZone("CET", 3600))
	for text, want := range map[string]string{
		// These are the examples of at in POSIX.1-2024, and variants that its grammar allows.
		"0730 tomorrow": "2026-03-11T07:30:00+01:00", "now + 1 hour": "2026-03-10T12:00:00+01:00", "0815am Jan 24": "2027-01-24T08:15:00+01:00", "now + 1day": "2026-03-11T11:00:00+01:00",
		"5 pm FRIday": "2026-03-13T17:00:00+01:00", "17:00 utc+ 30minutes": "2026-03-10T17:30:00Z", "0815 UTC Jan 24": "2027-01-24T08:15:00Z", "noon GMT": "2026-03-10T12:00:00Z",
		"now next day": "2026-03-11T11:00:00+01:00", "noon next week": "2026-03-17T12:00:00+01:00", "3pm tomorrow + 1 week": "2026-03-18T15:00:00+01:00", "now + 3 years": "2029-03-10T11:00:00+01:00",
		// These are the examples of at(1) on Debian and the BSDs.
		"4pm + 3 days": "2026-03-13T16:00:00+01:00", "10am Jul 31": "2026-07-31T10:00:00+01:00", "1am tomorrow": "2026-03-11T01:00:00+01:00", "now + 2 minutes": "2026-03-10T11:02:00+01:00", "teatime": "2026-03-10T16:00:00+01:00",
		"now + 1 month": "2026-04-10T11:00:00+01:00", "noon 12/24/2026": "2026-12-24T12:00:00+01:00", "12/24/26": "2026-12-24T00:00:00+01:00", "0930 24.12.26": "2026-12-24T09:30:00+01:00", "24.12.2026 3pm": "2026-12-24T15:00:00+01:00", "15:04 26-12-24": "2026-12-24T15:04:00+01:00",
		// These are other common forms.
		"2026-12-24 noon": "2026-12-24T12:00:00+01:00", "2026-12-24 3pm": "2026-12-24T15:00:00+01:00", "2026-12-24 at 3:30 pm": "2026-12-24T15:30:00+01:00", "15:04 2026-12-24": "2026-12-24T15:04:00+01:00", "midnight 2026-12-24": "2026-12-24T00:00:00+01:00", "2026-12-24 0930": "2026-12-24T09:30:00+01:00",
		"0930": "2026-03-11T09:30:00+01:00", "1130": "2026-03-10T11:30:00+01:00", "0000": "2026-03-11T00:00:00+01:00", "next week": "2026-03-17T11:00:00+01:00", "next month": "2026-04-10T11:00:00+01:00", "next year": "2027-03-10T11:00:00+01:00", "next hour": "2026-03-10T12:00:00+01:00",
		"in 1 month": "2026-04-10T11:00:00+01:00", "in a year": "2027-03-10T11:00:00+01:00", "+1 month": "2026-04-10T11:00:00+01:00", "+2months": "2026-05-10T11:00:00+01:00", "tomorrow + 1 month": "2026-04-11T00:00:00+01:00", "2026-01-31 noon + 1 month": "2026-03-03T12:00:00+01:00",
		"2 months ago": "2026-01-10T11:00:00+01:00", "a year ago": "2025-03-10T11:00:00+01:00", "last week": "2026-03-03T11:00:00+01:00", "last month": "2026-02-10T11:00:00+01:00",
		// These times have a time zone: directly after the time, as in ISO 8601, or after a space.
		"2026-03-01T15:04:05+0100": "2026-03-01T15:04:05+01:00", "2026-03-01T15:04:05-0530": "2026-03-01T15:04:05-05:30", "2026-03-01T15:04+01": "2026-03-01T15:04:00+01:00", "2026-03-01T15:04Z": "2026-03-01T15:04:00Z", "2026-03-01t15:04:05z": "2026-03-01T15:04:05Z", "2026-03-01 15:04:05 +0200": "2026-03-01T15:04:05+02:00",
		"2026-03-01 15:04 +02:00": "2026-03-01T15:04:00+02:00", "2026-03-01 15:04 UTC": "2026-03-01T15:04:00Z", "15:04+0300": "2026-03-10T15:04:00+03:00", "23:30-0500 tomorrow": "2026-03-11T23:30:00-05:00", "2026-03-01T15:04:05.25+0100": "2026-03-01T15:04:05.25+01:00",
		"0930 +0100": "2026-03-11T09:30:00+01:00", "3pm +01:00": "2026-03-10T15:00:00+01:00", "noon -0500": "2026-03-10T12:00:00-05:00", "tomorrow 0930 +02:00": "2026-03-11T09:30:00+02:00", "3 pm +0530 tomorrow": "2026-03-11T15:00:00+05:30",
		"16:00+14:00": "2026-03-11T16:00:00+14:00", "16:00-12:00": "2026-03-10T16:00:00-12:00", "4pm +0200": "2026-03-10T16:00:00+02:00",
	} {
		got, err := parseWhen(text, now, forward)
		if parsed, _ := time.Parse(time.RFC3339Nano, want); err != nil || !got.Equal(parsed) {
			t.Errorf("%q: got %s, %v, want %s", text, got.Format(time.RFC3339Nano), err, want)
		}
	}
	for _, bad := range []string{"12", "17 utc", "122426", "12242026", "20261224", "2460", "930", "2030 Jan 24", "24/12/2026", "2026-13-01", "2026-12-24 25:00", "next fortnight", "noon next", "now + 1 fortnight", "now + 121 months", "1.5 months ago", "15:04 +2500", "16:00-17:00", "16:00-2359", "16:00+14:01", "16:00-12:01", "16:00 -1300", "3pm +1500", "tomorrow +0100", "2026-03-01T15:04:05-17:00", "now +0200", "2026-12-24T", "tuesdayt3pm"} {
		if got, err := parseWhen(bad, now, forward); err == nil {
			t.Errorf("%q: got %v, want refused", bad, got)
		}
	}
}

// A time that a clock change skips means the first instant after the change. A time that occurs
// twice means the first occurrence. The guide's table of schedules says the same.
func TestTimesInClockChanges(t *testing.T) {
	for _, c := range []struct{ zone, now, text, want string }{
		{"America/New_York", "2027-03-13T12:00:00Z", "2027-03-14 02:30", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-13T12:00:00Z", "2027-03-14T02:30:00", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-13T12:00:00Z", "2:30am tomorrow", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-13T12:00:00Z", "02:30", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-13T07:30:00Z", "now + 1 day", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-13T07:30:00Z", "+1d", "2027-03-14T03:30:00-04:00"},
		{"America/New_York", "2027-02-14T07:30:00Z", "now + 1 month", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-11-06T12:00:00Z", "2027-11-07 01:30", "2027-11-07T01:30:00-04:00"},
		{"America/New_York", "2027-11-07T05:45:00Z", "01:30", "2027-11-08T01:30:00-05:00"},
		{"America/New_York", "2027-11-07T05:45:00Z", "2027-11-07 01:30 -0500", "2027-11-07T01:30:00-05:00"},
		{"Africa/Cairo", "2026-04-23T12:00:00Z", "tomorrow", "2026-04-24T01:00:00+03:00"},
		{"Africa/Cairo", "2026-04-23T12:00:00Z", "2026-04-24", "2026-04-24T01:00:00+03:00"},
		{"Africa/Cairo", "2026-04-23T12:00:00Z", "Apr 24", "2026-04-24T01:00:00+03:00"},
		{"Africa/Cairo", "2026-04-23T12:00:00Z", "midnight", "2026-04-24T01:00:00+03:00"},
		{"Europe/Berlin", "2026-03-28T12:00:00Z", "sunday 02:15", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "2026-10-24T12:00:00Z", "2:30am tomorrow", "2026-10-25T02:30:00+02:00"},
	} {
		in, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseWhen(c.text, now.In(in), forward)
		if err != nil || got.In(in).Format(time.RFC3339) != c.want {
			t.Errorf("%q in %s: got %v, %v, want %s", c.text, c.zone, got.In(in), err, c.want)
		}
	}
}

// In a flag for past times, an incomplete time means the previous occurrence, not the next.
func TestPastTimesAreRejected(t *testing.T) {
	now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.FixedZone("CET", 3600)) // a Tuesday
	for text, want := range map[string]string{
		"10:00": "2026-03-10T10:00", "12:00": "2026-03-09T12:00", "3pm": "2026-03-09T15:00", "friday": "2026-03-06T00:00", "tuesday": "2026-03-10T00:00",
		"tue 12:00": "2026-03-03T12:00", "yesterday": "2026-03-09T00:00", "today": "2026-03-10T00:00", "tomorrow": "2026-03-11T00:00", "1 week ago": "2026-03-03T11:00",
		"nov 30": "2025-11-30T00:00", "mar 10": "2026-03-10T00:00", "noon mar 10": "2025-03-10T12:00", "feb 29": "2024-02-29T00:00", "last tuesday": "2026-03-03T00:00", "9pm monday": "2026-03-09T21:00",
	} {
		if got, err := parseWhen(text, now, backward); err != nil || got.Format("2006-01-02T15:04") != want {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
}

// Durations can be written in words, and the error for an invalid one contains examples.
func TestDurationsInWords(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "1.5": 1500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour,
		"2 hours": 2 * time.Hour, "10 minutes": 10 * time.Minute, "1 day": 24 * time.Hour, "5min": 5 * time.Minute, "3 Days": 3 * 24 * time.Hour, "an hour": time.Hour, "2 h": 2 * time.Hour,
		"1.5 hours": 90 * time.Minute, "1 hour 30 minutes": 90 * time.Minute, "1 hour, 30 mins": 90 * time.Minute, "a week and 2 days": 9 * 24 * time.Hour, "2hrs30min": 150 * time.Minute, "500 ms": 500 * time.Millisecond,
	} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "is empty", "-5": "cannot be negative", "11 years": "is not a duration", "200000 days": "too long", "soon": "is not a duration", "3am": "is not a duration", "5M": "is not a duration",
		"hours": "is not a duration", "2 2 hours": "is not a duration", "1 hour 30": "is not a duration", "and 2 hours": "is not a duration", "-2 hours": "is not a duration", "1.2.3 hours": "is not a duration", "2 hours ago": "is not a duration",
	} {
		if got, err := parseSpan(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
	if _, err := parseSpan("soon"); !strings.Contains(err.Error(), `write it like 90s, 1h30m, 7d, 5min or "2 hours"`) {
		t.Errorf("got %v, want examples", err)
	}
}

// The text of a due time contains the day, the zone and the time left.
func TestDueTimesNameDayAndZone(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 12, 30, 0, time.FixedZone("CET", 3600))
	for after, want := range map[time.Duration]string{
		10*time.Hour + 47*time.Minute + 30*time.Second: "due Mon 23 Nov 03:00 CET, in 10h",
		90 * time.Second:        "due Sun 22 Nov 16:14:00 CET, in 1m30s",
		-2 * time.Hour:          "due Sun 22 Nov 14:12 CET, which has passed: the job may start now",
		60 * 24 * time.Hour:     "due Thu 21 Jan 2027 16:12 CET, in 60d",
		1500 * time.Millisecond: "due Sun 22 Nov 16:12:31 CET, in 1.5s",
		76 * time.Hour:          "due Wed 25 Nov 20:12 CET, in 3d4h",
	} {
		if got := dueText(now.Add(after).UTC(), now); got != want {
			t.Errorf("%v: got %q, want %q", after, got, want)
		}
	}
}

// The error for a duration instead of a time, or a time instead of a duration, says how to write
// it.
func TestTimesAndDurationsAreDistinguished(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue|--at|2 hours": `--at: "2 hours" is a duration, not a time; write "in 2 hours" or +2h`, "enqueue|--expires-at|5min": `write "in 5min" or +5m`,
		"enqueue|--in|tomorrow": `--in: "tomorrow" is a time, not a duration; use --at for a time`, "enqueue|--delay|3am": "use --at for a time", "enqueue|--timeout|3am": "is not a duration; write it like", "enqueue|--in|soon": "is not a duration; write it like",
	} {
		if got := refusal(t, strings.Split(line, "|")...); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// Settings that are durations accept words. The values of other settings are unchanged.
func TestSettingsTakeDurationsInWords(t *testing.T) {
	for _, c := range [][3]string{
		{"retention_dead", "30 days", "30d"}, {"retention-dead", "never", "never"}, {"timeout", "2 hours", "2h"}, {"timeout", "1h30m", "1h30m"}, {"backoff_max", "soon", "soon"},
		{"max_retries", "5 min", "5 min"}, {"socket_group", "5min", "5min"}, {"nothing", "5 min", "5 min"},
	} {
		if got := settingText(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// Every form of times and durations in the reference is accepted.
func TestTimesAndDurationsOfTheReference(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]func(string) error{
		"Durations": func(text string) error { _, err := parseSpan(text); return err },
		"Times":     func(text string) error { _, err := parseWhen(text, time.Now(), forward); return err },
	}
	seen := 0
	for _, section := range strings.Split(string(page), "\n## ") {
		title, text, _ := strings.Cut(section, "\n")
		for line := range strings.Lines(text) {
			if read[title] == nil || !strings.HasPrefix(line, "| `") {
				continue
			}
			for i, form := range strings.Split(strings.Split(line, "|")[1], "`") {
				if i%2 == 0 {
					continue // this is the text between two forms
				}
				seen++
				if err := read[title](form); err != nil {
					t.Errorf("%s: %v", title, err)
				}
			}
		}
	}
	if want := 60; seen < want {
		t.Errorf("%d forms are there, want %d at least", seen, want)
	}
}

// The text of an expiry time has the same form as that of a due time, and says so if the time has
// passed.
func TestExpiryNamesDayAndZone(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 12, 30, 0, time.FixedZone("CET", 3600))
	in := func(d time.Duration) *queue.Millis { return new(queue.MillisOf(now.Add(d))) }
	for want, s := range map[string]queue.Spec{
		"": {}, "; expires Mon 23 Nov 03:12 CET, in 11h": {ExpiresAt: in(11 * time.Hour)},
		"; expires Sat 21 Nov 16:12 CET, which has passed: it will not run":       {ExpiresAt: in(-24 * time.Hour)},
		"; due Mon 23 Nov 03:12 CET, in 11h; expires Tue 24 Nov 16:12 CET, in 2d": {RunAt: in(11 * time.Hour), ExpiresAt: in(48 * time.Hour)},
		"; due Sun 22 Nov 18:12 CET, in 2h; expires Sun 22 Nov 17:12 CET, in 1h":  {Delay: new(2 * time.Hour), ExpiresAt: in(time.Hour)},
	} {
		if got := whenDue(&s, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A job's output cannot control a terminal: control characters, sequences other than colours, and
// bidirectional controls are escaped.
func TestControlCharactersAreEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"plain äß 漢 🙂\n\tx":                     "plain äß 漢 🙂\n\tx",
		"\x1b[31mred\x1b[0m":                    "\x1b[31mred\x1b[0m",
		"\x1b[1;38;5;9mx":                       "\x1b[1;38;5;9mx",
		"\x1b[2J":                               `\x1b[2J`,
		"\x1b[31":                               `\x1b[31`,
		"\x1b]0;title\x07":                      `\x1b]0;title\x07`,
		"\x1b]52;c;ZXZpbA==\x1b\\":              `\x1b]52;c;ZXZpbA==\x1b\`,
		"\x1b[?1049h\x1bc\x1bP":                 `\x1b[?1049h\x1bc\x1bP`,
		"a\rb\bc\x00d\x7f":                      `a\x0db\x08c\x00d\x7f`,
		"\u009b31m\u0085":                       `\x9b31m\x85`,
		"\x9b31m\xff":                           `\x9b31m\xff`,
		"\u202egpj.exe\u2066":                   `\u202egpj.exe\u2066`,
		"\u200f\u061c":                          `\u200f\u061c`,
		"\x1b[" + strings.Repeat("1", 40) + "m": `\x1b[` + strings.Repeat("1", 40) + "m",
	} {
		if got := sanitize(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// For any input, the sanitized text is valid UTF-8 and cannot control a terminal.
func FuzzSanitize(f *testing.F) {
	for _, seed := range []string{"x", "\x1b[31m", "\x1b]0;x\x07", "\u202e", "\xff\x9b", "\x1b[\x1b[0m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := sanitize(in)
		if !utf8.ValidString(got) {
			t.Fatalf("%q: got %q, which is not UTF-8", in, got)
		}
		for i, r := range got {
			if r == 0x1b && termtext.Colour(got[i:]) == 0 || r != 0x1b && r != '\n' && r != '\t' && r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("%q: got %q, which holds %U", in, got, r)
			}
		}
	})
}

// run exits with the documented code for each outcome of a job.
func TestJobExitFollowsContract(t *testing.T) {
	for _, c := range []struct {
		state, reason string
		code          int64
		signal, want  int
	}{
		{"completed", "", 0, 0, 0}, {"completed", "", 3, 0, 0}, {"dead", "", 7, 0, 7}, {"failed", "", 7, 0, 7}, {"dead", "timed_out", -1, 15, 124},
		{"dead", "signal", -1, 11, 139}, {"dead", "not_found", 127, 0, 127}, {"dead", "not_runnable", 126, 0, 126}, {"cancelled", "cancelled", -1, 15, 130}, {"cancelled", "", -1, 0, 130},
		{"cancelled", "expired", -1, 0, 125}, {"dead", "lost", -1, 0, 125}, {"held", "interrupted", -1, 0, 125}, {"dead", "unkillable", -1, 9, 125}, {"dead", "", 0, 0, 125}, {"dead", "", -1, 0, 125},
	} {
		j := &control.Job{State: c.state}
		if c.reason != "" {
			j.Reason = &c.reason
		}
		if c.code >= 0 {
			j.ExitCode = &c.code
		}
		if c.signal != 0 {
			j.Signal = &c.signal
		}
		if got := jobExit(j); got != c.want {
			t.Errorf("%s %s code %d signal %d: got %d, want %d", c.state, c.reason, c.code, c.signal, got, c.want)
		}
	}
}

// Each output line gets its time and its job's id once, regardless of how it was split into pieces.
// With a job's id, lines are printed only when complete.
func TestEachLineIsMarkedOnce(t *testing.T) {
	at := control.Time(1_700_000_000_000)
	for prefix, want := range map[string]string{"": "T ab\nT c\nT \nT d", "j | ": "j | T ab\nj | T c\nj | T \nj | d\n"} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		p := newLogPrinter(newApp(Program{}, nil, out, nil), "", true)
		p.prefix = prefix
		for _, text := range []string{"a", "b\nc", "", "\n", "\n", "d"} {
			if err := p.piece(&control.Piece{Text: text, At: at}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(string(got), local2(at), "T"); got != want {
			t.Errorf("%q: got %q, want %q", prefix, got, want)
		}
	}
}

// No text of a job can fake a line of show, lists, events or doctor, regardless of the line breaks
// that it contains.
func TestTextsFakeNoLines(t *testing.T) {
	const fake = "FAKE"
	breaks := []string{"\n", "\r", "\r\n", "\v", "\f", "\u0085", "\u2028", "\u2029", "\n\n", "\n\t"}
	evil := "text"
	for _, b := range breaks {
		evil += b + fake
	}
	evil += "\n"
	reason, worker, code := evil, evil, int64(1)
	j := control.Job{ID: "1", State: "dead", Command: evil, Error: &evil, Reason: &reason, WorkerID: &worker, User: evil, Submitter: evil, Cwd: evil, ExitCode: &code, Labels: map[string]string{evil: evil}}
	detail := control.JobDetail{Job: j, Output: evil, Stderr: fake + evil, History: []control.Attempt{{Attempt: 1, Worker: evil, Error: &evil}}}
	event := control.Event{Event: "audit", Verb: evil, Target: evil, User: evil, Reason: evil, Value: evil, Key: evil, ID: evil}
	for name, print := range map[string]func(*App) error{
		"show": func(a *App) error { return a.showJob(&detail) },
		"list": func(a *App) error {
			return a.table([]string{"ID", "COMMAND"}, [][]string{{j.ID, Title(&j)}, {evil, evil}})
		},
		"events": func(a *App) error { return a.Println(eventLine(&event)) },
		"whoami": func(a *App) error { return a.rows(13, whoamiRows(&control.Whoami{User: evil, Next: evil})) },
		"doctor": func(a *App) error {
			return a.PrintFinding(&control.Finding{Check: "disk", Level: "failure", Message: evil, Next: evil})
		},
		"end": func(a *App) error { a.Exit, a.Err = 1, a.Out; a.printEnd(&j); return nil },
	} {
		got := printed(t, print)
		for _, b := range breaks {
			if strings.Contains(got, b+fake) {
				t.Errorf("%s: got %q, which has a line that it did not begin", name, got)
				break
			}
		}
		if !strings.Contains(got, fake) {
			t.Errorf("%s: got %q, want the text in it", name, got)
		}
	}
}

// printed returns what print writes to an output that is not a terminal.
func printed(t *testing.T, print func(*App) error) string {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(print(newApp(Program{}, nil, out, nil)), out.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// A cell that is too wide is cut and ends with a mark. It then fills the width, or is one column
// narrower if the next character is two columns wide. A combining mark is never separated from its
// letter.
func TestCut(t *testing.T) {
	for _, c := range [][2]string{
		{"abcdefgh", "abcdefgh"}, {"abcdefghi", "abcdefg…"}, {"äöüäöüäöü", "äöüäöüä…"}, {"", ""},
		{"漢字漢字", "漢字漢字"}, {"漢字漢字漢", "漢字漢…"}, {"a漢字漢字", "a漢字漢…"}, {"😀😀😀😀😀", "😀😀😀…"},
		{"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301", "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301…"},
		{"❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f", "❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f"}, {"❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f❤", "❤\ufe0f❤\ufe0f❤\ufe0f…"},
		{"\x1b[31m漢字漢字\x1b[0m", "\x1b[31m漢字漢字\x1b[0m"}, {"\x1b[31m漢字漢字漢\x1b[0m", "\x1b[31m漢字漢…\x1b[0m"},
	} {
		if got := Cut(c[0], 8); got != c[1] {
			t.Errorf("%q: got %q, want %q", c[0], got, c[1])
		}
	}
}

// Width counts the columns that terminals use for each character.
func TestColumnsOfCharacters(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 1, "ä": 1, "漢": 2, "ｱ": 1, "Ａ": 2, "한": 2, "\u1112\u1161\u11ab": 2, "e\u0301": 1, "\u200d": 0, "…": 1, "─": 1, "😀": 2, "👍🏽": 4, "🇩🇪": 2, "❤": 1, "❤\ufe0f": 2, "\u0600": 1,
	} {
		if got := Width(text); got != want {
			t.Errorf("%q (%U): got %d, want %d", text, []rune(text), got, want)
		}
	}
}

// For any widths, a table fits the terminal, uses its full width, and keeps the first and the last
// column.
func TestTablesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		widths := rapid.SliceOfN(rapid.IntRange(1, 200), 1, 30).Draw(t, "widths")
		limit := rapid.IntRange(leastWidth, 300).Draw(t, "limit")
		chosen := rapid.Bool().Draw(t, "chosen")
		got := fit(widths, limit, chosen)
		used, whole := -columnGap, -columnGap
		for i, n := range got {
			whole += widths[i] + columnGap
			if n > 0 {
				used += n + columnGap
			}
			if n > widths[i] || n < 0 {
				t.Fatalf("column %d is %d wide of %d: %v", i, n, widths[i], got)
			}
		}
		if used > limit || got[0] == 0 || got[len(got)-1] == 0 {
			t.Fatalf("%v takes %d of %d: %v", widths, used, limit, got)
		}
		if whole <= limit && !slices.Equal(got, widths) {
			t.Fatalf("%v would fit %d: %v", widths, limit, got)
		}
	})
	for _, c := range []struct {
		widths []int
		limit  int
		chosen bool
		want   []int
	}{
		// The columns of the command list.
		{[]int{2, 10, 8, 8, 19, 100}, 80, false, []int{2, 10, 8, 8, 19, 23}},
		{[]int{2, 10, 8, 8, 19, 100}, 40, false, []int{2, 10, 8, 0, 0, 14}},
		// The columns of the command dlq list.
		{[]int{2, 9, 19, 100, 100}, 80, false, []int{2, 9, 19, 21, 21}},
		{[]int{2, 9, 19, 100, 100}, 40, false, []int{2, 9, 0, 12, 11}},
		{[]int{2, 9, 19, 100, 100}, 40, true, []int{2, 8, 8, 7, 7}},
		{[]int{100, 5}, 20, false, []int{13, 5}},
	} {
		if got := fit(c.widths, c.limit, c.chosen); !slices.Equal(got, c.want) {
			t.Errorf("%v in %d: got %v, want %v", c.widths, c.limit, got, c.want)
		}
	}
}

// Colour recognises only sequences that set colours.
func TestOnlyColourSequencesAreKept(t *testing.T) {
	for s, want := range map[string]int{
		"\x1b[31mred": 5, "\x1b[m": 3, "\x1b[1;4;38;5;8mx": 13, "\x1b[38;2;5;6;8mx": 13, "\x1b[0m": 4,
		"\x1b[8mhidden": 0, "\x1b[1;5mx": 0, "\x1b[2J": 0, "\x1b[31": 0, "\x1b[?25lm": 0, "red": 0, "": 0,
		"\x1b[38;5;1;8mx": 0, "\x1b[;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;m": 0,
	} {
		if got := termtext.Colour(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
}

// Characters and colour sequences are shown whole, even if they arrive in pieces. An incomplete one
// at the end is escaped.
func TestSplitCharactersAreShownWhole(t *testing.T) {
	const text = "a漢字\x1b[1;31mröd\x1b[0m\xe6\xbc"
	for size := 1; size < len(text); size++ {
		shown, kept := "", ""
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			kept += rest[:n]
			rest = rest[n:]
			whole := len(kept) - unfinished(kept)
			shown, kept = shown+sanitize(kept[:whole]), kept[whole:]
		}
		if got, want := shown+sanitize(kept), sanitize(text); got != want {
			t.Errorf("in pieces of %d: %q, want %q", size, got, want)
		}
	}
	for text, want := range map[string]int{"": 0, "a": 0, "ä": 0, "\xc3": 1, "\xff": 0, "\xf0\x9f\x98": 3, "\x1b": 1, "\x1b[1;3": 5, "\x1b[2J": 0, "\x1b]0": 0, "x\x80": 0} {
		if got := unfinished(text); got != want {
			t.Errorf("%q: %d are unfinished, want %d", text, got, want)
		}
	}
}

// --all is removed only from arguments that ask for the complete help.
func TestAllIsRemovedFromHelp(t *testing.T) {
	for _, words := range [][]string{{"enqueue", "--", "ls", "--help", "--all"}, {"cancel", "--all"}, {"list", "--help"}} {
		if got := withoutAll(words); !slices.Equal(got, words) {
			t.Errorf("%q: got %q, want no change", words, got)
		}
	}
}

// A negative number at the end is parsed as a value where the command expects one.
func TestNegativeNumbersAreValues(t *testing.T) {
	for in, want := range map[string]string{
		"config set priority -5": "config set priority -- -5", "--json config set jitter -.5": "--json config set jitter -- -.5",
		"worker scale -1": "worker scale -- -1", "config set log_level -x": "config set log_level -x", "enqueue --priority -5": "enqueue --priority -5",
		"logs x -n -5": "logs x -n -5", "-5": "-5",
	} {
		if got := strings.Join(apart(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}

// Text that is too long for the window is wrapped, between words if possible. Colours take no
// columns.
func TestTextIsFoldedBetweenWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                             {""},
		"ok: 1 of 2":                   {"ok: 1 of 2"},
		"ok: 1 of 2 workers busy":      {"ok: 1 of 2", "workers", "busy"},
		"0123456789ab cd":              {"0123456789", "ab cd"},
		"\x1b[32mok\x1b[39m: 1 of 2 w": {"\x1b[32mok\x1b[39m: 1 of 2", "w"},
		"界界界界界界":                       {"界界界界界", "界"},
	} {
		if got := Fold(10, text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// JSON output represents the value exactly and cannot control a terminal.
func TestJSONEscapesControlCharacters(t *testing.T) {
	value := map[string]string{"a\u009bk": "\x1b[31m\u0085\u009b31m\x7f\u061c\u200f\u202e\u2066\u2028", "plain": "ü <&> \u00a0 €"}
	var b strings.Builder
	if err := writeJSON(&b, value); err != nil {
		t.Fatal(err)
	}
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("it has %U: %q", r, b.String())
		}
	}
	for _, want := range []string{`\u0085`, `\u009b31m`, `\u202e`, "ü <&>", "€"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %s, want %s in it", b.String(), want)
		}
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || !maps.Equal(got, value) {
		t.Errorf("got %q, %v, want %q", got, err, value)
	}
}

// When a job's text is printed within queuectl's own text, even into a pipe, none of it is dropped.
// Every invisible character and every colour is escaped, except joiners in emoji.
func TestTextsInAPipeAreEscaped(t *testing.T) {
	const (
		evil = "a\u200bb\x1b[31mc\x1b[0m\u202ed\u009be\u2060g 👩\u200d💻 ❤\ufe0f h\u200di"
		want = `a\u200bb\x1b[31mc\x1b[0m\u202ed\x9be\u2060g ` + "👩\u200d💻 ❤\ufe0f" + ` h\u200di`
	)
	said := evil
	j := control.Job{ID: "1", State: "dead", Command: evil, Error: &said, Cwd: evil, Labels: map[string]string{"l": evil}}
	ended, reason := j, "failed"
	ended.Reason = &reason
	shown := control.JobDetail{Job: j, Output: evil, Stderr: evil, History: []control.Attempt{{Attempt: 1, Error: &said}}}
	for name, c := range map[string]struct {
		times int
		print func(*App) error
	}{
		"show": {7, func(a *App) error { return a.showJob(&shown) }},
		"list": {2, func(a *App) error {
			return a.table([]string{"ID", "ERROR", "COMMAND"}, [][]string{{j.ID, evil, Title(&j)}})
		}},
		"status": {2, func(a *App) error {
			p := screenPrinter{a: a, text: ScreenText{Screen: &control.Screen{Dead: []control.ScreenJob{{Job: j, LastLine: "last"}}}}}
			return p.printPart(&p.parts()[2])
		}},
		"events": {1, func(a *App) error {
			return a.Println(a.cleanText(eventLine(&control.Event{Event: "audit", Verb: evil})))
		}},
		"messages": {1, func(a *App) error { a.Exit, a.Err = 1, a.Out; a.printEnd(&ended); return nil }},
		"doctor": {1, func(a *App) error {
			return a.PrintFinding(&control.Finding{Check: "disk", Level: "failure", Message: evil})
		}},
	} {
		got := printed(t, c.print)
		if n := strings.Count(got, want); n != c.times {
			t.Errorf("%s: got %q, which has %q %d times, want %d times", name, got, want, n, c.times)
		}
	}
	if got := printed(t, func(a *App) error { a.raw = true; return a.showJob(&shown) }); strings.Count(got, "a\u200bb\x1b[31mc") != 7 {
		t.Errorf("show --raw: got %q, want the text as it is", got)
	}
}

// Every character of a cell is visible and takes the columns that Width counts.
func TestCellsShowEveryCharacter(t *testing.T) {
	for text, want := range map[string]string{
		"a\u200bb": `a\u200bb`, "\ufeffa": `\ufeffa`, "a\u00adb": `a\u00adb`, "a\u2060": `a\u2060`, "x\U000e0041": `x\U000e0041`,
		"a\u3164b": `a\u3164b`, "a\u034fb": `a\u034fb`, "a\u115fb": `a\u115fb`, "x\U000e0100": `x\U000e0100`, "a\ufe0f": `a\ufe0f`, "a\u200db": `a\u200db`,
		"👩\u200d💻": "👩💻", "ü e\u0301 漢": "ü e\u0301 漢", "plain": "plain",
	} {
		got := cell(text)
		if got != want || Width(got) != runewidth.StringWidth(got) {
			t.Errorf("%q: got %q of %d columns, want %q of %d", text, got, Width(got), want, runewidth.StringWidth(want))
		}
	}
}
