package present

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// The text about a due time contains the day, the zone and the time left.
func TestDueTextNamesDayAndZone(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 12, 30, 0, time.FixedZone("CET", 3600))
	for after, want := range map[time.Duration]string{
		10*time.Hour + 47*time.Minute + 30*time.Second: "due Mon 23 Nov 03:00 CET, in 10h",
		90 * time.Second:        "due Sun 22 Nov 16:14:00 CET, in 1m30s",
		-2 * time.Hour:          "due Sun 22 Nov 14:12 CET, which has passed, so the job can start now",
		60 * 24 * time.Hour:     "due Thu 21 Jan 2027 16:12 CET, in 60d",
		1500 * time.Millisecond: "due Sun 22 Nov 16:12:31 CET, in 1.5s",
		76 * time.Hour:          "due Wed 25 Nov 20:12 CET, in 3d4h",
	} {
		if got := dueTimeText(now.Add(after).UTC(), now); got != want {
			t.Errorf("%v: got %q, want %q", after, got, want)
		}
	}
}

// The text about an expiry time has the same form as the text about a due time. If the expiry time has
// passed, the text says that the job will not run.
func TestExpiryTextNamesDayAndZone(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 12, 30, 0, time.FixedZone("CET", 3600))
	in := func(d time.Duration) *queue.UnixMillis { return new(queue.UnixMillisOf(now.Add(d))) }
	for want, s := range map[string]queue.Spec{
		"": {}, "; expires Mon 23 Nov 03:12 CET, in 11h": {ExpiresAt: in(11 * time.Hour)},
		"; expires Sat 21 Nov 16:12 CET, which has passed, so it will not run": {ExpiresAt: in(-24 * time.Hour)},
		"; due Mon 23 Nov 03:12 CET, in 11h; expires Tue 24 Nov 16:12 CET, in 2d": {RunAt: in(11 * time.Hour),
			ExpiresAt: in(48 * time.Hour)},
		"; due Sun 22 Nov 18:12 CET, in 2h; expires Sun 22 Nov 17:12 CET, in 1h": {Delay: new(2 * time.Hour),
			ExpiresAt: in(time.Hour)},
	} {
		if got := DueAndExpirySuffix(&s, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A time of today is shown without the date, and any other time without the seconds.
func TestClockTimeOmitsDateOfToday(t *testing.T) {
	now := time.Date(2026, 11, 25, 14, 0, 0, 0, time.Local)
	for at, want := range map[time.Time]string{
		now.Add(-time.Hour): "13:00:00", now.Add(11 * time.Hour): "Thu 26 Nov 01:00",
		now.AddDate(-1, 0, 0): "Tue 25 Nov 2025 14:00",
	} {
		if got := ClockTimeText(control.Time(at.UnixMilli()), now); got != want {
			t.Errorf("%v: got %q, want %q", at, got, want)
		}
	}
	if got := ClockTimeText(0, now); got != "" {
		t.Errorf("no time: got %q", got)
	}
}

// Ages have the form in testdata/ages.tsv. The web page formats ages in JavaScript. TestPageFormatsAgesLikeCLI checks
// the web page with the same file.
func TestAgeTextMatchesTestdata(t *testing.T) {
	raw, err := os.ReadFile("testdata/ages.tsv")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for line := range strings.Lines(string(raw)) {
		seconds, want, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, err := strconv.Atoi(seconds)
		if err != nil {
			t.Fatal(err)
		}
		at := now.Add(-time.Duration(n) * time.Second)
		if got := AgeText(control.Time(at.UnixMilli()), now); got != want {
			t.Errorf("%d s: got %q, want %q", n, got, want)
		}
	}
}
