package worker

import (
	"testing"
	"time"
)

// What has happened is counted for a minute, also over a long silence and when the
// clock steps back.
func TestRateOfAMinute(t *testing.T) {
	var r rate
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	for _, c := range []struct{ second, add, want int }{
		{0, 3, 3}, {0, 1, 4}, {1, 2, 6}, {59, 5, 11}, {60, 0, 7}, {61, 0, 5}, {50, 1, 6}, {118, 0, 6}, {119, 0, 1}, {9000, 0, 0}, {9000, 2, 2},
	} {
		r.add(at(c.second), c.add)
		if got := r.sum(at(c.second)); got != c.want {
			t.Errorf("at %d s: %d, want %d", c.second, got, c.want)
		}
	}
}
