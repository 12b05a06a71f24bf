package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// parseWhen reads an instant as a person names it, in the zone of now: RFC 3339,
// 2026-03-01 15:04, 15:04 (today, or tomorrow if that has passed), today 15:04,
// tomorrow 03:00, +2h.
func parseWhen(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	if after, ok := strings.CutPrefix(text, "+"); ok {
		d, err := queue.ParseDuration(after)
		return now.Add(d), err
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	clock, days, named := text, 0, false
	if rest, ok := strings.CutPrefix(text, "tomorrow"); ok {
		clock, days, named = strings.TrimSpace(rest), 1, true
	} else if rest, ok := strings.CutPrefix(text, "today"); ok {
		clock, named = strings.TrimSpace(rest), true
	}
	if named && clock == "" {
		clock = "00:00"
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		c, err := time.Parse(layout, clock)
		if err != nil {
			continue
		}
		t := time.Date(now.Year(), now.Month(), now.Day()+days, c.Hour(), c.Minute(), c.Second(), 0, now.Location())
		if !named && !t.After(now) {
			t = time.Date(now.Year(), now.Month(), now.Day()+1, c.Hour(), c.Minute(), c.Second(), 0, now.Location())
		}
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time; write it like 2026-03-01T15:04:05Z, 15:04, \"tomorrow 03:00\" or +2h", text)
}
