package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// JitterDelay returns how long after its planned time an occurrence of a schedule is due: at least 0 and less
// than maxDelay. The same planned time and schedule name always result in the same delay.
func JitterDelay(scheduleName string, plannedAt time.Time, maxDelay time.Duration) time.Duration {
	if maxDelay <= 0 {
		return 0
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(scheduleName+"\x00"), uint64(plannedAt.UnixMilli())))
	ms := binary.BigEndian.Uint64(sum[:8]) % uint64(max(1, maxDelay.Milliseconds()))
	return time.Duration(ms) * time.Millisecond
}

// maxComparedIntervals is the maximum number of intervals that ShortestInterval compares.
const maxComparedIntervals = 100

// ShortestInterval returns the shortest interval between two occurrences after afterTime. It compares the next
// maxComparedIntervals intervals. It returns 0 if fewer than two occurrences exist. The parameters are as in
// NextOccurrence.
func (l *CronLine) ShortestInterval(afterTime, scheduleCreatedAt time.Time,
	zone *time.Location) (shortest time.Duration) {
	last := l.NextOccurrence(afterTime, scheduleCreatedAt, zone)
	for i := 0; i < maxComparedIntervals && !last.IsZero(); i++ {
		next := l.NextOccurrence(last, scheduleCreatedAt, zone)
		if d := next.Sub(last); !next.IsZero() && (shortest == 0 || d < shortest) {
			shortest = d
		}
		last = next
	}
	return shortest
}
