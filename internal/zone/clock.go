package zone

import "time"

// WallClockAsUTC returns a time in UTC with the date and the time of day that a clock in t's zone shows at t.
func WallClockAsUTC(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// maxZoneOffset is longer than the offset of any zone from UTC.
const maxZoneOffset = 26 * time.Hour

// TimeOfWallClock returns the first instant at which clocks in a zone show the date and time of day in wall,
// which is a time in UTC. If a clock change skips that time, TimeOfWallClock returns the first instant after
// the change. time.Date guarantees neither.
func TimeOfWallClock(wallClock time.Time, location *time.Location) time.Time {
	at := wallClock.Add(-maxZoneOffset).In(location)
	for {
		_, offset := at.Zone()
		start, end := ConstantOffsetPeriod(at)
		due := wallClock.Add(-time.Duration(offset) * time.Second).In(location)
		switch {
		case !start.IsZero() && due.Before(start):
			return start // a clock change skips this wall-clock time
		case end.IsZero() || due.Before(end):
			return due
		}
		at = end
	}
}

// ConstantOffsetPeriod returns the start and the end of the period around t in which the zone's offset from UTC does
// not change. A zero start or end means that the period is not limited on that side. The end is always after t.
// t.ZoneBounds does not guarantee this: for a zone with a POSIX rule, it assumes that every year has 365 days. So on
// the last day of a leap year, the end that it returns is before t.
func ConstantOffsetPeriod(t time.Time) (start, end time.Time) {
	start, end = t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = time.Date(t.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC).In(t.Location())
	}
	return start, end
}
