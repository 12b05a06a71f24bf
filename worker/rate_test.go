package worker

import (
	"fmt"
	"testing"
	"time"
)

// Each event is counted for one minute, even after a long time without events or when the clock steps
// back.
func TestRateCountsLastMinute(t *testing.T) {
	var r rate
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	for _, c := range []struct{ second, add, want int }{
		{0, 3, 3}, {0, 1, 4}, {1, 2, 6}, {59, 5, 11}, {60, 0, 7}, {61, 0, 5}, {50, 1, 6},
		{118, 0, 6}, {119, 0, 1}, {9000, 0, 0}, {9000, 2, 2},
	} {
		r.add(at(c.second), c.add)
		if got := r.sum(at(c.second)); got != c.want {
			t.Errorf("after %d s: the rate is %d, want %d", c.second, got, c.want)
		}
	}
}

// Each queue has its own rate, up to maxQueueRates queues. Idle queues are removed.
func TestQueueRatesAreLimited(t *testing.T) {
	var q queueRates
	now := time.Unix(1_000_000, 0)
	q.add("a", now)
	q.add("a", now.Add(time.Second))
	q.add("b", now.Add(30*time.Second))
	if got := q.sums(now.Add(59 * time.Second)); len(got) != 2 || got["a"] != 2 || got["b"] != 1 {
		t.Errorf("the rates are %v, want 2 for a and 1 for b", got)
	}
	if got := q.sums(now.Add(70 * time.Second)); len(got) != 1 || got["b"] != 1 || len(q.byQueue) != 1 {
		t.Errorf("after a minute the rates are %v with %d queues stored, want only b with 1", got, len(q.byQueue))
	}
	for i := range 2 * maxQueueRates {
		q.add(fmt.Sprint(i), now.Add(80*time.Second))
	}
	if len(q.byQueue) != maxQueueRates {
		t.Errorf("%d queues are stored, want %d", len(q.byQueue), maxQueueRates)
	}
	q.add("c", now.Add(200*time.Second))
	if got := q.sums(now.Add(200 * time.Second)); len(got) != 1 || got["c"] != 1 {
		t.Errorf("after all queues were idle, the rates are %v, want only c with 1", got)
	}
}
