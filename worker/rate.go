package worker

import "time"

// rate counts what happens, for a minute.
type rate struct {
	counts [60]int // by second
	last   int64   // the newest second
}

func (r *rate) add(now time.Time, n int) {
	r.forget(now)
	r.counts[r.last%60] += n
}

// sum is how much has happened in the minute before now.
func (r *rate) sum(now time.Time) (n int) {
	r.forget(now)
	for _, c := range r.counts {
		n += c
	}
	return n
}

// forget drops what is a minute old.
func (r *rate) forget(now time.Time) {
	second := max(r.last, now.Unix())
	for s := max(r.last, second-60) + 1; s <= second; s++ {
		r.counts[s%60] = 0
	}
	r.last = second
}
