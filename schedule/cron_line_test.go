package schedule

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	zones "github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// nextOccurrences returns the given number of occurrences of a line after a time, in the form that the wall clock
// shows.
func nextOccurrences(t *testing.T, line, zone, afterTime string, count int) (occurrences []string) {
	t.Helper()
	l, err := ParseCronLine(line)
	if err != nil {
		t.Fatal(err)
	}
	in, err := zones.Load(zone)
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, afterTime)
	if err != nil {
		t.Fatal(err)
	}
	since := at
	for range count {
		if at = l.NextOccurrence(at, since, in); at.IsZero() {
			return append(occurrences, "none")
		}
		occurrences = append(occurrences, at.In(in).Format("Mon 01-02 15:04:05 -0700"))
	}
	return occurrences
}

// When the clocks change, a line with fixed hours still has one occurrence per day. If the clock skips the
// time of the line, the occurrence is at the end of the skipped period. If the clock shows the time twice,
// the occurrence is at the first of the two. Other lines have an occurrence whenever the clock shows a
// matching time. The test covers both clock changes of a year in four zones.
func TestClockChangesKeepDailyOccurrence(t *testing.T) {
	for _, c := range []struct {
		name, line, zone, after, want string
	}{
		{"Berlin, left out", "30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z",
			"Sat 03-28 02:30:00 +0100, Sun 03-29 03:00:00 +0200, Mon 03-30 02:30:00 +0200"},
		{"Berlin, left out with the hour after it", "0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z",
			"Sun 03-29 03:00:00 +0200, Sun 03-29 03:30:00 +0200, Mon 03-30 02:00:00 +0200"},
		{"Berlin, left out, each minute of a fixed hour", "* 2 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z",
			"Sun 03-29 03:00:00 +0200, Mon 03-30 02:00:00 +0200, Mon 03-30 02:01:00 +0200"},
		{"Berlin, left out, elapsed", "30 * * * *", "Europe/Berlin", "2026-03-28T23:45:00Z",
			"Sun 03-29 01:30:00 +0100, Sun 03-29 03:30:00 +0200, Sun 03-29 04:30:00 +0200"},
		{"Berlin, left out, a range", "30 1-3 * * *", "Europe/Berlin", "2026-03-28T23:45:00Z",
			"Sun 03-29 01:30:00 +0100, Sun 03-29 03:30:00 +0200, Mon 03-30 01:30:00 +0200"},
		{"Berlin, left out, a step", "0 */2 * * *", "Europe/Berlin", "2026-03-28T22:30:00Z",
			"Sun 03-29 00:00:00 +0100, Sun 03-29 04:00:00 +0200, Sun 03-29 06:00:00 +0200"},
		{"Berlin, twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			"Sun 10-25 02:30:00 +0200, Mon 10-26 02:30:00 +0100, Tue 10-27 02:30:00 +0100"},
		{"Berlin, asked between both", "30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z",
			"Mon 10-26 02:30:00 +0100"},
		{"Berlin, twice, elapsed", "30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z",
			"Sun 10-25 02:30:00 +0200, Sun 10-25 02:30:00 +0100, Sun 10-25 03:30:00 +0100"},
		{"Berlin, twice, each quarter", "*/15 * * * *", "Europe/Berlin", "2026-10-25T00:40:00Z",
			"Sun 10-25 02:45:00 +0200, Sun 10-25 02:00:00 +0100, Sun 10-25 02:15:00 +0100"},
		{"Berlin, the instant of the change itself", "0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			"Sun 10-25 03:00:00 +0100, Mon 10-26 03:00:00 +0100"},
		{"New York, left out", "15 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			"Sun 03-08 03:00:00 -0400, Mon 03-09 02:15:00 -0400"},
		{"New York, by a rule, the end of a leap year", "0 9 * * *", "America/New_York", "2040-12-30T23:00:00Z",
			"Mon 12-31 09:00:00 -0500, Tue 01-01 09:00:00 -0500"},
		{"New York, by a rule, the end of a leap year, elapsed", "0 */8 * * *", "America/New_York", "2040-12-31T14:00:00Z",
			"Mon 12-31 16:00:00 -0500, Tue 01-01 00:00:00 -0500"},
		{"a zone of POSIX, left out", "30 2 * * *", "CET-1CEST,M3.5.0,M10.5.0/3", "2028-03-25T12:00:00Z",
			"Sun 03-26 03:00:00 +0200, Mon 03-27 02:30:00 +0200"},
		{"New York, twice", "15 1 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			"Sun 11-01 01:15:00 -0400, Mon 11-02 01:15:00 -0500"},
		{"New York, twice, elapsed", "15 * * * *", "America/New_York", "2026-11-01T04:30:00Z",
			"Sun 11-01 01:15:00 -0400, Sun 11-01 01:15:00 -0500, Sun 11-01 02:15:00 -0500"},
		{"Lord Howe, half an hour left out", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			"Sun 10-04 02:30:00 +1100, Mon 10-05 02:15:00 +1100"},
		{"Lord Howe, not left out", "45 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			"Sun 10-04 02:45:00 +1100, Mon 10-05 02:45:00 +1100"},
		{"Lord Howe, half an hour twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z",
			"Sun 04-05 01:45:00 +1100, Mon 04-06 01:45:00 +1030"},
		{"Lord Howe, half an hour twice, elapsed", "45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z",
			"Sun 04-05 01:45:00 +1100, Sun 04-05 01:45:00 +1030, Sun 04-05 02:45:00 +1030"},
		{"Beirut, midnight left out", "0 0 * * *", "Asia/Beirut", "2026-03-27T23:00:00Z",
			"Sun 03-29 01:00:00 +0300, Mon 03-30 00:00:00 +0300"},
		{"Beirut, before midnight twice", "30 23 * * *", "Asia/Beirut", "2026-10-24T00:00:00Z",
			"Sat 10-24 23:30:00 +0300, Sun 10-25 23:30:00 +0200"},
		{"Sao Paulo, midnight left out", "30 0 4 11 *", "America/Sao_Paulo", "2018-10-30T00:00:00Z",
			"Sun 11-04 01:00:00 -0200, Mon 11-04 00:30:00 -0300"},
		{"Apia, a day left out", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z",
			"Thu 12-29 12:00:00 -1000, Sat 12-31 00:00:00 +1400, Sat 12-31 12:00:00 +1400"},
	} {
		want := strings.Split(c.want, ", ")
		if got := nextOccurrences(t, c.line, c.zone, c.after, len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %q in %s has the occurrences\n %s\nwant %s", c.name, c.line, c.zone, strings.Join(got, ", "), c.want)
		}
	}
}

// Lines of every form have the occurrences that crontab(5) defines.
func TestCronLinesHaveDefinedOccurrences(t *testing.T) {
	for _, c := range []struct{ line, after, want string }{
		{"0 3 * * *", "2026-03-01T03:00:00Z", "Mon 03-02 03:00:00 +0000"},
		{"0 3 * * *", "2026-03-01T02:59:59.999Z", "Sun 03-01 03:00:00 +0000"},
		{"30 0 3 * * *", "2026-03-01T03:00:00Z", "Sun 03-01 03:00:30 +0000"},
		{"*/20 * * * * *", "2026-03-01T03:00:01Z", "Sun 03-01 03:00:20 +0000, Sun 03-01 03:00:40 +0000, Sun " +
			"03-01 03:01:00 +0000"},
		{"0 0 29 2 *", "2026-03-01T00:00:00Z", "Tue 02-29 00:00:00 +0000, Sun 02-29 00:00:00 +0000"},
		{"0 0 29 2 *", "2096-03-01T00:00:00Z", "Fri 02-29 00:00:00 +0000"},
		{"0 0 31 * *", "2026-03-31T00:00:00Z", "Sun 05-31 00:00:00 +0000, Fri 07-31 00:00:00 +0000"},
		{"0 0 13 * FRI", "2026-02-28T00:00:00Z", "Fri 03-06 00:00:00 +0000, Fri 03-13 00:00:00 +0000, Fri 03-20 00:00:00 " +
			"+0000, Fri 03-27 00:00:00 +0000, Fri 04-03 00:00:00 +0000, Fri 04-10 00:00:00 +0000, Mon 04-13 00:00:00 +0000"},
		{"0 0 */10 * THU", "2026-02-28T00:00:00Z", "Thu 05-21 00:00:00 +0000, Thu 06-11 00:00:00 +0000"},
		{"0 0 * * 7", "2026-03-02T00:00:00Z", "Sun 03-08 00:00:00 +0000"},
		{"0 0 13 * */7", "2026-03-02T00:00:00Z", "Sun 09-13 00:00:00 +0000, Sun 12-13 00:00:00 +0000"},
		{"0 0 1 jan,Jul *", "2026-03-02T00:00:00Z", "Wed 07-01 00:00:00 +0000, Fri 01-01 00:00:00 +0000"},
		{"5/20 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:05:00 +0000, Mon 03-02 04:25:00 +0000, Mon " +
			"03-02 04:45:00 +0000"},
		{"0 22-2 * * *", "2026-03-02T12:00:00Z", "Mon 03-02 22:00:00 +0000, Mon 03-02 23:00:00 +0000, Tue " +
			"03-03 00:00:00 +0000"},
		// A step that is longer than its range selects only the first value of the range, as in crontab(5).
		{"26-28/3 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:26:00 +0000, Tue 03-03 04:26:00 +0000"},
		{"26-28/2 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:26:00 +0000, Mon 03-02 04:28:00 +0000"},
		{"*/60 * * * *", "2026-03-02T00:00:00Z", "Mon 03-02 01:00:00 +0000, Mon 03-02 02:00:00 +0000"},
		{"*/90 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:00:00 +0000, Tue 03-03 04:00:00 +0000"},
		{"*/59 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:00:00 +0000, Mon 03-02 04:59:00 +0000"},
		{"*/99999999999999999999 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:00:00 +0000, Tue 03-03 04:00:00 +0000"},
		{"*/61 0 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:00:00 +0000"},
		{"0 */24 * * *", "2026-03-02T00:00:00Z", "Tue 03-03 00:00:00 +0000, Wed 03-04 00:00:00 +0000"},
		{"5,10-12/9,*/70 4 * * *", "2026-03-02T00:00:00Z",
			"Mon 03-02 04:00:00 +0000, Mon 03-02 04:05:00 +0000, Mon 03-02 04:10:00 +0000, Tue 03-03 04:00:00 +0000"},
		{"0 0 */40 * *", "2026-03-02T00:00:00Z", "Wed 04-01 00:00:00 +0000, Fri 05-01 00:00:00 +0000"},
		{"0 0 1 mar-may/7 *", "2026-03-02T00:00:00Z", "Mon 03-01 00:00:00 +0000"},
		{"0 0 * * mon-wed/5", "2026-03-02T00:00:00Z", "Mon 03-09 00:00:00 +0000"},
		{"0 22-2/9 * * *", "2026-03-02T12:00:00Z", "Mon 03-02 22:00:00 +0000, Tue 03-03 22:00:00 +0000"},
		// More is allowed than in crontab(5): the end of a range may be lower than its start, and a number
		// with a step means a range from this number to the maximum.
		{"59-0 4 * * *", "2026-03-02T12:00:00Z", "Tue 03-03 04:00:00 +0000, Tue 03-03 04:59:00 +0000"},
		{"0 0 30-2 * *", "2026-03-02T12:00:00Z", "Mon 03-30 00:00:00 +0000, Tue 03-31 00:00:00 +0000, Wed " +
			"04-01 00:00:00 +0000"},
		{"0 0 1 nov-feb *", "2026-03-02T12:00:00Z",
			"Sun 11-01 00:00:00 +0000, Tue 12-01 00:00:00 +0000, Fri 01-01 00:00:00 +0000, Mon 02-01 00:00:00 +0000"},
		{"0 0 * * sat-mon", "2026-03-03T12:00:00Z",
			"Sat 03-07 00:00:00 +0000, Sun 03-08 00:00:00 +0000, Mon 03-09 00:00:00 +0000"},
		{"5/15 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:05:00 +0000, Mon 03-02 04:20:00 +0000, Mon 03-02 04:35:00 " +
			"+0000, Mon 03-02 04:50:00 +0000, Tue 03-03 04:05:00 +0000"},
		{"5/70 4 * * *", "2026-03-02T00:00:00Z", "Mon 03-02 04:05:00 +0000, Tue 03-03 04:05:00 +0000"},
		{"@hourly", "2026-03-02T12:00:00Z", "Mon 03-02 13:00:00 +0000"},
		{"@Daily", "2026-03-02T12:00:00Z", "Tue 03-03 00:00:00 +0000"},
		{"@midnight", "2026-03-02T12:00:00Z", "Tue 03-03 00:00:00 +0000"},
		{"@weekly", "2026-03-02T12:00:00Z", "Sun 03-08 00:00:00 +0000"},
		{"@monthly", "2026-03-02T12:00:00Z", "Wed 04-01 00:00:00 +0000"},
		{"@yearly", "2026-03-02T12:00:00Z", "Fri 01-01 00:00:00 +0000"},
		{"@annually", "2026-03-02T12:00:00Z", "Fri 01-01 00:00:00 +0000"},
		{"@every 90s", "2026-03-02T12:00:00Z", "Mon 03-02 12:01:30 +0000, Mon 03-02 12:03:00 +0000"},
		{" @every   1d ", "2026-03-02T12:00:00Z", "Tue 03-03 12:00:00 +0000"},
		{"@reboot", "2026-03-02T12:00:00Z", "none"},
	} {
		want := strings.Split(c.want, ", ")
		if got := nextOccurrences(t, c.line, "UTC", c.after, len(want)); !slices.Equal(got, want) {
			t.Errorf("%q has the occurrences\n %s\nwant %s", c.line, strings.Join(got, ", "), c.want)
		}
	}
}

// An invalid line is rejected. The error names the invalid part and the allowed values.
func TestInvalidCronLinesAreRejected(t *testing.T) {
	for line, part := range map[string]string{
		"":                                      "must not be empty",
		"61 * * * *":                            `the minute "61" is not valid; use 0 to 59`,
		"* 24 * * *":                            `the hour "24" is not valid; use 0 to 23`,
		"* * 0 * *":                             `the day of the month "0" is not valid; use 1 to 31`,
		"* * * 13 *":                            `the month "13" is not valid`,
		"* * * * 8":                             `the day of the week "8" is not valid; use 0 to 7 or sun to sat`,
		"60 * * * * *":                          `the second "60" is not valid`,
		"*/0 * * * *":                           `the minute "*/0" is not valid; use 0 to 59, a list (1,2), a range (1-3), a step of 1 or more (*/2) or *`,
		"*/00 * * * *":                          `the minute "*/00" is not valid`,
		"+5 * * * *":                            `the minute "+5" is not valid`,
		"*/+5 * * * *":                          `the minute "*/+5" is not valid`,
		"+1-5 * * * *":                          `the minute "+1-5" is not valid`,
		"*/-5 * * * *":                          `the minute "*/-5" is not valid`,
		"*/ * * * *":                            `the minute "*/" is not valid`,
		"26-70/99 * * * *":                      `the minute "26-70/99" is not valid`,
		"70/99 * * * *":                         `the minute "70/99" is not valid`,
		"*/5/99 * * * *":                        `the minute "*/5/99" is not valid`,
		"1,,2 * * * *":                          `the minute "1,,2" is not valid`,
		", * * * *":                             `the minute "," is not valid`,
		"* * L * *":                             `the day of the month "L" is not valid`,
		"* * * * MONDAY":                        `the day of the week "MONDAY" is not valid`,
		"* H * * *":                             `the hour "H" is not valid`,
		"1-2-3 * * * *":                         `the minute "1-2-3" is not valid`,
		"-5 * * * *":                            `the minute "-5" is not valid`,
		"99999999999999999999 * * * *":          `the minute "99999999999999999999" is not valid`,
		"* * * *":                               "wrong number of fields (4)",
		"* * * * * * *":                         "wrong number of fields (7)",
		"0 0 30 2 *":                            "the schedule would never start a job",
		"0 0 31 4,6,9,11 *":                     "the schedule would never start a job",
		"@every":                                "@every needs one duration",
		"@every never":                          "@every:",
		"@every 999ms":                          "at least 1s",
		"@every -1s":                            "@every:",
		"@sometimes":                            `unknown schedule "@sometimes"`,
		"@daily 5":                              `unknown schedule "@daily 5"`,
		"TZ=Europe/Berlin * * * * *":            "set the time zone with --tz",
		"CRON_TZ=Europe/Berlin 0 3 * * *":       "set the time zone with --tz",
		strings.Repeat("1,", 600) + "1 * * * *": "1209 bytes",
	} {
		_, err := ParseCronLine(line)
		var e *queue.Error
		if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != "cron" || !strings.Contains(e.Message, part) {
			t.Errorf("%q: got %v, want %s", line, err, part)
		}
	}
}

// NewestOccurrences returns the newest occurrences: maxCount of them, or all if there are fewer. It is fast even if the
// range contains many more.
func TestNewestOccurrencesReturnsLastOnes(t *testing.T) {
	from := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		line        string
		after, upto time.Time
		first, last string
		n           int
	}{
		{"0 3 * * *", from, from.AddDate(0, 0, 7), "03-02 03:00:00", "03-08 03:00:00", 7},
		{"* * * * * *", from, from.AddDate(70, 0, 0), "03-01 11:58:21", "03-01 12:00:00", 100},
		{"* * * * *", from, from.Add(5 * time.Minute), "03-01 12:01:00", "03-01 12:05:00", 5},
		{"* * * * *", from, from, "", "", 0},
		// The clock was set back by a day, so the range is empty.
		{"* * * * *", from, from.AddDate(0, 0, -1), "", "", 0},
		{"* * * * * 1", from.AddDate(-5, 0, 0), from, "02-23 23:58:20", "02-23 23:59:59", 100},
		{"@every 90s", from, from.AddDate(0, 0, 1), "03-02 09:31:30", "03-02 12:00:00", 100},
		{"0 0 29 2 *", from, from.AddDate(70, 0, 0), "02-29 00:00:00", "02-29 00:00:00", 18},
	} {
		l, err := ParseCronLine(c.line)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got := l.NewestOccurrences(c.after, c.upto, from, time.UTC, 100)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%q: Newest took %v", c.line, took)
		}
		first, last := "", ""
		if len(got) > 0 {
			first, last = got[0].Format("01-02 15:04:05"), got[len(got)-1].Format("01-02 15:04:05")
		}
		if len(got) != c.n || first != c.first || last != c.last {
			t.Errorf("%q: got %d occurrences from %s to %s, want %d from %s to %s", c.line, len(got), first, last, c.n, c.first,
				c.last)
		}
	}
}

// In each zone, NextOccurrence always returns a later time than its argument. Called with one millisecond before an
// occurrence, it returns that occurrence.
func TestNextOccurrenceAlwaysAdvances(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut",
		"Africa/Casablanca", "Pacific/Apia"} {
		in, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"*/10 * * * *", "15,45 0,1,2,3,23 * * *", "0 1-4 * * *"} {
			l, err := ParseCronLine(line)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for end := at.AddDate(1, 0, 0); at.Before(end); {
				next := l.NextOccurrence(at, at, in)
				if !next.After(at) || next.Sub(at) > 25*time.Hour {
					t.Fatalf("%s, %q: the occurrence after %v is %v", zone, line, at, next)
				}
				if again := l.NextOccurrence(next.Add(-time.Millisecond), at, in); !again.Equal(next) {
					t.Fatalf("%s, %q: one millisecond before %v, Next returns %v", zone, line, next, again)
				}
				at = next
			}
		}
	}
}

// The jitter depends only on the schedule's name and the planned time. It has many different values between 0
// and the limit.
func TestJitterDelayIsDeterministic(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	seen := map[time.Duration]bool{}
	for i := range 100 {
		d := JitterDelay("nightly", at.AddDate(0, 0, i), time.Minute)
		if d < 0 || d >= time.Minute || d != JitterDelay("nightly", at.AddDate(0, 0, i), time.Minute) {
			t.Errorf("jitter on day %d: %v", i, d)
		}
		seen[d.Truncate(time.Second)] = true
	}
	if len(seen) < 30 || JitterDelay("nightly", at, 0) != 0 ||
		JitterDelay("nightly", at, time.Hour) == JitterDelay("weekly", at, time.Hour) {
		t.Errorf("the jitter has %d different values in seconds, want at least 30 of 60", len(seen))
	}
}

// ShortestInterval returns the shortest interval, also for a line whose intervals differ.
func TestShortestIntervalIsFound(t *testing.T) {
	at := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	for line, want := range map[string]time.Duration{"0 0,1 * * *": time.Hour, "@every 90s": 90 * time.Second,
		"@reboot": 0, "0 3 * * *": 24 * time.Hour} {
		l, err := ParseCronLine(line)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.ShortestInterval(at, at, time.UTC); got != want {
			t.Errorf("%q: got %v, want %v", line, got, want)
		}
	}
}

// The id of a scheduled job contains the time of the occurrence in UTC.
func TestScheduledJobIDContainsTime(t *testing.T) {
	at := time.Date(2026, 3, 1, 4, 0, 0, 0, time.FixedZone("", 3600))
	if got := CandidateJobID("nightly", at, 1); got != "nightly@20260301T030000Z" {
		t.Error(got)
	}
	if got := CandidateJobID("nightly", at, 2); got != "nightly@20260301T030000Z-2" {
		t.Error(got)
	}
	one, other := CandidateJobID("nightly", at, 21), CandidateJobID("nightly", at, 21)
	if one == other || !strings.HasPrefix(one, "nightly@20260301T030000Z-") ||
		len(one) != len("nightly@20260301T030000Z-")+10 {
		t.Errorf("two ids after many ids are taken: %s and %s; want different ones", one, other)
	}
}
