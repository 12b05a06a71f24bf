package zone

import "time"

// WallClock returns the wall-clock time at t, as a time in UTC.
func WallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// maxOffset is longer than the offset of any zone from UTC.
const maxOffset = 26 * time.Hour

// TimeOfWallClock returns the first instant at which the clock of a zone shows a wall-clock time. wall is that
// wall-clock time as a time in UTC. If a clock change skips the wall-clock time, TimeOfWallClock returns the
// first instant after the gap. If the wall-clock time occurs twice, TimeOfWallClock returns the first
// occurrence. time.Date guarantees neither.
func TimeOfWallClock(wall time.Time, in *time.Location) time.Time {
	at := wall.Add(-maxOffset).In(in)
	for {
		_, offset := at.Zone()
		start, end := OffsetPeriod(at)
		due := wall.Add(-time.Duration(offset) * time.Second).In(in)
		switch {
		case !start.IsZero() && due.Before(start):
			return start // this time does not exist, because a clock change skips it
		case end.IsZero() || due.Before(end):
			return due
		}
		at = end
	}
}

// OffsetPeriod returns the instants between which the offset of t's zone does not change. They are zero if
// there is no bound. The end is always after t. The method t.ZoneBounds does not guarantee that. For a
// zone with a POSIX rule, ZoneBounds assumes 365 days in every year, so on the last day of a leap year
// it returns an end before t.
func OffsetPeriod(t time.Time) (start, end time.Time) {
	start, end = t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = time.Date(t.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC).In(t.Location())
	}
	return start, end
}
