package worker

import (
	"testing"
	"time"
)

// A deadline passes exactly when its limit is over. The zero deadline never passes, and any other deadline
// is earlier than the zero deadline.
func TestDeadlinePassesWhenItsTimeEnds(t *testing.T) {
	start := time.Now()
	d := deadlineAfter(start, time.Second)
	for _, c := range []struct {
		name     string
		deadline deadline
		elapsed  time.Duration
		want     bool
	}{
		{"just before the limit", d, time.Second - 1, false},
		{"at the limit", d, time.Second, true},
		{"beyond the limit", d, time.Hour, true},
		{"never", deadline{}, time.Hour, false},
	} {
		if got := c.deadline.hasPassed(start.Add(c.elapsed)); got != c.want {
			t.Errorf("%s: passed %v, want %v", c.name, got, c.want)
		}
	}
	later := deadlineAfter(start, time.Minute)
	for _, pair := range [][2]deadline{{d, later}, {later, d}, {d, {}}, {{}, d}} {
		if got := pair[0].earlierOf(pair[1]); got != d {
			t.Errorf("the earliest of %v is %v, want %v", pair, got, d)
		}
	}
}
