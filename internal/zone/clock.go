package zone

import "time"

// Wall returns what a clock on the wall shows at t, as an instant of UTC.
func Wall(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// maxOffset is more than any zone is away from UTC.
const maxOffset = 26 * time.Hour

// Instant returns the first instant at which the clock of a zone shows a time, which is given as an
// instant of UTC. If a clock change skips that time, it is the first instant after the gap; if the
// clock shows it twice, it is the first of the two. time.Date promises neither.
func Instant(wall time.Time, in *time.Location) time.Time {
	at := wall.Add(-maxOffset).In(in)
	for {
		_, offset := at.Zone()
		start, end := Bounds(at)
		due := wall.Add(-time.Duration(offset) * time.Second).In(in)
		switch {
		case !start.IsZero() && due.Before(start):
			return start // the clock was put forward over it
		case end.IsZero() || due.Before(end):
			return due
		}
		at = end
	}
}

// Bounds returns the instants between which the offset of t's zone does not change, zero for one
// that does not exist. Unlike t.ZoneBounds it always ends after t: where a zone goes by a POSIX
// rule, that method takes every year to have 365 days, so on the last day of a leap year the
// end that it returns has passed.
func Bounds(t time.Time) (start, end time.Time) {
	start, end = t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = time.Date(t.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC).In(t.Location())
	}
	return start, end
}
