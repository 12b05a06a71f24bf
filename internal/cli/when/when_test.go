package when

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

// Times are parsed in the formats that people use. A time without a zone is in the caller's zone.
func TestTimesWithoutZoneUseCallerZone(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	india := time.FixedZone("IST", 5*3600+1800)
	for _, c := range []struct {
		text string
		zone *time.Location
		want string
	}{
		{"2026-03-01T15:04:05Z", berlin, "2026-03-01T15:04:05Z"},
		{"2026-03-01T15:04:05.5+02:00", berlin, "2026-03-01T13:04:05.5Z"},
		{"2026-03-01 15:04", berlin, "2026-03-01T14:04:00Z"}, {"2026-03-01T15:04:05", india, "2026-03-01T09:34:05Z"},
		{"2026-03-01", berlin, "2026-02-28T23:00:00Z"},
		{"13:00", berlin, "2026-03-10T12:00:00Z"}, {"12:00", berlin, "2026-03-11T11:00:00Z"},
		{"11:59:59", berlin, "2026-03-11T10:59:59Z"},
		{"today 11:00", berlin, "2026-03-10T10:00:00Z"}, {"tomorrow 03:00", berlin, "2026-03-11T02:00:00Z"},
		{"tomorrow", india, "2026-03-10T18:30:00Z"}, {"today", berlin, "2026-03-09T23:00:00Z"},
		{"3am", berlin, "2026-03-11T02:00:00Z"}, {"3pm", berlin, "2026-03-10T14:00:00Z"},
		{"3:30 PM", berlin, "2026-03-10T14:30:00Z"}, {"noon", berlin, "2026-03-11T11:00:00Z"},
		{"midnight", india, "2026-03-10T18:30:00Z"},
		{"friday 18:00", berlin, "2026-03-13T17:00:00Z"}, {"tue 13:00", berlin, "2026-03-10T12:00:00Z"},
		{"Tuesday 11am", berlin, "2026-03-17T10:00:00Z"}, {"monday", berlin, "2026-03-15T23:00:00Z"},
		{"sunday at noon", berlin, "2026-03-15T11:00:00Z"},
		{"yesterday", berlin, "2026-03-08T23:00:00Z"}, {"yesterday 14:00", berlin, "2026-03-09T13:00:00Z"},
		{"2 hours ago", berlin, "2026-03-10T09:00:00Z"}, {"an hour ago", berlin, "2026-03-10T10:00:00Z"},
		{"in 90 minutes", berlin, "2026-03-10T12:30:00Z"}, {"in 1 day 2 hrs", berlin, "2026-03-11T13:00:00Z"},
		{"3d ago", india, "2026-03-07T11:00:00Z"}, {"now", berlin, "2026-03-10T11:00:00Z"},
		{"+2h", india, "2026-03-10T13:00:00Z"}, {"+0", berlin, "2026-03-10T11:00:00Z"},
		{"+1d", berlin, "2026-03-11T11:00:00Z"},
		{"+2 hours", india, "2026-03-10T13:00:00Z"}, {"now + 2 hours", berlin, "2026-03-10T13:00:00Z"},
		{"now +1h30m", berlin, "2026-03-10T12:30:00Z"}, {"now+ 3 days", berlin, "2026-03-13T11:00:00Z"},
		{"4pm + 3 days", berlin, "2026-03-13T15:00:00Z"},
		{"3am tomorrow", berlin, "2026-03-11T02:00:00Z"}, {"noon tomorrow", berlin, "2026-03-11T11:00:00Z"},
		{"9pm monday", berlin, "2026-03-16T20:00:00Z"}, {"9:30 PM on Friday", berlin, "2026-03-13T20:30:00Z"},
		{"noon friday", berlin, "2026-03-13T11:00:00Z"}, {"3:30 Nov 30", berlin, "2026-11-30T02:30:00Z"},
		{"3:00 pm Nov 30", berlin, "2026-11-30T14:00:00Z"}, {"2:15 PM 30 Nov", berlin, "2026-11-30T13:15:00Z"},
		{"tonight", berlin, "2026-03-10T19:00:00Z"}, {"tonight 23:00", berlin, "2026-03-10T22:00:00Z"},
		{"teatime", berlin, "2026-03-10T15:00:00Z"}, {"teatime tomorrow", berlin, "2026-03-11T15:00:00Z"},
		{"Nov 30", berlin, "2026-11-29T23:00:00Z"}, {"30 November", berlin, "2026-11-29T23:00:00Z"},
		{"Mar 9", berlin, "2027-03-08T23:00:00Z"}, {"mar 10 3pm", berlin, "2026-03-10T14:00:00Z"},
		{"3pm Nov 30, 2027", berlin, "2027-11-30T14:00:00Z"}, {"feb 29 noon", berlin, "2028-02-29T11:00:00Z"},
		{"next friday", berlin, "2026-03-12T23:00:00Z"}, {"next tuesday", berlin, "2026-03-16T23:00:00Z"},
		{"noon next tue", berlin, "2026-03-17T11:00:00Z"}, {"last friday", berlin, "2026-03-05T23:00:00Z"},
	} {
		now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.UTC).In(c.zone)
		got, err := ParseTime(c.text, now, Forward)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != c.want {
			t.Errorf("%q in %s: got %v, %v, want %s", c.text, c.zone, got.UTC(), err, c.want)
		}
	}
	for _, bad := range []string{"", "25:00", "12:60", "tomorrow 25:00", "+", "+-1h", "+x", "2026-02-30", "12", "today12",
		"13am", "friday the 13th", "ago", "in", "in friday", "2 moons ago", "now +", "now + 5", "3am 4am", "Feb 30",
		"Feb 30 2026", "Feb 29 2027", "Nov 31", "Nov 0", "Nov 30 26", "30", "nov", "tonight 3am", "next", "next 3am",
		"on friday", "3am on", "friday at", ",", "1 ,"} {
		if got, err := ParseTime(bad, time.Now(), Forward); err == nil {
			t.Errorf("%q: got %v, want refused", bad, got)
		}
	}
}

