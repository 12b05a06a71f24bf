package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Jitter is how long after an instant a schedule of a name is due, below most: the same each
// time, and another one for another name or instant.
func Jitter(name string, at time.Time, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(name+"\x00"), uint64(at.UnixMilli())))
	ms := binary.BigEndian.Uint64(sum[:8]) % uint64(max(1, most.Milliseconds()))
	return time.Duration(ms) * time.Millisecond
}

// gaps is how many instants are looked at for the least time between two.
const gaps = 100

// Gap is the least time between two instants of those that come next, 0 if there are not two.
func (l *Line) Gap(after, since time.Time, zone *time.Location) (least time.Duration) {
	last := l.Next(after, since, zone)
	for range gaps {
		if last.IsZero() {
			break
		}
		next := l.Next(last, since, zone)
		if next.IsZero() {
			break
		}
		if d := next.Sub(last); least == 0 || d < least {
			least = d
		}
		last = next
	}
	return least
}
