package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// JitterDelay returns how long after its planned time an occurrence of a schedule is due. The delay is at least
// 0 and less than limit. It depends only on the planned time and the schedule's name.
func JitterDelay(name string, at time.Time, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(name+"\x00"), uint64(at.UnixMilli())))
	ms := binary.BigEndian.Uint64(sum[:8]) % uint64(max(1, limit.Milliseconds()))
	return time.Duration(ms) * time.Millisecond
}

// maxComparedGaps is the maximum number of intervals that ShortestGap compares.
const maxComparedGaps = 100

// ShortestGap returns the shortest interval between two consecutive occurrences after a time. It compares only
// the next maxComparedGaps intervals. It returns 0 if fewer than two occurrences exist. Next describes the
// parameters.
func (l *CronLine) ShortestGap(from, createdAt time.Time, zone *time.Location) (least time.Duration) {
	last := l.Next(from, createdAt, zone)
	for i := 0; i < maxComparedGaps && !last.IsZero(); i++ {
		next := l.Next(last, createdAt, zone)
		if d := next.Sub(last); !next.IsZero() && (least == 0 || d < least) {
			least = d
		}
		last = next
	}
	return least
}