// ParseTime accepts the forms of at(1): those in its man page, in the examples of POSIX, and similar ones. It rejects
// a bare hour and a date of digits only, because other programs interpret these differently.
func TestParseTimeAcceptsFormsOfAtCommand(t *testing.T) {
	// This day is a Tuesday.
	now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.FixedZone("CET", 3600))
	for text, want := range map[string]string{
		// These are the examples of at(1) in POSIX.1-2024, and variants that its grammar allows.
		"0730 tomorrow": "2026-03-11T07:30:00+01:00", "now + 1 hour": "2026-03-10T12:00:00+01:00",
		"0815am Jan 24": "2027-01-24T08:15:00+01:00", "now + 1day": "2026-03-11T11:00:00+01:00",
		"5 pm FRIday": "2026-03-13T17:00:00+01:00", "17:00 utc+ 30minutes": "2026-03-10T17:30:00Z",
		"0815 UTC Jan 24": "2027-01-24T08:15:00Z", "noon GMT": "2026-03-10T12:00:00Z",
		"now next day": "2026-03-11T11:00:00+01:00", "noon next week": "2026-03-17T12:00:00+01:00",
		"3pm tomorrow + 1 week": "2026-03-18T15:00:00+01:00", "now + 3 years": "2029-03-10T11:00:00+01:00",
		// These are the examples of at(1) on Debian and the BSDs.
		"4pm + 3 days": "2026-03-13T16:00:00+01:00", "10am Jul 31": "2026-07-31T10:00:00+01:00",
		"1am tomorrow": "2026-03-11T01:00:00+01:00", "now + 2 minutes": "2026-03-10T11:02:00+01:00",
		"teatime":       "2026-03-10T16:00:00+01:00",
		"now + 1 month": "2026-04-10T11:00:00+01:00", "noon 12/24/2026": "2026-12-24T12:00:00+01:00",
		"12/24/26": "2026-12-24T00:00:00+01:00", "0930 24.12.26": "2026-12-24T09:30:00+01:00",
		"24.12.2026 3pm": "2026-12-24T15:00:00+01:00", "15:04 26-12-24": "2026-12-24T15:04:00+01:00",
		// These are other common forms.
		"2026-12-24 noon": "2026-12-24T12:00:00+01:00", "2026-12-24 3pm": "2026-12-24T15:00:00+01:00",
		"2026-12-24 at 3:30 pm": "2026-12-24T15:30:00+01:00", "15:04 2026-12-24": "2026-12-24T15:04:00+01:00",
		"midnight 2026-12-24": "2026-12-24T00:00:00+01:00", "2026-12-24 0930": "2026-12-24T09:30:00+01:00",
		"0930": "2026-03-11T09:30:00+01:00", "1130": "2026-03-10T11:30:00+01:00", "0000": "2026-03-11T00:00:00+01:00",
		"next week": "2026-03-17T11:00:00+01:00", "next month": "2026-04-10T11:00:00+01:00",
		"next year": "2027-03-10T11:00:00+01:00", "next hour": "2026-03-10T12:00:00+01:00",
		"in 1 month": "2026-04-10T11:00:00+01:00", "in a year": "2027-03-10T11:00:00+01:00",
		"+1 month": "2026-04-10T11:00:00+01:00", "+2months": "2026-05-10T11:00:00+01:00",
		"tomorrow + 1 month": "2026-04-11T00:00:00+01:00", "2026-01-31 noon + 1 month": "2026-03-03T12:00:00+01:00",
		"2 months ago": "2026-01-10T11:00:00+01:00", "a year ago": "2025-03-10T11:00:00+01:00",
		"last week": "2026-03-03T11:00:00+01:00", "last month": "2026-02-10T11:00:00+01:00",
		// These times have a time zone, directly after the time as in ISO 8601, or after a space.
		"2026-03-01T15:04:05+0100": "2026-03-01T15:04:05+01:00", "2026-03-01T15:04:05-0530": "2026-03-01T15:04:05-05:30",
		"2026-03-01T15:04+01": "2026-03-01T15:04:00+01:00", "2026-03-01T15:04Z": "2026-03-01T15:04:00Z",
		"2026-03-01t15:04:05z": "2026-03-01T15:04:05Z", "2026-03-01 15:04:05 +0200": "2026-03-01T15:04:05+02:00",
		"2026-03-01 15:04 +02:00": "2026-03-01T15:04:00+02:00", "2026-03-01 15:04 UTC": "2026-03-01T15:04:00Z",
		"15:04+0300": "2026-03-10T15:04:00+03:00", "23:30-0500 tomorrow": "2026-03-11T23:30:00-05:00",
		"2026-03-01T15:04:05.25+0100": "2026-03-01T15:04:05.25+01:00",
		"0930 +0100":                  "2026-03-11T09:30:00+01:00", "3pm +01:00": "2026-03-10T15:00:00+01:00",
		"noon -0500": "2026-03-10T12:00:00-05:00", "tomorrow 0930 +02:00": "2026-03-11T09:30:00+02:00",
		"3 pm +0530 tomorrow": "2026-03-11T15:00:00+05:30",
		"16:00+14:00":         "2026-03-11T16:00:00+14:00", "16:00-12:00": "2026-03-10T16:00:00-12:00",
		"4pm +0200": "2026-03-10T16:00:00+02:00",
	} {
		got, err := ParseTime(text, now, Forward)
		if parsed, _ := time.Parse(time.RFC3339Nano, want); err != nil || !got.Equal(parsed) {
			t.Errorf("%q: got %s, %v, want %s", text, got.Format(time.RFC3339Nano), err, want)
		}
	}
	for _, bad := range []string{"12", "17 utc", "122426", "12242026", "20261224", "2460", "930", "2030 Jan 24",
		"24/12/2026", "2026-13-01", "2026-12-24 25:00", "next fortnight", "noon next", "now + 1 fortnight",
		"now + 121 months", "1.5 months ago", "15:04 +2500", "16:00-17:00", "16:00-2359", "16:00+14:01", "16:00-12:01",
		"16:00 -1300", "3pm +1500", "tomorrow +0100", "2026-03-01T15:04:05-17:00", "now +0200", "2026-12-24T",
		"tuesdayt3pm"} {
		if got, err := ParseTime(bad, now, Forward); err == nil {
			t.Errorf("%q: got %v, want refused", bad, got)
		}
	}
}

