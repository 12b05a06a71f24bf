package present

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// DueAndExpirySuffix describes when a job is due and when it expires, like "; due …". It omits a time that the user did
// not set.
func DueAndExpirySuffix(s *queue.Spec, now time.Time) (text string) {
	switch {
	case s.RunAt != nil:
		text = "; " + dueTimeText(s.RunAt.Time(), now)
	case s.Delay != nil:
		text = "; " + dueTimeText(now.Add(*s.Delay), now)
	}
	if s.ExpiresAt != nil && *s.ExpiresAt != 0 {
		text += "; " + ExpiryText(s.ExpiresAt.Time(), now)
	}
	return text
}

// HasExpired reports whether a job with this expires_at will not run, because the time has passed.
func HasExpired(expiresAt *queue.UnixMillis, now time.Time) bool {
	return expiresAt != nil && *expiresAt != 0 && !expiresAt.Time().After(now)
}

// dueTimeText returns a text like "due Mon 23 Nov 03:00 CET, in 10h".
func dueTimeText(dueTime, now time.Time) string {
	return timeWithPastNote("due ", dueTime, now, ", so the job can start now")
}

// ExpiryText returns a text like "expires Mon 23 Nov 03:12 CET, in 11h" for a job that expires at the given time.
func ExpiryText(expiresAt, now time.Time) string {
	return timeWithPastNote("expires ", expiresAt, now, ", so it will not run")
}

// timeWithPastNote returns label followed by a time in the form of FullTimeText. If the time has passed, it adds
// pastNote, which says what that means for the job.
func timeWithPastNote(label string, at, now time.Time, pastNote string) string {
	text, passed := FullTimeText(at, now)
	if passed {
		text += pastNote
	}
	return label + text
}

// FullTimeText formats a time with its day, its zone and the time left. It also reports whether the time has
// passed.
func FullTimeText(at, now time.Time) (text string, hasPassed bool) {
	at = at.In(now.Location())
	wait := at.Sub(now)
	layout := "Mon 2 Jan 15:04 MST"
	switch {
	case at.Year() != now.Year():
		layout = "Mon 2 Jan 2006 15:04 MST"
	case max(wait, -wait) < time.Hour:
		layout = "Mon 2 Jan 15:04:05 MST"
	}
	if wait > 0 {
		return at.Format(layout) + ", in " + RoughDurationText(wait), false
	}
	return at.Format(layout) + ", which has passed", true
}

// RoughDurationText formats a duration in one unit, or in two if the first is less than 10: 1.2s, 45s, 3m12s,
// 41m, 6h48, 3d4h, 41d.
func RoughDurationText(d time.Duration) string {
	pair := func(largeUnit time.Duration, largeSuffix string, smallUnit time.Duration, smallSuffix string) string {
		rest := d % largeUnit / smallUnit
		if rest == 0 || d >= 10*largeUnit {
			return fmt.Sprintf("%d%s", d/largeUnit, largeSuffix)
		}
		return fmt.Sprintf("%d%s%02d%s", d/largeUnit, largeSuffix, rest, smallSuffix)
	}
	switch {
	case d < 10*time.Second:
		return queue.FormatDuration(d.Round(time.Second / 10))
	case d < time.Minute:
		return queue.FormatDuration(d.Round(time.Second))
	case d < time.Hour:
		return pair(time.Minute, "m", time.Second, "s")
	case d < 48*time.Hour:
		return pair(time.Hour, "h", time.Minute, "")
	}
	return strings.Replace(pair(24*time.Hour, "d", time.Hour, "h"), "d0", "d", 1)
}

// PausedSinceText returns when a running job was paused and by which user. It returns "" if the job is not
// paused.
func PausedSinceText(j *control.Job) string {
	if j.PausedAt == 0 {
		return ""
	}
	return "since " + LocalTimeText(j.PausedAt) + " by " + queue.ValueOr(j.PausedBy, "?")
}

// pausedText returns how long a running job has been paused, and by which user.
func pausedText(j *control.Job, now time.Time) string {
	return AgeText(j.PausedAt, now) + " by " + queue.ValueOr(j.PausedBy, "?")
}

// LocalTimeText formats a time in the caller's zone. It returns "-" for 0.
func LocalTimeText(t control.Time) string { return DashIfEmpty(localTimeOrEmpty(t)) }

// localTimeOrEmpty is like LocalTimeText, but returns "" for 0.
func localTimeOrEmpty(t control.Time) string {
	if t == 0 {
		return ""
	}
	return queue.UnixMillis(t).Time().Local().Format("2006-01-02 15:04:05 MST")
}

// DashIfNil formats a value. It returns "-" for nil and for an empty text.
func DashIfNil[T any](p *T) string { return DashIfEmpty(EmptyIfNil(p)) }

// EmptyIfNil formats a value. It returns "" for nil.
func EmptyIfNil[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

// MillisecondsText formats a number of milliseconds, with at most two decimals of a second.
func MillisecondsText(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%dms", ms)
	}
	return queue.FormatDuration((time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond))
}

// DashIfEmpty returns the text, or "-" if it is empty.
func DashIfEmpty(text string) string {
	return cmp.Or(text, "-")
}

// ClockTimeText formats a time for a page that shows the time zone elsewhere. It formats a time of today with seconds,
// and any other time with the date but without seconds. ClockTimeText returns "" for 0.
func ClockTimeText(at control.Time, now time.Time) string {
	if at == 0 {
		return ""
	}
	t := queue.UnixMillis(at).Time().Local()
	if date := dateLayoutUnlessToday(t, now); date != "" {
		return t.Format(date + "15:04")
	}
	return t.Format("15:04:05")
}

// clockTimeWithZone formats a time of day with its zone, and with the date unless it is today.
func clockTimeWithZone(t, now time.Time) string {
	t = t.Local()
	return t.Format(dateLayoutUnlessToday(t, now) + "15:04 MST")
}

// dateLayoutUnlessToday returns the layout (for time.Time.Format) of a date before a time of day. If t is today, it
// returns "". If t is in this year, the layout has no year.
func dateLayoutUnlessToday(t, now time.Time) string {
	switch now = now.In(t.Location()); {
	case t.Format("2006") != now.Format("2006"):
		return "Mon 2 Jan 2006 "
	case t.Format("Jan 2") != now.Format("Jan 2"):
		return "Mon 2 Jan "
	}
	return ""
}

// formatIfNotNil returns format(*p), or "" for nil.
func formatIfNotNil[T any](p *T, format func(T) string) string {
	if p == nil {
		return ""
	}
	return format(*p)
}

// RunTimeText formats a duration in milliseconds like MillisecondsText. It returns "" if the duration is unknown.
func RunTimeText(ms *int64) string { return formatIfNotNil(ms, MillisecondsText) }

// DurationText formats a duration in milliseconds: like MillisecondsText if it is less than a second, otherwise like
// RoughDurationText. It returns "" if the duration is unknown.
func DurationText(ms *int64) string {
	if ms == nil || *ms < 1000 {
		return RunTimeText(ms)
	}
	return RoughDurationText(time.Duration(*ms) * time.Millisecond)
}

// AgeText formats how long ago a time was.
func AgeText(t control.Time, now time.Time) string {
	return RoughDurationText(max(0, now.Sub(queue.UnixMillis(t).Time())).Truncate(time.Second))
}

// agoText formats how long ago a time was, like "5m ago".
func agoText(t control.Time, now time.Time) string {
	if now.Sub(queue.UnixMillis(t).Time()) < time.Second {
		return "just now"
	}
	return AgeText(t, now) + " ago"
}
