package store

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Each duration is counted in the bucket that contains it. Shorter durations than the bounds are in the first bucket,
// and longer durations in the last.
func TestHistogramBucketsContainTheirDurations(t *testing.T) {
	if first, last := BucketUpperBoundSeconds(0), BucketUpperBoundSeconds(HistogramBucketCount-1); first > 0.001 ||
		last < 30*24*3600 {
		t.Errorf("the buckets end at %v and %v seconds", first, last)
	}
	for _, d := range []time.Duration{-time.Second, 0, 1e5, time.Millisecond, 2 * time.Millisecond, 499 * time.Millisecond,
		500 * time.Millisecond, 501 * time.Millisecond,
		time.Second, 1001 * time.Millisecond, 1414 * time.Millisecond, 1415 * time.Millisecond, time.Minute,
		1024 * time.Second, 1024001 * time.Millisecond, 29 * 24 * time.Hour, 1 << 62} {
		var h Histogram
		h.AddDuration(d)
		k := slices.Index(h.BucketCounts[:], 1)
		whole := min(max(0, d.Truncate(time.Millisecond)), maxCountedDuration)
		if s := whole.Seconds(); k < 0 || k > 0 && s <= BucketUpperBoundSeconds(k-1) || k < HistogramBucketCount-1 &&
			s > BucketUpperBoundSeconds(k) ||
			h.SumMillis != whole.Milliseconds() {
			t.Errorf("%v is in bucket %d, with the sum %d", d, k, h.SumMillis)
		}
	}
}

// A quantile differs from the exact value by a factor below √2.
func TestQuantileErrorIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var h Histogram
		if _, known := h.Quantile(0.5); known {
			t.Error("the median of none is known")
		}
		list := make([]time.Duration, 1+rng.IntN(400))
		for i := range list {
			list[i] = time.Duration(math.Exp(rng.Float64()*20)) * time.Millisecond
			h.AddDuration(list[i])
		}
		slices.Sort(list)
		for _, q := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			want := list[int(math.Ceil(q*float64(len(list))))-1]
			got, known := h.Quantile(q)
			if ratio := float64(got) / float64(want); !known || got-want > time.Millisecond && ratio > math.Sqrt2 ||
				want-got > time.Millisecond && ratio < 1/math.Sqrt2 {
				t.Errorf("quantile %v of %d: got %v, want %v", q, len(list), got, want)
			}
		}
	}
}

// ParseHistogram returns the histogram that AppendEncoded has encoded, and the encoding is short. For damaged input,
// ParseHistogram returns an empty histogram and does not panic.
func FuzzHistogram(f *testing.F) {
	var h Histogram
	f.Add(h.AppendEncoded(nil))
	h.AddDuration(0)
	h.AddDuration(time.Hour)
	h.AddDuration(1 << 62)
	if b := h.AppendEncoded(nil); ParseHistogram(b) != h || len(b) > 16 {
		f.Errorf("%d bytes for %+v, and %+v is read", len(b), h, ParseHistogram(b))
	} else {
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte{0, 200, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := ParseHistogram(b)
		if again := ParseHistogram(h.AppendEncoded(nil)); again != h && h.Count() > 0 {
			t.Errorf("%v: %+v is written, and %+v is read", b, h, again)
		}
		h.Quantile(0.5)
	})
}

// Periods begin at whole minutes, hours and days of UTC.
func TestStatisticsPeriodsBeginAtWholeUTCUnits(t *testing.T) {
	at := queue.UnixMillisOf(time.Date(2026, 11, 25, 20, 49, 24, 5e6, time.UTC))
	for g, want := range map[Granularity]time.Time{
		PerMinute: time.Date(2026, 11, 25, 20, 49, 0, 0, time.UTC), PerHour: time.Date(2026, 11, 25, 20, 0, 0, 0, time.UTC),
		PerDay: time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC),
	} {
		if got := g.PeriodStart(at); got != queue.UnixMillisOf(want) || g.PeriodStart(got) != got {
			t.Errorf("the %v of %v begins at %v, want %v", g, at, got, want)
		}
	}
}
