package zone

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

// Load supports the names, offsets and rules of POSIX.1-2024, section 8.3. The expected values are the output
// of GNU date(1) with the same TZ. For summer time without a rule, Load uses M3.2.0,M11.1.0, as all C libraries
// do.
func TestLoadReadsPOSIXZones(t *testing.T) {
	for _, c := range []struct{ name, january, late, october string }{
		{"JST-9", "Thu Jan  1 09:00:00 JST 2026", "Thu Mar 26 13:40:00 JST 2026", "Mon Oct 26 16:33:20 JST 2026"},
		{"CET-1CEST", "Thu Jan  1 01:00:00 CET 2026", "Thu Mar 26 06:40:00 CEST 2026", "Mon Oct 26 09:33:20 CEST 2026"},
		{"CET-1CEST,M3.5.0,M10.5.0/3", "Thu Jan  1 01:00:00 CET 2026", "Thu Mar 26 05:40:00 CET 2026",
			"Mon Oct 26 08:33:20 CET 2026"},
		{"<+0330>-3:30", "Thu Jan  1 03:30:00 +0330 2026", "Thu Mar 26 08:10:00 +0330 2026",
			"Mon Oct 26 11:03:20 +0330 2026"},
		{"EST5EDT,J60,J300/1:30:15", "Wed Dec 31 19:00:00 EST 2025", "Thu Mar 26 00:40:00 EDT 2026",
			"Mon Oct 26 03:33:20 EDT 2026"},
		{"EST5EDT,59,299", "Wed Dec 31 19:00:00 EST 2025", "Thu Mar 26 00:40:00 EDT 2026", "Mon Oct 26 03:33:20 EDT 2026"},
		{"NZST-12:00:00NZDT-13:00:00,M10.1.0,M3.3.0", "Thu Jan  1 13:00:00 NZDT 2026", "Thu Mar 26 16:40:00 NZST 2026",
			"Mon Oct 26 20:33:20 NZDT 2026"},
		{"<-03>3<-02>,M3.5.0/-2,M10.5.0/-1", "Wed Dec 31 21:00:00 -03 2025", "Thu Mar 26 01:40:00 -03 2026",
			"Mon Oct 26 04:33:20 -03 2026"},
		{"UTC+3", "Wed Dec 31 21:00:00 UTC 2025", "Thu Mar 26 01:40:00 UTC 2026", "Mon Oct 26 04:33:20 UTC 2026"},
	} {
		l, err := Load(c.name)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for at, want := range map[int64]string{1767225600: c.january, 1774500000: c.late, 1793000000: c.october} {
			if got := time.Unix(at, 0).In(l).Format(time.UnixDate); got != want {
				t.Errorf("%s at %d: got %s, want %s", c.name, at, got, want)
			}
		}
	}
}

func TestLoadRejectsInvalidZones(t *testing.T) {
	for _, name := range []string{
		"Foo/Bar", "foo", "J5", "JS-9", "<J>-9", "<+0330-3:30", "JST", "JST-", "JST-25", "JST-9:60", "JST-9,M3.2.0,M11.1.0",
		"JST-9x",
		"CET-1CEST,", "CET-1CEST,M3.5.0", "CET-1CEST,M13.5.0,M10.5.0", "CET-1CEST,M3.6.0,M10.5.0", "CET-1CEST,M3.5.7,M10.5.0",
		"CET-1CEST,J0,J365", "CET-1CEST,0,366",
		"CET-1CEST;M3.5.0,M10.5.0", "CET-1CEST,M3.5.0,M10.5.0,", "CET-1CEST,M3.5.0,M10.5.0\n", "Foo/Bar5", "A B-1",
		"../etc/localtime", "/etc/localtime", "Europe",
	} {
		if l, err := Load(name); err == nil {
			t.Errorf("%q: got %v, want refused", name, l)
		} else if !strings.Contains(err.Error(), "there is no time zone") {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

// TZ may have a colon before the name.
func TestFromTZAcceptsLeadingColon(t *testing.T) {
	for value, want := range map[string]string{"": "UTC", ":": "UTC", "UTC": "UTC", ":Europe/Berlin": "CEST",
		":JST-9": "JST"} {
		l, err := FromTZ(value)
		if err != nil {
			t.Errorf("%q: %v", value, err)
		} else if got, _ := time.Unix(1785000000, 0).In(l).Zone(); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
	for _, bad := range []string{"Local", "Foo/Bar", ":Foo/Bar", "/", "::UTC"} {
		if l, err := FromTZ(bad); err == nil {
			t.Errorf("%q: got %v, want refused", bad, l)
		}
	}
}

// For a time that a clock change skips, TimeOfWallClock returns the first time after the gap. For a time that
// occurs twice, it returns the first occurrence. Schedules with fixed hours do the same.
func TestTimeOfWallClockAtClockChanges(t *testing.T) {
	for _, c := range []struct{ zone, wall, want string }{
		{"America/New_York", "2027-03-14 01:59:59", "2027-03-14T01:59:59-05:00"},
		{"America/New_York", "2027-03-14 02:00:00", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-14 02:30:00", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-03-14 03:00:00", "2027-03-14T03:00:00-04:00"},
		{"America/New_York", "2027-11-07 01:30:00", "2027-11-07T01:30:00-04:00"},
		{"America/New_York", "2027-11-07 02:00:00", "2027-11-07T02:00:00-05:00"},
		{"Europe/Berlin", "2026-03-29 02:30:00", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "2026-10-25 02:30:00", "2026-10-25T02:30:00+02:00"},
		{"CET-1CEST,M3.5.0,M10.5.0/3", "2026-03-29 02:30:00", "2026-03-29T03:00:00+02:00"},
		{"CET-1CEST,M3.5.0,M10.5.0/3", "2026-10-25 02:30:00", "2026-10-25T02:30:00+02:00"},
		{"Australia/Lord_Howe", "2026-10-04 02:15:00", "2026-10-04T02:30:00+11:00"},
		// The day begins with a gap: 00:00 does not exist.
		{"Africa/Cairo", "2026-04-24 00:00:00", "2026-04-24T01:00:00+03:00"},
		{"Pacific/Apia", "2011-12-30 12:00:00", "2011-12-31T00:00:00+14:00"}, // a clock change skipped this whole day
		// For the last day of a leap year, time.ZoneBounds returns a wrong end of the period (see
		// ConstantOffsetPeriod).
		{"America/New_York", "2040-12-30 23:30:00", "2040-12-30T23:30:00-05:00"},
		{"America/New_York", "2040-12-31 12:00:00", "2040-12-31T12:00:00-05:00"},
		{"EST5EDT4,M3.2.0,M11.1.0", "2028-12-31 23:59:59", "2028-12-31T23:59:59-05:00"},
	} {
		in, err := Load(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		wall, err := time.Parse(time.DateTime, c.wall)
		if err != nil {
			t.Fatal(err)
		}
		if got := TimeOfWallClock(wall, in).Format(time.RFC3339); got != c.want {
			t.Errorf("%s in %s: got %s, want %s", c.wall, c.zone, got, c.want)
		}
	}
}
