package worker

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

// The end of an attempt is counted for one minute, even after a long time without such ends or when the clock
// steps back.
func TestThroughputCountsLastMinute(t *testing.T) {
	var r endedAttemptCounts
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	for _, c := range []struct{ second, add, want int }{
		{0, 3, 3}, {0, 1, 4}, {1, 2, 6}, {59, 5, 11}, {60, 0, 7}, {61, 0, 5}, {50, 1, 6},
		{118, 0, 6}, {119, 0, 1}, {9000, 0, 0}, {9000, 2, 2},
	} {
		for range c.add {
			r.countEndedAttempt("q", at(c.second))
		}
		if got := r.lastMinuteTotalsByQueue(at(c.second))["q"]; got != c.want {
			t.Errorf("after %d s: the rate is %d, want %d", c.second, got, c.want)
		}
	}
}

// The attempts of each queue are counted separately, up to maxCountedQueues queues in a minute. The total counts the
// attempts of all queues. Queues without attempts in the last minute are removed.
func TestQueueThroughputCountersAreLimited(t *testing.T) {
	var r endedAttemptCounts
	at := func(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
	check := func(second, total int, want map[string]int) {
		t.Helper()
		if got := r.lastMinuteTotalsByQueue(at(second)); !maps.Equal(got, want) {
			t.Errorf("after %d s: the rates are %v, want %v", second, got, want)
		}
		if got := r.lastMinuteTotal(at(second)); got != total {
			t.Errorf("after %d s: the total is %d, want %d", second, got, total)
		}
	}
	r.countEndedAttempt("a", at(0))
	r.countEndedAttempt("a", at(1))
	r.countEndedAttempt("b", at(30))
	check(59, 3, map[string]int{"a": 2, "b": 1})
	check(70, 1, map[string]int{"b": 1})
	for i := range 2 * maxCountedQueues {
		r.countEndedAttempt(fmt.Sprint(i), at(95+i%2)) // the limit applies to the whole minute, not to each second
	}
	r.countEndedAttempt("0", at(97)) // a queue that is counted already
	if got := r.lastMinuteTotalsByQueue(at(97)); len(got) != maxCountedQueues || got["0"] != 2 {
		t.Errorf("%d queues are counted, the first with %d, want %d queues, the first with 2", len(got), got["0"],
			maxCountedQueues)
	}
	if got := r.lastMinuteTotal(at(97)); got != 2*maxCountedQueues+1 {
		t.Errorf("the total is %d, want %d", got, 2*maxCountedQueues+1)
	}
	r.countEndedAttempt("c", at(200))
	check(200, 1, map[string]int{"c": 1})
}
