package worker

import (
	"fmt"
	"testing"
	"time"
)

// Each event is counted for one minute, even after a long time without events or when the clock steps
// back.
func TestRateCountsLastMinute(t *testing.T) {
	var r endedRates
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	for _, c := range []struct{ second, add, want int }{
		{0, 3, 3}, {0, 1, 4}, {1, 2, 6}, {59, 5, 11}, {60, 0, 7}, {61, 0, 5}, {50, 1, 6},
		{118, 0, 6}, {119, 0, 1}, {9000, 0, 0}, {9000, 2, 2},
	} {
		for range c.add {
			r.add("q", at(c.second))
		}
		if got := r.sums(at(c.second))["q"]; got != c.want {
			t.Errorf("after %d s: the rate is %d, want %d", c.second, got, c.want)
		}
	}
}

// Each queue has its own rate, up to maxQueueCounters queues. Idle queues are removed.
func TestQueueRatesAreLimited(t *testing.T) {
	var r endedRates
	now := time.Unix(1_000_000, 0)
	r.add("a", now)
	r.add("a", now.Add(time.Second))
	r.add("b", now.Add(30*time.Second))
	if got := r.sums(now.Add(59 * time.Second)); len(got) != 2 || got["a"] != 2 || got["b"] != 1 {
		t.Errorf("the rates are %v, want 2 for a and 1 for b", got)
	}
	if got := r.sums(now.Add(70 * time.Second)); len(got) != 1 || got["b"] != 1 {
		t.Errorf("after a minute the rates are %v, want only b with 1", got)
	}
	for i := range 2 * maxQueueCounters {
		r.add(fmt.Sprint(i), now.Add(95*time.Second))
	}
	if got := r.sums(now.Add(95 * time.Second)); len(got) != maxQueueCounters {
		t.Errorf("%d queues are counted, want %d", len(got), maxQueueCounters)
	}
	r.add("c", now.Add(200*time.Second))
	if got := r.sums(now.Add(200 * time.Second)); len(got) != 1 || got["c"] != 1 {
		t.Errorf("after all queues were idle, the rates are %v, want only c with 1", got)
	}
}