// If a clock change skips a time, ParseTime returns the first instant after the change. If a time occurs
// twice, ParseTime returns the first occurrence. The guide documents the same for schedules.
func TestParseTimeHandlesClockChanges(t *testing.T) {
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
		got, err := ParseTime(c.text, now.In(in), Forward)
		if err != nil || got.In(in).Format(time.RFC3339) != c.want {
			t.Errorf("%q in %s: got %v, %v, want %s", c.text, c.zone, got.In(in), err, c.want)
		}
	}
}

// With Backward, as for a flag like --since, ParseTime takes an incomplete time as the previous such time instead of
// the next one.
func TestBackwardSearchPicksPreviousTime(t *testing.T) {
	now := time.Date(2026, 3, 10, 11, 0, 0, 0, time.FixedZone("CET", 3600)) // a Tuesday
	for text, want := range map[string]string{
		"10:00": "2026-03-10T10:00", "12:00": "2026-03-09T12:00", "3pm": "2026-03-09T15:00", "friday": "2026-03-06T00:00",
		"tuesday":   "2026-03-10T00:00",
		"tue 12:00": "2026-03-03T12:00", "yesterday": "2026-03-09T00:00", "today": "2026-03-10T00:00",
		"tomorrow": "2026-03-11T00:00", "1 week ago": "2026-03-03T11:00",
		"nov 30": "2025-11-30T00:00", "mar 10": "2026-03-10T00:00", "noon mar 10": "2025-03-10T12:00",
		"feb 29": "2024-02-29T00:00", "last tuesday": "2026-03-03T00:00", "9pm monday": "2026-03-09T21:00",
	} {
		if got, err := ParseTime(text, now, Backward); err != nil || got.Format("2006-01-02T15:04") != want {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
}

// Durations can be written in words. The error about an invalid duration contains examples.
func TestParseDurationAcceptsWords(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "1.5": 1500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour,
		"2 hours": 2 * time.Hour, "10 minutes": 10 * time.Minute, "1 day": 24 * time.Hour, "5min": 5 * time.Minute,
		"3 Days": 3 * 24 * time.Hour, "an hour": time.Hour, "2 h": 2 * time.Hour,
		"1.5 hours": 90 * time.Minute, "1 hour 30 minutes": 90 * time.Minute, "1 hour, 30 mins": 90 * time.Minute,
		"a week and 2 days": 9 * 24 * time.Hour, "2hrs30min": 150 * time.Minute, "500 ms": 500 * time.Millisecond,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "is empty", "-5": "cannot be negative", "11 years": "is not a duration", "200000 days": "too long",
		"soon": "is not a duration", "3am": "is not a duration", "5M": "is not a duration",
		"hours": "is not a duration", "2 2 hours": "is not a duration", "1 hour 30": "is not a duration",
		"and 2 hours": "is not a duration", "-2 hours": "is not a duration", "1.2.3 hours": "is not a duration",
		"2 hours ago": "is not a duration",
	} {
		if got, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
	if _, err := ParseDuration("soon"); !strings.Contains(err.Error(), `write it like 90s, 1h30m, 7d, 5min or "2 hours"`) {
		t.Errorf("got %v, want examples", err)
	}
}

// ParseTime and ParseDuration accept every form of times and durations in the reference.
func TestDocumentedTimesAndDurationsAreAccepted(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]func(string) error{
		"Durations": func(text string) error { _, err := ParseDuration(text); return err },
		"Times":     func(text string) error { _, err := ParseTime(text, time.Now(), Forward); return err },
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
					continue // skip the text between two quoted forms
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
